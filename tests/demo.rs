//! The whole road in one process: identical tokens, identical bits, exact pay, and what happens when a worker lies.

use std::sync::Arc;
use std::time::Duration;

use kvasir::backbone::Backbone;
use kvasir::demo::decode::Decode;
use kvasir::demo::network::{Network, NetworkOptions};
use kvasir::demo::{self, DemoOptions, Report};
use kvasir::dispatch::TrustConfig;
use kvasir::kernel::{CpuKernel, CpuPath, ExpertCompute};
use kvasir::ledger::{Meter, WalletStatement};
use kvasir::model::{self, BlockType, Data, Model};
use kvasir::worker::Hardware;
use serde_json::Value;

use crate::support::faults::{Fault, Faulty, Gate};
use crate::support::one_layer::OneLayer;
use crate::support::process::kvasir;

/// Nano-KVR per work byte.
const RATE: u64 = 7;
const TOP_K: u64 = 4;
const LAYERS: u64 = 4;
const HIDDEN_BYTES: u64 = 4 * 256;

fn kernel(path: CpuPath) -> Arc<dyn ExpertCompute> {
    Arc::new(CpuKernel::new(path, 1).unwrap())
}

fn on(kernel: impl ExpertCompute + 'static) -> Hardware {
    Hardware::from(Arc::new(kernel) as Arc<dyn ExpertCompute>)
}

fn options(workers: Vec<Hardware>, tokens: usize) -> DemoOptions {
    DemoOptions {
        model: Arc::new(model::embedded().unwrap()),
        prompt: "The wolf said to the".to_owned(),
        tokens,
        compute: kernel(CpuPath::detect().unwrap()),
        workers,
        remote_layers: vec![0, 1, 2, 3],
        one_way: Duration::ZERO,
        chaos: None,
    }
}

/// A worker with a fault.
fn faulty(fault: Fault) -> Faulty {
    Faulty::new(kernel(CpuPath::detect().unwrap()), fault, &model::embedded().unwrap(), &[0, 1, 2, 3])
}

/// Runs the program's demo and gives its JSON document.
fn demo_json(args: &[&str]) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let output = kvasir(dir.path(), &[&["demo", "--json"], args].concat()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON document on stdout and nothing else")
}

/// Asserts what every honest run must show; gives the assignments.
fn assert_honest(report: &Value, layers: u64) -> u64 {
    let number = |path: &str| report.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("{path}"));
    let tokens = number("/new_tokens");
    assert_eq!(number("/tokens_identical"), tokens);
    assert_eq!(number("/tokens_compared"), tokens);
    assert_eq!(report["argmax_match"], true);
    assert_eq!(report["logits_bit_identical"], true);
    assert_eq!(report["local"]["tokens"], report["remote"]["tokens"]);
    assert_eq!(report["local"]["text"], report["remote"]["text"]);
    assert_eq!(number("/remote/assignments_local"), 0, "no fault, no local work in remote layers");
    let rows = number("/prompt_tokens") + tokens - 1;
    let assignments = number("/remote/assignments_remote");
    assert_eq!(assignments, rows * TOP_K * layers);
    assert_eq!(number("/work_bytes"), assignments * HIDDEN_BYTES);
    assert_eq!(number("/credited_nano_kvr"), number("/work_bytes") * RATE);
    let parts = report["workers"].as_array().unwrap().iter().map(|w| w["work_bytes"].as_u64().unwrap());
    assert_eq!(parts.sum::<u64>(), number("/work_bytes"));
    assignments
}

