//! The trained model `kvasir-tiny` against references that are not ours.
//!
//! In every run: the embedded Q4_K_M file. With the BF16 checkpoint, its GGUF files and the full reference at hand
//! (the directory that holds `kvasir-tiny/`, `gguf/` and `reference.safetensors`):
//! `KVASIR_REFERENCE_DIR=DIR cargo test --release -- --ignored --nocapture reference::`

use crate::support::{Golden, data, local, router_margin, top};
use kvasir::backbone::{Backbone, Want};
use kvasir::dispatch::Mode;
use kvasir::model::Model;
use std::path::PathBuf;
use std::sync::Arc;

const STEPS: usize = 64;
/// Top-1/top-2 logit margins below this may be decided by rounding between f32 and float64.
const LOGIT_MARGIN: f64 = 1e-3;
/// Router probabilities nearer than this may choose another expert and with it another token.
const ROUTER_MARGIN: f32 = 1e-4;

#[derive(serde::Deserialize)]
struct Prompt {
    text: String,
    input_ids: Vec<u32>,
    generated_ids: Vec<u32>,
    margins: Vec<f64>,
}

fn prompts(file: &str) -> Vec<Prompt> {
    let bytes = std::fs::read(data(&format!("kvasir-tiny/{file}"))).expect("a file of the repository");
    let prompts: Vec<Prompt> = serde_json::from_slice(&bytes).expect("prompts");
    assert!(prompts.iter().all(|p| p.generated_ids.len() == STEPS && p.margins.len() == STEPS));
    prompts
}

fn embedded() -> Arc<Model> {
    Arc::new(kvasir::model::embedded().expect("the embedded model"))
}

fn backbone(model: &Arc<Model>, mode: Mode) -> Backbone {
    Backbone::new(model.clone(), Arc::new(local(model, mode))).expect("a backbone")
}

/// The logits that choose each of the reference's tokens, the reference's earlier tokens being given.
async fn forced(backbone: &Backbone, prompt: &Prompt) -> Vec<Vec<f32>> {
    let mut sequence = backbone.sequence();
    let mut logits = vec![backbone.prefill(&mut sequence, &prompt.input_ids).await.expect("a prompt").row(0).to_vec()];
    for token in &prompt.generated_ids[..STEPS - 1] {
        let step = backbone.forward(&mut sequence, &[*token], Want::Last).await.expect("a step");
        logits.push(step.row(0).to_vec());
    }
    logits
}

/// Steps whose likeliest token is not the reference's.
fn misses(logits: &[Vec<f32>], prompt: &Prompt) -> Vec<usize> {
    (0..STEPS).filter(|i| top(&logits[*i]).0 != prompt.generated_ids[*i]).collect()
}

/// Mean Kullback–Leibler divergence of `q` from `p`, in nats.
fn mean_divergence(p: &[Vec<f32>], q: &[Vec<f32>]) -> f64 {
    let log_softmax = |logits: &[f32]| -> Vec<f64> {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|v| f64::from(v - max).exp()).sum();
        logits.iter().map(|v| f64::from(v - max) - sum.ln()).collect()
    };
    let divergence = |(p, q): (&Vec<f32>, &Vec<f32>)| -> f64 {
        log_softmax(p).iter().zip(log_softmax(q)).map(|(p, q)| p.exp() * (p - q)).sum()
    };
    p.iter().zip(q).map(divergence).sum::<f64>() / p.len() as f64
}

fn report(what: &str, prompt: &Prompt, misses: &[usize], divergence: Option<f64>) {
    let first: String = prompt.text.chars().take(24).collect();
    eprintln!("{what}, {first:?}: {}/{STEPS} tokens", STEPS - misses.len());
    misses.iter().for_each(|i| eprintln!("  step {i}: the reference's margin is {}", prompt.margins[*i]));
    divergence.iter().for_each(|d| eprintln!("  mean divergence from the float path {d:.2e} nats"));
}

