//! Feeds the audit: the store adds up its own transfers, in one snapshot, and only the sums come here.
//!
//! Why not row by row: ten million transfers would be decoded one at a time; so the store scans its table once for rows
//! that contradict themselves, and two of its indexes, in their order, for the sums by session and by wallet.

use futures_util::TryStreamExt;
use sqlx::any::AnyRow;
use sqlx::{Any, AssertSqlSafe, Row, Transaction};

use super::row::{counter, cursor, kind, text, transfer};
use super::{Ledger, LedgerError};
use crate::ledger::audit::{Audit, Chain, MOMENT_PRIME, Report};

/// Transfers whose own columns contradict each other. Divided, not multiplied: a product might not fit.
const ODD_TRANSFERS: &str = "\
    SELECT * FROM transfer WHERE NOT (CASE kind \
    WHEN 'credit' THEN id = session || ':' || CAST(bytes_from AS TEXT) AND debit = 'issuance' \
    AND credit = 'wallet:' || wallet || ':pending' AND amount % rate = 0 AND amount / rate = bytes_to - bytes_from \
    ELSE id = session || ':void:' || CAST(bytes_from AS TEXT) AND debit = 'wallet:' || wallet || ':pending' \
    AND credit = 'void' \
    AND amount / rate + CASE WHEN amount % rate > 0 THEN 1 ELSE 0 END <= bytes_to - bytes_from END)";

/// Voids of a session that begin before the one before has ended.
const OVERLAPPING_VOIDS: &str = "\
    SELECT COUNT(*) AS amount FROM (SELECT bytes_from, LAG(bytes_to) OVER (PARTITION BY session ORDER BY bytes_from) \
    AS ended FROM transfer WHERE kind = 'void') AS voids WHERE bytes_from < ended";

/// Settlements whose names are wrong, that are in no batch, or that share a transfer's sequence.
const ODD_SETTLEMENTS: &str = "\
    SELECT COUNT(*) AS amount FROM settlement WHERE debit <> 'wallet:' || wallet || ':pending' \
    OR credit <> 'wallet:' || wallet || ':settled' \
    OR NOT EXISTS (SELECT 1 FROM batch WHERE batch.batch = settlement.batch) \
    OR NOT EXISTS (SELECT 1 FROM claim WHERE claim.wallet = settlement.wallet \
    AND claim.sequence = settlement.claim_sequence AND claim.lifetime_nano = settlement.lifetime_to) \
    OR EXISTS (SELECT 1 FROM transfer WHERE transfer.wallet = settlement.wallet \
    AND transfer.sequence = settlement.sequence)";

const SEQUENCES: &str = "\
    SELECT wallet, CAST(SUM(rows_of) AS BIGINT) AS rows_of, MIN(first) AS first, MAX(last) AS last FROM \
    (SELECT wallet, COUNT(*) AS rows_of, MIN(sequence) AS first, MAX(sequence) AS last FROM transfer GROUP BY wallet \
    UNION ALL SELECT wallet, COUNT(*), MIN(sequence), MAX(sequence) FROM settlement GROUP BY wallet) AS counted \
    GROUP BY wallet";

/// The columns of a [`Chain`] over the columns `from` and `to`.
fn chain_columns(from: &str, to: &str, amount: &str) -> String {
    let square = |n: &str| format!("({n} % {MOMENT_PRIME}) * ({n} % {MOMENT_PRIME}) % {MOMENT_PRIME}");
    format!(
        "COUNT(*) AS rows_of, MIN({from}) AS first, MAX({to}) AS last, CAST(SUM({to} - {from}) AS BIGINT) AS covered, \
         CAST(SUM({} - {}) AS BIGINT) AS moment, CAST(SUM({amount}) AS BIGINT) AS amount",
        square(to),
        square(from)
    )
}

fn chain(row: &AnyRow) -> Result<Chain, LedgerError> {
    Ok(Chain {
        transfers: row.try_get("rows_of")?,
        first: row.try_get("first")?,
        last: row.try_get("last")?,
        covered: row.try_get("covered")?,
        moment: row.try_get("moment")?,
        amount: row.try_get("amount")?,
    })
}

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
        sum_transfers(&mut tx, &mut audit).await?;
        sum_settlements(&mut tx, &mut audit).await?;
        compare_caches(&mut tx, &mut audit).await?;
        tx.rollback().await?;
        Ok(audit.finish())
    }
}

