//! The sending end of a session, shared by everybody who has something to say.
//!
//! **Invariant:** frames enter the queue in the order in which they were sealed. Room is waited for first; sealing and
//! queueing are one step without an await, so a sender that is dropped or not polled holds nobody up.

use std::sync::{Mutex, PoisonError};

use crate::net::ws::{WsError, WsSender};
use crate::wire::Frame;
use crate::wire::handshake::Seal;

/// Why a frame did not leave.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum LinkError {
    #[error(transparent)]
    Socket(#[from] WsError),
    #[error("the session is over")]
    Over,
}

/// See the module.
pub(super) struct Link {
    seal: Mutex<Seal>,
    sender: WsSender,
}

impl Link {
    pub fn new(seal: Seal, sender: WsSender) -> Self {
        Self { seal: Mutex::new(seal), sender }
    }

    pub async fn send(&self, frame: &Frame) -> Result<(), LinkError> {
        let place = self.sender.reserve().await?;
        let mut seal = self.seal.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(place.send(seal.seal(frame))?)
    }

    pub async fn close(&self, code: u16, reason: &str) {
        self.sender.close(code, reason).await;
    }
}

#[cfg(test)]
pub(super) mod tests;
