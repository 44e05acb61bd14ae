//! Real processes: a worker killed in the middle of its download, and backbones: one that must not hold what it lends,
//! one that computes no experts itself, one that decides itself what it lends.

use std::path::Path;
use std::time::{Duration, Instant};

use kvasir::model::BlockType;
use serde_json::{Value, json};

use crate::support::fleet::{Fleet, client, fleet, fleet_with};
use crate::support::joined::worker_args;
use crate::support::line::{Line, Nature};
use crate::support::one_layer::OneLayer;
use crate::support::process::{Process, kvasir};

const PROMPT: &str = "Once upon a time";
const TOKENS: usize = 12;
/// How often a worker is killed in one download.
const KILLS: u64 = 10;

/// Asks for a greedy completion: status, `Retry-After` and body.
async fn ask(client: &reqwest::Client, fleet: &Fleet) -> (u16, Option<String>, Value) {
    ask_by(client, fleet, "any").await
}

async fn ask_by(client: &reqwest::Client, fleet: &Fleet, route: &str) -> (u16, Option<String>, Value) {
    let body = json!({"prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, "route": route});
    let sent = client.post(format!("{}/v1/completions", fleet.api)).body(body.to_string()).send().await;
    let answer = sent.expect("an answer");
    let retry = answer.headers().get("retry-after").map(|v| v.to_str().expect("text").to_owned());
    let status = answer.status().as_u16();
    (status, retry, serde_json::from_str(&answer.text().await.expect("a body")).expect("JSON"))
}

fn text(body: &Value) -> &str {
    body["choices"][0]["text"].as_str().expect("text")
}

fn local_text(dir: &Path, model: &[&str]) -> String {
    let tokens = TOKENS.to_string();
    let args = [&["generate", "--prompt", PROMPT, "--tokens", &tokens, "--json"], model].concat();
    let output = kvasir(dir, &args).output().expect("generate runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let document: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    document["text"].as_str().expect("text").to_owned()
}

/// Bytes of a process in memory, mapped pages included.
#[cfg(target_os = "linux")]
fn resident(process: &Process) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_process_killed_at_ten_places_of_its_download_goes_on_with_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let expected = local_text(dir.path(), &[]);
    let fleet = fleet(dir.path());
    let gateway = format!("127.0.0.1:{}", fleet.public.rsplit_once(':').expect("a port").1);
    let nature = Nature { bits_per_s: 30e6, delay: Duration::from_millis(1) };
    let line = Line::to(gateway.parse().expect("an address"), nature).await;
    let gateway = format!("wss://localhost:{}", line.addr.port());
    let args = worker_args(&fleet, &gateway, "worker");
    for kill in 1..=KILLS {
        let kill_at = kill * 300_000;
        let mut worker = Process::start(dir.path(), &args);
        let start = Instant::now();
        while line.bytes() < kill_at {
            assert!(start.elapsed() < Duration::from_secs(30), "{} bytes", line.bytes());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        worker.kill();
    }
    let mut worker = Process::start(dir.path(), &args);
    worker.after("serving ");
    let model = kvasir::model::embedded().expect("a model");
    let all: usize = model.weights.layers.iter().flat_map(|l| &l.experts).map(|e| e.to_bytes().len()).sum();
    let fetched = line.bytes();
    // A kill loses what was on its way.
    assert!(fetched < all as u64 + all as u64 / 10 + KILLS * 200_000, "{fetched} bytes for {all} of experts");
    let client = client(&dir.path().join("kvasir-state/gateway/trial-ca.pem"));
    let (status, _, body) = ask(&client, &fleet).await;
    assert_eq!((status, text(&body)), (200, expected.as_str()));
    assert_eq!(worker.terminate().code(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_local_experts_the_last_workers_death_is_a_503_until_one_is_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let expected = local_text(dir.path(), &[]);
    let fleet = fleet_with(dir.path(), "", &["--experts-local", "none"]);
    let client = client(&dir.path().join("kvasir-state/gateway/trial-ca.pem"));
    let gateway = format!("wss://{}", fleet.public);
    let args = worker_args(&fleet, &gateway, "worker");
    let (status, _, body) = ask_by(&client, &fleet, "local").await;
    assert_eq!((status, body["error"]["code"].as_str()), (400, Some("route_not_served")), "{body}");
    for _ in 0..2 {
        let (status, retry, body) = ask(&client, &fleet).await;
        assert_eq!((status, body["error"]["code"].as_str()), (503, Some("no_holder")), "{body}");
        assert!(retry.is_some_and(|seconds| seconds.parse::<u32>().is_ok_and(|s| s > 0)));
        let mut worker = Process::start(dir.path(), &args);
        worker.after("serving ");
        // The worker knows it first, the backbone's routes follow.
        let back = Instant::now();
        let body = loop {
            match ask(&client, &fleet).await {
                (200, _, body) => break body,
                (status, _, body) => assert_eq!(status, 503, "{body}"),
            }
            assert!(back.elapsed() < Duration::from_secs(20), "the worker is not used");
        };
        assert_eq!(text(&body), expected);
        worker.kill();
        let gone = Instant::now();
        while fleet.sessions().await > 0 {
            assert!(gone.elapsed() < Duration::from_secs(20), "the hub does not notice");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backbone_does_not_hold_the_experts_that_it_lends_nor_reads_them_all_again() {
    const CACHE: u64 = 8 << 20;
    let dir = tempfile::tempdir().expect("a directory");
    let sizes =
        OneLayer { hidden: 1024, intermediate: 512, experts: 128, experts_per_token: 8, experts_type: BlockType::Q8_0 };
    std::fs::write(dir.path().join("model.gguf"), sizes.gguf()).expect("written");
    let experts = 128 * 3 * 1024 * 512 / 32 * 34;
    let expected = local_text(dir.path(), &["--model", "model.gguf"]);

    let flags = ["--model", "model.gguf", "--expert-cache", "8MiB"];
    let fleet = fleet_with(dir.path(), "", &flags);
    assert!(dir.path().join("model.gguf.kvasir-manifest").exists(), "the next start hashes nothing");
    let start = resident(&fleet.backbone);
    let client = client(&dir.path().join("kvasir-state/gateway/trial-ca.pem"));
    let gateway = format!("wss://{}", fleet.public);
    // One fetches everything, one takes it from the file; then nobody is left.
    let mut fetching = Process::start(dir.path(), &worker_args(&fleet, &gateway, "fetching"));
    fetching.after("serving ");
    let mut owning = Process::start(
        dir.path(),
        &[&worker_args(&fleet, &gateway, "owning")[..], &["--weights", "model.gguf", "--cache-size", "0"]].concat(),
    );
    owning.after("serving ");
    for killed in [Some(&mut fetching), Some(&mut owning), None] {
        let (status, _, body) = ask(&client, &fleet).await;
        assert_eq!((status, text(&body)), (200, expected.as_str()));
        if let Some(worker) = killed {
            worker.kill();
        }
    }
    let grown = resident(&fleet.backbone).saturating_sub(start);
    println!("{start} bytes at the start, {grown} more after serving, lending and computing {experts} of experts");
    assert!(start < experts, "{start} bytes at the start");
    // Beside the cache there is what an allocator keeps for each of a dozen threads: up to 40 MiB, whatever was lent.
    assert!(grown < CACHE + experts / 2, "{grown} bytes more than at the start");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backbone_told_its_memory_keeps_the_layers_that_fit_and_says_what_the_others_cost() {
    let dir = tempfile::tempdir().expect("a directory");
    let expected = local_text(dir.path(), &[]);
    let model = kvasir::model::embedded().expect("a model");
    let layer: usize = model.weights.layers[0].experts.iter().map(|e| e.to_bytes().len()).sum();
    let memory = (2 * layer + layer / 2).to_string();
    let fleet = fleet_with(dir.path(), "", &["--remote-layers", "auto", "--experts-memory", &memory]);
    let client = client(&dir.path().join("kvasir-state/gateway/trial-ca.pem"));
    let status = async || -> Value {
        let answer = client.get(format!("{}/status", fleet.api)).send().await.expect("an answer");
        serde_json::from_str(&answer.text().await.expect("a body")).expect("JSON")
    };
    let before = status().await;
    assert_eq!(before["placement"]["round_trips_per_token"], 0, "nobody is there: {before}");

    let gateway = format!("wss://{}", fleet.public);
    let mut worker = Process::start(dir.path(), &worker_args(&fleet, &gateway, "worker"));
    worker.after("serving ");
    let joined = Instant::now();
    let status = loop {
        let status = status().await;
        if status["placement"]["round_trips_per_token"] == 2 {
            break status;
        }
        assert!(joined.elapsed() < Duration::from_secs(20), "{status}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let away: Vec<_> = status["placement"]["away"].as_array().expect("layers").iter().map(|l| &l["layer"]).collect();
    assert_eq!(away, [2, 3], "of equals the first stay: {status}");
    assert!(status["placement"]["why"].as_str().is_some_and(|why| why.starts_with("2 of 4 layers stay")), "{status}");
    assert!(status["placement"]["round_trip_ms_per_token"].as_f64().is_some_and(|ms| ms > 0.0), "{status}");
    let (code, _, body) = ask(&client, &fleet).await;
    assert_eq!((code, text(&body)), (200, expected.as_str()));
}
