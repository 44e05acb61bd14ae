//! What a process tells of itself: logs, metrics, and how it and its machine are.
//!
//! Logs go to stderr, so that stdout carries data only. Never a prompt, hidden state or key, nor who is at which address.

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::path::Path;

use serde::Serialize;
use tracing_subscriber::EnvFilter;

use crate::model::room::disk_free;
use crate::net::descriptors::{open_files, open_now};

/// Environment variable that sets the filter, in `tracing` syntax.
pub const LOG_ENV: &str = "KVASIR_LOG";

/// Starts logging to stderr at `default_level` unless `KVASIR_LOG` says otherwise. A second call does nothing.
pub fn init(default_level: &str) {
    let filter = std::env::var(LOG_ENV)
        .ok()
        .and_then(|text| EnvFilter::try_new(text).ok())
        .unwrap_or_else(|| EnvFilter::new(default_level));
    // Colours are for eyes: a journal or a file would keep their codes.
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours);
    let _ = log.with_writer(std::io::stderr).try_init();
}

/// What a server runs out of, and its clock, for `/status` and `/metrics`; `None` where the system does not tell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Vitals {
    /// Wall time here, milliseconds since 1970, to be compared with other machines'.
    pub unix_ms: u64,
    /// Files and sockets that are open.
    pub open_files: Option<u64>,
    /// The most that may be.
    pub open_files_max: Option<u64>,
    /// Bytes free where the accounts are kept, or without accounts here, the keys.
    pub disk_free_bytes: Option<u64>,
}

impl Vitals {
    /// As they are now, on the disk of `dir`.
    #[must_use]
    pub fn now(unix_ms: u64, dir: Option<&Path>) -> Self {
        Self {
            unix_ms,
            open_files: open_now(),
            open_files_max: open_files().map(|limit| limit.soft),
            disk_free_bytes: dir.and_then(|dir| disk_free(dir).ok()),
        }
    }

    /// Writes them to a page.
    pub fn tell(&self, page: &mut MetricsPage) {
        for (name, help, value) in [
            ("kvasir_open_files", "Files and sockets that are open.", self.open_files),
            ("kvasir_open_files_max", "The most that may be.", self.open_files_max),
            ("kvasir_disk_free_bytes", "Room where accounts or keys are kept.", self.disk_free_bytes),
        ] {
            if let Some(value) = value {
                page.one(name, "gauge", help, value);
            }
        }
    }
}

/// A page of metrics, as Prometheus reads it.
#[derive(Debug, Default)]
pub struct MetricsPage(String);

impl MetricsPage {
    /// Begins a metric: `kind` is `counter` or `gauge`. Its lines must follow.
    pub fn head(&mut self, name: &str, kind: &str, help: &str) {
        self.0.push_str(&format!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    /// One value; `name` may carry labels.
    pub fn line(&mut self, name: &str, value: impl std::fmt::Display) {
        let _infallible = writeln!(self.0, "{name} {value}");
    }

    /// A metric with one value.
    pub fn one(&mut self, name: &str, kind: &str, help: &str, value: impl std::fmt::Display) {
        self.head(name, kind, help);
        self.line(name, value);
    }

    /// The whole page.
    #[must_use]
    pub fn into_text(self) -> String {
        self.0
    }
}
