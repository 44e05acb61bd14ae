//! Runs many generations together: every step takes each one's next token, and a chunk of the prompts that wait.
//!
//! Before: an [`Order`], a prompt and how to continue it. After: [`Event`]s, one per token, and an end. While the
//! partials of one step travel, others are computed: the streams are shared out to lanes, as many as fill the wait, and
//! to one where nothing travels.
//! **Promises:** what a stream gives does not depend on what runs beside it; a prompt holds the others up for one step of
//! bounded time; a stream that decodes waits for the steps under way at most before its own begins; a step that nobody
//! waits for any more is given up, and one stream whose experts nobody may compute ends alone; the memory of a stream is computed and taken before it starts, so that the sum
//! never exceeds the budget. Why one thread: the model is computed by all cores anyway, and whoever has a state, the
//! loop or a step, has it alone and needs no lock.

mod counters;
mod lanes;
mod laps;
mod plan;
mod run;
mod step;
mod stream;
mod under_way;

pub use counters::{Counters, Gauges};

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::generate::{Finish, GenerateOptions};
use super::logprobs::Logprobs;
use super::sampler::Adjustments;
use super::sequence::state_bytes;
use super::speculate::{Speculation, Tally};
use super::step::{Reach, Served};
use super::{Backbone, ForwardError};
use crate::model::HyperParameters;
use crate::shutdown::Shutdown;

/// Memory for the states of all streams unless told otherwise: some 20 conversations of the 122B model, and little
/// beside its weights.
pub const STATE_BYTES: u64 = 4 << 30;
/// Streams at once. The logits of so many rows of the largest vocabulary take 256 MB, the rows of a step a few more; the
/// states are bounded by [`STATE_BYTES`] long before for a large model.
pub const STREAMS_MAX: usize = 256;
/// Streams that wait for their turn.
pub const WAITING_MAX: usize = 384;
/// Tokens that a slow reader may leave unread before its stream pauses.
const EVENTS: usize = 256;

/// What a scheduler may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SchedulerConfig {
    /// Bytes for the states of all running streams.
    pub state_bytes: u64,
    /// Streams that run at once.
    pub streams: usize,
    /// Streams that wait.
    pub waiting: usize,
    /// How streams speculate.
    pub speculation: Speculation,
}

impl SchedulerConfig {
    /// Bytes that a stream of `tokens` tokens takes.
    #[must_use]
    pub fn stream_bytes(&self, hyper: &HyperParameters, tokens: usize) -> u64 {
        state_bytes(hyper, tokens).saturating_add(self.speculation.bytes(hyper, tokens))
    }
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self { state_bytes: STATE_BYTES, streams: STREAMS_MAX, waiting: WAITING_MAX, speculation: Speculation::OFF }
    }
}

/// A prompt and how to continue it.
#[derive(Clone, PartialEq, Debug)]
pub struct Order {
    /// Its tokens.
    pub prompt: Vec<u32>,
    /// What ends it, and how tokens are chosen.
    pub options: GenerateOptions,
    /// What is added to the logits before a choice.
    pub adjustments: Adjustments,
    /// Where its hidden states may go.
    pub reach: Reach,
    /// Whether each token comes with its probability, and with those of so many rivals.
    pub logprobs: Option<usize>,
}

/// What a stream tells.
#[derive(Debug)]
pub enum Event {
    /// The prompt was read; a token or the end follows.
    Prefilled(Report),
    /// The next token, and what was spent so far.
    Token(Choice, Report),
    /// Nothing follows.
    End(Result<(Finish, Report), StreamError>),
}

/// A chosen token.
#[derive(Clone, PartialEq, Debug)]
pub struct Choice {
    /// The token.
    pub token: u32,
    /// Its probability, if asked for.
    pub logprobs: Option<Logprobs>,
}

/// Where a stream's time and work went so far.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Report {
    /// Waiting for its turn.
    pub queued: Duration,
    /// From its turn to its first token.
    pub prefill: Duration,
    /// From then on.
    pub decode: Duration,
    /// The part of prefill and decode that went to routed experts, here or far away.
    pub experts: Duration,
    /// New tokens.
    pub tokens: usize,
    /// Its drafts that were judged.
    pub drafts: Tally,
    /// Assignments, by who computed them.
    pub served: Served,
}

/// What a step is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Purpose {
    /// The next token of so many streams; in one lane also a chunk of prompts.
    Decoding(usize),
    /// Chunks of prompts alone, in so many parts.
    Prompts(usize),
}

impl Purpose {
    /// Parts of its step.
    fn parts(self) -> usize {
        match self {
            Self::Decoding(_) => 1,
            Self::Prompts(parts) => parts,
        }
    }
}

