//! `chat.completion` and its chunks.

use serde_json::{Value, json};

use super::{Head, Shape};
use crate::backbone::api::answer::TokenLogprobs;
use crate::backbone::api::speech::Piece;

/// Characters of a call's id after its prefix; clients only compare them.
const CALL_ID_DIGITS: usize = 16;

/// See the module.
pub struct ChatShape {
    head: Head,
    reasoning: String,
    content: String,
    /// Id, name and arguments.
    calls: Vec<(String, String, String)>,
    logprobs: Option<Vec<Value>>,
}

impl ChatShape {
    /// Of nothing yet; `logprobs` when the client asked for them.
    pub fn new(head: Head, logprobs: bool) -> Self {
        let logprobs = logprobs.then(Vec::new);
        Self { head, reasoning: String::new(), content: String::new(), calls: Vec::new(), logprobs }
    }

    fn chunk(&self, delta: Value, logprobs: Value, finish: Option<&str>) -> Value {
        let mut chunk = self.bare();
        chunk["choices"] = json!([{"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}]);
        chunk
    }

    /// The change that a piece is, added to what was said if that is sent whole.
    fn delta(&mut self, piece: Piece) -> Value {
        let kept = !self.head.stream;
        match piece {
            Piece::Reasoning(text) => {
                if kept {
                    self.reasoning.push_str(&text);
                }
                json!({"reasoning_content": text})
            }
            Piece::Content(text) => {
                if kept {
                    self.content.push_str(&text);
                }
                json!({"content": text})
            }
            Piece::Call { index, name } => {
                // Without randomness ids repeat between answers, which no client minds.
                let id = format!("call_{:0width$x}", getrandom::u64().unwrap_or(0), width = CALL_ID_DIGITS);
                let call = json!({"index": index, "id": id, "type": "function",
                    "function": {"name": name, "arguments": ""}});
                if kept {
                    self.calls.push((id, name, String::new()));
                }
                json!({"tool_calls": [call]})
            }
            Piece::Arguments { index, json } => {
                if let Some((_, _, arguments)) = self.calls.get_mut(index) {
                    arguments.push_str(&json);
                }
                json!({"tool_calls": [{"index": index, "function": {"arguments": json}}]})
            }
        }
    }
}

/// A token as OpenAI writes it: its text, as far as it is some, and its bytes.
fn token((bytes, logprob): &(Vec<u8>, f32)) -> Value {
    json!({"token": String::from_utf8_lossy(bytes), "logprob": logprob, "bytes": bytes})
}

impl Shape for ChatShape {
    fn begin(&self) -> Vec<Value> {
        vec![self.chunk(json!({"role": "assistant", "content": ""}), Value::Null, None)]
    }

    fn said(&mut self, pieces: Vec<Piece>, logprobs: Option<TokenLogprobs>) -> Vec<Value> {
        let mut told = logprobs.map(|l| {
            let mut entry = token(&l.chosen);
            entry["top_logprobs"] = l.top.iter().map(token).collect();
            if !self.head.stream {
                self.logprobs.get_or_insert_default().push(entry.clone());
            }
            json!({"content": [entry]})
        });
        let mut deltas: Vec<Value> = pieces.into_iter().map(|piece| self.delta(piece)).collect();
        if deltas.is_empty() && told.is_some() {
            deltas.push(json!({"content": ""}));
        }
        // A token's probability goes with the first thing that the token says.
        deltas.into_iter().map(|delta| self.chunk(delta, told.take().unwrap_or_default(), None)).collect()
    }

    fn end(&self, finish: &str) -> Value {
        self.chunk(json!({}), Value::Null, Some(finish))
    }

    fn bare(&self) -> Value {
        let Head { id, created, model, .. } = &self.head;
        json!({"id": id, "object": "chat.completion.chunk", "created": created, "model": model, "choices": []})
    }

    fn whole(&self, finish: &str) -> Value {
        let Head { id, created, model, .. } = &self.head;
        let mut message = json!({"role": "assistant", "content": self.content, "refusal": null});
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = self.reasoning.as_str().into();
        }
        if !self.calls.is_empty() {
            let call = |(id, name, arguments): &(String, String, String)| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
            message["tool_calls"] = self.calls.iter().map(call).collect();
            if self.content.is_empty() {
                message["content"] = Value::Null;
            }
        }
        let logprobs = self.logprobs.as_ref().map(|content| json!({"content": content, "refusal": null}));
        let choice = json!({"index": 0, "message": message, "logprobs": logprobs, "finish_reason": finish});
        json!({"id": id, "object": "chat.completion", "created": created, "model": model, "choices": [choice]})
    }

    fn head(&self) -> &Head {
        &self.head
    }
}
