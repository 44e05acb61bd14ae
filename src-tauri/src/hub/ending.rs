//! Why a session ends, as data: whose fault it is, what the worker is told and what the log says.
//!
//! **Promise:** every code is stable; dashboards and workers may depend on it.

use std::time::Duration;

use super::outstanding::OutstandingError;
use super::receipts::AcknowledgeError;
use crate::wire::{FrameError, Kind};

/// Who caused an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nobody: an ordinary end.
    None,
    /// The worker broke a rule.
    Worker,
    /// The way between worker and hub failed; no strike against the worker.
    Link,
    /// The backbone broke a rule or went away.
    Backbone,
    /// The hub itself.
    Hub,
}

/// Why a session ends.
#[derive(Debug, thiserror::Error)]
pub enum Ending {
    /// The worker closed.
    #[error("the worker closed")]
    Left,
    /// The same installation connected again.
    #[error("the same wallet and worker id connected again")]
    Replaced,
    /// The wallet was caught cheating.
    #[error("the wallet is quarantined")]
    Quarantined,
    /// The operator ended the wallet's sessions.
    #[error("the operator ended the wallet's sessions")]
    Kicked,
    /// The operator keeps the wallet out.
    #[error("the operator banned the wallet")]
    Banned,
    /// The hub stops, or the operator sent the wallet away.
    #[error("the hub drains")]
    Drained,
    /// The backbone's connection ended.
    #[error("the backbone closed the session")]
    BackboneLeft,
    /// The backbone's connection failed or stalled.
    #[error("the backbone's connection failed: {0}")]
    BackboneFailed(String),
    /// The backbone sent a frame that it may not send.
    #[error("unexpected frame {0:?} from the backbone")]
    BackboneKind(Kind),
    /// The backbone broke the table's rules.
    #[error("the backbone's request: {0}")]
    BackboneRequest(OutstandingError),
    /// The worker's stream failed.
    #[error("the worker's link failed: {0}")]
    Link(String),
    /// Somebody between worker and hub changed, dropped or repeated a frame.
    #[error("bad tag on frame {counter} of the session")]
    Tag {
        /// Frames opened before it.
        counter: u64,
    },
    /// A message over the limit.
    #[error("a message of {got} bytes, expected at most {max}")]
    Oversize {
        /// Its length, as far as it is known.
        got: usize,
        /// The limit.
        max: usize,
    },
    /// Bytes from the worker that are no frame, or a control frame over its bound.
    #[error("a frame of the worker: {0}")]
    Frame(FrameError),
    /// The worker sent a kind that only servers send.
    #[error("unexpected frame {0:?} from the worker")]
    ForbiddenKind(Kind),
    /// The worker answered what it was not asked, or in another shape, or left too much unanswered.
    #[error("{0}")]
    Answer(OutstandingError),
    /// The worker asked for more expert bytes than may be under way.
    #[error("expected at most {max} open requests for expert bytes")]
    BulkWindow {
        /// The limit.
        max: usize,
    },
    /// A body from the backbone that does not read.
    #[error("a frame of the backbone: {0}")]
    BackboneFrame(FrameError),
    /// The worker's acknowledgement is wrong.
    #[error("receipt acknowledgement: {0}")]
    Acknowledgement(AcknowledgeError),
    /// The worker does not acknowledge receipts.
    #[error("receipt {sequence} was not acknowledged within {deadline:?}")]
    Unacknowledged {
        /// The receipt.
        sequence: u64,
        /// How long the hub waited.
        deadline: Duration,
    },
    /// The worker does not read what it is sent.
    #[error("the worker does not read: {0}")]
    Slow(&'static str),
    /// Nothing came from the worker for too long.
    #[error("nothing from the worker for {silent_ms} ms and {strikes} pings")]
    Silent {
        /// Since the last byte, at least.
        silent_ms: u64,
        /// Pings without an answer.
        strikes: u32,
    },
    /// The hub cannot build or sign a frame of its own.
    #[error("the hub failed: {0}")]
    Internal(String),
}

impl Ending {
    /// A request of the backbone that the table does not take. A table full of what the worker never answered is the
    /// worker's doing.
    #[must_use]
    pub fn untaken(error: OutstandingError) -> Self {
        match error {
            OutstandingError::Full { max, unanswered } if unanswered > max / 2 => Self::Answer(error),
            _ => Self::BackboneRequest(error),
        }
    }

