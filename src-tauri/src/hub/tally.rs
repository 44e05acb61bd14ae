//! One session's counters: what its worker has earned, what of it was voided, how many bytes travelled.
//!
//! Fed by the bridge with judged verdicts, read by the meters and the receipts. No I/O.
//! **Invariants:** every counter only grows; `voided_bytes ≤ work_bytes = 4 · hidden_size · assignments`;
//! memory is bounded by [`SPANS_MAX`].
//! Why spans of requests and not one sum: a caught worker loses the credit from a certain request on.

use std::collections::BTreeMap;

/// Most spans kept; at this many, neighbours merge in pairs.
const SPANS_MAX: usize = 1024;

/// Credited assignments of the requests from a span's key to `last`.
#[derive(Debug, Clone, Copy)]
struct Span {
    last: u64,
    assignments: u64,
}

/// The counters of one session.
#[derive(Debug, Clone)]
pub struct Tally {
    work_bytes_each: u64,
    assignments: u64,
    voided_assignments: u64,
    raw_bytes: u64,
    void_from: Option<u64>,
    spans: BTreeMap<u64, Span>,
}

/// The totals at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Accepted assignments.
    pub assignments: u64,
    /// Their work bytes.
    pub work_bytes: u64,
    /// Work bytes that no longer count.
    pub voided_bytes: u64,
    /// Frame bytes between worker and hub, both ways.
    pub raw_bytes: u64,
}

impl Tally {
    /// Zero; an assignment is worth `4 · hidden_size` work bytes.
    #[must_use]
    pub fn new(hidden_size: u32) -> Self {
        Self {
            work_bytes_each: 4 * u64::from(hidden_size),
            assignments: 0,
            voided_assignments: 0,
            raw_bytes: 0,
            void_from: None,
            spans: BTreeMap::new(),
        }
    }

    /// Bytes of a frame passed.
    pub fn passed(&mut self, bytes: u64) {
        self.raw_bytes = self.raw_bytes.saturating_add(bytes);
    }

    /// `assignments` of `request` were accepted; nothing counts from a voided request on.
    pub fn credit(&mut self, request: u64, assignments: u32) {
        if assignments == 0 || self.void_from.is_some_and(|from| request >= from) {
            return;
        }
        let more = u64::from(assignments);
        self.assignments = self.assignments.saturating_add(more);
        if self.spans.len() == SPANS_MAX {
            self.merge_neighbours();
        }
        match self.spans.range_mut(..=request).next_back() {
            Some((_, span)) if request <= span.last => span.assignments += more,
            _ => {
                self.spans.insert(request, Span { last: request, assignments: more });
            }
        }
    }

    /// Voids everything from `request` on, now and later. A merged span that holds `request` is voided whole: the
    /// worker was caught, and the span is at most 1/512 of the session.
    pub fn void_from(&mut self, request: u64) {
        self.void_from = Some(self.void_from.map_or(request, |earlier| earlier.min(request)));
        let caught = |span: &Span| span.last >= request;
        self.voided_assignments += self.spans.values().filter(|s| caught(s)).map(|s| s.assignments).sum::<u64>();
        self.spans.retain(|_, span| !caught(span));
    }

    /// The totals so far.
    #[must_use]
    pub fn totals(&self) -> Totals {
        Totals {
            assignments: self.assignments,
            work_bytes: self.assignments.saturating_mul(self.work_bytes_each),
            voided_bytes: self.voided_assignments.saturating_mul(self.work_bytes_each),
            raw_bytes: self.raw_bytes,
        }
    }

    fn merge_neighbours(&mut self) {
        let old: Vec<_> = std::mem::take(&mut self.spans).into_iter().collect();
        for pair in old.chunks(2) {
            if let [(first, head), rest @ ..] = pair {
                let last = rest.last().map_or(head.last, |(_, tail)| tail.last);
                let assignments = head.assignments + rest.iter().map(|(_, s)| s.assignments).sum::<u64>();
                self.spans.insert(*first, Span { last, assignments });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_bytes_are_four_times_hidden_size_per_assignment() {
        let mut tally = Tally::new(3072);
        for request in 0..13 {
            tally.credit(request, 8);
        }
        tally.passed(100);
        let expected = Totals { assignments: 104, work_bytes: 1_277_952, voided_bytes: 0, raw_bytes: 100 };
        assert_eq!(tally.totals(), expected);
    }

    #[test]
    fn a_void_takes_what_was_credited_from_its_request_on_and_all_that_follows() {
        let mut tally = Tally::new(1);
        for request in [1, 2, 3, 5, 4] {
            tally.credit(request, 10);
        }
        tally.void_from(4);
        assert_eq!((tally.totals().work_bytes, tally.totals().voided_bytes), (200, 80));
        tally.credit(6, 10);
        assert_eq!(tally.totals().work_bytes, 200, "later work of the caught worker earns nothing");
        tally.credit(3, 10);
        tally.void_from(4);
        assert_eq!((tally.totals().work_bytes, tally.totals().voided_bytes), (240, 80), "a void applies once");
        tally.void_from(0);
        assert_eq!(tally.totals().voided_bytes, tally.totals().work_bytes);
    }

    #[test]
    fn spans_stay_bounded_and_lose_nothing() {
        let mut tally = Tally::new(1);
        let requests = 10 * SPANS_MAX as u64;
        for request in 0..requests {
            // Verdicts arrive a little out of order.
            tally.credit(request ^ 3, 1);
            assert!(tally.spans.len() <= SPANS_MAX);
        }
        assert_eq!(tally.spans.values().map(|s| s.assignments).sum::<u64>(), requests);
        let before = tally.totals();
        tally.void_from(requests / 2);
        let voided = tally.totals().voided_bytes / 4;
        assert_eq!(tally.totals().work_bytes, before.work_bytes);
        assert!((requests / 2..=requests / 2 + requests / 256).contains(&voided), "voided {voided}");
    }
}
