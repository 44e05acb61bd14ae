//! Receipts: cumulative counters of a session that the hub signs and the worker's session key agrees to.
//!
//! Both signatures cover the same fixed bytes, so that a receipt holds without the session it came from:
//! `hub_key 32 | hub_epoch u64 | session 16 | wallet 32 | assignments u64 | work_bytes u64 | voided_bytes u64 |
//! sequence u64 | final u8`.

use serde::{Deserialize, Serialize};

use super::control::{Receipt, ReceiptAck};
use super::signature::{Context, KeyPair, SignatureError};
use crate::types::{Hex, PublicKey, SessionId};

/// Longest JSON of a [`ReturnedReceipt`]: it takes about 900 bytes.
pub const RETURNED_BYTES_MAX: usize = 2048;

/// Why a receipt or its acknowledgement is refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ReceiptError {
    /// A signature that does not hold.
    #[error(transparent)]
    Signature(#[from] SignatureError),
    /// A receipt by another hub, for another session or for another wallet.
    #[error("receipt of {what} {got}, expected {expected}")]
    Foreign {
        /// Which field.
        what: &'static str,
        /// What the receipt says.
        got: String,
        /// What the session says.
        expected: String,
    },
    /// A counter that went back, or a sequence that did not go forward.
    #[error("receipt's {what} is {got}, after {last}")]
    Backwards {
        /// Which field.
        what: &'static str,
        /// In the receipt.
        got: u64,
        /// In the one before.
        last: u64,
    },
    /// An acknowledgement of another receipt.
    #[error("acknowledgement of receipt {got}, expected {expected}")]
    Sequence {
        /// What the acknowledgement says.
        got: u64,
        /// The receipt's number.
        expected: u64,
    },
}

/// A session's counters, before the hub signs them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counters {
    /// The hub's epoch.
    pub hub_epoch: u64,
    /// The session.
    pub session_id: SessionId,
    /// Who is paid.
    pub wallet: PublicKey,
    /// Accepted assignments so far.
    pub assignments: u64,
    /// Their work bytes.
    pub work_bytes: u64,
    /// Work bytes that were voided.
    pub voided_bytes: u64,
    /// 1, 2, 3, …
    pub sequence: u64,
    /// Last receipt of the session.
    pub r#final: bool,
}

const SIGNED_BYTES: usize = 32 + 8 + 16 + 32 + 4 * 8 + 1;

