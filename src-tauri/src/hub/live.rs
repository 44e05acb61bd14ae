//! What the parts of one running session share: its table, its counters, its receipts and its three queues.
//!
//! **Invariants:** every queue is bounded; a frame is in the table before it is on its way, so that an answer can never
//! overtake its request; locks are held for one call and never across an await.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;

use super::ending::Ending;
use super::outstanding::Outstanding;
use super::receipts::Receipts;
use super::tally::Tally;
use crate::types::SessionId;
use crate::wire::Frame;

/// What waits for the worker.
pub struct WorkerQueues {
    /// Work and control, first in line.
    pub urgent: mpsc::Receiver<Frame>,
    /// Expert bytes, when nothing else waits.
    pub bulk: mpsc::Receiver<Frame>,
}

impl WorkerQueues {
    /// The work and control that nobody has sent yet.
    pub fn rest(&mut self) -> Vec<Frame> {
        std::iter::from_fn(|| self.urgent.try_recv().ok()).collect()
    }
}

/// One running session.
pub struct Live {
    /// Its id.
    pub id: SessionId,
    /// Devices that its wallet may not offer.
    pub banned_devices: Vec<String>,
    changed: Notify,
    credited: Notify,
    outstanding: Mutex<Outstanding>,
    tally: Arc<Mutex<Tally>>,
    receipts: Mutex<Receipts>,
    gets_open: AtomicUsize,
    gets_max: usize,
    stall: Duration,
    urgent: mpsc::Sender<Frame>,
    bulk: mpsc::Sender<Frame>,
    backbone: mpsc::Sender<Frame>,
}

/// The bounds of a session.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Frames in the urgent queue and in the backbone's.
    pub queue_frames: usize,
    /// Open requests for expert bytes.
    pub gets_max: usize,
    /// Longest wait for room in a queue.
    pub stall: Duration,
}

impl Live {
    /// A session that begins.
    #[must_use]
    pub fn new(
        id: SessionId,
        banned_devices: Vec<String>,
        bounds: Bounds,
        outstanding: Outstanding,
        tally: Arc<Mutex<Tally>>,
        receipts: Receipts,
    ) -> (Self, WorkerQueues, mpsc::Receiver<Frame>) {
        let (urgent, urgent_rx) = mpsc::channel(bounds.queue_frames);
        let (bulk, bulk_rx) = mpsc::channel(bounds.gets_max);
        let (backbone, backbone_rx) = mpsc::channel(bounds.queue_frames);
        let live = Self {
            id,
            banned_devices,
            changed: Notify::new(),
            credited: Notify::new(),
            outstanding: Mutex::new(outstanding),
            tally,
            receipts: Mutex::new(receipts),
            gets_open: AtomicUsize::new(0),
            gets_max: bounds.gets_max,
            stall: bounds.stall,
            urgent,
            bulk,
            backbone,
        };
        (live, WorkerQueues { urgent: urgent_rx, bulk: bulk_rx }, backbone_rx)
    }

    /// The session's name in logs.
    pub fn short(&self) -> String {
        self.id.to_string().chars().take(8).collect()
    }

    /// The counters.
    pub fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Assignments were accepted.
    pub fn credit(&self, assignments: u32) {
        self.tally().credit(assignments);
        self.credited.notify_one();
    }

    /// Waits for the next credit, or for one since the last wait.
    pub async fn until_credited(&self) {
        self.credited.notified().await;
    }

    /// The receipts.
    pub fn receipts(&self) -> MutexGuard<'_, Receipts> {
        self.receipts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the table and tells who waits for a change.
    pub fn with_outstanding<T>(&self, change: impl FnOnce(&mut Outstanding) -> T) -> T {
        let result = change(&mut self.table());
        self.changed.notify_waiters();
        result
    }

    /// Waits until nothing is outstanding.
    pub async fn until_settled(&self) {
        self.until(Outstanding::is_empty).await;
    }

    /// Waits until no answer of the worker lacks its verdict.
    pub async fn until_judged(&self) {
        self.until(Outstanding::is_judged).await;
    }

    async fn until(&self, wanted: impl Fn(&Outstanding) -> bool) {
        loop {
            let told = self.changed.notified();
            if wanted(&self.table()) {
                return;
            }
            told.await;
        }
    }

    fn table(&self) -> MutexGuard<'_, Outstanding> {
        self.outstanding.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The worker asks for expert bytes.
    ///
    /// # Errors
    /// [`Ending::BulkWindow`].
    pub fn get_opened(&self) -> Result<(), Ending> {
        match self.gets_open.fetch_add(1, Ordering::Relaxed) {
            open if open < self.gets_max => Ok(()),
            _ => Err(Ending::BulkWindow { max: self.gets_max }),
        }
    }

    /// Expert bytes have left for the worker.
    pub fn get_closed(&self) {
        let _ = self.gets_open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| open.checked_sub(1));
    }

    /// Queues work or control for the worker; waits for room, which holds up this session's backbone connection only.
    ///
    /// # Errors
    /// [`Ending::Slow`] when there is no room in time.
    pub async fn to_worker(&self, frame: Frame) -> Result<(), Ending> {
        match timeout(self.stall, self.urgent.send(frame)).await {
            // A queue without a reader belongs to a session that is ending: its frames go nowhere.
            Ok(_) => Ok(()),
            Err(_) => Err(Ending::Slow("its queue stayed full")),
        }
    }

    /// Queues expert bytes for the worker.
    ///
    /// # Errors
    /// [`Ending::BackboneKind`] when nobody asked for them.
    pub fn bulk_to_worker(&self, frame: Frame) -> Result<(), Ending> {
        match self.bulk.try_send(frame) {
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => Ok(()),
            Err(mpsc::error::TrySendError::Full(frame)) => Err(Ending::BackboneKind(frame.header.kind)),
        }
    }

    /// Whether the worker's side of the session is over.
    pub fn is_worker_gone(&self) -> bool {
        self.urgent.is_closed()
    }

    /// Queues a frame for the backbone.
    ///
    /// # Errors
    /// [`Ending::BackboneFailed`] when there is no room in time.
    pub async fn to_backbone(&self, frame: Frame) -> Result<(), Ending> {
        match timeout(self.stall, self.backbone.send(frame)).await {
            Ok(_) => Ok(()),
            Err(_) => Err(Ending::BackboneFailed("its queue stayed full".into())),
        }
    }
}
