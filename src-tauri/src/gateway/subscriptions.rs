//! Who waits for news of a wallet, and how they hear it: one copy of each statement, shared by all who listen.
//!
//! A poll that credited a wallet refreshes it at once; what another gateway credited is found by a look at all of them
//! now and then. **Promises:** so many in all, of an address and to a wallet; a listener that reads slowly misses what
//! was between, never the newest; nobody hears an older statement after a newer one.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use super::config::Subscribers;
use super::metrics::Metrics;
use super::permits::Peer;
use crate::ledger::{Ledger, LedgerError, WalletStatement};
use crate::shutdown::Shutdown;
use crate::types::PublicKey;

/// The subscriptions of one gateway.
#[derive(Debug)]
pub struct Subscriptions {
    ledger: Ledger,
    limits: Subscribers,
    metrics: Arc<Metrics>,
    listening: Mutex<Listening>,
    /// One look at a wallet at a time, so that what is told last was read last.
    looking: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Listening {
    all: usize,
    by_peer: HashMap<Peer, usize>,
    by_wallet: HashMap<PublicKey, Wallet>,
}

/// A wallet that somebody listens to.
#[derive(Debug)]
struct Wallet {
    news: watch::Sender<Option<WalletStatement>>,
    listeners: usize,
}

/// One listener; leaves when dropped.
#[derive(Debug)]
pub struct Subscription {
    peer: Peer,
    wallet: PublicKey,
    news: watch::Receiver<Option<WalletStatement>>,
    owner: Arc<Subscriptions>,
}

impl Subscriptions {
    /// Nobody listens yet.
    #[must_use]
    pub fn new(ledger: Ledger, limits: Subscribers, metrics: Arc<Metrics>) -> Self {
        let (listening, looking) = (Mutex::default(), tokio::sync::Mutex::default());
        Self { ledger, limits, metrics, listening, looking }
    }

    fn listening(&self) -> MutexGuard<'_, Listening> {
        self.listening.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place among the listeners; `None` when there is none for this address or wallet, or none at all.
    pub fn subscribe(self: &Arc<Self>, ip: IpAddr, wallet: PublicKey) -> Option<Subscription> {
        let peer = Peer::of(ip);
        let mut listening = self.listening();
        let of_peer = listening.by_peer.get(&peer).copied().unwrap_or(0);
        let of_wallet = listening.by_wallet.get(&wallet).map_or(0, |wallet| wallet.listeners);
        let limits = self.limits;
        if listening.all >= limits.all || of_peer >= limits.per_peer || of_wallet >= limits.per_wallet {
            return None;
        }
        listening.all += 1;
        listening.by_peer.insert(peer, of_peer + 1);
        let nobody = || Wallet { news: watch::Sender::new(None), listeners: 0 };
        let entry = listening.by_wallet.entry(wallet).or_insert_with(nobody);
        entry.listeners += 1;
        self.metrics.subscriptions_open.add(1);
        Some(Subscription { peer, wallet, news: entry.news.subscribe(), owner: Arc::clone(self) })
    }

    /// What a wallet has now; the next news of it are newer.
    ///
    /// # Errors
    /// A ledger that fails.
    pub async fn statement(&self, wallet: PublicKey) -> Result<WalletStatement, LedgerError> {
        let _one_at_a_time = self.looking.lock().await;
        self.ledger.wallet(wallet).await
    }

    /// Reads those of the wallets anew that somebody listens to, and tells them what changed.
    pub async fn refresh(&self, wallets: impl IntoIterator<Item = PublicKey>) {
        let mut heard: Vec<PublicKey> = {
            let listening = self.listening();
            wallets.into_iter().filter(|wallet| listening.by_wallet.contains_key(wallet)).collect()
        };
        heard.sort_unstable();
        heard.dedup();
        for wallet in heard {
            let _one_at_a_time = self.looking.lock().await;
            match self.ledger.wallet(wallet).await {
                Ok(statement) => {
                    if let Some(entry) = self.listening().by_wallet.get(&wallet) {
                        entry.news.send_if_modified(|last| {
                            let is_new = last.as_ref() != Some(&statement);
                            *last = Some(statement);
                            is_new
                        });
                    }
                }
                Err(error) => tracing::warn!(%error, "a subscription finds no ledger"),
            }
        }
    }

