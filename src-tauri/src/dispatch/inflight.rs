//! How long a worker may take, and which requests of a session are still out.
//!
//! A deadline is three times the predicted time plus a slack. The prediction is a round trip, the bytes at the
//! link's rate and the assignments queued and asked for, at the worker's pace; every reply corrects all three.
//! **Promises:** a worker that is slow, or says that it is, moves its deadlines by no more than a small factor; a request's parts are each delivered at most once; when a session ends, everything it still owed is
//! reported gone at once, so nobody waits for a dead worker's deadline.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::wire::Frame;

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

/// What a request asks of a link and a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Bytes there and back.
    pub bytes: usize,
    /// Assignments that the worker was already busy with.
    pub queued: usize,
    /// Assignments of this request.
    pub assignments: usize,
}

/// Seconds that a round trip, a byte and an assignment take, learnt from replies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    round_trip_s: f64,
    byte_s: f64,
    assignment_s: f64,
}

/// Weight of a new observation (one in eight, as TCP's round-trip estimator).
const GAIN: f64 = 1.0 / 8.0;
/// A single observation counts as at most this many times the prediction, so that one hiccup is no new normal.
const SURPRISE_MAX: f64 = 4.0;
/// Round trip before anything was measured: a slow continental path.
const FIRST_ROUND_TRIP_S: f64 = 0.05;
/// Seconds per byte before anything was measured: 10 Mbit/s, a modest upstream.
const FIRST_BYTE_S: f64 = 8.0 / 10e6;
/// Pace of a worker whose self-test says nothing usable, or less than this.
const FIRST_ASSIGNMENTS_PER_S: f64 = 1000.0;
/// No term grows beyond this many times its first guess: whoever needs longer costs a step more than it gives.
const GROWTH_MAX: f64 = 3.0;

impl Estimate {
    /// The first estimate of a worker that offers `assignments_per_s`.
    #[must_use]
    pub fn from_offer(assignments_per_s: f64) -> Self {
        let finite = if assignments_per_s.is_finite() { assignments_per_s } else { FIRST_ASSIGNMENTS_PER_S };
        let pace = finite.max(FIRST_ASSIGNMENTS_PER_S);
        Self { round_trip_s: FIRST_ROUND_TRIP_S, byte_s: FIRST_BYTE_S, assignment_s: 1.0 / pace }
    }

    fn terms(&self, load: Load) -> [f64; 3] {
        let assignments = (load.queued + load.assignments) as f64;
        [self.round_trip_s, load.bytes as f64 * self.byte_s, assignments * self.assignment_s]
    }

    /// The time until the reply.
    #[must_use]
    pub fn predict(&self, load: Load) -> Duration {
        Duration::from_secs_f64(self.terms(load).iter().sum())
    }

    /// Learns that `load` took `took`: each term is corrected in proportion to its share of the prediction, up to
    /// `GROWTH_MAX` times its first guess.
    pub fn observe(&mut self, load: Load, took: Duration) {
        let terms = self.terms(load);
        let predicted: f64 = terms.iter().sum();
        if predicted <= 0.0 {
            return;
        }
        let surprise = (took.as_secs_f64() / predicted).min(SURPRISE_MAX) - 1.0;
        let corrected = |value: f64, term: f64, first: f64| {
            (value * (1.0 + GAIN * surprise * term / predicted)).min(first * GROWTH_MAX)
        };
        self.round_trip_s = corrected(self.round_trip_s, terms[0], FIRST_ROUND_TRIP_S);
        self.byte_s = corrected(self.byte_s, terms[1], FIRST_BYTE_S);
        self.assignment_s = corrected(self.assignment_s, terms[2], 1.0 / FIRST_ASSIGNMENTS_PER_S);
    }
}

/// What a session has to say about a request.
#[derive(Debug)]
pub enum Answer {
    /// A `Partials` frame for a part that had none yet.
    Part {
        /// The frame.
        frame: Frame,
        /// When it came; whoever waits may look much later.
        arrived: Instant,
    },
    /// The worker will not answer the request.
    Declined {
        /// The request.
        request: u64,
        /// The worker's code.
        reason: String,
    },
    /// The session ended.
    Gone {
        /// The request.
        request: u64,
    },
}

/// What became of a frame that claims to answer something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Somebody waited for it.
    Taken,
    /// It was asked for, but its request was given up.
    Late,
    /// The part was answered before, or never asked for.
    Unasked,
}

/// Most parts that a session may owe; beyond it the worker is not asked until it has answered.
/// Half of what the hub allows, so that its bound is never met.
pub const PARTS_OWED_MAX: usize = 512;

