//! Judges the meter rows of one write and writes what changed, in a few statements however many rows there are.
//!
//! Before: each hub's row is locked and its epoch read, and what is stored of the sessions. After: every changed row has
//! a number of its own in its hub's changes, in the order in which the rows came; a session that came twice was judged
//! twice and is written once. Why together: a hub writes all its sessions each second, and a server answers each
//! statement with a round trip.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use sqlx::{Any, Transaction};

use super::credit::RefusedMeter;
use super::meters::{Put, counter_of};
use super::row::{Values, counter, meter, places, signed};
use super::{Ledger, LedgerError};
use crate::ledger::entry::Meter;
use crate::ledger::settle::{Refusal, admit, same_owner};
use crate::types::{PublicKey, SessionId};

/// Rows of one statement: ten values each, of the 32,766 that SQLite takes.
const ROWS_PER_STATEMENT: usize = 500;

/// Why a row is believed.
#[derive(Clone, Copy)]
pub(super) enum Evidence {
    /// Its hub counts it.
    Count,
    /// Something that its hub once showed.
    Proof,
}

impl Ledger {
    /// Writes the rows that say something new, all or none.
    pub(super) async fn put(&self, rows: &[Meter], evidence: Evidence) -> Result<Put, LedgerError> {
        let mut tx = self.begin_write().await?;
        let mut shelf = self.shelf(&mut tx, rows).await?;
        let mut put = Put::default();
        for row in rows {
            match shelf.judge(row, evidence) {
                Ok(None) => {}
                Ok(Some(changed)) => {
                    shelf.take(changed);
                    put.written += 1;
                }
                Err(refusal) => put.refused.push(RefusedMeter::new(row, refusal)),
            }
        }
        shelf.write(&mut tx).await?;
        tx.commit().await?;
        Ok(put)
    }

    /// Locks the hub's row, which all writers of its meters do first, and gives its epoch; 0 before its first start.
    pub(super) async fn fence(&self, tx: &mut Transaction<'static, Any>, hub: PublicKey) -> Result<u64, LedgerError> {
        let statement = match self.dialect.for_update() {
            "" => "SELECT epoch FROM hub WHERE hub = $1",
            _ => "SELECT epoch FROM hub WHERE hub = $1 FOR UPDATE",
        };
        let row = sqlx::query(statement).bind(hub.to_string()).fetch_optional(&mut **tx).await?;
        row.map_or(Ok(0), |row| counter(&row, "epoch"))
    }

    async fn shelf(&self, tx: &mut Transaction<'static, Any>, rows: &[Meter]) -> Result<Shelf, LedgerError> {
        let mut shelf = Shelf::default();
        for hub in rows.iter().map(|row| row.hub).collect::<BTreeSet<_>>() {
            shelf.epochs.insert(hub, self.fence(tx, hub).await?);
        }
        for rows in rows.chunks(ROWS_PER_STATEMENT) {
            let text = format!("SELECT * FROM meter WHERE session IN {}", places(1, rows.len()));
            let values = Values::texts(rows.iter().map(|row| row.session));
            for row in values.into_query(text).fetch_all(&mut **tx).await? {
                let stored = meter(&row)?;
                shelf.rows.insert(stored.session, stored);
            }
        }
        Ok(shelf)
    }
}

/// What the rows of one write meet, and what they make of it.
#[derive(Default)]
struct Shelf {
    /// The hubs' newest epochs, and whose has risen.
    epochs: BTreeMap<PublicKey, u64>,
    risen: BTreeSet<PublicKey>,
    /// The sessions' rows as they will be.
    rows: HashMap<SessionId, Meter>,
    /// Those that changed, in order.
    order: Vec<SessionId>,
    changed: HashSet<SessionId>,
}

impl Shelf {
    /// The row to write, `None` when it says nothing new; or why it is refused.
    fn judge(&self, row: &Meter, evidence: Evidence) -> Result<Option<Meter>, Refusal> {
        admit(row)?;
        let epoch = self.epochs.get(&row.hub).copied().unwrap_or(0);
        let before = self.rows.get(&row.session);
        let after = match evidence {
            Evidence::Count => counted(epoch, before, row)?,
            Evidence::Proof => proven(epoch, before, row)?,
        };
        Ok((before != Some(&after)).then_some(after))
    }

