//! The fleet as people and tests see it.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use serde::Serialize;

use super::member::Member;
use super::routes::Routes;
use crate::dispatch::estimate::Measured;
use crate::types::{ExpertId, PublicKey, SessionId, WorkerId};

/// A worker as people and tests see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WorkerView {
    /// Who is paid.
    pub wallet: PublicKey,
    /// The installation.
    pub worker_id: WorkerId,
    /// The session.
    pub session_id: SessionId,
    /// Its device in its own words.
    pub device: String,
    /// What it serves, e.g. `0:0-15,1:0-15`.
    pub slice: String,
    /// Whether it serves what placement wants it to.
    pub ready: bool,
    /// Accepted assignments.
    pub assignments: u64,
    /// Their work bytes.
    pub work_bytes: u64,
    /// Time of an empty request, in microseconds, as far as is known.
    pub round_trip_us: u64,
    /// Its pace, as far as is known.
    pub assignments_per_s: u64,
}

/// A layer that workers may hold, as it is asked for now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LayerView {
    /// The layer.
    pub layer: u16,
    /// Its experts.
    pub experts: usize,
    /// Those that a worker serves.
    pub held: usize,
    /// Workers that are asked first.
    pub workers: usize,
    /// Round trip of the farthest of them, in microseconds: what the layer costs a token.
    pub round_trip_us: u64,
}

/// Too few workers were ready in time.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("expected {expected} workers with {experts} experts ready within {waited_ms} ms, got {ready} with {held}")]
pub struct NotReady {
    /// Workers wanted.
    pub expected: usize,
    /// Workers ready.
    pub ready: usize,
    /// Experts of the remote layers.
    pub experts: usize,
    /// Experts that ready workers hold.
    pub held: usize,
    /// How long was waited.
    pub waited_ms: u128,
}

impl LayerView {
    /// `layer` of so many `experts` by `routes`.
    pub(super) fn of(layer: u16, experts: usize, routes: &Routes) -> Self {
        let ids = (0..experts).filter_map(|expert| Some(ExpertId { layer, expert: u16::try_from(expert).ok()? }));
        let first: Vec<usize> = ids.filter_map(|id| routes.holders_of(id).first().copied()).collect();
        let held = first.len();
        let asked: BTreeSet<usize> = first.into_iter().collect();
        let sessions = asked.iter().filter_map(|index| routes.holders.get(*index)).map(|holder| &holder.session);
        let round_trip = sessions.map(|session| session.measured().round_trip).max().unwrap_or_default();
        Self { layer, experts, held, workers: asked.len(), round_trip_us: micros(round_trip) }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl WorkerView {
    /// A member, when an accepted assignment is worth `work_bytes`.
    pub(super) fn of(member: &Member, work_bytes: u64) -> Self {
        let assignments = member.session.assignments.load(Relaxed);
        let Measured { round_trip, assignments_per_s, .. } = member.session.measured();
        Self {
            wallet: member.session.opened.wallet,
            worker_id: member.session.opened.worker_id,
            session_id: member.session.opened.session_id,
            device: member.offer.as_ref().map(|o| o.device.clone()).unwrap_or_default(),
            slice: member.active.as_ref().map(|(_, slice)| slice.to_string()).unwrap_or_default(),
            ready: member.is_settled(),
            assignments,
            work_bytes: assignments * work_bytes,
            round_trip_us: micros(round_trip),
            assignments_per_s: assignments_per_s as u64,
        }
    }
}
