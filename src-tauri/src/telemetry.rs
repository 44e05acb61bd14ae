//! Logs: on stderr, so that stdout carries data only. Never a prompt, hidden state or key.

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
