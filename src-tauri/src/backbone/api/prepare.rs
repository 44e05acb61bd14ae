//! From a request that was read to an order that can be run: prompt, tokens, limits.

use std::borrow::Cow;
use std::sync::Arc;

use axum::http::StatusCode;

use super::keys::Client;
use super::request::{ChatRequest, Common, CompletionRequest, Prompt};
use super::speech::Parser;
use super::{Api, ApiError};
use crate::backbone::{ForwardError, GenerateOptions, Order};
use crate::model::{Chat, Tokenizer};

/// New tokens of a completion whose client does not say.
const COMPLETION_TOKENS: usize = 64;
/// New tokens of a chat whose client does not say: a long answer. Their memory is taken at once, so that "all of the
/// context" would leave room for few others.
const CHAT_TOKENS: usize = 4096;

/// A request, ready to run.
pub struct Prepared {
    /// What the scheduler runs.
    pub order: Order,
    /// What tells thoughts and calls from the answer, in a chat.
    pub parser: Option<Parser>,
    /// The rest of what the client asked for.
    pub common: Common,
}

fn tokenizer(api: &Api) -> Result<&Tokenizer, ApiError> {
    let missing = || ApiError::new(StatusCode::NOT_IMPLEMENTED, "no_tokenizer", "the model has no tokenizer");
    api.backbone().model().tokenizer.as_ref().ok_or_else(missing)
}

/// A conversation, through the model's own template.
///
/// # Errors
/// The template's own words, a prompt that is too long, or a field that the model cannot serve.
pub fn chat(api: &Api, client: &Client, request: ChatRequest) -> Result<Prepared, ApiError> {
    let tokenizer = tokenizer(api)?;
    let ChatRequest { messages, tools, schemas, enable_thinking, common, logprobs } = request;
    let chat = Chat { messages: &messages, tools: &tools, add_generation_prompt: true, enable_thinking };
    let refuse = |error: &dyn std::fmt::Display| ApiError::field("messages", error.to_string());
    let prompt = tokenizer.render_chat(&chat).map_err(|error| refuse(&error))?;
    let ids = tokenizer.encode(&prompt).map_err(|error| refuse(&error))?;
    let thinking = prompt.trim_end().ends_with("<think>");
    let order = order(api, client, ("messages", ids), &common, (CHAT_TOKENS, logprobs))?;
    Ok(Prepared { order, parser: Some(Parser::new(schemas, thinking)), common })
}

/// A text to continue.
///
/// # Errors
/// A prompt that is empty or too long, or a field that the model cannot serve.
pub fn completion(api: &Api, client: &Client, request: CompletionRequest) -> Result<Prepared, ApiError> {
    let tokenizer = tokenizer(api)?;
    let CompletionRequest { prompt, common, logprobs } = request;
    let ids = match prompt {
        Prompt::Tokens(ids) => ids,
        Prompt::Text(text) => tokenizer.encode(&text).map_err(|e| ApiError::field("prompt", e.to_string()))?,
    };
    let order = order(api, client, ("prompt", ids), &common, (COMPLETION_TOKENS, logprobs))?;
    Ok(Prepared { order, parser: None, common })
}

fn order(
    api: &Api,
    client: &Client,
    (field, prompt): (&'static str, Vec<u32>),
    common: &Common,
    (tokens, logprobs): (usize, Option<usize>),
) -> Result<Order, ApiError> {
    let model = api.backbone().model();
    api.backbone().check_prompt(&prompt).map_err(|error| {
        let code =
            if matches!(error, ForwardError::Context { .. }) { "context_length_exceeded" } else { "invalid_request" };
        let message = format!("{field}: {error}");
        ApiError { param: Some(Cow::Borrowed(field)), ..ApiError::new(StatusCode::BAD_REQUEST, code, message) }
    })?;
    let vocab = model.weights.embedding.rows;
    if let Some((token, _)) = common.adjustments.bias.iter().find(|(token, _)| *token as usize >= vocab) {
        return Err(ApiError::field("logit_bias", format!("logit_bias: expected tokens below {vocab}, got {token}")));
    }
    let options = GenerateOptions {
        max_tokens: common.max_tokens.unwrap_or(tokens),
        sampling: common.sampling,
        stop_ids: model.hyper.eos_token_ids.clone(),
    };
    let (adjustments, reach) = (common.adjustments.clone(), client.reach(common.reach));
    Ok(Order { prompt, options, adjustments, reach, logprobs })
}

/// Runs `prepare` where it holds up nobody: a long prompt takes a while to be read.
///
/// # Errors
/// Its own.
pub async fn apart<T: Send + 'static>(
    api: &Arc<Api>,
    prepare: impl FnOnce(&Api) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let turn = Arc::clone(&api.readers).acquire_owned().await.map_err(ApiError::internal)?;
    let api = Arc::clone(api);
    let read = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        prepare(&api)
    });
    read.await.map_err(ApiError::internal)?
}
