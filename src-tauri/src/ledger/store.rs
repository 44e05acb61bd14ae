//! Keeps the ledger in SQLite or PostgreSQL: opening, migrating, and the words shared by reading and writing.
//!
//! Statements are one text for both stores; [`dialect`] holds the little that differs. **Promises:** a call that met
//! another writer is tried again, a few times and from its start; no call of a server waits for ever; what a URL says
//! of a password is in no message.

mod check;
mod claims;
mod credit;
mod dialect;
mod fill;
mod meters;
mod put;
mod read;
mod repair;
mod row;
mod settlement;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sqlx::any::{AnyPoolOptions, install_default_drivers};
use sqlx::{Any, AnyPool, Row, Transaction};
use tokio::time::{sleep, timeout};

use self::dialect::{Dialect, Fault};
use crate::clock::{Clock, SystemClock};

pub use credit::{Applied, RefusedMeter};
pub use meters::{METERS_PER_PAGE_MAX, Put};
pub use read::{CREDITS_PER_PAGE_MAX, Position};
pub use settlement::ExportError;

/// How long a caller waits for a connection; a writer's wait for its locks is shorter, see [`dialect`].
const ACQUIRE_DEADLINE: Duration = Duration::from_secs(15);
/// Longest attempt of a call: its locks and its work, with room for a busy machine.
const ATTEMPT_DEADLINE: Duration = Duration::from_secs(60);
/// How often a call is tried that others are in the way of.
const ATTEMPTS_MAX: u32 = 6;
/// Pause after the first of them; doubled each time, so that all together take a third of a second.
const RETRY_PAUSE: Duration = Duration::from_millis(10);

/// Why the ledger could not be read or written. Nothing of the failed call was kept, unless it says so.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// A URL of another store.
    #[error("expected a ledger URL that starts with sqlite: or postgres:, got {0:?}")]
    Url(String),
    /// A PostgreSQL on another machine, reached in the clear or without a look at its certificate.
    #[error(
        "expected sslmode=verify-full (and sslrootcert=FILE for a private authority) in the URL of PostgreSQL at {host:?}"
    )]
    Plain {
        /// Where it is.
        host: String,
    },
    /// A ledger that is to be there already.
    #[error("expected a ledger, got none there: is this the URL that hub or gateway were started with?")]
    Absent,
    /// Others were in the way each time.
    #[error("expected to be the only writer of these rows once in {ATTEMPTS_MAX} attempts: try again")]
    Raced,
    /// The store does not answer.
    #[error("expected the ledger's store to be done within {ATTEMPT_DEADLINE:?}")]
    Late,
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
    /// No randomness for a name.
    #[error("no randomness from the operating system: {0}")]
    Random(#[from] getrandom::Error),
    /// An account's sum that the ledger cannot hold.
    #[error("expected an account's sum to fit 2^63 - 1, got an overflow")]
    Overflow,
    /// The store failed.
    #[error("the ledger's store: {0}")]
    Store(#[from] sqlx::Error),
}

/// The books. Cheap to clone; any number of processes may open the same ledger: of a SQLite file those of one machine.
#[derive(Clone)]
pub struct Ledger {
    pool: AnyPool,
    dialect: &'static dyn Dialect,
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").finish_non_exhaustive()
    }
}

impl Ledger {
    /// Opens the ledger at `sqlite:<path>` (created when absent), `sqlite::memory:` or `postgres://…` (a database that
    /// exists), and brings its schema up to date.
    ///
    /// # Errors
    /// Another kind of URL, a ledger of a later program, or a store that fails.
    pub async fn open(url: &str) -> Result<Self, LedgerError> {
        Self::open_with_clock(url, Arc::new(SystemClock::default())).await
    }

    /// As [`Ledger::open`], with the clock that dates transfers.
    ///
    /// # Errors
    /// As [`Ledger::open`].
    pub async fn open_with_clock(url: &str, clock: Arc<dyn Clock>) -> Result<Self, LedgerError> {
        let ledger = Self::connect(url, "rwc", clock).await?;
        ledger.again(|| ledger.migrate()).await?;
        Ok(ledger)
    }

    /// As [`Ledger::open`], but of a ledger that is there: a mistyped URL makes none.
    ///
    /// # Errors
    /// [`LedgerError::Absent`], and as [`Ledger::open`].
    pub async fn open_existing(url: &str) -> Result<Self, LedgerError> {
        let connected = Self::connect(url, "rw", Arc::new(SystemClock::default())).await;
        let ledger = connected.map_err(|error| match error {
            // SQLITE_CANTOPEN.
            LedgerError::Store(sqlx::Error::Database(e)) if e.code().as_deref() == Some("14") => LedgerError::Absent,
            error => error,
        })?;
        let row = sqlx::query(ledger.dialect.tables_there()).fetch_one(&ledger.pool).await?;
        if row.try_get::<i64, _>("there")? == 0 {
            return Err(LedgerError::Absent);
        }
        ledger.again(|| ledger.migrate()).await?;
        Ok(ledger)
    }

