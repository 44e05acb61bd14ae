//! Looks at the certificate's files again and again, so that a renewal reaches new connections by itself.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::metrics::Metrics;
use crate::net::certificate::{CertificateFiles, Look};
use crate::shutdown::Shutdown;

/// Looks every so often until the shutdown. Links that are open keep what they were shown.
pub async fn watch(files: Arc<CertificateFiles>, every: Duration, metrics: Arc<Metrics>, shutdown: Shutdown) {
    loop {
        tokio::select! {
            () = shutdown.wait() => return,
            () = sleep(every) => {}
        }
        let looking = Arc::clone(&files);
        match spawn_blocking(move || looking.look()).await {
            Ok(Look::Unchanged) => {}
            Ok(Look::Taken) => {
                metrics.certificates_taken.add(1);
                tracing::info!("a new certificate was read and is shown from now on");
            }
            Ok(Look::Kept(error)) => {
                metrics.certificates_kept.add(1);
                tracing::error!(%error, "the certificate's files changed and cannot be used: the one before stays in use");
            }
            Err(error) => tracing::error!(%error, "a look at the certificate's files panicked"),
        }
    }
}
