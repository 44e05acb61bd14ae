//! Dialling a WebSocket: URL, TCP, TLS, upgrade, each with its own named failure.

use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_tungstenite::client_async_with_config;
use tokio_tungstenite::tungstenite::Error;
use tokio_tungstenite::tungstenite::http::Uri;

use super::inbound::Counted;
use super::{WsConfig, WsStream, socket_config};
use crate::net::bind::is_loopback;
use crate::net::{Io, tcp, tls};

/// How long TLS and the upgrade may take together, after TCP.
pub const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);

/// Which leg of dialling failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// A text that is no `wss://` or `ws://` URL.
    #[error("expected wss://host[:port]/path, got {url:?}")]
    Url {
        /// The text.
        url: String,
    },
    /// `ws://` to another machine.
    #[error("ws:// is for this machine only, and {host} is elsewhere: use wss://")]
    Plain {
        /// The host.
        host: String,
    },
    /// DNS or TCP.
    #[error(transparent)]
    Tcp(#[from] tcp::ConnectError),
    /// TLS.
    #[error(transparent)]
    Tls(#[from] tls::TlsError),
    /// The server is no WebSocket server, or does not want us.
    #[error("{host} refused the upgrade with HTTP {status}")]
    Status {
        /// The host.
        host: String,
        /// HTTP status.
        status: u16,
    },
    /// What came back is no answer to an upgrade.
    #[error("upgrade at {host}: {reason}")]
    Upgrade {
        /// The host.
        host: String,
        /// Why.
        reason: String,
    },
    /// TCP stood, the rest did not answer.
    #[error("{host} did not finish {leg} within {deadline_ms} ms")]
    Deadline {
        /// The host.
        host: String,
        /// `TLS` or `the upgrade`.
        leg: &'static str,
        /// The bound.
        deadline_ms: u128,
    },
}

impl WsStream {
    /// Dials `url`. `tls` is used for `wss://`; `ws://` is allowed on this machine only.
    ///
    /// # Errors
    /// [`ConnectError`], within [`tcp::CONNECT_DEADLINE`] + [`HANDSHAKE_DEADLINE`].
    pub async fn connect(url: &str, tls: Arc<ClientConfig>, config: WsConfig) -> Result<Self, ConnectError> {
        let fail = || ConnectError::Url { url: url.to_owned() };
        let uri: Uri = url.parse().map_err(|_| fail())?;
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(fail)?;
        let secure = match uri.scheme_str() {
            Some("wss") => true,
            Some("ws") => false,
            _ => return Err(fail()),
        };
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let tcp = tcp::connect(host, port, tcp::CONNECT_DEADLINE).await?;
        let until = Instant::now() + HANDSHAKE_DEADLINE;
        let stream = secured(tcp, secure, host, tls, until).await?;

        let upgrade = client_async_with_config(uri.clone(), Counted::new(stream), Some(socket_config(&config)));
        match timeout_at(until, upgrade).await {
            Err(_) => Err(late(host, "the upgrade")),
            Ok(Ok((socket, _response))) => Ok(Self::start(socket, config)),
            Ok(Err(Error::Http(response))) => {
                Err(ConnectError::Status { host: host.to_owned(), status: response.status().as_u16() })
            }
            Ok(Err(error)) => Err(ConnectError::Upgrade { host: host.to_owned(), reason: error.to_string() }),
        }
    }
}

async fn secured(
    tcp: TcpStream,
    secure: bool,
    host: &str,
    tls: Arc<ClientConfig>,
    until: Instant,
) -> Result<Io, ConnectError> {
    if !secure {
        let local = tcp.peer_addr().is_ok_and(|peer| is_loopback(peer.ip()));
        return if local { Ok(Box::new(tcp)) } else { Err(ConnectError::Plain { host: host.to_owned() }) };
    }
    match timeout_at(until, tls::wrap_client(tls, host, tcp)).await {
        Err(_) => Err(late(host, "TLS")),
        Ok(stream) => Ok(Box::new(stream?)),
    }
}

fn late(host: &str, leg: &'static str) -> ConnectError {
    ConnectError::Deadline { host: host.to_owned(), leg, deadline_ms: HANDSHAKE_DEADLINE.as_millis() }
}
