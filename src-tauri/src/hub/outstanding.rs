//! What a session's worker still owes and what the backbone still has to judge, for the bridge and the meter.
//!
//! A part enters with its `Dispatch`, is answered once by the worker (partials or a decline) and judged once by the
//! backbone, in either order; it leaves when both happened. Only headers are kept.
//! **Invariant:** a part is credited at most once and never with more assignments than were sent.
//! Why a judged part stays until its answer comes: a late answer is normal and must not look like a forged one.

use std::collections::BTreeMap;

use crate::wire::control::Verdict;
use crate::wire::frame::{FLAG_FLOAT, Header};

/// A frame that does not fit what was sent; it ends its session.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum OutstandingError {
    /// The worker answered what it was not asked, or answered twice.
    #[error("answer to request {request} part {part}, which is not open")]
    NotOpen {
        /// Request id.
        request: u64,
        /// Part index.
        part: u16,
    },
    /// The worker's answer has another shape than its request.
    #[error("answer to request {request} part {part}: expected {what} {expected}, got {got}")]
    Shape {
        /// Request id.
        request: u64,
        /// Part index.
        part: u16,
        /// Which field.
        what: &'static str,
        /// The request's value.
        expected: u64,
        /// The answer's value.
        got: u64,
    },
    /// The backbone used an id again while it was open.
    #[error("request {request} part {part} is already open")]
    Twice {
        /// Request id.
        request: u64,
        /// Part index.
        part: u16,
    },
    /// Too much is open.
    #[error("{max} parts are open, which is the limit; {unanswered} of them wait for the worker")]
    Full {
        /// The limit.
        max: usize,
        /// Parts without an answer; the others wait for a verdict.
        unanswered: usize,
    },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    Awaited,
    Given,
    Declined,
}

struct Part {
    sent: Header,
    answer: Answer,
    judged: bool,
}

/// What a verdict is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judgement {
    /// Credit these assignments (0 when none was accepted).
    Credit(u32),
    /// The backbone accepted more than can be credited: this much counts.
    Capped(u32),
    /// The part is unknown or was judged before: nothing counts.
    NotOpen,
}

/// The table of one session.
pub struct Outstanding {
    parts: BTreeMap<(u64, u16), Part>,
    max: usize,
    hidden_size: u32,
}

impl Outstanding {
    /// An empty table of at most `max` parts for rows of `hidden_size` elements.
    #[must_use]
    pub fn new(max: usize, hidden_size: u32) -> Self {
        Self { parts: BTreeMap::new(), max, hidden_size }
    }

    /// Whether nothing is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Whether every answer that came has its verdict; what was never answered earns nothing and is owed none.
    #[must_use]
    pub fn is_judged(&self) -> bool {
        self.parts.values().all(|part| part.judged || part.answer != Answer::Given)
    }

    /// A `Dispatch` goes to the worker.
    ///
    /// # Errors
    /// An id that is open, or a full table.
    pub fn sent(&mut self, header: &Header) -> Result<(), OutstandingError> {
        self.insert(header, false)
    }

    /// A `Challenge` goes to the worker: it is owed an answer but no verdict, and earns nothing.
    ///
    /// # Errors
    /// As [`Outstanding::sent`].
    pub fn challenged(&mut self, header: &Header) -> Result<(), OutstandingError> {
        self.insert(header, true)
    }

    fn insert(&mut self, header: &Header, judged: bool) -> Result<(), OutstandingError> {
        let key = (header.request, header.part);
        if self.parts.contains_key(&key) {
            return Err(OutstandingError::Twice { request: key.0, part: key.1 });
        }
        if self.parts.len() >= self.max {
            let unanswered = self.parts.values().filter(|p| p.answer == Answer::Awaited).count();
            return Err(OutstandingError::Full { max: self.max, unanswered });
        }
        self.parts.insert(key, Part { sent: *header, answer: Answer::Awaited, judged });
        Ok(())
    }

    /// A `Partials` or `ChallengeReply` comes from the worker.
    ///
    /// # Errors
    /// A part that is not open, or another shape than was sent.
    pub fn answered(&mut self, header: &Header) -> Result<(), OutstandingError> {
        let key = (header.request, header.part);
        let hidden_size = self.hidden_size;
        let Some(part) = self.parts.get_mut(&key).filter(|p| p.answer == Answer::Awaited && p.asks(header)) else {
            return Err(OutstandingError::NotOpen { request: key.0, part: key.1 });
        };
        check_shape(&part.sent, header, hidden_size)?;
        part.answer = Answer::Given;
        self.forget_if_done(key);
        Ok(())
    }

