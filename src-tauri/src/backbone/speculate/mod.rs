//! Guesses the next tokens cheaply and lets one step of the trunk judge several of them.
//!
//! Before: a stream's tokens so far. After: drafts behind its newest token, whose rows run in one step; the stream's
//! own sampler chooses row after row, and a draft is right when it is what was chosen. Where a step waits for workers
//! far away, one round of waiting then gives several tokens.
//!
//! **Promises:** the text is the text without drafts, token for token, for any sampling and seed: every token is chosen
//! from the trunk's logits with the random number of plain decoding, and a draft is only a guess at the choice. The
//! memory of drafts is bounded and counted before a stream starts; a pass of the head reads no more rows than a chunk of
//! a prompt has. Why nobody snapshots recurrent states: see [`rollback`].

mod drafter;
mod head;
mod lookup;
mod pace;
pub mod rollback;

pub use drafter::{Drafter, Making, Tally};
pub use pace::{Load, Pace};

use super::PREFILL_TOKENS;
use super::scheduler::STREAMS_MAX;
use super::sequence::{cache_bytes, draft_bytes};
use crate::model::HyperParameters;

/// Most drafts of one step: the fifth of a chain is right too rarely to pay for its row.
pub const DRAFTS_MAX: usize = 4;

/// What is left for the drafts of a step, all its streams together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// Drafts.
    pub drafts: usize,
    /// Rows of the trunk that the head reads in one pass, before it drafts.
    pub unread: usize,
}

impl Default for Room {
    /// Before anybody has any: the logits of drafts take no more memory than those of the most streams, and the head
    /// reads what a step of these and their drafts gives, which is a chunk of a prompt.
    fn default() -> Self {
        Self { drafts: STREAMS_MAX, unread: PREFILL_TOKENS }
    }
}

/// Who drafts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Drafters {
    /// Whichever pays most at the moment.
    #[default]
    Auto,
    /// Nobody.
    Off,
    /// The model's multi-token-prediction head.
    Mtp,
    /// Whatever followed when the stream's last tokens stood there before.
    Lookup,
}

/// How a stream speculates.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Speculation {
    /// Who drafts.
    pub drafters: Drafters,
    /// So many drafts in every step, at most [`DRAFTS_MAX`]; `None`: as many as pay.
    pub always: Option<usize>,
}

impl Speculation {
    /// Plain decoding.
    pub const OFF: Self = Self { drafters: Drafters::Off, always: None };

    fn asks_head(self, hyper: &HyperParameters) -> bool {
        hyper.mtp_layers > 0 && matches!(self.drafters, Drafters::Auto | Drafters::Mtp)
    }

    fn looks_up(self) -> bool {
        matches!(self.drafters, Drafters::Auto | Drafters::Lookup)
    }

    /// Bytes that drafting takes of a stream of `tokens` tokens, beside the state of its sequence.
    #[must_use]
    pub fn bytes(self, hyper: &HyperParameters, tokens: usize) -> u64 {
        if self.drafters == Drafters::Off {
            return 0;
        }
        let unread = head::KEPT_MAX * hyper.hidden_size * size_of::<f32>();
        let head = tokens.saturating_mul(cache_bytes(hyper)).saturating_add(unread);
        let lookup = tokens.saturating_mul(lookup::TOKEN_BYTES);
        let parts =
            [(true, tokens.saturating_mul(size_of::<u32>())), (self.asks_head(hyper), head), (self.looks_up(), lookup)];
        let own = parts.iter().filter(|(has, _)| *has).map(|(_, bytes)| *bytes).fold(0, usize::saturating_add);
        draft_bytes(hyper, DRAFTS_MAX).saturating_add(own as u64)
    }
}
