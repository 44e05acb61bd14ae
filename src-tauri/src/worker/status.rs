//! What a worker shows of itself, to the app, the demo and tests.

use std::time::Duration;

use serde::Serialize;
use tokio::sync::watch;

use super::courtesy::Hold;
use crate::net::dial::{Leg, Trip};

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
    /// Its machine's owner comes first.
    StandingBy {
        /// What for.
        hold: Hold,
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
    /// Bytes of a download that waits for its owner's yes.
    pub asks_bytes: Option<u64>,
    /// Why experts are not kept on disk at the moment; serving goes on from memory.
    pub disk_trouble: Option<String>,
    /// Sessions since the start.
    pub sessions: u64,
    /// Those among them that were cut: by a proxy, a network, sleep. A cut is routine and costs nothing.
    pub cuts: u64,
    /// Why there is no session, while there is none.
    pub trouble: Option<Trouble>,
    /// Round trip to the gateway, or to the proxy before it, as its connection took it.
    pub gateway_rtt_ms: Option<u64>,
    /// Round trip to the hub behind it, its signatures included.
    pub hub_rtt_ms: Option<u64>,
    /// Who issued the gateway's certificate where no public authority vouches for it, only this machine: perhaps a proxy
    /// that reads along.
    pub inspector: Option<String>,
}

/// What keeps a worker from a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Trouble {
    /// Where it failed.
    pub leg: Leg,
    /// A stable code, such as `offline`, `gateway_down` or `proxy_password`.
    pub code: &'static str,
    /// What to do.
    pub remedy: &'static str,
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

    /// A download waits for a yes, or does not any more.
    pub fn asks(&self, bytes: Option<u64>) {
        self.0.send_if_modified(|s| std::mem::replace(&mut s.asks_bytes, bytes) != bytes);
    }

    /// A session stands.
    pub fn joined(&self, trip: &Trip, hub: Duration) {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let tcp = trip.steps.iter().find(|step| step.leg == Leg::Tcp);
        self.0.send_modify(|s| {
            s.sessions += 1;
            s.trouble = None;
            s.gateway_rtt_ms = tcp.map(|step| ms(step.took));
            s.hub_rtt_ms = Some(ms(hub));
        });
    }

    /// A session that stood was cut.
    pub fn cut(&self) {
        self.0.send_modify(|s| s.cuts += 1);
    }

    pub fn trouble(&self, trouble: Option<Trouble>) {
        self.0.send_modify(|s| s.trouble = trouble);
    }

    pub fn inspected(&self, inspector: Option<&str>) {
        self.0.send_if_modified(|s| {
            let is_new = s.inspector.as_deref() != inspector;
            if is_new {
                s.inspector = inspector.map(str::to_owned);
            }
            is_new
        });
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
