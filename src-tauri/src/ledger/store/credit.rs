//! The gateway's side: meters become transfers, exactly once, however often and from wherever they are applied.
//!
//! Each row moves its cursor by compare-and-set and writes a transfer whose id names the session and its first byte;
//! either of the two alone makes a second credit fail. A row that fails is undone and reported, never its neighbours.

use sqlx::error::ErrorKind;
use sqlx::{Acquire, Any, Row, Transaction};

use super::row::{counter, cursor, signed};
use super::{Ledger, LedgerError};
use crate::ledger::entry::{Meter, Rate, TransferKind, pending_account};
use crate::ledger::settle::{AMOUNT_MAX, Cursor, Movement, Refusal, Step, settle};
use crate::types::{NanoKvr, SessionId};

/// Rows of one transaction: a commit costs a disk flush, a long transaction keeps other writers out.
const ROWS_PER_TRANSACTION_MAX: usize = 100;
/// SQLite's extended code of a trigger's `RAISE(ABORT)`.
const SQLITE_CONSTRAINT_TRIGGER: &str = "1811";

/// A meter row that was not applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedMeter {
    /// Its session.
    pub session: SessionId,
    /// Its change.
    pub change_seq: u64,
    /// Why.
    pub refusal: Refusal,
}

impl RefusedMeter {
    pub(super) fn new(meter: &Meter, refusal: Refusal) -> Self {
        Self { session: meter.session, change_seq: meter.change_seq, refusal }
    }
}

/// What [`Ledger::apply`] did.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Transfers written.
    pub transfers: u64,
    /// Σ of the credits.
    pub credited: NanoKvr,
    /// Σ of the voids.
    pub voided: NanoKvr,
    /// Rows that were skipped, and why.
    pub refused: Vec<RefusedMeter>,
}

impl Applied {
    fn count(&mut self, step: &Step) {
        let amount = |movement: Option<Movement>| movement.map_or(0, |m| m.amount);
        self.transfers += u64::from(step.credit.is_some()) + u64::from(step.void.is_some());
        self.credited.0 = self.credited.0.saturating_add(amount(step.credit));
        self.voided.0 = self.voided.0.saturating_add(amount(step.void));
    }
}

/// A row's failure: its own, or the store's, which ends the whole transaction.
enum RowError {
    Refused(Refusal),
    Ledger(LedgerError),
}

impl From<LedgerError> for RowError {
    fn from(error: LedgerError) -> Self {
        Self::Ledger(error)
    }
}

impl From<sqlx::Error> for RowError {
    fn from(error: sqlx::Error) -> Self {
        if let sqlx::Error::Database(database) = &error {
            let trigger = database.code().is_some_and(|code| code == SQLITE_CONSTRAINT_TRIGGER);
            if trigger || !matches!(database.kind(), ErrorKind::Other) {
                return Self::Refused(Refusal::Conflict(database.message().to_owned()));
            }
        }
        Self::Ledger(error.into())
    }
}

impl Ledger {
    /// Credits what is new in these meter rows and takes back what was voided.
    ///
    /// Rows may be old, repeated or out of order, and other gateways may apply them at the same time.
    ///
    /// # Errors
    /// A store that fails. Transactions before the failing one stay; applying all rows again is right.
    pub async fn apply(&self, rows: &[Meter], rate: Rate) -> Result<Applied, LedgerError> {
        let mut applied = Applied::default();
        for rows in rows.chunks(ROWS_PER_TRANSACTION_MAX) {
            let mut steps = Vec::with_capacity(rows.len());
            let mut tx = self.begin_write().await?;
            for row in rows {
                match self.apply_row(&mut tx, row, rate).await {
                    Ok(step) => steps.extend(step),
                    Err(RowError::Refused(refusal)) => applied.refused.push(RefusedMeter::new(row, refusal)),
                    Err(RowError::Ledger(error)) => return Err(error),
                }
            }
            tx.commit().await?;
            steps.iter().for_each(|step| applied.count(step));
        }
        Ok(applied)
    }

    /// The step that was written; `None` when the row brings nothing new.
    async fn apply_row(
        &self,
        tx: &mut Transaction<'static, Any>,
        meter: &Meter,
        rate: Rate,
    ) -> Result<Option<Step>, RowError> {
        let stored = sqlx::query("SELECT * FROM credit_cursor WHERE session = $1")
            .bind(meter.session.to_string())
            .fetch_optional(&mut **tx)
            .await?;
        let stored = stored.map(|row| cursor(&row)).transpose()?;
        let before = stored.clone().unwrap_or_else(|| Cursor::start(meter));
        let pending = sqlx::query("SELECT credits - debits AS balance FROM account WHERE id = $1")
            .bind(pending_account(&meter.wallet))
            .fetch_optional(&mut **tx)
            .await?;
        let pending = pending.map(|row| counter(&row, "balance")).transpose()?.unwrap_or(0);
        let step = settle(&before, meter, rate, pending).map_err(RowError::Refused)?;
        if (step.cursor.work_bytes, step.cursor.voided_bytes) == (before.work_bytes, before.voided_bytes) {
            return Ok(None);
        }
        let mut savepoint = tx.begin().await?;
        move_cursor(&mut savepoint, meter.session, stored.as_ref(), &step.cursor).await?;
        let now = self.clock.unix_ms();
        for (kind, movement) in [(TransferKind::Credit, step.credit), (TransferKind::Void, step.void)] {
            if let Some(movement) = movement {
                move_money(&mut savepoint, meter, kind, movement, rate, now).await?;
            }
        }
        savepoint.commit().await?;
        Ok(Some(step))
    }
}

