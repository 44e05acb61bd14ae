//! Decode and prefill of several streams at once, counted as llama.cpp's benches count them.
//!
//! A prefill is timed from an empty context to the logits of the last token. A decode is timed after the prompts, one
//! step per new token of all streams; the tokens are arbitrary, because what a model of random weights chooses may be
//! one token for ever, which meets the same experts each time. Weights are read ahead and one round is run before the
//! timed ones, as llama.cpp warms up; every round begins anew; figures are medians.

use std::fmt;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::backbone::{
    Backbone, BackboneError, ForwardError, PREFILL_TOKENS, Reach, Sequence, Share, Want, argmax, step::StepOutput,
};
use crate::dispatch::{LocalDispatch, Mode};
use crate::kernel::ExpertCompute;
use crate::model::{Inspection, Model, Prefetch, Reach as Weights};

/// Prompt of a stream whose decode is measured: as short as a question.
const QUESTION_TOKENS: usize = 16;

/// Which part is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// New tokens, one per stream and step.
    Decode,
    /// Prompts, in chunks.
    Prefill,
}

/// What to measure.
pub struct BatchOptions {
    /// The model.
    pub model: Arc<Model>,
    /// When its opening began.
    pub started: Instant,
    /// The backbone's kernel.
    pub compute: Arc<dyn ExpertCompute>,
    /// Threads of the backbone, to be named beside the figures.
    pub threads: usize,
    /// Which part.
    pub phase: Phase,
    /// Streams at once, one measurement each.
    pub batches: Vec<usize>,
    /// New tokens, or prompt tokens, of each stream.
    pub tokens: usize,
    /// Measurements of each size, at least one.
    pub rounds: usize,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BatchBench {
    /// Model name.
    pub model: String,
    /// Bytes of all its weights.
    pub weights_bytes: u64,
    /// The kernel's hardware.
    pub device: String,
    /// Threads of the backbone.
    pub threads: usize,
    /// From opening the model to a backbone that can run.
    pub load_s: f64,
    /// Reading the weights ahead, as a server does beside its first requests; here before anything is timed.
    pub read_ahead_s: f64,
    /// Most memory that this process ever held, mapped files included; absent where the system does not say.
    pub peak_rss_bytes: Option<u64>,
    /// Which part.
    pub phase: Phase,
    /// Prompt tokens of each stream.
    pub prompt_tokens: usize,
    /// New tokens, or prompt tokens, of each stream.
    pub tokens: usize,
    /// Measurements behind each median.
    pub rounds: usize,
    /// One per size.
    pub batches: Vec<Batch>,
}

/// One size; medians.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Batch {
    /// Streams at once.
    pub batch: usize,
    /// New tokens, or prompt tokens, of all streams together.
    pub tok_per_s: f64,
    /// Of each.
    pub tok_per_s_per_stream: f64,
    /// Prompt tokens of all streams together.
    pub prompt_tok_per_s: f64,
    /// Prompt and new tokens of all streams together: what `llama-batched-bench` calls S.
    pub total_tok_per_s: f64,
    /// Time of a measured forward pass.
    pub step_ms: f64,
    /// Share of it that went to routed experts and nothing else.
    pub experts_share: f64,
    /// The measurements behind `tok_per_s`, in their order.
    pub samples: Vec<f64>,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum BatchBenchError {
    /// A model that contradicts itself.
    #[error(transparent)]
    Backbone(#[from] BackboneError),
    /// A step that failed.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// More than the context holds.
    #[error("expected streams of at most {limit} tokens, got {needed}: ask for fewer with --tokens")]
    Context {
        /// The model's.
        limit: usize,
        /// Asked for.
        needed: usize,
    },
}

/// Measures.
///
/// # Errors
/// Streams that are too long, or fail.
pub async fn batches(options: BatchOptions) -> Result<BatchBench, BatchBenchError> {
    let BatchOptions { model, started, compute, threads, phase, batches, tokens, rounds } = options;
    let (prompt, new) = match phase {
        Phase::Decode => (QUESTION_TOKENS, tokens),
        Phase::Prefill => (tokens, 0),
    };
    let limit = model.hyper.context_length;
    if prompt + new > limit {
        return Err(BatchBenchError::Context { limit, needed: prompt + new });
    }
    let device = compute.device();
    let local = LocalDispatch::new(Arc::clone(&model), compute, Mode::Exact);
    let backbone = Backbone::new(Arc::clone(&model), Arc::new(local))?;
    let load_s = started.elapsed().as_secs_f64();
    let read = Instant::now();
    Prefetch::of(&model, Weights::Everything).run(&AtomicBool::new(false), |_| {});
    let read_ahead_s = read.elapsed().as_secs_f64();
    let mut found = Vec::with_capacity(batches.len());
    for batch in batches {
        let mut runs = Vec::with_capacity(rounds.max(1));
        // Once untimed: what an expert's first use in a process costs is not the speed of its later ones.
        run(&backbone, batch, prompt, new).await?;
        for _ in 0..rounds.max(1) {
            runs.push(run(&backbone, batch, prompt, new).await?);
        }
        found.push(Batch::of(batch, phase, &runs));
    }
    let inspection = Inspection::of(&model);
    Ok(BatchBench {
        model: model.name.clone(),
        weights_bytes: inspection.expert_bytes + inspection.backbone_bytes,
        device,
        threads,
        load_s,
        read_ahead_s,
        peak_rss_bytes: peak_rss_bytes(),
        phase,
        prompt_tokens: prompt,
        tokens,
        rounds: rounds.max(1),
        batches: found,
    })
}

/// One measurement.
#[derive(Default)]
struct Run {
    prompt_tokens: usize,
    new_tokens: usize,
    prompt: Timed,
    decode: Timed,
}

#[derive(Default)]
struct Timed {
    time: Duration,
    steps: usize,
    experts: Duration,
}

impl Timed {
    fn add(&mut self, start: Instant, output: &StepOutput) {
        for logits in output.logits.iter().filter(|logits| !logits.is_empty()) {
            black_box(argmax(logits.row(0)));
        }
        self.time += start.elapsed();
        self.steps += 1;
        self.experts += output.experts.waited;
    }
}

async fn run(backbone: &Backbone, batch: usize, prompt: usize, new: usize) -> Result<Run, ForwardError> {
    let mut streams: Vec<Sequence> =
        (0..batch).map(|_| Sequence::with_room(&backbone.model().hyper, prompt + new)).collect();
    let mut run = Run { prompt_tokens: batch * prompt, new_tokens: batch * new, ..Run::default() };
    for from in (0..prompt).step_by(PREFILL_TOKENS) {
        let rows = PREFILL_TOKENS.min(prompt - from);
        let want = if from + rows == prompt { Want::Last } else { Want::Nothing };
        let at_once = PREFILL_TOKENS / rows;
        for (i, some) in streams.chunks_mut(at_once).enumerate() {
            step(backbone, some, i * at_once, from..from + rows, want, &mut run.prompt).await?;
        }
    }
    for position in prompt..prompt + new {
        step(backbone, &mut streams, 0, position..position + 1, Want::Last, &mut run.decode).await?;
    }
    Ok(run)
}

/// One step of `streams`, the first of which is stream `first`, over the tokens at `positions`.
async fn step(
    backbone: &Backbone,
    streams: &mut [Sequence],
    first: usize,
    positions: std::ops::Range<usize>,
    want: Want,
    timed: &mut Timed,
) -> Result<(), ForwardError> {
    // Other tokens for each stream, so that the streams meet different experts.
    let vocab = backbone.model().weights.embedding.rows;
    let token = |stream: usize, position: usize| ((position * 7919 + stream * 104_729) % vocab) as u32;
    let tokens: Vec<Vec<u32>> = (first..first + streams.len())
        .map(|stream| positions.clone().map(|position| token(stream, position)).collect())
        .collect();
    let shares = streams.iter_mut().zip(&tokens);
    let mut shares: Vec<Share<'_>> =
        shares.map(|(sequence, tokens)| Share { sequence, tokens, want, reach: Reach::Local }).collect();
    let start = Instant::now();
    let output = backbone.step(&mut shares).await?;
    timed.add(start, &output);
    Ok(())
}

impl Batch {
    fn of(batch: usize, phase: Phase, runs: &[Run]) -> Self {
        let measured = |run: &Run| match phase {
            Phase::Decode => per_second(run.new_tokens, run.decode.time),
            Phase::Prefill => per_second(run.prompt_tokens, run.prompt.time),
        };
        let of_phase = |run: &Run| match phase {
            Phase::Decode => (run.decode.time, run.decode.steps, run.decode.experts),
            Phase::Prefill => (run.prompt.time, run.prompt.steps, run.prompt.experts),
        };
        let tok_per_s = median(runs, measured);
        Self {
            batch,
            tok_per_s,
            tok_per_s_per_stream: tok_per_s / batch as f64,
            prompt_tok_per_s: median(runs, |run| per_second(run.prompt_tokens, run.prompt.time)),
            total_tok_per_s: median(runs, |run| {
                per_second(run.prompt_tokens + run.new_tokens, run.prompt.time + run.decode.time)
            }),
            step_ms: median(runs, |run| {
                let (time, steps, _) = of_phase(run);
                time.as_secs_f64() * 1e3 / steps.max(1) as f64
            }),
            experts_share: median(runs, |run| {
                let (time, _, experts) = of_phase(run);
                experts.as_secs_f64() / time.as_secs_f64().max(1e-9)
            }),
            samples: runs.iter().map(measured).collect(),
        }
    }
}

fn per_second(tokens: usize, time: Duration) -> f64 {
    tokens as f64 / time.max(Duration::from_nanos(1)).as_secs_f64()
}

fn median(runs: &[Run], figure: impl Fn(&Run) -> f64) -> f64 {
    let mut figures: Vec<f64> = runs.iter().map(figure).collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(0.0)
}

/// The high-water mark of this process's memory, where the system keeps one.
fn peak_rss_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?.trim().strip_suffix("kB")?;
    kib.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

impl fmt::Display for BatchBench {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = if self.phase == Phase::Decode { "decode" } else { "prefill" };
        write!(f, "{}, {phase}, {} tokens a stream, {} threads", self.model, self.tokens, self.threads)?;
        write!(f, "\n  {:.2} GB of weights, loaded in {:.2} s", self.weights_bytes as f64 / 1e9, self.load_s)?;
        if let Some(bytes) = self.peak_rss_bytes {
            write!(f, ", peak memory {:.2} GB", bytes as f64 / 1e9)?;
        }
        for batch in &self.batches {
            let Batch { batch, tok_per_s, tok_per_s_per_stream, total_tok_per_s, step_ms, experts_share, .. } = batch;
            write!(
                f,
                "\n  batch {batch:4}  {tok_per_s:9.2} tok/s  {tok_per_s_per_stream:8.2} a stream  \
                 {total_tok_per_s:9.2} with prompts  step {step_ms:9.2} ms, {:.0} % experts",
                100.0 * experts_share
            )?;
        }
        Ok(())
    }
}