    /// `mode` is what SQLite may do with the file.
    async fn connect(url: &str, mode: &str, clock: Arc<dyn Clock>) -> Result<Self, LedgerError> {
        let dialect = dialect::of(url)?;
        install_default_drivers();
        // A database in memory belongs to its one connection, which must then live as long as the ledger.
        let is_file = url.starts_with("sqlite:");
        let in_memory = is_file && url.contains(":memory:");
        let url =
            if is_file && !in_memory && !url.contains('?') { format!("{url}?mode={mode}") } else { url.to_owned() };
        let (most, settings) = (dialect.connections_max(), dialect.settings());
        let mut options = AnyPoolOptions::new().max_connections(most).acquire_timeout(ACQUIRE_DEADLINE);
        if in_memory {
            options = options.max_connections(1).idle_timeout(None).max_lifetime(None);
        }
        let pool = options
            .after_connect(move |connection, _| {
                Box::pin(async move { sqlx::raw_sql(settings).execute(connection).await.map(drop) })
            })
            .connect(&url)
            .await?;
        Ok(Self { pool, dialect, clock })
    }

    /// Closes the connections, after which every call fails.
    pub async fn close(&self) {
        self.pool.close().await;
    }

    async fn migrate(&self) -> Result<(), LedgerError> {
        let mut tx = self.begin_write().await?;
        if let Some(lock) = self.dialect.migration_lock() {
            sqlx::query(lock).execute(&mut *tx).await?;
        }
        sqlx::query("CREATE TABLE IF NOT EXISTS schema_version (version BIGINT NOT NULL)").execute(&mut *tx).await?;
        let row =
            sqlx::query("SELECT COALESCE(MAX(version), 0) AS version FROM schema_version").fetch_one(&mut *tx).await?;
        let got: i64 = row.try_get("version")?;
        let migrations = self.dialect.migrations();
        let known = migrations.len();
        let done = usize::try_from(got).ok().filter(|done| *done <= known);
        let done = done.ok_or(LedgerError::NewerSchema { known, got })?;
        for (version, text) in (1i64..).zip(migrations).skip(done) {
            sqlx::raw_sql(*text).execute(&mut *tx).await?;
            sqlx::query("INSERT INTO schema_version (version) VALUES ($1)").bind(version).execute(&mut *tx).await?;
        }
        tx.commit().await?;
        Ok(())
    }

    async fn begin_write(&self) -> Result<Transaction<'static, Any>, LedgerError> {
        Ok(self.pool.begin_with(self.dialect.begin_write()).await?)
    }

    /// A transaction whose reads all see the snapshot of the first one.
    async fn begin_read(&self) -> Result<Transaction<'static, Any>, LedgerError> {
        Ok(self.pool.begin_with(self.dialect.begin_read()).await?)
    }

    /// Tries a call again from its start, a few times, when other writers were in its way.
    async fn again<T, F>(&self, attempt: impl Fn() -> F) -> Result<T, LedgerError>
    where
        F: Future<Output = Result<T, LedgerError>>,
    {
        let mut pause = RETRY_PAUSE;
        for _ in 1..ATTEMPTS_MAX {
            match timeout(ATTEMPT_DEADLINE, attempt()).await {
                Ok(Err(error)) if self.is_passing(&error) => {
                    tracing::debug!(%error, "the ledger is asked again");
                    sleep(pause).await;
                    pause *= 2;
                }
                done => return done.map_err(|_| LedgerError::Late)?,
            }
        }
        timeout(ATTEMPT_DEADLINE, attempt()).await.map_err(|_| LedgerError::Late)?
    }

    fn is_passing(&self, error: &LedgerError) -> bool {
        match error {
            LedgerError::Raced => true,
            LedgerError::Store(error) => self.fault(error) == Fault::Passing,
            _ => false,
        }
    }

    fn fault(&self, error: &sqlx::Error) -> Fault {
        error.as_database_error().map_or(Fault::Store, |error| self.dialect.fault(error))
    }
}

/// Bounds a call that only reads, and that is not worth another attempt: who asked will ask again.
async fn in_time<T>(reading: impl Future<Output = Result<T, LedgerError>>) -> Result<T, LedgerError> {
    timeout(ATTEMPT_DEADLINE, reading).await.map_err(|_| LedgerError::Late)?
}

#[cfg(test)]
mod tests;
