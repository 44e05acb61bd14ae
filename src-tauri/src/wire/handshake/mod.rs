//! The worker–hub handshake: who the hub is, who is paid, and the keys that guard every later frame.
//!
//! `HubHello → WorkerAuth → Welcome`, each signed over all frames before it, then [`Seal`] and [`Open`] on both sides.
//! Pure state machines: no sockets; time and randomness come in as arguments.
//! **Promises:** a hub can never obtain a signature that is useful elsewhere; a recorded answer is worth nothing in
//! another session; whoever sits in the middle may read but not alter.

mod bodies;
mod hub;
mod seal;
mod transcript;
mod worker;

use zeroize::Zeroizing;

pub use bodies::{HubCert, HubHello, Limits, Welcome, WorkerAuth};
pub use hub::{HubHandshake, HubIdentity, HubRandom, HubSession, HubTerms};
pub use seal::{Open, OpenError, Seal, TAG_BYTES};
pub use worker::{AuthMessage, AuthSigner, WorkerHandshake, WorkerRandom, WorkerSession};

use super::control::{Refuse, UPDATE_REQUIRED};
use super::frame::{Frame, FrameError, Kind, VERSION};
use super::signature::{Context, SignatureError};
use crate::types::{Hex, PublicKey};

/// Who has to mend it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The worker, or whoever plays one.
    Worker,
    /// The hub, or whoever plays one.
    Hub,
    /// Somebody between the two.
    Path,
}

/// Why there is no session.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum HandshakeError {
    /// The other end said no, with its stable code.
    #[error("refused: {reason}")]
    Refused {
        /// Stable code, see [`Refuse`].
        reason: String,
        /// When to try again, if it makes sense.
        retry_after_ms: Option<u64>,
    },
    /// The other end speaks another protocol version.
    #[error("wrong version: expected 1, got {got}")]
    Version {
        /// Its version.
        got: u8,
    },
    /// Another frame than the one that is due.
    #[error("expected {expected:?}, got {got:?}")]
    Unexpected {
        /// What is due.
        expected: Kind,
        /// What came.
        got: Kind,
    },
    /// Bytes that are not the frame that is due.
    #[error(transparent)]
    Frame(FrameError),
    /// A signature that does not hold.
    #[error(transparent)]
    Signature(#[from] SignatureError),
    /// No operator that the worker trusts vouches for the hub.
    #[error("hub {hub} is not certified by any of the {pinned} pinned operators")]
    OperatorNotPinned {
        /// The hub's key.
        hub: PublicKey,
        /// Operators that the worker trusts.
        pinned: usize,
    },
    /// The hub's certificate is over, or this machine's clock is wrong.
    #[error("the hub's certificate ended at {not_after_unix_s} s, it is {now_unix_s} s (Unix time)")]
    CertificateExpired {
        /// Last second of validity.
        not_after_unix_s: u64,
        /// The time here.
        now_unix_s: u64,
    },
    /// The worker dialled a name that is not the hub's: it may have been lured.
    #[error("host {host:?} is not one of this hub's public names")]
    HostNotAllowed {
        /// What the worker dialled.
        host: String,
    },
    /// A text that would not be safe or sensible to keep.
    #[error("{what}: expected 1..={max} printable ASCII characters, got {got} bytes")]
    Text {
        /// Which field.
        what: &'static str,
        /// Its bound.
        max: usize,
        /// Its length.
        got: usize,
    },
    /// A limit that the worker cannot live with.
    #[error("{what}: expected {min}..={max}, got {got}")]
    Limit {
        /// Which field.
        what: &'static str,
        /// What the hub asks for.
        got: u32,
        /// Least.
        min: u32,
        /// Most.
        max: u32,
    },
    /// An x25519 key that yields no secret.
    #[error("the other end's x25519 key is of low order")]
    WeakKey,
    /// The hub welcomed somebody else.
    #[error("welcome for another session or wallet")]
    NotOurs,
    /// The answer came too late to be trusted.
    #[error("no answer within {limit_ms} ms")]
    Late {
        /// The bound.
        limit_ms: u64,
    },
}