async fn sum_transfers(tx: &mut Transaction<'static, Any>, audit: &mut Audit) -> Result<(), LedgerError> {
    // First, because it reads the table from end to end: what the indexes are asked for is in memory then.
    let mut rows = sqlx::query(ODD_TRANSFERS).fetch(&mut **tx);
    while let Some(row) = rows.try_next().await? {
        audit.odd_transfer(&transfer(&row)?);
    }
    drop(rows);
    let by_session = format!(
        "SELECT kind, session, MIN(wallet) AS one, MAX(wallet) AS other, {} FROM transfer GROUP BY kind, session",
        chain_columns("bytes_from", "bytes_to", "amount")
    );
    let mut rows = sqlx::query(AssertSqlSafe(by_session)).fetch(&mut **tx);
    while let Some(row) = rows.try_next().await? {
        let wallets = (text(&row, "one")?, text(&row, "other")?);
        audit.session(text(&row, "session")?, kind(&row)?, wallets, &chain(&row)?);
    }
    drop(rows);
    let mut rows = sqlx::query(SEQUENCES).fetch(&mut **tx);
    while let Some(row) = rows.try_next().await? {
        let (transfers, first, last) = (row.try_get("rows_of")?, row.try_get("first")?, row.try_get("last")?);
        audit.sequences(text(&row, "wallet")?, transfers, first, last);
    }
    drop(rows);
    for (what, statement) in [("overlapping voids", OVERLAPPING_VOIDS), ("odd settlements", ODD_SETTLEMENTS)] {
        let row = sqlx::query(statement).fetch_one(&mut **tx).await?;
        audit.forbidden(what, row.try_get("amount")?);
    }
    Ok(())
}

async fn sum_settlements(tx: &mut Transaction<'static, Any>, audit: &mut Audit) -> Result<(), LedgerError> {
    let by_wallet = format!(
        "SELECT wallet, {} FROM settlement GROUP BY wallet",
        chain_columns("lifetime_from", "lifetime_to", "lifetime_to - lifetime_from")
    );
    for row in sqlx::query(AssertSqlSafe(by_wallet)).fetch_all(&mut **tx).await? {
        audit.settlements(text(&row, "wallet")?, &chain(&row)?);
    }
    let by_batch = "SELECT batch.batch AS batch, batch.total_nano AS total, \
                    CAST(COALESCE(SUM(settlement.lifetime_to - settlement.lifetime_from), 0) AS BIGINT) AS settled \
                    FROM batch LEFT JOIN settlement ON settlement.batch = batch.batch \
                    GROUP BY batch.batch, batch.total_nano ORDER BY batch.batch";
    let mut settled = 0;
    for row in sqlx::query(by_batch).fetch_all(&mut **tx).await? {
        settled += i128::from(counter(&row, "settled")?);
        audit.batch(counter(&row, "batch")?, settled, counter(&row, "total")?.into());
    }
    Ok(())
}

async fn compare_caches(tx: &mut Transaction<'static, Any>, audit: &mut Audit) -> Result<(), LedgerError> {
    let mut rows = sqlx::query("SELECT id, debits, credits FROM account").fetch(&mut **tx);
    while let Some(row) = rows.try_next().await? {
        let (debits, credits): (i64, i64) = (row.try_get("debits")?, row.try_get("credits")?);
        audit.account(row.try_get("id")?, debits.into(), credits.into());
    }
    drop(rows);
    let mut rows = sqlx::query(
        "SELECT credit_cursor.*, meter.work_bytes AS metered_work, meter.voided_bytes AS metered_voided \
         FROM credit_cursor LEFT JOIN meter ON meter.session = credit_cursor.session",
    )
    .fetch(&mut **tx);
    while let Some(row) = rows.try_next().await? {
        let metered = match row.try_get::<Option<i64>, _>("metered_work")? {
            Some(_) => Some((counter(&row, "metered_work")?, counter(&row, "metered_voided")?)),
            None => None,
        };
        audit.cursor(text(&row, "session")?, &cursor(&row)?, metered);
    }
    drop(rows);
    let mut rows = sqlx::query("SELECT address, sequence, work_bytes FROM wallet").fetch(&mut **tx);
    while let Some(row) = rows.try_next().await? {
        audit.wallet(text(&row, "address")?, counter(&row, "sequence")?, counter(&row, "work_bytes")?);
    }
    Ok(())
}
