//! One session's counters: what its worker has earned, what of it was voided, how many bytes travelled.
//!
//! Fed by the bridge with judged verdicts, read by the meters and the receipts. No I/O.
//! **Invariants:** every counter only grows; `voided_bytes ≤ work_bytes = 4 · hidden_size · assignments`.
//! Why a void takes everything: a wallet is caught on a sample, so what was not looked at is worth no more.

/// The counters of one session.
#[derive(Debug, Clone)]
pub struct Tally {
    work_bytes_each: u64,
    assignments: u64,
    raw_bytes: u64,
    is_void: bool,
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
        Self { work_bytes_each: 4 * u64::from(hidden_size), assignments: 0, raw_bytes: 0, is_void: false }
    }

    /// Bytes of a frame passed.
    pub fn passed(&mut self, bytes: u64) {
        self.raw_bytes = self.raw_bytes.saturating_add(bytes);
    }

    /// More assignments were accepted; nothing counts once the session is void.
    pub fn credit(&mut self, assignments: u32) {
        if !self.is_void {
            self.assignments = self.assignments.saturating_add(assignments.into());
        }
    }

    /// The worker was caught: nothing that it earned counts, now and later.
    pub fn void(&mut self) {
        self.is_void = true;
    }

    /// The totals so far.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let work_bytes = self.assignments.saturating_mul(self.work_bytes_each);
        let voided_bytes = if self.is_void { work_bytes } else { 0 };
        Totals { assignments: self.assignments, work_bytes, voided_bytes, raw_bytes: self.raw_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_bytes_are_four_times_hidden_size_per_assignment() {
        let mut tally = Tally::new(3072);
        (0..13).for_each(|_| tally.credit(8));
        tally.passed(100);
        let expected = Totals { assignments: 104, work_bytes: 1_277_952, voided_bytes: 0, raw_bytes: 100 };
        assert_eq!(tally.totals(), expected);
    }

    #[test]
    fn a_void_takes_all_that_was_credited_and_all_that_would_follow() {
        let mut tally = Tally::new(1);
        tally.credit(50);
        for _ in 0..2 {
            tally.void();
            assert_eq!((tally.totals().work_bytes, tally.totals().voided_bytes), (200, 200));
            tally.credit(10);
        }
    }
}
