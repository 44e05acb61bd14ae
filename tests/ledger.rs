//! Exactly-once credit: whatever is duplicated, reordered, cut short or raced, credits are work bytes × rate.
//!
//! Every story runs on both stores: a SQLite file, and a database of a PostgreSQL server that the tests start.

mod claims;
mod history;
mod interleavings;
#[cfg(unix)]
mod kills;
mod receipts;
mod rules;

use kvasir::ledger::{Ledger, Meter, Rate, Transfer, TransferKind};
use kvasir::types::{Hex, NanoKvr, PublicKey, SessionId};
use tempfile::TempDir;

#[cfg(unix)]
use crate::support::postgres;

const HUB: PublicKey = PublicKey([9; 32]);
const RATE: Rate = Rate(7);

fn session(n: u8) -> SessionId {
    Hex([n; 16])
}

/// Sessions 0 and 2 work for wallet 0, sessions 1 and 3 for wallet 1.
fn wallet(n: u8) -> PublicKey {
    PublicKey([n % 2; 32])
}

fn meter(n: u8, work_bytes: u64, voided_bytes: u64, change_seq: u64) -> Meter {
    Meter {
        hub: HUB,
        session: session(n),
        wallet: wallet(n),
        epoch: 1,
        assignments: work_bytes / 64,
        work_bytes,
        voided_bytes,
        raw_bytes: work_bytes / 4,
        change_seq,
        r#final: false,
    }
}

/// An empty place for a ledger, which any number of processes may open.
struct Place {
    url: String,
    _dir: Option<TempDir>,
}

impl Place {
    fn file() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { url: format!("sqlite:{}", dir.path().join("ledger.db").display()), _dir: Some(dir) }
    }

    #[cfg(unix)]
    async fn server() -> Option<Self> {
        Some(Self { url: postgres::shared()?.database().await, _dir: None })
    }

    async fn open(&self) -> Ledger {
        Ledger::open(&self.url).await.unwrap()
    }
}

/// Makes a test for each store of every story named.
macro_rules! on_both_stores {
    ($($story:ident),+ $(,)?) => {
        mod sqlite {
            $(#[tokio::test]
            async fn $story() {
                super::$story(crate::ledger::Place::file()).await;
            })+
        }

        #[cfg(unix)]
        mod postgres {
            $(#[tokio::test]
            async fn $story() {
                let Some(place) = crate::ledger::Place::server().await else { return };
                super::$story(place).await;
            })+
        }
    };
}
use on_both_stores;

/// All transfers of a wallet.
async fn transfers(ledger: &Ledger, wallet: PublicKey) -> Vec<Transfer> {
    let mut all: Vec<Transfer> = Vec::new();
    loop {
        let after = all.last().map_or(0, |transfer| transfer.sequence);
        let page = ledger.credits(wallet, after).await.unwrap();
        if page.is_empty() {
            return all;
        }
        all.extend(page);
    }
}

/// Asserts that a wallet has what its work is worth, and how it got there.
async fn assert_worth(ledger: &Ledger, wallet: PublicKey, work_bytes: u64, voided_bytes: u64) {
    let statement = ledger.wallet(wallet).await.unwrap();
    assert_eq!(statement.work_bytes, work_bytes);
    assert_eq!(statement.pending_nano_kvr, NanoKvr((work_bytes - voided_bytes) * RATE.0));
    let transfers = transfers(ledger, wallet).await;
    let credited = transfers.iter().filter(|t| t.kind == TransferKind::Credit).map(|t| t.amount_nano_kvr.0);
    assert_eq!(credited.sum::<u64>(), work_bytes * RATE.0);
    assert_eq!(statement.sequence, transfers.len() as u64);
}

async fn assert_sound(ledger: &Ledger) {
    let report = ledger.check().await.unwrap();
    assert!(report.is_sound(), "{report:?}");
}