struct Owed {
    answered: Vec<bool>,
    assignments: usize,
    /// `None` once the request was given up.
    answers: Option<mpsc::Sender<Answer>>,
}

#[derive(Default)]
struct Table {
    owed: HashMap<u64, Owed>,
    parts: usize,
    queued: usize,
    closed: bool,
}

impl Table {
    /// Takes a request out of the table.
    fn remove(&mut self, request: u64) -> Option<Owed> {
        let owed = self.owed.remove(&request)?;
        self.parts -= owed.answered.iter().filter(|a| !**a).count();
        if owed.answers.is_some() {
            self.queued -= owed.assignments;
        }
        Some(owed)
    }
}

/// The requests of one session that the worker has not answered, waited for or not.
#[derive(Default)]
pub struct Inflight(Mutex<Table>);

impl Inflight {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a request; `answers` needs room for one answer per part and one more. Returns the assignments that were
    /// waited for before, or `None` when the session has ended or owes too much.
    pub fn add(&self, request: u64, parts: u16, assignments: usize, answers: mpsc::Sender<Answer>) -> Option<usize> {
        let mut table = self.table();
        if table.closed || table.parts + usize::from(parts) > PARTS_OWED_MAX {
            return None;
        }
        let queued = table.queued;
        table.queued += assignments;
        table.parts += usize::from(parts);
        let owed = Owed { answered: vec![false; parts.into()], assignments, answers: Some(answers) };
        table.owed.insert(request, owed);
        Some(queued)
    }

    /// Hands a `Partials` frame to whoever waits for it.
    pub fn deliver(&self, frame: Frame) -> Delivery {
        let arrived = Instant::now();
        let mut table = self.table();
        let (request, part, parts) = (frame.header.request, frame.header.part, frame.header.parts);
        let Some(owed) = table.owed.get_mut(&request) else { return Delivery::Unasked };
        if usize::from(parts) != owed.answered.len() {
            return Delivery::Unasked;
        }
        match owed.answered.get_mut(usize::from(part)) {
            Some(answered) if !*answered => *answered = true,
            _ => return Delivery::Unasked,
        }
        let waited = owed.answers.as_ref().is_some_and(|a| a.try_send(Answer::Part { frame, arrived }).is_ok());
        let complete = owed.answered.iter().all(|a| *a);
        table.parts -= 1;
        if complete {
            table.remove(request);
        }
        if waited { Delivery::Taken } else { Delivery::Late }
    }

    /// Ends a request that the worker declined.
    pub fn decline(&self, request: u64, reason: String) -> Delivery {
        let Some(owed) = self.table().remove(request) else { return Delivery::Unasked };
        let waited = owed.answers.is_some_and(|a| a.try_send(Answer::Declined { request, reason }).is_ok());
        if waited { Delivery::Taken } else { Delivery::Late }
    }

    /// The request was never sent after all.
    pub fn withdraw(&self, request: u64) {
        self.table().remove(request);
    }

    /// Nobody waits for the request any more; its parts stay owed until they come.
    pub fn give_up(&self, request: u64) {
        let mut table = self.table();
        let Some(owed) = table.owed.get_mut(&request) else { return };
        if owed.answers.take().is_some() {
            let assignments = owed.assignments;
            table.queued -= assignments;
        }
    }

