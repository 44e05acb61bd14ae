//! From a request that was read to an order that can be run: prompt, tokens, limits.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

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
/// How many times shorter NFC can make a text: a Hangul syllable of three parts becomes one character.
const NFC_SHRINKS_BY: usize = 3;
/// Longest wait of a prompt for those that are read before it; the longest of them takes seconds.
const TURN_PATIENCE: Duration = Duration::from_secs(30);

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

/// The tokens of `text`. A text that is too long however it is cut is refused before it costs anything.
fn encode(api: &Api, tokenizer: &Tokenizer, field: &'static str, text: &str) -> Result<Vec<u32>, ApiError> {
    let limit = api.backbone().model().hyper.context_length;
    let most = limit.saturating_mul(tokenizer.token_bytes_max()).saturating_mul(NFC_SHRINKS_BY);
    if text.len() > most {
        let message =
            format!("{field}: expected at most {limit} tokens, got {} bytes, which are more in any case", text.len());
        return Err(refused("context_length_exceeded", field, message));
    }
    tokenizer.encode(text).map_err(|error| ApiError::field(field, error.to_string()))
}

fn refused(code: &'static str, field: &'static str, message: String) -> ApiError {
    ApiError { param: Some(Cow::Borrowed(field)), ..ApiError::new(StatusCode::BAD_REQUEST, code, message) }
}

/// A conversation, through the model's own template.
///
/// # Errors
/// The template's own words, a prompt that is too long, or a field that the model cannot serve.
pub fn chat(api: &Api, client: &Client, request: ChatRequest) -> Result<Prepared, ApiError> {
    let tokenizer = tokenizer(api)?;
    let ChatRequest { messages, tools, schemas, enable_thinking, common, logprobs } = request;
    let chat = Chat { messages: &messages, tools: &tools, add_generation_prompt: true, enable_thinking };
    let prompt = tokenizer.render_chat(&chat).map_err(|error| ApiError::field("messages", error.to_string()))?;
    let ids = encode(api, tokenizer, "messages", &prompt)?;
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
        Prompt::Text(text) => encode(api, tokenizer, "prompt", &text)?,
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
        refused(code, field, format!("{field}: {error}"))
    })?;
    let vocab = model.weights.embedding.rows;
    if let Some((token, _)) = common.adjustments.bias.iter().find(|(token, _)| *token as usize >= vocab) {
        return Err(ApiError::field("logit_bias", format!("logit_bias: expected tokens below {vocab}, got {token}")));
    }
    // The last token is given out and not read, so that one more than the context's rest can come.
    let room = model.hyper.context_length.saturating_sub(prompt.len()) + 1;
    let options = GenerateOptions {
        max_tokens: common.max_tokens.unwrap_or(tokens).min(api.config.new_tokens_max).min(room),
        sampling: common.sampling,
        stop_ids: model.hyper.eos_token_ids.clone(),
    };
    let (adjustments, reach) = (common.adjustments.clone(), client.reach(common.reach));
    if !api.backbone().can_keep(reach) {
        let message = "route: expected any or trusted, got local: this server leaves experts to its workers";
        return Err(refused("route_not_served", "route", message.to_owned()));
    }
    Ok(Order { prompt, options, adjustments, reach, logprobs })
}

/// Runs `prepare` where it holds up nobody: a long prompt takes a while to be read.
///
/// # Errors
/// Its own, and 429 when it has no turn for long.
pub async fn apart<T: Send + 'static>(
    api: &Arc<Api>,
    prepare: impl FnOnce(&Api) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let turn = turn(&api.readers, TURN_PATIENCE).await?;
    let api = Arc::clone(api);
    let read = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        prepare(&api)
    });
    read.await.map_err(ApiError::internal)?
}

async fn turn(readers: &Arc<Semaphore>, patience: Duration) -> Result<OwnedSemaphorePermit, ApiError> {
    let message = "other prompts are being read: try again later";
    let busy = |_| ApiError::new(StatusCode::TOO_MANY_REQUESTS, "busy", message);
    timeout(patience, Arc::clone(readers).acquire_owned()).await.map_err(busy)?.map_err(ApiError::internal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_prompt_waits_for_its_turn_only_so_long() {
        let readers = Arc::new(Semaphore::new(1));
        let first = turn(&readers, Duration::ZERO).await.unwrap();
        let late = turn(&readers, Duration::ZERO).await.unwrap_err();
        assert_eq!((late.status, late.code), (StatusCode::TOO_MANY_REQUESTS, "busy"));
        drop(first);
        assert!(turn(&readers, Duration::ZERO).await.is_ok());
    }
}