    /// A `Decline` comes from the worker: it answers every open part of its request.
    ///
    /// # Errors
    /// A request without an open part.
    pub fn declined(&mut self, request: u64) -> Result<(), OutstandingError> {
        let range = (request, 0)..=(request, u16::MAX);
        let open: Vec<_> =
            self.parts.range(range).filter(|(_, p)| p.answer == Answer::Awaited).map(|(key, _)| *key).collect();
        if open.is_empty() {
            return Err(OutstandingError::NotOpen { request, part: 0 });
        }
        for key in open {
            if let Some(part) = self.parts.get_mut(&key) {
                part.answer = Answer::Declined;
            }
            self.forget_if_done(key);
        }
        Ok(())
    }

    /// A `Verdict` comes from the backbone.
    pub fn judged(&mut self, verdict: &Verdict) -> Judgement {
        let key = (verdict.request, verdict.part);
        let Some(part) = self.parts.get_mut(&key).filter(|p| !p.judged) else {
            return Judgement::NotOpen;
        };
        part.judged = true;
        let most = if part.answer == Answer::Given { part.sent.assignments } else { 0 };
        self.forget_if_done(key);
        if verdict.accepted > most { Judgement::Capped(most) } else { Judgement::Credit(verdict.accepted) }
    }

    fn forget_if_done(&mut self, key: (u64, u16)) {
        if self.parts.get(&key).is_some_and(|p| p.judged && p.answer != Answer::Awaited) {
            self.parts.remove(&key);
        }
    }
}

impl Part {
    /// Whether `answer` is of the kind that this part asks for.
    fn asks(&self, answer: &Header) -> bool {
        use crate::wire::Kind::{Challenge, ChallengeReply, Dispatch, Partials};
        matches!((self.sent.kind, answer.kind), (Dispatch, Partials) | (Challenge, ChallengeReply))
    }
}

