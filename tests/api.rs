//! The API towards clients: those who use it as they should, and those who are late, lost or lured.

mod bad_input;
mod chat;
mod clients;
mod keys;
mod routes;

use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use kvasir::backbone::api::{self, ApiConfig};
use kvasir::backbone::{Backbone, GenerateOptions, PREFILL_TOKENS, Sampling, SchedulerConfig};
use kvasir::dispatch::Mode;
use kvasir::shutdown::{self, ShutdownTrigger};
use reqwest::header::HeaderMap;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::support::local;

/// Longer than anything here takes; a test that reaches it has failed.
const PATIENCE: Duration = Duration::from_secs(20);

fn backbone() -> Arc<Backbone> {
    let model = Arc::new(kvasir::model::embedded().unwrap());
    Arc::new(Backbone::new(model.clone(), Arc::new(local(&model, Mode::Exact))).unwrap())
}

/// A client; the tests that need TLS give it more.
fn client() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::new()
}

struct Server {
    port: u16,
    stop: ShutdownTrigger,
    serving: JoinHandle<Result<(), api::keys::KeyError>>,
}

async fn server() -> Server {
    serve(backbone(), ApiConfig::default()).await
}

async fn serve(backbone: Arc<Backbone>, config: ApiConfig) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (stop, shutdown) = shutdown::channel();
    Server { port, stop, serving: tokio::spawn(api::serve(listener, backbone, config, shutdown)) }
}

impl Server {
    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// Status, headers and body of the answer to a JSON body.
    async fn post(&self, path: &str, body: &Value) -> (u16, HeaderMap, String) {
        let answer = client().post(self.url(path)).body(body.to_string()).send().await.unwrap();
        (answer.status().as_u16(), answer.headers().clone(), answer.text().await.unwrap())
    }

    /// The answer to a body that is served.
    async fn json(&self, path: &str, body: &Value) -> Value {
        let (status, _, answer) = self.post(path, body).await;
        assert_eq!(status, 200, "{answer}");
        serde_json::from_str(&answer).unwrap()
    }

    /// The events of a streamed answer; the last must be `[DONE]`.
    async fn events(&self, path: &str, body: &Value) -> Vec<Value> {
        let (status, headers, answer) = self.post(path, body).await;
        assert_eq!(status, 200, "{answer}");
        assert_eq!(headers["content-type"], "text/event-stream");
        let events: Vec<&str> = answer.split_terminator("\n\n").map(|e| e.strip_prefix("data: ").unwrap()).collect();
        let (last, events) = events.split_last().unwrap();
        assert_eq!(*last, "[DONE]");
        events.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }

    /// A number on the page of metrics.
    async fn metric(&self, name: &str) -> f64 {
        let page = client().get(self.url("/metrics")).send().await.unwrap().text().await.unwrap();
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {page}")).parse().unwrap()
    }

    async fn send(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    /// What the server answers before it closes.
    async fn answer(&self, request: &str) -> String {
        let mut answer = Vec::new();
        let _reset = timeout(PATIENCE, self.send(request).await.read_to_end(&mut answer)).await.unwrap();
        String::from_utf8(answer).unwrap()
    }
}

fn completion(host: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}

#[tokio::test]
async fn a_page_that_points_its_name_here_reads_nothing() {
    let server = server().await;
    let body = r#"{"prompt": "Once", "max_tokens": 2}"#;
    for host in ["127.0.0.1", "localhost:8080", "[::1]:8080"] {
        let answer = server.answer(&completion(host, body)).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{host}: {answer}");
    }
    for host in ["rebound.test", "rebound.test:8080", "127.0.0.1.rebound.test", ""] {
        let answer = server.answer(&completion(host, body)).await;
        assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("\"code\":\"host\""), "{host}: {answer}");
    }
    let from_a_page = completion("localhost", body).replace("Host:", "Origin: https://page.test\r\nHost:");
    let answer = server.answer(&from_a_page).await;
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("\"code\":\"origin\""), "{answer}");
    let models = server.answer("GET /v1/models HTTP/1.1\r\nHost: rebound.test\r\nConnection: close\r\n\r\n").await;
    assert!(models.starts_with("HTTP/1.1 403"), "{models}");
}

#[tokio::test]
async fn a_place_is_taken_before_the_body_and_a_stop_waits_for_no_body() {
    let scheduler = SchedulerConfig { streams: 1, waiting: 16, ..SchedulerConfig::default() };
    let server = serve(backbone(), ApiConfig { scheduler, ..ApiConfig::default() }).await;
    let unfinished = completion("localhost", "{ }").replace("{ }", "{");
    let mut late = Vec::new();
    let refused = loop {
        let mut stream = server.send(&unfinished).await;
        let mut answer = [0; 12];
        match timeout(Duration::from_millis(200), stream.read_exact(&mut answer)).await {
            Ok(read) => break read.map(|_| String::from_utf8_lossy(&answer).into_owned()).unwrap(),
            Err(_waiting) => late.push(stream),
        }
        assert!(late.len() < 100, "nobody is refused");
    };
    assert_eq!((refused.as_str(), late.len()), ("HTTP/1.1 429", 17));

    server.stop.fire();
    timeout(PATIENCE, server.serving).await.expect("the stop has a bound").unwrap().unwrap();
}

#[tokio::test]
async fn a_stop_ends_a_text_with_an_error_not_with_half_of_it() {
    let server = server().await;
    let mut stream =
        server.send(&completion("localhost", r#"{"prompt": "Once", "max_tokens": 2000, "stream": true}"#)).await;
    let mut seen = Vec::new();
    while !seen.windows(5).any(|w| w == b"data:") {
        assert!(timeout(PATIENCE, stream.read_buf(&mut seen)).await.unwrap().unwrap() > 0);
    }
    server.stop.fire();
    timeout(PATIENCE, stream.read_to_end(&mut seen)).await.unwrap().unwrap();
    let seen = String::from_utf8(seen).unwrap();
    assert!(seen.contains("\"code\":\"cancelled\"") && !seen.contains("\"finish_reason\":\"cancelled\""), "{seen}");
    timeout(PATIENCE, server.serving).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn a_long_prompt_can_be_left_between_its_passes() {
    let backbone = backbone();
    let prompt: Vec<u32> = (0..PREFILL_TOKENS as u32 + 1).map(|i| i % 4000).collect();
    let options = GenerateOptions { max_tokens: 1, sampling: Sampling::GREEDY, stop_ids: Vec::new() };
    let mut generation = pin!(backbone.generate(&prompt, &options, |_| ControlFlow::Continue(())));
    // Local experts never wait, so the first poll would otherwise be the whole generation.
    assert!(futures_util::poll!(&mut generation).is_pending());
    assert_eq!(generation.await.unwrap().tokens.len(), 1);
}
