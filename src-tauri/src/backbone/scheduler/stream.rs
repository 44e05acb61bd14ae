//! One running generation: its state, its share of the next step, and its tokens on their way out.

use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::time::sleep_until;

use super::counters::{Counters, add};
use super::{Accepted, Choice, Event, Order, Place, Report, StreamError};
use crate::backbone::Backbone;
use crate::backbone::generate::Finish;
use crate::backbone::logprobs::Logprobs;
use crate::backbone::rows::Rows;
use crate::backbone::sampler::Sampler;
use crate::backbone::sequence::Sequence;
use crate::backbone::speculate::{DRAFTS_MAX, Drafter, Pace, Room, Speculation};
use crate::backbone::step::{Served, Share, Want};

/// How long a reader may leave its queue full.
const READER_PATIENCE: Duration = Duration::from_secs(30);
/// Room that a step needs in the queue: the prompt's report, a token, those that were drafted, and an end.
const ROOM: usize = 3 + DRAFTS_MAX;

/// What a step gave for one stream.
#[derive(Clone, Copy)]
pub(super) struct Given<'a> {
    /// Rows that it had.
    pub rows: usize,
    /// Of its last row, if its prompt is read by now, or of its newest token and of its drafts.
    pub logits: &'a Rows,
    /// Its rows behind the final norm, `[rows, hidden]`; empty when nobody in the step reads them.
    pub hidden: &'a [f32],
    /// Its assignments.
    pub served: Served,
    /// Time of the step that went to routed experts.
    pub experts: Duration,
}

/// A stream in the batch.
pub(super) struct Stream {
    order: Order,
    sequence: Sequence,
    sampler: Sampler,
    /// Prompt tokens that the model has seen.
    prefilled: usize,
    /// The newest token, which the model has not seen, and the drafts behind it.
    turn: Vec<u32>,
    drafter: Drafter,
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
    pub fn new(backbone: &Backbone, speculation: Speculation, accepted: Accepted) -> Self {
        let Accepted { order, place, events, bytes, tokens, arrived } = accepted;
        let admitted = Instant::now();
        Self {
            sequence: Sequence::with_room(&backbone.model().hyper, tokens),
            sampler: Sampler::adjusted(order.options.sampling, order.adjustments.clone()),
            prefilled: 0,
            turn: Vec::with_capacity(1 + DRAFTS_MAX),
            drafter: Drafter::new(backbone, speculation, &order.prompt, tokens),
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

    /// Who reads its events.
    pub fn client(&self) -> mpsc::Sender<Event> {
        self.events.clone()
    }

    /// Prompt tokens that the model has not seen.
    pub fn prompt_left(&self) -> usize {
        self.order.prompt.len() - self.prefilled
    }

    /// Decides on the drafts of its next step, if it decodes, as far as there is room; the head's are still to be made.
    pub fn plan(&mut self, room: &mut Room, context: usize, pace: &Pace) {
        if self.prompt_left() == 0 {
            let new = self.order.options.max_tokens.saturating_sub(self.report.tokens);
            let left = new.min(context.saturating_sub(self.sequence.position));
            self.drafter.plan(left.saturating_sub(1), room, pace);
        }
    }

    /// Its drafts, and what chooses its tokens.
    pub fn drafting(&mut self) -> (&mut Drafter, &Sampler) {
        (&mut self.drafter, &self.sampler)
    }

    /// Steps in a row that had no room for its drafts.
    pub fn passed_over(&self) -> u32 {
        self.drafter.passed_over()
    }

    /// Rows of its drafts.
    pub fn drafts(&self) -> usize {
        self.drafter.drafts().len()
    }

    /// Its share of a step; `rows` of its prompt, if it reads one.
    pub fn share(&mut self, rows: usize) -> Share<'_> {
        let left = self.prompt_left();
        let (tokens, want) = match left {
            0 => {
                self.turn.truncate(1);
                self.turn.extend_from_slice(self.drafter.drafts());
                (&self.turn[..], Want::Drafts)
            }
            _ => {
                let want = if rows < left { Want::Nothing } else { Want::Last };
                (&self.order.prompt[self.prefilled..self.prefilled + rows], want)
            }
        };
        Share { sequence: &mut self.sequence, tokens, want, reach: self.order.reach }
    }

    /// Takes what a step gave for its rows, drafts included.
    pub fn advance(&mut self, given: &Given<'_>, of: &Backbone, counters: &Counters) {
        let Given { rows, logits, hidden, served, experts } = *given;
        let (was_read, width) = (self.prefilled, of.model().hyper.hidden_size);
        self.prefilled = (was_read + rows).min(self.order.prompt.len());
        self.report.served.remote += served.remote;
        self.report.served.local += served.local;
        self.report.experts += experts;
        if self.prefilled > was_read {
            self.drafter.read(was_read, width, hidden);
        }
        if logits.is_empty() {
            return;
        }
        self.time();
        self.take(logits, of.model().hyper.context_length, counters);
        let tally = self.drafter.judge(self.ended.is_none());
        let accepted = tally.accepted as usize;
        self.report.drafts.add(tally);
        add(&counters.turns, 1);
        add(&counters.drafted, tally.drafted);
        add(&counters.accepted, tally.accepted);
        if self.prefilled == was_read && self.ended.is_none() {
            let first = self.sequence.position - 1;
            of.accept(&mut self.sequence, accepted);
            self.drafter.read(first, width, &hidden[..hidden.len().min((accepted + 1) * width)]);
        }
    }

    fn time(&mut self) {
        let now = Instant::now();
        match self.first_token {
            None => {
                self.first_token = Some(now);
                self.report.prefill = now - self.admitted;
                self.send(Event::Prefilled(self.report));
            }
            Some(first) => self.report.decode = now - first,
        }
    }

    /// Chooses and gives out a token, and one more for every draft that was the choice.
    fn take(&mut self, logits: &Rows, context: usize, counters: &Counters) {
        for (row, logits) in logits.iter().enumerate() {
            let token = self.sampler.choose(logits);
            add(&counters.new_tokens, 1);
            let options = &self.order.options;
            if options.stop_ids.contains(&token) {
                self.end(Ok(Finish::Stop));
                break;
            }
            let logprobs = self.order.logprobs.map(|top| Logprobs::of(logits, token, top));
            self.turn.clear();
            self.turn.push(token);
            self.report.tokens += 1;
            let max_tokens = options.max_tokens;
            self.send(Event::Token(Choice { token, logprobs }, self.report));
            if self.report.tokens >= max_tokens {
                self.end(Ok(Finish::Length));
            } else if self.sequence.position + row >= context {
                self.end(Ok(Finish::Context));
            }
            if self.ended.is_some() || !self.drafter.take(token) {
                break;
            }
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
