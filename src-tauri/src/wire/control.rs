//! Bodies of the control frames: JSON, unknown fields refused, binary as lower-case hex, keys as base58.
//!
//! Texts for people are made [`plain`] as they are read.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::frame::{Frame, FrameError, Header, Kind};
use super::text::{plain, plain_text};
use crate::types::{Digest, Hex, PublicKey, SessionId, WorkerId};

/// Largest JSON control body.
pub const CONTROL_BYTES_MAX: usize = 64 * 1024;

/// The code of a [`Refuse`] to a program that is older than those that the hub serves.
pub const UPDATE_REQUIRED: &str = "update_required";

/// A control body: knows its kind.
pub trait Control: Serialize + DeserializeOwned {
    /// The frame kind that carries it.
    const KIND: Kind;

    /// The frame that carries this body, with request id 0.
    ///
    /// # Errors
    /// A body that is too large.
    fn frame(&self) -> Result<Frame, FrameError> {
        self.reply(0)
    }

    /// The frame that carries this body under a request id.
    ///
    /// # Errors
    /// A body that is too large.
    fn reply(&self, request: u64) -> Result<Frame, FrameError> {
        let json = serde_json::to_vec(self).map_err(|e| json_error(Self::KIND, &e))?;
        let header = Header { request, ..Header::control(Self::KIND) };
        Frame::new(header, json)
    }

    /// Reads the body of a frame of this kind.
    ///
    /// # Errors
    /// Another kind, a body over [`CONTROL_BYTES_MAX`], or JSON that does not fit.
    fn read(frame: &Frame) -> Result<Self, FrameError> {
        if frame.header.kind != Self::KIND {
            return Err(FrameError::Body {
                what: "frame kind",
                expected: format!("{:?}", Self::KIND),
                got: format!("{:?}", frame.header.kind),
            });
        }
        if frame.body.len() > CONTROL_BYTES_MAX {
            return Err(FrameError::Over {
                what: "control body",
                got: frame.body.len() as u64,
                max: CONTROL_BYTES_MAX as u64,
            });
        }
        serde_json::from_slice(&frame.body).map_err(|e| json_error(Self::KIND, &e))
    }
}

/// A JSON error as a named refusal; the body itself is never repeated.
pub(super) fn json_error(kind: Kind, error: &serde_json::Error) -> FrameError {
    FrameError::Body { what: "JSON body", expected: format!("{kind:?}"), got: plain(&error.to_string()) }
}

