//! The loop: admit what fits, keep as many steps under way as fill the wait for their partials, let go of who is done.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::mpsc;
use tokio::task::yield_now;

use super::counters::Counters;
use super::lanes::Lanes;
use super::plan::{self, Busy, Idle};
use super::step::{self, Common, Member, Stepped};
use super::stream::Stream;
use super::under_way::UnderWay;
use super::{Accepted, Event, Purpose, SchedulerConfig, StreamError};
use crate::backbone::Backbone;
use crate::shutdown::Shutdown;

/// Longest wait for a turn; a client that waits for minutes has gone or tries again.
const QUEUE_PATIENCE: Duration = Duration::from_secs(300);

/// The owner of all states; a step that is under way has those of its streams.
pub(super) struct Loop {
    common: Common,
    config: SchedulerConfig,
    orders: mpsc::Receiver<Accepted>,
    waiting: VecDeque<Accepted>,
    /// Streams that no step has, idle longest first.
    idle: Vec<Stream>,
    under_way: UnderWay,
    lanes: Lanes,
    /// Streams, idle or in a step.
    running: usize,
    /// Bytes of their states.
    held: u64,
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
        let (waiting, idle, lanes) = (VecDeque::new(), Vec::new(), Lanes::default());
        let (under_way, running, held) = (UnderWay::new(Arc::clone(&counters)), 0, 0);
        let common = Common { backbone, counters, pace: Arc::default(), shutdown: shutdown.clone() };
        Self { common, config, orders, waiting, idle, under_way, lanes, running, held, shutdown }
    }

    /// Until the process stops; then everybody is told.
    pub async fn run(mut self) {
        while self.turn().await {
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
        self.stop();
        // Those that decode end with their step; steps of prompts are given up.
        while !self.under_way.is_empty() {
            let stepped = self.under_way.next().await;
            self.idle.extend(stepped.streams);
            self.stop();
        }
    }

    /// Ends whoever is idle.
    fn stop(&mut self) {
        self.idle.iter_mut().for_each(|stream| stream.end(Err(StreamError::Stopping)));
        self.let_go();
    }

    /// Begins what can begin and waits for something to happen; `false` once nothing ever will.
    async fn turn(&mut self) -> bool {
        while let Ok(accepted) = self.orders.try_recv() {
            self.waiting.push_back(accepted);
        }
        if self.shutdown.is_requested() {
            return false;
        }
        let now = Instant::now();
        self.idle.iter_mut().for_each(|stream| stream.note_reader(now));
        self.let_go();
        self.admit(now);
        self.begin();
        let mut paused: FuturesUnordered<_> =
            self.idle.iter().filter(|stream| !stream.is_ready()).map(Stream::changed).collect();
        tokio::select! {
            stepped = self.under_way.next() => {
                drop(paused);
                self.take(stepped);
            }
            accepted = self.orders.recv() => match accepted {
                Some(accepted) => self.waiting.push_back(accepted),
                None => return false,
            },
            Some(()) = paused.next() => {}
            () = self.shutdown.wait() => return false,
        }
        true
    }

    /// Moves streams from the queue to the idle ones, first come first served, as far as memory and places go.
    fn admit(&mut self, now: Instant) {
        self.waiting.retain(|accepted| {
            let late = now - accepted.arrived >= QUEUE_PATIENCE;
            if late {
                tell(accepted, StreamError::Queue(QUEUE_PATIENCE));
            }
            !late && !accepted.events.is_closed()
        });
        let limit = self.config.state_bytes;
        while self.running < self.config.streams
            && self.waiting.front().is_some_and(|next| next.bytes <= limit - self.held)
        {
            let Some(next) = self.waiting.pop_front() else { break };
            self.held += next.bytes;
            self.running += 1;
            self.idle.push(Stream::new(&self.common.backbone, self.config.speculation, next));
        }
        let gauges = &self.common.counters.gauges;
        gauges.running.store(self.running as u64, Relaxed);
        gauges.waiting.store(self.waiting.len() as u64, Relaxed);
        gauges.state_bytes.store(self.held, Relaxed);
    }

    /// Begins steps until no lane is free or no stream is ready.
    fn begin(&mut self) {
        loop {
            let busy = Busy::from(&self.under_way);
            let Some((purpose, rows)) = plan::next(&Idle::among(&self.idle), busy, &mut self.lanes) else { return };
            let mut of = vec![0; self.idle.len()];
            rows.into_iter().for_each(|(index, rows)| of[index] = rows);
            let (members, idle): (Vec<Member>, Vec<Member>) =
                self.idle.drain(..).zip(of).partition(|(_, rows)| *rows > 0);
            self.idle.extend(idle.into_iter().map(|(stream, _)| stream));
            let decoders = match purpose {
                Purpose::Decoding(here) => here + busy.decoders,
                Purpose::Prompts(_) => busy.decoders,
            };
            self.under_way.push(purpose, step::run(self.common.clone(), members, purpose, decoders));
        }
    }

    /// Takes the streams of a step back, and learns from what it took.
    fn take(&mut self, stepped: Stepped) {
        match (stepped.purpose, stepped.cost) {
            (Purpose::Decoding(streams), Some(cost)) if streams < cost.rows => self.lanes.mixed(cost),
            (Purpose::Decoding(_), Some(cost)) => self.lanes.decoded(cost, Instant::now()),
            (Purpose::Prompts(_), Some(cost)) => self.lanes.read(cost, stepped.took),
            (_, None) => {}
        }
        self.idle.extend(stepped.streams);
        self.let_go();
    }

    /// Forgets the streams that are over, and with them their states.
    fn let_go(&mut self) {
        let Self { idle, common, running, held, .. } = self;
        idle.retain(|stream| {
            let over = stream.is_over();
            if over {
                stream.count(&common.counters);
                *running -= 1;
                *held -= stream.bytes;
            }
            !over
        });
    }
}

fn tell(accepted: &Accepted, error: StreamError) {
    // Its queue is empty: only a reader that is gone does not take it.
    let _gone = accepted.events.try_send(Event::End(Err(error)));
}