/// An answer repeats its request's shape, and its length follows from it.
fn check_shape(sent: &Header, got: &Header, hidden_size: u32) -> Result<(), OutstandingError> {
    let (rows, assignments, hidden) = (u64::from(sent.rows), u64::from(sent.assignments), u64::from(hidden_size));
    let float = sent.flags & FLAG_FLOAT != 0;
    let body_bytes = if float { rows + 4 * assignments * hidden } else { rows * (1 + 4 * hidden) };
    for (what, expected, got) in [
        ("rows", rows, u64::from(got.rows)),
        ("assignments", assignments, u64::from(got.assignments)),
        ("layer", u64::from(sent.layer), u64::from(got.layer)),
        ("flags", u64::from(sent.flags), u64::from(got.flags)),
        ("parts", u64::from(sent.parts), u64::from(got.parts)),
        ("body bytes", body_bytes, u64::from(got.body_bytes)),
    ] {
        if expected != got {
            return Err(OutstandingError::Shape { request: sent.request, part: sent.part, what, expected, got });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Kind;

    const HIDDEN: u32 = 8;

    fn header(kind: Kind, request: u64, part: u16, rows: u32, assignments: u32) -> Header {
        let body_bytes = if kind == Kind::Partials { rows * (1 + 4 * HIDDEN) } else { 0 };
        Header { request, part, parts: 4, rows, assignments, body_bytes, layer: 3, ..Header::control(kind) }
    }

    fn verdict(request: u64, part: u16, accepted: u32) -> Verdict {
        Verdict { request, part, accepted, refused: 0, reason: "ok".into() }
    }

    #[test]
    fn a_verdict_pays_what_was_answered_once() {
        let mut table = Outstanding::new(8, HIDDEN);
        table.sent(&header(Kind::Dispatch, 7, 1, 2, 5)).unwrap();
        table.answered(&header(Kind::Partials, 7, 1, 2, 5)).unwrap();
        assert_eq!(table.judged(&verdict(7, 1, 5)), Judgement::Credit(5));
        assert_eq!(table.judged(&verdict(7, 1, 5)), Judgement::NotOpen);
        assert!(table.is_empty());
    }

    #[test]
    fn a_verdict_never_pays_more_than_was_sent_or_what_was_not_answered() {
        let mut table = Outstanding::new(8, HIDDEN);
        table.sent(&header(Kind::Dispatch, 1, 0, 2, 5)).unwrap();
        table.sent(&header(Kind::Dispatch, 2, 0, 2, 5)).unwrap();
        table.answered(&header(Kind::Partials, 1, 0, 2, 5)).unwrap();
        assert_eq!(table.judged(&verdict(1, 0, 6)), Judgement::Capped(5));
        assert_eq!(table.judged(&verdict(2, 0, 5)), Judgement::Capped(0));
        assert_eq!(table.judged(&verdict(3, 0, 5)), Judgement::NotOpen);
    }

    #[test]
    fn a_late_answer_after_its_verdict_is_no_breach_and_earns_nothing() {
        let mut table = Outstanding::new(8, HIDDEN);
        table.sent(&header(Kind::Dispatch, 1, 0, 2, 5)).unwrap();
        assert_eq!(table.judged(&verdict(1, 0, 0)), Judgement::Credit(0));
        table.answered(&header(Kind::Partials, 1, 0, 2, 5)).unwrap();
        assert_eq!(table.judged(&verdict(1, 0, 5)), Judgement::NotOpen);
        assert!(table.is_empty());
    }

    #[test]
    fn answers_that_were_not_asked_or_come_twice_are_refused() {
        let mut table = Outstanding::new(8, HIDDEN);
        let not_open = Err(OutstandingError::NotOpen { request: 1, part: 0 });
        assert_eq!(table.answered(&header(Kind::Partials, 1, 0, 2, 5)), not_open);
        table.sent(&header(Kind::Dispatch, 1, 0, 2, 5)).unwrap();
        let reply = Header { kind: Kind::ChallengeReply, ..header(Kind::Partials, 1, 0, 2, 5) };
        assert_eq!(table.answered(&reply), not_open);
        table.answered(&header(Kind::Partials, 1, 0, 2, 5)).unwrap();
        assert_eq!(table.answered(&header(Kind::Partials, 1, 0, 2, 5)), not_open);
    }

    #[test]
    fn answers_of_another_shape_are_refused() {
        let sent = header(Kind::Dispatch, 1, 0, 2, 5);
        let good = header(Kind::Partials, 1, 0, 2, 5);
        for (what, bad) in [
            ("rows", Header { rows: 1, ..good }),
            ("assignments", Header { assignments: 6, ..good }),
            ("layer", Header { layer: 4, ..good }),
            ("flags", Header { flags: FLAG_FLOAT, ..good }),
            ("parts", Header { parts: 5, ..good }),
            ("body bytes", Header { body_bytes: good.body_bytes - 1, ..good }),
        ] {
            let mut table = Outstanding::new(8, HIDDEN);
            table.sent(&sent).unwrap();
            let refused = table.answered(&bad).unwrap_err();
            assert!(matches!(refused, OutstandingError::Shape { what: w, .. } if w == what), "{what}: {refused}");
        }
    }

    #[test]
    fn a_decline_answers_every_open_part_and_earns_nothing() {
        let mut table = Outstanding::new(8, HIDDEN);
        table.sent(&header(Kind::Dispatch, 1, 0, 2, 5)).unwrap();
        table.sent(&header(Kind::Dispatch, 1, 1, 2, 5)).unwrap();
        table.answered(&header(Kind::Partials, 1, 0, 2, 5)).unwrap();
        table.declined(1).unwrap();
        assert_eq!(table.declined(1), Err(OutstandingError::NotOpen { request: 1, part: 0 }));
        assert_eq!(table.judged(&verdict(1, 1, 5)), Judgement::Capped(0));
        assert_eq!(table.judged(&verdict(1, 0, 5)), Judgement::Credit(5));
        assert!(table.is_empty());
    }

    #[test]
    fn a_challenge_wants_an_answer_but_no_verdict() {
        let mut table = Outstanding::new(8, HIDDEN);
        table.challenged(&header(Kind::Challenge, 9, 0, 2, 5)).unwrap();
        assert_eq!(table.judged(&verdict(9, 0, 5)), Judgement::NotOpen);
        let reply = Header { kind: Kind::ChallengeReply, ..header(Kind::Partials, 9, 0, 2, 5) };
        table.answered(&reply).unwrap();
        assert!(table.is_empty());
    }

    #[test]
    fn the_table_is_bounded_and_ids_are_unique() {
        let mut table = Outstanding::new(2, HIDDEN);
        table.sent(&header(Kind::Dispatch, 1, 0, 1, 1)).unwrap();
        assert_eq!(
            table.sent(&header(Kind::Dispatch, 1, 0, 1, 1)),
            Err(OutstandingError::Twice { request: 1, part: 0 })
        );
        table.sent(&header(Kind::Dispatch, 1, 1, 1, 1)).unwrap();
        table.answered(&header(Kind::Partials, 1, 0, 1, 1)).unwrap();
        let full = Err(OutstandingError::Full { max: 2, unanswered: 1 });
        assert_eq!(table.sent(&header(Kind::Dispatch, 2, 0, 1, 1)), full);
    }
}
