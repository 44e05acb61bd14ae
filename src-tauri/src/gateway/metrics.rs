//! Counters of a running gateway and what `/status` tells. Never money: that is the ledger's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde::Serialize;

use super::legs::Legs;
use crate::types::PublicKey;

/// A monotone counter, or a gauge when its owner also takes away.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds.
    pub fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// Takes away, for gauges.
    pub fn sub(&self, amount: u64) {
        self.0.fetch_sub(amount, Ordering::Relaxed);
    }

    /// Reads.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The leg from this gateway to one hub, as the last poll saw it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct HubLeg {
    /// Where it is dialled, or which pinned key dials in.
    pub name: String,
    /// Connections that it keeps here for workers, if it dials in.
    pub parked: Option<usize>,
    /// Workers that are spliced to it.
    pub splices_open: u64,
    /// Whether workers are led there as long as another hub is not better.
    pub takes_workers: bool,
    /// Whether it says that it sends its workers away.
    pub draining: bool,
    /// The hub's key, once it was heard of.
    pub hub: Option<PublicKey>,
    /// Its program version.
    pub version: Option<String>,
    /// Whether the last poll succeeded.
    pub reachable: bool,
    /// Whether the hub reached its backbone, as far as it said.
    pub backbone_reachable: Option<bool>,
    /// When a poll last succeeded; 0 = never.
    pub last_poll_unix_ms: u64,
    /// Meter rows refused since the start: each is an alarm.
    pub meters_refused: u64,
}

/// What `/status` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Status {
    /// This program's version.
    pub version: &'static str,
    /// Whether a shutdown was asked for.
    pub draining: bool,
    /// The legs to the hubs.
    pub hubs: Vec<HubLeg>,
    /// Workers being spliced.
    pub splices_open: u64,
    /// Splices since the start.
    pub splices: u64,
    /// Bytes from workers to hubs.
    pub bytes_up: u64,
    /// Bytes from hubs to workers.
    pub bytes_down: u64,
    /// Connections closed at once because a limit was reached.
    pub refused_by_limit: u64,
    /// Connections that ended before a request: TLS, a bad head, a late head.
    pub refused_heads: u64,
    /// Upgrades that no hub took.
    pub refused_by_hub: u64,
}

/// Shared by the tasks of one gateway.
#[derive(Debug)]
pub struct Metrics {
    /// Set once at shutdown.
    pub draining: AtomicBool,
    /// The hubs.
    legs: Arc<Legs>,
    /// See [`Status`].
    pub splices_open: Counter,
    /// See [`Status`].
    pub splices: Counter,
    /// See [`Status`].
    pub bytes_up: Counter,
    /// See [`Status`].
    pub bytes_down: Counter,
    /// See [`Status`].
    pub refused_by_limit: Counter,
    /// See [`Status`].
    pub refused_heads: Counter,
    /// See [`Status`].
    pub refused_by_hub: Counter,
}

impl Metrics {
    /// For a gateway of these hubs.
    #[must_use]
    pub fn new(legs: Arc<Legs>) -> Self {
        Self {
            draining: AtomicBool::new(false),
            legs,
            splices_open: Counter::default(),
            splices: Counter::default(),
            bytes_up: Counter::default(),
            bytes_down: Counter::default(),
            refused_by_limit: Counter::default(),
            refused_heads: Counter::default(),
            refused_by_hub: Counter::default(),
        }
    }

    /// A picture of now.
    #[must_use]
    pub fn status(&self) -> Status {
        Status {
            version: env!("CARGO_PKG_VERSION"),
            draining: self.draining.load(Ordering::Relaxed),
            hubs: self.legs.all().iter().map(|leg| leg.view()).collect(),
            splices_open: self.splices_open.get(),
            splices: self.splices.get(),
            bytes_up: self.bytes_up.get(),
            bytes_down: self.bytes_down.get(),
            refused_by_limit: self.refused_by_limit.get(),
            refused_heads: self.refused_heads.get(),
            refused_by_hub: self.refused_by_hub.get(),
        }
    }
}
