//! Many streams through the scheduler, locally and through far workers: what waits cost when there is other work.
//!
//! Figures are of the time in which all streams decode: from the first token of the last of them to the first end; local
//! and remote runs alternate, and medians are shown. The bound is what no scheduler can pass: the local aggregate, and
//! every stream's own round trips and step.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};

use super::far::Far;
use crate::backbone::scheduler::{Counters, Event, Refused, StreamError};
use crate::backbone::{Adjustments, Backbone, GenerateOptions, Order, Reach, Sampling, Scheduler, SchedulerConfig};
use crate::demo::DemoError;
use crate::dispatch::{LocalDispatch, Mode};
use crate::shutdown;

/// Prompt of a stream: as short as a question.
const QUESTION_TOKENS: usize = 16;

/// What to measure.
pub struct StreamsOptions {
    /// The model and its network.
    pub far: Far,
    /// Streams at once, one pair of runs each.
    pub streams: Vec<usize>,
    /// New tokens of each stream.
    pub tokens: usize,
    /// Pairs of runs of each size, at least one.
    pub rounds: usize,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StreamsBench {
    /// Model name.
    pub model: String,
    /// Round trip that was added.
    pub rtt_ms: f64,
    /// Remote layers.
    pub remote_layers: usize,
    /// Workers.
    pub workers: usize,
    /// Prompt tokens of each stream.
    pub prompt_tokens: usize,
    /// New tokens of each stream.
    pub tokens: usize,
    /// Pairs of runs behind each median.
    pub rounds: usize,
    /// The backbone's hardware.
    pub device: String,
    /// A local step of one stream.
    pub local_step_ms: f64,
    /// One per number of streams.
    pub sizes: Vec<Size>,
}

/// So many streams.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Size {
    /// Streams at once.
    pub streams: usize,
    /// New tokens of all of them, without workers.
    pub local_tok_per_s: f64,
    /// The same through workers.
    pub remote_tok_per_s: f64,
    /// `min(local, streams / (remote layers · round trip + local step of one stream))`.
    pub bound_tok_per_s: f64,
    /// Remote by bound.
    pub of_bound: f64,
    /// Remote by local, of the pairs of runs.
    pub of_local: Vec<f64>,
    /// Bytes of work frames both ways, per token.
    pub wire_bytes_per_token: f64,
    /// Steps under way at once, on average.
    pub lanes: f64,
    /// Share of the time in which the backbone computed nothing.
    pub idle_share: f64,
    /// Time between two tokens of a stream.
    pub gap_p50_ms: f64,
    /// The same that one gap in a hundred exceeds.
    pub gap_p99_ms: f64,
    /// Streams whose tokens are those of the local run, in every round.
    pub streams_identical: usize,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum StreamsBenchError {
    /// A network that does not come up.
    #[error(transparent)]
    Network(#[from] DemoError),
    /// An order that the scheduler does not take.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// A stream that failed.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// A reader that did not come to its end.
    #[error("a reader of a stream did not end: {0}")]
    Reader(#[from] JoinError),
    /// Streams that did not decode together.
    #[error(
        "expected a time in which all {streams} streams decode, got none: ask for more than {tokens} with --tokens"
    )]
    NoWindow {
        /// Streams.
        streams: usize,
        /// Tokens of each.
        tokens: usize,
    },
}

/// The scheduler's counters at one moment.
#[derive(Clone, Copy)]
struct Mark {
    at: Instant,
    new_tokens: u64,
    step_us: u64,
    idle_us: u64,
}

impl Mark {
    fn of(counters: &Counters) -> Self {
        let at = Instant::now();
        let (new_tokens, step_us) = (counters.new_tokens.load(Relaxed), counters.step_us.load(Relaxed));
        Self { at, new_tokens, step_us, idle_us: counters.idle_us.load(Relaxed) }
    }
}

/// The time in which all streams decode.
struct Window {
    scheduler: Scheduler,
    to_begin: AtomicUsize,
    start: OnceLock<Mark>,
    end: OnceLock<Mark>,
}

/// Tokens of a stream, and the gaps between them within the window.
#[derive(Default)]
struct Read {
    tokens: Vec<u32>,
    gaps: Vec<Duration>,
}

/// One run.
struct Run {
    tok_per_s: f64,
    lanes: f64,
    idle_share: f64,
    streams: Vec<Vec<u32>>,
    gaps: Vec<Duration>,
}

/// Measures.
///
/// # Errors
/// A network that does not come up, or streams that fail.
pub async fn streams(options: StreamsOptions) -> Result<StreamsBench, StreamsBenchError> {
    let StreamsOptions { far, streams, tokens, rounds } = options;
    let (network, model) = (far.start().await?, Arc::clone(&far.model));
    let local = LocalDispatch::new(Arc::clone(&model), Arc::clone(&far.compute), Mode::Exact);
    let backbone = |dispatch| Backbone::new(Arc::clone(&model), dispatch).map(Arc::new).map_err(DemoError::from);
    let local = backbone(Arc::new(local))?;
    let remote = backbone(Arc::new(network.dispatch.clone()))?;

    let local_step_s = 1.0 / run(&local, 1, tokens).await?.tok_per_s;
    let laps_s = far.remote_layers.len() as f64 * far.rtt_ms() / 1e3;
    let mut sizes = Vec::with_capacity(streams.len());
    for streams in streams {
        let mut pairs = Vec::with_capacity(rounds);
        let before = network.dispatch.counts().raw_bytes;
        for _ in 0..rounds.max(1) {
            pairs.push((run(&local, streams, tokens).await?, run(&remote, streams, tokens).await?));
        }
        let rows = pairs.len() * streams * (QUESTION_TOKENS + tokens - 1);
        let bytes = (network.dispatch.counts().raw_bytes - before) as f64 / rows as f64;
        sizes.push(Size::of(pairs, bytes, streams as f64 / (laps_s + local_step_s)));
    }
    network.stop().await?;
    Ok(StreamsBench {
        model: model.name.clone(),
        rtt_ms: far.rtt_ms(),
        remote_layers: far.remote_layers.len(),
        workers: far.count(),
        prompt_tokens: QUESTION_TOKENS,
        tokens,
        rounds,
        device: far.compute.device(),
        local_step_ms: local_step_s * 1e3,
        sizes,
    })
}

/// The prompt of stream `n`: other tokens for each, so that they meet different experts.
fn order(backbone: &Backbone, n: usize, tokens: usize) -> Order {
    let vocab = backbone.model().weights.embedding.rows;
    Order {
        prompt: (0..QUESTION_TOKENS).map(|i| ((i * 7919 + n * 104_729) % vocab) as u32).collect(),
        options: GenerateOptions { max_tokens: tokens, sampling: Sampling::GREEDY, stop_ids: Vec::new() },
        adjustments: Adjustments::default(),
        reach: Reach::Any,
        logprobs: None,
    }
}

async fn run(backbone: &Arc<Backbone>, streams: usize, tokens: usize) -> Result<Run, StreamsBenchError> {
    let (stop, shutdown) = shutdown::channel();
    let config = SchedulerConfig { streams, state_bytes: u64::MAX, ..SchedulerConfig::default() };
    let window = Arc::new(Window {
        scheduler: Scheduler::start(Arc::clone(backbone), config, shutdown),
        to_begin: AtomicUsize::new(streams),
        start: OnceLock::new(),
        end: OnceLock::new(),
    });
    let mut readers = JoinSet::new();
    for n in 0..streams {
        let events = window.scheduler.submit(window.scheduler.place()?, order(backbone, n, tokens))?;
        let window = Arc::clone(&window);
        readers.spawn(async move { (n, window.read(events).await) });
    }
    let (mut all, mut gaps) = (vec![Vec::new(); streams], Vec::new());
    while let Some(read) = readers.join_next().await {
        let (n, read) = read?;
        let read = read?;
        all[n] = read.tokens;
        gaps.extend(read.gaps);
    }
    stop.fire();
    let marks = window.start.get().zip(window.end.get()).filter(|(start, end)| start.new_tokens < end.new_tokens);
    let (start, end) = marks.ok_or(StreamsBenchError::NoWindow { streams, tokens })?;
    let took_s = (end.at - start.at).as_secs_f64();
    let share = |from: u64, to: u64| (to - from) as f64 / 1e6 / took_s;
    Ok(Run {
        tok_per_s: (end.new_tokens - start.new_tokens) as f64 / took_s,
        lanes: share(start.step_us, end.step_us),
        idle_share: share(start.idle_us, end.idle_us),
        streams: all,
        gaps,
    })
}

impl Window {
    async fn read(&self, mut events: mpsc::Receiver<Event>) -> Result<Read, StreamError> {
        let (mut read, mut newest) = (Read::default(), None);
        while let Some(event) = events.recv().await {
            match event {
                Event::Prefilled(_) => {}
                Event::Token(choice, _) => {
                    if read.tokens.is_empty() && self.to_begin.fetch_sub(1, Relaxed) == 1 {
                        self.start.get_or_init(|| Mark::of(self.scheduler.counters()));
                    }
                    read.tokens.push(choice.token);
                    let now = Instant::now();
                    let before = newest.replace(now).filter(|_| self.is_open());
                    read.gaps.extend(before.map(|before| now - before));
                }
                Event::End(end) => {
                    self.end.get_or_init(|| Mark::of(self.scheduler.counters()));
                    end?;
                }
            }
        }
        Ok(read)
    }

