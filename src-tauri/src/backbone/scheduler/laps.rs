//! Whether a lane fewer or more is better, by trying it: what laps of all streams really take.
//!
//! What steps take tells nothing of a worker that is the limit itself: it answers later the more is asked of it at once,
//! and late answers look like a long way that asks for more lanes. So a neighbouring number of lanes is tried for a few
//! laps now and then, and kept when laps are shorter. **Promises:** trials become rare while nothing changes; laps are
//! compared only with others of about as many streams; the clock is the caller's.

use std::time::Instant;

/// Laps of one number of lanes before another is tried; at least doubled by every trial that brings nothing.
const PATIENCE: u32 = 3;
/// What a trial that brought nothing may cost, as a share of the laps until the next: a dear one is repeated late.
const REGRET: f64 = 0.01;
/// Most of that.
const PATIENCE_MAX: u32 = 256;
/// Most of that once the number of streams changed, which makes another number of lanes better sooner or later.
const PATIENCE_MOVED: u32 = 24;
/// Laps of a trial that are compared; the first one after a change belongs to both numbers and is not.
const TRIAL: u32 = 3;
/// More lanes are better when their laps are shorter by this share; fewer, by a quarter of it.
const BETTER: f64 = 0.01;
/// A trial changes the number by this part of it; the first ones, while fewer are better, by half: a model that took a
/// worker's own limit for a long way asked for several times too many.
const STEP_PART: usize = 3;
/// Idle share of a lap below which more lanes are not tried: each has costs of its own, and so has the trial.
pub(super) const WORTH_A_TRIAL: f64 = 0.1;
/// From so many streams on, one that comes or goes is no other number.
const FEW: usize = 4;
/// Laps that differ by this factor are of another world, where nothing that was learnt holds.
const ODD: f64 = 1.5;
/// So many of them in a row show it.
const ODD_MAX: u32 = 3;
/// Newest laps that make the mean.
const MEAN_OF: u32 = 8;

/// See the module.
#[derive(Debug)]
pub(super) struct Laps {
    /// Streams of a lap.
    streams: usize,
    /// When the lap under way began, and the rows that it has so far.
    began: Option<Instant>,
    rows: usize,
    /// Laps since the number of lanes changed.
    whole: u32,
    /// Their mean, in seconds, without the first.
    mean_s: f64,
    odd: u32,
    /// The number before the trial under way, and what its laps took.
    before: Option<(usize, f64)>,
    goes_down: bool,
    /// Whether no trial failed yet.
    halves: bool,
    patience: u32,
    /// Whether a trial was ever made.
    tried: bool,
}

impl Laps {
    pub fn of(streams: usize) -> Self {
        Self {
            streams,
            began: None,
            rows: 0,
            whole: 0,
            mean_s: 0.0,
            odd: 0,
            before: None,
            goes_down: true,
            halves: true,
            patience: PATIENCE,
            tried: false,
        }
    }

    /// Whether laps of so many streams can be compared with those seen.
    pub fn are_of(&self, streams: usize) -> bool {
        let change = streams.abs_diff(self.streams);
        8 * change <= self.streams || (change == 1 && self.streams >= FEW)
    }

    /// Whether what was learnt holds no longer.
    pub fn are_of_another_world(&self) -> bool {
        self.odd >= ODD_MAX
    }

    /// Whether what trials have shown says something of so many streams.
    pub fn tell_of(&self, streams: usize) -> bool {
        self.knows() && streams < 2 * self.streams && self.streams < 2 * streams
    }

    /// From now on there are `streams`, of which [`Laps::tell_of`] holds. A trial under way ends with what it has shown
    /// so far: gives the lanes to go on with, of the `lanes` in use.
    pub fn move_to(&mut self, streams: usize, lanes: usize) -> usize {
        let is_better = |before_s: f64| self.whole >= 2 && self.mean_s < before_s * (1.0 - BETTER);
        let lanes = self.before.filter(|(_, before_s)| !is_better(*before_s)).map_or(lanes, |(before, _)| before);
        (self.streams, self.patience, self.before) = (streams, self.patience.min(PATIENCE_MOVED), None);
        self.restart();
        lanes
    }

    /// Whether it knows better than a model.
    pub fn knows(&self) -> bool {
        self.tried || self.whole > self.patience
    }

    /// What laps take of late, in seconds.
    pub fn mean_s(&self) -> f64 {
        self.mean_s
    }

    /// Something else took time: the lap under way tells nothing.
    pub fn disturb(&mut self) {
        self.began = None;
    }

    /// The number of lanes was changed.
    pub fn restart(&mut self) {
        (self.began, self.whole, self.mean_s, self.odd) = (None, 0, 0.0, 0);
    }

    /// A step of `rows` streams ended.
    pub fn ended(&mut self, rows: usize, now: Instant) {
        let Some(began) = self.began else {
            (self.began, self.rows) = (Some(now), 0);
            return;
        };
        self.rows += rows;
        if self.rows < self.streams {
            return;
        }
        let lap_s = (now - began).as_secs_f64() * self.streams as f64 / self.rows as f64;
        (self.began, self.rows) = (Some(now), 0);
        self.whole = self.whole.saturating_add(1);
        if self.whole < 2 {
            return;
        }
        let seen = self.whole - 1;
        let is_odd = seen > 1 && (lap_s > ODD * self.mean_s || lap_s * ODD < self.mean_s);
        self.odd = if is_odd { self.odd + 1 } else { 0 };
        self.mean_s += (lap_s - self.mean_s) / f64::from(seen.min(MEAN_OF));
    }

    /// Lanes to use next, of at most `most`, when `now` are used that leave this machine idle for the share `idle` of a
    /// lap: the most that more lanes could bring.
    pub fn advise(&mut self, now: usize, most: usize, idle: f64) -> usize {
        if let Some((before, before_s)) = self.before {
            if self.whole <= TRIAL {
                return now;
            }
            self.before = None;
            let share = if now > before { BETTER } else { BETTER / 4.0 };
            if self.mean_s < before_s * (1.0 - share) {
                self.patience = PATIENCE;
                return now;
            }
            // Between a number and its half there may be a better one.
            if !(std::mem::take(&mut self.halves) && before > 2) {
                self.goes_down = !self.goes_down;
            }
            let lost_laps = f64::from(self.whole + 1) * (self.mean_s / before_s - 1.0);
            self.patience = (2 * self.patience).max((lost_laps / REGRET) as u32).min(PATIENCE_MAX);
            self.restart();
            return before.min(most);
        }
        // Odd laps may be the first of another world: nothing is compared across its border.
        if self.whole <= self.patience || self.odd > 0 {
            return now;
        }
        // One of many lanes would make no difference that can be seen.
        let step = (now / if self.halves { 2 } else { STEP_PART }).max(1);
        let other = |down: bool| match down {
            true => now.checked_sub(step).filter(|fewer| *fewer > 0),
            false => Some(now + step).filter(|more| *more <= most && idle >= WORTH_A_TRIAL),
        };
        let mut ways = [self.goes_down, !self.goes_down].into_iter();
        let Some((down, other)) = ways.find_map(|down| other(down).map(|other| (down, other))) else { return now };
        self.goes_down = down;
        (self.before, self.tried) = (Some((now, self.mean_s)), true);
        self.restart();
        other
    }
}
