//! The loop: admit what fits, run a step over everybody, give out tokens, let go of who is done.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::mpsc;
use tokio::task::yield_now;

use super::counters::{Counters, add, add_time};
use super::stream::Stream;
use super::{Accepted, Event, SchedulerConfig, StreamError};
use crate::backbone::step::Share;
use crate::backbone::{Backbone, PREFILL_TOKENS};
use crate::kernel::Crew;
use crate::shutdown::Shutdown;

/// Prompt tokens in a step that others wait for; whole chunks of the delta rule.
const PREFILL_BESIDE: usize = 256;
/// Longest wait for a turn; a client that waits for minutes has gone or tries again.
const QUEUE_PATIENCE: Duration = Duration::from_secs(300);
/// Work of choosing, in multiplications per logit.
const CHOICE_WORK: usize = 2;

/// The owner of all states.
pub(super) struct Loop {
    backbone: Arc<Backbone>,
    config: SchedulerConfig,
    orders: mpsc::Receiver<Accepted>,
    waiting: VecDeque<Accepted>,
    running: Vec<Stream>,
    counters: Arc<Counters>,
    shutdown: Shutdown,
}

impl Loop {
    pub fn new(
        backbone: Arc<Backbone>,
        config: SchedulerConfig,
        orders: mpsc::Receiver<Accepted>,
        counters: Arc<Counters>,
        shutdown: Shutdown,
    ) -> Self {
        let (waiting, running) = (VecDeque::new(), Vec::new());
        Self { backbone, config, orders, waiting, running, counters, shutdown }
    }

    /// Until the process stops; then everybody is told.
    pub async fn run(mut self) {
        while self.gather().await {
            self.step().await;
            // Local experts never wait: without this, nothing else on this thread would get a turn.
            yield_now().await;
        }
        self.orders.close();
        while let Ok(accepted) = self.orders.try_recv() {
            self.waiting.push_back(accepted);
        }
        for accepted in self.waiting.drain(..) {
            tell(&accepted, StreamError::Stopping);
        }
        self.running.iter_mut().for_each(|stream| stream.end(Err(StreamError::Stopping)));
        self.let_go();
    }

    /// Waits until there is something to compute; `false` once there never will be.
    async fn gather(&mut self) -> bool {
        loop {
            while let Ok(accepted) = self.orders.try_recv() {
                self.waiting.push_back(accepted);
            }
            if self.shutdown.is_requested() {
                return false;
            }
            let now = Instant::now();
            self.running.iter_mut().for_each(|stream| stream.note_reader(now));
            self.let_go();
            self.admit(now);
            if self.running.iter().any(Stream::is_ready) {
                return true;
            }
            let mut paused: FuturesUnordered<_> = self.running.iter().map(Stream::changed).collect();
            tokio::select! {
                accepted = self.orders.recv() => match accepted {
                    Some(accepted) => self.waiting.push_back(accepted),
                    None => return false,
                },
                Some(()) = paused.next() => {}
                () = self.shutdown.wait() => return false,
            }
        }
    }

    /// Moves streams from the queue into the batch, first come first served, as far as memory and places go.
    fn admit(&mut self, now: Instant) {
        self.waiting.retain(|accepted| {
            let late = now - accepted.arrived >= QUEUE_PATIENCE;
            if late {
                tell(accepted, StreamError::Queue(QUEUE_PATIENCE));
            }
            !late && !accepted.events.is_closed()
        });
        let mut free = self.config.state_bytes - self.running.iter().map(|stream| stream.bytes).sum::<u64>();
        while self.running.len() < self.config.streams && self.waiting.front().is_some_and(|next| next.bytes <= free) {
            let Some(next) = self.waiting.pop_front() else { break };
            free -= next.bytes;
            self.running.push(Stream::new(&self.backbone, next));
        }
        let gauges = &self.counters.gauges;
        gauges.running.store(self.running.len() as u64, Relaxed);
        gauges.waiting.store(self.waiting.len() as u64, Relaxed);
        gauges.state_bytes.store(self.config.state_bytes - free, Relaxed);
    }

