//! Who is connected: finds a wallet's sessions, replaces an installation's old one and holds the per-wallet limit.
//!
//! **Invariants:** at most one live session per (wallet, worker id), the newest; a replaced session counts against no
//! limit; a [`Seat`] that is dropped leaves no row behind.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::types::{PublicKey, SessionId, WorkerId};

/// An end that one session's fate brings on another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// A newer session of the same installation.
    Replaced,
    /// The wallet was caught.
    Quarantined,
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
    notice: watch::Sender<Option<Notice>>,
}

type Rows = HashMap<PublicKey, HashMap<WorkerId, Row>>;

/// The live sessions of a hub.
pub struct Registry {
    rows: Mutex<Rows>,
    per_wallet_max: usize,
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
        Self { rows: Mutex::default(), per_wallet_max }
    }

    /// Seats a session and tells an older one of the same installation that it is replaced.
    ///
    /// # Errors
    /// [`WalletFull`] when other installations fill the wallet's limit.
    pub fn seat(self: &Arc<Self>, wallet: PublicKey, worker: WorkerId, session: SessionId) -> Result<Seat, WalletFull> {
        let (tx, rx) = watch::channel(None);
        {
            let mut rows = self.lock();
            let own = rows.entry(wallet).or_default();
            if !own.contains_key(&worker) && own.len() >= self.per_wallet_max {
                return Err(WalletFull { max: self.per_wallet_max });
            }
            if let Some(old) = own.insert(worker, Row { session, notice: tx }) {
                old.notice.send_replace(Some(Notice::Replaced));
            }
        }
        Ok(Seat { registry: Arc::clone(self), wallet, worker, session, notice: rx })
    }

    /// Tells every session of a wallet that it is quarantined.
    pub fn quarantine(&self, wallet: &PublicKey) {
        for row in self.lock().get(wallet).into_iter().flat_map(HashMap::values) {
            row.notice.send_replace(Some(Notice::Quarantined));
        }
    }

    /// Tells one session of a wallet that it is quarantined.
    pub fn quarantine_session(&self, wallet: &PublicKey, session: SessionId) {
        let rows = self.lock();
        let own = rows.get(wallet).into_iter().flat_map(HashMap::values);
        for row in own.filter(|row| row.session == session) {
            row.notice.send_replace(Some(Notice::Quarantined));
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

    #[tokio::test]
    async fn the_newest_session_of_an_installation_wins_and_leaves_no_ghost() {
        let registry = Arc::new(Registry::new(1));
        let old = registry.seat(WALLET, id(1), id(10)).unwrap();
        let new = registry.seat(WALLET, id(1), id(11)).unwrap();
        assert_eq!(old.noticed().await, Notice::Replaced);
        drop(old);
        assert_eq!(registry.count(), (1, 1), "the old seat does not take the new row with it");
        drop(new);
        assert_eq!(registry.count(), (0, 0));
    }

    #[test]
    fn a_wallet_has_a_limit_of_its_own() {
        let registry = Arc::new(Registry::new(2));
        let _one = registry.seat(WALLET, id(1), id(10)).unwrap();
        let two = registry.seat(WALLET, id(2), id(11)).unwrap();
        assert_eq!(registry.seat(WALLET, id(3), id(12)).err(), Some(WalletFull { max: 2 }));
        let _other = registry.seat(PublicKey([2; 32]), id(3), id(13)).unwrap();
        drop(two);
        let _three = registry.seat(WALLET, id(3), id(14)).unwrap();
        assert_eq!(registry.count(), (3, 2));
    }

    #[tokio::test]
    async fn quarantine_reaches_every_session_of_the_wallet() {
        let registry = Arc::new(Registry::new(2));
        let one = registry.seat(WALLET, id(1), id(10)).unwrap();
        let two = registry.seat(WALLET, id(2), id(11)).unwrap();
        registry.quarantine_session(&WALLET, id(10));
        assert_eq!((*one.notice.borrow(), *two.notice.borrow()), (Some(Notice::Quarantined), None));
        registry.quarantine(&WALLET);
        assert_eq!((one.noticed().await, two.noticed().await), (Notice::Quarantined, Notice::Quarantined));
    }
}
