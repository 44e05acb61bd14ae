//! How many steps are under way at once: one computes while the partials of the others travel.
//!
//! Before: what steps computed, and how long workers had their experts. After: a number of lanes. With `n` of them a lap
//! of all streams takes `max(n · compute, compute + away)`, both of a step of `streams / n` rows. A step has a cost of its
//! own whatever its rows, so the fewest lanes win that come near the shortest lap, and one does unless more bring much. From there on
//! laps themselves tell.
//! **Promises:** one lane when no worker has anything; the number stays while it is about right.

use std::time::{Duration, Instant};

use super::laps::{Laps, WORTH_A_TRIAL};
use crate::backbone::delta_rule::CHUNK;

/// Most lanes: each keeps buffers of its own, and a worker must be able to owe an answer to every one.
pub(super) const LANES_MAX: usize = 32;
/// Most chunks of prompts under way: who begins to decode waits for them.
const PROMPT_PARTS_MAX: usize = 4;
/// Seconds that the rows of a step of prompts may take beyond its distance: a token that travels beside it waits for them,
/// layer by layer, on the same line.
const PROMPT_STEP_S: f64 = 4.0;
/// A lap that is longer than the shortest by this share is as good: a lane more would bring no more than this.
const ENOUGH: f64 = 0.01;
/// A lap that is longer by this share makes the lanes change.
const TOLERATED: f64 = 0.02;
/// Weight of a new step in what steps take.
const GAIN: f64 = 1.0 / 8.0;
/// Weight of a new step in how that depends on rows: it is learnt while rows change and must outlast times when they
/// do not.
const SLOPE_GAIN: f64 = 1.0 / 256.0;
/// Rows that differ by this share of their mean tell as much about the slope as was believed before.
const DOUBT: f64 = 0.03;

/// What a step took.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    /// Its rows.
    pub rows: usize,
    /// Time of this machine.
    pub compute: Duration,
    /// Time in which workers had its experts.
    pub away: Duration,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Lanes {
    compute: Line,
    away: Line,
    prompt_compute: Line,
    prompt_away: Line,
    /// Whole steps that only read prompts.
    prompt_took: Line,
    /// Whether workers had experts of the newest step.
    travels: bool,
    lanes: usize,
    laps: Laps,
}

impl Default for Lanes {
    fn default() -> Self {
        let [compute, away, prompt_compute, prompt_away, prompt_took] = [Line::default(); 5];
        Self { compute, away, prompt_compute, prompt_away, prompt_took, travels: false, lanes: 1, laps: Laps::of(0) }
    }
}

impl Lanes {
    /// Learns what a step took in which streams decoded and prompts were read: a row of these costs something else.
    pub fn mixed(&mut self, cost: Cost) {
        self.laps.disturb();
        self.travels = !cost.away.is_zero();
    }

    /// Whether a step has to wait for partials.
    pub fn travels(&self) -> bool {
        self.travels
    }

    /// Learns what a step took in which streams decoded, and that ended now.
    pub fn decoded(&mut self, cost: Cost, now: Instant) {
        self.travels = !cost.away.is_zero();
        self.laps.ended(cost.rows, now);
        self.compute.observe(cost.rows, cost.compute);
        self.away.observe(cost.rows, cost.away);
    }

    /// Learns what a step took that only read prompts, from its begin to its end `took`.
    pub fn read(&mut self, cost: Cost, took: Duration) {
        self.prompt_took.observe(cost.rows, took);
        self.mixed(cost);
        self.prompt_compute.observe(cost.rows, cost.compute);
        self.prompt_away.observe(cost.rows, cost.away);
    }

    /// Lanes for so many decoding streams.
    pub fn for_decoding(&mut self, streams: usize) -> usize {
        let most = streams.clamp(1, LANES_MAX);
        let best = (1..=most).map(|lanes| self.lap_s(streams, lanes)).fold(f64::INFINITY, f64::min);
        let enough = |lanes: &usize| match lanes {
            1 => self.lap_s(streams, 1) * (1.0 - WORTH_A_TRIAL) <= best,
            _ => self.lap_s(streams, *lanes) <= best * (1.0 + ENOUGH),
        };
        let fewest = (1..=most).find(enough).unwrap_or(1);
        if self.laps.are_of_another_world() || !(self.laps.are_of(streams) || self.laps.tell_of(streams)) {
            self.laps = Laps::of(streams);
        } else if !self.laps.are_of(streams) {
            self.lanes = self.laps.move_to(streams, self.lanes);
        }
        let now = self.lanes.min(most);
        if self.travels && self.laps.knows() {
            let (lap_s, rows) = (self.laps.mean_s(), streams as f64 / now as f64);
            let idle = 1.0 - now as f64 * self.compute.at(rows, 0.0) / lap_s;
            let lap_ms = lap_s * 1e3;
            self.lanes = self.laps.advise(now, most, idle);
            if self.lanes != now {
                tracing::debug!(streams, lanes = now, lap_ms, next = self.lanes, "other lanes are tried");
            }
            return self.lanes;
        }
        let stays = self.lap_s(streams, now) <= best * (1.0 + TOLERATED) && now < 2 * fewest;
        let next = if stays { now } else { fewest };
        if next != self.lanes {
            tracing::debug!(streams, lanes = self.lanes, next, "other lanes by what steps take");
            self.laps.restart();
        }
        self.lanes = next;
        next
    }

