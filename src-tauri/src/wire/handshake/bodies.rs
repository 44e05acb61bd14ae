//! What the three handshake frames and the hub's certificate say.

use serde::{Deserialize, Serialize};

use super::HandshakeError;
use crate::types::{Digest, Hex, PublicKey, SessionId, WorkerId};
use crate::wire::frame::{BODY_BYTES_MAX, ROWS_MAX};
use crate::wire::signature::{Context, KeyPair};

/// An operator's word for a hub's key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HubCert {
    /// The hub's key.
    pub hub_key: PublicKey,
    /// Last second of validity, Unix time.
    pub not_after_unix_s: u64,
    /// By the operator, over `hub_key ‖ not_after_unix_s u64`.
    pub signature: Hex<64>,
}

impl HubCert {
    /// Signs a certificate for `hub_key`.
    #[must_use]
    pub fn issue(operator: &KeyPair, hub_key: PublicKey, not_after_unix_s: u64) -> Self {
        let signature = operator.sign(Context::HubCert, &[&hub_key.0, &not_after_unix_s.to_le_bytes()]);
        Self { hub_key, not_after_unix_s, signature }
    }

    /// Checks that one of the pinned `operators` signed it and that it still holds at `now_unix_s`.
    ///
    /// # Errors
    /// [`HandshakeError::OperatorNotPinned`] or [`HandshakeError::CertificateExpired`].
    pub fn verify(&self, operators: &[PublicKey], now_unix_s: u64) -> Result<(), HandshakeError> {
        let parts: [&[u8]; 2] = [&self.hub_key.0, &self.not_after_unix_s.to_le_bytes()];
        if !operators.iter().any(|key| Context::HubCert.verify(key, &parts, &self.signature).is_ok()) {
            return Err(HandshakeError::OperatorNotPinned { hub: self.hub_key, pinned: operators.len() });
        }
        if now_unix_s > self.not_after_unix_s {
            return Err(HandshakeError::CertificateExpired { not_after_unix_s: self.not_after_unix_s, now_unix_s });
        }
        Ok(())
    }
}

/// What a hub allows on a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Largest frame body.
    pub body_bytes_max: u32,
    /// Most rows of a request, over all its parts.
    pub rows_max: u32,
    /// Most requests that the worker has not answered yet.
    pub in_flight_max: u32,
    /// How often the worker pings.
    pub ping_interval_ms: u32,
}

/// Most unanswered requests that a worker agrees to.
const IN_FLIGHT_MAX: u32 = 1024;
/// Pings more often than this cost more than they tell; proxies cut links that are silent for longer.
const PING_INTERVAL_MS: std::ops::RangeInclusive<u32> = 10..=60_000;

impl Default for Limits {
    fn default() -> Self {
        Self { body_bytes_max: BODY_BYTES_MAX as u32, rows_max: ROWS_MAX, in_flight_max: 64, ping_interval_ms: 20_000 }
    }
}

impl Limits {
    /// Checks that a worker can live with these.
    pub(super) fn check(&self) -> Result<(), HandshakeError> {
        let within = |what, got: u32, range: std::ops::RangeInclusive<u32>| match range.contains(&got) {
            true => Ok(()),
            false => Err(HandshakeError::Limit { what, got, min: *range.start(), max: *range.end() }),
        };
        within("body_bytes_max", self.body_bytes_max, 1024..=BODY_BYTES_MAX as u32)?;
        within("rows_max", self.rows_max, 1..=ROWS_MAX)?;
        within("in_flight_max", self.in_flight_max, 1..=IN_FLIGHT_MAX)?;
        within("ping_interval_ms", self.ping_interval_ms, PING_INTERVAL_MS)
    }
}

/// The hub's first word.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HubHello {
    /// Who the hub is and who says so.
    pub cert: HubCert,
    /// Counts the hub's starts; fences its meters.
    pub hub_epoch: u64,
    /// The session that begins.
    pub session_id: SessionId,
    /// Fresh randomness.
    pub nonce: Hex<32>,
    /// Fresh x25519 public key.
    pub x25519: Hex<32>,
    /// Manifest of the model that is served.
    pub manifest: Digest,
    /// What the hub allows.
    pub limits: Limits,
    /// Whether a wallet that is new here has to show its join code.
    pub invite_only: bool,
}

/// The worker's answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerAuth {
    /// Who is paid.
    pub wallet: PublicKey,
    /// The installation.
    pub worker_id: WorkerId,
    /// Signs receipts' acknowledgements, lives as long as the session.
    pub session_key: PublicKey,
    /// By the session key: it is held, for this hello and this wallet.
    pub session_signature: Hex<64>,
    /// Fresh randomness.
    pub nonce: Hex<32>,
    /// Fresh x25519 public key.
    pub x25519: Hex<32>,
    /// The host name that the worker dialled, lower case.
    pub host: String,
    /// Program and version, for people.
    pub agent: String,
    /// The join code, where the hub takes only those who have one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub invite: Option<String>,
}

/// The hub's agreement.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Welcome {
    /// The session, repeated.
    pub session_id: SessionId,
    /// The wallet, repeated.
    pub wallet: PublicKey,
}