/// Why a stream ends before its text does.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StreamError {
    /// A step failed; every stream of the step is lost.
    #[error(transparent)]
    Step(Arc<ForwardError>),
    /// The reader left tokens unread.
    #[error("expected the client to read within {} s, it did not", .0.as_secs())]
    Reader(Duration),
    /// Other streams held the memory for too long.
    #[error("no turn within {} s: try again later", .0.as_secs())]
    Queue(Duration),
    /// The process stops.
    #[error("the server stops before the text is complete: try again")]
    Stopping,
}

/// Why an order is not accepted.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The queue is full.
    #[error("expected at most {limit} requests at once: try again later")]
    Full {
        /// Running and waiting.
        limit: usize,
    },
    /// It could never run.
    #[error(
        "expected a request whose state takes at most {limit} bytes (prompt and new tokens: {tokens_max}), \
         got one of {needed} bytes ({tokens} tokens): ask for fewer tokens, or start the server with more --state-memory"
    )]
    State {
        /// Its state.
        needed: u64,
        /// All of the budget.
        limit: u64,
        /// Its tokens, new ones included.
        tokens: usize,
        /// The most that fit.
        tokens_max: usize,
    },
    /// The process stops.
    #[error("the server stops: try again")]
    Stopping,
}

/// A place among those who run or wait; dropped, it is free again.
#[derive(Debug)]
pub struct Place {
    _permit: OwnedSemaphorePermit,
}

/// An accepted order on its way to the loop.
struct Accepted {
    order: Order,
    place: Place,
    events: mpsc::Sender<Event>,
    bytes: u64,
    tokens: usize,
    arrived: Instant,
}

/// The way in. Clones share everything.
#[derive(Clone)]
pub struct Scheduler {
    backbone: Arc<Backbone>,
    config: SchedulerConfig,
    places: Arc<Semaphore>,
    orders: mpsc::Sender<Accepted>,
    counters: Arc<Counters>,
}

impl Scheduler {
    /// Starts the loop, on a thread of its own: it computes between its awaits and must not hold up the network. Call
    /// it within a tokio runtime; it ends at `shutdown`.
    #[must_use]
    pub fn start(backbone: Arc<Backbone>, config: SchedulerConfig, shutdown: Shutdown) -> Self {
        let limit = config.streams + config.waiting;
        let (orders, incoming) = mpsc::channel(limit.max(1));
        let counters = Arc::new(Counters::default());
        let looped = run::Loop::new(Arc::clone(&backbone), config, incoming, Arc::clone(&counters), shutdown);
        let runtime = tokio::runtime::Handle::current();
        tokio::task::spawn_blocking(move || runtime.block_on(looped.run()));
        Self { backbone, config, places: Arc::new(Semaphore::new(limit)), orders, counters }
    }

    /// A place for an order, taken before anything is read of it.
    ///
    /// # Errors
    /// [`Refused::Full`].
    pub fn place(&self) -> Result<Place, Refused> {
        let taken = Arc::clone(&self.places).try_acquire_owned();
        taken
            .map(|permit| Place { _permit: permit })
            .map_err(|_| Refused::Full { limit: self.config.streams + self.config.waiting })
    }

    /// Accepts an order whose prompt [`Backbone::check_prompt`] accepts. Dropping the receiver ends the stream.
    ///
    /// # Errors
    /// [`Refused::State`] for one that could never run, [`Refused::Stopping`].
    pub fn submit(&self, place: Place, order: Order) -> Result<mpsc::Receiver<Event>, Refused> {
        let (hyper, limit) = (&self.backbone.model().hyper, self.config.state_bytes);
        let tokens = order.prompt.len().saturating_add(order.options.max_tokens).min(hyper.context_length);
        let needed = self.config.stream_bytes(hyper, tokens);
        if needed > limit {
            let (fixed, one) = (self.config.stream_bytes(hyper, 0), self.config.stream_bytes(hyper, 1));
            let tokens_max = limit.saturating_sub(fixed).checked_div(one - fixed).unwrap_or(0) as usize;
            return Err(Refused::State { needed, limit, tokens, tokens_max });
        }
        let (events, receiver) = mpsc::channel(EVENTS);
        let accepted = Accepted { order, place, events, bytes: needed, tokens, arrived: Instant::now() };
        self.orders.try_send(accepted).map_err(|_closed| Refused::Stopping)?;
        Ok(receiver)
    }

    /// Whether it still takes orders.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.orders.is_closed()
    }

    /// What was done so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What it may use.
    #[must_use]
    pub fn config(&self) -> SchedulerConfig {
        self.config
    }

    /// The model that it runs.
    #[must_use]
    pub fn backbone(&self) -> &Arc<Backbone> {
        &self.backbone
    }
}
