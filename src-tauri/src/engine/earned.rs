//! What each day brought: a wallet's transfers, read page by page from a gateway and summed up by day.
//!
//! What was read is kept, so that a wallet of many years is read once. **Promise:** the sums are of the gateway's own
//! rows; nothing here is money, the account is.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::facts::DayEarned;
use super::kept::Kept;
use crate::net::https::{Gateway, HttpsError};
use crate::types::{NanoKvr, PublicKey};
use crate::wallet;

const EARNED: Kept = Kept { name: "earned.json", what: "what each day brought" };
/// Days that are shown.
const DAYS_MAX: usize = 30;
/// Pages that are read at a time; the rest comes with the next question.
const PAGES_MAX: usize = 20;
/// Rows of a full page.
const PAGE_ROWS: usize = 100;

/// The part of a transfer that counts here.
#[derive(Deserialize)]
struct Row {
    sequence: u64,
    kind: String,
    amount_nano_kvr: NanoKvr,
    rate: u64,
    created_unix_ms: u64,
}

#[derive(Deserialize)]
struct Page {
    credits: Vec<Row>,
}

/// Sums of one wallet at one operator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Sums {
    wallet: Option<PublicKey>,
    operator: Option<PublicKey>,
    /// Sequence of the last transfer that is in them.
    after: u64,
    /// Nano-KVR per work byte of the newest.
    rate: Option<u64>,
    /// Nano-KVR by day.
    days: BTreeMap<String, u64>,
}

/// See the module.
pub(super) struct Earned {
    dir: PathBuf,
    sums: Sums,
}

impl Earned {
    /// What was read before of this wallet's transfers, from `dir`.
    pub fn open(dir: PathBuf, wallet: PublicKey, operator: PublicKey) -> Self {
        let (kept, error) = EARNED.read::<Sums>(&dir);
        if let Some(error) = error {
            tracing::warn!(%error, "earnings are read anew");
        }
        let is_own = kept.wallet == Some(wallet) && kept.operator == Some(operator);
        let fresh = Sums { wallet: Some(wallet), operator: Some(operator), ..Sums::default() };
        Self { dir, sums: if is_own { kept } else { fresh } }
    }

    /// Reads transfers up to `sequence`, as far as it comes.
    pub async fn catch_up(&mut self, gateway: &Gateway, wallet: PublicKey, sequence: u64) -> Result<(), HttpsError> {
        if sequence < self.sums.after {
            // A ledger was restored from an older copy: its rows are read again.
            (self.sums.after, self.sums.days) = (0, BTreeMap::new());
        }
        let before = self.sums.after;
        for _ in 0..PAGES_MAX {
            if self.sums.after >= sequence {
                break;
            }
            let page: Page = gateway.get(&format!("/v1/wallets/{wallet}/credits?after={}", self.sums.after)).await?;
            let rows = page.credits.len();
            page.credits.iter().for_each(|row| self.sums.add(row));
            if rows < PAGE_ROWS {
                break;
            }
        }
        if self.sums.after != before
            && let Err(error) = EARNED.write(&self.dir, &self.sums)
        {
            tracing::debug!(%error, "earnings are read again after the next start");
        }
        Ok(())
    }

    /// Nano-KVR per work byte, by the newest transfer.
    pub fn rate(&self) -> Option<u64> {
        self.sums.rate
    }

    /// The newest days, oldest first.
    pub fn per_day(&self) -> Vec<DayEarned> {
        let day = |(day, nano): (&String, &u64)| DayEarned { day: day.clone(), nano: nano.to_string() };
        self.sums.days.iter().map(day).collect()
    }
}

impl Sums {
    fn add(&mut self, row: &Row) {
        if row.sequence <= self.after {
            return;
        }
        (self.after, self.rate) = (row.sequence, Some(row.rate));
        let day = || wallet::day_of(row.created_unix_ms / 1000);
        let amount = row.amount_nano_kvr.0;
        match row.kind.as_str() {
            "credit" => {
                let sum = self.days.entry(day()).or_default();
                *sum = sum.saturating_add(amount);
            }
            // Work that turned out to be worth nothing.
            "void" => {
                let sum = self.days.entry(day()).or_default();
                *sum = sum.saturating_sub(amount);
            }
            // What is paid out was earned before.
            _ => {}
        }
        while self.days.len() > DAYS_MAX {
            self.days.pop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_are_summed_by_day_once_and_the_newest_days_stay() {
        let mut sums = Sums::default();
        const DAY_MS: u64 = 86_400_000;
        let row = |sequence, kind: &str, nano, created_unix_ms| Row {
            sequence,
            kind: kind.to_owned(),
            amount_nano_kvr: NanoKvr(nano),
            rate: 7,
            created_unix_ms,
        };
        for again in 0..2 {
            sums.add(&row(1, "credit", 70, 0));
            sums.add(&row(2, "credit", 7, DAY_MS - 1));
            sums.add(&row(3, "void", 10, DAY_MS - 1));
            sums.add(&row(4, "settlement", 60, DAY_MS));
            assert_eq!(sums.days, BTreeMap::from([("1970-01-01".to_owned(), 67)]), "time {again}");
        }
        (5..100).for_each(|n| sums.add(&row(n, "credit", 1, n * DAY_MS)));
        assert_eq!((sums.days.len(), sums.after), (DAYS_MAX, 99));
        assert!(sums.days.contains_key(&wallet::day_of(99 * DAY_MS / 1000)));
    }
}
