//! What wallets ask to be paid: how much they may, and the claims they hand in.
//!
//! A claim names a lifetime sum, so that the same one pays once. It is taken when its number is the wallet's next and
//! its sum is old enough; handing it in again changes nothing and is no error, since an answer may be lost. Claims are
//! kept for ever, so a wallet that is not paid makes one now and then, not a thousand.

use std::time::Duration;

use sqlx::{AnyConnection, Row};

use super::row::{counter, signed};
use super::{Ledger, LedgerError, in_time};
use crate::ledger::entry::{pending_account, settled_account};
use crate::ledger::payout::{CLAIM_EVERY, CLAIM_LASTS_MAX, ClaimRefusal, ClaimTerms, Claimable};
use crate::types::{NanoKvr, PublicKey};
use crate::wallet::{Claim, SignedClaim};

/// A wallet's balances.
pub(super) struct Balances {
    pub pending: u64,
    pub settled: u64,
}

impl Ledger {
    /// What a wallet may claim now.
    ///
    /// # Errors
    /// A store that fails.
    pub async fn claimable(&self, wallet: PublicKey, terms: ClaimTerms) -> Result<Claimable, LedgerError> {
        in_time(self.read_claimable(wallet, terms)).await
    }

    async fn read_claimable(&self, wallet: PublicKey, terms: ClaimTerms) -> Result<Claimable, LedgerError> {
        let mut tx = self.begin_read().await?;
        let (settled, lifetime) = self.claimable_now(&mut tx, wallet, terms).await?;
        let last = last_claim(&mut tx, wallet).await?;
        tx.rollback().await?;
        let open = last.as_ref().map(|last| last.lifetime).filter(|open| *open > settled);
        Ok(Claimable {
            address: wallet,
            operator: terms.operator,
            settled_nano_kvr: NanoKvr(settled),
            lifetime_nano_kvr: NanoKvr(lifetime),
            sequence: last.map_or(0, |last| last.sequence) + 1,
            open_nano_kvr: open.map(NanoKvr),
        })
    }

    /// Takes a claim, to be paid with the next settlement.
    ///
    /// # Errors
    /// A store that fails; the claim was not taken then. A refusal is the claim's own.
    pub async fn take_claim(
        &self,
        signed: &SignedClaim,
        terms: ClaimTerms,
    ) -> Result<Result<Claim, ClaimRefusal>, LedgerError> {
        let claim = match signed.verify() {
            Ok(claim) => claim,
            Err(error) => return Ok(Err(error.into())),
        };
        if claim.operator != terms.operator {
            return Ok(Err(ClaimRefusal::Operator { expected: terms.operator, got: claim.operator }));
        }
        let now_unix_s = self.clock.unix_ms() / 1000;
        let got = claim.expires_unix_s;
        if got <= now_unix_s || got > now_unix_s + CLAIM_LASTS_MAX.as_secs() {
            return Ok(Err(ClaimRefusal::Expires { now_unix_s, got }));
        }
        let taken = self.again(|| self.take(&claim, signed, terms)).await?;
        Ok(taken.map(|()| claim))
    }

    async fn take(
        &self,
        claim: &Claim,
        words: &SignedClaim,
        terms: ClaimTerms,
    ) -> Result<Result<(), ClaimRefusal>, LedgerError> {
        let mut tx = self.begin_write().await?;
        let last = last_claim(&mut tx, claim.wallet).await?;
        if last.as_ref().is_some_and(|last| last.sequence == claim.sequence && last.words == words.text) {
            return Ok(Ok(()));
        }
        let expected = last.as_ref().map_or(0, |last| last.sequence) + 1;
        let (settled, claimable) = self.claimable_now(&mut tx, claim.wallet, terms).await?;
        let got = claim.lifetime.0;
        let refusal = if claim.sequence != expected {
            Some(ClaimRefusal::Sequence { expected, got: claim.sequence })
        } else if got <= settled {
            Some(ClaimRefusal::Paid { settled, got })
        } else if got > claimable {
            Some(ClaimRefusal::TooMuch { claimable, got })
        } else {
            let wait = last.filter(|last| last.lifetime > settled).and_then(|last| self.wait_after(&last));
            wait.map(|wait_s| ClaimRefusal::Often { wait_s })
        };
        if let Some(refusal) = refusal {
            return Ok(Err(refusal));
        }
        let done = sqlx::query(
            "INSERT INTO claim (wallet, sequence, lifetime_nano, expires_unix_s, words, signature, created_unix_ms) \
             VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (wallet, sequence) DO NOTHING",
        )
        .bind(claim.wallet.to_string())
        .bind(signed(claim.sequence)?)
        .bind(signed(got)?)
        .bind(signed(claim.expires_unix_s)?)
        .bind(words.text.clone())
        .bind(words.signature.to_string())
        .bind(signed(self.clock.unix_ms())?)
        .execute(&mut *tx)
        .await?;
        if done.rows_affected() != 1 {
            return Err(LedgerError::Raced);
        }
        tx.commit().await?;
        Ok(Ok(()))
    }

