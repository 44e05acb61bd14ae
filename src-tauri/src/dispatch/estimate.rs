//! How long a worker's answer takes, learnt from its answers, and how long it may take at most.
//!
//! A deadline is three times the predicted time plus a slack. The prediction is a round trip, the bytes at the link's
//! rate and the assignments at the worker's pace, those that it owes already included. The round trip starts as the handshake measured
//! it, the pace as the worker's self-test says; every answer corrects all three.
//! **Promise:** a worker that is slow, or says that it is, moves its deadlines by no more than a small factor.

use std::time::Duration;

/// How a deadline follows from a prediction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeadlineRule {
    /// Multiplies the prediction.
    pub factor: f64,
    /// Added to it.
    pub slack: Duration,
    /// Never shorter: a loaded machine must not look like a dead one.
    pub floor: Duration,
    /// Never longer: a step waits for no one beyond this.
    pub ceiling: Duration,
}

impl Default for DeadlineRule {
    fn default() -> Self {
        Self {
            factor: 3.0,
            slack: Duration::from_millis(50),
            floor: Duration::from_millis(250),
            ceiling: Duration::from_secs(30),
        }
    }
}

impl DeadlineRule {
    /// The time that a request predicted to take `predicted` is given.
    #[must_use]
    pub fn deadline(&self, predicted: Duration) -> Duration {
        let seconds = (predicted.as_secs_f64() * self.factor).min(self.ceiling.as_secs_f64());
        (Duration::from_secs_f64(seconds) + self.slack).max(self.floor).min(self.ceiling)
    }
}

/// What a worker owes already: it comes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queued {
    /// Bytes there and back.
    pub bytes: usize,
    /// Assignments.
    pub assignments: usize,
}

/// What a request asks of a link and a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Bytes there and back.
    pub bytes: usize,
    /// What is before it.
    pub queued: Queued,
    /// Assignments of this request.
    pub assignments: usize,
}

/// What a session's answers have shown so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Time of an empty request.
    pub round_trip: Duration,
    /// Bytes per second over the link, both ways together.
    pub bytes_per_s: f64,
    /// Pace of the worker.
    pub assignments_per_s: f64,
    /// Answers that this rests on; with none, it is what the handshake and the offer said.
    pub answers: u64,
}

/// Seconds that a round trip, a byte and an assignment take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    round_trip_s: f64,
    byte_s: f64,
    assignment_s: f64,
    answers: u64,
}

/// Weight of a new observation (one in eight, as TCP's round-trip estimator).
const GAIN: f64 = 1.0 / 8.0;
/// A single observation counts as at most this many times the prediction, so that one hiccup is no new normal.
const SURPRISE_MAX: f64 = 4.0;
/// Longest round trip that is reckoned with: the other side of the earth.
const ROUND_TRIP_MAX_S: f64 = 0.15;
/// Shortest: a loopback, so that it can grow.
const ROUND_TRIP_MIN_S: f64 = 1e-4;
/// Seconds per byte before anything was measured: 10 Mbit/s, a modest upstream.
const FIRST_BYTE_S: f64 = 8.0 / 10e6;
/// Pace of a worker whose self-test says nothing usable, or less than this.
const FIRST_ASSIGNMENTS_PER_S: f64 = 1000.0;
/// Neither rate nor pace is reckoned worse than this many times the first guess: whoever needs longer costs a step more
/// than it gives.
const GROWTH_MAX: f64 = 3.0;

impl Estimate {
    /// The first estimate of a worker whose handshake took `round_trip`, before it offers anything.
    #[must_use]
    pub fn new(round_trip: Duration) -> Self {
        let round_trip_s = round_trip.as_secs_f64().clamp(ROUND_TRIP_MIN_S, ROUND_TRIP_MAX_S);
        Self { round_trip_s, byte_s: FIRST_BYTE_S, assignment_s: 1.0 / FIRST_ASSIGNMENTS_PER_S, answers: 0 }
    }