macro_rules! control {
    ($(#[$doc:meta])* $name:ident = $kind:ident { $($(#[$fdoc:meta])* $field:ident : $ty:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty),* }
        impl Control for $name { const KIND: Kind = Kind::$kind; }
    };
}

control! {
    /// Why the hub ends a session before or during the handshake.
    Refuse = Refuse {
        /// Stable code: `version`, `draining`, `busy`, `unauthorised`, `limit`, `replaced`, `quarantined`, `update_required`.
        #[serde(deserialize_with = "plain_text")]
        reason: String,
        /// When to try again, if it makes sense.
        retry_after_ms: Option<u64>,
    }
}
control! {
    /// What a worker has to give. Forwarded by the hub unchanged.
    Offer = Offer {
        /// Device for people, e.g. `CPU avx512 (AMD EPYC)`.
        #[serde(deserialize_with = "plain_text")]
        device: String,
        /// Bytes that the slice may take.
        memory_bytes: u64,
        /// Assignments per second by the worker's own self-test.
        assignments_per_s: f64,
        /// Layers it would rather hold; empty = any.
        wants: Vec<u16>,
    }
}
control! {
    /// What the backbone gives a worker to hold.
    Lease = Lease {
        /// Number that `Dispatch` repeats.
        lease: u32,
        /// BLAKE3 of the manifest's bytes.
        manifest: Digest,
        /// Layer → inclusive ranges of expert ids.
        experts: BTreeMap<u16, Vec<(u16, u16)>>,
        /// Milliseconds that the lease lives without a heartbeat.
        expires_ms: u64,
    }
}
control! {
    /// A worker gives experts back before it drops them.
    Release = Release {
        /// The lease.
        lease: u32,
        /// Layer → inclusive ranges; empty = all.
        experts: BTreeMap<u16, Vec<(u16, u16)>>,
    }
}
control! {
    /// Asks for bytes of one expert (`gate ‖ up ‖ down` as stored), or of the manifest (expert 65535).
    ExpertGet = ExpertGet {
        /// Layer.
        layer: u16,
        /// Expert, or 65535 for the manifest.
        expert: u16,
        /// First byte.
        offset: u64,
        /// Bytes, at most 256 KiB.
        length: u32,
    }
}
control! {
    /// The worker holds and has verified everything of the lease, or so far the experts that it names.
    SliceReady = SliceReady {
        /// The lease.
        lease: u32,
        /// Verified bytes.
        bytes: u64,
        /// Layer → inclusive ranges of the experts verified so far; empty = all of the lease.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        experts: BTreeMap<u16, Vec<(u16, u16)>>,
    }
}
control! {
    /// A worker will not answer a request; the body's `request` is in the header.
    Decline = Decline {
        /// Stable code: `lease`, `deadline`, `shape`, `busy`, `paused`, `lost`, `internal`.
        #[serde(deserialize_with = "plain_text")]
        reason: String,
    }
}
control! {
    /// Cumulative counters of a session, signed by the hub (see `ReceiptAck`).
    Receipt = Receipt {
        /// The hub's key.
        hub_key: PublicKey,
        /// The hub's epoch.
        hub_epoch: u64,
        /// The session.
        session_id: SessionId,
        /// Who is paid.
        wallet: PublicKey,
        /// Accepted assignments so far.
        assignments: u64,
        /// Their work bytes.
        work_bytes: u64,
        /// Work bytes that were voided.
        voided_bytes: u64,
        /// 1, 2, 3, …
        sequence: u64,
        /// Last receipt of the session.
        r#final: bool,
        /// ed25519 by `hub_key` over the receipt context and the fields above.
        signature: Hex<64>,
    }
}
control! {
    /// The worker's session key agrees to a receipt.
    ReceiptAck = ReceiptAck {
        /// The receipt's sequence.
        sequence: u64,
        /// ed25519 by the session key over the ack context and the receipt's signed bytes.
        signature: Hex<64>,
    }
}
control! {
    /// The hub or gateway is about to go; connect again after the pause.
    GoAway = GoAway {
        /// Milliseconds to wait before dialling.
        reconnect_after_ms: u64,
    }
}
control! {
    /// A worker stops taking work.
    Pause = Pause {
        /// For the log.
        #[serde(deserialize_with = "plain_text")]
        reason: String,
    }
}
control! {
    /// A worker takes work again.
    Resume = Resume {}
}
control! {
    /// Backbone → hub, first frame of a connection: what the hub tells workers and counts work with.
    /// A backbone that takes no more sessions sends `Refuse{busy}` in its place.
    BackboneHello = BackboneHello {
        /// BLAKE3 of the manifest's bytes.
        manifest: Digest,
        /// Elements of a hidden row; an accepted assignment is worth `4 · hidden_size` work bytes.
        hidden_size: u32,
    }
}
control! {
    /// Hub → backbone, first frame: a worker's session is open.
    SessionOpen = SessionOpen {
        /// The session.
        session_id: SessionId,
        /// Who is paid.
        wallet: PublicKey,
        /// The installation.
        worker_id: WorkerId,
        /// BLAKE3 of the peer's address under a per-start key, so that no address travels.
        peer_ip_hash: Hex<16>,
        /// How long the worker took to answer the hello, in microseconds: one round trip and two signatures.
        round_trip_us: u64,
    }
}
control! {
    /// Hub → backbone, last frame.
    SessionClosed = SessionClosed {
        /// For the log.
        #[serde(deserialize_with = "plain_text")]
        reason: String,
    }
}
control! {
    /// Backbone → hub: what of a request's part was used.
    Verdict = Verdict {
        /// The request.
        request: u64,
        /// The part.
        part: u16,
        /// Assignments to pay.
        accepted: u32,
        /// Assignments not to pay.
        refused: u32,
        /// Stable code: `ok`, `late`, `shape`, `status`, `duplicate`, `unused`, `declined`, `audit`.
        #[serde(deserialize_with = "plain_text")]
        reason: String,
    }
}
/// A device of one installation, as its `Offer` names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceName {
    /// The installation: two machines of a wallet may have devices of one name.
    pub worker_id: WorkerId,
    /// Its device.
    #[serde(deserialize_with = "plain_text")]
    pub name: String,
}

control! {
    /// Backbone → hub: a worker was caught.
    Quarantine = Quarantine {
        /// Who.
        wallet: PublicKey,
        /// In which session.
        session_id: SessionId,
        /// First request whose answer is known to be false.
        void_from_request: u64,
        /// Only this device, and nothing is void; without it the wallet, and all its unsettled credit is void.
        device: Option<DeviceName>,
        /// For the signed log.
        #[serde(deserialize_with = "plain_text")]
        reason: String,
    }
}