    /// Seconds until a wallet may claim again while its last claim is not paid; none when they are over.
    fn wait_after(&self, last: &LastClaim) -> Option<u64> {
        // A claim that is dated later than now says nothing: clocks are set back.
        let age_ms = self.clock.unix_ms().checked_sub(last.created_unix_ms)?;
        let left = CLAIM_EVERY.saturating_sub(Duration::from_millis(age_ms));
        (!left.is_zero()).then(|| left.as_secs() + 1)
    }

    /// What a wallet was paid, and the most that a claim may say.
    async fn claimable_now(
        &self,
        tx: &mut AnyConnection,
        wallet: PublicKey,
        terms: ClaimTerms,
    ) -> Result<(u64, u64), LedgerError> {
        let Balances { pending, settled } = balances(tx, wallet, "").await?;
        let hold_ms = u64::try_from(terms.hold.as_millis()).unwrap_or(u64::MAX);
        let old = i64::try_from(self.clock.unix_ms().saturating_sub(hold_ms)).unwrap_or(i64::MAX);
        // Only the newest transfers are looked at, from the last one that is old enough.
        let row = sqlx::query(
            "SELECT CAST(COALESCE(SUM(amount), 0) AS BIGINT) AS young FROM transfer \
             WHERE wallet = $1 AND kind = 'credit' AND created_unix_ms > $2 AND sequence > \
             COALESCE((SELECT sequence FROM transfer WHERE wallet = $1 AND created_unix_ms <= $2 \
             ORDER BY sequence DESC LIMIT 1), 0)",
        )
        .bind(wallet.to_string())
        .bind(old)
        .fetch_one(tx)
        .await?;
        Ok((settled, settled.saturating_add(pending.saturating_sub(counter(&row, "young")?))))
    }
}

/// A wallet's balances; with `lock`, kept from other writers.
pub(super) async fn balances(
    tx: &mut AnyConnection,
    wallet: PublicKey,
    lock: &'static str,
) -> Result<Balances, LedgerError> {
    let statement = match lock {
        "" => "SELECT id, credits - debits AS balance FROM account WHERE id IN ($1, $2) ORDER BY id",
        _ => "SELECT id, credits - debits AS balance FROM account WHERE id IN ($1, $2) ORDER BY id FOR UPDATE",
    };
    let pending = pending_account(&wallet);
    let rows = sqlx::query(statement).bind(pending.clone()).bind(settled_account(&wallet)).fetch_all(tx).await?;
    let mut balances = Balances { pending: 0, settled: 0 };
    for row in &rows {
        let is_pending = row.try_get::<&str, _>("id")? == pending;
        *(if is_pending { &mut balances.pending } else { &mut balances.settled }) = counter(row, "balance")?;
    }
    Ok(balances)
}

struct LastClaim {
    sequence: u64,
    lifetime: u64,
    words: String,
    created_unix_ms: u64,
}

async fn last_claim(tx: &mut AnyConnection, wallet: PublicKey) -> Result<Option<LastClaim>, LedgerError> {
    let row = sqlx::query(
        "SELECT sequence, lifetime_nano, words, created_unix_ms FROM claim WHERE wallet = $1 \
         ORDER BY sequence DESC LIMIT 1",
    )
    .bind(wallet.to_string())
    .fetch_optional(tx)
    .await?;
    row.map(|row| {
        let (sequence, lifetime) = (counter(&row, "sequence")?, counter(&row, "lifetime_nano")?);
        let created_unix_ms = counter(&row, "created_unix_ms")?;
        Ok(LastClaim { sequence, lifetime, words: row.try_get("words")?, created_unix_ms })
    })
    .transpose()
}
