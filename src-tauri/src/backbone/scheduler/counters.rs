//! What the scheduler did and holds, in numbers that `/metrics` shows.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Running counters; every field but those of [`Gauges`] only grows.
#[derive(Debug, Default)]
pub struct Counters {
    /// What is held now.
    pub gauges: Gauges,
    /// Forward passes that ended.
    pub steps: AtomicU64,
    /// Rows of all of them: prompt tokens, and of each decoding stream one and its drafts.
    pub step_rows: AtomicU64,
    /// Time of all steps, microseconds; those that overlap count each.
    pub step_us: AtomicU64,
    /// The part of it that went to routed experts.
    pub experts_us: AtomicU64,
    /// Time in which every step under way waited for routed experts, and nothing was computed.
    pub idle_us: AtomicU64,
    /// Prompt tokens read.
    pub prompt_tokens: AtomicU64,
    /// Tokens given out.
    pub new_tokens: AtomicU64,
    /// Turns: a stream had a step that chose a token of it or several.
    pub turns: AtomicU64,
    /// Drafts that were judged.
    pub drafted: AtomicU64,
    /// Those of them that were right.
    pub accepted: AtomicU64,
    /// Streams that ended with their text.
    pub finished: AtomicU64,
    /// Streams whose client went away.
    pub cancelled: AtomicU64,
    /// Streams that ended with an error.
    pub failed: AtomicU64,
    /// Assignments that workers computed.
    pub assignments_remote: AtomicU64,
    /// Assignments computed on this machine.
    pub assignments_local: AtomicU64,
}

/// What is held at the moment.
#[derive(Debug, Default)]
pub struct Gauges {
    /// Streams that take turns in steps.
    pub running: AtomicU64,
    /// Steps under way at once.
    pub lanes: AtomicU64,
    /// Streams that wait for memory or a turn.
    pub waiting: AtomicU64,
    /// Bytes taken by the states of the running ones.
    pub state_bytes: AtomicU64,
}

/// Adds to a counter.
pub(super) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}

/// Adds a time to a counter of microseconds.
pub(super) fn add_time(counter: &AtomicU64, time: Duration) {
    add(counter, u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
}
