//! When a session's counters are put in writing, and whether its worker agreed.
//!
//! A receipt is due once the counters moved and the interval passed; one at a time is open, until the session key
//! acknowledges it. No I/O and no clock: time comes in.
//! **Promise:** sequences are 1, 2, 3, … and counters never fall, so that the newest receipt is worth all before it.

use std::time::Duration;

use super::tally::Totals;
use crate::types::{PublicKey, SessionId};
use crate::wire::control::{Receipt, ReceiptAck};
use crate::wire::receipt::{self, Counters, ReceiptError};
use crate::wire::signature::KeyPair;

/// How often receipts are written and how long their answer may take.
#[derive(Debug, Clone, Copy)]
pub struct ReceiptTiming {
    /// Least time between two receipts.
    pub interval: Duration,
    /// Longest wait for an acknowledgement.
    pub acknowledge: Duration,
}

/// Why an acknowledgement is refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum AcknowledgeError {
    /// There is nothing to acknowledge.
    #[error("no receipt is open")]
    NoneOpen,
    /// It is for another receipt or by another key.
    #[error(transparent)]
    Receipt(#[from] ReceiptError),
}

/// The receipts of one session.
pub struct Receipts {
    hub: KeyPair,
    hub_epoch: u64,
    session_id: SessionId,
    wallet: PublicKey,
    session_key: PublicKey,
    timing: ReceiptTiming,
    sequence: u64,
    written: Totals,
    last_at: Duration,
    open: Option<Receipt>,
}

impl Receipts {
    /// No receipt yet; `now` is when the session began.
    #[must_use]
    pub fn new(
        hub: KeyPair,
        hub_epoch: u64,
        (session_id, wallet, session_key): (SessionId, PublicKey, PublicKey),
        timing: ReceiptTiming,
        now: Duration,
    ) -> Self {
        let (sequence, written, open) = (0, Totals::default(), None);
        Self { hub, hub_epoch, session_id, wallet, session_key, timing, sequence, written, last_at: now, open }
    }

    /// Whether these totals are to be put in writing now.
    #[must_use]
    pub fn is_due(&self, totals: Totals, now: Duration) -> bool {
        self.open.is_none() && self.is_news(totals) && now.saturating_sub(self.last_at) >= self.timing.interval
    }

    /// Whether nothing is to be written and nothing to be waited for.
    #[must_use]
    pub fn is_at_rest(&self, totals: Totals) -> bool {
        self.open.is_none() && !self.is_news(totals)
    }

    /// Whether these totals say more than the last receipt.
    fn is_news(&self, totals: Totals) -> bool {
        totals.assignments > self.written.assignments || totals.voided_bytes > self.written.voided_bytes
    }

    /// The sequence of a receipt that has waited for its acknowledgement for too long.
    #[must_use]
    pub fn overdue(&self, now: Duration) -> Option<u64> {
        let late = now.saturating_sub(self.last_at) >= self.timing.acknowledge;
        self.open.as_ref().filter(|_| late).map(|r| r.sequence)
    }

    /// The next receipt. The totals must be in the ledger already: nobody may hold more than the hub would remember.
    pub fn write(&mut self, totals: Totals, last: bool, now: Duration) -> Receipt {
        self.sequence += 1;
        let receipt = receipt::sign(
            &self.hub,
            &Counters {
                hub_epoch: self.hub_epoch,
                session_id: self.session_id,
                wallet: self.wallet,
                assignments: totals.assignments,
                work_bytes: totals.work_bytes,
                voided_bytes: totals.voided_bytes,
                sequence: self.sequence,
                r#final: last,
            },
        );
        (self.written, self.last_at) = (totals, now);
        self.open = Some(receipt.clone());
        receipt
    }

    /// Takes the worker's agreement to the open receipt.
    ///
    /// # Errors
    /// [`AcknowledgeError`]; the session ends.
    pub fn acknowledge(&mut self, ack: &ReceiptAck) -> Result<(), AcknowledgeError> {
        let Some(receipt) = &self.open else { return Err(AcknowledgeError::NoneOpen) };
        receipt::verify_ack(ack, receipt, &self.session_key)?;
        self.open = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Hex;

    const TIMING: ReceiptTiming =
        ReceiptTiming { interval: Duration::from_secs(5), acknowledge: Duration::from_secs(30) };

    fn receipts(session: &KeyPair) -> Receipts {
        let ids = (Hex([1; 16]), PublicKey([2; 32]), session.public());
        Receipts::new(KeyPair::from_seed(&[9; 32]), 4, ids, TIMING, Duration::ZERO)
    }

    fn totals(assignments: u64) -> Totals {
        Totals { assignments, work_bytes: 16 * assignments, ..Totals::default() }
    }

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_receipt_is_due_after_the_interval_when_something_was_earned() {
        let session = KeyPair::from_seed(&[3; 32]);
        let mut receipts = receipts(&session);
        assert!(!receipts.is_due(totals(0), s(60)), "nothing earned, nothing to write");
        assert!(!receipts.is_due(totals(1), s(4)));
        assert!(receipts.is_due(totals(1), s(5)));
        let first = receipts.write(totals(1), false, s(5));
        assert_eq!((first.sequence, first.assignments, first.work_bytes, first.r#final), (1, 1, 16, false));
        receipt::verify(&first, &KeyPair::from_seed(&[9; 32]).public()).unwrap();
        assert!(!receipts.is_due(totals(2), s(10)), "one at a time");
        receipts.acknowledge(&receipt::ack(&session, &first)).unwrap();
        assert!(!receipts.is_due(totals(1), s(20)), "no news");
        assert!(receipts.is_due(totals(2), s(10)));
        let second = receipts.write(totals(2), true, s(10));
        receipt::follows(&first, &second).unwrap();
    }

    #[test]
    fn only_the_session_key_acknowledges_and_only_what_is_open() {
        let session = KeyPair::from_seed(&[3; 32]);
        let mut receipts = receipts(&session);
        let receipt = receipts.write(totals(1), false, s(5));
        let forged = receipt::ack(&KeyPair::from_seed(&[4; 32]), &receipt);
        assert!(matches!(receipts.acknowledge(&forged), Err(AcknowledgeError::Receipt(_))));
        let good = receipt::ack(&session, &receipt);
        receipts.acknowledge(&good).unwrap();
        assert_eq!(receipts.acknowledge(&good), Err(AcknowledgeError::NoneOpen));
    }

    #[test]
    fn an_unacknowledged_receipt_becomes_overdue() {
        let session = KeyPair::from_seed(&[3; 32]);
        let mut receipts = receipts(&session);
        assert_eq!(receipts.overdue(s(600)), None);
        receipts.write(totals(1), false, s(5));
        assert_eq!((receipts.overdue(s(34)), receipts.overdue(s(35))), (None, Some(1)));
    }
}
