//! Who is connected: finds a wallet's sessions, replaces an installation's old one and holds the per-wallet limit.
//!
//! **Invariants:** at most one live session per (wallet, worker id), the newest; a replaced session counts against no
//! limit; a [`Seat`] that is dropped leaves no row behind.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::tally::Totals;
use crate::types::{GatewayRun, PublicKey, SessionId, WorkerId};
use crate::wire::admin::SessionView;

/// Most wallets that are kept away at once; beyond it the one that may come back first is forgotten.
const AWAY_MAX: usize = 10_000;

/// An end that one session's fate brings on another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// A newer session of the same installation.
    Replaced,
    /// The wallet was caught.
    Quarantined,
    /// The operator wants the wallet to finish and leave.
    Drained,
    /// The operator wants the wallet to leave now.
    Kicked,
    /// The operator wants the wallet to leave and stay out.
    Banned,
}

/// A wallet has its sessions already.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("expected at most {max} sessions of a wallet")]
pub struct WalletFull {
    /// The limit.
    pub max: usize,
}

struct Row {
    session: SessionId,
    agent: String,
    gateway: Option<GatewayRun>,
    since: Instant,
    notice: watch::Sender<Option<Notice>>,
}

type Rows = HashMap<PublicKey, HashMap<WorkerId, Row>>;

/// The live sessions of a hub.
pub struct Registry {
    rows: Mutex<Rows>,
    per_wallet_max: usize,
    /// Drained wallets and when they may come back.
    away: Mutex<HashMap<PublicKey, Instant>>,
}

/// A session that asks for its place.
pub struct Arrival {
    /// Who is paid.
    pub wallet: PublicKey,
    /// The installation.
    pub worker: WorkerId,
    /// The session.
    pub session: SessionId,
    /// Program and version.
    pub agent: String,
    /// The run of the gateway that it came through.
    pub gateway: Option<GatewayRun>,
}

/// A session's place in the registry, until dropped.
pub struct Seat {
    registry: Arc<Registry>,
    wallet: PublicKey,
    worker: WorkerId,
    session: SessionId,
    notice: watch::Receiver<Option<Notice>>,
}

impl Registry {
    /// Nobody is there; a wallet may have `per_wallet_max` installations.
    #[must_use]
    pub fn new(per_wallet_max: usize) -> Self {
        Self { rows: Mutex::default(), per_wallet_max, away: Mutex::default() }
    }

    /// Seats a session and tells an older one of the same installation that it is replaced.
    ///
    /// # Errors
    /// [`WalletFull`] when other installations fill the wallet's limit.
    pub fn seat(self: &Arc<Self>, arrival: Arrival) -> Result<Seat, WalletFull> {
        let Arrival { wallet, worker, session, agent, gateway } = arrival;
        let (tx, rx) = watch::channel(None);
        {
            let mut rows = self.lock();
            let own = rows.entry(wallet).or_default();
            if !own.contains_key(&worker) && own.len() >= self.per_wallet_max {
                return Err(WalletFull { max: self.per_wallet_max });
            }
            if let Some(old) = own.insert(worker, Row { session, agent, gateway, since: Instant::now(), notice: tx }) {
                old.notice.send_replace(Some(Notice::Replaced));
            }
        }
        Ok(Seat { registry: Arc::clone(self), wallet, worker, session, notice: rx })
    }

    /// Tells every session of a wallet; how many there are.
    pub fn notify(&self, wallet: &PublicKey, notice: Notice) -> usize {
        let rows = self.lock();
        let Some(own) = rows.get(wallet) else { return 0 };
        for row in own.values() {
            row.notice.send_replace(Some(notice));
        }
        own.len()
    }

    /// Tells every session; how many there are.
    pub fn notify_all(&self, notice: Notice) -> usize {
        self.notify_those(notice, |_| true)
    }

    /// Tells every session that came through a run of a gateway; how many there are.
    pub fn notify_gateway(&self, run: GatewayRun, notice: Notice) -> usize {
        self.notify_those(notice, |row| row.gateway == Some(run))
    }

