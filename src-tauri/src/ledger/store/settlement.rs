//! Pays claims: pending becomes settled, in batches that the operator signs and anybody may check.
//!
//! A batch's leaves are all that every wallet was ever paid up to it. They are not stored: settlements are immutable, so
//! that the same batch is exported with the same bytes for ever, and its stored root says whether that is so.

use std::collections::BTreeMap;

use sqlx::{Any, AnyConnection, Row, Transaction};

use super::claims::{Balances, balances};
use super::credit::{Sides, move_money};
use super::row::{counter, signed, text};
use super::{Ledger, LedgerError};
use crate::ledger::entry::{pending_account, settled_account};
use crate::ledger::merkle::{self, Leaf};
use crate::ledger::payout::{Batch, Settled};
use crate::types::{NanoKvr, PublicKey};
use crate::wallet::Claim;
use crate::wire::signature::KeyPair;

/// Claims of one batch: other writers wait while it is written.
const CLAIMS_PER_BATCH_MAX: i64 = 1000;

/// Every wallet's newest claim that was not paid, what can be paid first: claims that cannot must not keep back others.
const DUE: &str = "\
    SELECT claim.wallet AS wallet, claim.sequence AS sequence, claim.lifetime_nano AS lifetime, \
    CAST(CASE WHEN claim.words NOT LIKE $2 THEN 2 \
    WHEN claim.lifetime_nano > COALESCE(settled.credits - settled.debits, 0) \
    + COALESCE(pending.credits - pending.debits, 0) THEN 1 ELSE 0 END AS BIGINT) AS hindrance FROM claim \
    LEFT JOIN account AS pending ON pending.id = 'wallet:' || claim.wallet || ':pending' \
    LEFT JOIN account AS settled ON settled.id = 'wallet:' || claim.wallet || ':settled' \
    WHERE claim.expires_unix_s > $1 \
    AND claim.sequence = (SELECT MAX(sequence) FROM claim AS newer WHERE newer.wallet = claim.wallet) \
    AND claim.lifetime_nano > COALESCE((SELECT MAX(lifetime_to) FROM settlement \
    WHERE settlement.wallet = claim.wallet), 0) ORDER BY hindrance, claim.wallet LIMIT $3";
/// The hindrance of a claim on another operator.
const OF_ANOTHER: u64 = 2;

/// Why a batch cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// There is none of that number.
    #[error("expected a batch, got none{}: settle first", .0.map(|n| format!(" of number {n}")).unwrap_or_default())]
    Absent(Option<u64>),
    /// The settlements are not those that were signed.
    #[error("batch {batch}: expected settlements with the signed root, got others: run kvasir ledger check")]
    Changed {
        /// Its number.
        batch: u64,
    },
    /// The store.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

impl Ledger {
    /// Pays the newest claim on the operator of every wallet that was not paid and has not expired, and signs the batch
    /// with the operator's key. At most 1,000 claims; the next call pays the next ones, and none when none is left.
    ///
    /// # Errors
    /// A store that fails; nothing was paid then.
    pub async fn settle(&self, operator: &KeyPair) -> Result<Settled, LedgerError> {
        self.again(|| self.settle_once(operator)).await
    }

    async fn settle_once(&self, operator: &KeyPair) -> Result<Settled, LedgerError> {
        let now_unix_ms = self.clock.unix_ms();
        let mut tx = self.begin_write().await?;
        let row = sqlx::query("UPDATE change_counter SET value = value + 1 WHERE name = 'batch' RETURNING value")
            .fetch_one(&mut *tx)
            .await?;
        let batch = counter(&row, "value")?;
        let mut settled = Settled::default();
        let due = sqlx::query(DUE)
            .bind(signed(now_unix_ms / 1000)?)
            // A key in base58 has no wildcard.
            .bind(format!("{}%", Claim::beginning(&operator.public())))
            .bind(CLAIMS_PER_BATCH_MAX)
            .fetch_all(&mut *tx)
            .await?;
        for row in &due {
            let wallet: PublicKey = text(row, "wallet")?;
            if counter(row, "hindrance")? == OF_ANOTHER {
                settled.others.push(wallet);
                continue;
            }
            let (sequence, lifetime) = (counter(row, "sequence")?, counter(row, "lifetime")?);
            let Balances { pending, settled: paid } = balances(&mut tx, wallet, self.dialect.for_update()).await?;
            let amount = lifetime.saturating_sub(paid);
            if amount > pending {
                settled.short.push(wallet);
                continue;
            }
            pay(&mut tx, wallet, (paid, lifetime), (batch, sequence), now_unix_ms).await?;
            settled.paid += 1;
            settled.paid_nano_kvr.0 = settled.paid_nano_kvr.0.saturating_add(amount);
        }
        if settled.paid == 0 {
            tx.rollback().await?;
            return Ok(settled);
        }
        let (leaves, total) = leaves(&mut tx, batch).await?;
        let signed_batch = Batch::sign(operator, batch, &leaves, total, now_unix_ms);
        write_batch(&mut tx, &signed_batch).await?;
        tx.commit().await?;
        settled.batch = Some(signed_batch);
        Ok(settled)
    }

