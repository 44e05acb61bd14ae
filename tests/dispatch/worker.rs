//! A real worker in this process.

use kvasir::shutdown::ShutdownTrigger;
use kvasir::types::PublicKey;
use kvasir::worker::{WorkerError, WorkerStatus};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::world::soon;

pub struct Worker {
    pub address: PublicKey,
    pub status: watch::Receiver<WorkerStatus>,
    pub home: std::path::PathBuf,
    /// Bytes that its user allows.
    pub room: watch::Sender<Option<u64>>,
    pub stop: ShutdownTrigger,
    pub running: JoinHandle<Result<(), WorkerError>>,
}

impl Worker {
    /// Pulls the plug.
    pub fn kill(&self) {
        self.running.abort();
    }

    /// Asks it to stop and waits until it has.
    pub async fn stop(self) -> WorkerStatus {
        self.stop.fire();
        soon(self.running).await.expect("no panic").expect("a worker that could start");
        self.status.borrow().clone()
    }
}
