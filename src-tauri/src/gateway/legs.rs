//! The hubs that this gateway can reach, and which of them a worker is led to.
//!
//! A leg is a hub that is dialled, or one that dials in and keeps connections here. **Rules:** a worker gets the hub
//! that it had before, unless that one is in trouble or has much more to do than the others; else the one with the
//! fewest workers. Trouble is remembered for a while that doubles each time, and a leg in trouble is asked last, but
//! it is asked: when all are in trouble, trying is all that is left.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::sync::watch;
use tokio::time::Instant;

use super::config::GatewayConfig;
use super::hub_leg::HubError;
use super::lot::{Lot, Watch};
use super::metrics::HubLeg;
use super::permits::Peer;
use crate::net::Io;
use crate::types::PublicKey;
use crate::wire::rendezvous::Word;

/// How long a leg is asked last after its first failure.
const SHUNNED_FIRST: Duration = Duration::from_secs(1);
/// The same after many.
const SHUNNED_MAX: Duration = Duration::from_secs(30);
/// Workers that a hub may have beyond the least busy one, and a quarter of that one's, before its own go elsewhere.
const HOME_SLACK: u64 = 16;
/// How long the hub of a worker that left is remembered.
const HOME_KEPT: Duration = Duration::from_secs(10 * 60);
/// Addresses of which workers left; beyond it all are forgotten, which costs moves and no work.
const HOMES_MAX: usize = 65_536;
/// Workers of one address that left and may return.
const HOMES_PER_ADDRESS: usize = 64;

/// A hub as seen from here.
#[derive(Debug)]
pub struct Leg {
    /// Where it is dialled, or whose key dials in.
    pub name: String,
    way: Way,
    open: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug)]
enum Way {
    Dialled,
    Parked(Lot),
}

#[derive(Debug, Default)]
struct State {
    seen: HubLeg,
    failures: u32,
    shunned_until: Option<Instant>,
    /// Whether its last poll failed.
    is_silent: bool,
}

/// What decides between legs.
#[derive(Debug, Clone, Copy)]
struct Standing {
    is_well: bool,
    open: u64,
}

impl Leg {
    fn new(name: String, way: Way) -> Arc<Self> {
        Arc::new(Self { name, way, open: AtomicU64::new(0), state: Mutex::default() })
    }

    /// A connection for one use; the caller bounds the time.
    ///
    /// # Errors
    /// No connection, or not to one of ours.
    pub async fn connect(&self, purpose: Word, config: &GatewayConfig) -> Result<Io, HubError> {
        match &self.way {
            Way::Dialled => Ok(config.hub_peer.connect(&self.name).await?),
            Way::Parked(lot) => {
                let mut io = lot.take().await;
                io.write_all(&purpose.bytes()).await?;
                Ok(io)
            }
        }
    }

    /// Connections worth trying for one worker: a parked one may have died unnoticed, a dialled one is fresh.
    #[must_use]
    pub fn tries(&self) -> usize {
        match &self.way {
            Way::Dialled => 1,
            Way::Parked(lot) => lot.count().clamp(1, 3),
        }
    }

    /// Whether it dials in and is not there.
    #[must_use]
    pub fn is_away(&self) -> bool {
        matches!(&self.way, Way::Parked(lot) if lot.count() == 0)
    }

    /// Keeps a connection that its hub has dialled.
    ///
    /// # Errors
    /// The connection, when enough are kept, or when this hub is dialled and does not dial in.
    pub fn park(&self, io: Io, config: &GatewayConfig) -> Result<(), Io> {
        let Way::Parked(lot) = &self.way else { return Err(io) };
        let watch = Watch { ping: config.deadlines.parked_ping, answer: config.deadlines.parked_answer };
        if lot.count() == 0 {
            // It comes anew: what it was like before is over.
            let mut state = self.state();
            (state.failures, state.shunned_until, state.is_silent) = (0, None, false);
        }
        lot.park(io, watch, config.limits.parked_per_hub)
    }

    /// Counts a worker here until the guard is dropped.
    #[must_use]
    pub fn load(self: &Arc<Self>) -> Load {
        self.open.fetch_add(1, Ordering::Relaxed);
        Load(Arc::clone(self))
    }

    /// Workers that are spliced to it, or about to be.
    #[must_use]
    pub fn open(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }

    /// It took a worker.
    pub fn did_well(&self) {
        let mut state = self.state();
        (state.failures, state.shunned_until) = (0, None);
    }

    /// It took no worker.
    pub fn failed(&self) {
        let mut state = self.state();
        let pause = SHUNNED_FIRST.saturating_mul(1 << state.failures.min(10)).min(SHUNNED_MAX);
        state.failures = state.failures.saturating_add(1);
        state.shunned_until = Some(Instant::now() + pause);
    }

