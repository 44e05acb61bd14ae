//! Who holds what: sessions come and go, placement decides, leases follow, and routes say where a request goes.
//!
//! A worker's new slice takes over at the moment when it says that it holds all of it; until then the old one serves,
//! and beside it what is verified of the new one.
//! Whoever does not get ready while its lease lives loses it with its session. Changes that only add routes are
//! gathered, so that no worker can make the routes be built more often than a few times per [`GATHERING`].
//! **Invariant:** a route leads only to experts that its session has confirmed.

mod leasing;
mod member;
mod routes;
mod trust;
mod view;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::heat::Heat;
use super::placement::{LayerSize, Numbering, Rules};
use super::session::{Misses, Session};
use crate::shutdown::Shutdown;
use crate::types::{Digest, PublicKey, SessionId, WorkerId};
use crate::wire::control::{ExpertGet, Offer, Release, SliceReady};
use crate::wire::{FrameError, Slice};
use leasing::LEVEL_EVERY;
pub(super) use member::FetchRefused;
use member::Member;
pub(super) use routes::{Holder, Routes};
pub use view::{LayerView, NotReady, WorkerView};

/// Pause before placing, so that workers that arrive together are placed together.
const GATHERING: Duration = Duration::from_millis(50);
/// How often leases are looked through for those that ran out.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How long an installation's misses are remembered when it is away: the longest that it could be benched for.
const OWED_FOR: Duration = Duration::from_secs(5 * 60);
/// Installations whose misses are remembered.
const OWING_MAX: usize = 4096;
/// Layers that an offer may wish for, also of a model with more.
const WANTS_MAX: usize = 4096;

/// Sorted by installation, so that a worker that comes back finds its old place.
type Key = (PublicKey, WorkerId, SessionId);

/// What there is to hold.
pub(super) struct Goods {
    /// Layers whose experts workers may hold.
    pub layers: Vec<LayerSize>,
    /// Layers with experts of the whole model.
    pub model_layers: usize,
    /// The manifest's digest.
    pub manifest: Digest,
    /// Its size.
    pub manifest_bytes: u64,
}

impl Goods {
    /// Stored bytes of a slice.
    fn bytes(&self, slice: &Slice) -> u64 {
        let size = |layer| self.layers.iter().find(|size| size.layer == layer).map_or(0, |size| size.expert_bytes);
        slice.counts().map(|(layer, count)| count as u64 * size(layer)).sum()
    }
}

#[derive(Default)]
struct Members {
    by_key: BTreeMap<Key, Member>,
    /// Placement has to run.
    due: bool,
    /// What everybody is to hold has to be said anew.
    aim_due: bool,
    /// The routes have to be built.
    reroute_due: bool,
    /// Whether everything that has an owner is held by somebody.
    is_covered: bool,
    /// When shares were last made even.
    levelled: Option<Instant>,
    /// What installations that left still owe, and since when they are away.
    owing: HashMap<(PublicKey, WorkerId), (Misses, Instant)>,
}

impl Members {
    /// Keeps a session's misses for its installation's next one, for a while.
    fn remember(&mut self, session: &Session, now: Instant) {
        let Some(misses) = session.misses() else { return };
        self.owing.retain(|_, (_, since)| now - *since < OWED_FOR);
        if self.owing.len() < OWING_MAX {
            self.owing.insert((session.opened.wallet, session.opened.worker_id), (misses, now));
        }
    }
}

/// See the module.
pub(super) struct Fleet {
    /// How often experts are asked for.
    pub heat: Heat,
    goods: Goods,
    rules: Rules,
    numbering: Numbering,
    members: Mutex<Members>,
    routes: RwLock<Arc<Routes>>,
    replace: Notify,
    changed: watch::Sender<()>,
}

fn key(session: &Session) -> Key {
    (session.opened.wallet, session.opened.worker_id, session.opened.session_id)
}

