//! Fills a ledger with sound books at once, for those who measure how long a check takes.

use std::collections::BTreeMap;

use super::credit::{Sides, move_money};
use super::row::signed;
use super::{Ledger, LedgerError};
use crate::ledger::entry::{ISSUANCE, Rate, pending_account};
use crate::types::PublicKey;

/// Work bytes of each credit: one assignment of hidden size 3072.
const BYTES: u64 = 12_288;

impl Ledger {
    /// Writes what gateways would have written for a wallet that never worked before: `sessions` sessions of `credits`
    /// credits each. Sessions are numbered from `first`.
    ///
    /// # Errors
    /// A store that fails, or a wallet or sessions that are there already; nothing was written then.
    pub async fn fill(
        &self,
        (hub, wallet): (PublicKey, PublicKey),
        first: u64,
        sessions: u64,
        credits: u64,
    ) -> Result<(), LedgerError> {
        let (rate, now, count) = (Rate::default(), signed(self.clock.unix_ms())?, sessions * credits);
        let bytes = BYTES * count;
        let mut tx = self.begin_write().await?;
        sqlx::query(FILL_TRANSFERS)
            .bind(wallet.to_string())
            .bind(signed(first)?)
            .bind(signed(credits)?)
            .bind(signed(count)?)
            .bind(signed(BYTES)?)
            .bind(signed(rate.0)?)
            .bind(now)
            .execute(&mut *tx)
            .await?;
        sqlx::query(FILL_CURSORS)
            .bind(wallet.to_string())
            .bind(signed(first)?)
            .bind(signed(sessions)?)
            .bind(signed(credits * BYTES)?)
            .bind(signed(rate.0)?)
            .bind(hub.to_string())
            .execute(&mut *tx)
            .await?;
        sqlx::query("INSERT INTO wallet (address, sequence, work_bytes, last_credit_unix_ms) VALUES ($1, $2, $3, $4)")
            .bind(wallet.to_string())
            .bind(signed(count)?)
            .bind(signed(bytes)?)
            .bind(now)
            .execute(&mut *tx)
            .await?;
        let amount = bytes * rate.0;
        let issued = (ISSUANCE.to_owned(), Sides { debits: amount, credits: 0 });
        let pending = (pending_account(&wallet), Sides { debits: 0, credits: amount });
        move_money(&mut tx, &BTreeMap::from([issued, pending])).await?;
        tx.commit().await?;
        Ok(())
    }
}

/// Session ids are their numbers in 32 digits.
const FILL_TRANSFERS: &str = "\
    WITH RECURSIVE n (i) AS (SELECT CAST(0 AS BIGINT) UNION ALL SELECT i + 1 FROM n WHERE i + 1 < $4), \
    credit (i, session, start) AS (SELECT i, substr('00000000000000000000000000000000' || CAST($2 + i / $3 AS TEXT), \
    length(CAST($2 + i / $3 AS TEXT)) + 1, 32), i % $3 * $5 FROM n) \
    INSERT INTO transfer (id, wallet, sequence, kind, session, bytes_from, bytes_to, rate, amount, debit, credit, \
    created_unix_ms) SELECT session || ':' || CAST(start AS TEXT), $1, i + 1, 'credit', session, start, start + $5, $6, \
    $5 * $6, 'issuance', 'wallet:' || $1 || ':pending', $7 FROM credit";

const FILL_CURSORS: &str = "\
    WITH RECURSIVE n (i) AS (SELECT CAST(0 AS BIGINT) UNION ALL SELECT i + 1 FROM n WHERE i + 1 < $3) \
    INSERT INTO credit_cursor (session, hub, wallet, change_seq, work_bytes, voided_bytes, credited_nano, voided_nano) \
    SELECT substr('00000000000000000000000000000000' || CAST($2 + i AS TEXT), length(CAST($2 + i AS TEXT)) + 1, 32), \
    $6, $1, 0, $4, 0, $4 * $5, 0 FROM n";
