//! Which requests of a session are still out.
//!
//! **Promises:** a request's parts are each delivered at most once, and nothing else is; when a session ends, everything
//! it still owed is reported gone at once, so nobody waits for a dead worker's deadline.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::estimate::Queued;
use crate::wire::Frame;

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
    load: Queued,
    /// `None` once the request was given up.
    answers: Option<mpsc::UnboundedSender<Answer>>,
}

#[derive(Default)]
struct Table {
    owed: HashMap<u64, Owed>,
    parts: usize,
    queued: Queued,
    closed: bool,
}

impl Table {
    /// Takes a request out of the table.
    fn remove(&mut self, request: u64) -> Option<Owed> {
        let owed = self.owed.remove(&request)?;
        self.parts -= owed.answered.iter().filter(|a| !**a).count();
        if owed.answers.is_some() {
            self.forget(owed.load);
        }
        Some(owed)
    }

    fn forget(&mut self, load: Queued) {
        self.queued.bytes -= load.bytes;
        self.queued.assignments -= load.assignments;
    }
}

/// The requests of one session that the worker has not answered, waited for or not.
#[derive(Default)]
pub struct Inflight(Mutex<Table>);

impl Inflight {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a request; `answers` gets at most one answer per part and one more. Returns what was waited for before, or `None` when the session has ended or owes too much.
    pub fn add(
        &self,
        request: u64,
        parts: u16,
        load: Queued,
        answers: mpsc::UnboundedSender<Answer>,
    ) -> Option<Queued> {
        let mut table = self.table();
        if table.closed || table.parts + usize::from(parts) > PARTS_OWED_MAX {
            return None;
        }
        let queued = table.queued;
        table.queued.bytes += load.bytes;
        table.queued.assignments += load.assignments;
        table.parts += usize::from(parts);
        let owed = Owed { answered: vec![false; parts.into()], load, answers: Some(answers) };
        table.owed.insert(request, owed);
        Some(queued)
    }

    /// What is waited for.
    pub fn queued(&self) -> Queued {
        self.table().queued
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
        let waited = owed.answers.as_ref().is_some_and(|a| a.send(Answer::Part { frame, arrived }).is_ok());
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
        let waited = owed.answers.is_some_and(|a| a.send(Answer::Declined { request, reason }).is_ok());
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
            let load = owed.load;
            table.forget(load);
        }
    }

    /// Ends the session: whoever waits is told at once, and nothing more is taken.
    pub fn close(&self) {
        let mut table = self.table();
        table.closed = true;
        (table.queued, table.parts) = (Queued::default(), 0);
        for (request, owed) in table.owed.drain() {
            if let Some(answers) = owed.answers {
                // Whoever dropped the receiver wants no answer.
                let _ = answers.send(Answer::Gone { request });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Header, Kind};
    use std::time::Duration;

    /// So many assignments, of a hundred bytes each.
    fn load(assignments: usize) -> Queued {
        Queued { bytes: 100 * assignments, assignments }
    }

    fn partials(request: u64, part: u16, parts: u16) -> Frame {
        Frame::new(Header { request, part, parts, ..Header::control(Kind::Partials) }, vec![]).unwrap()
    }

    #[test]
    fn an_answer_carries_the_time_at_which_it_came() {
        let inflight = Inflight::default();
        let (tx, mut rx) = mpsc::unbounded_channel();
        inflight.add(1, 1, load(1), tx);
        inflight.deliver(partials(1, 0, 1));
        let delivered = Instant::now();
        std::thread::sleep(Duration::from_millis(5));
        assert!(matches!(rx.try_recv(), Ok(Answer::Part { arrived, .. }) if arrived <= delivered));
    }

    #[test]
    fn a_part_is_delivered_once() {
        let inflight = Inflight::default();
        let (tx, mut rx) = mpsc::unbounded_channel();
        assert_eq!(inflight.add(7, 2, load(10), tx.clone()), Some(load(0)));
        assert_eq!(inflight.add(8, 1, load(1), tx), Some(load(10)));
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
        let (tx, _rx) = mpsc::unbounded_channel();
        assert_eq!(inflight.add(1, PARTS_OWED_MAX as u16, load(3), tx.clone()), Some(load(0)));
        inflight.give_up(1);
        assert_eq!(inflight.add(2, 1, load(1), tx.clone()), None);
        assert_eq!(inflight.decline(1, "deadline".into()), Delivery::Late);
        assert_eq!(inflight.add(2, 1, load(1), tx), Some(load(0)));
    }

    #[test]
    fn the_end_of_a_session_is_told_to_everyone_who_waits() {
        let inflight = Inflight::default();
        let (tx, mut rx) = mpsc::unbounded_channel();
        inflight.add(1, 1, load(5), tx.clone());
        assert_eq!(inflight.decline(1, "lease".into()), Delivery::Taken);
        assert!(matches!(rx.try_recv(), Ok(Answer::Declined { request: 1, .. })));
        assert_eq!(inflight.add(2, 1, load(5), tx.clone()), Some(load(0)));
        inflight.close();
        assert!(matches!(rx.try_recv(), Ok(Answer::Gone { request: 2 })));
        assert_eq!(inflight.add(3, 1, load(5), tx), None);
    }
}
