//! One client's generation: waits for its turn, runs on its own thread, hands out pieces as they come.
//!
//! A client that goes away and a server that stops end it after the pass under way, prefill included.

use std::ops::ControlFlow;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::request::{ApiError, CompletionRequest};
use super::{Api, GENERATIONS, WAITING};
use crate::backbone::{Finish, GenerateOptions};

/// A finished generation.
pub struct Outcome {
    pub text: String,
    pub finish: &'static str,
    pub prompt_tokens: usize,
    pub completion_tokens: usize,
}

/// What a running generation sends.
enum Event {
    Text(String),
    End(Result<Outcome, ApiError>),
}

/// A generation whose client is accepted.
pub struct Job {
    api: Arc<Api>,
    prompt: Vec<u32>,
    options: GenerateOptions,
    place: OwnedSemaphorePermit,
}

/// How the API calls an end of the text; `None` for one that is no end of it.
fn finish_reason(finish: Finish) -> Option<&'static str> {
    match finish {
        Finish::Stop => Some("stop"),
        Finish::Length | Finish::Context => Some("length"),
        Finish::Cancelled => None,
    }
}

fn cancelled() -> ApiError {
    let message = "the server stops before the text is complete: try again";
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "cancelled", message)
}

fn internal(error: impl std::fmt::Display) -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "generation", error.to_string())
}

/// A client's place among those who may be served or wait, or why there is none.
pub fn take_place(api: &Api) -> Result<OwnedSemaphorePermit, ApiError> {
    Arc::clone(&api.places).try_acquire_owned().map_err(|_| {
        let message = format!("expected at most {} requests at once: try again later", GENERATIONS + WAITING);
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, "busy", message)
    })
}

impl Job {
    /// Accepts a request, or says why not.
    pub async fn new(api: Arc<Api>, request: CompletionRequest, place: OwnedSemaphorePermit) -> Result<Self, ApiError> {
        // A long prompt takes a while to be read; the network's threads have other clients.
        tokio::task::spawn_blocking(move || Self::read(api, &request, place)).await.map_err(internal)?
    }

    fn read(api: Arc<Api>, request: &CompletionRequest, place: OwnedSemaphorePermit) -> Result<Self, ApiError> {
        let model = api.backbone.model();
        let tokenizer = model
            .tokenizer
            .as_ref()
            .ok_or_else(|| ApiError::new(StatusCode::NOT_IMPLEMENTED, "no_tokenizer", "the model has no tokenizer"))?;
        let fail = |e: &dyn std::fmt::Display| ApiError::invalid(Some("prompt"), e.to_string());
        let prompt = tokenizer.encode(&request.prompt).map_err(|e| fail(&e))?;
        api.backbone.check_tokens(&api.backbone.sequence(), &prompt).map_err(|e| fail(&e))?;
        let options = GenerateOptions {
            max_tokens: request.tokens(),
            sampling: request.sampling(),
            stop_ids: model.hyper.eos_token_ids.clone(),
        };
        Ok(Self { api, prompt, options, place })
    }

    /// Starts the generation; the events end with [`Event::End`].
    fn start(self) -> mpsc::Receiver<Event> {
        // Room for every token, so that a slow client never holds up the one thread that generates.
        let context = self.api.backbone.model().hyper.context_length;
        let (sender, receiver) = mpsc::channel(self.options.max_tokens.min(context) + 1);
        tokio::spawn(async move {
            let Self { api, prompt, options, place } = self;
            let turn = tokio::select! {
                turn = Arc::clone(&api.turns).acquire_owned() => turn,
                () = sender.closed() => return,
                () = api.shutdown.wait() => return,
            };
            // A thread of its own: the forward pass computes between its awaits and must not hold up the network.
            let runtime = tokio::runtime::Handle::current();
            tokio::task::spawn_blocking(move || {
                let _held = (turn, place);
                let run = api.backbone.generate(&prompt, &options, |piece| {
                    let gone = api.shutdown.is_requested() || sender.is_closed();
                    let sent = piece.text.is_empty() || sender.try_send(Event::Text(piece.text.to_owned())).is_ok();
                    if gone || !sent { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                });
                let end = runtime.block_on(async {
                    let done = tokio::select! {
                        biased;
                        () = sender.closed() => return Err(cancelled()),
                        () = api.shutdown.wait() => return Err(cancelled()),
                        done = run => done.map_err(internal)?,
                    };
                    Ok(Outcome {
                        completion_tokens: done.tokens.len(),
                        text: done.text,
                        finish: finish_reason(done.finish).ok_or_else(cancelled)?,
                        prompt_tokens: prompt.len(),
                    })
                });
                let _ = sender.try_send(Event::End(end));
            });
        });
        receiver
    }

    /// The whole text.
    pub async fn finish(self) -> Result<Outcome, ApiError> {
        let mut events = self.start();
        while let Some(event) = events.recv().await {
            if let Event::End(end) = event {
                return end;
            }
        }
        Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "draining", "the server stops: try again"))
    }

    /// Server-sent events, one per piece of text, then `[DONE]`.
    pub fn stream(self) -> Response {
        let model = self.api.backbone.model().name.clone();
        let events = futures_util::stream::unfold((self.start(), false), move |(mut events, ended)| {
            let model = model.clone();
            async move {
                if ended {
                    return None;
                }
                let chunk = |text: &str, finish: Option<&str>| {
                    let choice = json!({"index": 0, "text": text, "finish_reason": finish, "logprobs": null});
                    json!({"object": "text_completion", "model": model, "choices": [choice]})
                };
                let (data, last) = match events.recv().await? {
                    Event::Text(text) => (format!("data: {}\n\n", chunk(&text, None)), false),
                    Event::End(Ok(end)) => (format!("data: {}\n\ndata: [DONE]\n\n", chunk("", Some(end.finish))), true),
                    Event::End(Err(error)) => {
                        let error = json!({"error": {"message": error.message, "code": error.code}});
                        (format!("data: {error}\n\ndata: [DONE]\n\n"), true)
                    }
                };
                Some((Ok::<_, std::convert::Infallible>(Bytes::from(data)), (events, last)))
            }
        });
        let head = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
        (head, Body::from_stream(events)).into_response()
    }
}