    fn notify_those(&self, notice: Notice, concerns: impl Fn(&Row) -> bool) -> usize {
        let rows = self.lock();
        let mut told = 0;
        for row in rows.values().flat_map(HashMap::values).filter(|row| concerns(row)) {
            row.notice.send_replace(Some(notice));
            told += 1;
        }
        told
    }

    /// Keeps a wallet away for `pause` from `now` on; zero lets it come.
    pub fn keep_away(&self, wallet: PublicKey, pause: Duration, now: Instant) {
        let mut away = self.away.lock().unwrap_or_else(PoisonError::into_inner);
        away.retain(|_, until| *until > now);
        if away.len() >= AWAY_MAX
            && let Some(first) = away.iter().min_by_key(|(_, until)| **until).map(|(wallet, _)| *wallet)
        {
            away.remove(&first);
        }
        away.insert(wallet, now + pause);
    }

    /// How long after `now` a wallet is still kept away, if it is.
    #[must_use]
    pub fn away(&self, wallet: &PublicKey, now: Instant) -> Option<Duration> {
        let until = *self.away.lock().unwrap_or_else(PoisonError::into_inner).get(wallet)?;
        Some(until.saturating_duration_since(now)).filter(|left| !left.is_zero())
    }

    /// Every session with its counters, by wallet and installation.
    #[must_use]
    pub fn views(&self, totals: impl Fn(&SessionId) -> Totals) -> Vec<SessionView> {
        let mut views: Vec<SessionView> = {
            let rows = self.lock();
            let each = rows.iter().flat_map(|(wallet, own)| own.iter().map(move |(worker, row)| (wallet, worker, row)));
            let view = |(wallet, worker, row): (&PublicKey, &WorkerId, &Row)| SessionView {
                wallet: *wallet,
                worker_id: *worker,
                session_id: row.session,
                agent: row.agent.clone(),
                age_ms: u64::try_from(row.since.elapsed().as_millis()).unwrap_or(u64::MAX),
                assignments: 0,
                work_bytes: 0,
                voided_bytes: 0,
                raw_bytes: 0,
            };
            each.map(view).collect()
        };
        for view in &mut views {
            let totals = totals(&view.session_id);
            (view.assignments, view.work_bytes) = (totals.assignments, totals.work_bytes);
            (view.voided_bytes, view.raw_bytes) = (totals.voided_bytes, totals.raw_bytes);
        }
        views.sort_by_key(|view| (view.wallet, view.worker_id));
        views
    }

    /// Tells one session of a wallet.
    pub fn notify_one(&self, wallet: &PublicKey, session: SessionId, notice: Notice) {
        let rows = self.lock();
        let own = rows.get(wallet).into_iter().flat_map(HashMap::values);
        for row in own.filter(|row| row.session == session) {
            row.notice.send_replace(Some(notice));
        }
    }

    /// (sessions, wallets) that are live.
    #[must_use]
    pub fn count(&self) -> (usize, usize) {
        let rows = self.lock();
        (rows.values().map(HashMap::len).sum(), rows.len())
    }

