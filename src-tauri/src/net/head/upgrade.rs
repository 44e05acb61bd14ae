//! Decides whether a request head may become a WebSocket, and rebuilds it for the next server.
//!
//! Only validated fields survive: a server that forwards client bytes inherits the client's tricks
//! (request smuggling, CVE-2026-2833). Extensions, `X-Forwarded-*` and `X-Kvasir-*` of the client are dropped.

use std::net::IpAddr;

use super::{Head, Received};
use crate::types::GatewayRun;

/// The header in which the gateway tells the hub who is behind it.
pub const PEER_HEADER: &str = "x-kvasir-peer";
/// The header in which the gateway tells the hub which run of which gateway it is, so that it can ask later to have the
/// workers sent away that came through it.
pub const GATEWAY_HEADER: &str = "x-kvasir-gateway";
/// Longest accepted `Host` value; a DNS name has at most 253 characters, a port six more.
const HOST_BYTES_MAX: usize = 260;

/// Why a head may not become a WebSocket.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum UpgradeError {
    /// Another method.
    #[error("expected GET, got {0}")]
    Method(String),
    /// HTTP/1.0.
    #[error("expected HTTP/1.1, got HTTP/1.{0}")]
    HttpVersion(u8),
    /// Another path, or a query.
    #[error("expected the path {expected}")]
    Path {
        /// The only path that upgrades.
        expected: String,
    },
    /// A header that must occur exactly once with a given form.
    #[error("expected exactly one {name} header with {expected}")]
    Header {
        /// Its name.
        name: &'static str,
        /// The form.
        expected: &'static str,
    },
    /// Another WebSocket version.
    #[error("expected WebSocket version 13")]
    WebSocketVersion,
    /// A header that has no place in an upgrade.
    #[error("expected no {0} header")]
    Forbidden(&'static str),
    /// A body, or an impatient client.
    #[error("expected nothing after the head, got {0} bytes")]
    BytesAfterHead(usize),
}

impl UpgradeError {
    /// The HTTP status to answer with.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self {
            Self::Method(_) => 405,
            Self::HttpVersion(_) => 505,
            Self::Path { .. } => 404,
            Self::WebSocketVersion => 426,
            Self::Header { .. } | Self::Forbidden(_) | Self::BytesAfterHead(_) => 400,
        }
    }

    /// A stable code for the error body and for counters.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Method(_) => "method",
            Self::HttpVersion(_) => "http_version",
            Self::Path { .. } => "path",
            Self::Header { .. } => "header",
            Self::WebSocketVersion => "websocket_version",
            Self::Forbidden(_) => "forbidden_header",
            Self::BytesAfterHead(_) => "bytes_after_head",
        }
    }
}

/// The validated fields of a WebSocket request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upgrade {
    /// The path, as asked for.
    pub path: String,
    /// The name the client dialled, in lower case, port included when given.
    pub host: String,
    /// `Sec-WebSocket-Key`: base64 of 16 bytes.
    pub key: String,
}

impl Upgrade {
    /// Checks that a received head asks for a WebSocket at exactly `path` and that nothing came after it.
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub fn check(received: &Received<Head>, path: &str) -> Result<Self, UpgradeError> {
        let head = &received.head;
        if head.path != path || head.query.is_some() {
            return Err(UpgradeError::Path { expected: path.to_owned() });
        }
        if head.method != "GET" {
            return Err(UpgradeError::Method(head.method.chars().take(16).collect()));
        }
        if head.minor_version != 1 {
            return Err(UpgradeError::HttpVersion(head.minor_version));
        }
        for name in ["transfer-encoding", "te", "trailer", "expect"] {
            if head.headers.all(name).next().is_some() {
                return Err(UpgradeError::Forbidden(name));
            }
        }
        let mut lengths = head.headers.all("content-length");
        if !matches!((lengths.next(), lengths.next()), (None | Some("0"), None)) {
            return Err(UpgradeError::Forbidden("content-length"));
        }
        let one = |name: &'static str, expected: &'static str, fits: fn(&str) -> bool| {
            head.headers.only(name).filter(|value| fits(value)).ok_or(UpgradeError::Header { name, expected })
        };
        let host = one("host", "a host name", is_host)?.to_ascii_lowercase();
        one("upgrade", "websocket", |v| v.eq_ignore_ascii_case("websocket"))?;
        one("connection", "the token upgrade", names_upgrade)?;
        let key = one("sec-websocket-key", "base64 of 16 bytes", is_key)?.to_owned();
        if one("sec-websocket-version", "13", |_| true)? != "13" {
            return Err(UpgradeError::WebSocketVersion);
        }
        match received.rest().len() {
            0 => Ok(Self { path: path.to_owned(), host, key }),
            more => Err(UpgradeError::BytesAfterHead(more)),
        }
    }

    /// The `Sec-WebSocket-Accept` that answers this request.
    #[must_use]
    pub fn accept_key(&self) -> String {
        tokio_tungstenite::tungstenite::handshake::derive_accept_key(self.key.as_bytes())
    }

    /// The request for the next server, from validated fields only, telling it the client's address and who asks.
    #[must_use]
    pub fn rebuild(&self, peer: IpAddr, gateway: GatewayRun) -> Vec<u8> {
        format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: {}\r\nSec-WebSocket-Version: 13\r\n{PEER_HEADER}: {peer}\r\n\
             {GATEWAY_HEADER}: {gateway}\r\n\r\n",
            self.path, self.host, self.key
        )
        .into_bytes()
    }
}

fn is_host(text: &str) -> bool {
    let fits = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'-' | b'_' | b':' | b'[' | b']');
    (1..=HOST_BYTES_MAX).contains(&text.len()) && text.bytes().all(fits)
}

fn names_upgrade(text: &str) -> bool {
    let known = |t: &str| t.eq_ignore_ascii_case("upgrade") || t.eq_ignore_ascii_case("keep-alive");
    let mut tokens = text.split(',').map(str::trim);
    tokens.clone().any(|t| t.eq_ignore_ascii_case("upgrade")) && tokens.all(known)
}

/// 16 bytes in base64 are 22 digits and two `=`; the last digit carries four bits, the rest of it is zero.
fn is_key(text: &str) -> bool {
    let digit = |c: &u8| c.is_ascii_alphanumeric() || matches!(c, b'+' | b'/');
    match text.as_bytes() {
        [digits @ .., last, b'=', b'='] if digits.len() == 21 => {
            digits.iter().all(digit) && matches!(last, b'A' | b'Q' | b'g' | b'w')
        }
        _ => false,
    }
}
