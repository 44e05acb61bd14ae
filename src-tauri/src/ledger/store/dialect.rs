//! What SQLite and PostgreSQL do differently: opening, transactions, triggers, and what an error means.
//!
//! Everything else is one text for both: `$N`, TEXT and BIGINT through sqlx's `Any`. **Promise:** a store's rule that
//! refuses a row, and a quarrel between writers that passes by itself, are told apart from a store that fails.

use sqlx::error::{DatabaseError, ErrorKind};

use super::LedgerError;

/// What a store's error says about the call that met it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// A constraint or trigger refuses what was to be written.
    Rule,
    /// Another writer was in the way; the whole transaction may be tried again.
    Passing,
    /// The store itself.
    Store,
}

/// A kind of store.
pub(super) trait Dialect: Send + Sync {
    /// Connections of a process.
    fn connections_max(&self) -> u32;
    /// Statements for every new connection.
    fn settings(&self) -> &'static str;
    /// The schema in its order; each is applied once, and a released text is never edited.
    fn migrations(&self) -> &'static [&'static str];
    /// Keeps two processes from migrating at once, within the migration's own transaction.
    fn migration_lock(&self) -> Option<&'static str>;
    /// Whether there is a ledger: its tables, one row with a number above 0 in `there`.
    fn tables_there(&self) -> &'static str;
    /// Begins a transaction that writes.
    fn begin_write(&self) -> &'static str;
    /// Begins a transaction whose reads all see one snapshot.
    fn begin_read(&self) -> &'static str;
    /// Behind a SELECT in a writing transaction: keeps its rows from other writers until the commit.
    fn for_update(&self) -> &'static str;
    /// What an error means.
    fn fault(&self, error: &dyn DatabaseError) -> Fault;
}

/// One file, one machine. A write transaction takes the write lock at its start: one that upgrades half way can fail
/// with a deadlock that no waiting resolves.
pub(super) struct Sqlite;

impl Dialect for Sqlite {
    /// One writes, the others read.
    fn connections_max(&self) -> u32 {
        4
    }

    /// WAL lets readers and the writer work at once; FULL keeps a commit through a power cut.
    fn settings(&self) -> &'static str {
        "PRAGMA busy_timeout = 10000; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;"
    }

    fn migrations(&self) -> &'static [&'static str] {
        &[
            concat!(include_str!("schema_1.sql"), include_str!("triggers_sqlite.sql")),
            include_str!("schema_2.sql"),
            concat!(include_str!("schema_3.sql"), include_str!("triggers_3_sqlite.sql")),
        ]
    }

    fn migration_lock(&self) -> Option<&'static str> {
        None
    }

    fn tables_there(&self) -> &'static str {
        "SELECT COUNT(*) AS there FROM sqlite_master WHERE type = 'table' AND name = 'schema_version'"
    }

    fn begin_write(&self) -> &'static str {
        "BEGIN IMMEDIATE"
    }

    fn begin_read(&self) -> &'static str {
        "BEGIN"
    }

    /// The one writer has the whole file.
    fn for_update(&self) -> &'static str {
        ""
    }

    fn fault(&self, error: &dyn DatabaseError) -> Fault {
        match error.code().as_deref() {
            // SQLITE_CONSTRAINT_TRIGGER: a trigger's RAISE(ABORT).
            Some("1811") => Fault::Rule,
            // SQLITE_BUSY, SQLITE_LOCKED, SQLITE_BUSY_RECOVERY, SQLITE_BUSY_SNAPSHOT.
            Some("5" | "6" | "261" | "517") => Fault::Passing,
            _ if matches!(error.kind(), ErrorKind::Other) => Fault::Store,
            _ => Fault::Rule,
        }
    }
}

/// A server, shared by hubs and gateways on any number of machines.
pub(super) struct Postgres;

impl Dialect for Postgres {
    fn connections_max(&self) -> u32 {
        8
    }

    /// A client that vanished with its machine must not keep its locks; nobody waits for a lock for ever.
    fn settings(&self) -> &'static str {
        "SET lock_timeout = '10s'; SET idle_in_transaction_session_timeout = '60s'; SET synchronous_commit = 'on';"
    }

    fn migrations(&self) -> &'static [&'static str] {
        &[
            concat!(include_str!("schema_1.sql"), include_str!("triggers_postgres.sql")),
            include_str!("schema_2.sql"),
            concat!(include_str!("schema_3.sql"), include_str!("triggers_3_postgres.sql")),
        ]
    }

    fn migration_lock(&self) -> Option<&'static str> {
        // The number is "kvasir" in letters; whoever else locks it waits, and that is all.
        Some("SELECT pg_advisory_xact_lock(118074560899442)")
    }

    fn tables_there(&self) -> &'static str {
        "SELECT COUNT(*) AS there FROM pg_tables WHERE schemaname = current_schema() AND tablename = 'schema_version'"
    }

    /// Rows that decide are locked as they are read, so that no stricter level is needed.
    fn begin_write(&self) -> &'static str {
        "BEGIN ISOLATION LEVEL READ COMMITTED"
    }

    fn begin_read(&self) -> &'static str {
        "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
    }

    fn for_update(&self) -> &'static str {
        " FOR UPDATE"
    }

    fn fault(&self, error: &dyn DatabaseError) -> Fault {
        let code = error.code().unwrap_or_default();
        match code.as_ref() {
            // numeric_value_out_of_range: a sum that BIGINT does not hold.
            "22003" => Fault::Rule,
            code if code.starts_with("23") => Fault::Rule,
            // serialization_failure, deadlock_detected, lock_not_available; shutting down, crashed, starting up; full.
            "40001" | "40P01" | "55P03" | "57P01" | "57P02" | "57P03" | "53300" => Fault::Passing,
            _ => Fault::Store,
        }
    }
}

/// The store of a URL.
///
/// # Errors
/// Another scheme, or a PostgreSQL on another machine to which the connection would not be encrypted and checked.
pub(super) fn of(url: &str) -> Result<&'static dyn Dialect, LedgerError> {
    let scheme = url.split(':').next().unwrap_or_default();
    match scheme {
        "sqlite" => Ok(&Sqlite),
        "postgres" | "postgresql" => {
            let options: sqlx::postgres::PgConnectOptions = url.parse()?;
            use sqlx::postgres::PgSslMode::{VerifyCa, VerifyFull};
            let checked = matches!(options.get_ssl_mode(), VerifyCa | VerifyFull);
            let host = options.get_host();
            let here = options.get_socket().is_some()
                || host.starts_with('/')
                || matches!(host, "localhost" | "127.0.0.1" | "::1" | "[::1]");
            if !here && !checked {
                return Err(LedgerError::Plain { host: host.to_owned() });
            }
            Ok(&Postgres)
        }
        // Only the scheme is repeated: a URL may carry a password.
        _ => Err(LedgerError::Url(scheme.chars().take(32).collect())),
    }
}
