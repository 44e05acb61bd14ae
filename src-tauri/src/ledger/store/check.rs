//! Feeds one snapshot of every row to the audit.

use futures_util::TryStreamExt;
use sqlx::Row;

use super::row::{counter, cursor, text, transfer};
use super::{Ledger, LedgerError};
use crate::ledger::audit::{Audit, Report};

impl Ledger {
    /// Recomputes every balance, cursor and sequence from the transfers, in one snapshot.
    ///
    /// Memory grows with accounts and sessions, not with transfers.
    ///
    /// # Errors
    /// A store that fails, or a stored value that has no meaning at all.
    pub async fn check(&self) -> Result<Report, LedgerError> {
        let mut audit = Audit::default();
        let mut tx = self.begin_read().await?;
        let mut rows = sqlx::query("SELECT * FROM transfer ORDER BY wallet, sequence").fetch(&mut *tx);
        while let Some(row) = rows.try_next().await? {
            audit.transfer(&transfer(&row)?);
        }
        drop(rows);
        let mut rows = sqlx::query("SELECT id, debits, credits FROM account").fetch(&mut *tx);
        while let Some(row) = rows.try_next().await? {
            let (debits, credits): (i64, i64) = (row.try_get("debits")?, row.try_get("credits")?);
            audit.account(row.try_get("id")?, debits.into(), credits.into());
        }
        drop(rows);
        let mut rows = sqlx::query(
            "SELECT credit_cursor.*, meter.work_bytes AS metered_work, meter.voided_bytes AS metered_voided \
             FROM credit_cursor LEFT JOIN meter ON meter.session = credit_cursor.session",
        )
        .fetch(&mut *tx);
        while let Some(row) = rows.try_next().await? {
            let metered = match row.try_get::<Option<i64>, _>("metered_work")? {
                Some(_) => Some((counter(&row, "metered_work")?, counter(&row, "metered_voided")?)),
                None => None,
            };
            audit.cursor(text(&row, "session")?, &cursor(&row)?, metered);
        }
        drop(rows);
        let mut rows = sqlx::query("SELECT address, sequence, work_bytes FROM wallet").fetch(&mut *tx);
        while let Some(row) = rows.try_next().await? {
            audit.wallet(text(&row, "address")?, counter(&row, "sequence")?, counter(&row, "work_bytes")?);
        }
        drop(rows);
        tx.rollback().await?;
        Ok(audit.finish())
    }
}
