//! The leg to a hub: dialling it, asking it for a WebSocket or for JSON.

use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout, timeout_at};

use super::config::{GatewayConfig, HubEndpoint};
use crate::net::Io;
use crate::net::head::{HeadError, Received, ResponseHead, read_response};
use crate::net::peer::PeerError;

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

/// Connects to a hub.
///
/// # Errors
/// No connection to one of ours within the configured deadline.
pub async fn dial(hub: &HubEndpoint, config: &GatewayConfig) -> Result<Io, HubError> {
    let (address, deadline) = (hub.addr.to_string(), config.deadlines.hub);
    let connected = timeout(deadline, config.hub_peer.connect(&address)).await;
    Ok(connected.map_err(|_| HubError::Late(deadline))??)
}

/// Sends a rebuilt upgrade and waits for 101; the answer's bytes are kept, to be relayed.
///
/// # Errors
/// Any other answer, a wrong `Sec-WebSocket-Accept`, or none within `deadline`.
pub async fn upgrade(
    hub: &mut Io,
    request: &[u8],
    accept: &str,
    deadline: Duration,
) -> Result<Received<ResponseHead>, HubError> {
    let until = Instant::now() + deadline;
    timeout_at(until, async {
        hub.write_all(request).await?;
        hub.flush().await
    })
    .await
    .map_err(|_| HubError::Late(deadline))??;
    let answer = read_response(hub, until).await?;
    let ResponseHead { status, minor_version, headers } = &answer.head;
    if *status != 101 || *minor_version != 1 {
        return Err(HubError::Status { expected: 101, got: *status });
    }
    if headers.only("sec-websocket-accept") != Some(accept) {
        return Err(HubError::Accept("Sec-WebSocket-Accept"));
    }
    if !headers.only("upgrade").is_some_and(|value| value.eq_ignore_ascii_case("websocket")) {
        return Err(HubError::Accept("Upgrade"));
    }
    Ok(answer)
}

/// `GET`s JSON from a hub, on a connection of its own.
///
/// # Errors
/// Everything of [`HubError`], within the configured deadline.
pub async fn get<T: DeserializeOwned>(hub: &HubEndpoint, target: &str, config: &GatewayConfig) -> Result<T, HubError> {
    exchange(hub, "GET", target, config).await
}

/// `POST`s a target without a body, for JSON.
///
/// # Errors
/// As [`get`].
pub async fn post<T: DeserializeOwned>(hub: &HubEndpoint, target: &str, config: &GatewayConfig) -> Result<T, HubError> {
    exchange(hub, "POST", target, config).await
}

async fn exchange<T: DeserializeOwned>(
    hub: &HubEndpoint,
    method: &str,
    target: &str,
    config: &GatewayConfig,
) -> Result<T, HubError> {
    let deadline = config.deadlines.hub;
    let until = Instant::now() + deadline;
    let exchange = async {
        let mut stream = dial(hub, config).await?;
        let request = format!("{method} {target} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", hub.addr);
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
        Ok(serde_json::from_slice(&body)?)
    };
    timeout_at(until, exchange).await.map_err(|_| HubError::Late(deadline))?
}
