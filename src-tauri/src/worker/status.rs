//! What a worker shows of itself, to the app, the demo and tests.

use std::time::Duration;

use serde::Serialize;
use tokio::sync::watch;

/// What the worker is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "phase")]
pub enum Phase {
    /// Measuring its own pace.
    #[default]
    Starting,
    /// Dialling a gateway or proving its wallet.
    Connecting {
        /// The gateway's URL.
        gateway: String,
    },
    /// In a session, without a lease yet.
    Offered,
    /// Fetching and verifying experts.
    Fetching {
        /// Verified bytes.
        done: u64,
        /// Bytes of the lease.
        total: u64,
    },
    /// Holding its slice and answering.
    Serving,
    /// The hardware went away and is looked for.
    Recovering {
        /// What the driver said.
        reason: String,
    },
    /// Between two links.
    Waiting {
        /// Why the last one ended.
        reason: String,
        /// Until the next attempt.
        retry_ms: u64,
    },
    /// Told to stop.
    Stopped,
}

/// A worker at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WorkerStatus {
    /// What it is doing.
    pub phase: Phase,
    /// What computes, and why that: `cpu (avx512, 2 threads) because no GPU was found: …`.
    pub device: String,
    /// What it holds, e.g. `0:0-15,1:0-15`.
    pub slice: String,
    /// Assignments answered since the start.
    pub assignments: u64,
    /// Their work bytes, before anybody judged them.
    pub work_bytes: u64,
    /// Work bytes that the hub has signed for in this session.
    pub receipted_work_bytes: u64,
    /// Whether the hub serves only newer programs than this one.
    pub update_required: bool,
    /// From our answer to the hub's welcome, of the newest session.
    pub round_trip_ms: Option<u64>,
    /// Bytes of a download that waits for its owner's yes.
    pub asks_bytes: Option<u64>,
    /// Why experts are not kept on disk at the moment; serving goes on from memory.
    pub disk_trouble: Option<String>,
}

/// Where the worker writes its status; nobody has to read it.
pub(super) struct Board(watch::Sender<WorkerStatus>);

impl Board {
    pub fn new(status: watch::Sender<WorkerStatus>) -> Self {
        Self(status)
    }

    pub fn device(&self, device: String) {
        self.0.send_modify(|s| s.device = device);
    }

    pub fn phase(&self, phase: Phase) {
        self.0.send_modify(|s| s.phase = phase);
    }

    pub fn update_required(&self, is_required: bool) {
        self.0.send_if_modified(|s| std::mem::replace(&mut s.update_required, is_required) != is_required);
    }

    pub fn serving(&self, slice: String) {
        self.0.send_modify(|s| (s.phase, s.slice) = (Phase::Serving, slice));
    }

    /// Some of the lease serves while the rest comes.
    pub fn partly(&self, slice: String) {
        self.0.send_modify(|s| s.slice = slice);
    }

    pub fn round_trip(&self, round_trip: Duration) {
        self.0.send_modify(|s| s.round_trip_ms = u64::try_from(round_trip.as_millis()).ok());
    }

    /// A download waits for a yes, or does not any more.
    pub fn asks(&self, bytes: Option<u64>) {
        self.0.send_if_modified(|s| std::mem::replace(&mut s.asks_bytes, bytes) != bytes);
    }

    pub fn disk_trouble(&self, trouble: Option<String>) {
        self.0.send_modify(|s| s.disk_trouble = trouble);
    }

    /// The link is gone and with it the lease.
    pub fn unleased(&self) {
        self.0.send_modify(|s| {
            s.slice.clear();
            s.asks_bytes = None;
        });
    }

    pub fn answered(&self, assignments: u64, hidden: usize) {
        self.0.send_modify(|s| {
            s.assignments += assignments;
            s.work_bytes += assignments * 4 * hidden as u64;
        });
    }

    pub fn receipted(&self, work_bytes: u64) {
        self.0.send_modify(|s| s.receipted_work_bytes = work_bytes);
    }
}
