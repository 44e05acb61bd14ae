//! What a session has under way: requests from their first part to their answer, and the bytes that they hold.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Most bytes of requests that wait or are computed, over all requests of a session.
pub(super) const LOAD_BYTES_MAX: usize = 256 << 20;

/// See the module.
pub(super) struct Load {
    requests: AtomicUsize,
    bytes: AtomicUsize,
    moved: Mutex<Instant>,
}

impl Load {
    pub fn new() -> Arc<Self> {
        let moved = Mutex::new(Instant::now());
        Arc::new(Self { requests: AtomicUsize::new(0), bytes: AtomicUsize::new(0), moved })
    }

    /// A request begins; it ends when its place is dropped.
    pub fn enter(self: &Arc<Self>) -> Place {
        self.requests.fetch_add(1, SeqCst);
        self.touch();
        Place { load: Arc::clone(self), bytes: 0 }
    }

    /// Whether every request was answered.
    pub fn is_clear(&self) -> bool {
        self.requests.load(SeqCst) == 0
    }

    /// Whether every request was answered and none came or went for `quiet`, since `start` at the earliest.
    pub fn is_quiet(&self, start: Instant, quiet: Duration) -> bool {
        let moved = *self.moved.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_clear() && moved.max(start).elapsed() >= quiet
    }

    fn touch(&self) {
        *self.moved.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

/// A request's place in the load.
pub(super) struct Place {
    load: Arc<Load>,
    bytes: usize,
}

impl Place {
    /// Adds bytes of the request; `false`, and nothing is added, when the load would be too large.
    pub fn hold(&mut self, bytes: usize) -> bool {
        let fits = |held: usize| held.checked_add(bytes).filter(|sum| *sum <= LOAD_BYTES_MAX);
        let held = self.load.bytes.fetch_update(SeqCst, SeqCst, fits).is_ok();
        self.bytes += if held { bytes } else { 0 };
        held
    }

    /// Lets go of the bytes.
    pub fn lighten(&mut self) {
        self.load.bytes.fetch_sub(std::mem::take(&mut self.bytes), SeqCst);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.lighten();
        self.load.touch();
        self.load.requests.fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_is_bounded_over_all_requests_and_falls_with_every_answer() {
        let load = Load::new();
        let (mut one, mut two) = (load.enter(), load.enter());
        assert!(one.hold(LOAD_BYTES_MAX - 1) && two.hold(1));
        assert!(!two.hold(1) && !one.hold(usize::MAX));
        drop(one);
        assert!(two.hold(LOAD_BYTES_MAX - 1) && !load.is_clear());
        two.lighten();
        assert!(load.enter().hold(LOAD_BYTES_MAX));
        drop(two);
        assert!(load.is_clear());
    }

    #[test]
    fn quiet_begins_with_the_last_answer() {
        let load = Load::new();
        let start = Instant::now();
        let place = load.enter();
        assert!(!load.is_quiet(start, Duration::ZERO));
        drop(place);
        assert!(load.is_quiet(start, Duration::ZERO) && !load.is_quiet(start, Duration::from_secs(60)));
    }
}
