//! How fast experts come, and how long the rest takes.

use std::time::Duration;

/// Part of the newest measure in the speed, of 8: a few seconds count.
const NEWEST: u64 = 2;

/// Watches verified bytes grow.
#[derive(Debug, Default)]
pub(super) struct Meter {
    last: Option<(Duration, u64, u64)>,
    bytes_per_s: Option<u64>,
}

impl Meter {
    /// `done` of `total` bytes are here at `mono`; gives bytes per second and the seconds that the rest takes.
    pub fn see(&mut self, mono: Duration, done: u64, total: u64) -> (u64, Option<u64>) {
        match self.last {
            Some((at, before, of)) if of == total && done >= before => {
                let passed = mono.saturating_sub(at);
                if passed >= Duration::from_secs(1) {
                    let now = ((done - before) as f64 / passed.as_secs_f64()) as u64;
                    let speed = self.bytes_per_s.map_or(now, |speed| speed / 8 * (8 - NEWEST) + now / 8 * NEWEST);
                    self.bytes_per_s = Some(speed);
                    self.last = Some((mono, done, total));
                }
            }
            // Another slice; the line is the same.
            _ => self.last = Some((mono, done, total)),
        }
        let speed = self.bytes_per_s.unwrap_or(0);
        (speed, self.seconds(total.saturating_sub(done)))
    }

    /// Seconds that `bytes` take at the speed of late.
    pub fn seconds(&self, bytes: u64) -> Option<u64> {
        self.bytes_per_s.filter(|speed| *speed > 0).map(|speed| bytes.div_ceil(speed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_speed_is_that_of_the_last_seconds_and_another_slice_does_not_spoil_it() {
        let mut meter = Meter::default();
        let at = Duration::from_secs;
        assert_eq!(meter.see(at(0), 0, 1000), (0, None));
        assert_eq!(meter.see(Duration::from_millis(500), 90, 1000), (0, None), "too soon to tell");
        assert_eq!(meter.see(at(2), 200, 1000), (100, Some(8)));
        assert_eq!(meter.see(at(3), 200, 1000).0, 72, "a second without anything");
        let before = meter.see(at(3), 200, 1000).0;
        assert_eq!(meter.see(at(4), 0, 5000).0, before, "another slice");
        assert_eq!(meter.seconds(u64::MAX), Some(u64::MAX.div_ceil(before)));
    }
}
