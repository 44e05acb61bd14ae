//! `text_completion`, whole and in parts.

use serde_json::{Map, Value, json};

use super::{Head, Shape};
use crate::backbone::api::answer::TokenLogprobs;
use crate::backbone::api::speech::Piece;

/// See the module.
pub struct CompletionShape {
    head: Head,
    text: String,
    logprobs: Option<Vec<TokenLogprobs>>,
    /// Characters of all tokens before the newest.
    offset: usize,
}

impl CompletionShape {
    /// Of nothing yet; `logprobs` when the client asked for them.
    pub fn new(head: Head, logprobs: bool) -> Self {
        Self { head, text: String::new(), logprobs: logprobs.then(Vec::new), offset: 0 }
    }

    fn object(&self, text: &str, logprobs: Value, finish: Option<&str>) -> Value {
        let mut object = self.bare();
        object["choices"] = json!([{"index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish}]);
        object
    }
}

/// OpenAI's lists of some tokens, the first of which begins at `offset` characters.
fn lists(tokens: &[TokenLogprobs], offset: usize) -> (Value, usize) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut offset = offset;
    let mut offsets = Vec::with_capacity(tokens.len());
    for token in tokens {
        offsets.push(offset);
        offset += text(&token.chosen.0).chars().count();
    }
    let top = |token: &TokenLogprobs| -> Map<String, Value> {
        token.top.iter().map(|(bytes, logprob)| (text(bytes), json!(logprob))).collect()
    };
    let lists = json!({
        "tokens": tokens.iter().map(|token| text(&token.chosen.0)).collect::<Vec<_>>(),
        "token_logprobs": tokens.iter().map(|token| token.chosen.1).collect::<Vec<_>>(),
        "top_logprobs": tokens.iter().map(top).collect::<Vec<_>>(),
        "text_offset": offsets,
    });
    (lists, offset)
}

impl Shape for CompletionShape {
    fn begin(&self) -> Vec<Value> {
        Vec::new()
    }

    fn said(&mut self, pieces: Vec<Piece>, logprobs: Option<TokenLogprobs>) -> Vec<Value> {
        let texts = pieces.into_iter().filter_map(|piece| match piece {
            Piece::Content(text) => Some(text),
            _ => None,
        });
        let text: String = texts.collect();
        if !self.head.stream {
            self.text.push_str(&text);
        }
        let mut told = Value::Null;
        if let Some(token) = logprobs {
            let (lists, offset) = lists(std::slice::from_ref(&token), self.offset);
            (told, self.offset) = (lists, offset);
            if !self.head.stream {
                self.logprobs.get_or_insert_default().push(token);
            }
        }
        if text.is_empty() && told.is_null() { Vec::new() } else { vec![self.object(&text, told, None)] }
    }

    fn end(&self, finish: &str) -> Value {
        self.object("", Value::Null, Some(finish))
    }

    fn bare(&self) -> Value {
        let Head { id, created, model, .. } = &self.head;
        json!({"id": id, "object": "text_completion", "created": created, "model": model, "choices": []})
    }

    fn whole(&self, finish: &str) -> Value {
        let logprobs = self.logprobs.as_ref().map(|tokens| lists(tokens, 0).0);
        self.object(&self.text, logprobs.unwrap_or_default(), Some(finish))
    }

    fn head(&self) -> &Head {
        &self.head
    }
}