    /// Looks at every wallet again and again, until the shutdown.
    pub async fn run(self: Arc<Self>, every: Duration, shutdown: Shutdown) {
        loop {
            tokio::select! {
                () = shutdown.wait() => return,
                () = sleep(every) => {}
            }
            let wallets: Vec<PublicKey> = self.listening().by_wallet.keys().copied().collect();
            self.refresh(wallets).await;
        }
    }
}

impl Subscription {
    /// The next statement that somebody found to have changed.
    pub async fn changed(&mut self) -> Option<WalletStatement> {
        self.news.changed().await.ok()?;
        self.news.borrow_and_update().clone()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut listening = self.owner.listening();
        listening.all = listening.all.saturating_sub(1);
        if let Some(of_peer) = listening.by_peer.get_mut(&self.peer) {
            *of_peer = of_peer.saturating_sub(1);
            if *of_peer == 0 {
                listening.by_peer.remove(&self.peer);
            }
        }
        if let Some(wallet) = listening.by_wallet.get_mut(&self.wallet) {
            wallet.listeners = wallet.listeners.saturating_sub(1);
            if wallet.listeners == 0 {
                listening.by_wallet.remove(&self.wallet);
            }
        }
        self.owner.metrics.subscriptions_open.sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{Meter, Rate};
    use crate::types::Hex;

    #[tokio::test]
    async fn a_look_that_waited_for_another_tells_what_was_credited_meanwhile() {
        let ledger = Ledger::open("sqlite::memory:").await.unwrap();
        let limits = Subscribers { all: 1, per_peer: 1, per_wallet: 1 };
        let subscriptions = Arc::new(Subscriptions::new(ledger.clone(), limits, Arc::default()));
        let wallet = PublicKey([1; 32]);
        let mut subscription = subscriptions.subscribe([1; 4].into(), wallet).unwrap();
        let under_way = subscriptions.looking.lock().await;
        let credit = async {
            let row = Meter {
                hub: PublicKey([9; 32]),
                session: Hex([1; 16]),
                wallet,
                epoch: 1,
                assignments: 1,
                work_bytes: 64,
                voided_bytes: 0,
                raw_bytes: 0,
                change_seq: 1,
                r#final: false,
            };
            assert_eq!(ledger.apply(&[row], Rate(7)).await.unwrap().transfers, 1);
            drop(under_way);
        };
        tokio::join!(biased; subscriptions.refresh([wallet]), credit);
        assert_eq!(subscription.changed().await.unwrap().sequence, 1);
    }

    #[tokio::test]
    async fn listeners_are_bounded_and_leave_nothing_behind() {
        let ledger = Ledger::open("sqlite::memory:").await.unwrap();
        let limits = Subscribers { all: 4, per_peer: 2, per_wallet: 2 };
        let metrics = Arc::new(Metrics::default());
        let subscriptions = Arc::new(Subscriptions::new(ledger, limits, Arc::clone(&metrics)));
        let join = |ip: [u8; 4], wallet: u8| subscriptions.subscribe(ip.into(), PublicKey([wallet; 32]));
        let (one, two) = (join([1; 4], 1).unwrap(), join([1; 4], 2).unwrap());
        assert!(join([1; 4], 3).is_none(), "two of an address");
        let three = join([2; 4], 1).unwrap();
        assert!(join([3; 4], 1).is_none(), "two to a wallet");
        let four = join([3; 4], 2).unwrap();
        assert!(join([4; 4], 4).is_none(), "four in all");
        assert_eq!(metrics.subscriptions_open.get(), 4);
        drop((one, two, three, four));
        let listening = subscriptions.listening();
        assert_eq!((listening.all, listening.by_peer.len(), listening.by_wallet.len()), (0, 0, 0));
        assert_eq!(metrics.subscriptions_open.get(), 0);
    }
}
