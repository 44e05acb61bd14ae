//! The completions API: `POST /v1/completions` in OpenAI's shape, plain or as server-sent events.
//!
//! Before: a client on this machine or network; there are no keys, so the listener is private. After: one generation at
//! a time on its own thread; a client that goes away ends its generation within a step.
//! **Promise:** a place is taken before a body is read; every read has a deadline; a stop ends every connection soon.
//! Why no name but `localhost` is served: a web page could point its own name at this address and read the answers.

mod connections;
mod generation;
mod request;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequest, Request, State};
use axum::http::uri::Authority;
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::Backbone;
use crate::shutdown::Shutdown;
use generation::{Job, Outcome, take_place};
pub use request::{ApiError, CompletionRequest};

/// Generations at once. Each is single-stream; more would only share the same processors.
const GENERATIONS: usize = 1;
/// Clients that may wait for their turn.
const WAITING: usize = 16;
/// Largest request body: the longest prompt, escaped.
const BODY_BYTES_MAX: usize = 8 << 20;
/// How long a client may take to send its body; its place is taken meanwhile.
const BODY_DEADLINE: Duration = Duration::from_secs(30);

/// What the handlers share.
pub(super) struct Api {
    backbone: Arc<Backbone>,
    /// Taken before a request is accepted.
    places: Arc<Semaphore>,
    /// Taken while a generation runs.
    turns: Arc<Semaphore>,
    shutdown: Shutdown,
}

/// Serves clients on `listener` until `shutdown`; running generations are ended then, and every connection soon after.
///
/// # Errors
/// None; failed accepts are logged and tried again.
pub async fn serve(listener: TcpListener, backbone: Arc<Backbone>, shutdown: Shutdown) -> std::io::Result<()> {
    let api = Arc::new(Api {
        backbone,
        places: Arc::new(Semaphore::new(GENERATIONS + WAITING)),
        turns: Arc::new(Semaphore::new(GENERATIONS)),
        shutdown: shutdown.clone(),
    });
    let router = Router::new()
        .route("/v1/completions", post(completions))
        .route("/v1/models", get(models))
        .route("/healthz", get(|| async { "ok" }))
        .fallback(|| async { ApiError::new(StatusCode::NOT_FOUND, "not_found", "no such path") })
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(middleware::from_fn(refuse_other_hosts))
        .with_state(api);
    connections::serve(listener, router, shutdown).await;
    Ok(())
}

/// Lets through what was meant for an address or for `localhost`, which no page can take as its own name.
async fn refuse_other_hosts(request: Request, next: Next) -> Result<Response, ApiError> {
    let named = request.headers().get_all(header::HOST).iter().map(|value| value.as_bytes());
    let meant = request.uri().authority().map(|authority| authority.as_str().as_bytes());
    let hosts: Vec<&[u8]> = named.chain(meant).collect();
    if !hosts.is_empty() && hosts.iter().all(|host| is_no_name(host)) {
        return Ok(next.run(request).await);
    }
    let got = hosts.first().map_or_else(|| "none".into(), |host| String::from_utf8_lossy(host).into_owned());
    let message = format!("expected an IP address or localhost as Host, got {got}: use the server's address");
    Err(ApiError::new(StatusCode::FORBIDDEN, "host", message))
}

/// Whether `host[:port]` is an IP address or `localhost`.
fn is_no_name(host: &[u8]) -> bool {
    let Ok(authority) = Authority::try_from(host) else { return false };
    let host = authority.host();
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    bare.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok()
}

async fn models(State(api): State<Arc<Api>>) -> Response {
    let model = json!({"id": api.backbone.model().name, "object": "model", "owned_by": "kvasir"});
    axum::Json(json!({"object": "list", "data": [model]})).into_response()
}

async fn completions(State(api): State<Arc<Api>>, request: Request) -> Result<Response, ApiError> {
    let place = take_place(&api)?;
    let request = CompletionRequest::read(&body(request).await?)?;
    let stream = request.stream;
    let job = Job::new(Arc::clone(&api), request, place).await?;
    if stream {
        return Ok(job.stream());
    }
    let Outcome { text, finish, prompt_tokens, completion_tokens } = job.finish().await?;
    let choice = json!({"index": 0, "text": text, "finish_reason": finish, "logprobs": null});
    let usage = json!({
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    });
    let model = &api.backbone.model().name;
    Ok(axum::Json(json!({"object": "text_completion", "model": model, "choices": [choice], "usage": usage}))
        .into_response())
}

/// The whole body, within its deadline and its limit.
async fn body(request: Request) -> Result<Bytes, ApiError> {
    match timeout(BODY_DEADLINE, Bytes::from_request(request, &())).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(rejection)) => Err(ApiError::new(rejection.status(), "body", rejection.body_text())),
        Err(_) => {
            let message = format!("expected the whole body within {} s", BODY_DEADLINE.as_secs());
            Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_late", message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_no_name;

    #[test]
    fn only_addresses_and_localhost_are_no_names() {
        for host in ["127.0.0.1", "127.0.0.1:8080", "[::1]:8080", "[::1]", "localhost", "LocalHost:1", "192.168.0.9:80"]
        {
            assert!(is_no_name(host.as_bytes()), "{host}");
        }
        for host in ["", "rebound.test:8080", "localhost.rebound.test", "127.0.0.1.rebound.test", ":80", "[rebound]"] {
            assert!(!is_no_name(host.as_bytes()), "{host}");
        }
    }
}