    fn take(&mut self, row: Meter) {
        let epoch = self.epochs.entry(row.hub).or_default();
        if row.epoch > *epoch {
            *epoch = row.epoch;
            self.risen.insert(row.hub);
        }
        if self.changed.insert(row.session) {
            self.order.push(row.session);
        }
        self.rows.insert(row.session, row);
    }

    async fn write(mut self, tx: &mut Transaction<'static, Any>) -> Result<(), LedgerError> {
        for hub in &self.risen {
            sqlx::query(
                "INSERT INTO hub (hub, epoch) VALUES ($1, $2) ON CONFLICT (hub) DO UPDATE SET epoch = excluded.epoch",
            )
            .bind(hub.to_string())
            .bind(signed(self.epochs.get(hub).copied().unwrap_or(0))?)
            .execute(&mut **tx)
            .await?;
        }
        let rows: Vec<Meter> = self.order.iter().filter_map(|session| self.rows.remove(session)).collect();
        write(tx, &rows).await
    }
}

/// What becomes of a row that its hub sends.
fn counted(expected: u64, before: Option<&Meter>, row: &Meter) -> Result<Meter, Refusal> {
    if row.epoch < expected {
        return Err(Refusal::StaleEpoch { expected, got: row.epoch });
    }
    let Some(before) = before else { return Ok(row.clone()) };
    same_owner(before.hub, before.wallet, row)?;
    not_lower(before, row)?;
    Ok(Meter { r#final: row.r#final || before.r#final, change_seq: before.change_seq, ..row.clone() })
}

/// What becomes of a row that something else than its hub's count proves.
fn proven(newest_epoch: u64, before: Option<&Meter>, row: &Meter) -> Result<Meter, Refusal> {
    let Some(before) = before else {
        // An epoch of a lost history may be above the hub's own: then it would fence the hub, and no void would reach it.
        return Ok(Meter { epoch: row.epoch.min(newest_epoch), r#final: true, ..row.clone() });
    };
    same_owner(before.hub, before.wallet, row)?;
    if !before.r#final {
        return Err(Refusal::Conflict("the session is open, and its hub counts it".to_owned()));
    }
    let work_bytes = before.work_bytes.max(row.work_bytes);
    // A void takes all of a session: what is raised later is of the same wallet, which was caught.
    let is_void = before.work_bytes > 0 && before.voided_bytes == before.work_bytes;
    let voided_bytes = if is_void { work_bytes } else { before.voided_bytes.max(row.voided_bytes) };
    let assignments = before.assignments.max(row.assignments);
    Ok(Meter { assignments, work_bytes, voided_bytes, ..before.clone() })
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

/// Writes rows of different sessions, numbered in their order.
pub(super) async fn write(tx: &mut Transaction<'static, Any>, rows: &[Meter]) -> Result<(), LedgerError> {
    let mut next: BTreeMap<PublicKey, u64> = BTreeMap::new();
    for row in rows {
        *next.entry(row.hub).or_default() += 1;
    }
    for (hub, numbers) in &mut next {
        let row = sqlx::query(
            "INSERT INTO change_counter (name, value) VALUES ($1, $2) \
             ON CONFLICT (name) DO UPDATE SET value = change_counter.value + excluded.value RETURNING value",
        )
        .bind(counter_of(*hub))
        .bind(signed(*numbers)?)
        .fetch_one(&mut **tx)
        .await?;
        *numbers = counter(&row, "value")?.saturating_sub(*numbers) + 1;
    }
    for rows in rows.chunks(ROWS_PER_STATEMENT) {
        let mut values = Values::default();
        for row in rows {
            let change_seq = next.entry(row.hub).or_default();
            values.text(row.session).text(row.hub).text(row.wallet).number(row.epoch)?;
            values.number(row.assignments)?.number(row.work_bytes)?.number(row.voided_bytes)?.number(row.raw_bytes)?;
            values.number(row.r#final.into())?.number(*change_seq)?;
            *change_seq += 1;
        }
        let text = format!(
            "INSERT INTO meter (session, hub, wallet, epoch, assignments, work_bytes, voided_bytes, raw_bytes, closed, \
             change_seq) VALUES {} ON CONFLICT (session) DO UPDATE SET epoch = excluded.epoch, \
             assignments = excluded.assignments, work_bytes = excluded.work_bytes, \
             voided_bytes = excluded.voided_bytes, raw_bytes = excluded.raw_bytes, closed = excluded.closed, \
             change_seq = excluded.change_seq",
            places(rows.len(), 10)
        );
        values.into_query(text).execute(&mut **tx).await?;
    }
    Ok(())
}