    /// The worker offers `assignments_per_s`; what was learnt of its link stays.
    pub fn offered(&mut self, assignments_per_s: f64) {
        let finite = if assignments_per_s.is_finite() { assignments_per_s } else { FIRST_ASSIGNMENTS_PER_S };
        self.assignment_s = 1.0 / finite.max(FIRST_ASSIGNMENTS_PER_S);
    }

    fn terms(&self, load: Load) -> [f64; 3] {
        let assignments = (load.queued.assignments + load.assignments) as f64;
        let bytes = (load.queued.bytes + load.bytes) as f64;
        [self.round_trip_s, bytes * self.byte_s, assignments * self.assignment_s]
    }

    /// The time until the answer.
    #[must_use]
    pub fn predict(&self, load: Load) -> Duration {
        Duration::from_secs_f64(self.terms(load).iter().sum())
    }

    /// Learns that the answer to `load` took `took`.
    pub fn observe(&mut self, load: Load, took: Duration) {
        self.answers += 1;
        self.correct(load, took.as_secs_f64());
        // What is certain: no part of the answer's time was longer than all of it.
        let at_most =
            |value: f64, count: usize| if count == 0 { value } else { value.min(took.as_secs_f64() / count as f64) };
        self.round_trip_s = at_most(self.round_trip_s, 1);
        self.byte_s = at_most(self.byte_s, load.bytes);
        self.assignment_s = at_most(self.assignment_s, load.assignments);
    }

    /// Learns that the answer to `load` did not come within `allowed`.
    pub fn missed(&mut self, load: Load, allowed: Duration) {
        self.correct(load, allowed.as_secs_f64());
    }

    /// Corrects each term in proportion to its share of the prediction, within its bound.
    fn correct(&mut self, load: Load, took_s: f64) {
        let terms = self.terms(load);
        let predicted: f64 = terms.iter().sum();
        if predicted <= 0.0 {
            return;
        }
        let surprise = (took_s / predicted).min(SURPRISE_MAX) - 1.0;
        let corrected = |value: f64, term: f64, max: f64| (value * (1.0 + GAIN * surprise * term / predicted)).min(max);
        self.round_trip_s = corrected(self.round_trip_s, terms[0], ROUND_TRIP_MAX_S);
        self.byte_s = corrected(self.byte_s, terms[1], FIRST_BYTE_S * GROWTH_MAX);
        self.assignment_s = corrected(self.assignment_s, terms[2], GROWTH_MAX / FIRST_ASSIGNMENTS_PER_S);
    }

