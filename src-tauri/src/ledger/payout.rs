//! What claims, batches and their export are; and why a claim is refused.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::merkle::{Leaf, Node};
use crate::types::{Hex, NanoKvr, PublicKey};
use crate::wallet::ClaimTextError;
use crate::wire::signature::{Context, KeyPair, SignatureError};

/// What an operator's accounts take as a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimTerms {
    /// Whose accounts these are; a claim names it, so that no other operator can be shown it.
    pub operator: PublicKey,
    /// How old a credit must be: as long as audits may still void it.
    pub hold: Duration,
}

/// Longest time that a claim may wait, so that an old one does not pay a wallet that forgot it.
pub const CLAIM_LASTS_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// Least time between two claims of a wallet of which the first is not paid: claims are kept for ever.
pub const CLAIM_EVERY: Duration = Duration::from_secs(10 * 60);

/// Why a claim is refused; it may be signed anew with what is expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClaimRefusal {
    /// No claim, or not signed by its wallet.
    #[error(transparent)]
    Words(#[from] ClaimTextError),
    /// A claim for another operator's accounts.
    #[error("expected a claim for operator {expected}, got one for {got}")]
    Operator {
        /// Whose accounts these are.
        expected: PublicKey,
        /// The claim's.
        got: PublicKey,
    },
    /// A claim that is over, or that would never be.
    #[error("expected a claim that expires within a year from now ({now_unix_s}), got {got}")]
    Expires {
        /// Seconds since 1970.
        now_unix_s: u64,
        /// The claim's.
        got: u64,
    },
    /// Not the next claim of the wallet.
    #[error("expected claim {expected} of the wallet, got {got}")]
    Sequence {
        /// One more than the last.
        expected: u64,
        /// The claim's.
        got: u64,
    },
    /// Nothing that was not paid already.
    #[error("expected to claim more than the {settled} nano-KVR that were paid, got {got}")]
    Paid {
        /// Paid over the wallet's life.
        settled: u64,
        /// The claim's.
        got: u64,
    },
    /// More than may be claimed yet.
    #[error("expected to claim at most {claimable} nano-KVR over the wallet's life, got {got}: newer credit must wait")]
    TooMuch {
        /// Paid, and old enough.
        claimable: u64,
        /// The claim's.
        got: u64,
    },
    /// One claim after the other, of which none is paid yet.
    #[error("expected one claim in {CLAIM_EVERY:?} while the last is not paid: try again in {wait_s} s")]
    Often {
        /// Seconds to wait.
        wait_s: u64,
    },
}

impl ClaimRefusal {
    /// A stable code for the one who handed the claim in.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Words(_) => "claim_words",
            Self::Operator { .. } => "claim_operator",
            Self::Expires { .. } => "claim_expires",
            Self::Sequence { .. } => "claim_sequence",
            Self::Paid { .. } => "claim_paid",
            Self::TooMuch { .. } => "claim_too_much",
            Self::Often { .. } => "claim_often",
        }
    }
}

/// What a wallet may claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claimable {
    /// The wallet.
    pub address: PublicKey,
    /// Whom the claim names.
    pub operator: PublicKey,
    /// Paid over the wallet's life.
    pub settled_nano_kvr: NanoKvr,
    /// The most that a claim may say: what was paid, and what is old enough.
    pub lifetime_nano_kvr: NanoKvr,
    /// The next claim's number.
    pub sequence: u64,
    /// What the newest claim says, if it was not paid yet.
    pub open_nano_kvr: Option<NanoKvr>,
}

/// A signed batch of settlements.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// 1, 2, 3, …
    pub batch: u64,
    /// Who signed.
    pub operator: PublicKey,
    /// Wallets that were ever paid, each a leaf.
    pub wallets: u64,
    /// All that was ever paid.
    pub total_nano_kvr: NanoKvr,
    /// Root of the tree over the leaves.
    pub root: Node,
    /// The operator's signature of all of the above.
    pub signature: Hex<64>,
    /// When.
    pub created_unix_ms: u64,
}

impl Batch {
    /// The operator's batch over all leaves.
    pub(super) fn sign(key: &KeyPair, batch: u64, leaves: &[Leaf], total: u64, created_unix_ms: u64) -> Self {
        let (wallets, root) = (leaves.len() as u64, super::merkle::root(leaves));
        let total_nano_kvr = NanoKvr(total);
        let signature = Hex([0; 64]);
        let mut batch =
            Self { batch, operator: key.public(), wallets, total_nano_kvr, root, signature, created_unix_ms };
        batch.signature = key.sign(Context::Settlement, &[&batch.signed_bytes()]);
        batch
    }

    /// `batch u64 | wallets u64 | total u64 | root 32`.
    fn signed_bytes(&self) -> [u8; 56] {
        let mut out = [0; 56];
        let numbers = [self.batch, self.wallets, self.total_nano_kvr.0];
        for (place, number) in out.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        out[24..].copy_from_slice(&self.root.0);
        out
    }

    /// Checks the operator's signature.
    ///
    /// # Errors
    /// Another signer, or another batch.
    pub fn verify(&self) -> Result<(), SignatureError> {
        Context::Settlement.verify(&self.operator, &[&self.signed_bytes()], &self.signature)
    }
}

/// What a settlement did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Settled {
    /// The batch; `None` when no claim was due.
    pub batch: Option<Batch>,
    /// Claims paid.
    pub paid: u64,
    /// What they came to.
    pub paid_nano_kvr: NanoKvr,
    /// Wallets whose claim is more than they have by now, because credit was voided since: not paid.
    pub short: Vec<PublicKey>,
    /// Wallets whose claim names another operator than the one who settles: not paid.
    pub others: Vec<PublicKey>,
}
