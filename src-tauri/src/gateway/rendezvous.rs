//! A hub that dials in: it proves its pinned key in TLS, asks to be kept here, and waits for workers.
//!
//! It comes to the public port like everybody else and names its own protocol there (ALPN), so that it needs neither a
//! certificate nor a port of its own. A gateway that drains takes none in: its successor does.

use rustls::server::ClientHello;
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, timeout_at};

use super::config::GatewayConfig;
use super::reply::Refusal;
use super::upgrade::Shared;
use crate::net::head::{Head, Received, read_head};
use crate::net::{Duplex, Io};
use crate::types::PublicKey;
use crate::wire::rendezvous::{HUB_PATH, PROTOCOL};

/// Whether somebody speaks as a hub; whether it is one of ours, TLS decides.
pub fn is_hub(hello: &ClientHello<'_>) -> bool {
    hello.alpn().is_some_and(|mut offered| offered.any(|name| name == PROTOCOL.as_bytes()))
}

/// Takes in a connection of the hub that holds `key`.
pub async fn arrive(stream: impl Duplex, key: PublicKey, shared: &Shared, config: &GatewayConfig, deadline: Instant) {
    let mut io: Io = Box::new(stream);
    let refusal = match read_head(&mut io, deadline).await {
        Ok(received) => match check(&received) {
            Ok(()) => {
                let taken_in = timeout_at(deadline, async {
                    io.write_all(answer().as_bytes()).await?;
                    io.flush().await
                });
                if !matches!(taken_in.await, Ok(Ok(()))) {
                    return tracing::debug!(%key, "a hub left before it was taken in");
                }
                match shared.legs.of_hub(key).park(io, config) {
                    Ok(()) => return,
                    Err(_) => return tracing::warn!(%key, "a hub keeps more connections here than it may"),
                }
            }
            Err(refusal) => refusal,
        },
        Err(error) => error.into(),
    };
    tracing::warn!(%key, code = refusal.code, "a hub asked for something else");
    refusal.send(io).await;
}

fn check(received: &Received<Head>) -> Result<(), Refusal> {
    let head = &received.head;
    if head.method != "GET" || head.path != HUB_PATH || head.query.is_some() {
        return Err(Refusal::new(404, "path", format!("expected GET {HUB_PATH}")));
    }
    let asks = |name: &str, value: &str| head.headers.only(name).is_some_and(|got| got.eq_ignore_ascii_case(value));
    if !asks("upgrade", PROTOCOL) || !asks("connection", "upgrade") {
        return Err(Refusal::new(400, "upgrade", format!("expected an upgrade to {PROTOCOL}")));
    }
    match received.rest().len() {
        0 => Ok(()),
        more => {
            Err(Refusal::new(400, "bytes_after_head", format!("expected nothing after the head, got {more} bytes")))
        }
    }
}

fn answer() -> String {
    format!("HTTP/1.1 101 Switching Protocols\r\nUpgrade: {PROTOCOL}\r\nConnection: Upgrade\r\n\r\n")
}
