//! Records served work per session and turns it into nano-KVR, exactly once.
//!
//! The hub writes cumulative meters; the gateway reads them, at least once and in any order, and credits only what is
//! new. [`settle`] decides what a meter row is worth and touches nothing; [`Ledger`] keeps the books in double entry;
//! [`audit`] recomputes every balance from the transfers.
//!
//! **Invariant:** Σ debits = Σ credits, and a session's credits are its cursor × rate, without a gap or an overlap.
//! Money is integer nano-KVR from end to end: a sum that does not fit is refused, never rounded. Why cumulative
//! meters: a lost, repeated or reordered message then changes nothing but the time of a credit.

pub mod audit;
pub mod entry;
pub mod merkle;
mod payout;
pub mod settle;
mod store;

pub use audit::{Finding, Report};
pub use entry::{Meter, MeterPage, Rate, RunId, Transfer, TransferKind, WalletStatement};
pub use payout::{Batch, CLAIM_EVERY, CLAIM_LASTS_MAX, ClaimRefusal, ClaimTerms, Claimable, Settled};
pub use settle::Refusal;
pub use store::{
    Applied, CREDITS_PER_PAGE_MAX, ExportError, Ledger, LedgerError, METERS_PER_PAGE_MAX, Position, Put, RefusedMeter,
};

pub use crate::wallet::{Claim, SignedClaim};
