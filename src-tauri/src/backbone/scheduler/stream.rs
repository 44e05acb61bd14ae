//! One running generation: its state, its share of the next step, and its tokens on their way out.

use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::time::sleep_until;

use super::counters::{Counters, add};
use super::{Accepted, Choice, Event, Order, Place, Report, StreamError};
use crate::backbone::Backbone;
use crate::backbone::generate::Finish;
use crate::backbone::logprobs::Logprobs;
use crate::backbone::sampler::Sampler;
use crate::backbone::sequence::Sequence;
use crate::backbone::step::{Served, Share, Want};

/// How long a reader may leave its queue full.
const READER_PATIENCE: Duration = Duration::from_secs(30);
/// Room that a step needs in the queue: the prompt's report, a token and an end.
const ROOM: usize = 3;

/// A stream in the batch.
pub(super) struct Stream {
    order: Order,
    sequence: Sequence,
    sampler: Sampler,
    /// Prompt tokens that the model has seen.
    prefilled: usize,
    /// The newest token, which the model has not seen.
    newest: u32,
    events: mpsc::Sender<Event>,
    /// Bytes taken from the budget.
    pub bytes: u64,
    report: Report,
    /// When its turn came.
    pub admitted: Instant,
    first_token: Option<Instant>,
    paused: Option<Instant>,
    /// Whether it ended, and if so, whether with its text.
    ended: Option<bool>,
    _place: Place,
}

impl Stream {
    /// Takes the stream's memory.
    pub fn new(backbone: &Backbone, accepted: Accepted) -> Self {
        let Accepted { order, place, events, bytes, tokens, arrived } = accepted;
        let admitted = Instant::now();
        Self {
            sequence: Sequence::with_room(&backbone.model().hyper, tokens),
            sampler: Sampler::adjusted(order.options.sampling, order.adjustments.clone()),
            prefilled: 0,
            newest: 0,
            events,
            bytes,
            report: Report { queued: admitted - arrived, ..Report::default() },
            admitted,
            first_token: None,
            paused: None,
            ended: None,
            _place: place,
            order,
        }
    }

    /// Prompt tokens that the model has not seen.
    pub fn prompt_left(&self) -> usize {
        self.order.prompt.len() - self.prefilled
    }

    /// Its share of a step.
    pub fn share(&mut self, rows: usize) -> Share<'_> {
        let left = self.prompt_left();
        let tokens = match left {
            0 => std::slice::from_ref(&self.newest),
            _ => &self.order.prompt[self.prefilled..self.prefilled + rows],
        };
        let want = if rows < left { Want::Nothing } else { Want::Last };
        Share { sequence: &mut self.sequence, tokens, want, reach: self.order.reach }
    }

    /// Takes what a step of `rows` rows gave: `logits` are those of its last row, if the prompt is read.
    pub fn advance(&mut self, rows: usize, logits: Option<&[f32]>, served: Served, experts: Duration, of: &Backbone) {
        self.prefilled = (self.prefilled + rows).min(self.order.prompt.len());
        self.report.served.remote += served.remote;
        self.report.served.local += served.local;
        self.report.experts += experts;
        let Some(logits) = logits else { return };
        let now = Instant::now();
        match self.first_token {
            None => {
                self.first_token = Some(now);
                self.report.prefill = now - self.admitted;
                self.send(Event::Prefilled(self.report));
            }
            Some(first) => self.report.decode = now - first,
        }
        let token = self.sampler.choose(logits);
        let options = &self.order.options;
        if options.stop_ids.contains(&token) {
            return self.end(Ok(Finish::Stop));
        }
        let logprobs = self.order.logprobs.map(|top| Logprobs::of(logits, token, top));
        self.newest = token;
        self.report.tokens += 1;
        let (max_tokens, context) = (options.max_tokens, of.model().hyper.context_length);
        self.send(Event::Token(Choice { token, logprobs }, self.report));
        if self.report.tokens >= max_tokens {
            self.end(Ok(Finish::Length));
        } else if self.sequence.position >= context {
            self.end(Ok(Finish::Context));
        }
    }

    /// Whether it can take part in a step: its reader has room for what comes of it.
    pub fn is_ready(&self) -> bool {
        self.events.capacity() >= ROOM
    }

    /// Notes since when the reader is behind.
    pub fn note_reader(&mut self, now: Instant) {
        self.paused = if self.is_ready() { None } else { Some(self.paused.unwrap_or(now)) };
        if self.paused.is_some_and(|since| now - since >= READER_PATIENCE) {
            self.end(Err(StreamError::Reader(READER_PATIENCE)));
        }
    }

    /// Completes when a paused stream can go on, or is to be ended.
    pub async fn changed(&self) {
        let patience = self.paused.unwrap_or_else(Instant::now) + READER_PATIENCE;
        tokio::select! {
            _ = self.events.reserve_many(ROOM) => {}
            () = self.events.closed() => {}
            () = sleep_until(patience.into()) => {}
        }
    }

    /// Whether it has ended, or nobody wants it any more.
    pub fn is_over(&self) -> bool {
        self.ended.is_some() || self.events.is_closed()
    }

    /// Ends it; the first end counts.
    pub fn end(&mut self, end: Result<Finish, StreamError>) {
        if self.ended.is_none() {
            self.ended = Some(end.is_ok());
            self.send(Event::End(end.map(|finish| (finish, self.report))));
        }
    }

    /// Counts how it went, once it is over.
    pub fn count(&self, counters: &Counters) {
        let counter = match self.ended {
            Some(true) => &counters.finished,
            Some(false) => &counters.failed,
            None => &counters.cancelled,
        };
        add(counter, 1);
    }

    /// A full queue takes nothing: its reader is told by the end of the queue.
    fn send(&self, event: Event) {
        if self.events.try_send(event).is_err() {
            tracing::debug!("an event found no reader");
        }
    }
}
