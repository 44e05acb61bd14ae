//! The served program as others meet it: OpenAI's own client, curl, and two minutes of a crowd.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::process::{Process, kvasir};

/// A backbone of its own, and its address.
fn backbone(dir: &Path) -> (Process, String) {
    let args = ["--headless", "backbone", "--listen", "127.0.0.1:0", "--api", "127.0.0.1:0"];
    let mut backbone = Process::start(dir, &args);
    let url = backbone.after("completions on ");
    (backbone, url)
}

#[test]
fn the_official_python_client_works() {
    let Some(python) = std::env::var_os("KVASIR_TEST_PYTHON") else {
        eprintln!("skipped: KVASIR_TEST_PYTHON names no Python with the openai package (tests/run makes one)");
        return;
    };
    let dir = tempfile::tempdir().expect("a directory");
    let (backbone, url) = backbone(dir.path());
    let script = crate::support::data("openai_client.py");
    let output = Command::new(python).arg(script).arg(url).output().expect("Python runs");
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", said(&output.stdout), said(&output.stderr));
    assert_eq!(backbone.terminate().code(), Some(0));
}

#[test]
fn curl_streams_a_chat() {
    let dir = tempfile::tempdir().expect("a directory");
    let (_backbone, url) = backbone(dir.path());
    let body =
        json!({"messages": [{"role": "user", "content": "Tell me of the king."}], "max_tokens": 8, "stream": true});
    let curl =
        Command::new("curl").args(["-sN", &format!("{url}/v1/chat/completions"), "-d", &body.to_string()]).output();
    let Ok(output) = curl else {
        eprintln!("skipped: no curl on this machine");
        return;
    };
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(text.starts_with("data: {") && text.ends_with("data: [DONE]\n\n"), "{text}");
    assert!(text.matches("chat.completion.chunk").count() > 4, "{text}");
}

/// Seconds of the crowd; `KVASIR_SOAK_SECONDS=120` is the long run.
const SOAK_SECONDS: u64 = 15;
/// Streams at any time.
const CROWD: usize = 64;

/// Bytes resident and processor time of a process.
#[cfg(target_os = "linux")]
fn looked_at(id: u32) -> (u64, Duration) {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{id}/{name}")).expect("the process runs");
    let pages: u64 = read("statm").split(' ').nth(1).and_then(|n| n.parse().ok()).expect("pages");
    let stat = read("stat");
    let after_name: Vec<&str> = stat.rsplit_once(") ").expect("a name").1.split(' ').collect();
    let ticks: u64 = [11, 12].iter().map(|i| after_name[*i].parse::<u64>().expect("ticks")).sum();
    (pages * 4096, Duration::from_millis(ticks * 10))
}

/// One request of the crowd: prompts and answers of mixed lengths.
fn asked(i: usize) -> Value {
    let prompt: Vec<usize> = (0..1 + i * 37 % 600).map(|t| (t * 7919 + i % 7) % 4000).collect();
    json!({"prompt": prompt, "max_tokens": 1 + i * 13 % 60, "temperature": 0.8, "seed": i, "stream": i.is_multiple_of(2)})
}