    /// Stable code for `SessionClosed`, the close frame, logs and counters.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Left => "left",
            Self::Replaced => "replaced",
            Self::Quarantined => "quarantined",
            Self::Kicked => "kicked",
            Self::Banned => "banned",
            Self::Drained => "drained",
            Self::BackboneLeft | Self::BackboneFailed(_) => "backbone",
            Self::BackboneKind(_) => "backbone_kind",
            Self::BackboneRequest(_) => "backbone_request",
            Self::Link(_) => "link",
            Self::Tag { .. } => "tag",
            Self::Oversize { .. } => "oversize",
            Self::Frame(_) => "frame",
            Self::ForbiddenKind(_) => "kind",
            Self::Answer(OutstandingError::Shape { .. }) => "answer_shape",
            Self::Answer(OutstandingError::Full { .. }) => "unanswered",
            Self::Answer(_) => "answer_unknown",
            Self::BulkWindow { .. } => "bulk_window",
            Self::BackboneFrame(_) => "backbone_frame",
            Self::Acknowledgement(_) => "receipt",
            Self::Unacknowledged { .. } => "receipt_unacknowledged",
            Self::Slow(_) => "slow",
            Self::Silent { .. } => "silent",
            Self::Internal(_) => "internal",
        }
    }

    /// Whose fault it is.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match self {
            Self::Left | Self::Replaced | Self::Drained | Self::Kicked => Fault::None,
            Self::Link(_) | Self::Tag { .. } | Self::Slow(_) | Self::Silent { .. } => Fault::Link,
            Self::BackboneLeft
            | Self::BackboneFailed(_)
            | Self::BackboneFrame(_)
            | Self::BackboneKind(_)
            | Self::BackboneRequest(_) => Fault::Backbone,
            Self::Quarantined
            | Self::Banned
            | Self::ForbiddenKind(_)
            | Self::Answer(_)
            | Self::BulkWindow { .. }
            | Self::Oversize { .. }
            | Self::Frame(_)
            | Self::Acknowledgement(_)
            | Self::Unacknowledged { .. } => Fault::Worker,
            Self::Internal(_) => Fault::Hub,
        }
    }

    /// Whether the worker can still be told something.
    #[must_use]
    pub fn leaves_worker_listening(&self) -> bool {
        !matches!(self, Self::Left | Self::Link(_) | Self::Slow(_) | Self::Silent { .. } | Self::Oversize { .. })
    }

    /// The WebSocket close code that the worker gets.
    #[must_use]
    pub fn close_code(&self) -> u16 {
        match self {
            Self::Replaced => 4001,
            Self::Left => 1000,
            Self::Oversize { .. } => 1009,
            Self::Drained | Self::Kicked => 1012,
            _ => match self.fault() {
                Fault::Worker | Fault::Link => 1008,
                Fault::Backbone => 1013,
                Fault::None | Fault::Hub => 1011,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_is_the_fault_of_whoever_let_it_fill() {
        let full = |unanswered| Ending::untaken(OutstandingError::Full { max: 1024, unanswered });
        assert_eq!(
            (full(1000).code(), full(1000).fault(), full(1000).close_code()),
            ("unanswered", Fault::Worker, 1008)
        );
        assert_eq!(
            (full(24).code(), full(24).fault(), full(24).close_code()),
            ("backbone_request", Fault::Backbone, 1013)
        );
    }
}
