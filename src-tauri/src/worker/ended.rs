//! How a session ends: in peace, or by an error that says where.

use std::time::Duration;

use super::fetch::FetchError;
use super::outgoing::LinkError;
use super::status::Trouble;
use crate::net::dial::{DialError, Leg};
use crate::net::ws::WsError;
use crate::types::Digest;
use crate::wire::control::UPDATE_REQUIRED;
use crate::wire::handshake::{HandshakeError, OpenError};
use crate::wire::receipt::ReceiptError;
use crate::wire::{FrameError, Kind};

/// Requests whose parts are still coming in.
pub(super) const INCOMPLETE_MAX: usize = 8;

/// How a session ended in peace.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The worker was told to stop.
    Stopped,
    /// The hub asked to come back after a pause.
    GoAway(Duration),
    /// There is other hardware to use.
    Changed,
    /// The machine slept.
    Slept,
    /// The network is another one.
    Moved,
    /// The hardware went away.
    Lost(String),
}

/// Why a session ended by itself.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    #[error(transparent)]
    Connect(#[from] DialError),
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error("no handshake within {} ms", .0.as_millis())]
    HandshakeDeadline(Duration),
    #[error("no randomness: {0}")]
    Random(#[from] getrandom::Error),
    #[error(transparent)]
    Socket(#[from] WsError),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error(transparent)]
    Receipt(#[from] ReceiptError),
    #[error("no thread to compute on: {0}")]
    Desk(#[from] std::io::Error),
    #[error("the hub closed the link")]
    Closed,
    #[error("expected a frame for a worker, got {got:?}")]
    Unexpected { got: Kind },
    #[error("pieces of experts that were not asked for")]
    Unasked,
    #[error("lease for the model with manifest {got}, expected {expected}")]
    OtherModel { expected: Digest, got: Digest },
    #[error("more than {INCOMPLETE_MAX} requests are incomplete")]
    Incomplete,
}

impl SessionError {
    /// Whether the way to the hub failed, and another gateway may do better.
    pub(super) fn is_of_the_way(&self) -> bool {
        matches!(self, Self::Connect(_) | Self::HandshakeDeadline(_) | Self::Closed)
            || matches!(self, Self::Socket(error) if !matches!(error, WsError::Closed { .. }))
    }

    /// The leg of joining that failed, and what to do; `None` for a session that stood.
    pub(super) fn trouble(&self) -> Option<Trouble> {
        let of = |leg, code, remedy| Some(Trouble { leg, code, remedy });
        match self {
            Self::Connect(error) => of(error.leg(), error.code(), error.remedy()),
            Self::Handshake(error) if error.wants_update() => {
                of(Leg::Version, UPDATE_REQUIRED, "update this program: the network serves newer ones only")
            }
            Self::Handshake(_) => {
                of(Leg::Auth, "refused", "ask the network's operator: the hub refuses, or is not the operator's")
            }
            Self::HandshakeDeadline(_) => {
                of(Leg::Auth, "hub_silent", "wait: the gateway is up, the hub behind it is not")
            }
            _ => None,
        }
    }
}