    /// One forward pass over every stream that is ready, and what follows from it.
    async fn step(&mut self) {
        let rows = self.plan();
        let mut part: Vec<(&mut Stream, usize)> =
            self.running.iter_mut().zip(rows).filter(|(_, rows)| *rows > 0).collect();
        let prompt_rows =
            part.iter().filter(|(stream, _)| stream.prompt_left() > 0).map(|(_, rows)| *rows as u64).sum();
        let all_rows = part.iter().map(|(_, rows)| *rows as u64).sum();

        let start = Instant::now();
        let mut shares: Vec<Share<'_>> = part.iter_mut().map(|(stream, rows)| stream.share(*rows)).collect();
        let stepped = self.backbone.step(&mut shares).await;
        drop(shares);
        let counters = &self.counters;
        add(&counters.steps, 1);
        add(&counters.step_rows, all_rows);
        add_time(&counters.step_us, start.elapsed());
        let output = match stepped {
            Ok(output) => output,
            Err(error) => {
                tracing::error!(%error, streams = part.len(), "a step failed");
                let error = Arc::new(error);
                part.iter_mut().for_each(|(stream, _)| stream.end(Err(StreamError::Step(Arc::clone(&error)))));
                return self.let_go();
            }
        };
        add(&counters.prompt_tokens, prompt_rows);
        add_time(&counters.experts_us, output.experts);
        for served in &output.served {
            add(&counters.assignments_remote, served.remote);
            add(&counters.assignments_local, served.local);
        }
        add(&counters.new_tokens, output.logits.iter().map(|rows| rows.len() as u64).sum());

        let logits: usize = output.logits.iter().map(|rows| rows.values().len()).sum();
        let given = part.iter_mut().zip(&output.logits).zip(&output.served);
        Crew::all().each(
            CHOICE_WORK * logits,
            given,
            || (),
            |(), (((stream, rows), logits), served)| {
                let logits = (!logits.is_empty()).then(|| logits.row(0));
                stream.advance(*rows, logits, *served, output.experts, &self.backbone);
            },
        );
        self.let_go();
    }

    /// Rows of the next step for each running stream; 0 sits it out.
    ///
    /// Every decoding stream has one. The oldest unread prompt gets what the younger ones leave of the budget, which
    /// have at most half, the shortest first: a long prompt neither starves nor holds up the short ones behind it.
    fn plan(&self) -> Vec<usize> {
        let mut rows = vec![0; self.running.len()];
        let ready = |i: &usize| self.running[*i].is_ready();
        let (mut prompts, decoding): (Vec<usize>, Vec<usize>) =
            (0..self.running.len()).filter(ready).partition(|i| self.running[*i].prompt_left() > 0);
        decoding.iter().for_each(|i| rows[*i] = 1);
        if prompts.is_empty() {
            return rows;
        }
        let mut budget = if decoding.is_empty() { PREFILL_TOKENS } else { PREFILL_BESIDE };
        let oldest = prompts.remove(0);
        prompts.sort_by_key(|i| self.running[*i].prompt_left());
        let mut half = budget / 2;
        for i in &prompts {
            rows[*i] = self.running[*i].rows_of(half);
            (half, budget) = (half - rows[*i], budget - rows[*i]);
        }
        rows[oldest] = self.running[oldest].rows_of(budget);
        budget -= rows[oldest];
        for i in &prompts {
            if rows[*i] > 0 {
                continue;
            }
            rows[*i] = self.running[*i].rows_of(budget);
            budget -= rows[*i];
        }
        rows
    }

    /// Forgets the streams that are over, and with them their states.
    fn let_go(&mut self) {
        let counters = &self.counters;
        self.running.retain(|stream| {
            let over = stream.is_over();
            if over {
                stream.count(counters);
            }
            !over
        });
    }
}

fn tell(accepted: &Accepted, error: StreamError) {
    // Its queue is empty: only a reader that is gone does not take it.
    let _gone = accepted.events.try_send(Event::End(Err(error)));
}
