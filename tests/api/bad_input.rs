//! Requests that cannot be served, and clients that take nothing: each is told why, nobody else notices.

use std::sync::Arc;

use kvasir::backbone::api::ApiConfig;
use kvasir::backbone::{Backbone, SchedulerConfig};
use kvasir::dispatch::Mode;
use kvasir::model::Tokenizer;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use super::{client, completion, serve, server};
use crate::support::{data, local};

const CHAT: &str = "/v1/chat/completions";

fn chat(content: &str) -> Value {
    json!({"messages": [{"role": "user", "content": content}], "max_tokens": 2, "temperature": 0})
}

fn error(answer: &str) -> Value {
    let body: Value = serde_json::from_str(answer).unwrap();
    let error = body["error"].clone();
    assert!(error["message"].is_string() && error["type"].is_string() && error["code"].is_string(), "{error}");
    error
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_beyond_the_context_is_refused_with_both_numbers() {
    let server = server().await;
    for (path, field, body) in [
        (CHAT, "messages", chat(&"word ".repeat(5000))),
        ("/v1/completions", "prompt", json!({"prompt": vec![7; 2049]})),
    ] {
        let (status, _, answer) = server.post(path, &body).await;
        let error = error(&answer);
        assert_eq!((status, &error["param"], &error["code"]), (400, &json!(field), &json!("context_length_exceeded")));
        let numbers = error["message"].as_str().unwrap();
        assert!(numbers.contains("at most 2048 tokens") && numbers.contains("got "), "{numbers}");
    }
    // Millions of bytes are no work: how long the longest token is tells enough.
    for (path, field, body) in [
        (CHAT, "messages", chat(&"word ".repeat(1 << 20))),
        ("/v1/completions", "prompt", json!({"prompt": "word ".repeat(1 << 20)})),
    ] {
        let error = error(&server.post(path, &body).await.2);
        assert_eq!((&error["param"], &error["code"]), (&json!(field), &json!("context_length_exceeded")));
        let numbers = error["message"].as_str().unwrap();
        assert!(numbers.contains("at most 2048 tokens, got 524") && numbers.contains("bytes"), "{numbers}");
    }
    let error = error(&server.post("/v1/completions", &json!({"prompt": ""})).await.2);
    assert_eq!(error["param"], "prompt");
    // As many as there are is no mistake.
    let most = json!({"prompt": vec![7; 2046], "max_tokens": u64::MAX, "logit_bias": {"4093": -100, "4095": -100}});
    let answer = server.json("/v1/completions", &most).await;
    assert_eq!(
        (&answer["usage"]["completion_tokens"], &answer["choices"][0]["finish_reason"]),
        (&json!(3), &json!("length"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn one_request_has_only_so_many_new_tokens() {
    let server = serve(super::backbone(), ApiConfig { new_tokens_max: 5, ..ApiConfig::default() }).await;
    let body = json!({"prompt": "Once", "max_tokens": u64::MAX, "logit_bias": {"4093": -100, "4095": -100}});
    let answer = server.json("/v1/completions", &body).await;
    assert_eq!(
        (&answer["usage"]["completion_tokens"], &answer["choices"][0]["finish_reason"]),
        (&json!(5), &json!("length"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_whose_name_is_no_text_is_an_unknown_one() {
    let server = server().await;
    for name in ["%ff", "other"] {
        let answer = client().get(server.url(&format!("/v1/models/{name}"))).send().await.unwrap();
        assert_eq!(answer.status(), 404);
        assert_eq!(error(&answer.text().await.unwrap())["code"], "model_not_found");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_no_request_are_told_what_they_lack() {
    let server = server().await;
    let deep = "[".repeat(100_000);
    let bodies: [(&[u8], u16); 7] = [
        (b"", 400),
        (b"{", 400),
        (b"\xff\xfe", 400),
        (b"{\"prompt\": \"\xc3\x28\"}", 400),
        (deep.as_bytes(), 400),
        (b"{\"messages\": []}", 400),
        (&[b' '; (8 << 20) + 1], 413),
    ];
    for (body, expected) in bodies {
        let answer = client().post(server.url(CHAT)).body(body.to_vec()).send().await.unwrap();
        let status = answer.status().as_u16();
        let answer = answer.text().await.unwrap();
        assert_eq!(status, expected, "{answer}");
        error(&answer);
    }
    let unknown = json!({"prompt": "a", "logit_bias": {"4096": 1}});
    assert_eq!(error(&server.post("/v1/completions", &unknown).await.2)["param"], "logit_bias");
    assert_eq!(server.json(CHAT, &chat("still there?")).await["usage"]["completion_tokens"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_refuses_in_its_own_words() {
    let template = "{% if messages[0].role == 'tool' %}{{ raise_exception('A tool cannot begin.') }}{% endif %}\
        {{ messages[0].content }}{% if tools %}{{ tools | tojson }}{% endif %}<think>\n";
    let mut model = kvasir::model::embedded().unwrap();
    let words = std::fs::read(data("kvasir-tiny/tokenizer.json")).unwrap();
    model.tokenizer = Some(Tokenizer::from_json(&words, model.hyper.vocab_size, Some(template)).unwrap());
    let model = Arc::new(model);
    let backbone = Backbone::new(model.clone(), Arc::new(local(&model, Mode::Exact))).unwrap();
    let server = serve(Arc::new(backbone), ApiConfig::default()).await;
    let wrong = json!({"messages": [{"role": "tool", "content": "3"}]});
    let (status, _, answer) = server.post(CHAT, &wrong).await;
    let error = error(&answer);
    assert_eq!((status, &error["param"]), (400, &json!("messages")));
    assert!(error["message"].as_str().unwrap().contains("A tool cannot begin."), "{error}");
    // This template opens the thoughts: all that the model says belongs to them.
    let message = server.json(CHAT, &chat("Hello")).await["choices"][0]["message"].clone();
    assert!(message["reasoning_content"].is_string() && message["content"] == "", "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_takes_more_memory_than_there_is_is_refused() {
    let scheduler = SchedulerConfig { state_bytes: 2 << 20, ..SchedulerConfig::default() };
    let server = serve(super::backbone(), ApiConfig { scheduler, ..ApiConfig::default() }).await;
    assert_eq!(server.json(CHAT, &chat("Hello")).await["usage"]["completion_tokens"], 2);
    let body = json!({"prompt": "Hello", "max_tokens": 2000});
    let (status, headers, answer) = server.post("/v1/completions", &body).await;
    let error = error(&answer);
    assert_eq!((status, &error["code"]), (429, &json!("state_memory")));
    // It never fits, so that later is no better.
    assert!(!headers.contains_key("retry-after") && error["message"].as_str().unwrap().contains("--state-memory"));
}

#[tokio::test(flavor = "multi_thread")]
async fn hundreds_of_slow_readers_hold_up_nobody() {
    let server = server().await;
    let body = json!({"prompt": "Once", "max_tokens": 40, "stream": true, "temperature": 1}).to_string();
    let mut slow = Vec::new();
    for _ in 0..300 {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", server.port)).await.unwrap();
        stream.write_all(completion("localhost", &body).as_bytes()).await.unwrap();
        slow.push(stream);
    }
    let answer = server.json(CHAT, &chat("Hello")).await;
    assert_eq!(answer["usage"]["completion_tokens"], 2);
    drop(slow);
    assert_eq!(server.json(CHAT, &chat("Hello")).await["choices"], answer["choices"]);
}
