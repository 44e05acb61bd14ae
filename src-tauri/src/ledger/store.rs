//! Keeps the ledger in a SQLite file: opening, migrating, and the words shared by reading and writing.
//!
//! Statements use `$N` and plain TEXT and BIGINT through sqlx's `Any`, so that PostgreSQL needs no second text; only
//! the connection's settings, the writers' `BEGIN IMMEDIATE` and the triggers are SQLite's own. A write transaction takes the
//! write lock at its start: one that upgrades half way can fail with a deadlock that no waiting resolves.

mod check;
mod credit;
mod meters;
mod read;
mod row;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sqlx::any::{AnyPoolOptions, install_default_drivers};
use sqlx::{Any, AnyPool, Row, Transaction};

use crate::clock::{Clock, SystemClock};

pub use credit::{Applied, RefusedMeter};
pub use meters::{METERS_PER_PAGE_MAX, Put};
pub use read::CREDITS_PER_PAGE_MAX;

/// Connections of a process: SQLite has one writer, the others read.
const CONNECTIONS_MAX: u32 = 4;
/// How long a caller waits for a connection; the writers' own wait is `busy_timeout` below.
const ACQUIRE_DEADLINE: Duration = Duration::from_secs(15);
/// WAL lets readers and the writer work at once; FULL keeps a commit through a power cut.
const SETTINGS: &str = "PRAGMA busy_timeout = 10000; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;";
/// Applied in order, each once; a released text is never edited.
const MIGRATIONS: [&str; 2] = [
    concat!(include_str!("store/schema_1.sql"), include_str!("store/triggers_sqlite.sql")),
    include_str!("store/schema_2.sql"),
];

/// Why the ledger could not be read or written. Nothing of the failed call was kept, unless it says so.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// A URL of another store.
    #[error("expected a ledger URL that starts with sqlite:, got {0:?}")]
    Url(String),
    /// A file of a later program.
    #[error("expected a ledger of schema {known} or older, got {got}")]
    NewerSchema {
        /// This program's.
        known: usize,
        /// The file's.
        got: i64,
    },
    /// A stored value that cannot be.
    #[error("expected {what} in the ledger's column {column}, got {got}")]
    Stored {
        /// The column.
        column: &'static str,
        /// What it holds by rule.
        what: &'static str,
        /// What it holds.
        got: String,
    },
    /// A number that the ledger cannot hold.
    #[error("expected a number of at most 2^63 - 1, got {0}")]
    TooLarge(u64),
    /// The store failed.
    #[error("the ledger's store: {0}")]
    Store(#[from] sqlx::Error),
}

/// The books. Cheap to clone; any number of processes on one machine may open the same file.
#[derive(Clone)]
pub struct Ledger {
    pool: AnyPool,
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").finish_non_exhaustive()
    }
}

impl Ledger {
    /// Opens the ledger at `sqlite:<path>` (created when absent) or `sqlite::memory:`, and brings its schema up to date.
    ///
    /// # Errors
    /// Another kind of URL, a file of a later program, or a store that fails.
    pub async fn open(url: &str) -> Result<Self, LedgerError> {
        Self::open_with_clock(url, Arc::new(SystemClock::default())).await
    }

    /// As [`Ledger::open`], with the clock that dates transfers.
    ///
    /// # Errors
    /// As [`Ledger::open`].
    pub async fn open_with_clock(url: &str, clock: Arc<dyn Clock>) -> Result<Self, LedgerError> {
        if !url.starts_with("sqlite:") {
            // Only the scheme is repeated: a URL may carry a password.
            return Err(LedgerError::Url(url.split(':').next().unwrap_or_default().chars().take(32).collect()));
        }
        install_default_drivers();
        // A database in memory belongs to its one connection, which must then live as long as the ledger.
        let in_memory = url.contains(":memory:");
        let url = if in_memory || url.contains('?') { url.to_owned() } else { format!("{url}?mode=rwc") };
        let mut options = AnyPoolOptions::new().max_connections(CONNECTIONS_MAX).acquire_timeout(ACQUIRE_DEADLINE);
        if in_memory {
            options = options.max_connections(1).idle_timeout(None).max_lifetime(None);
        }
        let pool = options
            .after_connect(|connection, _| {
                Box::pin(async move { sqlx::raw_sql(SETTINGS).execute(connection).await.map(drop) })
            })
            .connect(&url)
            .await?;
        let ledger = Self { pool, clock };
        ledger.migrate().await?;
        Ok(ledger)
    }

    /// Closes the connections, after which every call fails.
    pub async fn close(&self) {
        self.pool.close().await;
    }

    async fn migrate(&self) -> Result<(), LedgerError> {
        let mut tx = self.begin_write().await?;
        sqlx::query("CREATE TABLE IF NOT EXISTS schema_version (version BIGINT NOT NULL)").execute(&mut *tx).await?;
        let row =
            sqlx::query("SELECT COALESCE(MAX(version), 0) AS version FROM schema_version").fetch_one(&mut *tx).await?;
        let got: i64 = row.try_get("version")?;
        let known = MIGRATIONS.len();
        let done = usize::try_from(got).ok().filter(|done| *done <= known);
        let done = done.ok_or(LedgerError::NewerSchema { known, got })?;
        for (version, text) in (1i64..).zip(MIGRATIONS).skip(done) {
            sqlx::raw_sql(text).execute(&mut *tx).await?;
            sqlx::query("INSERT INTO schema_version (version) VALUES ($1)").bind(version).execute(&mut *tx).await?;
        }
        tx.commit().await?;
        Ok(())
    }

    async fn begin_write(&self) -> Result<Transaction<'static, Any>, LedgerError> {
        Ok(self.pool.begin_with("BEGIN IMMEDIATE").await?)
    }

    /// A transaction whose reads all see the snapshot of the first one.
    async fn begin_read(&self) -> Result<Transaction<'static, Any>, LedgerError> {
        Ok(self.pool.begin().await?)
    }
}

#[cfg(test)]
mod tests;
