//! `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja` → the model's tokenizer and its end token.

use serde_json::Value;

use super::{Checkpoint, parse};
use crate::model::ModelError;
use crate::model::tokenizer::{Tokenizer, TokenizerError};

const CONFIG: &str = "tokenizer_config.json";
const VOCABULARY: &str = "tokenizer.json";
const TEMPLATE: &str = "chat_template.jinja";

/// What the small files say about words.
pub(super) struct Words {
    template: Option<String>,
    /// The id of the configuration's `eos_token`, if it is an added token.
    pub end_token: Option<u32>,
}

impl Words {
    /// Reads template and end token; the vocabulary itself is built later, by [`Words::tokenizer`].
    pub fn read(files: &Checkpoint) -> Result<Self, ModelError> {
        let config: Value = match &files.tokenizer_config {
            Some(bytes) => parse(CONFIG, bytes)?,
            None => Value::Null,
        };
        let template = match &files.chat_template {
            Some(bytes) => {
                let text = std::str::from_utf8(bytes);
                Some(text.map_err(|e| ModelError::field(TEMPLATE, "text", "UTF-8", e))?.to_owned())
            }
            None => template(&config),
        };
        let end_token = content(config.get("eos_token")).and_then(|text| files.added_token(text).transpose());
        Ok(Self { template, end_token: end_token.transpose()? })
    }

    /// Builds the tokenizer; `None` when the checkpoint has no vocabulary.
    pub fn tokenizer(&self, files: &Checkpoint, vocab_size: usize) -> Result<Option<Tokenizer>, ModelError> {
        let Some(json) = &files.tokenizer else { return Ok(None) };
        let fail = |source: TokenizerError| ModelError::Tokenizer { file: VOCABULARY.into(), source };
        Tokenizer::from_json(json, vocab_size, self.template.as_deref()).map(Some).map_err(fail)
    }
}

impl Checkpoint {
    /// The id of an added token of `tokenizer.json`.
    fn added_token(&self, text: &str) -> Result<Option<u32>, ModelError> {
        #[derive(serde::Deserialize)]
        struct Added {
            id: u32,
            content: String,
        }
        #[derive(serde::Deserialize)]
        struct File {
            #[serde(default)]
            added_tokens: Vec<Added>,
        }
        let Some(json) = &self.tokenizer else { return Ok(None) };
        let file: File = parse(VOCABULARY, json)?;
        Ok(file.added_tokens.into_iter().find(|token| token.content == text).map(|token| token.id))
    }
}

/// A token is written as its text or as an object with it.
fn content(token: Option<&Value>) -> Option<&str> {
    let token = token?;
    token.as_str().or_else(|| token.get("content")?.as_str())
}

/// One template, or a list of named ones of which `default` is meant.
fn template(config: &Value) -> Option<String> {
    let templates = config.get("chat_template")?;
    let named = |list: &Vec<Value>| {
        let default = list.iter().find(|one| one.get("name").is_some_and(|name| name == "default"));
        default.and_then(|one| one.get("template")?.as_str()).map(str::to_owned)
    };
    templates.as_str().map(str::to_owned).or_else(|| named(templates.as_array()?))
}