fn signed_bytes(receipt: &Receipt) -> [u8; SIGNED_BYTES] {
    let mut out = [0u8; SIGNED_BYTES];
    out[..32].copy_from_slice(&receipt.hub_key.0);
    out[32..40].copy_from_slice(&receipt.hub_epoch.to_le_bytes());
    out[40..56].copy_from_slice(&receipt.session_id.0);
    out[56..88].copy_from_slice(&receipt.wallet.0);
    let numbers = [receipt.assignments, receipt.work_bytes, receipt.voided_bytes, receipt.sequence];
    for (place, number) in out[88..120].chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    out[120] = u8::from(receipt.r#final);
    out
}

/// The receipt for `counters`, signed by the hub.
#[must_use]
pub fn sign(hub: &KeyPair, counters: &Counters) -> Receipt {
    let mut receipt = Receipt {
        hub_key: hub.public(),
        hub_epoch: counters.hub_epoch,
        session_id: counters.session_id,
        wallet: counters.wallet,
        assignments: counters.assignments,
        work_bytes: counters.work_bytes,
        voided_bytes: counters.voided_bytes,
        sequence: counters.sequence,
        r#final: counters.r#final,
        signature: Hex([0; 64]),
    };
    receipt.signature = hub.sign(Context::Receipt, &[&signed_bytes(&receipt)]);
    receipt
}

/// Checks that the hub with key `hub` signed the receipt.
///
/// # Errors
/// [`ReceiptError::Foreign`] or [`ReceiptError::Signature`].
pub fn verify(receipt: &Receipt, hub: &PublicKey) -> Result<(), ReceiptError> {
    same("hub", receipt.hub_key, *hub)?;
    Ok(Context::Receipt.verify(hub, &[&signed_bytes(receipt)], &receipt.signature)?)
}

/// Checks that `next` may follow `last` in one session: same parties, a later sequence, no counter going back.
///
/// # Errors
/// [`ReceiptError::Foreign`] or [`ReceiptError::Backwards`].
pub fn follows(last: &Receipt, next: &Receipt) -> Result<(), ReceiptError> {
    same("hub", next.hub_key, last.hub_key)?;
    same("session", next.session_id, last.session_id)?;
    same("wallet", next.wallet, last.wallet)?;
    same("hub epoch", next.hub_epoch, last.hub_epoch)?;
    let rising = |what, got, last| if got < last { Err(ReceiptError::Backwards { what, got, last }) } else { Ok(()) };
    rising("sequence", next.sequence, last.sequence.saturating_add(1)).map_err(|_| ReceiptError::Backwards {
        what: "sequence",
        got: next.sequence,
        last: last.sequence,
    })?;
    rising("assignments", next.assignments, last.assignments)?;
    rising("work bytes", next.work_bytes, last.work_bytes)?;
    rising("voided bytes", next.voided_bytes, last.voided_bytes)
}

/// The session's agreement to a receipt.
#[must_use]
pub fn ack(session: &KeyPair, receipt: &Receipt) -> ReceiptAck {
    let signature = session.sign(Context::ReceiptAck, &[&signed_bytes(receipt)]);
    ReceiptAck { sequence: receipt.sequence, signature }
}

/// Checks that the holder of `session_key` agreed to `receipt`.
///
/// # Errors
/// [`ReceiptError::Sequence`] or [`ReceiptError::Signature`].
pub fn verify_ack(ack: &ReceiptAck, receipt: &Receipt, session_key: &PublicKey) -> Result<(), ReceiptError> {
    if ack.sequence != receipt.sequence {
        return Err(ReceiptError::Sequence { got: ack.sequence, expected: receipt.sequence });
    }
    Ok(Context::ReceiptAck.verify(session_key, &[&signed_bytes(receipt)], &ack.signature)?)
}

/// A receipt with its agreement, as a worker keeps it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeptReceipt {
    /// Signed by the hub.
    pub receipt: Receipt,
    /// The session's key.
    pub session_key: PublicKey,
    /// Its agreement.
    pub ack: ReceiptAck,
}

/// A kept receipt that its wallet hands in again, because a ledger has less: `POST /v1/receipts`.
///
/// The wallet vouches for the session key, which the hub may have forgotten by then.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReturnedReceipt {
    /// As it was kept.
    pub kept: KeptReceipt,
    /// ed25519 by the wallet over the return context, the receipt's signed bytes and the session key.
    pub wallet_signature: Hex<64>,
}

impl KeptReceipt {
    /// What the wallet signs to hand it in.
    #[must_use]
    pub fn return_message(&self) -> Vec<u8> {
        Context::ReceiptReturn.message(&[&signed_bytes(&self.receipt), &self.session_key.0])
    }
}

impl ReturnedReceipt {
    /// Checks all three signatures: the hub's of the counters, the session key's agreement, and the wallet's.
    ///
    /// # Errors
    /// [`ReceiptError`]; also for a receipt of another hub than `hub`.
    pub fn verify(&self, hub: &PublicKey) -> Result<(), ReceiptError> {
        let KeptReceipt { receipt, session_key, ack } = &self.kept;
        verify(receipt, hub)?;
        verify_ack(ack, receipt, session_key)?;
        let parts: [&[u8]; 2] = [&signed_bytes(receipt), &session_key.0];
        Ok(Context::ReceiptReturn.verify(&receipt.wallet, &parts, &self.wallet_signature)?)
    }
}

fn same<T: PartialEq + ToString>(what: &'static str, got: T, expected: T) -> Result<(), ReceiptError> {
    if got == expected {
        return Ok(());
    }
    Err(ReceiptError::Foreign { what, got: got.to_string(), expected: expected.to_string() })
}
