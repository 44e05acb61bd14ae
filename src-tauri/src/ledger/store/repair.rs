//! Meters that are older than what was credited from them, as after a backup of the hub's ledger was restored.
//!
//! A cursor is evidence of what the hub once showed, so the meter is raised to it. Until then the credit stands, but a
//! void of that session would find less work than was paid.

use super::row::{cursor, text};
use super::{Ledger, LedgerError, Put};
use crate::ledger::entry::Meter;
use crate::types::PublicKey;

/// Cursors of one question and one write.
const CURSORS_PER_PAGE: i64 = 500;

impl Ledger {
    /// The hubs that have started in this ledger.
    ///
    /// # Errors
    /// A store that fails.
    pub async fn hubs(&self) -> Result<Vec<PublicKey>, LedgerError> {
        let rows = sqlx::query("SELECT hub FROM hub ORDER BY hub").fetch_all(&self.pool).await?;
        rows.iter().map(|row| text(row, "hub")).collect()
    }

    /// Raises this ledger's meters to what `credits`, the same ledger or the gateways' own, says was credited.
    ///
    /// Sessions that are open are refused: their hub counts them, and is right. Only hubs that have started in this
    /// ledger are repaired; the credits of others are theirs to repair.
    ///
    /// # Errors
    /// A store that fails. What was raised before stays; doing it again is right.
    pub async fn repair_meters(&self, credits: &Self) -> Result<Put, LedgerError> {
        let mut all = Put::default();
        for hub in self.hubs().await? {
            let mut after = String::new();
            loop {
                let rows = sqlx::query(
                    "SELECT * FROM credit_cursor WHERE hub = $1 AND session > $2 ORDER BY session LIMIT $3",
                )
                .bind(hub.to_string())
                .bind(after)
                .bind(CURSORS_PER_PAGE)
                .fetch_all(&credits.pool)
                .await?;
                let meters: Vec<Meter> = rows.iter().map(credited).collect::<Result<_, _>>()?;
                let Some(last) = meters.last() else { break };
                after = last.session.to_string();
                let put = self.raise_meters(&meters).await?;
                all.written += put.written;
                all.refused.extend(put.refused);
            }
        }
        Ok(all)
    }
}

/// What a cursor proves of a meter.
fn credited(row: &sqlx::any::AnyRow) -> Result<Meter, LedgerError> {
    let cursor = cursor(row)?;
    Ok(Meter {
        hub: cursor.hub,
        session: text(row, "session")?,
        wallet: cursor.wallet,
        epoch: 0,
        assignments: 0,
        work_bytes: cursor.work_bytes,
        voided_bytes: cursor.voided_bytes,
        raw_bytes: 0,
        change_seq: 0,
        r#final: true,
    })
}
