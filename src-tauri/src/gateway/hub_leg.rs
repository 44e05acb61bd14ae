//! What a gateway asks of a hub, each on a connection of its own: a WebSocket, JSON, or to send workers away.

use std::net::IpAddr;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout_at};

use super::config::GatewayConfig;
use super::legs::Leg;
use crate::net::Io;
use crate::net::head::{HeadError, ResponseHead, Upgrade, read_response};
use crate::net::peer::PeerError;
use crate::types::GatewayRun;
use crate::wire::LEAVE_PATH;
use crate::wire::rendezvous::Word;

/// Largest JSON answer: 1,000 meter rows take about 450 KB.
const ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Why a hub could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// No connection, or not to one of ours.
    #[error(transparent)]
    Connect(#[from] PeerError),
    /// No proper answer head.
    #[error("the hub's answer: {0}")]
    Head(#[from] HeadError),
    /// Another status than the one that helps.
    #[error("expected status {expected} of the hub, got {got}")]
    Status {
        /// 101 or 200.
        expected: u16,
        /// The hub's.
        got: u16,
    },
    /// A 101 that does not answer our request.
    #[error("expected the hub's {0} to answer the request")]
    Accept(&'static str),
    /// An answer without its length, or one over the limit.
    #[error("expected an answer of at most {ANSWER_BYTES_MAX} bytes with its length, got {0:?}")]
    Length(Option<String>),
    /// The body is not what was asked for.
    #[error("the hub's JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// The stream failed.
    #[error("the hub's connection: {0}")]
    Io(#[from] std::io::Error),
    /// The deadline passed.
    #[error("expected the hub's answer within {0:?}")]
    Late(Duration),
}

/// Asks a hub for a WebSocket: its connection, and the bytes of its 101, to be relayed.
///
/// # Errors
/// No connection, any other answer, a wrong `Sec-WebSocket-Accept`, or nothing within the deadline of one attempt.
pub async fn upgrade(
    leg: &Leg,
    request: &Upgrade,
    from: (IpAddr, GatewayRun),
    config: &GatewayConfig,
) -> Result<(Io, Vec<u8>), HubError> {
    let deadline = config.deadlines.attempt;
    let until = Instant::now() + deadline;
    let sent = request.rebuild(from.0, from.1);
    let attempts = async {
        let mut tries = leg.tries();
        loop {
            tries = tries.saturating_sub(1);
            match ask_for_upgrade(leg, request, &sent, until, config).await {
                // It died while it was parked; another one of the same hub may live.
                Err(HubError::Head(HeadError::Ended(0)) | HubError::Io(_)) if tries > 0 => {}
                result => return result,
            }
        }
    };
    timeout_at(until, attempts).await.map_err(|_| HubError::Late(deadline))?
}

async fn ask_for_upgrade(
    leg: &Leg,
    request: &Upgrade,
    sent: &[u8],
    until: Instant,
    config: &GatewayConfig,
) -> Result<(Io, Vec<u8>), HubError> {
    let mut hub = leg.connect(Word::Splice, config).await?;
    hub.write_all(sent).await?;
    hub.flush().await?;
    let answer = read_response(&mut hub, until).await?;
    let ResponseHead { status, minor_version, headers } = &answer.head;
    if *status != 101 || *minor_version != 1 {
        return Err(HubError::Status { expected: 101, got: *status });
    }
    if headers.only("sec-websocket-accept") != Some(&request.accept_key()) {
        return Err(HubError::Accept("Sec-WebSocket-Accept"));
    }
    if !headers.only("upgrade").is_some_and(|value| value.eq_ignore_ascii_case("websocket")) {
        return Err(HubError::Accept("Upgrade"));
    }
    Ok((hub, answer.bytes))
}

/// `GET`s JSON from a hub, on a connection of its own.
///
/// # Errors
/// Everything of [`HubError`], within the configured deadline.
pub async fn get<T: DeserializeOwned>(leg: &Leg, target: &str, config: &GatewayConfig) -> Result<T, HubError> {
    Ok(serde_json::from_slice(&exchange(leg, "GET", target, config).await?)?)
}

/// Asks a hub to send away the workers that came through this run of the gateway.
///
/// # Errors
/// Everything of [`HubError`], within the configured deadline.
pub async fn send_away(leg: &Leg, run: GatewayRun, config: &GatewayConfig) -> Result<(), HubError> {
    exchange(leg, "POST", &format!("{LEAVE_PATH}?gateway={run}"), config).await.map(drop)
}

/// `POST`s a target without a body, for JSON.
///
/// # Errors
/// As [`get`].
pub async fn post<T: DeserializeOwned>(leg: &Leg, target: &str, config: &GatewayConfig) -> Result<T, HubError> {
    Ok(serde_json::from_slice(&exchange(leg, "POST", target, config).await?)?)
}

async fn exchange(leg: &Leg, method: &str, target: &str, config: &GatewayConfig) -> Result<Vec<u8>, HubError> {
    let deadline = config.deadlines.hub;
    let until = Instant::now() + deadline;
    let exchange = async {
        let mut stream = leg.connect(Word::Ask, config).await?;
        let request = format!("{method} {target} HTTP/1.1\r\nHost: hub\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        stream.flush().await?;
        let answer = read_response(&mut stream, until).await?;
        if answer.head.status != 200 {
            return Err(HubError::Status { expected: 200, got: answer.head.status });
        }
        let text = answer.head.headers.only("content-length");
        let length = text.and_then(|text| text.parse::<usize>().ok()).filter(|length| *length <= ANSWER_BYTES_MAX);
        let length = length.ok_or_else(|| HubError::Length(text.map(|text| text.chars().take(32).collect())))?;
        let mut body = answer.rest().to_vec();
        body.truncate(length);
        let arrived = body.len();
        body.resize(length, 0);
        stream.read_exact(body.get_mut(arrived..).unwrap_or_default()).await?;
        Ok(body)
    };
    timeout_at(until, exchange).await.map_err(|_| HubError::Late(deadline))?
}