    /// Ends the session: whoever waits is told at once, and nothing more is taken.
    pub fn close(&self) {
        let mut table = self.table();
        table.closed = true;
        (table.queued, table.parts) = (0, 0);
        for (request, owed) in table.owed.drain() {
            if let Some(answers) = owed.answers {
                // The channel has room by the contract of `add`; a dropped receiver wants none.
                let _ = answers.try_send(Answer::Gone { request });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Header, Kind};

    fn partials(request: u64, part: u16, parts: u16) -> Frame {
        Frame::new(Header { request, part, parts, ..Header::control(Kind::Partials) }, vec![]).unwrap()
    }

    #[test]
    fn a_deadline_is_three_times_the_prediction_plus_slack_within_its_bounds() {
        let rule = DeadlineRule::default();
        assert_eq!(rule.deadline(Duration::from_millis(100)), Duration::from_millis(350));
        assert_eq!(rule.deadline(Duration::from_millis(1)), Duration::from_millis(250));
        assert_eq!(rule.deadline(Duration::MAX), Duration::from_secs(30));
    }

    #[test]
    fn estimates_approach_what_is_observed() {
        let mut estimate = Estimate::from_offer(f64::NAN);
        let small = Load { bytes: 15_000, queued: 0, assignments: 8 };
        let large = Load { bytes: 3_000_000, queued: 16, assignments: 2_000 };
        for _ in 0..2000 {
            estimate.observe(small, Duration::from_millis(14));
            estimate.observe(large, Duration::from_millis(300));
        }
        let near = |load, ms: f64| (estimate.predict(load).as_secs_f64() * 1e3 / ms - 1.0).abs() < 0.2;
        assert!(near(small, 14.0) && near(large, 300.0), "{estimate:?}");
    }

    #[test]
    fn one_hiccup_is_no_new_normal() {
        let mut estimate = Estimate::from_offer(1e4);
        let load = Load { bytes: 10_000, queued: 0, assignments: 8 };
        let before = estimate.predict(load);
        estimate.observe(load, Duration::from_secs(1000));
        assert!(estimate.predict(load) < before * 2);
    }

    #[test]
    fn neither_a_slow_offer_nor_slow_answers_stretch_a_deadline_far() {
        let (rule, load) = (DeadlineRule::default(), Load { bytes: 15_000, queued: 0, assignments: 8 });
        let first = Estimate::from_offer(f64::NAN).predict(load);
        for offer in [1.0, -1.0, 0.0, 999.0, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(Estimate::from_offer(offer).predict(load), first, "{offer}");
        }
        let mut estimate = Estimate::from_offer(1.0);
        for _ in 0..1000 {
            estimate.observe(load, estimate.predict(load).mul_f64(2.9));
        }
        let longest = rule.deadline(first.mul_f64(GROWTH_MAX + 0.01));
        assert!(rule.deadline(estimate.predict(load)) <= longest && longest < Duration::from_secs(1), "{longest:?}");
    }

    #[test]
    fn an_answer_carries_the_time_at_which_it_came() {
        let inflight = Inflight::default();
        let (tx, mut rx) = mpsc::channel(2);
        inflight.add(1, 1, 1, tx);
        inflight.deliver(partials(1, 0, 1));
        let delivered = Instant::now();
        std::thread::sleep(Duration::from_millis(5));
        assert!(matches!(rx.try_recv(), Ok(Answer::Part { arrived, .. }) if arrived <= delivered));
    }

    #[test]
    fn a_part_is_delivered_once() {
        let inflight = Inflight::default();
        let (tx, mut rx) = mpsc::channel(3);
        assert_eq!(inflight.add(7, 2, 10, tx.clone()), Some(0));
        assert_eq!(inflight.add(8, 1, 1, tx), Some(10));
        assert_eq!(inflight.deliver(partials(7, 1, 2)), Delivery::Taken);
        assert_eq!(inflight.deliver(partials(7, 1, 2)), Delivery::Unasked);
        assert_eq!(inflight.deliver(partials(7, 0, 1)), Delivery::Unasked);
        assert_eq!(inflight.deliver(partials(9, 0, 1)), Delivery::Unasked);
        assert!(matches!(rx.try_recv(), Ok(Answer::Part { frame, .. }) if frame.header.part == 1));
        inflight.give_up(7);
        assert_eq!(inflight.deliver(partials(7, 0, 2)), Delivery::Late);
        assert_eq!(inflight.deliver(partials(7, 0, 2)), Delivery::Unasked);
    }

    #[test]
    fn a_worker_that_owes_too_much_is_not_asked() {
        let inflight = Inflight::default();
        let (tx, _rx) = mpsc::channel(1);
        assert_eq!(inflight.add(1, PARTS_OWED_MAX as u16, 3, tx.clone()), Some(0));
        inflight.give_up(1);
        assert_eq!(inflight.add(2, 1, 1, tx.clone()), None);
        assert_eq!(inflight.decline(1, "deadline".into()), Delivery::Late);
        assert_eq!(inflight.add(2, 1, 1, tx), Some(0));
    }

    #[test]
    fn the_end_of_a_session_is_told_to_everyone_who_waits() {
        let inflight = Inflight::default();
        let (tx, mut rx) = mpsc::channel(2);
        inflight.add(1, 1, 5, tx.clone());
        assert_eq!(inflight.decline(1, "lease".into()), Delivery::Taken);
        assert!(matches!(rx.try_recv(), Ok(Answer::Declined { request: 1, .. })));
        assert_eq!(inflight.add(2, 1, 5, tx.clone()), Some(0));
        inflight.close();
        assert!(matches!(rx.try_recv(), Ok(Answer::Gone { request: 2 })));
        assert_eq!(inflight.add(3, 1, 5, tx), None);
    }
}
