//! Notices that the machine slept: its link may look alive for minutes, and its hardware may be another one.
//!
//! Systems differ in whether the monotonic clock goes on in sleep, so both clocks are looked at: a look that comes far too
//! late, or a wall clock that ran far ahead of the monotonic one, means sleep. A wall clock that is set forward looks the
//! same and costs one reconnect; one that is set back means nothing.

use std::time::Duration;

use crate::clock::Clock;

/// What either clock may run ahead before it counts as sleep; a busy machine is late by less.
const AHEAD_MAX: Duration = Duration::from_secs(20);

/// Both clocks at one moment.
#[derive(Clone, Copy)]
struct Moment {
    mono: Duration,
    wall: Duration,
}

impl Moment {
    fn of(clock: &dyn Clock) -> Self {
        Self { mono: clock.mono(), wall: Duration::from_millis(clock.unix_ms()) }
    }

    /// Whether the machine slept between this look and the next, which was due `every` later.
    fn slept_before(self, next: Self, every: Duration) -> bool {
        let mono = next.mono.saturating_sub(self.mono);
        let wall = next.wall.saturating_sub(self.wall);
        mono > every + AHEAD_MAX || wall > mono + AHEAD_MAX
    }
}

/// Completes once the machine has slept, within `every` of its waking.
pub(crate) async fn slept(clock: &dyn Clock, every: Duration) {
    let mut last = Moment::of(clock);
    loop {
        tokio::time::sleep(every).await;
        let now = Moment::of(clock);
        if last.slept_before(now, every) {
            return;
        }
        last = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_time_that_is_missing_is_sleep() {
        let hour = 3600;
        let at = |mono, wall| Moment { mono: Duration::from_secs(mono), wall: Duration::from_secs(wall) };
        let slept = |next| at(10_000, 50_000).slept_before(next, Duration::from_secs(1));
        assert!(!slept(at(10_001, 50_001)));
        assert!(!slept(at(10_015, 50_015)), "a busy machine");
        assert!(slept(at(10_000 + 3 * hour, 50_000 + 3 * hour)), "a clock that goes on in sleep");
        assert!(slept(at(10_001, 50_000 + 3 * hour)), "one that does not");
        assert!(!slept(at(10_001, 50_000 - hour)), "a wall clock that is set back");
    }
}
