//! The wallets that were caught, for as long as this process lives: who turns them away, and which hub has still to hear.
//!
//! A hub remembers what it was told over restarts; this list is for the hubs that were not there. **Promises:** bounded,
//! the oldest goes first; one hub is told of one catch once, in the order of the catches.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::types::PublicKey;
use crate::wire::control::Quarantine;

/// Wallets that are remembered.
const WALLETS_MAX: usize = 4096;
/// What a hub is told over one session at once; its queue has room for more.
const NEWS_MAX: usize = 256;

#[derive(Default)]
struct List {
    caught: VecDeque<Quarantine>,
    /// How many were forgotten before the first of `caught`.
    forgotten: u64,
    /// How many catches each hub has heard of; hubs are those whose keys the operator pinned.
    heard: HashMap<Option<PublicKey>, u64>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Caught(Mutex<List>);

impl Caught {
    /// Remembers a wallet; the first catch stays.
    pub fn add(&self, caught: Quarantine) {
        let mut list = self.list();
        if list.caught.iter().any(|known| known.wallet == caught.wallet) {
            return;
        }
        if list.caught.len() >= WALLETS_MAX {
            list.caught.pop_front();
            list.forgotten += 1;
        }
        list.caught.push_back(caught);
    }

    /// Why a wallet is turned away, if it is.
    pub fn of(&self, wallet: &PublicKey) -> Option<Quarantine> {
        self.list().caught.iter().find(|caught| caught.wallet == *wallet).cloned()
    }

    /// What a hub has not heard yet, as much as goes at once; it counts as heard. Hubs without keys are one: this
    /// machine's.
    pub fn news(&self, hub: Option<PublicKey>) -> Vec<Quarantine> {
        let mut list = self.list();
        let heard = list.heard.get(&hub).copied().unwrap_or(0).max(list.forgotten);
        let skip = usize::try_from(heard - list.forgotten).unwrap_or(usize::MAX);
        let news: Vec<Quarantine> = list.caught.iter().skip(skip).take(NEWS_MAX).cloned().collect();
        list.heard.insert(hub, heard + news.len() as u64);
        news
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Hex;

    fn caught(n: u16) -> Quarantine {
        let mut wallet = [0; 32];
        wallet[..2].copy_from_slice(&n.to_le_bytes());
        let wallet = PublicKey(wallet);
        Quarantine { wallet, session_id: Hex([0; 16]), void_from_request: 0, device: None, reason: "lied".into() }
    }

    #[test]
    fn every_hub_hears_of_every_catch_once_also_one_that_comes_later() {
        let (list, one, two) = (Caught::default(), Some(PublicKey([1; 32])), Some(PublicKey([2; 32])));
        list.add(caught(1));
        list.add(caught(1));
        assert_eq!(list.news(one), [caught(1)]);
        list.add(caught(2));
        assert_eq!(list.news(one), [caught(2)]);
        assert_eq!(list.news(two), [caught(1), caught(2)]);
        assert!(list.news(one).is_empty() && list.news(two).is_empty());
        assert_eq!(list.of(&caught(2).wallet), Some(caught(2)));
        assert_eq!(list.of(&caught(3).wallet), None);
    }

    #[test]
    fn the_list_is_bounded_and_what_is_forgotten_shifts_nothing() {
        let (list, all) = (Caught::default(), WALLETS_MAX as u16);
        (0..all).for_each(|n| list.add(caught(n)));
        assert_eq!(list.news(None).len(), NEWS_MAX);
        list.add(caught(all));
        assert_eq!(list.of(&caught(0).wallet), None);
        assert_eq!(list.news(None).first(), Some(&caught(NEWS_MAX as u16)));
    }
}