    /// Lanes for so many prompts while nobody decodes, and the parts of the steps in each: all parts are chunks of full
    /// size, as many as fit a chunk's wait.
    pub fn for_prompts(&self, prompts: usize) -> (usize, usize) {
        let lanes = self.prompt_parts().min(prompts).max(1);
        (lanes, self.prompt_parts() / lanes)
    }

    /// Parts of prompts that are computed one after the other while the first is away.
    pub fn prompt_parts(&self) -> usize {
        let (compute, away) = (self.prompt_compute.seconds, self.prompt_away.seconds);
        let fit = if compute > 0.0 { 1 + (away / compute) as usize } else { 1 };
        fit.min(PROMPT_PARTS_MAX)
    }

    /// Most rows of a step that only reads prompts: as many as leave a line, or a worker, to others soon.
    pub fn prompt_rows(&self) -> usize {
        let Line { rows, seconds, .. } = self.prompt_took;
        if !self.travels || rows == 0.0 {
            return usize::MAX;
        }
        let distance = self.prompt_took.at(0.0, seconds / rows);
        let row_s = (seconds - distance) / rows;
        ((PROMPT_STEP_S.max(distance) / row_s) as usize).max(CHUNK)
    }

    /// Seconds until every one of `streams` streams had a token.
    fn lap_s(&self, streams: usize, lanes: usize) -> f64 {
        let rows = streams as f64 / lanes as f64;
        // Nothing known of a step's own cost: more lanes show what it is. And partials travel no faster for being few.
        let compute = self.compute.at(rows, self.compute.seconds / self.compute.rows.max(1.0));
        let away = self.away.at(rows, 0.0);
        (compute * lanes as f64).max(compute + away)
    }
}

/// Seconds by rows, as a straight line through what was seen lately.
#[derive(Clone, Copy, Default, Debug)]
struct Line {
    rows: f64,
    seconds: f64,
    /// Mean square of the rows' distance from their mean.
    spread: f64,
    /// The same of rows with seconds.
    joint: f64,
}

impl Line {
    fn observe(&mut self, rows: usize, took: Duration) {
        let (rows, seconds) = (rows as f64, took.as_secs_f64());
        if self.rows == 0.0 {
            *self = Self { rows, seconds, ..Self::default() };
            return;
        }
        let (more_rows, more_seconds) = (rows - self.rows, seconds - self.seconds);
        self.rows += GAIN * more_rows;
        self.seconds += GAIN * more_seconds;
        self.spread += SLOPE_GAIN * (more_rows * more_rows - self.spread);
        self.joint += SLOPE_GAIN * (more_rows * more_seconds - self.joint);
    }

