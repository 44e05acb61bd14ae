//! The steps under way, all computed by the thread that waits for them.
//!
//! **Promise:** whoever decodes waits for what a prompt's chunk computes between two layers whose experts travel, and for one
//! prompt at a time, whatever their number: after each of them, what else became ready has its turn.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Instant;

use futures_util::stream::{FuturesUnordered, StreamExt as _};

use super::Purpose;
use super::counters::{Counters, add_time};
use super::step::Stepped;

type Step = Pin<Box<dyn Future<Output = Stepped> + Send>>;

/// See the module.
pub(super) struct UnderWay {
    decoding: FuturesUnordered<Step>,
    /// Few, so each is asked whenever anything wakes the thread.
    prompts: Vec<Step>,
    /// Streams that decode in them.
    decoders: usize,
    counters: Arc<Counters>,
    /// Since when every step waits for its experts.
    idle_since: Option<Instant>,
}

impl UnderWay {
    /// None yet.
    pub fn new(counters: Arc<Counters>) -> Self {
        let (decoding, prompts) = (FuturesUnordered::new(), Vec::new());
        Self { decoding, prompts, decoders: 0, counters, idle_since: None }
    }

    /// Adds a step.
    pub fn push(&mut self, purpose: Purpose, step: impl Future<Output = Stepped> + Send + 'static) {
        match purpose {
            Purpose::Decoding(decoders) => {
                self.decoders += decoders;
                self.decoding.push(Box::pin(step));
            }
            Purpose::Prompts(_) => self.prompts.push(Box::pin(step)),
        }
        self.count();
    }

    /// Steps in which streams decode.
    pub fn decoding(&self) -> usize {
        self.decoding.len()
    }

    /// Steps that only read prompts.
    pub fn prompts(&self) -> usize {
        self.prompts.len()
    }

    /// Streams that decode in them.
    pub fn decoders(&self) -> usize {
        self.decoders
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.decoding.is_empty() && self.prompts.is_empty()
    }

    /// Computes until a step ends; for ever when there is none.
    pub async fn next(&mut self) -> Stepped {
        let stepped = poll_fn(|context| self.poll(context)).await;
        if let Purpose::Decoding(decoders) = stepped.purpose {
            self.decoders -= decoders;
        }
        self.count();
        stepped
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Stepped> {
        if let Some(since) = self.idle_since.take() {
            add_time(&self.counters.idle_us, since.elapsed());
        }
        let stepped = self.compute(context);
        if stepped.is_pending() && !self.is_empty() {
            self.idle_since = Some(Instant::now());
        }
        stepped
    }

    fn compute(&mut self, context: &mut Context<'_>) -> Poll<Stepped> {
        if let Poll::Ready(Some(stepped)) = self.decoding.poll_next_unpin(context) {
            return Poll::Ready(stepped);
        }
        for index in 0..self.prompts.len() {
            if let Poll::Ready(stepped) = self.prompts[index].as_mut().poll(context) {
                drop(self.prompts.swap_remove(index));
                return Poll::Ready(stepped);
            }
            if let Poll::Ready(Some(stepped)) = self.decoding.poll_next_unpin(context) {
                return Poll::Ready(stepped);
            }
        }
        Poll::Pending
    }

    fn count(&self) {
        let lanes = self.decoding.len() + self.prompts.len();
        self.counters.gauges.lanes.store(lanes as u64, Relaxed);
    }
}