/// The text of an answer, whole or streamed.
async fn text(client: &reqwest::Client, url: &str, body: &Value) -> String {
    let answer = client.post(format!("{url}/v1/completions")).body(body.to_string()).send().await.expect("an answer");
    let (status, answer) = (answer.status(), answer.text().await.expect("all of it"));
    assert_eq!(status, 200, "{answer}");
    let of = |json: &str| -> String {
        let object: Value = serde_json::from_str(json).expect("JSON");
        object["choices"][0]["text"].as_str().unwrap_or_else(|| panic!("no text in {object}")).to_owned()
    };
    if body["stream"] == true {
        assert!(answer.ends_with("data: [DONE]\n\n"), "{answer}");
        return answer
            .split("\n\n")
            .filter_map(|e| e.strip_prefix("data: "))
            .filter(|e| *e != "[DONE]")
            .map(of)
            .collect();
    }
    of(&answer)
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_leaves_nothing_behind_and_every_text_is_the_oracles() {
    let seconds = std::env::var("KVASIR_SOAK_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(SOAK_SECONDS);
    let dir = tempfile::tempdir().expect("a directory");
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::new();
    let (process, url) = backbone(dir.path());

    // The oracle: each request alone.
    let kinds = 24;
    let mut oracle = Vec::new();
    for i in 0..kinds {
        oracle.push(text(&client, &url, &asked(i)).await);
    }
    let crowd = async |seconds: u64| {
        let end = Instant::now() + Duration::from_secs(seconds);
        let one = async |start: usize| {
            let mut i = start;
            let mut done = 0;
            while Instant::now() < end {
                assert_eq!(text(&client, &url, &asked(i % kinds)).await, oracle[i % kinds], "request {}", i % kinds);
                (i, done) = (i + 1, done + 1);
            }
            done
        };
        futures_util::future::join_all((0..CROWD).map(one)).await.into_iter().sum::<usize>()
    };
    // Buffers find their size in the first part.
    let first = crowd(seconds.div_ceil(3)).await;
    let (before, _) = looked_at(process.id());
    let second = crowd(seconds - seconds.div_ceil(3)).await;
    let (after, busy) = looked_at(process.id());
    eprintln!("{first} + {second} streams, {CROWD} at a time; resident {before} then {after} bytes");
    assert!(first + second > CROWD, "the crowd was served");
    assert!(after < before + before / 5 + (8 << 20), "resident memory grew from {before} to {after} bytes");

    // Idle: less than 1 % of a core, once the last answers are out.
    let idle = Duration::from_secs(2);
    let start = Instant::now();
    tokio::time::sleep(idle).await;
    let used = looked_at(process.id()).1 - busy;
    eprintln!("idle: {used:?} of processor time in {:?}", start.elapsed());
    assert!(used <= Duration::from_millis(20), "idle, it used {used:?} in {idle:?}");
    assert_eq!(process.terminate().code(), Some(0));
}

#[test]
fn bench_measures_batches() {
    let dir = tempfile::tempdir().expect("a directory");
    for phase in ["decode", "prefill"] {
        let args = ["bench", phase, "--batch", "1,4", "--tokens", "12", "--json"];
        let output = kvasir(dir.path(), &args).output().expect("bench runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let found: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
        assert_eq!((&found["phase"], found["batches"].as_array().map(Vec::len)), (&json!(phase), Some(2)));
        assert!(found["batches"][1]["tok_per_s"].as_f64() > Some(0.0), "{found}");
    }
}

#[test]
fn bench_measures_steps_through_a_worker_of_another_process() {
    let dir = tempfile::tempdir().expect("a directory");
    let rows = ["bench", "dispatch", "--rows", "1,8", "--rtt", "0", "--layers", "2", "--seconds", "0", "--json"];
    let outside = ["--outside", "1", "--listen", "127.0.0.1:0", "--invitation", "invitation.txt"];
    let mut command = kvasir(dir.path(), &[&rows[..], &outside].concat());
    let bench = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("bench runs");
    let invitation = dir.path().join("invitation.txt");
    let start = Instant::now();
    while !invitation.exists() {
        assert!(start.elapsed() < Duration::from_secs(60), "no invitation");
        std::thread::sleep(Duration::from_millis(10));
    }
    let worker = ["--headless", "worker", "--join", "invitation.txt", "--state", "worker", "--device", "cpu"];
    let _worker = Process::start(dir.path(), &worker);
    let output = bench.wait_with_output().expect("bench ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    assert_eq!((&found["workers"], found["cells"].as_array().map(Vec::len)), (&json!(1), Some(2)));
    assert!(found["cells"][1]["assignments_remote"].as_u64() > Some(0), "{found}");
}

#[test]
fn bench_measures_steps_through_the_network() {
    let dir = tempfile::tempdir().expect("a directory");
    let args = ["bench", "dispatch", "--rows", "1,32", "--rtt", "0,13", "--layers", "1,4", "--seconds", "0", "--json"];
    let output = kvasir(dir.path(), &args).output().expect("bench runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    let number = |cell: &Value, name: &str| cell[name].as_f64().expect("a number");
    let cells = found["cells"].as_array().expect("cells");
    assert_eq!(cells.len(), 8);
    for cell in cells {
        let per_pass = number(cell, "rows") * number(cell, "layers") * number(&found, "experts_per_row");
        assert_eq!(number(cell, "assignments_remote"), number(cell, "passes") * per_pass, "{cell}");
        assert!(number(cell, "p50_ms") >= number(cell, "rtt_ms") * number(cell, "layers"), "{cell}");
        assert!(number(cell, "wire_bytes_per_row") > 0.0, "{cell}");
    }
    let output = kvasir(dir.path(), &["bench", "dispatch", "--layers", "5"]).output().expect("bench runs");
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("expected at most 4 layers"));
}
