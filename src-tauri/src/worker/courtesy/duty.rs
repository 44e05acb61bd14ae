//! The duty cycle: after every computation a rest, so that computing takes no more than its part of the time.
//!
//! Below 100 % one computation runs at a time, because two at once would make the machine twice as busy. **Promise:**
//! a rest ends at once when its session does.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// See the module. Cheap to clone; all clones share one machine.
#[derive(Clone)]
pub struct Duty(Arc<Shared>);

struct Shared {
    percent: AtomicU8,
    turn: Mutex<Turn>,
    freed: Condvar,
}

struct Turn {
    is_taken: bool,
    /// Nobody computes before.
    rest_until: Instant,
}

impl Default for Duty {
    fn default() -> Self {
        let turn = Turn { is_taken: false, rest_until: Instant::now() };
        Self(Arc::new(Shared { percent: AtomicU8::new(100), turn: Mutex::new(turn), freed: Condvar::new() }))
    }
}

impl Duty {
    /// Allows `percent` of the time, 1–100, from the next computation on.
    pub fn set(&self, percent: u8) {
        self.0.percent.store(percent.clamp(1, 100), Relaxed);
        self.0.freed.notify_all();
    }

    /// Percent of the time that may be computed.
    #[must_use]
    pub fn percent(&self) -> u8 {
        self.0.percent.load(Relaxed)
    }

    /// Computes once it may; `None`, and nothing is computed, when that is not before `deadline` or `is_over` says so
    /// meanwhile.
    pub fn compute<T>(&self, deadline: Instant, is_over: impl Fn() -> bool, compute: impl FnOnce() -> T) -> Option<T> {
        if self.percent() == 100 {
            return Some(compute());
        }
        self.wait(deadline, is_over)?;
        // Given back also when a kernel panics.
        let taken = Taken { shared: &self.0, since: Instant::now() };
        let computed = compute();
        drop(taken);
        Some(computed)
    }

    fn wait(&self, deadline: Instant, is_over: impl Fn() -> bool) -> Option<()> {
        /// Between two looks at whether it is all over.
        const LOOK: Duration = Duration::from_millis(50);
        let mut turn = self.0.turn.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let now = Instant::now();
            let is_free = !turn.is_taken && (now >= turn.rest_until || self.percent() == 100);
            if is_free {
                turn.is_taken = true;
                return Some(());
            }
            if now >= deadline || turn.rest_until >= deadline || is_over() {
                return None;
            }
            let rest = if turn.is_taken { LOOK } else { turn.rest_until.saturating_duration_since(now).min(LOOK) };
            turn =
                self.0.freed.wait_timeout(turn, rest).map_or_else(|poisoned| poisoned.into_inner().0, |woken| woken.0);
        }
    }
}

/// A computation under way.
struct Taken<'a> {
    shared: &'a Shared,
    since: Instant,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut turn = self.shared.turn.lock().unwrap_or_else(PoisonError::into_inner);
        turn.rest_until = Instant::now() + rest_after(self.since.elapsed(), self.shared.percent.load(Relaxed));
        turn.is_taken = false;
        drop(turn);
        self.shared.freed.notify_one();
    }
}

/// The rest that makes a computation `percent` of both together.
fn rest_after(computed: Duration, percent: u8) -> Duration {
    let percent = u32::from(percent.clamp(1, 100));
    computed * (100 - percent) / percent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rest_makes_up_for_the_work_before_it() {
        let ms = Duration::from_millis;
        for (percent, rest) in [(100, 0), (50, 10), (25, 30), (10, 90), (1, 990), (0, 990)] {
            assert_eq!(rest_after(ms(10), percent), ms(rest), "{percent}");
        }
    }

    #[test]
    fn computing_takes_its_part_of_the_time_however_many_compute() {
        let duty = Duty::default();
        duty.set(25);
        let (start, far) = (Instant::now(), Instant::now() + Duration::from_secs(60));
        let busy = Mutex::new(Duration::ZERO);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..3 {
                        let work = || {
                            let since = Instant::now();
                            std::thread::sleep(Duration::from_millis(10));
                            *busy.lock().unwrap() += since.elapsed();
                        };
                        duty.compute(far, || false, work).unwrap();
                    }
                });
            }
        });
        // The last computation's rest is still to come.
        let (whole, busy) = (start.elapsed() + Duration::from_millis(30), *busy.lock().unwrap());
        assert!(busy * 4 <= whole + Duration::from_millis(5), "{busy:?} of {whole:?}");
    }

    #[test]
    fn who_cannot_be_served_in_time_or_is_gone_is_told_at_once() {
        let duty = Duty::default();
        duty.set(1);
        let far = Instant::now() + Duration::from_secs(60);
        duty.compute(far, || false, || std::thread::sleep(Duration::from_millis(5))).unwrap();
        let soon = Instant::now() + Duration::from_millis(20);
        assert_eq!(duty.compute(soon, || false, || ()), None, "the rest is longer");
        assert_eq!(duty.compute(far, || true, || ()), None);
        duty.set(100);
        assert_eq!(duty.compute(Instant::now(), || true, || 7), Some(7), "without a duty cycle nothing is asked");
    }
}
