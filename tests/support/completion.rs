//! One greedy completion, locally and as a client of the API.

use std::path::Path;

use serde_json::{Value, json};

use super::process::kvasir;

const PROMPT: &str = "Once upon a time there was a";

/// The text of a local run.
pub fn local_text(dir: &Path, tokens: usize) -> String {
    let args = ["generate", "--prompt", PROMPT, "--tokens", &tokens.to_string(), "--json"];
    let output = kvasir(dir, &args).output().expect("generate runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let document: Value = serde_json::from_slice(&output.stdout).expect("one JSON document on stdout");
    document["text"].as_str().expect("text").to_owned()
}

/// Streams a greedy completion and calls `on_token` after each event; gives the text.
pub async fn stream(client: &reqwest::Client, api: &str, tokens: usize, mut on_token: impl FnMut(usize)) -> String {
    let body = json!({"prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "stream": true});
    let mut response =
        client.post(format!("{api}/v1/completions")).body(body.to_string()).send().await.expect("an answer");
    assert_eq!(response.status(), 200);
    let (mut text, mut rest, mut events) = (String::new(), Vec::new(), 0);
    while let Some(chunk) = response.chunk().await.expect("the stream goes on") {
        rest.extend_from_slice(&chunk);
        while let Some(end) = rest.windows(2).position(|w| w == b"\n\n") {
            let event: Vec<u8> = rest.drain(..end + 2).collect();
            let data = String::from_utf8(event).expect("UTF-8").trim().trim_start_matches("data: ").to_owned();
            if data == "[DONE]" {
                continue;
            }
            let event: Value = serde_json::from_str(&data).expect("JSON events");
            text.push_str(event["choices"][0]["text"].as_str().expect("text"));
            events += 1;
            on_token(events);
        }
    }
    text
}
