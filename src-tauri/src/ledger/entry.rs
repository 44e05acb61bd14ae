//! What the ledger's rows mean: meters, transfers and a wallet's statement.

use serde::{Deserialize, Serialize};

use crate::types::{Hex, NanoKvr, PublicKey, SessionId};

/// The account that money comes from; its debits are everything ever issued.
pub const ISSUANCE: &str = "issuance";
/// The account that voided credit goes to.
pub const VOID: &str = "void";

/// Price of work: nano-KVR per work byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rate(pub u64);

impl Default for Rate {
    /// 7 nano-KVR: the protocol's rate, at which 1,277,952 work bytes are 0.00895 KVR.
    fn default() -> Self {
        Self(7)
    }
}

/// Cumulative counters of one session, as its hub reports them.
///
/// **Invariant:** within a session no counter ever falls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Meter {
    /// The hub that owns the session.
    pub hub: PublicKey,
    /// The session.
    pub session: SessionId,
    /// Who is paid.
    pub wallet: PublicKey,
    /// The hub's epoch: rises with every start of the hub and fences the one before.
    pub epoch: u64,
    /// Accepted assignments.
    pub assignments: u64,
    /// Their work bytes.
    pub work_bytes: u64,
    /// Work bytes that turned out to be worth nothing; never more than `work_bytes`.
    pub voided_bytes: u64,
    /// Bytes that travelled: a metric, never money.
    pub raw_bytes: u64,
    /// Position in the order of changes; the ledger assigns it on every write, whatever it was before.
    pub change_seq: u64,
    /// The session is over.
    pub r#final: bool,
}

/// One start of a hub in one history of its ledger; drawn at random.
pub type RunId = Hex<16>;

/// The hub's answer to `GET /v1/meters?after=<change_seq>&limit=<rows>[&run=<run>]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeterPage {
    /// The hub.
    pub hub: PublicKey,
    /// Its program version, for the gateway's `/status`.
    pub version: String,
    /// The newest change the hub knows: below the asked position only when its ledger was replaced.
    pub last_change_seq: u64,
    /// Rows changed after the asked position, oldest change first.
    pub meters: Vec<Meter>,
    /// The hub's start that its newest position belongs to; a gateway gives it back with that position.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
    /// Where the page begins, when a run was asked for: below the asked position when a backup was restored since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<u64>,
}

/// Which way a transfer moves money.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TransferKind {
    /// `issuance` → the wallet's pending account.
    Credit,
    /// The wallet's pending account → `void`.
    Void,
}

impl TransferKind {
    /// The word stored and shown.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Credit => "credit",
            Self::Void => "void",
        }
    }

    /// The accounts of a transfer of this kind, as (debit, credit).
    #[must_use]
    pub fn accounts(self, wallet: &PublicKey) -> (String, String) {
        match self {
            Self::Credit => (ISSUANCE.to_owned(), pending_account(wallet)),
            Self::Void => (pending_account(wallet), VOID.to_owned()),
        }
    }

    /// The one id that a transfer of this kind can have for a session and its first byte.
    #[must_use]
    pub fn transfer_id(self, session: &SessionId, bytes_from: u64) -> String {
        match self {
            Self::Credit => format!("{session}:{bytes_from}"),
            Self::Void => format!("{session}:void:{bytes_from}"),
        }
    }
}

/// The account of credit that is not paid out yet.
#[must_use]
pub fn pending_account(wallet: &PublicKey) -> String {
    format!("wallet:{wallet}:pending")
}

/// The account of credit that was paid out.
#[must_use]
pub fn settled_account(wallet: &PublicKey) -> String {
    format!("wallet:{wallet}:settled")
}

/// One immutable movement of money.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer {
    /// `session:from`, so that a session's bytes can be credited once.
    pub id: String,
    /// Whose money.
    pub wallet: PublicKey,
    /// 1, 2, 3, … within the wallet.
    pub sequence: u64,
    /// Which way.
    pub kind: TransferKind,
    /// The session that did the work.
    pub session: SessionId,
    /// First work byte (or voided byte) of the session that this transfer covers.
    pub bytes_from: u64,
    /// One past the last.
    pub bytes_to: u64,
    /// Price at which it was computed.
    pub rate: Rate,
    /// How much.
    pub amount_nano_kvr: NanoKvr,
    /// The account debited.
    pub debit: String,
    /// The account credited.
    pub credit: String,
    /// When it was written.
    pub created_unix_ms: u64,
}

/// What a wallet may read about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WalletStatement {
    /// The wallet.
    pub address: PublicKey,
    /// Credited and not paid out.
    pub pending_nano_kvr: NanoKvr,
    /// The same in KVR, five decimals, rounded half up: for show.
    pub pending_kvr: String,
    /// Paid out.
    pub settled_nano_kvr: NanoKvr,
    /// Work bytes ever credited.
    pub work_bytes: u64,
    /// Sequence of the newest transfer; 0 when there is none.
    pub sequence: u64,
    /// When the newest credit was written; 0 when there is none.
    pub last_credit_unix_ms: u64,
}