impl Fleet {
    pub fn new(goods: Goods, rules: Rules) -> Self {
        let numbering = Numbering::of(&goods.layers);
        let last = goods.layers.iter().map(|size| size.layer).max();
        let heat = Heat::new((0..=last.unwrap_or(0)).map(|layer| numbering.layer(layer).len()));
        Self {
            heat,
            goods,
            rules,
            numbering,
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
        self.goods.layers.iter().any(|size| size.layer == layer)
    }

    /// Whether workers may hold any layer.
    pub fn has_layers(&self) -> bool {
        !self.goods.layers.is_empty()
    }

    /// The layers that workers may hold, as they are asked for now.
    pub fn layer_views(&self) -> Vec<LayerView> {
        let routes = self.routes();
        self.goods.layers.iter().map(|size| LayerView::of(size.layer, size.experts.into(), &routes)).collect()
    }

    /// Where requests go now.
    pub fn routes(&self) -> Arc<Routes> {
        Arc::clone(&self.routes.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn join(&self, session: Arc<Session>) {
        let member = Member::new(Arc::clone(&session), &self.goods);
        let mut members = self.members();
        if let Some((misses, _)) = members.owing.remove(&(session.opened.wallet, session.opened.worker_id)) {
            session.owes(misses);
        }
        members.by_key.insert(key(&session), member);
        self.changed.send_replace(());
    }

    pub fn leave(&self, session: &Session) {
        let mut members = self.members();
        if let Some(left) = members.by_key.remove(&key(session)) {
            members.remember(session, Instant::now());
            self.request_placement(&mut members);
            if left.routed {
                self.reroute(&mut members);
            }
        }
    }

    /// What a worker has to give; the same again changes nothing. A worker whose hardware took less than it offered
    /// offers what it took: the lease that it could not take is replaced by one that fits, and others get the rest.
    ///
    /// # Errors
    /// Wishes for more layers than there are, or an offer that changes again and again.
    pub fn offer(&self, session: &Session, offer: Offer) -> Result<(), FrameError> {
        let (got, max) = (offer.wants.len(), self.goods.model_layers.min(WANTS_MAX));
        if got > max {
            return Err(FrameError::Over { what: "wanted layers", got: got as u64, max: max as u64 });
        }
        let mut members = self.members();
        let Some(member) = members.by_key.get_mut(&key(session)) else { return Ok(()) };
        if member.offer.as_ref() != Some(&offer) {
            let pace = |offer: &Offer| offer.assignments_per_s.to_bits();
            if member.offer.as_ref().map(pace) != Some(pace(&offer)) {
                session.offered(offer.assignments_per_s);
            }
            member.change_offer(offer, Instant::now())?;
            self.request_placement(&mut members);
        }
        Ok(())
    }

    /// The worker asks for a piece of an expert or of the manifest.
    ///
    /// # Errors
    /// An expert that it was not leased, or more than its leases explain.
    pub fn fetch(&self, session: &Session, get: &ExpertGet) -> Result<(), FetchRefused> {
        let refused = FetchRefused::NotLeased { layer: get.layer, expert: get.expert };
        self.members().by_key.get_mut(&key(session)).ok_or(refused)?.fetch(get)
    }

    /// The worker holds and has verified everything of a lease, or so far some of it, which then serves already.
    ///
    /// # Errors
    /// Ranges that are none.
    pub fn ready(&self, session: &Session, ready: &SliceReady) -> Result<(), FrameError> {
        let verified = Slice::from_ranges(&ready.experts)?;
        let mut members = self.members();
        let Some(member) = members.by_key.get_mut(&key(session)) else { return Ok(()) };
        if !verified.is_empty() {
            if member.verify(ready.lease, &verified) {
                self.request_reroute(&mut members);
            }
            return Ok(());
        }
        if !member.confirm(ready.lease) {
            return Ok(());
        }
        // The worker forgets an old lease once it holds two newer ones, so requests must not go on naming it.
        let routed = member.routed;
        if members.is_covered {
            self.issue(&mut members);
        } else {
            members.aim_due = true;
            self.replace.notify_one();
        }
        if routed {
            self.reroute(&mut members);
        } else {
            self.request_reroute(&mut members);
        }
        Ok(())
    }

    /// The worker gives experts back: some of its active slice, whichever lease it names, or everything.
    ///
    /// # Errors
    /// Ranges that are none.
    pub fn release(&self, session: &Session, release: &Release) -> Result<(), FrameError> {
        let given = Slice::from_ranges(&release.experts)?;
        let mut members = self.members();
        let Some(member) = members.by_key.get_mut(&key(session)) else { return Ok(()) };
        if given.is_empty() {
            if member.offer.is_none() && member.active.is_none() {
                return Ok(());
            }
            member.withdraw();
            if member.routed {
                self.reroute(&mut members);
            }
            self.request_placement(&mut members);
        } else if member.give_back(&given) {
            self.reroute(&mut members);
        }
        Ok(())
    }

    /// The worker stops or resumes taking work; its slice stays its own.
    pub fn pause(&self, session: &Session, paused: bool) {
        let mut members = self.members();
        let Some(member) = members.by_key.get_mut(&key(session)).filter(|member| member.paused != paused) else {
            return;
        };
        member.paused = paused;
        match (paused, member.routed) {
            (true, true) => self.reroute(&mut members),
            (true, false) => {}
            (false, _) => self.request_reroute(&mut members),
        }
    }

    fn request_placement(&self, members: &mut Members) {
        members.due = true;
        self.replace.notify_one();
    }

    fn request_reroute(&self, members: &mut Members) {
        members.reroute_due = true;
        self.replace.notify_one();
    }

    /// Runs placement whenever something changed, and ends leases that ran out, until the process stops.
    pub async fn keep_placing(&self, shutdown: &Shutdown) {
        loop {
            tokio::select! {
                () = self.replace.notified() => {}
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = shutdown.wait() => return,
            }
            tokio::time::sleep(GATHERING).await;
            self.catch_up(Instant::now());
        }
    }

    /// Does what is due at `now`: withdraws leases that ran out, places, builds the routes.
    fn catch_up(&self, now: Instant) {
        let mut members = self.members();
        let mut expired = false;
        for member in members.by_key.values_mut() {
            if member.leased.as_ref().is_some_and(|leased| leased.until <= now) {
                member.session.end("its lease ran out before it was ready");
                member.withdraw();
                expired = true;
            }
        }
        let level = *members.levelled.get_or_insert(now) + LEVEL_EVERY <= now;
        if level {
            members.levelled = Some(now);
        }
        if expired || members.due || level {
            self.place(&mut members, level, now);
        } else if members.aim_due {
            self.aim(&mut members);
            self.issue(&mut members);
        }
        if members.reroute_due {
            self.reroute(&mut members);
        }
    }

    /// Builds the routes anew.
    fn reroute(&self, members: &mut Members) {
        members.reroute_due = false;
        members.by_key.values_mut().for_each(|m| m.routed = m.is_asked() && m.serves().next().is_some());
        let routes = Routes::to(&self.numbering, members.by_key.values());
        *self.routes.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(routes);
        self.changed.send_replace(());
    }

    /// All sessions, in a stable order; an accepted assignment is worth `work_bytes`.
    pub fn views(&self, work_bytes: u64) -> Vec<WorkerView> {
        self.members().by_key.values().map(|member| WorkerView::of(member, work_bytes)).collect()
    }

    /// Workers that serve what placement wants; `None` while a placement, routes or a lease are on their way.
    fn settled(&self) -> Option<usize> {
        let members = self.members();
        let is_due = members.due || members.aim_due || members.reroute_due;
        let moving = is_due || members.by_key.values().any(|m| m.offer.is_some() && !m.is_settled());
        (!moving).then(|| members.by_key.values().filter(|m| m.is_settled()).count())
    }

    /// Experts of the remote layers, and how many of them have a route.
    fn coverage(&self) -> (usize, usize) {
        (self.numbering.total(), self.routes().len())
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
