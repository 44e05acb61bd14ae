//! What a session owes and earns, kept by the hub's own table and counters, and checked against what really happened.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use kvasir::hub::{Judgement, Outstanding, Tally};
use kvasir::ledger::settle::{Cursor, settle};
use kvasir::ledger::{Meter, Rate};
use kvasir::types::{PublicKey, SessionId};
use kvasir::wire::control::Verdict;
use kvasir::wire::{Header, Kind};

/// Parts that a hub lets a session owe.
const OPEN_PARTS: usize = 1024;

/// One session's book.
pub struct Book {
    session: SessionId,
    wallet: PublicKey,
    hidden: u32,
    table: Outstanding,
    tally: Tally,
    /// Right answers that left, and were not judged yet: request, part → assignments.
    earned: BTreeMap<(u64, u16), u32>,
}

impl Book {
    pub fn new(session: SessionId, wallet: PublicKey, hidden: u32) -> Self {
        let (table, tally) = (Outstanding::new(OPEN_PARTS, hidden), Tally::new(hidden));
        Self { session, wallet, hidden, table, tally, earned: BTreeMap::new() }
    }

    /// The backbone asks for a part, as work or as a challenge.
    pub fn asked(&mut self, header: &Header) {
        let is_new =
            if header.kind == Kind::Challenge { self.table.challenged(header) } else { self.table.sent(header) };
        is_new.expect("a part that is new, and not too many of them");
    }

    /// The worker answers a part; whether a hub lets that through.
    pub fn answered(&mut self, header: &Header, is_right: bool) -> bool {
        let passes = self.table.answered(header).is_ok();
        if passes && is_right && header.kind == Kind::Partials {
            self.earned.insert((header.request, header.part), header.assignments);
        }
        passes
    }

    /// The worker declines a request; whether a hub lets that through.
    pub fn declined(&mut self, request: u64) -> bool {
        self.table.declined(request).is_ok()
    }

    /// The backbone judges a part.
    pub fn judged(&mut self, verdict: &Verdict) {
        let earned = self.earned.remove(&(verdict.request, verdict.part)).unwrap_or(0);
        assert!(verdict.accepted <= earned, "{verdict:?} pays for more than the {earned} that were answered rightly");
        match self.table.judged(verdict) {
            Judgement::Credit(assignments) => self.tally.credit(assignments),
            other => panic!("{verdict:?} is {other:?}"),
        }
    }

    fn meter(&self) -> Meter {
        let totals = self.tally.totals();
        Meter {
            hub: PublicKey([1; 32]),
            session: self.session,
            wallet: self.wallet,
            epoch: 1,
            assignments: totals.assignments,
            work_bytes: totals.work_bytes,
            voided_bytes: totals.voided_bytes,
            raw_bytes: totals.raw_bytes,
            change_seq: 1,
            r#final: true,
        }
    }
}

/// The books of all sessions that ever were.
#[derive(Default)]
pub struct Books(Mutex<Vec<Arc<Mutex<Book>>>>);

impl Books {
    pub fn open(&self, book: Book) -> Arc<Mutex<Book>> {
        let book = Arc::new(Mutex::new(book));
        self.0.lock().expect("no panic").push(Arc::clone(&book));
        book
    }

    /// Settles every session; returns the assignments that were paid, after checking the money.
    pub fn settle(&self, rate: Rate) -> u64 {
        let (mut paid, mut issued, mut owed) = (0, 0, 0);
        for book in self.0.lock().expect("no panic").iter() {
            let book = book.lock().expect("no panic");
            let meter = book.meter();
            assert_eq!(meter.work_bytes, meter.assignments * 4 * u64::from(book.hidden));
            let step = settle(&Cursor::start(&meter), &meter, rate, 0).expect("a meter that can be settled");
            issued += step.credit.map_or(0, |credit| credit.amount);
            assert!(settle(&step.cursor, &meter, rate, 0).expect("the same again").credit.is_none());
            owed += meter.work_bytes * rate.0;
            paid += meter.assignments;
        }
        assert_eq!(issued, owed, "nano-KVR for what was accepted, once");
        paid
    }
}
