//! Who holds what: sessions come and go, placement decides, leases follow, and routes say where a request goes.
//!
//! A worker's new slice takes over at the moment when it says that it holds all of it; until then the old one serves.
//! Slices that only shrink wait until the workers that take over are ready, so that a newcomer costs no coverage.
//! **Invariant:** a route leads only to experts that its session has confirmed.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::{Notify, watch};
use tracing::{info, warn};

use super::placement::{Capacity, LayerSize, place};
use super::session::Session;
use crate::shutdown::Shutdown;
use crate::types::{Digest, ExpertId, PublicKey, SessionId, WorkerId};
use crate::wire::control::{Control, Lease, Offer, Release};
use crate::wire::{FrameError, Slice};

/// How long a lease outlives its link's last sign of life: three missed pings and a little.
const LEASE_EXPIRES_MS: u64 = 90_000;
/// Pause before placing, so that workers that arrive together are placed together.
const GATHERING: Duration = Duration::from_millis(50);

/// Sorted by installation, so that a worker that comes back finds its old place.
type Key = (PublicKey, WorkerId, SessionId);

struct Member {
    session: Arc<Session>,
    offer: Option<Offer>,
    target: Slice,
    /// Sent, not yet confirmed.
    leased: Option<(u32, Slice)>,
    /// Confirmed.
    active: Option<(u32, Slice)>,
    paused: bool,
    next_lease: u32,
}

impl Member {
    fn is_settled(&self) -> bool {
        self.offer.is_some() && self.leased.is_none() && self.active.as_ref().is_some_and(|(_, s)| *s == self.target)
    }

    /// Whether the target differs from the newest lease.
    fn is_stale(&self) -> bool {
        let newest = self.leased.as_ref().or(self.active.as_ref());
        self.offer.is_some() && newest.is_none_or(|(_, slice)| *slice != self.target)
    }

    /// Whether the target only gives experts back.
    fn only_shrinks(&self) -> bool {
        self.leased.is_none() && self.active.as_ref().is_some_and(|(_, slice)| self.target.is_within(slice))
    }

    fn lease(&mut self, manifest: Digest) {
        let lease = self.next_lease;
        self.next_lease += 1;
        self.leased = Some((lease, self.target.clone()));
        let body = Lease { lease, manifest, experts: self.target.to_ranges(), expires_ms: LEASE_EXPIRES_MS };
        info!(session = %self.session.opened.session_id, lease, slice = %self.target, "lease");
        self.session.send(body.frame());
    }
}

#[derive(Default)]
struct Members {
    by_key: BTreeMap<Key, Member>,
    /// Placement has to run.
    due: bool,
}

/// A session and the lease under which it is asked.
pub(super) struct Holder {
    pub session: Arc<Session>,
    pub lease: u32,
}

/// Where each expert's requests go.
#[derive(Default)]
pub(super) struct Routes {
    /// The sessions that have a route.
    pub holders: Vec<Holder>,
    experts: HashMap<ExpertId, usize>,
}

impl Routes {
    /// Index of the holder of an expert.
    pub fn holder(&self, id: ExpertId) -> Option<usize> {
        self.experts.get(&id).copied()
    }
}

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

/// See the module.
pub(super) struct Fleet {
    layers: Vec<LayerSize>,
    manifest: Digest,
    members: Mutex<Members>,
    routes: RwLock<Arc<Routes>>,
    replace: Notify,
    changed: watch::Sender<()>,
}

fn key(session: &Session) -> Key {
    (session.opened.wallet, session.opened.worker_id, session.opened.session_id)
}

