//! GGUF metadata → the model's tokenizer.

use super::hyper::Metadata;
use super::value::{Array, Value};
use crate::model::ModelError;
use crate::model::tokenizer::{Split, Tokenizer, Vocabulary};

const TOKENS: &str = "tokenizer.ggml.tokens";
const KINDS: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";

/// Builds the tokenizer; `None` when the file has no vocabulary.
pub(super) fn tokenizer(metadata: &Metadata, vocab_size: usize) -> Result<Option<Tokenizer>, ModelError> {
    let Some(tokens) = texts(metadata, TOKENS)? else { return Ok(None) };
    let is = |key: &str, expected: &str| match metadata.text(key)? {
        Some(got) if got == expected => Ok(()),
        got => Err(ModelError::field(metadata.file, key, format!("{expected:?}"), format!("{got:?}"))),
    };
    is("tokenizer.ggml.model", "gpt2")?;
    let split = metadata.text("tokenizer.ggml.pre")?;
    let Some(split) = split.and_then(Split::from_name) else {
        return Err(ModelError::field(metadata.file, "tokenizer.ggml.pre", "qwen35 or qwen2", format!("{split:?}")));
    };
    if let Some(Value::Bool(true)) = metadata.get("tokenizer.ggml.add_bos_token") {
        return Err(ModelError::field(metadata.file, "tokenizer.ggml.add_bos_token", "false", true));
    }
    if tokens.len() != vocab_size {
        let expected = format!("{vocab_size} tokens, one per embedding row");
        return Err(ModelError::field(metadata.file, TOKENS, expected, tokens.len()));
    }
    let vocabulary = Vocabulary {
        kinds: kinds(metadata, tokens.len())?,
        tokens,
        merges: texts(metadata, MERGES)?.unwrap_or_default(),
        split,
    };
    let template = metadata.text("tokenizer.chat_template")?;
    let tokenizer = Tokenizer::from_vocabulary(vocabulary, vocab_size, template);
    tokenizer.map(Some).map_err(|source| ModelError::Tokenizer { file: metadata.file.into(), source })
}

fn array<'a>(metadata: &Metadata<'a, '_>, key: &str, expected: &str) -> Result<Option<Array<'a>>, ModelError> {
    metadata.optional(key, expected, |value| if let Value::Array(array) = value { Some(*array) } else { None })
}

fn texts<'a>(metadata: &Metadata<'a, '_>, key: &str) -> Result<Option<Vec<&'a str>>, ModelError> {
    let Some(array) = array(metadata, key, "an array of texts")? else { return Ok(None) };
    match array.texts() {
        Some(texts) => Ok(Some(texts.collect())),
        None => Err(ModelError::field(metadata.file, key, "an array of texts", "an array of numbers")),
    }
}

fn kinds(metadata: &Metadata, count: usize) -> Result<Vec<i64>, ModelError> {
    let expected = format!("{count} numbers, one per token");
    let Some(array) = array(metadata, KINDS, &expected)? else { return Ok(Vec::new()) };
    let kinds: Vec<i64> = array.scalars().filter_map(|kind| kind.size().and_then(|n| i64::try_from(n).ok())).collect();
    if kinds.len() == count {
        return Ok(kinds);
    }
    Err(ModelError::field(metadata.file, KINDS, expected, kinds.len()))
}