#[test]
fn the_demo_decodes_identically_and_pays_exactly() {
    let report = demo_json(&["--tokens", "8"]);
    assert_honest(&report, LAYERS);
    assert_eq!(report["workers"].as_array().unwrap().len(), 2);
    for field in ["model", "prompt", "units", "pending_kvr", "wallet"] {
        assert!(report[field].is_string(), "{field}");
    }
    for field in ["raw_bytes", "logit_cosine_min"] {
        assert!(report[field].is_number(), "{field}");
    }
    for field in ["tok_per_s", "rtt_ms"] {
        assert!(report["remote"][field].is_number(), "{field}");
    }
    assert!(report["local"]["tok_per_s"].is_number());
    assert_eq!(report["remote"]["layers"], serde_json::json!([0, 1, 2, 3]));
    for field in ["wallet", "device", "slice"] {
        assert!(report["workers"][0][field].is_string(), "{field}");
    }
    assert!(report.get("kills").is_none());
}

#[test]
fn workers_layers_distance_and_length_change_no_token() {
    let far = demo_json(&["--workers", "3", "--remote-layers", "all", "--rtt", "13", "--tokens", "6"]);
    assert_honest(&far, LAYERS);
    assert_eq!(far["remote"]["rtt_ms"], 13.0);
    assert_honest(&demo_json(&["--tokens", "1"]), LAYERS);
    assert_honest(&demo_json(&["--tokens", "4", "--remote-layers", "0", "--workers", "3"]), 1);
    assert_honest(&demo_json(&["--tokens", "4", "--remote-layers", "1-2"]), 2);
}

#[test]
fn killed_workers_are_seen_in_the_numbers_and_nowhere_else() {
    let report = demo_json(&["--workers", "3", "--tokens", "48", "--chaos", "--seed", "7"]);
    assert_eq!((&report["logits_bit_identical"], &report["tokens_identical"]), (&true.into(), &48.into()));
    let number = |name: &str| report[name].as_u64().unwrap_or_else(|| panic!("{name}"));
    assert_eq!(number("seed"), 7);
    assert!(number("kills") >= 3 && number("restarts") + 1 == number("kills"), "{report}");
    for name in ["recomputed", "hedged", "late"] {
        number(name);
    }
    assert!(report["added_latency_ms"].is_number());
    assert_eq!(number("credited_nano_kvr"), number("work_bytes") * RATE);
}

#[test]
fn a_soak_says_what_it_held_and_finds_no_difference() {
    let report = demo_json(&["--workers", "2", "--tokens", "16", "--chaos", "--seed", "3", "--soak", "3s"]);
    let number = |name: &str| report[name].as_u64().unwrap_or_else(|| panic!("{name}"));
    assert!(number("decodes") >= 1 && number("kills") >= 1 && number("tokens") >= 16, "{report}");
    assert!(report["differs_at"].is_null());
    assert_eq!(report["footprints"].as_array().map(Vec::len), Some(3));
}

#[test]
fn a_command_line_that_makes_no_sense_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let failed = |args: &[&str]| {
        let mut command = kvasir(dir.path(), args);
        let output = command.env_remove("DISPLAY").env_remove("WAYLAND_DISPLAY").output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, message) = failed(&["demo", "--remote-layers", "9"]);
    assert_eq!(code, Some(2));
    assert!(message.contains("layers below 4"), "{message}");
    assert_eq!(failed(&["demo", "--workers", "0"]).0, Some(2));
    for rtt in ["--rtt=-1", "--rtt=99999", "--rtt=NaN"] {
        let (code, message) = failed(&["demo", rtt]);
        assert_eq!(code, Some(2));
        assert!(message.contains("expected 0 to 10000 ms"), "{message}");
    }
    let (code, message) = failed(&["--headless", "worker"]);
    assert_eq!(code, Some(2));
    assert!(message.contains("--gateway"), "{message}");
    // Without a word the desktop app is meant: help where it is not built in, a reason where there is no desktop.
    let (code, message) = failed(&[]);
    if cfg!(feature = "desktop") {
        assert_eq!(code, Some(1));
        assert!(message.contains("graphical session"), "{message}");
    } else {
        assert_eq!(code, Some(2));
    }
    let (code, message) = failed(&["generate", "--model", "/nonexistent.gguf", "--prompt", "a"]);
    assert_eq!(code, Some(1));
    assert!(message.contains("/nonexistent.gguf"), "{message}");
}