async fn move_cursor(
    tx: &mut Transaction<'_, Any>,
    session: SessionId,
    before: Option<&Cursor>,
    after: &Cursor,
) -> Result<(), RowError> {
    let statement = match before {
        None => {
            "INSERT INTO credit_cursor (work_bytes, voided_bytes, credited_nano, voided_nano, change_seq, session, hub, \
             wallet) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)"
        }
        Some(_) => {
            "UPDATE credit_cursor SET work_bytes = $1, voided_bytes = $2, credited_nano = $3, voided_nano = $4, \
             change_seq = $5 WHERE session = $6 AND hub = $7 AND wallet = $8 AND work_bytes = $9 AND voided_bytes = $10"
        }
    };
    let mut query = sqlx::query(statement)
        .bind(signed(after.work_bytes)?)
        .bind(signed(after.voided_bytes)?)
        .bind(signed(after.credited_nano)?)
        .bind(signed(after.voided_nano)?)
        .bind(signed(after.change_seq)?)
        .bind(session.to_string())
        .bind(after.hub.to_string())
        .bind(after.wallet.to_string());
    if let Some(before) = before {
        query = query.bind(signed(before.work_bytes)?).bind(signed(before.voided_bytes)?);
    }
    if query.execute(&mut **tx).await?.rows_affected() != 1 {
        return Err(RowError::Refused(Refusal::Conflict("another writer moved the cursor".to_owned())));
    }
    Ok(())
}

async fn move_money(
    tx: &mut Transaction<'_, Any>,
    meter: &Meter,
    kind: TransferKind,
    movement: Movement,
    rate: Rate,
    now_unix_ms: u64,
) -> Result<(), RowError> {
    let (debit, credit) = kind.accounts(&meter.wallet);
    add(tx, &debit, movement.amount, 0).await?;
    add(tx, &credit, 0, movement.amount).await?;
    // The accounts came first: a sum of money that fits means that the sum of its bytes does.
    let (bytes, credited_at) = match kind {
        TransferKind::Credit => (movement.to - movement.from, now_unix_ms),
        TransferKind::Void => (0, 0),
    };
    let wallet = sqlx::query(
        "INSERT INTO wallet (address, sequence, work_bytes, last_credit_unix_ms) VALUES ($1, 1, $2, $3) \
         ON CONFLICT (address) DO UPDATE SET sequence = wallet.sequence + 1, \
         work_bytes = wallet.work_bytes + excluded.work_bytes, \
         last_credit_unix_ms = CASE WHEN excluded.last_credit_unix_ms > wallet.last_credit_unix_ms \
         THEN excluded.last_credit_unix_ms ELSE wallet.last_credit_unix_ms END RETURNING sequence",
    )
    .bind(meter.wallet.to_string())
    .bind(signed(bytes)?)
    .bind(signed(credited_at)?)
    .fetch_one(&mut **tx)
    .await?;
    let sequence: i64 = wallet.try_get("sequence")?;
    sqlx::query(
        "INSERT INTO transfer (id, wallet, sequence, kind, session, bytes_from, bytes_to, rate, amount, debit, credit, \
         created_unix_ms) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
    )
    .bind(kind.transfer_id(&meter.session, movement.from))
    .bind(meter.wallet.to_string())
    .bind(sequence)
    .bind(kind.as_str())
    .bind(meter.session.to_string())
    .bind(signed(movement.from)?)
    .bind(signed(movement.to)?)
    .bind(signed(rate.0)?)
    .bind(signed(movement.amount)?)
    .bind(debit)
    .bind(credit)
    .bind(signed(now_unix_ms)?)
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Adds to both sides of an account; a side that would not fit refuses the row. SQLite alone would go on in floating point.
async fn add(tx: &mut Transaction<'_, Any>, account: &str, debit: u64, credit: u64) -> Result<(), RowError> {
    // Not one upsert: its insert half alone, a debit without the credits before it, would break the account's CHECK.
    sqlx::query("INSERT INTO account (id, debits, credits) VALUES ($1, 0, 0) ON CONFLICT (id) DO NOTHING")
        .bind(account.to_owned())
        .execute(&mut **tx)
        .await?;
    let done = sqlx::query(
        "UPDATE account SET debits = debits + $2, credits = credits + $3 \
         WHERE id = $1 AND debits <= $4 AND credits <= $5",
    )
    .bind(account.to_owned())
    .bind(signed(debit)?)
    .bind(signed(credit)?)
    .bind(signed(AMOUNT_MAX - debit)?)
    .bind(signed(AMOUNT_MAX - credit)?)
    .execute(&mut **tx)
    .await?;
    match done.rows_affected() {
        1 => Ok(()),
        _ => Err(RowError::Refused(Refusal::Overflow { what: "an account's sum" })),
    }
}
