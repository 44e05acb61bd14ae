//! How often each address begins a handshake, in a table of fixed size.
//!
//! Every address has a virtual time that each handshake moves on by an equal step and that may run ahead of the clock by
//! one minute: so a burst of a minute's worth is free, and what follows is spread. A place whose virtual time has passed
//! says nothing any more and is the first to be reused, so that a crowd of addresses costs no memory; a crowd larger than
//! the table can only be forgotten early, never be remembered for ever.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::permits::Peer;

/// What the limit counts over.
const MINUTE: Duration = Duration::from_secs(60);
/// Places of the table, in sets of [`WAYS`]: a quarter of a MiB.
const SETS: usize = 1024;
/// Places where an address may stand; which set is secret, so that nobody can crowd out a chosen neighbour.
const WAYS: usize = 8;

/// The handshakes of the last minute or so.
#[derive(Debug)]
pub struct Rates {
    /// Between two handshakes of an address at the limit.
    step: Duration,
    sets: Mutex<Box<[[Option<Place>; WAYS]]>>,
    secret: RandomState,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    peer: Peer,
    /// The virtual time.
    busy_until: Instant,
}

impl Rates {
    /// `per_minute` handshakes of one address.
    #[must_use]
    pub fn new(per_minute: usize) -> Self {
        let per_minute = u32::try_from(per_minute.max(1)).unwrap_or(u32::MAX);
        let sets = vec![[None; WAYS]; SETS].into_boxed_slice();
        Self { step: MINUTE / per_minute, sets: Mutex::new(sets), secret: RandomState::new() }
    }

    /// Counts a handshake that begins at `now`; whether it is within the limit.
    pub fn take(&self, peer: Peer, now: Instant) -> bool {
        let mut sets = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(set) = sets.get_mut(self.set_of(peer)) else { return true };
        let known = set.iter().position(|place| place.is_some_and(|place| place.peer == peer));
        let quietest = || (0..WAYS).min_by_key(|way| set.get(*way).copied().flatten().map(|place| place.busy_until));
        let Some(place) = known.or_else(quietest).and_then(|way| set.get_mut(way)) else { return true };
        let before = place.filter(|place| place.peer == peer).map_or(now, |place| place.busy_until.max(now));
        let busy_until = before + self.step;
        if busy_until > now + MINUTE {
            return false;
        }
        *place = Some(Place { peer, busy_until });
        true
    }

    /// Takes the count of one handshake back.
    pub fn give_back(&self, peer: Peer) {
        let mut sets = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
        let set = sets.get_mut(self.set_of(peer)).into_iter().flatten().flatten();
        for place in set.filter(|place| place.peer == peer) {
            place.busy_until = place.busy_until.checked_sub(self.step).unwrap_or(place.busy_until);
        }
    }

    fn set_of(&self, peer: Peer) -> usize {
        usize::try_from(self.secret.hash_one(peer) % SETS as u64).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(n: u32) -> Peer {
        Peer::of(std::net::IpAddr::from(n.to_be_bytes()))
    }

    #[test]
    fn a_minutes_worth_is_free_at_once_and_then_comes_back_step_by_step() {
        let (rates, start) = (Rates::new(60), Instant::now());
        let at = |s: u64| start + Duration::from_secs(s);
        assert_eq!((0..100).filter(|_| rates.take(peer(1), start)).count(), 60);
        assert!(rates.take(peer(2), start), "others are not touched");
        assert_eq!((0..100).filter(|_| rates.take(peer(1), at(5))).count(), 5);
        assert_eq!((0..100).filter(|_| rates.take(peer(1), at(600))).count(), 60);
    }

    #[test]
    fn a_crowd_of_addresses_takes_the_places_of_the_quiet_first() {
        let (rates, start) = (Rates::new(60), Instant::now());
        while rates.take(peer(0), start) {}
        // Each of them is soon quiet again; the busy one keeps its place.
        for n in 1..40_000u32 {
            assert!(rates.take(peer(n), start + Duration::from_micros(u64::from(n) * 200)));
        }
        assert_eq!((0..100).filter(|_| rates.take(peer(0), start + Duration::from_secs(8))).count(), 8);
    }
}
