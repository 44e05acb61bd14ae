//! The public HTTP: what a wallet may read, what it hands in, and whether the gateway is well.

use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Path, RawQuery, State};
use axum::http::{HeaderMap, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep_until, timeout};

use super::claims;
use super::config::{Deadlines, GatewayConfig};
use super::events::events;
use super::metrics::{Metrics, Status};
use super::receipts;
use super::reply::Refusal;
use super::speed::{self, Transfers};
use super::subscriptions::Subscriptions;
use crate::ledger::{ClaimTerms, Ledger, LedgerError, Transfer, WalletStatement};
use crate::shutdown::Shutdown;
use crate::types::PublicKey;
use crate::wire::RECEIPTS_PATH;
use crate::wire::speed::{SPEED_BYTES_MAX, SPEED_PATH};

/// base58 of 32 bytes.
const ADDRESS_CHARS: std::ops::RangeInclusive<usize> = 32..=44;
/// What a connection may buffer in each direction: twice the largest head.
const BUFFER_BYTES_MAX: usize = 16 * 1024;
/// Largest body that is read.
const BODY_BYTES_MAX: usize = 64 * 1024;

/// Requests at once that cost more than a row of the ledger: half of the connections that a SQLite ledger has, so that a
/// crowd of them does not keep the polls from crediting.
pub(super) const COSTLY_AT_ONCE: usize = 2;

/// What the handlers share.
#[derive(Debug)]
pub struct Api {
    /// The books.
    pub ledger: Ledger,
    /// The counters.
    pub metrics: Arc<Metrics>,
    /// Who waits for news of a wallet.
    pub subscriptions: Arc<Subscriptions>,
    /// How long they wait.
    pub deadlines: Deadlines,
    /// The gateway's own, for what its hubs are asked.
    pub config: Arc<GatewayConfig>,
    /// Ends them.
    pub shutdown: Shutdown,
    /// Who measured their line lately.
    pub transfers: Transfers,
    /// What claims are taken, if any are.
    pub claims: Option<ClaimTerms>,
    /// Room for costly requests.
    pub costly: Semaphore,
}

impl Api {
    /// Room for a request that reads a day of credits, or that asks a hub; whoever waits too long comes again.
    pub(super) async fn room(&self) -> Result<SemaphorePermit<'_>, Refusal> {
        let room = timeout(self.deadlines.hub, self.costly.acquire()).await;
        let full = || Refusal::new(503, "busy", "too many ask the same now, try again");
        room.ok().and_then(Result::ok).ok_or_else(full)
    }
}

/// Who asks; every request of a connection carries it.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Their address.
    pub peer: IpAddr,
    /// When their connection must have ended.
    pub until: Until,
}

/// The end of a connection; an answer that is meant to go on for longer moves it.
#[derive(Debug, Clone)]
pub struct Until(Arc<Mutex<Instant>>);

