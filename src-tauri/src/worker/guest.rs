//! A worker that knows it is a guest: it stands by while its machine's owner needs it, and works again afterwards.
//!
//! Standing by is no pause of the same session: the session ends, and the hardware is given back. **Promise:** nothing
//! is dialled and nothing computed before somebody has looked whether work is welcome.

use std::sync::Arc;

use tokio::sync::watch;
use tracing::info;

use super::courtesy::Welcome;
use super::hardware::Hardware;
use super::status::{Phase, WorkerStatus};
use super::{WorkerConfig, WorkerError, run};
use crate::shutdown::{self, Shutdown};
use crate::wire::handshake::AuthSigner;

/// Works whenever it is welcome, until `shutdown`; otherwise as [`run`].
///
/// # Errors
/// As [`run`].
pub async fn run_while_welcome(
    config: WorkerConfig,
    wallet: Arc<dyn AuthSigner>,
    hardware: watch::Receiver<Hardware>,
    status: watch::Sender<WorkerStatus>,
    mut welcome: watch::Receiver<Welcome>,
    shutdown: Shutdown,
) -> Result<(), WorkerError> {
    while is_welcome(&mut welcome, &status, &shutdown).await {
        let (stop, stopped) = shutdown::channel();
        let working = run(config.clone(), Arc::clone(&wallet), hardware.clone(), status.clone(), stopped);
        tokio::pin!(working);
        tokio::select! {
            ended = &mut working => return ended,
            () = shutdown.wait() => {}
            () = until(&mut welcome, |welcome| welcome.hold().is_some()) => {}
        }
        stop.fire();
        working.await?;
        let in_use = hardware.borrow().clone();
        in_use.give_back().await;
    }
    status.send_modify(|status| status.phase = Phase::Stopped);
    Ok(())
}

/// Waits until work is welcome; `false` when the worker is told to stop first.
async fn is_welcome(
    welcome: &mut watch::Receiver<Welcome>,
    status: &watch::Sender<WorkerStatus>,
    shutdown: &Shutdown,
) -> bool {
    let mut shown = None;
    loop {
        let now = welcome.borrow_and_update().clone();
        if shutdown.is_requested() {
            return false;
        }
        match now {
            Welcome::Yes => return true,
            Welcome::No(hold) if shown.as_ref() != Some(&hold) => {
                info!(%hold, "standing by");
                status.send_modify(|status| status.phase = Phase::StandingBy { hold: hold.clone() });
                shown = Some(hold);
            }
            Welcome::No(_) | Welcome::Unknown => {}
        }
        tokio::select! {
            () = shutdown.wait() => return false,
            () = until(welcome, |_| true) => {}
        }
    }
}

/// Completes with the next word for which `wish` holds; never when nobody looks any more.
async fn until(welcome: &mut watch::Receiver<Welcome>, wish: impl Fn(&Welcome) -> bool) {
    loop {
        if welcome.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        if wish(&welcome.borrow_and_update()) {
            return;
        }
    }
}
