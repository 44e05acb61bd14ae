//! The hardware in use between two changes of it: how fast it is, how much it may hold, and what happens when it is lost.
//!
//! **Promise:** lost hardware is looked for until it comes back or the worker stops; nothing else takes its place in
//! silence.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};
use tracing::{error, info, warn};

use super::hardware::Hardware;
use super::status::Phase;
use super::{Worker, pace};
use crate::kernel::{ExpertCompute, KernelError};
use crate::shutdown::Shutdown;

/// Memory offered by hardware that computes in the host's, unless told otherwise: little enough for any desktop.
const HOST_MEMORY: u64 = 2 << 30;
/// From the first look for lost hardware to the second, twice as long to the third, and so on: drivers come back within
/// seconds of a reset.
const PAUSE_FIRST: Duration = Duration::from_millis(250);
/// Longest time between two looks, each of which loads drivers.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// What takes longer, a resume included, needs somebody to act.
const PATIENCE: Duration = Duration::from_secs(5 * 60);
/// Between two looks from then on.
const PAUSE_RESIGNED: Duration = Duration::from_secs(30);

/// See the module.
pub(super) struct Equipment {
    pub kernel: Arc<dyn ExpertCompute>,
    /// Measured once it is there.
    assignments_per_s: Option<f64>,
}

/// Whether an error says that the hardware, and with it everything placed there, is gone. An expert that is elsewhere
/// is as good as gone: another user of the same hardware has opened it anew.
pub(super) fn is_gone(error: &KernelError) -> bool {
    matches!(error, KernelError::Lost { .. } | KernelError::NotPlaced { .. })
}

impl Equipment {
    /// Is going to use `hardware`; experts that were placed elsewhere are let go.
    pub fn new(worker: &Worker, hardware: Hardware) -> Self {
        worker.library.clear();
        worker.status.device(hardware.to_string());
        Self { kernel: hardware.kernel, assignments_per_s: worker.config.assignments_per_s }
    }

    /// Assignments per second; 0 before it was there.
    pub fn assignments_per_s(&self) -> f64 {
        self.assignments_per_s.unwrap_or(0.0)
    }

    /// Whether it is made of `hardware`.
    pub fn is_made_of(&self, hardware: &Hardware) -> bool {
        Arc::ptr_eq(&self.kernel, &hardware.kernel)
    }

    /// Bytes to offer: what the user allows and what the hardware has room for, experts that are there included.
    pub async fn room(&self, worker: &Worker) -> u64 {
        let kernel = Arc::clone(&self.kernel);
        let free = spawn_blocking(move || kernel.memory_bytes()).await.ok().flatten();
        let own = free.map(|free| free.saturating_add(worker.library.bytes()));
        match (worker.config.budget.bytes(), own) {
            (Some(allowed), Some(own)) => allowed.min(own),
            (Some(bytes), None) | (None, Some(bytes)) => bytes,
            (None, None) => HOST_MEMORY,
        }
    }

    /// Waits until the hardware is there, and measures it if nobody has; `false` when the worker is told to stop first.
    /// What was given back is opened anew.
    pub async fn is_there(&mut self, worker: &Worker, shutdown: &Shutdown) -> bool {
        let there = async {
            self.found(worker).await;
            if self.assignments_per_s.is_none() {
                self.assignments_per_s = Some(pace::measure(Arc::clone(&self.kernel)).await);
            }
        };
        // A driver may take seconds for one look; whoever stops does not wait for it.
        tokio::select! {
            () = there => true,
            () = shutdown.wait() => false,
        }
    }

    async fn found(&self, worker: &Worker) {
        let (start, mut missed, mut pause) = (Instant::now(), false, PAUSE_FIRST);
        loop {
            let kernel = Arc::clone(&self.kernel);
            let reason = match spawn_blocking(move || kernel.recover(Duration::ZERO)).await {
                Ok(Ok(())) => break,
                Ok(Err(error)) => error.to_string(),
                Err(error) => error.to_string(),
            };
            if !std::mem::replace(&mut missed, true) {
                warn!(reason, "looking for the hardware");
            }
            if start.elapsed() > PATIENCE {
                error!(reason, "the hardware does not come back: look at its driver; trying again");
                pause = PAUSE_RESIGNED;
            }
            worker.status.phase(Phase::Recovering { reason });
            sleep(pause).await;
            pause = (2 * pause).min(PAUSE_MAX);
        }
        if missed {
            info!(device = self.kernel.device(), "the hardware is back");
        }
    }

    /// Lets go of experts for which the room becomes too small while no session does so.
    pub async fn keep_within_budget(&self, worker: &Worker) -> Infallible {
        let mut budget = worker.config.budget.clone();
        loop {
            budget.changed().await;
            worker.library.keep_within(self.room(worker).await);
        }
    }
}