    /// A batch, the newest unless told otherwise, and its leaves in the order of their addresses.
    ///
    /// # Errors
    /// [`ExportError`].
    pub async fn export(&self, number: Option<u64>) -> Result<(Batch, Vec<Leaf>), ExportError> {
        let ledger = |error: sqlx::Error| ExportError::Ledger(error.into());
        let mut tx = self.begin_read().await?;
        let row = sqlx::query("SELECT * FROM batch WHERE batch = $1 OR $1 = 0 ORDER BY batch DESC LIMIT 1")
            .bind(signed(number.unwrap_or(0))?)
            .fetch_optional(&mut *tx)
            .await
            .map_err(ledger)?;
        let row = row.ok_or(ExportError::Absent(number))?;
        let batch = Batch {
            batch: counter(&row, "batch")?,
            operator: text(&row, "operator")?,
            wallets: counter(&row, "wallets")?,
            total_nano_kvr: NanoKvr(counter(&row, "total_nano")?),
            root: text(&row, "root")?,
            signature: text(&row, "signature")?,
            created_unix_ms: counter(&row, "created_unix_ms")?,
        };
        let (leaves, _) = leaves(&mut tx, batch.batch).await?;
        tx.rollback().await.map_err(ledger)?;
        if merkle::root(&leaves) != batch.root || batch.verify().is_err() {
            return Err(ExportError::Changed { batch: batch.batch });
        }
        Ok((batch, leaves))
    }
}

/// Moves the nano-KVR `from..to` of a wallet's life from pending to settled.
async fn pay(
    tx: &mut Transaction<'static, Any>,
    wallet: PublicKey,
    (from, to): (u64, u64),
    (batch, claim_sequence): (u64, u64),
    now_unix_ms: u64,
) -> Result<(), LedgerError> {
    let (debit, credit) = (pending_account(&wallet), settled_account(&wallet));
    let row = sqlx::query("UPDATE wallet SET sequence = sequence + 1 WHERE address = $1 RETURNING sequence")
        .bind(wallet.to_string())
        .fetch_one(&mut **tx)
        .await?;
    sqlx::query(
        "INSERT INTO settlement (wallet, lifetime_from, lifetime_to, sequence, batch, claim_sequence, debit, credit, \
         created_unix_ms) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
    )
    .bind(wallet.to_string())
    .bind(signed(from)?)
    .bind(signed(to)?)
    .bind(row.try_get::<i64, _>("sequence")?)
    .bind(signed(batch)?)
    .bind(signed(claim_sequence)?)
    .bind(debit.clone())
    .bind(credit.clone())
    .bind(signed(now_unix_ms)?)
    .execute(&mut **tx)
    .await?;
    let amount = to - from;
    let sides = [(debit, Sides { debits: amount, credits: 0 }), (credit, Sides { debits: 0, credits: amount })];
    move_money(tx, &BTreeMap::from(sides)).await
}

/// What every wallet was paid up to a batch, and the sum of it.
async fn leaves(tx: &mut AnyConnection, batch: u64) -> Result<(Vec<Leaf>, u64), LedgerError> {
    let rows =
        sqlx::query("SELECT wallet, MAX(lifetime_to) AS lifetime FROM settlement WHERE batch <= $1 GROUP BY wallet")
            .bind(signed(batch)?)
            .fetch_all(tx)
            .await?;
    let leaf = |row| Ok(Leaf { address: text(row, "wallet")?, lifetime_nano_kvr: NanoKvr(counter(row, "lifetime")?) });
    let mut leaves = rows.iter().map(leaf).collect::<Result<Vec<_>, LedgerError>>()?;
    leaves.sort_unstable();
    let total = leaves.iter().try_fold(0u64, |sum, leaf| sum.checked_add(leaf.lifetime_nano_kvr.0));
    Ok((leaves, total.ok_or(LedgerError::Overflow)?))
}

async fn write_batch(tx: &mut Transaction<'static, Any>, batch: &Batch) -> Result<(), LedgerError> {
    sqlx::query(
        "INSERT INTO batch (batch, operator, wallets, total_nano, root, signature, created_unix_ms) \
         VALUES ($1, $2, $3, $4, $5, $6, $7)",
    )
    .bind(signed(batch.batch)?)
    .bind(batch.operator.to_string())
    .bind(signed(batch.wallets)?)
    .bind(signed(batch.total_nano_kvr.0)?)
    .bind(batch.root.to_string())
    .bind(batch.signature.to_string())
    .bind(signed(batch.created_unix_ms)?)
    .execute(&mut **tx)
    .await?;
    Ok(())
}
