//! Time, passed in so that tests can move it.
//!
//! Deadlines, back-off and leases use [`Clock::mono`]; only what a person reads uses [`Clock::unix_ms`].

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A source of monotonic and wall time.
pub trait Clock: Send + Sync + 'static {
    /// Time since some fixed start; never goes back.
    fn mono(&self) -> Duration;
    /// Wall time in milliseconds since 1970.
    fn unix_ms(&self) -> u64;
}

/// The machine's clocks.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self { start: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn mono(&self) -> Duration {
        self.start.elapsed()
    }

    fn unix_ms(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}
