//! One request to stop, seen by every task of a process.
//!
//! Servers take a [`Shutdown`] beside their bound listener: when it fires they stop accepting, drain and return.

use tokio::sync::watch;

/// Fires [`Shutdown`]; dropping it fires too, so that a lost owner cannot leave tasks behind.
#[derive(Debug)]
pub struct ShutdownTrigger(watch::Sender<bool>);

/// Becomes ready once the process should stop. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Shutdown(watch::Receiver<bool>);

/// A connected pair.
#[must_use]
pub fn channel() -> (ShutdownTrigger, Shutdown) {
    let (tx, rx) = watch::channel(false);
    (ShutdownTrigger(tx), Shutdown(rx))
}

impl ShutdownTrigger {
    /// Asks every holder of the other end to stop.
    pub fn fire(&self) {
        self.0.send_replace(true);
    }
}

impl Shutdown {
    /// Waits until a stop is asked for.
    pub async fn wait(&self) {
        let mut rx = self.0.clone();
        // An error means that the trigger is gone, which counts as a stop.
        let _ = rx.wait_for(|stop| *stop).await;
    }

    /// Whether a stop was asked for.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        *self.0.borrow() || self.0.has_changed().is_err()
    }
}

/// Completes on SIGTERM, SIGINT or (elsewhere) Ctrl-C.
///
/// # Errors
/// When the signal handler cannot be installed.
pub async fn termination() -> std::io::Result<()> {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let mut term = signal(SignalKind::terminate())?;
        let mut int = signal(SignalKind::interrupt())?;
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        Ok(())
    }
    #[cfg(not(unix))]
    tokio::signal::ctrl_c().await
}
