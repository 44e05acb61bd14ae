//! The model's own head as a drafter: what it has read of a stream, and what it has not.
//!
//! It reads the trunk's hidden states late, when it is next asked, and only the newest of them: while drafts do not pay
//! it costs nothing, and of a long prompt it reads the end. Its experts never leave this machine.

use crate::backbone::{DraftState, Rows};

/// Rows of the trunk that wait to be read: 3 MB of the 122B model. Older ones are left out, as drafts decide nothing.
pub(super) const UNREAD_MAX: usize = 256;

/// The head's side of a stream.
#[derive(Clone, Debug)]
pub(super) struct Head {
    pub state: DraftState,
    /// Rows of `state` that came from the trunk and not from a draft.
    read: usize,
    /// What the next pass reads: rows of the trunk, or the head's own row for the last draft.
    pub hidden: Rows,
    /// Place of the token of the first of them.
    first: usize,
}

impl Head {
    pub fn new(state: DraftState) -> Self {
        Self { state, read: 0, hidden: Rows::default(), first: 0 }
    }

    /// Keeps the trunk's rows of the tokens from place `first` on, `[rows, width]`.
    pub fn keep(&mut self, first: usize, width: usize, rows: &[f32]) {
        if self.first + self.hidden.len() != first {
            self.hidden.keep_last(0);
        }
        let end = first + rows.len() / width;
        let rows = &rows[rows.len().saturating_sub(UNREAD_MAX * width)..];
        self.hidden.keep_last(UNREAD_MAX - rows.len() / width);
        self.hidden.append(width, rows);
        self.first = end - self.hidden.len();
    }

    /// The tokens after the rows that wait, if they are all known.
    pub fn next<'a>(&self, tokens: &'a [u32]) -> Option<&'a [u32]> {
        tokens.get(self.first + 1..self.first + 1 + self.hidden.len()).filter(|next| !next.is_empty())
    }

    /// Forgets drafts that it had read as if they were the text.
    pub fn begin(&mut self) {
        self.state.truncate(self.read);
    }

    /// What waited was read, and gave `row`, which the next draft reads.
    pub fn took(&mut self, row: &Rows, of_trunk: bool) {
        if of_trunk {
            self.read = self.state.position();
            self.first += self.hidden.len();
        }
        self.hidden.keep_last(0);
        self.hidden.append(row.width(), row.values());
    }

    /// Nothing waits until the trunk gives more.
    pub fn end(&mut self) {
        self.hidden.keep_last(0);
    }
}