impl Until {
    fn get(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves the end to `later`, never back.
    pub fn extend(&self, later: Instant) {
        let mut until = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *until = later.max(*until);
    }

    async fn passed(&self) {
        loop {
            let until = self.get();
            if until <= Instant::now() {
                return;
            }
            sleep_until(until).await;
        }
    }
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
pub fn router(api: Arc<Api>) -> Router {
    Router::new()
        .route("/v1/wallets/{address}", get(wallet))
        .route("/v1/wallets/{address}/credits", get(credits))
        .route("/v1/wallets/{address}/events", get(events))
        .route("/v1/wallets/{address}/claim", get(claims::claimable))
        .route("/v1/claims", post(claims::take))
        .route(RECEIPTS_PATH, post(receipts::take))
        .route(SPEED_PATH, get(speed::down).post(speed::up).layer(DefaultBodyLimit::max(SPEED_BYTES_MAX)))
        .route("/status", get(status))
        .route("/healthz", get(healthz))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(api)
}

/// Serves one request of `peer` on a stream whose head was looked at before; the answer ends the connection, and the
/// deadline does unless the answer moved it.
pub async fn serve<S>(stream: S, router: Router, peer: IpAddr, deadline: Duration)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let until = Until(Arc::new(Mutex::new(Instant::now() + deadline)));
    let caller = Caller { peer, until: until.clone() };
    let routes = TowerToHyperService::new(router);
    let service = service_fn(|mut request: Request<Incoming>| {
        request.extensions_mut().insert(caller.clone());
        routes.call(request)
    });
    let mut builder = http1::Builder::new();
    builder.keep_alive(false).max_buf_size(BUFFER_BYTES_MAX);
    tokio::select! {
        served = builder.serve_connection(TokioIo::new(stream), service) => {
            if let Err(error) = served {
                tracing::debug!(%error, "a public connection failed");
            }
        }
        () = until.passed() => tracing::debug!("a public connection took too long"),
    }
}

async fn wallet(
    State(api): State<Arc<Api>>,
    Path(address): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let statement = api.ledger.wallet(parse_address(&address)?).await?;
    let tag = format!("\"{}\"", etag(&statement));
    let fresh = is_known(&headers, &tag);
    // Anybody may keep an answer, nobody may use it without asking.
    let head = [(header::ETAG, tag), (header::CACHE_CONTROL, "no-cache".to_owned())];
    Ok(if fresh { (StatusCode::NOT_MODIFIED, head).into_response() } else { (head, Json(statement)).into_response() })
}

/// What stands for a statement: its sequence, and its balances in case a ledger was restored from an older copy.
pub(super) fn etag(statement: &WalletStatement) -> String {
    let (pending, settled) = (statement.pending_nano_kvr.0, statement.settled_nano_kvr.0);
    format!("{}-{pending}-{settled}", statement.sequence)
}

/// Whether `If-None-Match` names the tag.
fn is_known(headers: &HeaderMap, tag: &str) -> bool {
    let lines = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|line| line.to_str().ok());
    let mut tags = lines.flat_map(|line| line.split(',')).map(str::trim);
    tags.any(|known| known == "*" || known.trim_start_matches("W/") == tag)
}

async fn credits(
    State(api): State<Arc<Api>>,
    Path(address): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Json<Credits>, Refusal> {
    let address = parse_address(&address)?;
    let after = parse_after(query.as_deref().unwrap_or_default())?;
    let credits = api.ledger.credits(address, after).await?;
    Ok(Json(Credits { address, credits }))
}

async fn status(State(api): State<Arc<Api>>) -> Json<Status> {
    Json(api.metrics.public_status())
}

async fn healthz(State(api): State<Arc<Api>>) -> Response {
    health(&api.metrics)
}

/// 200 until the gateway drains.
pub(super) fn health(metrics: &Metrics) -> Response {
    if metrics.draining.load(Ordering::Relaxed) {
        return Refusal::new(503, "draining", "the gateway drains").into_response();
    }
    ([(header::CACHE_CONTROL, "no-store")], Json(serde_json::json!({ "ok": true }))).into_response()
}

pub(super) async fn no_such_path() -> Refusal {
    Refusal::new(404, "path", "no such path")
}

pub(super) async fn no_such_method() -> Refusal {
    Refusal::new(405, "method", "no such method of this path")
}

pub(super) fn parse_address(text: &str) -> Result<PublicKey, Refusal> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_tag_is_found_in_any_list_of_them() {
        let knows = |lines: &[&str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(header::IF_NONE_MATCH, line.parse().unwrap());
            }
            is_known(&headers, "\"3-5-0\"")
        };
        assert!(
            knows(&["\"3-5-0\""]) && knows(&["\"a\", W/\"3-5-0\""]) && knows(&["\"a\"", "\"3-5-0\""]) && knows(&["*"])
        );
        assert!(!knows(&[]) && !knows(&["3-5-0"]) && !knows(&["\"3-5\""]) && !knows(&["\"\""]));
    }
}
