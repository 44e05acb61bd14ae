//! Decode and prefill of several streams at once, through the scheduler that serves clients.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::mpsc::Receiver;

use crate::backbone::scheduler::{Event, Refused, Report, StreamError};
use crate::backbone::{
    Adjustments, Backbone, BackboneError, GenerateOptions, Order, Reach, Sampling, Scheduler, SchedulerConfig,
};
use crate::dispatch::{LocalDispatch, Mode};
use crate::kernel::ExpertCompute;
use crate::model::Model;
use crate::shutdown;

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
    /// The backbone's kernel.
    pub compute: Arc<dyn ExpertCompute>,
    /// Which part.
    pub phase: Phase,
    /// Streams at once, one measurement each.
    pub batches: Vec<usize>,
    /// New tokens, or prompt tokens, of each stream.
    pub tokens: usize,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BatchBench {
    /// Model name.
    pub model: String,
    /// Which part.
    pub phase: Phase,
    /// Tokens of each stream.
    pub tokens: usize,
    /// One per size.
    pub batches: Vec<Batch>,
}

/// One size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Batch {
    /// Streams at once.
    pub batch: usize,
    /// Of all streams together.
    pub tok_per_s: f64,
    /// Of each.
    pub tok_per_s_per_stream: f64,
    /// Mean time of a forward pass.
    pub step_ms: f64,
    /// Mean rows of a forward pass.
    pub step_rows: f64,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum BatchBenchError {
    /// A model that contradicts itself.
    #[error(transparent)]
    Backbone(#[from] BackboneError),
    /// A stream that cannot run.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// A stream that failed.
    #[error(transparent)]
    Stream(#[from] StreamError),
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
    let BatchOptions { model, compute, phase, batches, tokens } = options;
    let (prompt, new) = match phase {
        Phase::Decode => (QUESTION_TOKENS, tokens),
        Phase::Prefill => (tokens, 1),
    };
    let limit = model.hyper.context_length;
    if prompt + new > limit {
        return Err(BatchBenchError::Context { limit, needed: prompt + new });
    }
    let local = LocalDispatch::new(Arc::clone(&model), compute, Mode::Exact);
    let backbone = Arc::new(Backbone::new(Arc::clone(&model), Arc::new(local))?);
    let mut found = Vec::with_capacity(batches.len());
    for batch in batches {
        found.push(measure(&backbone, phase, batch, prompt, new).await?);
    }
    Ok(BatchBench { model: model.name.clone(), phase, tokens, batches: found })
}

async fn measure(
    backbone: &Arc<Backbone>,
    phase: Phase,
    batch: usize,
    prompt: usize,
    new: usize,
) -> Result<Batch, BatchBenchError> {
    let (_stop, shutdown) = shutdown::channel();
    let config = SchedulerConfig { state_bytes: u64::MAX, streams: batch, waiting: 0 };
    let scheduler = Scheduler::start(Arc::clone(backbone), config, shutdown);
    let start = Instant::now();
    let mut streams = Vec::with_capacity(batch);
    for stream in 0..batch {
        streams.push(scheduler.submit(scheduler.place()?, order(backbone, prompt, new, stream))?);
    }
    // All readers at once: one that waits for its turn would hold its stream up.
    let reports = futures_util::future::try_join_all(streams.into_iter().map(finish)).await?;
    let wall = start.elapsed();
    let (tokens, time) = match phase {
        Phase::Prefill => (batch * prompt, wall),
        Phase::Decode => {
            let longest = reports.iter().map(|report| report.decode).max().unwrap_or_default();
            (reports.iter().map(|report| report.tokens - 1).sum(), longest)
        }
    };
    let counters = scheduler.counters();
    let steps = counters.steps.load(Relaxed).max(1) as f64;
    let tok_per_s = tokens as f64 / time.max(Duration::from_nanos(1)).as_secs_f64();
    Ok(Batch {
        batch,
        tok_per_s,
        tok_per_s_per_stream: tok_per_s / batch as f64,
        step_ms: counters.step_us.load(Relaxed) as f64 / 1e3 / steps,
        step_rows: counters.step_rows.load(Relaxed) as f64 / steps,
    })
}

/// Arbitrary tokens, other ones for each stream, so that the streams meet different experts; no token ends it.
fn order(backbone: &Backbone, prompt: usize, new: usize, stream: usize) -> Order {
    let vocab = backbone.model().weights.embedding.rows;
    Order {
        prompt: (0..prompt).map(|i| ((i * 7919 + stream * 104_729) % vocab) as u32).collect(),
        options: GenerateOptions { max_tokens: new, sampling: Sampling::GREEDY, stop_ids: Vec::new() },
        adjustments: Adjustments::default(),
        reach: Reach::Local,
        logprobs: None,
    }
}

async fn finish(mut events: Receiver<Event>) -> Result<Report, StreamError> {
    while let Some(event) = events.recv().await {
        if let Event::End(end) = event {
            return end.map(|(_, report)| report);
        }
    }
    Err(StreamError::Stopping)
}

impl fmt::Display for BatchBench {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = if self.phase == Phase::Decode { "decode" } else { "prefill" };
        write!(f, "{}, {phase}, {} tokens a stream, experts on this machine", self.model, self.tokens)?;
        for batch in &self.batches {
            let Batch { batch, tok_per_s, tok_per_s_per_stream, step_ms, step_rows } = batch;
            write!(
                f,
                "\n  batch {batch:4}  {tok_per_s:9.1} tok/s  {tok_per_s_per_stream:8.1} a stream  \
                 step {step_ms:8.3} ms of {step_rows:.1} rows"
            )?;
        }
        Ok(())
    }
}
