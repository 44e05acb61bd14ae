//! Every open session's counters, kept in memory and written to the ledger.
//!
//! Rows are cumulative, so that a write may fail, repeat or overtake another without harm. They are written each second
//! and before anybody is shown a number: a receipt, a poll. **Promises:** a crash loses at most what no one was shown;
//! a session that earned nothing leaves no row, so that strangers cannot fill the ledger by connecting.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::tally::{Tally, Totals};
use crate::ledger::{Ledger, LedgerError, Meter, MeterPage};
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
    writing: tokio::sync::Mutex<()>,
}

impl Meters {
    /// No session yet, in the hub's `epoch`.
    #[must_use]
    pub fn new(ledger: Ledger, hub: PublicKey, epoch: u64) -> Self {
        Self { ledger, hub, epoch, rows: Mutex::default(), writing: tokio::sync::Mutex::default() }
    }

    /// A session begins; its counters are the bridge's to change.
    pub fn open(&self, session: SessionId, wallet: PublicKey, hidden_size: u32) -> Arc<Mutex<Tally>> {
        let tally = Arc::new(Mutex::new(Tally::new(hidden_size)));
        let row = Row { wallet, tally: Arc::clone(&tally), written: Totals::default(), closed: false };
        self.rows().insert(session, row);
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

    /// Voids a session's credit from `request` on; whether it is this wallet's session and still known.
    pub fn void(&self, session: &SessionId, wallet: &PublicKey, request: u64) -> bool {
        let rows = self.rows();
        let Some(row) = rows.get(session).filter(|row| row.wallet == *wallet) else { return false };
        row.tally.lock().unwrap_or_else(PoisonError::into_inner).void_from(request);
        true
    }

    /// Writes every row that changed or closed. When it returns, all that was counted before the call is durable.
    ///
    /// # Errors
    /// [`FlushError`]; what was not written stays due.
    pub async fn flush(&self) -> Result<(), FlushError> {
        let _one_at_a_time = self.writing.lock().await;
        let due = self.due();
        for chunk in due.chunks(ROWS_PER_WRITE) {
            let put = self.ledger.put_meters(chunk).await?;
            if let Some(first) = put.refused.first() {
                return Err(FlushError::Refused { rows: put.refused.len(), reason: first.refusal.to_string() });
            }
            self.written(chunk);
        }
        Ok(())
    }

    /// The gateway's page, after a flush.
    ///
    /// # Errors
    /// A flush or a read that fails.
    pub async fn page(&self, after: u64, limit: u32) -> Result<MeterPage, FlushError> {
        self.flush().await?;
        Ok(self.ledger.meter_page(self.hub, after, limit).await?)
    }

    fn due(&self) -> Vec<Meter> {
        let mut rows = self.rows();
        rows.retain(|_, row| !(row.closed && row.totals().assignments == 0));
        let due = rows.iter().filter(|(_, row)| row.is_due());
        due.map(|(session, row)| self.meter(*session, row)).collect()
    }

    fn written(&self, meters: &[Meter]) {
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
