//! What a process tells of itself: logs and metrics.
//!
//! Logs go to stderr, so that stdout carries data only. Never a prompt, hidden state or key, nor who is at which address.

use std::fmt::Write as _;

use tracing_subscriber::EnvFilter;

/// Environment variable that sets the filter, in `tracing` syntax.
pub const LOG_ENV: &str = "KVASIR_LOG";

/// Starts logging to stderr at `default_level` unless `KVASIR_LOG` says otherwise. A second call does nothing.
pub fn init(default_level: &str) {
    let filter = std::env::var(LOG_ENV)
        .ok()
        .and_then(|text| EnvFilter::try_new(text).ok())
        .unwrap_or_else(|| EnvFilter::new(default_level));
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
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
