//! OpenAI's API over the scheduler: chats and completions, whole or as server-sent events.
//!
//! Before: a client, on this machine or with a key. After: an [`Order`](crate::backbone::Order) among all others; a
//! client that goes away ends it within a step.
//! **Promises:** a place is taken before a body is read; every read and write has a deadline; what is not understood is
//! refused by name; a stop ends every connection soon. Why no name but `localhost` is served without keys or TLS: a
//! web page could point its own name at this address and read the answers.

mod answer;
mod connections;
mod error;
mod host;
pub mod keys;
mod metrics;
mod prepare;
mod request;
mod shape;
mod speech;
mod status;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::PathRejection;
use axum::extract::{DefaultBodyLimit, Extension, FromRequest, Path, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{interval, timeout};

use super::Backbone;
use super::scheduler::{Place, Scheduler, SchedulerConfig};
use crate::clock::{Clock as _, SystemClock};
use crate::dispatch::RemoteDispatch;
use crate::shutdown::Shutdown;
use crate::telemetry::Vitals;
use answer::Answer;
pub use error::ApiError;
use keys::{Client, KeyGuard, Metered};
use prepare::Prepared;
pub use request::{ChatRequest, CompletionRequest};
use shape::{ChatShape, CompletionShape, Head, Shape};
use status::Status;

/// Largest request body: the longest prompt, escaped.
const BODY_BYTES_MAX: usize = 8 << 20;
/// How long a client may take to send its body; its place is taken meanwhile.
const BODY_DEADLINE: Duration = Duration::from_secs(30);
/// Prompts that are turned into tokens at once; the rest of the processors generates.
const READERS: usize = 2;
/// How often the usage of keys is written down; a crash loses as much.
const USAGE_SAVED: Duration = Duration::from_secs(5);

/// New tokens of one request: hours of a large model, and the longest answer that models are trained to give.
pub const NEW_TOKENS_MAX: usize = 32_768;

/// How the API serves.
#[derive(Clone)]
pub struct ApiConfig {
    /// What the scheduler may use.
    pub scheduler: SchedulerConfig,
    /// Who may come; everybody without.
    pub keys: Option<KeyGuard>,
    /// What it shows to prove its name; plain HTTP without.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Whose counters `/metrics` shows as well.
    pub dispatch: Option<RemoteDispatch>,
    /// Where its keys are kept; that disk is watched.
    pub kept_in: Option<PathBuf>,
    /// Why workers may hold the layers that they may, for `/status`.
    pub lent: String,
    /// New tokens that one request can have; who asks for more is cut short.
    pub new_tokens_max: usize,
}

impl Default for ApiConfig {
    fn default() -> Self {
        let scheduler = SchedulerConfig::default();
        let lent = String::new();
        Self { scheduler, keys: None, tls: None, dispatch: None, kept_in: None, lent, new_tokens_max: NEW_TOKENS_MAX }
    }
}

/// What the handlers share.
struct Api {
    scheduler: Scheduler,
    config: ApiConfig,
    readers: Arc<Semaphore>,
    requests: metrics::Requests,
    clock: SystemClock,
}

impl Api {
    /// How this process and its machine are.
    fn vitals(&self) -> Vitals {
        Vitals::now(self.clock.unix_ms(), self.config.kept_in.as_deref())
    }

    fn backbone(&self) -> &Backbone {
        self.scheduler.backbone()
    }

    /// What the objects of an answer repeat.
    fn head(&self, prefix: &str, prepared: &Prepared) -> Head {
        Head {
            // Without randomness ids repeat, which no client minds.
            id: format!("{prefix}-{:016x}", getrandom::u64().unwrap_or(0)),
            created: self.clock.unix_ms() / 1000,
            model: self.backbone().model().name.clone(),
            reach: prepared.order.reach,
            stream: prepared.common.stream,
            include_usage: prepared.common.include_usage,
        }
    }
}

/// Serves clients on `listener` until `shutdown`; running generations are ended then, and every connection soon after.
///
/// # Errors
/// Usage that cannot be written at the end; failed accepts are logged and tried again.
pub async fn serve(
    listener: TcpListener,
    backbone: Arc<Backbone>,
    config: ApiConfig,
    shutdown: Shutdown,
) -> Result<(), keys::KeyError> {
    let (tls, guard) = (config.tls.clone(), config.keys.clone());
    let api = Arc::new(Api {
        scheduler: Scheduler::start(backbone, config.scheduler, shutdown.clone()),
        config,
        readers: Arc::new(Semaphore::new(READERS)),
        requests: metrics::Requests::default(),
        clock: SystemClock::default(),
    });
    let router = Router::new()
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(completions))
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model))
        .route("/metrics", get(metrics_page))
        .route("/status", get(status))
        .route("/healthz", get(health))
        .fallback(|| async { ApiError::new(StatusCode::NOT_FOUND, "not_found", "no such path") })
        .method_not_allowed_fallback(|| async {
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method", "no such method of this path")
        })
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(middleware::from_fn_with_state(Arc::clone(&api), admit))
        .with_state(api);
    tokio::select! {
        () = connections::serve(listener, tls, router, shutdown) => {}
        () = save_usage(guard.as_ref()) => {}
    }
    guard.map_or(Ok(()), |guard| guard.save())
}

