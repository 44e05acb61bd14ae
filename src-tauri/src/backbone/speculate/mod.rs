//! Guesses the next tokens cheaply and lets one step of the trunk judge several of them.
//!
//! Before: a stream's tokens so far. After: drafts behind its newest token, whose rows run in one step; the stream's
//! own sampler chooses row after row, and a draft is right when it is what was chosen. Where a step waits for workers
//! far away, one round of waiting then gives several tokens.
//!
//! **Promises:** the text is the text without drafts, token for token, for any sampling and seed. A draft d whose row
//! has the distribution p is kept with probability p(d), and otherwise the token is distributed as p without d: that is
//! speculative sampling (Leviathan, Kalman and Matias, 2023) for a drafter that names one token, and the random
//! numbers are those of plain decoding besides. The memory of drafts is bounded and counted before a stream starts.
//! Why nobody snapshots recurrent states: see [`rollback`].

mod drafter;
mod head;
mod lookup;
mod pace;
pub mod rollback;

pub use drafter::{Drafter, Making, Tally};
pub use pace::{Load, Pace};

use super::sequence::{cache_bytes, draft_bytes};
use crate::model::HyperParameters;
use head::UNREAD_MAX;

/// Most drafts of one step: the fifth of a chain is right too rarely to pay for its row.
pub const DRAFTS_MAX: usize = 4;

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
        // What waits to be read grows by doubling.
        let unread = 2 * UNREAD_MAX * hyper.hidden_size * size_of::<f32>();
        let head = tokens.saturating_mul(cache_bytes(hyper)).saturating_add(unread);
        let lookup = tokens.saturating_mul(lookup::TOKEN_BYTES);
        let parts =
            [(true, tokens.saturating_mul(size_of::<u32>())), (self.asks_head(hyper), head), (self.looks_up(), lookup)];
        let own = parts.iter().filter(|(has, _)| *has).map(|(_, bytes)| *bytes).fold(0, usize::saturating_add);
        draft_bytes(hyper, DRAFTS_MAX).saturating_add(own as u64)
    }
}
