//! Every open session's counters, kept in memory and written to the ledger.
//!
//! Rows are cumulative, so that a write may fail, repeat or overtake another without harm. They are written each second
//! and before anybody is shown a number: a receipt, a poll. **Promises:** a crash loses at most what no one was shown;
//! a session that earned nothing leaves no row, so that strangers cannot fill the ledger by connecting.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::tally::{Tally, Totals};
use crate::ledger::{Ledger, LedgerError, Meter, MeterPage, Refusal, RunId};
use crate::types::{PublicKey, SessionId};

/// Most rows of one write.
const ROWS_PER_WRITE: usize = 500;

/// Why meters were not written.
#[derive(Debug, thiserror::Error)]
pub enum FlushError {
    /// The ledger failed; the rows stay due.
    #[error("writing meters: {0}")]
    Ledger(#[from] LedgerError),
    /// The ledger refused rows: another process runs with this hub's key, or the ledger is another one.
    #[error("the ledger refused {rows} meters, the first because: {reason}")]
    Refused {
        /// How many.
        rows: usize,
        /// The first one's reason.
        reason: String,
    },
}

struct Row {
    wallet: PublicKey,
    tally: Arc<Mutex<Tally>>,
    written: Totals,
    closed: bool,
}

/// The meters of one start of a hub.
pub struct Meters {
    ledger: Ledger,
    hub: PublicKey,
    epoch: u64,
    rows: Mutex<HashMap<SessionId, Row>>,
    /// Wallets whose rows in the ledger are still to be voided.
    void_due: Mutex<BTreeSet<PublicKey>>,
    writing: tokio::sync::Mutex<()>,
}

impl Meters {
    /// No session yet, in the hub's `epoch`.
    #[must_use]
    pub fn new(ledger: Ledger, hub: PublicKey, epoch: u64) -> Self {
        let (rows, void_due, writing) = (Mutex::default(), Mutex::default(), tokio::sync::Mutex::default());
        Self { ledger, hub, epoch, rows, void_due, writing }
    }

    /// A session begins; its counters are the bridge's to change. They are void from the start while its wallet's void
    /// is on its way to the ledger, which would otherwise void more of the row than the row says, for good.
    pub fn open(&self, session: SessionId, wallet: PublicKey, hidden_size: u32) -> Arc<Mutex<Tally>> {
        // The rows first, as in `void`: either this sees that a void is due, or that finds the row.
        let mut rows = self.rows();
        let mut tally = Tally::new(hidden_size);
        if self.is_void_due(&wallet) {
            tally.void();
        }
        let tally = Arc::new(Mutex::new(tally));
        let row = Row { wallet, tally: Arc::clone(&tally), written: Totals::default(), closed: false };
        rows.insert(session, row);
        tally
    }

    /// A session is over; its row is final once written and is forgotten then.
    pub fn close(&self, session: &SessionId) {
        if let Some(row) = self.rows().get_mut(session) {
            row.closed = true;
        }
    }

    /// What an open session has come to; zero for one that is not known.
    #[must_use]
    pub fn totals(&self, session: &SessionId) -> Totals {
        self.rows().get(session).map(Row::totals).unwrap_or_default()
    }

    /// Voids all credit of a wallet that is not settled: of its open sessions at once, of those that are over with the
    /// next flush.
    pub fn void(&self, wallet: PublicKey) {
        self.void_due().insert(wallet);
        for row in self.rows().values().filter(|row| row.wallet == wallet) {
            row.tally.lock().unwrap_or_else(PoisonError::into_inner).void();
        }
    }

    /// Whether a void of this wallet is not in the ledger yet.
    #[must_use]
    pub fn is_void_due(&self, wallet: &PublicKey) -> bool {
        self.void_due().contains(wallet)
    }

    /// Raises the meter of a session that is over to what is proven; whether that was news. An open session is not
    /// raised: what counts it here is ahead.
    ///
    /// # Errors
    /// A ledger that fails; inside, its refusal of the row.
    pub async fn raise(&self, proven: &Meter) -> Result<Result<bool, Refusal>, LedgerError> {
        if self.rows().contains_key(&proven.session) {
            return Ok(Ok(false));
        }
        let mut put = self.ledger.raise_meters(std::slice::from_ref(proven)).await?;
        Ok(put.refused.pop().map_or(Ok(put.written > 0), |refused| Err(refused.refusal)))
    }

    /// Writes every row that changed or closed, and what is void. When it returns, all that was counted before the call is durable.
    ///
    /// # Errors
    /// [`FlushError`]; what was not written stays due. A row that is refused keeps back no other row and no void.
    pub async fn flush(&self) -> Result<(), FlushError> {
        let _one_at_a_time = self.writing.lock().await;
        let (due, mut refused) = (self.due(), Vec::new());
        for chunk in due.chunks(ROWS_PER_WRITE) {
            let put = self.ledger.put_meters(chunk).await?;
            let is_refused = |meter: &Meter| put.refused.iter().any(|refused| refused.session == meter.session);
            self.written(chunk.iter().filter(|meter| !is_refused(meter)));
            refused.extend(put.refused);
        }
        let void_due = self.void_due().clone();
        for wallet in void_due {
            let rows = self.ledger.void_meters(self.hub, wallet, self.epoch).await?;
            if rows > 0 {
                tracing::warn!(%wallet, rows, "unsettled credit of a caught wallet is void");
            }
            self.void_due().remove(&wallet);
        }
        match refused.first() {
            None => Ok(()),
            Some(first) => Err(FlushError::Refused { rows: refused.len(), reason: first.refusal.to_string() }),
        }
    }

