//! The body of `POST /v1/completions`.

use serde_json::Value;

use super::common::{Common, TOP_LOGPROBS_MAX};
use super::fields::{Fields, wrong};
use crate::backbone::api::ApiError;

/// A text to continue, or its tokens.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    /// Text.
    Text(String),
    /// Token ids.
    Tokens(Vec<u32>),
}

/// A text and how to continue it.
#[derive(Debug, Clone, PartialEq)]
pub struct CompletionRequest {
    /// What is continued.
    pub prompt: Prompt,
    /// How.
    pub common: Common,
    /// Whether each token comes with its probability, and with those of so many rivals.
    pub logprobs: Option<usize>,
}

impl CompletionRequest {
    /// Reads and checks a body.
    ///
    /// # Errors
    /// 400 with the field that is wrong.
    pub fn read(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::read(body)?;
        let prompt = prompt(fields.take("prompt"))?;
        let common = Common::take(&mut fields)?;
        let logprobs = fields.integer("logprobs", 0..=TOP_LOGPROBS_MAX)?.map(|n| n as usize);
        fields.finish(None)?;
        Ok(Self { prompt, common, logprobs })
    }
}

fn prompt(value: Option<Value>) -> Result<Prompt, ApiError> {
    let expected = "a text, a list of one text, or a list of token ids";
    match value {
        Some(Value::String(text)) => Ok(Prompt::Text(text)),
        Some(Value::Array(mut items)) => match items.as_mut_slice() {
            [Value::String(text)] => Ok(Prompt::Text(std::mem::take(text))),
            _ => {
                let id = |item: &Value| item.as_u64().and_then(|id| u32::try_from(id).ok());
                let ids = items.iter().map(id).collect::<Option<Vec<u32>>>();
                ids.map(Prompt::Tokens).ok_or_else(|| wrong("prompt", expected, &Value::Array(items)))
            }
        },
        other => Err(wrong("prompt", expected, &other.unwrap_or_default())),
    }
}
