//! The completions API: `POST /v1/completions` in OpenAI's shape, plain or as server-sent events.
//!
//! Before: a client on this machine or network; there are no keys, so the listener is private. After: one generation at
//! a time on its own thread; a client that goes away ends its generation within a step.

mod generation;
mod request;

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use super::Backbone;
use crate::shutdown::Shutdown;
use generation::{Job, Outcome};
pub use request::{ApiError, CompletionRequest};

/// Generations at once. Each is single-stream; more would only share the same processors.
const GENERATIONS: usize = 1;
/// Clients that may wait for their turn.
const WAITING: usize = 16;
/// Largest request body: the longest prompt, escaped.
const BODY_BYTES_MAX: usize = 8 << 20;

/// What the handlers share.
pub(super) struct Api {
    backbone: Arc<Backbone>,
    /// Taken before a request is accepted.
    places: Arc<Semaphore>,
    /// Taken while a generation runs.
    turns: Arc<Semaphore>,
    shutdown: Shutdown,
}

/// Serves clients on `listener` until `shutdown`; running generations are ended then.
///
/// # Errors
/// When the listener fails.
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
        .with_state(api);
    axum::serve(listener, router).with_graceful_shutdown(async move { shutdown.wait().await }).await
}

async fn models(State(api): State<Arc<Api>>) -> Response {
    let model = json!({"id": api.backbone.model().name, "object": "model", "owned_by": "kvasir"});
    axum::Json(json!({"object": "list", "data": [model]})).into_response()
}

async fn completions(State(api): State<Arc<Api>>, body: Bytes) -> Result<Response, ApiError> {
    let request = CompletionRequest::read(&body)?;
    let job = Job::new(&api, &request)?;
    if request.stream {
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