    fn is_open(&self) -> bool {
        self.start.get().is_some() && self.end.get().is_none()
    }
}

impl Size {
    /// Local and remote runs by turns; `alone` is what the streams would give if nobody else took time.
    fn of(pairs: Vec<(Run, Run)>, wire_bytes_per_token: f64, alone: f64) -> Self {
        let same = |n: &usize| pairs.iter().all(|(near, far)| near.streams[*n] == far.streams[*n]);
        let streams = pairs.first().map_or(0, |(near, _)| near.streams.len());
        let streams_identical = (0..streams).filter(same).count();
        let of_local = pairs.iter().map(|(near, far)| far.tok_per_s / near.tok_per_s).collect();
        let (mut near, mut far): (Vec<Run>, Vec<Run>) = pairs.into_iter().unzip();
        let median = |of: fn(&Run) -> f64, runs: &mut [Run]| {
            runs.sort_by(|a, b| of(a).total_cmp(&of(b)));
            runs.get(runs.len() / 2).map_or(0.0, of)
        };
        let local_tok_per_s = median(|run| run.tok_per_s, &mut near);
        let remote_tok_per_s = median(|run| run.tok_per_s, &mut far);
        let bound_tok_per_s = local_tok_per_s.min(alone);
        let mut gaps: Vec<Duration> = far.iter().flat_map(|run| run.gaps.iter().copied()).collect();
        gaps.sort_unstable();
        let gap_ms = |part: f64| {
            let index = (part * gaps.len() as f64) as usize;
            gaps.get(index).map_or(0.0, |gap| gap.as_secs_f64() * 1e3)
        };
        Self {
            streams,
            local_tok_per_s,
            remote_tok_per_s,
            bound_tok_per_s,
            of_bound: remote_tok_per_s / bound_tok_per_s,
            of_local,
            wire_bytes_per_token,
            lanes: median(|run| run.lanes, &mut far),
            idle_share: median(|run| run.idle_share, &mut far),
            gap_p50_ms: gap_ms(0.5),
            gap_p99_ms: gap_ms(0.99),
            streams_identical,
        }
    }
}

impl fmt::Display for StreamsBench {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {} tokens a stream, {} remote layers on {} workers at {} ms, local step of one stream {:.2} ms",
            self.model, self.tokens, self.remote_layers, self.workers, self.rtt_ms, self.local_step_ms
        )?;
        for size in &self.sizes {
            write!(
                f,
                "\n  {:4} streams  local {:8.1} tok/s  remote {:8.1} tok/s, {:.2} of its bound {:8.1}\n                \
                 {:.1} lanes, idle {:.0} %, a token every {:.0} ms (p99 {:.0} ms), {:.0} wire bytes each, {} streams identical",
                size.streams,
                size.local_tok_per_s,
                size.remote_tok_per_s,
                size.of_bound,
                size.bound_tok_per_s,
                size.lanes,
                100.0 * size.idle_share,
                size.gap_p50_ms,
                size.gap_p99_ms,
                size.wire_bytes_per_token,
                size.streams_identical
            )?;
        }
        Ok(())
    }
}
