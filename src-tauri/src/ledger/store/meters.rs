//! The hub's side: cumulative meters, fenced by epoch and numbered by change.
//!
//! Every hub numbers its own changes, and its writers lock its row first, so that an epoch's fence holds between two
//! processes and no reader skips a change. Each start is remembered with its place in the changes: a position from a
//! history that a backup was restored over is recognised, and the page begins where the histories parted.

use sqlx::{Any, AnyConnection, Transaction};

use super::credit::RefusedMeter;
use super::row::{counter, meter, signed, text};
use super::{Ledger, LedgerError};
use crate::ledger::entry::{Meter, MeterPage, RunId};
use crate::ledger::settle::{Refusal, admit, same_owner};
use crate::types::{Hex, PublicKey};

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
    /// A store that fails, or no randomness for the start's name.
    pub async fn next_epoch(&self, hub: PublicKey) -> Result<u64, LedgerError> {
        let mut run = [0; 16];
        getrandom::fill(&mut run)?;
        self.again(|| self.start(hub, Hex(run))).await
    }

    async fn start(&self, hub: PublicKey, run: RunId) -> Result<u64, LedgerError> {
        let mut tx = self.begin_write().await?;
        let row = sqlx::query(
            "INSERT INTO hub (hub, epoch) VALUES ($1, 1) \
             ON CONFLICT (hub) DO UPDATE SET epoch = hub.epoch + 1 RETURNING epoch",
        )
        .bind(hub.to_string())
        .fetch_one(&mut *tx)
        .await?;
        let epoch = counter(&row, "epoch")?;
        let change_seq = last_change(&mut tx, hub).await?;
        sqlx::query("INSERT INTO hub_start (run, hub, epoch, change_seq) VALUES ($1, $2, $3, $4)")
            .bind(run.to_string())
            .bind(hub.to_string())
            .bind(signed(epoch)?)
            .bind(signed(change_seq)?)
            .execute(&mut *tx)
            .await?;
        let open = sqlx::query("SELECT * FROM meter WHERE hub = $1 AND closed = 0 ORDER BY change_seq")
            .bind(hub.to_string())
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
        self.again(|| self.put(rows, Evidence::Count)).await
    }

    /// Raises meters of sessions that are over to what is proven: by receipts, or by credits. Nothing is lowered; a row
    /// that is not there is made, as of a hub whose meters were restored from a backup.
    ///
    /// A session that is open is refused, since its hub counts it; so is one of another hub or wallet.
    ///
    /// # Errors
    /// A store that fails; no row was written then.
    pub async fn raise_meters(&self, rows: &[Meter]) -> Result<Put, LedgerError> {
        self.again(|| self.put(rows, Evidence::Proof)).await
    }

    async fn put(&self, rows: &[Meter], evidence: Evidence) -> Result<Put, LedgerError> {
        let mut put = Put::default();
        let mut tx = self.begin_write().await?;
        for row in rows {
            let judged = match evidence {
                Evidence::Count => self.judge(&mut tx, row).await?,
                Evidence::Proof => self.judge_proven(&mut tx, row).await?,
            };
            match judged {
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
        self.again(|| self.void(hub, wallet, epoch)).await
    }

    async fn void(&self, hub: PublicKey, wallet: PublicKey, epoch: u64) -> Result<usize, LedgerError> {
        let mut tx = self.begin_write().await?;
        self.fence(&mut tx, hub).await?;
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

    /// A hub's meters changed after a position, oldest change first; at most [`METERS_PER_PAGE_MAX`].
    ///
    /// # Errors
    /// A store that fails.
    pub async fn meters_after(&self, hub: PublicKey, after: u64, limit: u32) -> Result<Vec<Meter>, LedgerError> {
        let mut connection = self.pool.acquire().await?;
        meters_after(&mut connection, hub, after, limit).await
    }

    /// The answer to `GET /v1/meters`: the meters changed after a position of a start of the hub, with the hub's name,
    /// version and newest position. A position that this ledger's history does not have is set back to one that it has.
    ///
    /// # Errors
    /// A store that fails.
    pub async fn meter_page(
        &self,
        hub: PublicKey,
        after: u64,
        run: Option<RunId>,
        limit: u32,
    ) -> Result<MeterPage, LedgerError> {
        let mut tx = self.begin_read().await?;
        let newest = sqlx::query("SELECT run FROM hub_start WHERE hub = $1 ORDER BY epoch DESC LIMIT 1")
            .bind(hub.to_string())
            .fetch_optional(&mut *tx)
            .await?;
        let newest: Option<RunId> = newest.map(|row| text(&row, "run")).transpose()?;
        let from = match run {
            Some(run) if newest != Some(run) => after.min(parted(&mut tx, hub, run).await?),
            _ => after,
        };
        let meters = meters_after(&mut tx, hub, from, limit).await?;
        let last_change_seq = last_change(&mut tx, hub).await?;
        tx.rollback().await?;
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Ok(MeterPage { hub, version, last_change_seq, meters, run: newest, from: run.map(|_| from) })
    }

    /// Locks the hub's row, which all writers of its meters do first, and gives its epoch; 0 before its first start.
    async fn fence(&self, tx: &mut Transaction<'static, Any>, hub: PublicKey) -> Result<u64, LedgerError> {
        let statement = match self.dialect.for_update() {
            "" => "SELECT epoch FROM hub WHERE hub = $1",
            _ => "SELECT epoch FROM hub WHERE hub = $1 FOR UPDATE",
        };
        let row = sqlx::query(statement).bind(hub.to_string()).fetch_optional(&mut **tx).await?;
        row.map_or(Ok(0), |row| counter(&row, "epoch"))
    }

    /// What becomes of a row that its hub sends.
    async fn judge(&self, tx: &mut Transaction<'static, Any>, row: &Meter) -> Result<Judged, LedgerError> {
        if let Err(refusal) = admit(row) {
            return Ok(Err(refusal));
        }
        let expected = self.fence(tx, row.hub).await?;
        if row.epoch < expected {
            return Ok(Err(Refusal::StaleEpoch { expected, got: row.epoch }));
        }
        let mut changed = row.clone();
        if let Some(before) = stored(tx, row).await? {
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
            .bind(row.hub.to_string())
            .bind(signed(row.epoch)?)
            .execute(&mut **tx)
            .await?;
        }
        Ok(Ok(Some(changed)))
    }

    /// What becomes of a row that something else than its hub's count proves.
    async fn judge_proven(&self, tx: &mut Transaction<'static, Any>, row: &Meter) -> Result<Judged, LedgerError> {
        if let Err(refusal) = admit(row) {
            return Ok(Err(refusal));
        }
        // An epoch of a lost history may be above the hub's own: then it would fence the hub, and no void would reach it.
        let epoch = row.epoch.min(self.fence(tx, row.hub).await?);
        let Some(before) = stored(tx, row).await? else {
            return Ok(Ok(Some(Meter { epoch, r#final: true, ..row.clone() })));
        };
        if let Err(refusal) = same_owner(before.hub, before.wallet, row) {
            return Ok(Err(refusal));
        }
        if !before.r#final {
            return Ok(Err(Refusal::Conflict("the session is open, and its hub counts it".to_owned())));
        }
        let raised = Meter {
            assignments: before.assignments.max(row.assignments),
            work_bytes: before.work_bytes.max(row.work_bytes),
            voided_bytes: before.voided_bytes.max(row.voided_bytes),
            ..before.clone()
        };
        Ok(Ok((raised != before).then_some(raised)))
    }
}

/// Why a row is believed.
#[derive(Clone, Copy)]
enum Evidence {
    /// Its hub counts it.
    Count,
    /// Something that its hub once showed.
    Proof,
}

/// The row to write, `None` when it says nothing new; or why it is refused.
type Judged = Result<Option<Meter>, Refusal>;

/// The stored row of a meter's session.
async fn stored(tx: &mut Transaction<'static, Any>, row: &Meter) -> Result<Option<Meter>, LedgerError> {
    let before = sqlx::query("SELECT * FROM meter WHERE session = $1")
        .bind(row.session.to_string())
        .fetch_optional(&mut **tx)
        .await?;
    before.map(|row| meter(&row)).transpose()
}

async fn meters_after(
    connection: &mut AnyConnection,
    hub: PublicKey,
    after: u64,
    limit: u32,
) -> Result<Vec<Meter>, LedgerError> {
    let rows = sqlx::query("SELECT * FROM meter WHERE hub = $1 AND change_seq > $2 ORDER BY change_seq LIMIT $3")
        .bind(hub.to_string())
        .bind(i64::try_from(after).unwrap_or(i64::MAX))
        .bind(i64::from(limit.min(METERS_PER_PAGE_MAX)))
        .fetch_all(connection)
        .await?;
    rows.iter().map(meter).collect()
}

/// The hub's newest change; 0 before the first.
async fn last_change(connection: &mut AnyConnection, hub: PublicKey) -> Result<u64, LedgerError> {
    let row = sqlx::query("SELECT value FROM change_counter WHERE name = $1")
        .bind(counter_of(hub))
        .fetch_optional(connection)
        .await?;
    row.map_or(Ok(0), |row| counter(&row, "value"))
}

/// The last change of a start that is over: where the next one began; 0 for a start that this history does not have.
async fn parted(connection: &mut AnyConnection, hub: PublicKey, run: RunId) -> Result<u64, LedgerError> {
    let row = sqlx::query(
        "SELECT next.change_seq AS change_seq FROM hub_start AS asked, hub_start AS next \
         WHERE asked.run = $1 AND asked.hub = $2 AND next.hub = asked.hub AND next.epoch > asked.epoch \
         ORDER BY next.epoch LIMIT 1",
    )
    .bind(run.to_string())
    .bind(hub.to_string())
    .fetch_optional(connection)
    .await?;
    row.map_or(Ok(0), |row| counter(&row, "change_seq"))
}

/// The name of a hub's counter of changes.
fn counter_of(hub: PublicKey) -> String {
    format!("meter:{hub}")
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
    let seq = sqlx::query(
        "INSERT INTO change_counter (name, value) VALUES ($1, 1) \
         ON CONFLICT (name) DO UPDATE SET value = change_counter.value + 1 RETURNING value",
    )
    .bind(counter_of(row.hub))
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
