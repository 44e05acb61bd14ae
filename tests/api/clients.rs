//! Requests as well-known clients send them, and what an operator looks at.

use serde_json::{Value, json};

use super::{Server, client, server};

const CHAT: &str = "/v1/chat/completions";

/// Bodies as they leave the clients.
fn bodies() -> Vec<(&'static str, Value)> {
    let call = json!({"type": "function", "id": "call_9", "function": {"name": "get_weather",
        "arguments": "{\"city\": \"Oslo\"}"}});
    let tool = json!({"type": "function", "function": {"name": "get_weather", "description": "Weather of a city.",
        "parameters": {"properties": {"city": {"type": "string"}}, "required": ["city"], "type": "object"}}});
    vec![
        (
            "Open WebUI, a chat",
            json!({
                "stream": true, "model": "kvasir-tiny", "messages": [
                    {"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}],
                "max_tokens": 4, "temperature": 0.8, "top_p": 0.9, "frequency_penalty": 0.1, "seed": 42, "stop": ["###"],
                "logit_bias": {"100": -5}, "stream_options": {"include_usage": true},
            }),
        ),
        (
            "Open WebUI, the title of a chat",
            json!({
                "model": "kvasir-tiny", "messages": [{"role": "user", "content": "### Task:\nGenerate a title"}],
                "stream": false, "max_completion_tokens": 4, "metadata": {"task": "title_generation"},
                "user": {"name": "a", "id": "1", "email": "a@host.test", "role": "admin"},
            }),
        ),
        (
            "LangChain, a stream with tools",
            json!({
                "messages": [{"content": "Be brief.", "role": "system"}, {"content": "Weather in Oslo?", "role": "user"}],
                "model": "kvasir-tiny", "max_completion_tokens": 4, "n": 1, "stream": true,
                "stream_options": {"include_usage": true}, "temperature": 0.0, "tools": [tool], "tool_choice": "auto",
                "parallel_tool_calls": false,
            }),
        ),
        (
            "LangChain, after a call",
            json!({
                "messages": [{"content": "Weather in Oslo?", "role": "user"},
                    {"content": null, "role": "assistant", "tool_calls": [call]},
                    {"content": "3 degrees", "role": "tool", "tool_call_id": "call_9"}],
                "model": "kvasir-tiny", "max_completion_tokens": 4, "tools": [tool], "stop": null, "logprobs": null,
            }),
        ),
        (
            "OpenAI's client, text in parts",
            json!({
                "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "model": "kvasir-tiny",
                "max_tokens": 4, "response_format": {"type": "text"}, "store": false,
                "chat_template_kwargs": {"enable_thinking": false},
            }),
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn well_known_clients_are_understood() {
    let server = server().await;
    for (who, body) in bodies() {
        if body["stream"] == true {
            let events = server.events(CHAT, &body).await;
            assert!(events.last().unwrap()["usage"]["completion_tokens"].as_u64().unwrap() > 0, "{who}");
        } else {
            let message = &server.json(CHAT, &body).await["choices"][0]["message"];
            assert!(message["content"].is_string(), "{who}: {message}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn models_health_and_what_is_not_there() {
    let server = server().await;
    let get = async |path: &str| {
        let answer = client().get(server.url(path)).send().await.unwrap();
        (answer.status().as_u16(), serde_json::from_str::<Value>(&answer.text().await.unwrap()).unwrap())
    };
    let (_, models) = get("/v1/models").await;
    assert_eq!((&models["object"], &models["data"][0]["object"]), (&json!("list"), &json!("model")));
    let name = models["data"][0]["id"].as_str().unwrap();
    assert_eq!(get(&format!("/v1/models/{name}")).await.1["id"], name);
    assert_eq!(get("/v1/models/other/one").await.0, 404);
    assert_eq!(get("/healthz").await, (200, json!({"ok": true})));
    assert_eq!(get("/v1/embeddings").await.1["error"]["code"], "not_found");
    assert_eq!(get(CHAT).await.1["error"]["code"], "method");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_metric_is_documented_and_counts() {
    let server = server().await;
    let body = json!({"prompt": [1, 2, 3], "max_tokens": 4, "logit_bias": {"4093": -100, "4095": -100}});
    server.json("/v1/completions", &body).await;
    assert_eq!(server.post("/v1/completions", &json!({})).await.0, 400);
    let count = async |name: &str| server.metric(name).await;
    assert_eq!(count("kvasir_prompt_tokens_total").await, 3.0);
    assert_eq!(count("kvasir_new_tokens_total").await, 4.0);
    assert_eq!(count("kvasir_streams_total{end=\"finished\"}").await, 1.0);
    assert_eq!(count("kvasir_assignments_total{by=\"worker\"}").await, 0.0);
    assert_eq!(count("kvasir_assignments_total{by=\"backbone\"}").await, 16.0 * 6.0);
    assert_eq!(count("kvasir_api_requests_total{path=\"/v1/completions\",status=\"400\"}").await, 1.0);

    let page = client().get(server.url("/metrics")).send().await.unwrap().text().await.unwrap();
    let readme = include_str!("../../README.md");
    for name in page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()) {
        assert!(readme.contains(&format!("`{name}`")), "README says nothing of {name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_ends_its_stream() {
    let server = server().await;
    let body = r#"{"prompt": "Once", "max_tokens": 2000, "stream": true}"#;
    let mut stream = server.send(&super::completion("localhost", body)).await;
    let mut start = [0; 12];
    tokio::io::AsyncReadExt::read_exact(&mut stream, &mut start).await.unwrap();
    drop(stream);
    until(&server, "kvasir_streams_total{end=\"cancelled\"}", 1.0).await;
    until(&server, "kvasir_state_bytes", 0.0).await;
}

/// Waits until a metric has a value.
async fn until(server: &Server, name: &str, value: f64) {
    let start = std::time::Instant::now();
    while server.metric(name).await != value {
        assert!(start.elapsed() < super::PATIENCE, "{name} does not become {value}");
    }
}