    /// Seconds of a step of `rows` rows; its slope is `believed` as far as nothing else was seen, and none that makes
    /// steps cheaper by more rows or free without any.
    fn at(&self, rows: f64, believed: f64) -> f64 {
        if self.rows == 0.0 {
            return 0.0;
        }
        let doubt = (DOUBT * self.rows).powi(2);
        let slope = (self.joint + doubt * believed) / (self.spread + doubt);
        self.seconds + slope.clamp(0.0, self.seconds / self.rows) * (rows - self.rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine on which a step takes this long, and on which no lane waits for another's computing; and its worker,
    /// which answers one step after the other.
    #[derive(Clone, Copy, Debug, Default)]
    struct Machine {
        step_ms: f64,
        row_ms: f64,
        away_ms: f64,
        worker_step_ms: f64,
        worker_row_ms: f64,
    }

    impl Machine {
        /// A step of so many rows, one of `lanes`: what the worker owes others comes first.
        fn cost(self, rows: usize, lanes: usize) -> Cost {
            let ms = |ms: f64| Duration::from_secs_f64(ms / 1e3);
            let (compute, worker) = (self.step_ms + self.row_ms * rows as f64, self.worker_ms(rows as f64));
            let owed = if worker > compute { worker * lanes as f64 - compute - worker - self.away_ms } else { 0.0 };
            Cost { rows, compute: ms(compute), away: ms(self.away_ms + worker + owed.max(0.0)) }
        }

        fn worker_ms(self, rows: f64) -> f64 {
            self.worker_step_ms + self.worker_row_ms * rows
        }

        fn lap_ms(self, streams: usize, lanes: usize) -> f64 {
            let rows = streams as f64 / lanes as f64;
            let (compute, worker) = (self.step_ms + self.row_ms * rows, self.worker_ms(rows));
            (compute.max(worker) * lanes as f64).max(compute + worker + self.away_ms)
        }
    }

    /// The lanes of so many laps, one entry each.
    fn run(lanes: &mut Lanes, machine: Machine, streams: usize, laps: usize) -> Vec<usize> {
        run_from(&mut Instant::now(), lanes, machine, streams, laps)
    }

    fn run_from(clock: &mut Instant, lanes: &mut Lanes, machine: Machine, streams: usize, laps: usize) -> Vec<usize> {
        let lap = |_| {
            let now = lanes.for_decoding(streams);
            let lap_s = machine.lap_ms(streams, now) / 1e3;
            for lane in 0..now {
                *clock += Duration::from_secs_f64(lap_s / now as f64);
                lanes.decoded(machine.cost(streams / now + usize::from(lane < streams % now), now), *clock);
            }
            now
        };
        (0..laps).map(lap).collect()
    }

    /// The mean lap by the shortest one, and the part of the laps that had the usual number of lanes.
    fn judged(machine: Machine, streams: usize, seen: &[usize]) -> (f64, f64) {
        let best = (1..=streams.min(LANES_MAX)).map(|n| machine.lap_ms(streams, n)).fold(f64::MAX, f64::min);
        let mean = seen.iter().map(|now| machine.lap_ms(streams, *now)).sum::<f64>() / seen.len() as f64;
        let usual = seen.iter().map(|now| seen.iter().filter(|other| *other == now).count()).max().unwrap();
        (mean / best, usual as f64 / seen.len() as f64)
    }

    #[test]
    fn the_lap_comes_near_the_shortest_one_and_stays_there() {
        for (step_ms, row_ms, away_ms) in [(0.5, 0.2, 200.0), (5.0, 1.0, 50.0), (20.0, 0.1, 13.0), (300.0, 5.0, 650.0)]
        {
            let machine = Machine { step_ms, row_ms, away_ms, ..Machine::default() };
            for streams in [1, 2, 16, 64, 256] {
                let seen = run(&mut Lanes::default(), machine, streams, 400);
                let (of_best, stays) = judged(machine, streams, &seen[20..]);
                assert!(of_best <= 1.03 && stays >= 0.9, "{streams} streams: {of_best}, {stays}: {seen:?}");
            }
        }
    }

    #[test]
    fn a_worker_that_is_the_limit_is_not_asked_in_ever_more_lanes() {
        // Two machines in one: an expert takes the same cores, and a step of few rows almost as long as one of many.
        for (worker_step_ms, worker_row_ms) in [(6.0, 0.8), (2.0, 2.0), (12.0, 0.1)] {
            let machine = Machine { step_ms: 1.0, row_ms: 0.3, away_ms: 13.5, worker_step_ms, worker_row_ms };
            for streams in [2, 8, 32, 200] {
                let seen = run(&mut Lanes::default(), machine, streams, 600);
                let (of_best, stays) = judged(machine, streams, &seen[100..]);
                assert!(of_best <= 1.03 && stays >= 0.9, "{streams} streams: {of_best}, {stays}: {seen:?}");
            }
        }
    }

    #[test]
    fn more_lanes_are_not_tried_for_a_wait_that_is_short_beside_the_step() {
        // One of 48 layers is remote.
        let machine = Machine { step_ms: 300.0, row_ms: 40.0, away_ms: 30.0, ..Machine::default() };
        assert_eq!(run(&mut Lanes::default(), machine, 8, 100), [1; 100]);
    }

    #[test]
    fn a_trial_that_cost_much_is_repeated_late() {
        // One remote layer behind a CDN: idle for long enough to try, and a lane more reads all local weights again.
        let machine = Machine { step_ms: 600.0, row_ms: 50.0, away_ms: 170.0, ..Machine::default() };
        let seen = run(&mut Lanes::default(), machine, 8, 200);
        let (of_best, _) = judged(machine, 8, &seen);
        let trials = seen.windows(2).filter(|pair| pair[1] > pair[0]).count();
        assert!(of_best <= 1.02 && trials <= 3, "{of_best}, {trials} trials: {seen:?}");
    }

    #[test]
    fn laps_that_become_of_another_world_are_judged_anew() {
        let mut lanes = Lanes::default();
        let near = Machine { step_ms: 2.0, row_ms: 0.5, away_ms: 3.0, ..Machine::default() };
        run(&mut lanes, near, 64, 300);
        let far = Machine { away_ms: 150.0, ..near };
        let seen = run(&mut lanes, far, 64, 100);
        let (of_best, _) = judged(far, 64, &seen[40..]);
        assert!(of_best <= 1.05, "{of_best}: {seen:?}");
    }

    #[test]
    fn what_computes_nothing_beside_its_wait_stays_together() {
        let machine = Machine { step_ms: 0.5, row_ms: 0.1, away_ms: 200.0, ..Machine::default() };
        let (of_best, stays) = judged(machine, 16, &run(&mut Lanes::default(), machine, 16, 300));
        assert!(of_best <= 1.01 && stays >= 0.9, "{of_best}, {stays}");
        assert_eq!(run(&mut Lanes::default(), machine, 1, 30), [1; 30]);
    }

    #[test]
    fn lanes_return_to_one_when_workers_have_nothing() {
        let mut lanes = Lanes::default();
        let far = Machine { step_ms: 1.0, row_ms: 0.2, away_ms: 200.0, ..Machine::default() };
        assert!(run(&mut lanes, far, 256, 20)[19] > 4);
        let near = Machine { away_ms: 0.0, ..far };
        let seen = run(&mut lanes, near, 256, 60);
        assert_eq!(seen[30..], [1; 30], "{seen:?}");
        assert_eq!(run(&mut Lanes::default(), near, 256, 20), [1; 20]);
    }

    #[test]
    fn fewer_streams_have_fewer_lanes() {
        let mut lanes = Lanes::default();
        let machine = Machine { step_ms: 0.5, row_ms: 0.3, away_ms: 200.0, ..Machine::default() };
        let many = run(&mut lanes, machine, 256, 20)[19];
        let few = run(&mut lanes, machine, 16, 5)[4];
        assert!(many > 8 && few <= 4, "{many}, {few}");
        assert_eq!(lanes.for_decoding(0), 1);
    }

    #[test]
    fn streams_that_come_and_go_leave_the_lanes_near_the_best() {
        for (worker_step_ms, worker_row_ms, away_ms, step_ms) in
            [(6.0, 0.8, 13.5, 1.0), (2.0, 2.0, 13.5, 1.0), (0.0, 0.0, 50.0, 5.0)]
        {
            let machine = Machine { step_ms, row_ms: 0.3, away_ms, worker_step_ms, worker_row_ms };
            for (few, many, laps) in [(20, 30, 10), (6, 7, 4)] {
                let (mut lanes, mut took, mut best) = (Lanes::default(), 0.0, 0.0);
                let mut clock = Instant::now();
                for turn in 0..60 {
                    let streams = if turn % 2 == 0 { few } else { many };
                    let seen = run_from(&mut clock, &mut lanes, machine, streams, laps);
                    if turn >= 20 {
                        took += seen.iter().map(|now| machine.lap_ms(streams, *now)).sum::<f64>();
                        let lap = |n| machine.lap_ms(streams, n);
                        best += laps as f64 * (1..=streams.min(LANES_MAX)).map(lap).fold(f64::MAX, f64::min);
                    }
                }
                assert!(took <= 1.2 * best, "{few} and {many} streams, {machine:?}: {}", took / best);
            }
        }
    }

    #[test]
    fn prompts_on_a_slow_line_are_read_in_steps_that_others_can_wait_for() {
        for (distance_s, row_s) in [(2.4, 0.047), (0.1, 0.25), (2.4, 0.001), (7.2, 0.02)] {
            let (mut lanes, mut rows) = (Lanes::default(), 512);
            let took = |rows: usize| distance_s + row_s * rows as f64;
            for _ in 0..40 {
                let took = Duration::from_secs_f64(took(rows));
                lanes.read(Cost { rows, compute: Duration::from_millis(100), away: took }, took);
                rows = lanes.prompt_rows().min(2048) / CHUNK * CHUNK;
            }
            let (beyond_s, most_s) = (took(rows) - distance_s, PROMPT_STEP_S.max(distance_s));
            assert!(rows == CHUNK || beyond_s <= 1.3 * most_s, "{distance_s}, {row_s}: {rows} rows");
            assert!(rows == 2048 || beyond_s >= 0.5 * most_s, "{distance_s}, {row_s}: {rows} rows");
        }
    }

    #[test]
    fn prompts_fill_the_wait_of_a_chunk() {
        let mut lanes = Lanes::default();
        assert_eq!(lanes.for_prompts(9), (1, 1));
        let chunk = |away| Cost { rows: 512, compute: Duration::from_millis(100), away: Duration::from_millis(away) };
        lanes.read(chunk(250), Duration::from_millis(350));
        assert_eq!([1, 2, 9].map(|prompts| lanes.for_prompts(prompts)), [(1, 3), (2, 1), (3, 1)]);
        (0..60).for_each(|_| lanes.read(chunk(0), Duration::from_millis(100)));
        assert_eq!(lanes.for_prompts(9), (1, 1));
    }
}
