//! What a meter row is worth, given how far its session was credited. Pure: no clock, no store.
//!
//! **Invariant:** whatever order rows arrive in and however often, the credits add up to the highest total × rate.

use super::entry::{Meter, Rate};
use crate::types::PublicKey;

/// Largest counter or sum: what the store's 64-bit signed integers hold (9.2 · 10⁹ KVR).
pub const AMOUNT_MAX: u64 = i64::MAX as u64;

/// Why a meter row was refused. The rows beside it are not affected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A counter that the ledger cannot hold.
    #[error("expected {what} of at most {AMOUNT_MAX}, got {got}")]
    TooLarge {
        /// The counter.
        what: &'static str,
        /// Its value.
        got: u64,
    },
    /// More voided than served.
    #[error("expected at most {work_bytes} voided bytes, got {voided_bytes}")]
    VoidedOverWork {
        /// Served.
        work_bytes: u64,
        /// Voided.
        voided_bytes: u64,
    },
    /// A newer row with a lower counter.
    #[error(
        "expected {what} of at least {expected}, got {got}: if the hub's meters were restored from a backup, run \
         kvasir ledger repair"
    )]
    Decreased {
        /// The counter.
        what: &'static str,
        /// Its last value.
        expected: u64,
        /// Its new value.
        got: u64,
    },
    /// A row of a hub process that was replaced.
    #[error("expected epoch {expected}, got {got}")]
    StaleEpoch {
        /// The hub's epoch.
        expected: u64,
        /// The row's.
        got: u64,
    },
    /// A session that changed hands.
    #[error("expected the session's {what} {expected}, got {got}")]
    OtherOwner {
        /// `hub` or `wallet`.
        what: &'static str,
        /// The session's.
        expected: PublicKey,
        /// The row's.
        got: PublicKey,
    },
    /// A sum that does not fit.
    #[error("expected {what} to fit {AMOUNT_MAX}, got an overflow")]
    Overflow {
        /// The sum.
        what: &'static str,
    },
    /// The store refused the row, e.g. because its transfer exists although the cursor says otherwise.
    #[error("expected a row that the store's rules allow, got: {0}")]
    Conflict(String),
}

/// How far a session was credited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    /// The hub that owns the session.
    pub hub: PublicKey,
    /// Who is paid.
    pub wallet: PublicKey,
    /// The newest change that was looked at.
    pub change_seq: u64,
    /// Credited up to here.
    pub work_bytes: u64,
    /// Voided up to here.
    pub voided_bytes: u64,
    /// Σ of the session's credits.
    pub credited_nano: u64,
    /// Σ of the session's voids.
    pub voided_nano: u64,
}

impl Cursor {
    /// The cursor of a session that was never credited.
    #[must_use]
    pub fn start(meter: &Meter) -> Self {
        Self {
            hub: meter.hub,
            wallet: meter.wallet,
            change_seq: 0,
            work_bytes: 0,
            voided_bytes: 0,
            credited_nano: 0,
            voided_nano: 0,
        }
    }
}

/// Bytes `from..to` and what they move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Movement {
    /// First byte.
    pub from: u64,
    /// One past the last.
    pub to: u64,
    /// Nano-KVR, never 0.
    pub amount: u64,
}

/// What to write for a meter row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The cursor afterwards.
    pub cursor: Cursor,
    /// Money to issue.
    pub credit: Option<Movement>,
    /// Money to take back, after the credit.
    pub void: Option<Movement>,
}

/// Refuses a row that no ledger could hold, whatever came before it.
///
/// # Errors
/// A counter over [`AMOUNT_MAX`], or more voided than served.
pub fn admit(meter: &Meter) -> Result<(), Refusal> {
    let counters = [
        ("epoch", meter.epoch),
        ("assignments", meter.assignments),
        ("work_bytes", meter.work_bytes),
        ("raw_bytes", meter.raw_bytes),
        ("change_seq", meter.change_seq),
    ];
    if let Some(&(what, got)) = counters.iter().find(|(_, value)| *value > AMOUNT_MAX) {
        return Err(Refusal::TooLarge { what, got });
    }
    let (work_bytes, voided_bytes) = (meter.work_bytes, meter.voided_bytes);
    if voided_bytes > work_bytes {
        return Err(Refusal::VoidedOverWork { work_bytes, voided_bytes });
    }
    Ok(())
}

/// Refuses a row whose session belongs to another hub or wallet.
///
/// # Errors
/// [`Refusal::OtherOwner`].
pub fn same_owner(hub: PublicKey, wallet: PublicKey, meter: &Meter) -> Result<(), Refusal> {
    for (what, expected, got) in [("hub", hub, meter.hub), ("wallet", wallet, meter.wallet)] {
        if expected != got {
            return Err(Refusal::OtherOwner { what, expected, got });
        }
    }
    Ok(())
}

/// Compares a meter row with its session's cursor and prices what is new.
///
/// `pending` is the wallet's unpaid balance: a void never takes more than that, nor more than the session earned.
/// A row that brings nothing new gives a step without movements.
///
/// # Errors
/// A row that [`admit`] refuses, another owner, a newer row with a lower total, or a sum that does not fit.
pub fn settle(cursor: &Cursor, meter: &Meter, rate: Rate, pending: u64) -> Result<Step, Refusal> {
    admit(meter)?;
    same_owner(cursor.hub, cursor.wallet, meter)?;
    let totals = [
        ("work_bytes", cursor.work_bytes, meter.work_bytes),
        ("voided_bytes", cursor.voided_bytes, meter.voided_bytes),
    ];
    if meter.change_seq > cursor.change_seq
        && let Some(&(what, expected, got)) = totals.iter().find(|(_, before, now)| now < before)
    {
        return Err(Refusal::Decreased { what, expected, got });
    }

    let mut next = cursor.clone();
    next.change_seq = cursor.change_seq.max(meter.change_seq);
    next.work_bytes = cursor.work_bytes.max(meter.work_bytes);
    next.voided_bytes = cursor.voided_bytes.max(meter.voided_bytes);

    let earned = price(next.work_bytes - cursor.work_bytes, rate)?;
    next.credited_nano = sum(cursor.credited_nano, earned, "the session's credit")?;
    let pending = sum(pending, earned, "the wallet's pending credit")?;
    let left = next.credited_nano.saturating_sub(cursor.voided_nano);
    let lost = price(next.voided_bytes - cursor.voided_bytes, rate)?.min(left).min(pending);
    next.voided_nano = cursor.voided_nano + lost;

    let movement = |from, to, amount| (amount > 0).then_some(Movement { from, to, amount });
    Ok(Step {
        credit: movement(cursor.work_bytes, next.work_bytes, earned),
        void: movement(cursor.voided_bytes, next.voided_bytes, lost),
        cursor: next,
    })
}

fn price(bytes: u64, rate: Rate) -> Result<u64, Refusal> {
    let amount = bytes.checked_mul(rate.0).filter(|amount| *amount <= AMOUNT_MAX);
    amount.ok_or(Refusal::Overflow { what: "bytes × rate" })
}

fn sum(a: u64, b: u64, what: &'static str) -> Result<u64, Refusal> {
    a.checked_add(b).filter(|sum| *sum <= AMOUNT_MAX).ok_or(Refusal::Overflow { what })
}
