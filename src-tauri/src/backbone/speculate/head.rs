//! The model's own head as a drafter: what it has read of a stream, and what it has not.
//!
//! It reads the trunk's hidden states late, when it is next asked, and only the newest of them: while drafts do not pay
//! it reads a few rows now and then, and of a long prompt it reads the end. Its experts never leave this machine.

use crate::backbone::{DraftState, Rows};

/// Rows of the trunk that a pass reads of one stream. Older ones are left out, as drafts decide nothing.
const UNREAD_MAX: usize = 256;
/// Rows that wait to be read, 6 MB of the 122B model: twice as many, so that rows are moved once in a while and not with
/// every token.
pub(super) const KEPT_MAX: usize = 2 * UNREAD_MAX;

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
    /// Before the first row, of `width` numbers.
    pub fn new(state: DraftState, width: usize) -> Self {
        Self { state, read: 0, hidden: Rows::with_room(KEPT_MAX, width), first: 0 }
    }

    /// Keeps the trunk's rows of the tokens from place `first` on, `[rows, width]`.
    pub fn keep(&mut self, first: usize, width: usize, rows: &[f32]) {
        if self.first + self.hidden.len() != first {
            self.hidden.keep_last(0);
        }
        let end = first + rows.len() / width;
        let rows = &rows[rows.len().saturating_sub(UNREAD_MAX * width)..];
        let new = rows.len() / width;
        if self.hidden.len() + new > KEPT_MAX {
            self.hidden.keep_last(UNREAD_MAX - new);
        }
        self.hidden.append(width, rows);
        self.first = end - self.hidden.len();
    }

    /// Rows that the next pass reads.
    pub fn unread(&self) -> usize {
        self.hidden.len().min(UNREAD_MAX)
    }

    /// The tokens after these rows, if they are all known.
    pub fn next<'a>(&self, tokens: &'a [u32]) -> Option<&'a [u32]> {
        let end = self.first + 1 + self.hidden.len();
        tokens.get(end - self.unread()..end).filter(|next| !next.is_empty())
    }

    /// Leaves out all but the newest `rows` of the rows that wait.
    pub fn skip_to(&mut self, rows: usize) {
        let end = self.first + self.hidden.len();
        self.hidden.keep_last(rows);
        self.first = end - self.hidden.len();
    }

    /// Forgets drafts that it had read as if they were the text, and rows too old for the next pass.
    pub fn begin(&mut self) {
        self.state.truncate(self.read);
        self.skip_to(UNREAD_MAX);
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
