//! How fast gateways credit, and how long a check of many transfers takes, on either store.
//!
//! Every gateway has a ledger of its own over the same store and applies pages of [`ROWS`] rows, each with more work than
//! the page before: a credit is a delta of one session, and a page one transaction. Sums are checked at the end.

use std::fmt;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::task::JoinSet;

use crate::ledger::{Ledger, LedgerError, Meter, Rate};
use crate::types::{Hex, PublicKey};

/// Rows of a page, and of a transaction.
const ROWS: u32 = 100;
/// Work bytes of one credit.
const BYTES: u64 = 12_288;
/// Credits of a session among the transfers that are checked.
const CREDITS_PER_SESSION: u64 = 100;
/// Sessions of a wallet among them.
const SESSIONS_PER_WALLET: u64 = 100;
const HUB: PublicKey = PublicKey([1; 32]);

/// What is measured.
#[derive(Debug, Clone)]
pub struct LedgerOptions {
    /// An empty ledger; a SQLite file of its own when absent.
    pub url: Option<String>,
    /// Gateways at once.
    pub gateways: u32,
    /// Credits in all, rounded up to whole pages.
    pub credits: u32,
    /// Transfers that are checked, rounded up to whole wallets; those of the credits among them.
    pub transfers: u64,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum LedgerBenchError {
    /// The ledger.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// No directory for a ledger of its own.
    #[error("a directory for the ledger: {0}")]
    Directory(#[from] std::io::Error),
    /// A gateway's task.
    #[error("a gateway's task failed: {0}")]
    Task(#[from] tokio::task::JoinError),
    /// A ledger that is not empty.
    #[error("expected an empty ledger, got {0} transfers: the bench would leave its own among them")]
    NotEmpty(u64),
    /// The store is wrong.
    #[error("expected sound books after the bench, got: {0}")]
    Unsound(String),
}

/// What was found.
#[derive(Debug, Clone, Serialize)]
pub struct LedgerBench {
    /// `sqlite` or `postgres`.
    pub store: String,
    /// Gateways at once.
    pub gateways: u32,
    /// Credits written.
    pub credits: u64,
    /// In how many seconds.
    pub credit_s: f64,
    /// Credits in a second, of all gateways.
    pub credits_per_s: f64,
    /// Transfers checked.
    pub transfers: u64,
    /// In how many seconds.
    pub check_s: f64,
}

impl fmt::Display for LedgerBench {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { store, gateways, credits, credits_per_s, transfers, check_s, .. } = self;
        writeln!(f, "{store}: {credits} credits by {gateways} gateways, {credits_per_s:.0} a second")?;
        write!(f, "{store}: {transfers} transfers checked in {check_s:.1} s")
    }
}

/// Measures.
///
/// # Errors
/// [`LedgerBenchError`].
pub async fn ledger(options: LedgerOptions) -> Result<LedgerBench, LedgerBenchError> {
    let dir = tempfile::tempdir()?;
    let own = || format!("sqlite:{}", dir.path().join("ledger.db").display());
    let url = options.url.clone().unwrap_or_else(own);
    let ledger = Ledger::open(&url).await?;
    let before = ledger.check().await?.transfers;
    if before > 0 {
        return Err(LedgerBenchError::NotEmpty(before));
    }
    let (credits, took) = credit(&url, &options).await?;
    let mut transfers = credits;
    for wallet in 0u64.. {
        if transfers >= options.transfers {
            break;
        }
        let mut address = [0xaa; 32];
        address[..8].copy_from_slice(&wallet.to_le_bytes());
        let first = wallet * SESSIONS_PER_WALLET;
        ledger.fill((HUB, PublicKey(address)), first, SESSIONS_PER_WALLET, CREDITS_PER_SESSION).await?;
        transfers += SESSIONS_PER_WALLET * CREDITS_PER_SESSION;
    }
    let start = Instant::now();
    let report = ledger.check().await?;
    let check_s = start.elapsed().as_secs_f64();
    let exact = report.issued_nano == i128::from(transfers * BYTES * Rate::default().0);
    if !report.is_sound() || !exact || report.transfers != transfers {
        let why = report.findings.first().cloned().unwrap_or_else(|| format!("{} nano-KVR", report.issued_nano));
        return Err(LedgerBenchError::Unsound(why));
    }
    ledger.close().await;
    Ok(LedgerBench {
        store: url.split(':').next().unwrap_or_default().to_owned(),
        gateways: options.gateways,
        credits,
        credit_s: took.as_secs_f64(),
        credits_per_s: credits as f64 / took.as_secs_f64(),
        transfers,
        check_s,
    })
}

/// Lets all gateways credit at once; how much, and how long it took.
async fn credit(url: &str, options: &LedgerOptions) -> Result<(u64, Duration), LedgerBenchError> {
    let pages = options.credits.div_ceil(ROWS * options.gateways);
    let mut ledgers = Vec::new();
    for _ in 0..options.gateways {
        ledgers.push(Ledger::open(url).await?);
    }
    let (start, mut gateways) = (Instant::now(), JoinSet::new());
    for (gateway, ledger) in (0..options.gateways).zip(ledgers) {
        gateways.spawn(async move {
            for page in 1..=pages {
                let rows: Vec<Meter> = (0..ROWS).map(|row| meter(gateway, row, page.into())).collect();
                ledger.apply(&rows, Rate::default()).await?;
            }
            ledger.close().await;
            Ok::<_, LedgerError>(())
        });
    }
    while let Some(done) = gateways.join_next().await {
        done??;
    }
    Ok((u64::from(pages) * u64::from(ROWS) * u64::from(options.gateways), start.elapsed()))
}

/// The row of a session at its `page`th credit. Ten sessions share a wallet.
fn meter(gateway: u32, row: u32, page: u64) -> Meter {
    let (mut session, mut wallet) = ([0xbb; 16], [0xbb; 32]);
    session[..4].copy_from_slice(&(gateway * ROWS + row).to_le_bytes());
    wallet[..4].copy_from_slice(&(gateway * ROWS + row / 10).to_le_bytes());
    Meter {
        hub: HUB,
        session: Hex(session),
        wallet: PublicKey(wallet),
        epoch: 1,
        assignments: page,
        work_bytes: page * BYTES,
        voided_bytes: 0,
        raw_bytes: 0,
        change_seq: page * u64::from(ROWS) + u64::from(row),
        r#final: false,
    }
}