    fn lock(&self) -> MutexGuard<'_, Rows> {
        // Every change is one insert or remove, so the rows of a panicked holder are whole.
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// Waits until the session is told to end.
    pub async fn noticed(&self) -> Notice {
        let mut rx = self.notice.clone();
        let notice = match rx.wait_for(Option::is_some).await {
            Ok(notice) => *notice,
            // The row is gone without a word: a newer session took it.
            Err(_) => None,
        };
        notice.unwrap_or(Notice::Replaced)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut rows = self.registry.lock();
        let Some(own) = rows.get_mut(&self.wallet) else { return };
        if own.get(&self.worker).is_some_and(|row| row.session == self.session) {
            own.remove(&self.worker);
        }
        if own.is_empty() {
            rows.remove(&self.wallet);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Hex;

    const WALLET: PublicKey = PublicKey([1; 32]);

    fn id(n: u8) -> Hex<16> {
        Hex([n; 16])
    }

    fn arrival(wallet: PublicKey, worker: u8, session: u8) -> Arrival {
        let gateway = Some(id(session / 10));
        Arrival { wallet, worker: id(worker), session: id(session), agent: "kvasir/test".into(), gateway }
    }

    #[tokio::test]
    async fn the_newest_session_of_an_installation_wins_and_leaves_no_ghost() {
        let registry = Arc::new(Registry::new(1));
        let old = registry.seat(arrival(WALLET, 1, 10)).unwrap();
        let new = registry.seat(arrival(WALLET, 1, 11)).unwrap();
        assert_eq!(old.noticed().await, Notice::Replaced);
        drop(old);
        assert_eq!(registry.count(), (1, 1), "the old seat does not take the new row with it");
        drop(new);
        assert_eq!(registry.count(), (0, 0));
    }

    #[test]
    fn a_wallet_has_a_limit_of_its_own() {
        let registry = Arc::new(Registry::new(2));
        let _one = registry.seat(arrival(WALLET, 1, 10)).unwrap();
        let two = registry.seat(arrival(WALLET, 2, 11)).unwrap();
        assert_eq!(registry.seat(arrival(WALLET, 3, 12)).err(), Some(WalletFull { max: 2 }));
        let _other = registry.seat(arrival(PublicKey([2; 32]), 3, 13)).unwrap();
        drop(two);
        let _three = registry.seat(arrival(WALLET, 3, 14)).unwrap();
        assert_eq!(registry.count(), (3, 2));
    }

    #[tokio::test]
    async fn a_notice_reaches_every_session_of_the_wallet_and_no_other() {
        let registry = Arc::new(Registry::new(2));
        let one = registry.seat(arrival(WALLET, 1, 10)).unwrap();
        let two = registry.seat(arrival(WALLET, 2, 11)).unwrap();
        let other = registry.seat(arrival(PublicKey([2; 32]), 1, 12)).unwrap();
        registry.notify_one(&WALLET, id(10), Notice::Quarantined);
        assert_eq!((*one.notice.borrow(), *two.notice.borrow()), (Some(Notice::Quarantined), None));
        assert_eq!(registry.notify(&WALLET, Notice::Quarantined), 2);
        assert_eq!((one.noticed().await, two.noticed().await), (Notice::Quarantined, Notice::Quarantined));
        assert_eq!(*other.notice.borrow(), None);
        assert_eq!(registry.notify(&PublicKey([3; 32]), Notice::Kicked), 0);
    }

    #[tokio::test]
    async fn a_gateway_that_leaves_takes_its_own_sessions_and_no_others() {
        let registry = Arc::new(Registry::new(2));
        let leaving = registry.seat(arrival(WALLET, 1, 10)).unwrap();
        let staying = registry.seat(arrival(WALLET, 2, 20)).unwrap();
        assert_eq!(registry.notify_gateway(id(1), Notice::Drained), 1);
        assert_eq!((leaving.noticed().await, *staying.notice.borrow()), (Notice::Drained, None));
        assert_eq!(registry.notify_gateway(id(3), Notice::Drained), 0);
        assert_eq!(registry.notify_all(Notice::Drained), 2);
    }

    #[test]
    fn a_wallet_that_is_kept_away_may_come_back_later() {
        let (registry, now, second) = (Registry::new(1), Instant::now(), Duration::from_secs(1));
        registry.keep_away(WALLET, 60 * second, now);
        assert_eq!(registry.away(&WALLET, now + 59 * second), Some(second));
        assert_eq!(registry.away(&WALLET, now + 60 * second), None);
        assert_eq!(registry.away(&PublicKey([2; 32]), now), None);
        registry.keep_away(WALLET, Duration::ZERO, now);
        assert_eq!(registry.away(&WALLET, now), None);
    }

    #[tokio::test]
    async fn views_name_every_session_in_order() {
        let registry = Arc::new(Registry::new(2));
        let _two = registry.seat(arrival(WALLET, 2, 11)).unwrap();
        let _one = registry.seat(arrival(WALLET, 1, 10)).unwrap();
        let views = registry.views(|session| Totals { assignments: u64::from(session.0[0]), ..Totals::default() });
        let seen: Vec<_> = views.iter().map(|view| (view.worker_id, view.assignments)).collect();
        assert_eq!(seen, [(id(1), 10), (id(2), 11)]);
    }
}
