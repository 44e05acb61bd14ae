//! What a step costs, and what one more row in it: found while streams run, since it depends on the model, the machine
//! and how far away the experts are.
//!
//! A step of r rows takes about `lap + r · row`. Both are the least-squares line through the last steps, older ones
//! counting less. Rows that never vary say nothing about the slope, so the first steps vary them on purpose.

use std::time::Duration;

use super::{DRAFTS_MAX, Making};

/// What a step leaves of the weight of those before it: some fifty count.
const KEEP: f64 = 0.98;
/// Least variance of the rows of the counted steps that says something about the slope.
const VARIANCE_MIN: f64 = 0.1;
/// Steps before the line is believed.
const LEARNT: u32 = 8;
/// Drafts of the steps before.
const LEARNING: [usize; 4] = [2, 1, 3, 1];
/// A step that takes longer than so many usual ones met an accident, and counts as one that took as long as this.
const OUTLIER: f64 = 4.0;

/// The measured costs of a backbone's steps; all its streams share it.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    /// Weighted sums over the steps: 1, rows, rows², seconds, rows · seconds.
    sums: [f64; 5],
    steps: u32,
    row_s: Option<f64>,
    draft_s: f64,
    load: Load,
}

/// Streams that decode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load {
    /// In one step.
    pub here: usize,
    /// In this step and in those that run beside it.
    pub all: usize,
}

impl Default for Load {
    fn default() -> Self {
        Self { here: 1, all: 1 }
    }
}

/// What drafts would bring a stream.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Gain {
    /// How many pay most.
    pub drafts: usize,
    /// Tokens per second of all streams then.
    pub rate: f64,
}

impl Pace {
    /// Notes a step without prompt rows: `rows` of all its streams, one each and their drafts.
    pub fn stepped(&mut self, load: Load, rows: usize, time: Duration) {
        let (rows, mut seconds) = (rows as f64, time.as_secs_f64());
        if self.steps >= LEARNT {
            seconds = seconds.min(OUTLIER * self.step_s(rows));
        }
        for (sum, new) in self.sums.iter_mut().zip([1.0, rows, rows * rows, seconds, rows * seconds]) {
            *sum = *sum * KEEP + new;
        }
        self.load = load;
        self.steps = self.steps.saturating_add(1);
        let [n, r, rr, s, rs] = self.sums;
        let variance = rr / n - (r / n) * (r / n);
        if variance >= VARIANCE_MIN {
            let slope = (rs / n - r / n * (s / n)) / variance;
            // Neither less than nothing nor more than all.
            self.row_s = Some(slope.clamp(0.0, s / r));
        }
    }

    /// Notes what the head took for drafts.
    pub fn made(&mut self, making: Making) {
        if making.drafts == 0 {
            return;
        }
        let one = making.time.as_secs_f64() / making.drafts as f64;
        self.draft_s = if self.draft_s == 0.0 { one } else { self.draft_s.mul_add(0.9, 0.1 * one) };
    }

    /// How many drafts a stream should try while too little is known; `None` once enough is.
    pub(super) fn learning(&self) -> Option<usize> {
        let known = self.steps >= LEARNT && self.row_s.is_some();
        (!known).then(|| LEARNING[self.steps as usize % LEARNING.len()])
    }

    /// Seconds of a step of `rows` rows.
    fn step_s(&self, rows: f64) -> f64 {
        let [n, r, _, s, _] = self.sums;
        (s / n + self.row_s.unwrap_or(0.0) * (rows - r / n)).max(0.0)
    }

    /// The number of drafts, at most `most`, that gives the most tokens per second if all streams make as many, and each
    /// draft is right with probability `right` when those before it are. `by_head`: whether the head must make them.
    pub(super) fn gain(&self, right: f64, most: usize, by_head: bool) -> Gain {
        let (here, all) = (self.load.here as f64, self.load.all as f64);
        let each = self.row_s.unwrap_or(0.0) + if by_head { self.draft_s } else { 0.0 };
        let (mut tokens, mut seconds) = (all, self.step_s(here));
        let mut best = Gain { drafts: 0, rate: tokens / seconds };
        let mut all_right = 1.0;
        for drafts in 1..=most.min(DRAFTS_MAX) {
            all_right *= right;
            tokens += all * all_right;
            seconds += here * each;
            if tokens / seconds > best.rate {
                best = Gain { drafts, rate: tokens / seconds };
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After steps of `streams` streams that take `lap_ms`, and `row_ms` for each row, and drafts of `draft_ms`.
    fn pace(streams: usize, lap_ms: u64, row_ms: u64, draft_ms: u64) -> Pace {
        let mut pace = Pace::default();
        for _ in 0..40 {
            let rows = streams * (1 + pace.learning().unwrap_or(0));
            let load = Load { here: streams, all: streams };
            pace.stepped(load, rows, Duration::from_millis(lap_ms + row_ms * rows as u64));
            pace.made(Making { drafts: streams, time: Duration::from_millis(draft_ms * streams as u64) });
        }
        assert!(pace.learning().is_none());
        pace
    }

    #[test]
    fn a_long_lap_pays_for_many_drafts_and_costly_rows_for_none() {
        let drafts = |pace: &Pace, right| pace.gain(right, DRAFTS_MAX, true).drafts;
        // 50 ms and four layers away.
        let far = pace(1, 200, 2, 1);
        assert_eq!((drafts(&far, 0.7), drafts(&far, 0.01)), (4, 0));
        assert_eq!(far.gain(0.7, 2, true).drafts, 2);
        // Here every row is as dear as a step.
        let near = pace(1, 1, 10, 3);
        assert_eq!((drafts(&near, 0.7), drafts(&near, 0.9)), (0, 0));
        // Many streams share the lap already.
        let crowd = pace(64, 50, 2, 1);
        assert_eq!(drafts(&crowd, 0.7), 0);
        // What costs no pass of the head pays sooner.
        let even = pace(1, 10, 5, 8);
        assert_eq!((drafts(&even, 0.7), even.gain(0.7, 1, false).drafts), (0, 1));
    }

    #[test]
    fn an_accident_does_not_change_the_costs_much() {
        let mut pace = pace(1, 100, 2, 1);
        let before = pace.step_s(1.0);
        pace.stepped(Load::default(), 1, Duration::from_secs(60));
        assert!(pace.step_s(1.0) < before * 1.5, "{} after {before}", pace.step_s(1.0));
    }
}
