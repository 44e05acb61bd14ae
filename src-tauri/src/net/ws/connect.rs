//! Dialling a WebSocket: the connector's legs, and the upgrade on top.

use std::time::Duration;

use tokio_tungstenite::client_async_with_config;
use tokio_tungstenite::tungstenite::Error;
use tokio_tungstenite::tungstenite::http::Uri;

use super::inbound::Counted;
use super::{WsConfig, WsStream, socket_config};
use crate::net::Io;
use crate::net::dial::{Connector, DIAL_DEADLINE, Destination, DialError, Leg, Trip};

impl WsStream {
    /// Dials `url`; `ws://` is allowed on this machine only.
    ///
    /// # Errors
    /// [`DialError`], within [`DIAL_DEADLINE`].
    pub async fn connect(url: &str, connector: &Connector, config: WsConfig) -> Result<Self, DialError> {
        Self::travel(url, connector, config, DIAL_DEADLINE, &mut Trip::default()).await
    }

    /// The same within `deadline`, noting in `trip` each leg as it is passed.
    ///
    /// # Errors
    /// [`DialError`].
    pub async fn travel(
        url: &str,
        connector: &Connector,
        config: WsConfig,
        deadline: Duration,
        trip: &mut Trip,
    ) -> Result<Self, DialError> {
        let fail = || DialError::Url { url: url.to_owned() };
        let uri: Uri = url.parse().map_err(|_| fail())?;
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(fail)?;
        let secure = match uri.scheme_str() {
            Some("wss") => true,
            Some("ws") => false,
            _ => return Err(fail()),
        };
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let to = Destination::new(host, port, deadline);
        let io: Io = if secure { connector.secure(&to, trip).await? } else { connector.plain(&to, trip).await? };

        let upgrade = async {
            let upgrade = client_async_with_config(uri.clone(), Counted::new(io), Some(socket_config(&config)));
            upgrade.await.map_err(|error| match error {
                Error::Http(response) => {
                    DialError::Status { host: host.to_owned(), status: response.status().as_u16() }
                }
                error => DialError::Upgrade { host: host.to_owned(), reason: error.to_string() },
            })
        };
        let (socket, _response) = trip.leg(Leg::Upgrade, &to, upgrade, |_| "a WebSocket".to_owned()).await?;
        Ok(Self::start(socket, config))
    }
}
