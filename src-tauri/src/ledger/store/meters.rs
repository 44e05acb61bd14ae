//! The hub's side: cumulative meters, fenced by epoch and numbered by change.
//!
//! Every hub numbers its own changes, and its writers lock its row first, so that an epoch's fence holds between two
//! processes and no reader skips a change. Each start is remembered with its place in the changes: a position from a
//! history that a backup was restored over is recognised, and the page begins where the histories parted.

use sqlx::AnyConnection;

use super::credit::RefusedMeter;
use super::put::{Evidence, write};
use super::row::{counter, meter, signed, text};
use super::{Ledger, LedgerError, in_time};
use crate::ledger::entry::{Meter, MeterPage, RunId};
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
        let left = |row| Ok(Meter { r#final: true, ..meter(row)? });
        let left = open.iter().map(left).collect::<Result<Vec<_>, LedgerError>>()?;
        write(&mut tx, &left).await?;
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
        let void = |row| meter(row).map(|row| Meter { voided_bytes: row.work_bytes, ..row });
        let void = rows.iter().map(void).collect::<Result<Vec<_>, _>>()?;
        write(&mut tx, &void).await?;
        tx.commit().await?;
        Ok(void.len())
    }

    /// A hub's meters changed after a position, oldest change first; at most [`METERS_PER_PAGE_MAX`].
    ///
    /// # Errors
    /// A store that fails.
    pub async fn meters_after(&self, hub: PublicKey, after: u64, limit: u32) -> Result<Vec<Meter>, LedgerError> {
        in_time(async {
            let mut connection = self.pool.acquire().await?;
            meters_after(&mut connection, hub, after, limit).await
        })
        .await
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
        in_time(self.page(hub, after, run, limit)).await
    }

    async fn page(&self, hub: PublicKey, after: u64, run: Option<RunId>, limit: u32) -> Result<MeterPage, LedgerError> {
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
pub(super) fn counter_of(hub: PublicKey) -> String {
    format!("meter:{hub}")
}