/// Writes the usage of keys down, again and again.
async fn save_usage(guard: Option<&KeyGuard>) {
    let Some(guard) = guard else { return std::future::pending().await };
    let mut ticks = interval(USAGE_SAVED);
    loop {
        ticks.tick().await;
        if let Err(error) = guard.save() {
            tracing::warn!(%error, "the usage of keys is not saved");
        }
    }
}

/// Lets in who may come, and counts what they were told.
async fn admit(State(api): State<Arc<Api>>, mut request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    let response = match who(&api, &request) {
        Ok(client) => {
            request.extensions_mut().insert(client);
            next.run(request).await
        }
        Err(error) => error.into_response(),
    };
    api.requests.count(&path, response.status());
    response
}

fn who(api: &Api, request: &Request) -> Result<Client, ApiError> {
    let needed = match &api.config.keys {
        Some(guard) => guard.is_needed().map_err(|error| {
            tracing::error!(%error, "nobody is let in");
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "keys", "the server cannot read its keys")
        })?,
        None => false,
    };
    if !needed {
        host::check_origin(request)?;
    }
    if !needed && api.config.tls.is_none() {
        host::check_host(request)?;
    }
    let Some(guard) = api.config.keys.as_ref().filter(|_| request.uri().path() != "/healthz") else {
        return Ok(Client::default());
    };
    let shown = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    guard.client(shown.and_then(|value| value.strip_prefix("Bearer ")).map(str::trim))
}

fn described(api: &Api) -> Value {
    let model = api.backbone().model();
    json!({
        "id": model.name,
        "object": "model",
        "created": 0,
        "owned_by": "kvasir",
        "context_length": model.hyper.context_length,
    })
}

async fn models(State(api): State<Arc<Api>>) -> Response {
    Json(json!({"object": "list", "data": [described(&api)]})).into_response()
}

async fn model(State(api): State<Arc<Api>>, id: Result<Path<String>, PathRejection>) -> Result<Response, ApiError> {
    let name = &api.backbone().model().name;
    if !id.is_ok_and(|Path(id)| id == *name) {
        let message = format!("expected {name}, the model that is served, got another");
        return Err(ApiError::new(StatusCode::NOT_FOUND, "model_not_found", message));
    }
    Ok(Json(described(&api)).into_response())
}

/// Whether generations are served; not while the server drains.
async fn health(State(api): State<Arc<Api>>) -> Response {
    let ok = api.scheduler.is_running();
    let status = if ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(json!({"ok": ok}))).into_response()
}

async fn status(State(api): State<Arc<Api>>) -> Response {
    Json(Status::of(&api)).into_response()
}

async fn metrics_page(State(api): State<Arc<Api>>) -> Response {
    let counts = api.config.dispatch.as_ref().map(RemoteDispatch::counts);
    let page = metrics::page(&api.scheduler, &api.requests, counts.as_ref(), &api.vitals());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], page).into_response()
}

async fn chat(
    State(api): State<Arc<Api>>,
    Extension(client): Extension<Client>,
    request: Request,
) -> Result<Response, ApiError> {
    let (place, metered) = (api.scheduler.place()?, client.begin()?);
    let body = body(request).await?;
    let read = move |api: &Api| prepare::chat(api, &client, ChatRequest::read(&body)?);
    let prepared = prepare::apart(&api, read).await?;
    let shape = ChatShape::new(api.head("chatcmpl", &prepared), prepared.order.logprobs.is_some());
    answer(&api, (place, metered), prepared, shape).await
}

async fn completions(
    State(api): State<Arc<Api>>,
    Extension(client): Extension<Client>,
    request: Request,
) -> Result<Response, ApiError> {
    let (place, metered) = (api.scheduler.place()?, client.begin()?);
    let body = body(request).await?;
    let read = move |api: &Api| prepare::completion(api, &client, CompletionRequest::read(&body)?);
    let prepared = prepare::apart(&api, read).await?;
    let shape = CompletionShape::new(api.head("cmpl", &prepared), prepared.order.logprobs.is_some());
    answer(&api, (place, metered), prepared, shape).await
}

async fn answer(
    api: &Api,
    (place, mut metered): (Place, Metered),
    prepared: Prepared,
    shape: impl Shape,
) -> Result<Response, ApiError> {
    let Prepared { mut order, parser, common } = prepared;
    let Some(tokenizer) = &api.backbone().model().tokenizer else {
        return Err(ApiError::internal("the tokenizer is gone"));
    };
    let prompt_tokens = order.prompt.len();
    order.options.max_tokens = metered.reserve(prompt_tokens, order.options.max_tokens)?;
    let events = api.scheduler.submit(place, order)?;
    let answer = Answer::new(events, tokenizer, common.stop, parser, (metered, prompt_tokens));
    if common.stream { shape::events(answer, shape).await } else { shape::whole(answer, shape).await }
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
