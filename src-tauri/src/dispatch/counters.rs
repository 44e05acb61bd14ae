//! What dispatch did, in numbers that a test, a bench or a person can read.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use serde::Serialize;

/// Running counters; every field only grows.
#[derive(Debug, Default)]
pub struct Counters {
    /// Assignments whose partials came from a worker and were used.
    pub assignments_remote: AtomicU64,
    /// Assignments of remote layers computed here, recomputed ones included.
    pub assignments_local: AtomicU64,
    /// Assignments that were sent out and then computed here after all.
    pub recomputed: AtomicU64,
    /// Assignments that were sent to a replica after somebody else had not brought them.
    pub hedged: AtomicU64,
    /// Requests that outlived two workers.
    pub poisonous: AtomicU64,
    /// Requests that a worker declined.
    pub declined: AtomicU64,
    /// Requests that missed their deadline.
    pub late: AtomicU64,
    /// Requests lost because their session ended.
    pub lost: AtomicU64,
    /// Frames refused: malformed, duplicate, or nobody's.
    pub refused: AtomicU64,
    /// Requests sent.
    pub requests: AtomicU64,
    /// Work bytes of the accepted assignments.
    pub work_bytes: AtomicU64,
    /// Bytes of work frames both ways, headers included.
    pub raw_bytes: AtomicU64,
    /// Time of a layer-step that had a remote part, from sending to the last partial.
    pub layer_step: Histogram,
}

/// [`Counters`] at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "the fields are those of `Counters`")]
pub struct Counts {
    pub assignments_remote: u64,
    pub assignments_local: u64,
    pub recomputed: u64,
    pub hedged: u64,
    pub poisonous: u64,
    pub declined: u64,
    pub late: u64,
    pub lost: u64,
    pub refused: u64,
    pub requests: u64,
    pub work_bytes: u64,
    pub raw_bytes: u64,
    pub layer_steps: u64,
    pub layer_step_p50_us: u64,
    pub layer_step_p99_us: u64,
}

impl Counters {
    /// Adds to one of the counters.
    pub(super) fn add(counter: &AtomicU64, n: usize) {
        counter.fetch_add(n as u64, Relaxed);
    }

    /// The counters now.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let of = |counter: &AtomicU64| counter.load(Relaxed);
        Counts {
            assignments_remote: of(&self.assignments_remote),
            assignments_local: of(&self.assignments_local),
            recomputed: of(&self.recomputed),
            hedged: of(&self.hedged),
            poisonous: of(&self.poisonous),
            declined: of(&self.declined),
            late: of(&self.late),
            lost: of(&self.lost),
            refused: of(&self.refused),
            requests: of(&self.requests),
            work_bytes: of(&self.work_bytes),
            raw_bytes: of(&self.raw_bytes),
            layer_steps: self.layer_step.samples(),
            layer_step_p50_us: self.layer_step.quantile_us(0.5),
            layer_step_p99_us: self.layer_step.quantile_us(0.99),
        }
    }
}

/// Buckets per power of two: quantiles are right within 1/16.
const FINE: u64 = 16;
/// Powers of two of microseconds covered (2^26 µs = 67 s); longer counts as the last.
const POWERS: usize = 26;

/// Durations in logarithmic buckets: constant memory, no lock.
#[derive(Debug)]
pub struct Histogram {
    buckets: [AtomicU64; FINE as usize * POWERS],
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: std::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl Histogram {
    /// The first `FINE` buckets are single microseconds, then each power of two has `FINE` buckets.
    fn bucket(us: u64) -> usize {
        if us < FINE {
            return us as usize;
        }
        let shift = us.ilog2() - FINE.ilog2();
        let index = FINE * u64::from(shift + 1) + ((us >> shift) - FINE);
        (index as usize).min(FINE as usize * POWERS - 1)
    }

    fn lower_us(bucket: usize) -> u64 {
        let (power, fine) = (bucket as u64 / FINE, bucket as u64 % FINE);
        if power == 0 { fine } else { (FINE + fine) << (power - 1) }
    }

    /// Notes one duration.
    pub fn record(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.buckets[Self::bucket(us)].fetch_add(1, Relaxed);
    }

    /// Durations noted.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.buckets.iter().map(|b| b.load(Relaxed)).sum()
    }

    /// The duration that a share `q` of the samples does not exceed, in microseconds, rounded down to its bucket;
    /// 0 without samples.
    #[must_use]
    pub fn quantile_us(&self, q: f64) -> u64 {
        let wanted = (self.samples() as f64 * q).ceil() as u64;
        let mut seen = 0;
        for (index, bucket) in self.buckets.iter().enumerate() {
            seen += bucket.load(Relaxed);
            if seen >= wanted && seen > 0 {
                return Self::lower_us(index);
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_within_a_sixteenth() {
        let histogram = Histogram::default();
        assert_eq!(histogram.quantile_us(0.5), 0);
        (1..=10_000).for_each(|us| histogram.record(Duration::from_micros(us)));
        for (q, expected) in [(0.01, 100.0), (0.5, 5_000.0), (0.99, 9_900.0)] {
            let got = histogram.quantile_us(q) as f64;
            assert!(got <= expected && got > expected * (1.0 - 1.0 / 16.0), "{q}: {got}");
        }
    }

    #[test]
    fn every_bucket_starts_where_it_says() {
        for index in 0..FINE as usize * POWERS {
            assert_eq!(Histogram::bucket(Histogram::lower_us(index)), index);
        }
        assert_eq!(Histogram::bucket(u64::MAX), FINE as usize * POWERS - 1);
    }
}