    /// The gateway's page, after a flush.
    ///
    /// # Errors
    /// A flush or a read that fails.
    pub async fn page(&self, after: u64, run: Option<RunId>, limit: u32) -> Result<MeterPage, FlushError> {
        self.flush().await?;
        Ok(self.ledger.meter_page(self.hub, after, run, limit).await?)
    }

    fn due(&self) -> Vec<Meter> {
        let mut rows = self.rows();
        rows.retain(|_, row| !(row.closed && row.totals().assignments == 0));
        let due = rows.iter().filter(|(_, row)| row.is_due());
        due.map(|(session, row)| self.meter(*session, row)).collect()
    }

    fn written<'a>(&self, meters: impl Iterator<Item = &'a Meter>) {
        let mut rows = self.rows();
        for meter in meters {
            if meter.r#final {
                rows.remove(&meter.session);
            } else if let Some(row) = rows.get_mut(&meter.session) {
                row.written = Totals {
                    assignments: meter.assignments,
                    work_bytes: meter.work_bytes,
                    voided_bytes: meter.voided_bytes,
                    raw_bytes: meter.raw_bytes,
                };
            }
        }
    }

    fn meter(&self, session: SessionId, row: &Row) -> Meter {
        let Totals { assignments, work_bytes, voided_bytes, raw_bytes } = row.totals();
        Meter {
            hub: self.hub,
            session,
            wallet: row.wallet,
            epoch: self.epoch,
            assignments,
            work_bytes,
            voided_bytes,
            raw_bytes,
            change_seq: 0,
            r#final: row.closed,
        }
    }

    fn void_due(&self) -> MutexGuard<'_, BTreeSet<PublicKey>> {
        self.void_due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rows(&self) -> MutexGuard<'_, HashMap<SessionId, Row>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Row {
    fn totals(&self) -> Totals {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner).totals()
    }

    /// Raw bytes alone are a metric and wait for the next change that is money.
    fn is_due(&self) -> bool {
        let now = self.totals();
        let moved = (now.assignments, now.voided_bytes) != (self.written.assignments, self.written.voided_bytes);
        moved || self.closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Hex;

    const WALLET: PublicKey = PublicKey([1; 32]);
    const HUB: PublicKey = PublicKey([9; 32]);

    async fn meters() -> Meters {
        let ledger = Ledger::open("sqlite::memory:").await.unwrap();
        let epoch = ledger.next_epoch(HUB).await.unwrap();
        Meters::new(ledger, HUB, epoch)
    }

    #[tokio::test]
    async fn a_session_that_begins_while_a_void_is_due_earns_nothing_and_the_next_one_does() {
        let meters = meters().await;
        meters.void(WALLET);
        let early = meters.open(Hex([1; 16]), WALLET, 1);
        early.lock().unwrap().credit(5);
        assert!(meters.is_void_due(&WALLET));
        meters.flush().await.unwrap();
        assert!(!meters.is_void_due(&WALLET));
        early.lock().unwrap().credit(5);
        let later = meters.open(Hex([2; 16]), WALLET, 1);
        later.lock().unwrap().credit(7);
        meters.flush().await.unwrap();
        assert_eq!(meters.totals(&Hex([1; 16])), Totals::default());
        let totals = meters.totals(&Hex([2; 16]));
        assert_eq!((totals.work_bytes, totals.voided_bytes), (28, 0));
    }

    #[tokio::test]
    async fn a_row_that_is_refused_keeps_back_no_other_row_and_no_void() {
        let meters = meters().await;
        let (taken, other) = (Hex([1; 16]), PublicKey([2; 32]));
        meters.open(taken, WALLET, 1).lock().unwrap().credit(5);
        meters.flush().await.unwrap();
        // The session's row is another wallet's now, which the ledger refuses.
        meters.open(taken, other, 1).lock().unwrap().credit(9);
        for n in 2..4 {
            meters.open(Hex([n; 16]), other, 1).lock().unwrap().credit(3);
        }
        meters.void(WALLET);
        assert!(matches!(meters.flush().await, Err(FlushError::Refused { rows: 1, .. })));
        let rows = meters.ledger.meters_after(HUB, 0, 10).await.unwrap();
        let written: u64 = rows.iter().filter(|row| row.wallet == other).map(|row| row.work_bytes).sum();
        assert_eq!((written, meters.is_void_due(&WALLET)), (24, false));
        assert!(rows.iter().filter(|row| row.wallet == WALLET).all(|row| row.voided_bytes == 20));
    }
}