impl Fleet {
    pub fn new(layers: Vec<LayerSize>, manifest: Digest) -> Self {
        Self {
            layers,
            manifest,
            members: Mutex::default(),
            routes: RwLock::default(),
            replace: Notify::new(),
            changed: watch::Sender::new(()),
        }
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether workers may hold experts of this layer.
    pub fn is_remote(&self, layer: u16) -> bool {
        self.layers.iter().any(|size| size.layer == layer)
    }

    /// Where requests go now.
    pub fn routes(&self) -> Arc<Routes> {
        Arc::clone(&self.routes.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn join(&self, session: Arc<Session>) {
        let member = Member {
            session: Arc::clone(&session),
            offer: None,
            target: Slice::default(),
            leased: None,
            active: None,
            paused: false,
            next_lease: 1,
        };
        self.members().by_key.insert(key(&session), member);
        self.changed.send_replace(());
    }

    pub fn leave(&self, session: &Session) {
        let mut members = self.members();
        if members.by_key.remove(&key(session)).is_some() {
            self.request_placement(&mut members);
            self.reroute(&members);
        }
    }

    /// Changes a member; `None` when it has left.
    fn change<T>(&self, session: &Session, change: impl FnOnce(&mut Member) -> T) -> Option<T> {
        self.members().by_key.get_mut(&key(session)).map(change)
    }

    pub fn offer(&self, session: &Session, offer: Offer) {
        session.offered(offer.assignments_per_s);
        self.change(session, |member| member.offer = Some(offer));
        self.request_placement(&mut self.members());
    }

    /// The worker holds and has verified everything of a lease.
    pub fn ready(&self, session: &Session, lease: u32) {
        let mut members = self.members();
        let Some(member) = members.by_key.get_mut(&key(session)) else { return };
        if member.leased.as_ref().is_some_and(|(number, _)| *number == lease) {
            member.active = member.leased.take();
            self.issue(&mut members);
            self.reroute(&members);
        }
    }

    /// The worker gives experts back: some of its active slice, or everything.
    ///
    /// # Errors
    /// Ranges that are none.
    pub fn release(&self, session: &Session, release: &Release) -> Result<(), FrameError> {
        let given = Slice::from_ranges(&release.experts)?;
        let mut members = self.members();
        let Some(member) = members.by_key.get_mut(&key(session)) else { return Ok(()) };
        if given.is_empty() {
            (member.offer, member.leased, member.active) = (None, None, None);
            self.request_placement(&mut members);
        } else if let Some((_, slice)) = member.active.as_mut().filter(|(number, _)| *number == release.lease) {
            *slice = slice.without(&given);
        }
        self.reroute(&members);
        Ok(())
    }

    /// The worker stops or resumes taking work; its slice stays its own.
    pub fn pause(&self, session: &Session, paused: bool) {
        self.change(session, |member| member.paused = paused);
        self.reroute(&self.members());
    }

    fn request_placement(&self, members: &mut Members) {
        members.due = true;
        self.replace.notify_one();
    }

    /// Runs placement whenever something changed, until the process stops.
    pub async fn keep_placing(&self, shutdown: &Shutdown) {
        loop {
            tokio::select! {
                () = self.replace.notified() => {}
                () = shutdown.wait() => return,
            }
            tokio::time::sleep(GATHERING).await;
            self.place();
        }
    }

    fn place(&self) {
        let mut members = self.members();
        members.due = false;
        let mut offering: Vec<&mut Member> = members.by_key.values_mut().filter(|m| m.offer.is_some()).collect();
        let capacities: Vec<Capacity> = offering
            .iter()
            .filter_map(|m| m.offer.as_ref())
            .map(|offer| Capacity { memory_bytes: offer.memory_bytes, wants: offer.wants.clone() })
            .collect();
        let slices = place(&self.layers, &capacities);
        let (placed, wanted) =
            (slices.iter().map(Slice::len).sum::<usize>(), self.layers.iter().map(|l| usize::from(l.experts)).sum());
        if placed < wanted && !offering.is_empty() {
            warn!(placed, wanted, workers = offering.len(), "not all experts are covered; the rest is computed here");
        }
        for (member, slice) in offering.iter_mut().zip(slices) {
            member.target = slice;
        }
        self.issue(&mut members);
        self.reroute(&members);
    }

    /// Sends the leases that are due: those that gain something at once, those that only lose once nobody gains.
    fn issue(&self, members: &mut Members) {
        let all = &mut members.by_key;
        all.values_mut().filter(|m| m.is_stale() && !m.only_shrinks()).for_each(|m| m.lease(self.manifest));
        if all.values().all(|m| m.leased.is_none()) {
            all.values_mut().filter(|m| m.is_stale()).for_each(|m| m.lease(self.manifest));
        }
    }

    /// Rebuilds the routes; an expert held twice goes to the worker that is to keep it.
    fn reroute(&self, members: &Members) {
        let mut routes = Routes::default();
        let mut keeps: HashMap<ExpertId, bool> = HashMap::new();
        for member in members.by_key.values().filter(|m| !m.paused) {
            let Some((lease, slice)) = &member.active else { continue };
            let index = routes.holders.len();
            routes.holders.push(Holder { session: Arc::clone(&member.session), lease: *lease });
            for id in slice.iter() {
                let keep = member.target.contains(id);
                if keep || !keeps.contains_key(&id) {
                    routes.experts.insert(id, index);
                    keeps.insert(id, keep);
                }
            }
        }
        *self.routes.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(routes);
        self.changed.send_replace(());
    }

    /// All sessions, in a stable order; an accepted assignment is worth `work_bytes`.
    pub fn views(&self, work_bytes: u64) -> Vec<WorkerView> {
        let view = |member: &Member| {
            let assignments = member.session.assignments.load(Relaxed);
            WorkerView {
                wallet: member.session.opened.wallet,
                worker_id: member.session.opened.worker_id,
                session_id: member.session.opened.session_id,
                device: member.offer.as_ref().map(|o| o.device.clone()).unwrap_or_default(),
                slice: member.active.as_ref().map(|(_, slice)| slice.to_string()).unwrap_or_default(),
                ready: member.is_settled(),
                assignments,
                work_bytes: assignments * work_bytes,
            }
        };
        self.members().by_key.values().map(view).collect()
    }

    /// Workers that serve what placement wants; `None` while a placement is due or a lease is on its way.
    fn settled(&self) -> Option<usize> {
        let members = self.members();
        let moving = members.due || members.by_key.values().any(|m| m.offer.is_some() && !m.is_settled());
        (!moving).then(|| members.by_key.values().filter(|m| m.is_settled()).count())
    }

    /// Experts of the remote layers, and how many of them have a route.
    fn coverage(&self) -> (usize, usize) {
        (self.layers.iter().map(|l| usize::from(l.experts)).sum(), self.routes().experts.len())
    }

    /// Waits until at least `workers` serve their slices, nothing is on the move and every expert is held.
    pub async fn wait_ready(&self, workers: usize, deadline: Duration) -> Result<(), NotReady> {
        let mut changed = self.changed.subscribe();
        let is_covered = || matches!(self.coverage(), (wanted, held) if wanted == held);
        let ready = async {
            // The look happens outside of the channel's lock: whoever announces a change holds the members' lock while
            // it takes the channel's, so looking under the channel's would take the two the other way round.
            while !(self.settled().is_some_and(|ready| ready >= workers) && is_covered()) {
                if changed.changed().await.is_err() {
                    return;
                }
            }
        };
        match tokio::time::timeout(deadline, ready).await {
            Ok(()) => Ok(()),
            Err(_) => {
                let ready = self.members().by_key.values().filter(|m| m.is_settled()).count();
                let (experts, held) = self.coverage();
                Err(NotReady { expected: workers, ready, experts, held, waited_ms: deadline.as_millis() })
            }
        }
    }
}

#[cfg(test)]
mod tests;
