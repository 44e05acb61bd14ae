//! A small transfer in each direction, so that whoever asks learns how fast their line to this gateway is.
//!
//! Bounded in size, and so often of an address in a minute: a stranger gets less out of it than out of the handshakes
//! that they may make anyway.

use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Extension, RawQuery, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::api::{Api, Caller};
use super::permits::Peer;
use super::rates::Rates;
use super::reply::Refusal;
use crate::wire::speed::{SPEED_BYTES_MAX, content};

/// Transfers of one address in a minute, both directions together: three examinations.
const TRANSFERS_PER_MINUTE: usize = 6;

static CONTENT: LazyLock<Bytes> = LazyLock::new(|| Bytes::from(content()));

/// Who had transfers lately.
#[derive(Debug)]
pub struct Transfers(Rates);

impl Default for Transfers {
    fn default() -> Self {
        Self(Rates::new(TRANSFERS_PER_MINUTE))
    }
}

impl Transfers {
    fn take(&self, ip: IpAddr) -> Result<(), Refusal> {
        if self.0.take(Peer::of(ip), Instant::now()) {
            return Ok(());
        }
        Err(Refusal::new(429, "speed", format!("expected at most {TRANSFERS_PER_MINUTE} transfers a minute")))
    }
}

/// `GET /v1/speed?bytes=N`: N bytes.
pub async fn down(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let asked = query.as_deref().and_then(|query| query.strip_prefix("bytes=")?.parse().ok());
    let Some(bytes) = asked.filter(|bytes| (1..=SPEED_BYTES_MAX).contains(bytes)) else {
        return Err(Refusal::new(400, "query", format!("expected bytes=1 to {SPEED_BYTES_MAX}")));
    };
    api.transfers.take(caller.peer)?;
    let head = [(header::CONTENT_TYPE, "application/octet-stream"), (header::CACHE_CONTROL, "no-store, no-transform")];
    Ok((head, CONTENT.slice(..bytes)).into_response())
}

/// `POST /v1/speed`: takes a body and says how long it was.
pub async fn up(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Result<Json<Value>, Refusal> {
    api.transfers.take(caller.peer)?;
    Ok(Json(json!({ "bytes": body.len() })))
}
