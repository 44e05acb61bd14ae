//! How an answer is written down: OpenAI's objects, whole or as server-sent events, and the headers beside them.

mod chat;
mod completion;

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

pub use chat::ChatShape;
pub use completion::CompletionShape;

use super::ApiError;
use super::answer::{Answer, Part, TokenLogprobs};
use super::speech::Piece;
use crate::backbone::Reach;
use crate::backbone::scheduler::Report;

/// Where the request's hidden states could go, and how many assignments went where.
pub const ROUTE_HEADER: &str = "x-kvasir-route";
const SERVER_TIMING: &str = "server-timing";

/// What every object of an answer repeats.
#[derive(Debug, Clone)]
pub struct Head {
    /// Names the answer.
    pub id: String,
    /// Unix seconds.
    pub created: u64,
    /// The model's name.
    pub model: String,
    /// Where the hidden states may go.
    pub reach: Reach,
    /// Whether the answer is sent in parts; then nothing of it is kept.
    pub stream: bool,
    /// Whether a stream ends with the usage.
    pub include_usage: bool,
}

/// One of the two forms.
pub trait Shape: Send + 'static {
    /// Events before the first text.
    fn begin(&self) -> Vec<Value>;
    /// Events of a part; kept for [`Shape::whole`] unless the answer is sent in parts.
    fn said(&mut self, pieces: Vec<Piece>, logprobs: Option<TokenLogprobs>) -> Vec<Value>;
    /// The event that says why the text ends.
    fn end(&self, finish: &str) -> Value;
    /// An event without text, which carries the usage.
    fn bare(&self) -> Value;
    /// All that was said, as one object.
    fn whole(&self, finish: &str) -> Value;
    /// What it repeats.
    fn head(&self) -> &Head;
}

/// The whole answer, once it is complete.
///
/// # Errors
/// What ended it early.
pub async fn whole(mut answer: Answer, mut shape: impl Shape) -> Result<Response, ApiError> {
    let finish = loop {
        match answer.next().await? {
            Part::Started => {}
            Part::Said { pieces, logprobs } => {
                shape.said(pieces, logprobs);
            }
            Part::Ended(finish) => break finish,
        }
    };
    let mut body = shape.whole(finish);
    body["usage"] = usage(&answer);
    Ok((headers(shape.head(), &answer.report), axum::Json(body)).into_response())
}

/// Server-sent events, from the first token on, then `[DONE]`. Errors before it still have their status.
///
/// # Errors
/// What ended the answer before its first token.
pub async fn events(mut answer: Answer, shape: impl Shape) -> Result<Response, ApiError> {
    answer.next().await?;
    let mut response = headers(shape.head(), &answer.report);
    response.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    let begin = lines(shape.begin(), &shape);
    let state = Some((answer, shape));
    let rest = futures_util::stream::unfold(state, |state| async move {
        let (mut answer, mut shape) = state?;
        let (events, goes_on) = match answer.next().await {
            Ok(Part::Started) => (Vec::new(), true),
            Ok(Part::Said { pieces, logprobs }) => (shape.said(pieces, logprobs), true),
            Ok(Part::Ended(finish)) => (last(&shape, finish, &answer), false),
            Err(error) => (vec![error.body()], false),
        };
        let mut text = lines(events, &shape);
        if !goes_on {
            text.push_str("data: [DONE]\n\n");
        }
        Some((Ok::<_, Infallible>(Bytes::from(text)), goes_on.then_some((answer, shape))))
    });
    let first = futures_util::stream::once(async move { Ok(Bytes::from(begin)) });
    Ok((response, Body::from_stream(futures_util::StreamExt::chain(first, rest))).into_response())
}

/// The end, what it took, and the usage for who asked for it.
fn last(shape: &impl Shape, finish: &str, answer: &Answer) -> Vec<Value> {
    let mut end = shape.end(finish);
    let served = answer.report.served;
    let route = route_name(shape.head().reach);
    end["kvasir"] = json!({"route": route, "assignments_remote": served.remote, "assignments_local": served.local});
    if !shape.head().include_usage {
        return vec![end];
    }
    let mut bare = shape.bare();
    bare["usage"] = usage(answer);
    vec![end, bare]
}

fn lines(events: Vec<Value>, shape: &impl Shape) -> String {
    let mut text = String::new();
    for mut event in events {
        if shape.head().include_usage && event.get("usage").is_none() && event.get("error").is_none() {
            event["usage"] = Value::Null;
        }
        text.push_str(&format!("data: {event}\n\n"));
    }
    text
}

fn usage(answer: &Answer) -> Value {
    let (prompt, new) = (answer.prompt_tokens, answer.report.tokens);
    json!({"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new})
}

fn route_name(reach: Reach) -> &'static str {
    match reach {
        Reach::Any => "any",
        Reach::Trusted => "trusted",
        Reach::Local => "local",
    }
}

/// What the answer took so far: of a stream, until its first token.
fn headers(head: &Head, report: &Report) -> HeaderMap {
    let ms = |time: std::time::Duration| format!("{:.3}", time.as_secs_f64() * 1e3);
    let Report { queued, prefill, decode, experts, served, .. } = report;
    let route = format!("{}; remote={}; local={}", route_name(head.reach), served.remote, served.local);
    let timing = format!(
        "queue;dur={}, prefill;dur={}, decode;dur={}, experts;dur={}",
        ms(*queued),
        ms(*prefill),
        ms(*decode),
        ms(*experts)
    );
    let named = [(ROUTE_HEADER, route), (SERVER_TIMING, timing)];
    let header = |(name, value): (&'static str, String)| {
        Some((HeaderName::from_static(name), HeaderValue::try_from(value).ok()?))
    };
    named.into_iter().filter_map(header).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_that_is_sent_whole_is_kept() {
        let logprobs = || Some(TokenLogprobs { chosen: (b"a".to_vec(), -0.5), top: Vec::new() });
        let pieces = || {
            let call = Piece::Call { index: 0, name: "f".to_owned() };
            let arguments = Piece::Arguments { index: 0, json: "{}".to_owned() };
            vec![Piece::Reasoning("hm".to_owned()), Piece::Content("a".to_owned()), call, arguments]
        };
        for stream in [false, true] {
            let model = "m".to_owned();
            let head = Head { id: "1".to_owned(), created: 1, model, reach: Reach::Any, stream, include_usage: false };
            let mut chat = ChatShape::new(head.clone(), true);
            assert_eq!(chat.said(pieces(), logprobs()).len(), 4);
            let choice = chat.whole("stop")["choices"][0].clone();
            let kept = |value: &Value| value.as_array().map_or(0, Vec::len);
            let expected = usize::from(!stream);
            assert_eq!(kept(&choice["logprobs"]["content"]), expected);
            assert_eq!(kept(&choice["message"]["tool_calls"]), expected);
            assert_eq!(choice["message"]["reasoning_content"].is_string(), !stream);
            assert_eq!(choice["message"]["content"] == "a", !stream);
            let mut completion = CompletionShape::new(head, true);
            for _ in 0..2 {
                let events = completion.said(vec![Piece::Content("a".to_owned())], logprobs());
                assert_eq!(events[0]["choices"][0]["text"], "a");
            }
            let choice = completion.whole("stop")["choices"][0].clone();
            assert_eq!((&choice["text"] == "aa", kept(&choice["logprobs"]["tokens"])), (!stream, 2 * expected));
        }
    }
}