    /// What was learnt.
    #[must_use]
    pub fn measured(&self) -> Measured {
        // A term that fell to nothing counts as a picosecond.
        let per_s = |seconds: f64| 1.0 / seconds.max(1e-12);
        Measured {
            round_trip: Duration::from_secs_f64(self.round_trip_s),
            bytes_per_s: per_s(self.byte_s),
            assignments_per_s: per_s(self.assignment_s),
            answers: self.answers,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offering(assignments_per_s: f64) -> Estimate {
        let mut estimate = Estimate::new(Duration::from_millis(50));
        estimate.offered(assignments_per_s);
        estimate
    }

    /// A load of exact rows of 3,072 elements and eight assignments each.
    fn rows(rows: usize) -> Load {
        Load {
            bytes: 64 + rows * (8 + 12 * 265 + 8 * 6 + 1 + 4 * 3072),
            queued: Queued::default(),
            assignments: 8 * rows,
        }
    }

    #[test]
    fn a_deadline_is_three_times_the_prediction_plus_slack_within_its_bounds() {
        let rule = DeadlineRule::default();
        assert_eq!(rule.deadline(Duration::from_millis(100)), Duration::from_millis(350));
        assert_eq!(rule.deadline(Duration::from_millis(1)), Duration::from_millis(250));
        assert_eq!(rule.deadline(Duration::MAX), Duration::from_secs(30));
    }

    #[test]
    fn what_a_worker_has_to_send_first_counts() {
        let (rule, decode, chunk) = (DeadlineRule::default(), rows(8), rows(256));
        // 20 Mbit/s: the chunk's answer takes 1.6 s, and that of the eight rows comes behind it.
        let mut estimate = offering(20_000.0);
        for _ in 0..200 {
            estimate.observe(chunk, Duration::from_secs_f64(0.05 + chunk.bytes as f64 * 8.0 / 20e6));
        }
        let behind = Load { queued: Queued { bytes: chunk.bytes, assignments: chunk.assignments }, ..decode };
        let comes = Duration::from_secs_f64(0.05 + (chunk.bytes + decode.bytes) as f64 * 8.0 / 20e6);
        assert!(rule.deadline(estimate.predict(behind)) > 2 * comes);
        assert!(estimate.predict(decode) < comes / 4, "{:?}", estimate.predict(decode));
    }

    #[test]
    fn estimates_approach_what_is_observed() {
        let mut estimate = offering(f64::NAN);
        let small = Load { bytes: 15_000, queued: Queued::default(), assignments: 8 };
        let large = Load { bytes: 3_000_000, queued: Queued { bytes: 0, assignments: 16 }, assignments: 2_000 };
        for _ in 0..2000 {
            estimate.observe(small, Duration::from_millis(14));
            estimate.observe(large, Duration::from_millis(300));
        }
        let near = |load, ms: f64| (estimate.predict(load).as_secs_f64() * 1e3 / ms - 1.0).abs() < 0.2;
        assert!(near(small, 14.0) && near(large, 300.0), "{estimate:?}");
    }

    #[test]
    fn one_hiccup_is_no_new_normal() {
        let mut estimate = offering(1e4);
        let load = Load { bytes: 10_000, queued: Queued::default(), assignments: 8 };
        let before = estimate.predict(load);
        estimate.observe(load, Duration::from_secs(1000));
        assert!(estimate.predict(load) < before * 2);
    }

    #[test]
    fn neither_a_slow_offer_nor_slow_answers_stretch_a_deadline_far() {
        let (rule, load) = (DeadlineRule::default(), Load { bytes: 15_000, queued: Queued::default(), assignments: 8 });
        let first = offering(f64::NAN).predict(load);
        for offer in [1.0, -1.0, 0.0, 999.0, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(offering(offer).predict(load), first, "{offer}");
        }
        let mut estimate = offering(1.0);
        for _ in 0..1000 {
            estimate.observe(load, estimate.predict(load).mul_f64(2.9));
        }
        let longest = rule.deadline(first.mul_f64(GROWTH_MAX + 0.01));
        assert!(rule.deadline(estimate.predict(load)) <= longest && longest < Duration::from_secs(1), "{longest:?}");
    }

    #[test]
    fn a_worker_behind_a_hundred_milliseconds_is_predicted_from_its_first_request_on() {
        let (rule, path) = (DeadlineRule::default(), Duration::from_millis(100));
        let mut far = Estimate::new(path);
        far.offered(20_000.0);
        assert!(far.predict(rows(1)) >= path && far.predict(rows(1)) < path * 6 / 5, "{:?}", far.predict(rows(1)));
        // 100 Mbit/s and the pace that it offered.
        let truth = |load: Load| path.as_secs_f64() + load.bytes as f64 * 8e-8 + load.assignments as f64 / 20_000.0;
        let observe = |estimate: &mut Estimate, load| estimate.observe(load, Duration::from_secs_f64(truth(load)));
        observe(&mut far, rows(512));
        let ratio = far.predict(rows(512)).as_secs_f64() / truth(rows(512));
        assert!((0.8..1.6).contains(&ratio), "after one answer of 512 rows: {ratio}");
        for _ in 0..200 {
            observe(&mut far, rows(1));
            observe(&mut far, rows(512));
        }
        for load in [rows(1), rows(512)] {
            let predicted = far.predict(load).as_secs_f64();
            assert!((predicted / truth(load) - 1.0).abs() < 0.1, "{load:?}: {predicted} of {}", truth(load));
            let expected = Duration::from_secs_f64(3.0 * predicted) + Duration::from_millis(50);
            assert_eq!(rule.deadline(far.predict(load)), expected);
        }
        assert_eq!(far.measured().answers, 401);
        let round_trip = far.measured().round_trip.as_secs_f64();
        assert!((round_trip / 0.1 - 1.0).abs() < 0.1, "{round_trip}");
    }
}
