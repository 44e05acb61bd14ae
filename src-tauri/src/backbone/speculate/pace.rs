//! What a step costs, and what one more row in it: found while streams run, since it depends on the model, the machine
//! and how far away the experts are.
//!
//! A step of r rows beside p rows of prompts takes about `lap + r · row + p · prompt_row`: least squares over the last
//! steps, older ones counting less. Rows that never vary say nothing about a slope, so the first steps vary drafts on
//! purpose; prompts whose rows never vary count as a part of the lap.

use std::time::Duration;

use super::{DRAFTS_MAX, Making};

/// What a step leaves of the weight of those before it: some fifty count.
const KEEP: f64 = 0.98;
/// Least variance of the rows of the counted steps that says something about the slope.
const VARIANCE_MIN: f64 = 0.1;
/// Steps before the line is believed.
const LEARNT: u32 = 8;
/// Drafts of the steps before, in turn: with none in some, rows vary even where room is short.
const LEARNING: [usize; 4] = [0, 2, 1, 3];
/// A step that takes longer than so many usual ones met an accident, and counts as one that took as long as this.
const OUTLIER: f64 = 4.0;

/// The measured costs of a backbone's steps; all its streams share it.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    /// Weighted sums over the steps: 1, rows, prompt rows, seconds; rows², rows · prompt rows, prompt rows²; rows ·
    /// seconds, prompt rows · seconds.
    sums: [f64; 9],
    /// Steps that ended, and those that began.
    steps: u32,
    begun: usize,
    row_s: Option<f64>,
    prompt_row_s: Option<f64>,
    draft_s: f64,
    load: Load,
}

/// What a step carries beside drafts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load {
    /// Streams that decode in it.
    pub here: usize,
    /// In it and in those that run beside it.
    pub all: usize,
    /// Rows of prompts.
    pub prompt_rows: usize,
}

impl Default for Load {
    fn default() -> Self {
        Self { here: 1, all: 1, prompt_rows: 0 }
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
    /// A step begins: from now on gains are those of drafts in it.
    pub fn begin(&mut self, load: Load) {
        self.load = load;
        self.begun = self.begun.wrapping_add(1);
    }

    /// Notes a step: `rows` of the streams that decode in it, one each and their drafts.
    pub fn stepped(&mut self, load: Load, rows: usize, time: Duration) {
        let (rows, prompt, mut seconds) = (rows as f64, load.prompt_rows as f64, time.as_secs_f64());
        if self.steps >= LEARNT && self.has_met(prompt) {
            seconds = seconds.min(OUTLIER * self.step_s(rows, prompt));
        }
        let squares = [rows * rows, rows * prompt, prompt * prompt];
        let products = [rows * seconds, prompt * seconds];
        let new = [1.0, rows, prompt, seconds].into_iter().chain(squares).chain(products);
        self.sums.iter_mut().zip(new).for_each(|(sum, new)| *sum = sum.mul_add(KEEP, new));
        self.steps = self.steps.saturating_add(1);

        let [n, r, p, s, rr, rp, pp, rs, ps] = self.sums;
        let joint = |both: f64, one: f64, other: f64| both / n - one / n * (other / n);
        let (rp, pp, ps) = (joint(rp, r, p), joint(pp, p, p), joint(ps, p, s));
        let per_prompt_row = |joint: f64| if pp >= VARIANCE_MIN { joint / pp } else { 0.0 };
        // What is left of the rows, and of the seconds with them, when prompts explain what they can.
        let variance = joint(rr, r, r) - rp * per_prompt_row(rp);
        if variance >= VARIANCE_MIN {
            let slope = (joint(rs, r, s) - rp * per_prompt_row(ps)) / variance;
            // Neither less than nothing nor more than all.
            self.row_s = Some(slope.clamp(0.0, s / r));
        }
        if pp >= VARIANCE_MIN {
            self.prompt_row_s = Some(per_prompt_row(ps - rp * self.row_s.unwrap_or(0.0)).max(0.0));
        }
    }

    /// Whether it can be said how long a step beside so many rows of prompts takes.
    fn has_met(&self, prompt_rows: f64) -> bool {
        let [n, _, p, ..] = self.sums;
        self.prompt_row_s.is_some() || (prompt_rows - p / n).abs() < 0.5
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
        (!known).then(|| LEARNING[self.begun % LEARNING.len()])
    }

    /// Seconds of a step of `rows` rows beside so many of prompts.
    fn step_s(&self, rows: f64, prompt_rows: f64) -> f64 {
        let [n, r, p, s, ..] = self.sums;
        let (row_s, prompt_row_s) = (self.row_s.unwrap_or(0.0), self.prompt_row_s.unwrap_or(0.0));
        let usual = s / n + row_s * (rows - r / n) + prompt_row_s * (prompt_rows - p / n);
        usual.max(row_s * rows)
    }

    /// The number of drafts, at most `most`, that gives the most tokens per second if all streams make as many, and each
    /// draft is right with probability `right` when those before it are. `by_head`: whether the head must make them.
    pub(super) fn gain(&self, right: f64, most: usize, by_head: bool) -> Gain {
        let (here, all) = (self.load.here as f64, self.load.all as f64);
        let each = self.row_s.unwrap_or(0.0) + if by_head { self.draft_s } else { 0.0 };
        let (mut tokens, mut seconds) = (all, self.step_s(here, self.load.prompt_rows as f64));
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
            let load = Load { here: streams, all: streams, prompt_rows: 0 };
            pace.begin(load);
            let rows = streams * (1 + pace.learning().unwrap_or(0));
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
        let before = pace.step_s(1.0, 0.0);
        pace.stepped(Load::default(), 1, Duration::from_secs(60));
        let after = pace.step_s(1.0, 0.0);
        assert!(after < before * 1.5, "{after} after {before}");
    }

    #[test]
    fn costs_are_learnt_while_every_step_reads_some_of_a_prompt() {
        for prompts in [[256, 256], [256, 64], [0, 256]] {
            let mut pace = Pace::default();
            for prompt_rows in prompts.into_iter().cycle().take(40) {
                let load = Load { here: 64, all: 64, prompt_rows };
                pace.begin(load);
                // There is room for 128 drafts.
                let rows = 64 + (64 * pace.learning().unwrap_or(0)).min(128);
                pace.stepped(load, rows, Duration::from_millis((50 + 2 * rows + prompt_rows) as u64));
            }
            assert!(pace.learning().is_none(), "beside {prompts:?}");
            let row_ms = pace.row_s.unwrap() * 1e3;
            assert!((row_ms - 2.0).abs() < 0.1, "{row_ms} ms beside {prompts:?}");
            // Beside a chunk one more row is a smaller part of the step.
            let step_ms = pace.step_s(64.0, 256.0) * 1e3;
            assert!((step_ms - 434.0).abs() < 5.0, "{step_ms} ms beside {prompts:?}");
        }
    }

    #[test]
    fn a_gain_is_that_of_the_step_that_begins() {
        // Alone, four drafts pay; a burst of streams that each count on it would make a step six times as long.
        let mut pace = pace(1, 200, 2, 1);
        assert_eq!(pace.gain(0.7, DRAFTS_MAX, true).drafts, 4);
        pace.begin(Load { here: 200, all: 200, prompt_rows: 0 });
        assert_eq!(pace.gain(0.7, DRAFTS_MAX, true).drafts, 0);
    }
}
