//! Runs the legs of the way to a gateway one after the other and says how each went, for `kvasir doctor`.

use std::time::Duration;

use super::dial::{Connector, DialError, Leg, Trip};
use super::ws::{WsConfig, WsStream};

/// What a probe found.
#[derive(Debug)]
pub struct Probe {
    /// The legs that were passed with their times, and what the gateway showed.
    pub trip: Trip,
    /// Why it went no further; `None` when the WebSocket stood.
    pub failed: Option<DialError>,
}

impl Probe {
    /// The leg that failed, if one did.
    #[must_use]
    pub fn failed_leg(&self) -> Option<Leg> {
        self.failed.as_ref().map(DialError::leg)
    }
}

/// Goes the whole way to the WebSocket at `url` and leaves again, within `deadline`.
pub async fn probe(url: &str, connector: &Connector, deadline: Duration) -> Probe {
    let mut trip = Trip::default();
    let failed = match WsStream::travel(url, connector, WsConfig::worker(), deadline, &mut trip).await {
        Ok(socket) => {
            drop(socket);
            None
        }
        Err(error) => Some(error),
    };
    Probe { trip, failed }
}
