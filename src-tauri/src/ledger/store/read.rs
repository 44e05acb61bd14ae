//! What anybody may read, and the gateway's place in each hub's changes.

use sqlx::Row;

use super::row::{counter, signed, text, transfer};
use super::{Ledger, LedgerError, in_time};
use crate::ledger::entry::{RunId, Transfer, WalletStatement, pending_account, settled_account};
use crate::types::{NanoKvr, PublicKey};

/// Most transfers that one question returns.
pub const CREDITS_PER_PAGE_MAX: u32 = 100;

/// How far a hub's changes were applied: a place in the changes of one of its starts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Position {
    /// The last change; 0 before the first.
    pub change_seq: u64,
    /// The start, if the hub names it.
    pub run: Option<RunId>,
}

impl Ledger {
    /// A wallet's balances; a wallet that was never credited has zeros.
    ///
    /// # Errors
    /// A store that fails.
    pub async fn wallet(&self, address: PublicKey) -> Result<WalletStatement, LedgerError> {
        in_time(self.statement(address)).await
    }

    async fn statement(&self, address: PublicKey) -> Result<WalletStatement, LedgerError> {
        // One statement: between two of them a credit may land.
        let row = sqlx::query(
            "SELECT COALESCE((SELECT credits - debits FROM account WHERE id = $1), 0) AS pending, \
             COALESCE((SELECT credits - debits FROM account WHERE id = $2), 0) AS settled, \
             COALESCE((SELECT work_bytes FROM wallet WHERE address = $3), 0) AS work_bytes, \
             COALESCE((SELECT sequence FROM wallet WHERE address = $3), 0) AS sequence, \
             COALESCE((SELECT last_credit_unix_ms FROM wallet WHERE address = $3), 0) AS last_credit_unix_ms",
        )
        .bind(pending_account(&address))
        .bind(settled_account(&address))
        .bind(address.to_string())
        .fetch_one(&self.pool)
        .await?;
        let pending = NanoKvr(counter(&row, "pending")?);
        Ok(WalletStatement {
            address,
            pending_nano_kvr: pending,
            pending_kvr: pending.to_string(),
            settled_nano_kvr: NanoKvr(counter(&row, "settled")?),
            work_bytes: counter(&row, "work_bytes")?,
            sequence: counter(&row, "sequence")?,
            last_credit_unix_ms: counter(&row, "last_credit_unix_ms")?,
        })
    }

    /// A wallet's transfers after a sequence, oldest first; at most [`CREDITS_PER_PAGE_MAX`].
    ///
    /// # Errors
    /// A store that fails.
    pub async fn credits(&self, address: PublicKey, after: u64) -> Result<Vec<Transfer>, LedgerError> {
        in_time(async {
            let page = "SELECT * FROM transfer WHERE wallet = $1 AND sequence > $2 ORDER BY sequence LIMIT $3";
            let rows = sqlx::query(page)
                .bind(address.to_string())
                .bind(i64::try_from(after).unwrap_or(i64::MAX))
                .bind(i64::from(CREDITS_PER_PAGE_MAX))
                .fetch_all(&self.pool)
                .await?;
            rows.iter().map(transfer).collect()
        })
        .await
    }

    /// How far a hub's changes were applied. `hub` is its key, as a text.
    ///
    /// # Errors
    /// A store that fails.
    pub async fn poll_position(&self, hub: &str) -> Result<Position, LedgerError> {
        in_time(async {
            let row = sqlx::query("SELECT change_seq, run FROM poll_position WHERE hub = $1")
                .bind(hub.to_owned())
                .fetch_optional(&self.pool)
                .await?;
            let Some(row) = row else { return Ok(Position::default()) };
            let run = if row.try_get::<&str, _>("run")?.is_empty() { None } else { Some(text(&row, "run")?) };
            Ok(Position { change_seq: counter(&row, "change_seq")?, run })
        })
        .await
    }

    /// Remembers how far a hub's changes were applied. Losing it costs a repeated poll, never a credit.
    ///
    /// # Errors
    /// A store that fails.
    pub async fn set_poll_position(&self, hub: &str, position: Position) -> Result<(), LedgerError> {
        self.again(|| async {
            sqlx::query(
                "INSERT INTO poll_position (hub, change_seq, run) VALUES ($1, $2, $3) \
                 ON CONFLICT (hub) DO UPDATE SET change_seq = excluded.change_seq, run = excluded.run",
            )
            .bind(hub.to_owned())
            .bind(signed(position.change_seq)?)
            .bind(position.run.map(|run| run.to_string()).unwrap_or_default())
            .execute(&self.pool)
            .await?;
            Ok(())
        })
        .await
    }
}