async fn run(options: DemoOptions) -> Report {
    demo::run(options, |_| {}).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_worker_on_each_cpu_path_gives_the_same_bits() {
    let paths = CpuPath::supported();
    let workers = paths.iter().map(|p| kernel(*p).into()).collect();
    let report = run(options(workers, 6)).await;
    assert_eq!(report.failure(), None);
    assert_eq!(report.workers.len(), paths.len());
    for worker in &report.workers {
        assert!(worker.work_bytes > 0, "{} on {} served nothing", worker.wallet, worker.device);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_wrong_integer_in_one_partial_is_not_used_and_fails_the_demo() {
    let report = run(options(vec![on(faulty(Fault::OneOff(0)))], 2)).await;
    assert!(report.logits_bit_identical && report.argmax_match, "what is wrong is not used");
    assert_eq!((report.remote.assignments_remote, report.credited_nano_kvr), (0, 0), "nor anything after it");
    assert!(report.failure().is_some_and(|f| f.contains("no assignment")), "{:?}", report.failure());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_never_answers_fails_the_demo_without_changing_a_token() {
    let gate = Arc::new(Gate::default());
    let report = run(options(vec![on(faulty(Fault::Silent(Arc::clone(&gate))))], 3)).await;
    gate.open();
    assert_eq!(report.remote.assignments_remote, 0);
    assert!(report.argmax_match && report.logits_bit_identical);
    assert_eq!((report.work_bytes, report.credited_nano_kvr), (0, 0));
    assert!(report.failure().is_some_and(|f| f.contains("no assignment")), "{:?}", report.failure());
}

/// Sends `positions` through the real road in one step and gives the wallet's account and the frames' bytes.
async fn served(model: OneLayer, positions: usize) -> (WalletStatement, u64) {
    let model: Arc<Model> = Arc::new(model::from_gguf("one layer", Data::from(model.gguf())).unwrap());
    let compute = kernel(CpuPath::detect().unwrap());
    let network = Network::start(NetworkOptions {
        model: Arc::clone(&model),
        compute: Arc::clone(&compute),
        workers: vec![compute.into()],
        remote_layers: vec![0],
        one_way: Duration::ZERO,
        bits_per_s: None,
        gateway: None,
        trust: TrustConfig::default(),
        cuttable: false,
    })
    .await
    .unwrap();
    network.dispatch.wait_ready(1, Duration::from_secs(60)).await.unwrap();
    let mut decode = Decode::new(Backbone::new(model, Arc::new(network.dispatch.clone())).unwrap());
    let prompt: Vec<u32> = (0..positions as u32).collect();
    decode.step(&prompt).await.unwrap();
    let counts = network.dispatch.counts();
    assert_eq!(counts.assignments_local, 0);
    let wallet = network.wallets()[0];
    let start = std::time::Instant::now();
    let statement = loop {
        let statement = network.statement(wallet).await.unwrap();
        if statement.work_bytes >= counts.work_bytes || start.elapsed() > Duration::from_secs(20) {
            break statement;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let (meters, accounts) = network.ledgers();
    let metered = meters.meters_after(network.hub(), 0, 10).await.unwrap();
    let sum = |field: fn(&Meter) -> u64| metered.iter().map(field).sum::<u64>();
    assert_eq!((sum(|m| m.assignments), sum(|m| m.work_bytes)), (13 * 8, statement.work_bytes));
    assert!(sum(|m| m.raw_bytes) >= counts.raw_bytes);
    let audit = accounts.check().await.unwrap();
    assert!(audit.is_sound(), "{audit:?}");
    network.stop().await.unwrap();
    (statement, counts.raw_bytes)
}

#[tokio::test(flavor = "multi_thread")]
async fn thirteen_positions_of_eight_experts_at_width_3072_earn_the_published_sum_in_any_encoding() {
    let exact =
        OneLayer { hidden: 3072, intermediate: 256, experts: 12, experts_per_token: 8, experts_type: BlockType::Q4_K };
    // Float experts travel as f32 rows and unweighted partials: far more bytes for the same work.
    let float = OneLayer { experts_type: BlockType::F32, ..exact };
    let (exact, exact_bytes) = served(exact, 13).await;
    let (float, float_bytes) = served(float, 13).await;
    for account in [&exact, &float] {
        assert_eq!(account.work_bytes, 1_277_952);
        assert_eq!(account.pending_nano_kvr.0, 8_945_664);
        assert_eq!(account.pending_kvr, "0.00895");
    }
    assert!(float_bytes > 2 * exact_bytes, "{float_bytes} against {exact_bytes}");
}

/// Whether there is an adapter for the demo; a required one must be there.
#[cfg(feature = "gpu")]
fn has_gpu() -> bool {
    let dir = tempfile::tempdir().unwrap();
    let output =
        kvasir(dir.path(), &["demo", "--device", "gpu", "--allow-software", "--tokens", "1"]).output().unwrap();
    let why = String::from_utf8_lossy(&output.stderr);
    let is_required = std::env::var_os("KVASIR_REQUIRE_GPU").is_some_and(|v| v == "1");
    assert!(output.status.success() || !is_required && why.contains("no GPU was found"), "{why}");
    output.status.success()
}

#[cfg(feature = "gpu")]
#[test]
fn gpus_decode_identically_alone_and_beside_a_cpu() {
    if !has_gpu() {
        eprintln!("skipped: no adapter");
        return;
    }
    let devices = |report: &Value| -> Vec<String> {
        let workers = report["workers"].as_array().unwrap();
        workers.iter().map(|w| w["device"].as_str().unwrap().to_owned()).collect()
    };
    let alone = demo_json(&["--device", "gpu", "--allow-software", "--tokens", "4"]);
    assert_honest(&alone, LAYERS);
    assert!(devices(&alone).iter().all(|device| device.starts_with("gpu (")), "{:?}", devices(&alone));
    let mixed = demo_json(&["--device", "gpu,cpu", "--allow-software", "--tokens", "4"]);
    assert_honest(&mixed, LAYERS);
    let [first, second] = &devices(&mixed)[..] else { panic!("two workers") };
    assert!(first.starts_with("gpu (") && second.starts_with("cpu ("), "{first}, {second}");
    assert!([first, second].iter().all(|device| device.ends_with(" because it was asked for")), "{first}, {second}");
    let parts = mixed["workers"].as_array().unwrap();
    assert!(parts.iter().all(|w| w["work_bytes"].as_u64() > Some(0)), "both computed");
}

#[test]
fn a_gpu_that_is_not_there_is_never_replaced_in_silence() {
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let output = kvasir(dir.path(), &[&["demo", "--tokens", "1", "--gpu", "no such adapter"], args].concat())
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, message) = run(&["--device", "gpu"]);
    assert_eq!(code, Some(1), "{message}");
    let (code, message) = run(&["--device", "auto"]);
    assert_eq!(code, Some(0), "{message}");
    assert!(message.contains("CPU because "), "{message}");
}

#[test]
fn the_gpus_are_shown_as_one_document_whether_there_are_any_or_not() {
    for args in [&["gpu", "--json"][..], &["gpu", "--json", "--allow-software"]] {
        let dir = tempfile::tempdir().unwrap();
        let mut command = kvasir(dir.path(), args);
        let there = command.output().unwrap();
        // No Vulkan driver at all.
        let none =
            command.env("VK_DRIVER_FILES", "/nonexistent").env("VK_ICD_FILENAMES", "/nonexistent").output().unwrap();
        for output in [there, none] {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let document: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
            assert!(document["adapters"].is_array(), "{document}");
        }
    }
}
