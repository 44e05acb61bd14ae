//! The hub's side: cumulative meters, fenced by epoch and numbered by change.

use sqlx::{Any, Transaction};

use super::credit::RefusedMeter;
use super::row::{counter, meter, signed};
use super::{Ledger, LedgerError};
use crate::ledger::entry::{Meter, MeterPage};
use crate::ledger::settle::{Refusal, admit, same_owner};
use crate::types::PublicKey;

/// Most meter rows that one question returns.
pub const METERS_PER_PAGE_MAX: u32 = 1000;

/// What became of the rows of [`Ledger::put_meters`].
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Put {
    /// Rows that changed something.
    pub written: usize,
    /// Rows that were refused, and why; an alarm, for a hub never sends one.
    pub refused: Vec<RefusedMeter>,
}

impl Ledger {
    /// Starts a new epoch of a hub: fences its earlier processes and closes the sessions that they left open.
    ///
    /// # Errors
    /// A store that fails.
    pub async fn next_epoch(&self, hub: PublicKey) -> Result<u64, LedgerError> {
        let mut tx = self.begin_write().await?;
        let hub = hub.to_string();
        let row = sqlx::query(
            "INSERT INTO hub (hub, epoch) VALUES ($1, 1) \
             ON CONFLICT (hub) DO UPDATE SET epoch = hub.epoch + 1 RETURNING epoch",
        )
        .bind(hub.clone())
        .fetch_one(&mut *tx)
        .await?;
        let epoch = counter(&row, "epoch")?;
        let open = sqlx::query("SELECT * FROM meter WHERE hub = $1 AND closed = 0 ORDER BY change_seq")
            .bind(hub)
            .fetch_all(&mut *tx)
            .await?;
        for row in &open {
            let left = Meter { r#final: true, ..meter(row)? };
            write(&mut tx, &left).await?;
        }
        tx.commit().await?;
        Ok(epoch)
    }

    /// Writes cumulative meters and numbers every change; rows that change nothing are left alone.
    ///
    /// A row of an epoch below the hub's newest, with a lower counter, or of another hub or wallet than its session's is
    /// refused and reported; the rows beside it are written.
    ///
    /// # Errors
    /// A store that fails; no row was written then.
    pub async fn put_meters(&self, rows: &[Meter]) -> Result<Put, LedgerError> {
        let mut put = Put::default();
        let mut tx = self.begin_write().await?;
        for row in rows {
            match judge(&mut tx, row).await? {
                Ok(Some(changed)) => {
                    write(&mut tx, &changed).await?;
                    put.written += 1;
                }
                Ok(None) => {}
                Err(refusal) => put.refused.push(RefusedMeter::new(row, refusal)),
            }
        }
        tx.commit().await?;
        Ok(put)
    }

    /// Voids all that a wallet earned with a hub, in sessions that are over too; the hub's newest epoch or an earlier
    /// one. Gives the rows that changed; doing it again changes none. What was paid out already is not taken back by
    /// the gateways.
    ///
    /// # Errors
    /// A store that fails; no row was changed then.
    pub async fn void_meters(&self, hub: PublicKey, wallet: PublicKey, epoch: u64) -> Result<usize, LedgerError> {
        let mut tx = self.begin_write().await?;
        let rows = sqlx::query(
            "SELECT * FROM meter WHERE wallet = $1 AND hub = $2 AND epoch <= $3 AND voided_bytes < work_bytes \
             ORDER BY change_seq",
        )
        .bind(wallet.to_string())
        .bind(hub.to_string())
        .bind(signed(epoch)?)
        .fetch_all(&mut *tx)
        .await?;
        for row in &rows {
            let row = meter(row)?;
            write(&mut tx, &Meter { voided_bytes: row.work_bytes, ..row }).await?;
        }
        tx.commit().await?;
        Ok(rows.len())
    }

    /// Meters changed after a position, oldest change first; at most [`METERS_PER_PAGE_MAX`].
    ///
    /// # Errors
    /// A store that fails.
    pub async fn meters_after(&self, after: u64, limit: u32) -> Result<Vec<Meter>, LedgerError> {
        let rows = sqlx::query("SELECT * FROM meter WHERE change_seq > $1 ORDER BY change_seq LIMIT $2")
            .bind(i64::try_from(after).unwrap_or(i64::MAX))
            .bind(i64::from(limit.min(METERS_PER_PAGE_MAX)))
            .fetch_all(&self.pool)
            .await?;
        rows.iter().map(meter).collect()
    }

    /// The answer to `GET /v1/meters`: [`Ledger::meters_after`] with the hub's name, version and newest position.
    ///
    /// # Errors
    /// A store that fails.
    pub async fn meter_page(&self, hub: PublicKey, after: u64, limit: u32) -> Result<MeterPage, LedgerError> {
        let meters = self.meters_after(after, limit).await?;
        let row = sqlx::query("SELECT value FROM change_counter WHERE name = 'meter'").fetch_one(&self.pool).await?;
        let last_change_seq = counter(&row, "value")?;
        Ok(MeterPage { hub, version: env!("CARGO_PKG_VERSION").to_owned(), last_change_seq, meters })
    }
}

/// The row to write: `None` when it says nothing new.
async fn judge(tx: &mut Transaction<'static, Any>, row: &Meter) -> Result<Result<Option<Meter>, Refusal>, LedgerError> {
    if let Err(refusal) = admit(row) {
        return Ok(Err(refusal));
    }
    let hub = row.hub.to_string();
    let fence = sqlx::query("SELECT epoch FROM hub WHERE hub = $1").bind(hub.clone()).fetch_optional(&mut **tx).await?;
    let expected = fence.map(|fence| counter(&fence, "epoch")).transpose()?.unwrap_or(0);
    if row.epoch < expected {
        return Ok(Err(Refusal::StaleEpoch { expected, got: row.epoch }));
    }
    let before = sqlx::query("SELECT * FROM meter WHERE session = $1")
        .bind(row.session.to_string())
        .fetch_optional(&mut **tx)
        .await?;
    let before = before.map(|row| meter(&row)).transpose()?;
    let mut changed = row.clone();
    if let Some(before) = before {
        if let Err(refusal) = same_owner(before.hub, before.wallet, row).and_then(|()| not_lower(&before, row)) {
            return Ok(Err(refusal));
        }
        changed.r#final |= before.r#final;
        changed.change_seq = before.change_seq;
        if changed == before {
            return Ok(Ok(None));
        }
    }
    if row.epoch > expected {
        sqlx::query(
            "INSERT INTO hub (hub, epoch) VALUES ($1, $2) ON CONFLICT (hub) DO UPDATE SET epoch = excluded.epoch",
        )
        .bind(hub)
        .bind(signed(row.epoch)?)
        .execute(&mut **tx)
        .await?;
    }
    Ok(Ok(Some(changed)))
}

fn not_lower(before: &Meter, row: &Meter) -> Result<(), Refusal> {
    let counters = [
        ("epoch", before.epoch, row.epoch),
        ("assignments", before.assignments, row.assignments),
        ("work_bytes", before.work_bytes, row.work_bytes),
        ("voided_bytes", before.voided_bytes, row.voided_bytes),
        ("raw_bytes", before.raw_bytes, row.raw_bytes),
    ];
    match counters.into_iter().find(|(_, before, now)| now < before) {
        Some((what, expected, got)) => Err(Refusal::Decreased { what, expected, got }),
        None => Ok(()),
    }
}

async fn write(tx: &mut Transaction<'static, Any>, row: &Meter) -> Result<(), LedgerError> {
    let seq = sqlx::query("UPDATE change_counter SET value = value + 1 WHERE name = 'meter' RETURNING value")
        .fetch_one(&mut **tx)
        .await?;
    sqlx::query(
        "INSERT INTO meter (session, hub, wallet, epoch, assignments, work_bytes, voided_bytes, raw_bytes, closed, \
         change_seq) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) \
         ON CONFLICT (session) DO UPDATE SET epoch = excluded.epoch, assignments = excluded.assignments, \
         work_bytes = excluded.work_bytes, voided_bytes = excluded.voided_bytes, raw_bytes = excluded.raw_bytes, \
         closed = excluded.closed, change_seq = excluded.change_seq",
    )
    .bind(row.session.to_string())
    .bind(row.hub.to_string())
    .bind(row.wallet.to_string())
    .bind(signed(row.epoch)?)
    .bind(signed(row.assignments)?)
    .bind(signed(row.work_bytes)?)
    .bind(signed(row.voided_bytes)?)
    .bind(signed(row.raw_bytes)?)
    .bind(i64::from(row.r#final))
    .bind(signed(counter(&seq, "value")?)?)
    .execute(&mut **tx)
    .await?;
    Ok(())
}