impl From<FrameError> for HandshakeError {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Version { got } => Self::Version { got },
            other => Self::Frame(other),
        }
    }
}

impl HandshakeError {
    /// Whose fault it is, seen from the hub (`at_hub`) or from the worker.
    #[must_use]
    pub fn fault(&self, at_hub: bool) -> Fault {
        let (own, other) = if at_hub { (Fault::Hub, Fault::Worker) } else { (Fault::Worker, Fault::Hub) };
        match self {
            Self::Refused { .. } => own,
            Self::OperatorNotPinned { .. } | Self::NotOurs => Fault::Path,
            _ => other,
        }
    }

    /// Whether the same worker may succeed later without anybody changing anything.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Refused { reason, retry_after_ms } => {
                retry_after_ms.is_some() || matches!(reason.as_str(), "draining" | "busy" | "limit")
            }
            Self::Late { .. } => true,
            _ => false,
        }
    }

    /// Whether only a newer program at the worker's end would help, seen from there.
    #[must_use]
    pub fn wants_update(&self) -> bool {
        match self {
            Self::Refused { reason, .. } => matches!(reason.as_str(), UPDATE_REQUIRED | "version"),
            Self::Version { got } => *got > VERSION,
            _ => false,
        }
    }

    /// What a hub answers: one text for everything but the version, so that a refusal teaches nothing.
    #[must_use]
    pub fn refusal(&self) -> Refuse {
        let reason = if matches!(self, Self::Version { .. }) { "version" } else { "unauthorised" };
        Refuse { reason: reason.into(), retry_after_ms: None }
    }
}

/// A fresh x25519 secret.
struct Ephemeral(Zeroizing<[u8; 32]>);

impl Ephemeral {
    fn public(&self) -> Hex<32> {
        Hex(x25519_dalek::x25519(*self.0, x25519_dalek::X25519_BASEPOINT_BYTES))
    }

    /// Keys of the two directions, hub → worker first:
    /// 64 bytes of `BLAKE3-derive("kvasir frame v1", x25519 ‖ BLAKE3(HubHello) ‖ BLAKE3(WorkerAuth))`.
    fn keys(self, theirs: &Hex<32>, hello: &Frame, auth: &Frame) -> Result<[Zeroizing<[u8; 32]>; 2], HandshakeError> {
        let shared = Zeroizing::new(x25519_dalek::x25519(*self.0, theirs.0));
        if shared.iter().all(|b| *b == 0) {
            return Err(HandshakeError::WeakKey);
        }
        let mut hasher = blake3::Hasher::new_derive_key("kvasir frame v1");
        hasher.update(shared.as_ref());
        hasher.update(blake3::hash(&hello.encode()).as_bytes());
        hasher.update(blake3::hash(&auth.encode()).as_bytes());
        let mut out = hasher.finalize_xof();
        let mut keys = [Zeroizing::new([0u8; 32]), Zeroizing::new([0u8; 32])];
        keys.iter_mut().for_each(|key| out.fill(key.as_mut()));
        Ok(keys)
    }
}

/// The bytes that a session key signs to show that it is held.
fn possession(hello: &Frame, auth: &WorkerAuth) -> [u8; 144] {
    let mut out = [0u8; 144];
    out[..32].copy_from_slice(blake3::hash(&hello.encode()).as_bytes());
    out[32..64].copy_from_slice(&auth.wallet.0);
    out[64..80].copy_from_slice(&auth.worker_id.0);
    out[80..112].copy_from_slice(&auth.nonce.0);
    out[112..].copy_from_slice(&auth.x25519.0);
    out
}

/// Longest agent text.
const AGENT_BYTES_MAX: usize = 64;
/// Longest DNS name.
const HOST_BYTES_MAX: usize = 253;

fn check_text(what: &'static str, text: &str, max: usize) -> Result<(), HandshakeError> {
    let printable = text.bytes().all(|b| (0x20..0x7f).contains(&b));
    if text.is_empty() || text.len() > max || !printable {
        return Err(HandshakeError::Text { what, max, got: text.len() });
    }
    Ok(())
}
