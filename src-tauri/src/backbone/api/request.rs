//! What a client may ask for, and how it is told that it asked for something else.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;

use crate::backbone::Sampling;

/// Longest prompt text; far above any context window that fits this machine.
const PROMPT_BYTES_MAX: usize = 1 << 20;
/// Tokens generated when the client does not say.
const MAX_TOKENS_DEFAULT: u32 = 64;

/// Body of `POST /v1/completions`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompletionRequest {
    /// Model name; anything is served by the one model that is loaded.
    #[serde(default)]
    pub model: Option<String>,
    /// Text to continue.
    pub prompt: String,
    /// Most tokens to generate.
    #[serde(default)]
    pub max_tokens: Option<u32>,
    /// 0 = greedy; absent, like the next two, = [`Sampling::PEOPLE`].
    #[serde(default)]
    pub temperature: Option<f32>,
    /// Probability mass that is sampled from.
    #[serde(default)]
    pub top_p: Option<f32>,
    /// Most likely tokens that are sampled from.
    #[serde(default)]
    pub top_k: Option<u32>,
    /// Seed of the sampler; absent = a random one.
    #[serde(default)]
    pub seed: Option<u64>,
    /// Whether to answer with server-sent events.
    #[serde(default)]
    pub stream: bool,
}

/// A refusal in the API's error shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// Stable code.
    pub code: &'static str,
    /// For people.
    pub message: String,
    /// The field that is wrong.
    pub param: Option<&'static str>,
}

impl ApiError {
    /// A request that cannot be served as it is.
    #[must_use]
    pub fn invalid(param: Option<&'static str>, message: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, code: "invalid_request", message: message.into(), param }
    }

    /// Another reason.
    #[must_use]
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), param: None }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let kind = if self.status.is_client_error() { "invalid_request_error" } else { "server_error" };
        let body = json!({"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}});
        (self.status, axum::Json(body)).into_response()
    }
}

impl CompletionRequest {
    /// Reads and checks a body.
    ///
    /// # Errors
    /// 400 with the field that is wrong.
    pub fn read(body: &[u8]) -> Result<Self, ApiError> {
        let request: Self = serde_json::from_slice(body).map_err(|e| ApiError::invalid(None, e.to_string()))?;
        request.check()?;
        Ok(request)
    }

    fn check(&self) -> Result<(), ApiError> {
        let range = |param, ok: bool, expected: &str, got: String| {
            if ok { Ok(()) } else { Err(ApiError::invalid(Some(param), format!("expected {expected}, got {got}"))) }
        };
        let bytes = self.prompt.len();
        range("prompt", bytes <= PROMPT_BYTES_MAX, "at most 1 MiB of text", format!("{bytes} bytes"))?;
        range("max_tokens", self.max_tokens != Some(0), "at least 1", "0".to_owned())?;
        let temperature = self.temperature.unwrap_or(0.0);
        range("temperature", (0.0..=2.0).contains(&temperature), "0 to 2", temperature.to_string())?;
        let top_p = self.top_p.unwrap_or(1.0);
        range("top_p", top_p > 0.0 && top_p <= 1.0, "more than 0 and at most 1", top_p.to_string())
    }

    /// Most tokens to generate.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.max_tokens.unwrap_or(MAX_TOKENS_DEFAULT) as usize
    }

    /// How tokens are chosen.
    #[must_use]
    pub fn sampling(&self) -> Sampling {
        Sampling {
            temperature: self.temperature.unwrap_or(Sampling::PEOPLE.temperature),
            top_p: self.top_p.unwrap_or(Sampling::PEOPLE.top_p),
            top_k: self.top_k.map_or(Sampling::PEOPLE.top_k, |k| k as usize),
            // Without randomness the same text twice is a better answer than none.
            seed: self.seed.unwrap_or_else(|| getrandom::u64().unwrap_or(0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_field_is_named() {
        let error = |body: &str| CompletionRequest::read(body.as_bytes()).unwrap_err();
        assert_eq!(error(r#"{"prompt":"a","max_tokens":0}"#).param, Some("max_tokens"));
        assert_eq!(error(r#"{"prompt":"a","temperature":3}"#).param, Some("temperature"));
        assert_eq!(error(r#"{"prompt":"a","top_p":0}"#).param, Some("top_p"));
        assert!(error(r#"{"prompt":"a","n":2}"#).message.contains("`n`"));
        assert!(error(r#"{"max_tokens":2}"#).message.contains("prompt"));
        assert!(error("{").message.contains("EOF"));
        assert!(CompletionRequest::read(br#"{"prompt":"a"}"#).is_ok());
    }
}