    /// Changes what is known of it; a poll says whether it answers.
    pub fn tell(&self, change: impl FnOnce(&mut HubLeg)) {
        let mut state = self.state();
        change(&mut state.seen);
    }

    /// Who answers there, once it was heard of.
    #[must_use]
    pub fn hub(&self) -> Option<PublicKey> {
        self.state().seen.hub
    }

    /// Whether its last poll was answered.
    pub fn polled(&self, answers: bool) {
        self.state().is_silent = !answers;
    }

    /// What `/status` shows of it.
    #[must_use]
    pub fn view(&self) -> HubLeg {
        let parked = match &self.way {
            Way::Dialled => None,
            Way::Parked(lot) => Some(lot.count() as u64),
        };
        let takes_workers = self.standing().is_well;
        let seen = self.state().seen.clone();
        HubLeg { address: Some(self.name.clone()), parked, splices_open: self.open(), takes_workers, ..seen }
    }

    fn standing(&self) -> Standing {
        let state = self.state();
        let is_shunned = state.shunned_until.is_some_and(|until| Instant::now() < until);
        let is_ready = !state.seen.draining && state.seen.backbone_reachable != Some(false);
        Standing { is_well: !is_shunned && !state.is_silent && is_ready && !self.is_away(), open: self.open() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A worker's weight on a leg.
#[derive(Debug)]
pub struct Load(Arc<Leg>);

impl Load {
    /// Where it weighs.
    #[must_use]
    pub fn leg(&self) -> &Arc<Leg> {
        &self.0
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Legs of workers that left, by index, the newest last. A worker cannot be told from another of its address before a
/// hub has heard it, so whoever comes from there first takes the place of the one who left last.
type Left = VecDeque<(usize, Instant)>;

/// All legs of a gateway: those that it was told of, and those that came.
#[derive(Debug, Default)]
pub struct Legs {
    legs: watch::Sender<Vec<Arc<Leg>>>,
    homes: Mutex<HashMap<Peer, Left>>,
    turn: AtomicUsize,
}

impl Legs {
    /// Hubs that are dialled.
    #[must_use]
    pub fn new(dialled: impl IntoIterator<Item = SocketAddr>) -> Self {
        let legs = dialled.into_iter().map(|address| Leg::new(address.to_string(), Way::Dialled));
        Self { legs: watch::Sender::new(legs.collect()), homes: Mutex::default(), turn: AtomicUsize::new(0) }
    }

    /// All of them; the list only grows.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Leg>> {
        self.legs.borrow().clone()
    }

    /// Completes when there are more than `known`.
    pub async fn more_than(&self, known: usize) {
        // The sender is ours, so that an error cannot be.
        let _ = self.legs.subscribe().wait_for(|legs| legs.len() > known).await;
    }

    /// The leg of the hub that dials in with a pinned key; there are no more of these than pinned keys.
    pub fn of_hub(&self, key: PublicKey) -> Arc<Leg> {
        let fresh = Leg::new(format!("hub {key}"), Way::Parked(Lot::default()));
        let mut known = None;
        self.legs.send_if_modified(|legs| {
            known = legs.iter().find(|leg| leg.name == fresh.name).cloned();
            if known.is_none() {
                legs.push(Arc::clone(&fresh));
            }
            known.is_none()
        });
        known.unwrap_or(fresh)
    }

    /// The legs in the order in which a worker from `ip` tries them.
    #[must_use]
    pub fn order(&self, ip: IpAddr) -> Vec<Arc<Leg>> {
        let legs = self.all();
        let standings: Vec<Standing> = legs.iter().map(|leg| leg.standing()).collect();
        let order = order(&standings, self.home(Peer::of(ip)), self.turn.fetch_add(1, Ordering::Relaxed));
        order.into_iter().filter_map(|index| legs.get(index).cloned()).collect()
    }

    /// Where somebody of an address was before, once for each that left.
    fn home(&self, peer: Peer) -> Option<usize> {
        let mut homes = self.homes();
        let left = homes.get_mut(&peer)?;
        let home = left.pop_back().filter(|(_, since)| since.elapsed() < HOME_KEPT);
        if home.is_none() || left.is_empty() {
            homes.remove(&peer);
        }
        home.map(|(index, _)| index)
    }

    /// Remembers where a worker was that has left.
    pub fn left(&self, ip: IpAddr, leg: &Arc<Leg>) {
        let Some(index) = self.legs.borrow().iter().position(|known| Arc::ptr_eq(known, leg)) else { return };
        let mut homes = self.homes();
        if homes.len() >= HOMES_MAX {
            homes.clear();
        }
        let left = homes.entry(Peer::of(ip)).or_default();
        if left.len() >= HOMES_PER_ADDRESS {
            left.pop_front();
        }
        left.push_back((index, Instant::now()));
    }

    fn homes(&self) -> MutexGuard<'_, HashMap<Peer, Left>> {
        self.homes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Indices of legs, the first choice first; `turn` decides between equals.
fn order(standings: &[Standing], home: Option<usize>, turn: usize) -> Vec<usize> {
    let count = standings.len();
    let least = standings.iter().filter(|leg| leg.is_well).map(|leg| leg.open).min().unwrap_or(0);
    let is_home = |index: usize, leg: &Standing| Some(index) == home && leg.open <= least + least / 4 + HOME_SLACK;
    let mut order: Vec<(bool, bool, u64, usize, usize)> = standings
        .iter()
        .enumerate()
        .map(|(index, leg)| (!leg.is_well, !is_home(index, leg), leg.open, (index + turn) % count, index))
        .collect();
    order.sort_unstable();
    order.into_iter().map(|(.., index)| index).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standings(legs: &[(bool, u64)]) -> Vec<Standing> {
        legs.iter().map(|(is_well, open)| Standing { is_well: *is_well, open: *open }).collect()
    }

    #[test]
    fn the_well_come_first_then_the_home_then_the_least_busy() {
        let three = standings(&[(true, 9), (false, 0), (true, 5)]);
        assert_eq!(order(&three, None, 0), [2, 0, 1]);
        assert_eq!(order(&three, Some(0), 0), [0, 2, 1], "a worker that returns stays");
        assert_eq!(order(&three, Some(1), 0), [2, 0, 1], "but not with a hub in trouble");
        let busy = standings(&[(true, 100), (true, 5)]);
        assert_eq!(order(&busy, Some(0), 0), [1, 0], "nor with one that has much more to do");
        let equals = standings(&[(true, 1), (true, 1)]);
        assert_ne!(order(&equals, None, 0), order(&equals, None, 1), "equals take turns");
        assert_eq!(order(&standings(&[(false, 2), (false, 1)]), None, 0), [1, 0], "with nobody well, all are tried");
        assert!(order(&[], None, 3).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn trouble_is_remembered_longer_each_time_and_forgotten_with_the_next_success() {
        let legs = Legs::new(["127.0.0.1:1".parse().unwrap()]);
        let leg = &legs.all()[0];
        for seconds in [1, 2, 4, 8, 16, 30, 30] {
            leg.failed();
            tokio::time::advance(Duration::from_millis(seconds * 1000 - 1)).await;
            assert!(!leg.standing().is_well, "{seconds} s");
            tokio::time::advance(Duration::from_millis(1)).await;
            assert!(leg.standing().is_well, "{seconds} s");
        }
        leg.failed();
        leg.did_well();
        assert!(leg.standing().is_well);
        leg.polled(false);
        assert!(!leg.standing().is_well);
        leg.polled(true);
        leg.tell(|seen| seen.draining = true);
        assert!(!leg.standing().is_well);
    }

    #[tokio::test]
    async fn a_hub_that_dials_in_has_one_leg_and_its_workers_come_back_to_it() {
        let legs = Legs::new(["127.0.0.1:1".parse().unwrap()]);
        let (ip, key) = ("192.0.2.1".parse().unwrap(), PublicKey([3; 32]));
        let leg = legs.of_hub(key);
        assert!(Arc::ptr_eq(&leg, &legs.of_hub(key)));
        assert!(leg.is_away() && leg.view().parked == Some(0));
        legs.more_than(1).await;
        legs.left(ip, &leg);
        assert!(!Arc::ptr_eq(&legs.order(ip)[0], &leg), "not while it is away");
        let config = GatewayConfig::new(tls(), Vec::new());
        let (near, _far) = tokio::io::duplex(8);
        leg.park(Box::new(near), &config).map_err(drop).unwrap();
        for _ in 0..2 {
            legs.left(ip, &leg);
        }
        for _ in 0..2 {
            assert!(Arc::ptr_eq(&legs.order(ip)[0], &leg), "each that left has its place");
        }
        let firsts: Vec<_> = (0..2).map(|_| legs.order(ip)[0].name.clone()).collect();
        assert_ne!(firsts[0], firsts[1], "and who is new goes wherever there is room");
        let load = leg.load();
        assert_eq!((leg.open(), leg.view().takes_workers), (1, true));
        drop(load);
        assert_eq!(leg.open(), 0);
    }

    fn tls() -> Arc<rustls::ServerConfig> {
        let made = crate::net::tls::TrialCertificates::generate(&["localhost"]).unwrap();
        crate::net::tls::server_config_from_pem(&made.cert_pem, &made.key_pem).unwrap()
    }
}
