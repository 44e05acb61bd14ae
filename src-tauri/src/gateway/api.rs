//! The public HTTP: what a wallet may read, and whether the gateway is well. Read only.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::extract::{Path, RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use super::metrics::{Metrics, Status};
use super::reply::Refusal;
use crate::ledger::{Ledger, LedgerError, Transfer, WalletStatement};
use crate::types::PublicKey;

/// base58 of 32 bytes.
const ADDRESS_CHARS: std::ops::RangeInclusive<usize> = 32..=44;

/// What the handlers share.
#[derive(Debug, Clone)]
pub struct Api {
    /// The books.
    pub ledger: Ledger,
    /// The counters.
    pub metrics: Arc<Metrics>,
}

/// A wallet's transfers after the asked sequence, oldest first.
#[derive(Debug, Serialize)]
struct Credits {
    address: PublicKey,
    credits: Vec<Transfer>,
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, Json(self.json())).into_response()
    }
}

impl From<LedgerError> for Refusal {
    /// The reason goes to the log; a stranger learns that it is ours.
    fn from(error: LedgerError) -> Self {
        tracing::error!(%error, "a public request found no ledger");
        Self::new(503, "ledger", "the ledger is not available, try again")
    }
}

/// The public routes.
pub fn router(api: Api) -> Router {
    Router::new()
        .route("/v1/wallets/{address}", get(wallet))
        .route("/v1/wallets/{address}/credits", get(credits))
        .route("/status", get(status))
        .route("/healthz", get(healthz))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .with_state(api)
}

/// Serves one request on a stream whose head was looked at before; the answer ends the connection.
pub async fn serve<S>(stream: S, router: Router, deadline: Duration)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = TowerToHyperService::new(router);
    let connection = http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(stream), service);
    match timeout(deadline, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a public connection failed"),
        Err(_) => tracing::debug!("a public connection took too long"),
    }
}

async fn wallet(State(api): State<Api>, Path(address): Path<String>) -> Result<Json<WalletStatement>, Refusal> {
    Ok(Json(api.ledger.wallet(parse_address(&address)?).await?))
}

async fn credits(
    State(api): State<Api>,
    Path(address): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Json<Credits>, Refusal> {
    let address = parse_address(&address)?;
    let after = parse_after(query.as_deref().unwrap_or_default())?;
    let credits = api.ledger.credits(address, after).await?;
    Ok(Json(Credits { address, credits }))
}

async fn status(State(api): State<Api>) -> Json<Status> {
    Json(api.metrics.status())
}

async fn healthz(State(api): State<Api>) -> Response {
    if api.metrics.draining.load(Ordering::Relaxed) {
        return Refusal::new(503, "draining", "the gateway drains").into_response();
    }
    ([(header::CACHE_CONTROL, "no-store")], Json(serde_json::json!({ "ok": true }))).into_response()
}

async fn no_such_path() -> Refusal {
    Refusal::new(404, "path", "no such path")
}

async fn no_such_method() -> Refusal {
    Refusal::new(405, "method", "expected GET")
}

fn parse_address(text: &str) -> Result<PublicKey, Refusal> {
    let parsed = ADDRESS_CHARS.contains(&text.len()).then(|| text.parse().ok()).flatten();
    parsed.ok_or_else(|| Refusal::new(400, "address", "expected a wallet address: base58 of 32 bytes"))
}

/// `after=<sequence>` or nothing.
fn parse_after(query: &str) -> Result<u64, Refusal> {
    let number = match query.split_once('=') {
        None if query.is_empty() => Some(0),
        Some(("after", number)) if number.bytes().all(|c| c.is_ascii_digit()) => number.parse().ok(),
        _ => None,
    };
    number.ok_or_else(|| Refusal::new(400, "query", "expected after=<sequence>"))
}