#[tokio::test]
async fn the_float_path_says_what_an_independent_float64_run_says() {
    let backbone = backbone(&embedded(), Mode::Float);
    for prompt in prompts("reference_q4km.json") {
        let wrong = misses(&forced(&backbone, &prompt).await, &prompt);
        report("float path", &prompt, &wrong, None);
        assert!(wrong.iter().all(|i| prompt.margins[*i] < LOGIT_MARGIN), "{:?}: steps {wrong:?}", prompt.text);
    }
}

#[tokio::test]
async fn the_exact_path_keeps_the_words_of_the_bf16_reference() {
    let model = embedded();
    let (exact, float) = (backbone(&model, Mode::Exact), backbone(&model, Mode::Float));
    for prompt in prompts("reference_bf16.json") {
        let logits = forced(&exact, &prompt).await;
        let divergence = mean_divergence(&forced(&float, &prompt).await, &logits);
        let wrong = misses(&logits, &prompt);
        report("exact Q4_K_M", &prompt, &wrong, Some(divergence));
        assert!(STEPS - wrong.len() >= 58, "{:?}: steps {wrong:?}", prompt.text);
        assert!(divergence > 0.0 && divergence < 0.02, "{:?}: divergence {divergence}", prompt.text);
    }
}

pub fn reference_dir() -> PathBuf {
    PathBuf::from(std::env::var_os("KVASIR_REFERENCE_DIR").expect("KVASIR_REFERENCE_DIR names the reference"))
}

#[tokio::test]
#[ignore = "needs the BF16 checkpoint in KVASIR_REFERENCE_DIR"]
async fn the_bf16_checkpoint_gives_every_greedy_token_of_transformers() {
    let dir = reference_dir();
    let model = Arc::new(kvasir::model::open(&dir.join("kvasir-tiny")).expect("the checkpoint"));
    let golden = Golden::read(&dir.join("reference.safetensors"));
    let backbone = backbone(&model, Mode::Float);
    let (experts, k) = (model.hyper.experts, model.hyper.experts_per_token);
    for (p, prompt) in prompts("reference_bf16.json").iter().enumerate() {
        let router = golden.floats(&format!("prompt{p}.router_logits"));
        let rows = router.len() / experts / model.hyper.layers;
        let margin = |row: usize| {
            let logits = |layer| &router[(layer * rows + row) * experts..][..experts];
            (0..model.hyper.layers).map(|layer| router_margin(logits(layer), k)).fold(f32::INFINITY, f32::min)
        };
        let wrong = misses(&forced(&backbone, prompt).await, prompt);
        report("float BF16", prompt, &wrong, None);
        let greedy = backbone.record_logits(&prompt.input_ids, STEPS).await.expect("a record").greedy_ids;
        let equal = greedy.iter().zip(&prompt.generated_ids).take_while(|(a, b)| a == b).count();
        eprintln!("  on its own: the first {equal} tokens are equal");
        let near = |step: &usize| (0..prompt.input_ids.len() + step).any(|row| margin(row) < ROUTER_MARGIN);
        assert!(wrong.iter().all(near), "{:?}: steps {wrong:?}", prompt.text);
    }
}

#[tokio::test]
#[ignore = "needs the GGUF files in KVASIR_REFERENCE_DIR"]
async fn quantised_files_keep_the_words_of_the_bf16_reference() {
    for (file, least) in [("kvasir-tiny-Q8_0.gguf", 62), ("kvasir-tiny-Q4_K_M.gguf", 58)] {
        let model = kvasir::model::open(&reference_dir().join("gguf").join(file));
        let model = Arc::new(model.expect("a quantised file"));
        let (exact, float) = (backbone(&model, Mode::Exact), backbone(&model, Mode::Float));
        for prompt in prompts("reference_bf16.json") {
            let (logits, of_floats) = (forced(&exact, &prompt).await, forced(&float, &prompt).await);
            report(&format!("float {file}"), &prompt, &misses(&of_floats, &prompt), None);
            let wrong = misses(&logits, &prompt);
            report(&format!("exact {file}"), &prompt, &wrong, Some(mean_divergence(&of_floats, &logits)));
            assert!(STEPS - wrong.len() >= least, "{file}, {:?}: steps {wrong:?}", prompt.text);
        }
    }
}
