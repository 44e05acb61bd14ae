//! CONNECT: asks a proxy for a connection to somebody else.

use tokio::io::AsyncWriteExt;
use tokio::time::Instant;

use super::{Proxy, ProxyError};
use crate::net::Io;
use crate::net::head::{Rewind, read_response};
use crate::wire::agent::AGENT;
use crate::wire::text::plain;

impl Proxy {
    /// Its host, brackets and all.
    pub(in crate::net) fn host(&self) -> &str {
        &self.host
    }

    pub(in crate::net) fn port(&self) -> u16 {
        self.port
    }

    /// Whether the proxy itself is spoken to over TLS.
    pub(in crate::net) fn is_tls(&self) -> bool {
        self.is_tls
    }
}

/// Asks the proxy at the end of `io` for a connection to `host`, which it resolves itself.
///
/// # Errors
/// [`ProxyError`]. The caller bounds the time.
pub async fn ask(proxy: &Proxy, mut io: Io, host: &str, port: u16, until: Instant) -> Result<Io, ProxyError> {
    let strange = |reason: String| ProxyError::Answer { proxy: proxy.clone(), reason };
    let target = format!("{host}:{port}");
    let credentials = proxy.credentials.as_ref().map(|value| format!("Proxy-Authorization: {value}\r\n"));
    let request = format!(
        "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nUser-Agent: {AGENT}\r\n{}\r\n",
        credentials.unwrap_or_default()
    );
    let sent = async {
        io.write_all(request.as_bytes()).await?;
        io.flush().await
    };
    sent.await.map_err(|error| strange(error.to_string()))?;
    let answer = read_response(&mut io, until).await.map_err(|error| strange(error.to_string()))?;
    match answer.head.status {
        200..=299 if answer.rest().is_empty() => Ok(io),
        200..=299 => Ok(Box::new(Rewind::new(answer.rest().to_vec(), io))),
        407 => {
            let offered = answer.head.headers.all("proxy-authenticate");
            let schemes: Vec<_> = offered.filter_map(|value| value.split_whitespace().next()).collect();
            Err(ProxyError::WantsPassword { proxy: proxy.clone(), schemes: plain(&schemes.join(", ")) })
        }
        status => Err(ProxyError::Refused { proxy: proxy.clone(), target, status }),
    }
}
