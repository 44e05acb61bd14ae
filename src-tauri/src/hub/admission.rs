//! Who may begin a session, and what a refused worker hears.
//!
//! Before the wallet has proved itself the answers are few: `version`, `draining`, `busy`, else `unauthorised` with one
//! log line and a delay per address. Only a proven wallet learns more (`quarantined`, `banned`, `drained`, `not_invited`, `limit`,
//! `update_required`).
//! **Promise:** a permit is taken before any work is done for a connection; an address is delayed, never banned,
//! because several people may share it; no address holds more than its share of the handshakes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::types::Hex;
use crate::wire::control::{Control, Refuse, UPDATE_REQUIRED};
use crate::wire::{Frame, FrameError};

/// First delay of an address that failed; doubles with each failure.
const PENALTY_FIRST: Duration = Duration::from_millis(250);
/// Longest delay.
const PENALTY_MAX: Duration = Duration::from_secs(4);
/// Most addresses remembered; at this many all are forgotten, which only shortens delays.
const ADDRESSES_MAX: usize = 4096;
/// When a refused worker may come again.
const RETRY_AFTER_MS: u64 = 2_000;

/// A peer's address under a key that lives as long as the hub, so that no address is kept or sent on.
pub type PeerHash = Hex<16>;

/// Why a worker does not get a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Another protocol version.
    Version,
    /// The hub is about to stop.
    Draining,
    /// No room, or no backbone.
    Busy,
    /// Anything that was not proved.
    Unauthorised,
    /// The wallet has its sessions.
    Limit,
    /// The wallet was caught.
    Quarantined,
    /// The operator keeps the wallet out.
    Banned,
    /// The operator keeps the wallet away for so long.
    Away(Duration),
    /// The hub takes only wallets that were invited or are on its list.
    NotInvited,
    /// The worker's program is older than those that the hub serves.
    UpdateRequired,
}

impl Refusal {
    /// The protocol's code.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::Version => "version",
            Self::Draining => "draining",
            Self::Busy => "busy",
            Self::Unauthorised => "unauthorised",
            Self::Limit => "limit",
            Self::Quarantined => "quarantined",
            Self::Banned => "banned",
            Self::Away(_) => "drained",
            Self::NotInvited => "not_invited",
            Self::UpdateRequired => UPDATE_REQUIRED,
        }
    }

    /// The WebSocket close code that follows the frame: 1013 asks to come again.
    #[must_use]
    pub fn close_code(self) -> u16 {
        if matches!(self, Self::Draining | Self::Busy | Self::Away(_)) { 1013 } else { 1008 }
    }

    /// The frame that says so.
    ///
    /// # Errors
    /// None that a fixed text could meet; the signature is the encoder's.
    pub fn frame(self) -> Result<Frame, FrameError> {
        let retry_after_ms = match self {
            Self::Draining | Self::Busy => Some(RETRY_AFTER_MS),
            Self::Away(pause) => Some(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX)),
            _ => None,
        };
        Refuse { reason: self.code().into(), retry_after_ms }.frame()
    }
}

/// Connections of each address that have proved nothing yet; an address without any has no entry.
type Unproven = Arc<Mutex<HashMap<PeerHash, usize>>>;

/// An unproven connection's share of its address, given back when dropped.
#[derive(Debug)]
pub struct Share {
    peer: PeerHash,
    unproven: Unproven,
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut unproven = self.unproven.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(held) = unproven.get_mut(&self.peer) else { return };
        *held = held.saturating_sub(1);
        if *held == 0 {
            unproven.remove(&self.peer);
        }
    }
}

/// Room for sessions and for handshakes, and the delays of those who failed.
pub struct Admission {
    sessions: Arc<Semaphore>,
    handshakes: Arc<Semaphore>,
    unproven: Unproven,
    failures: Mutex<HashMap<PeerHash, u32>>,
    peer_key: [u8; 32],
    sessions_max: usize,
    per_peer_max: usize,
}

impl Admission {
    /// Room for `sessions_max` sessions, of which `handshakes_max` may be unproven at a time, `per_peer_max` of them
    /// from one address. `peer_key` hides addresses.
    #[must_use]
    pub fn new(sessions_max: usize, handshakes_max: usize, per_peer_max: usize, peer_key: [u8; 32]) -> Self {
        Self {
            sessions: Arc::new(Semaphore::new(sessions_max)),
            handshakes: Arc::new(Semaphore::new(handshakes_max)),
            unproven: Arc::default(),
            failures: Mutex::default(),
            peer_key,
            sessions_max,
            per_peer_max,
        }
    }

    /// A share of the address for a connection that has proved nothing; held until its wallet is proven or its
    /// refusal is sent, so that a delay of failures cannot be had in parallel either.
    ///
    /// # Errors
    /// [`Refusal::Busy`] when the address has its share.
    pub fn approach(&self, peer: PeerHash) -> Result<Share, Refusal> {
        let mut unproven = self.unproven.lock().unwrap_or_else(PoisonError::into_inner);
        let held = unproven.get(&peer).copied().unwrap_or(0);
        if held >= self.per_peer_max {
            return Err(Refusal::Busy);
        }
        unproven.insert(peer, held + 1);
        Ok(Share { peer, unproven: Arc::clone(&self.unproven) })
    }

    /// A place for a session and one for its handshake, the latter to be given back once the wallet is proven.
    ///
    /// # Errors
    /// [`Refusal::Busy`] when either is full.
    pub fn enter(&self) -> Result<(OwnedSemaphorePermit, OwnedSemaphorePermit), Refusal> {
        let take = |s: &Arc<Semaphore>| Arc::clone(s).try_acquire_owned().map_err(|_| Refusal::Busy);
        Ok((take(&self.sessions)?, take(&self.handshakes)?))
    }

    /// Waits until no session is left; nobody can enter meanwhile.
    pub async fn until_empty(&self) {
        let all = u32::try_from(self.sessions_max).unwrap_or(u32::MAX);
        let _ = self.sessions.acquire_many(all).await;
    }

    /// How an address is called inside.
    #[must_use]
    pub fn peer_hash(&self, address: std::net::IpAddr) -> PeerHash {
        // A person at home has a whole IPv6 /64.
        let text = match address.to_canonical() {
            std::net::IpAddr::V4(v4) => v4.octets().to_vec(),
            std::net::IpAddr::V6(v6) => v6.octets()[..8].to_vec(),
        };
        let digest = blake3::keyed_hash(&self.peer_key, &text);
        let mut hash = [0; 16];
        hash.copy_from_slice(&digest.as_bytes()[..16]);
        Hex(hash)
    }

    /// Counts a failure; the wait before the answer.
    pub fn failed(&self, peer: PeerHash) -> Duration {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if failures.len() >= ADDRESSES_MAX && !failures.contains_key(&peer) {
            failures.clear();
        }
        let count = failures.entry(peer).or_default();
        let delay = PENALTY_FIRST.saturating_mul(1 << (*count).min(16));
        *count = count.saturating_add(1);
        delay.min(PENALTY_MAX)
    }

    /// Forgets an address's failures: a wallet behind it was proven.
    pub fn succeeded(&self, peer: PeerHash) {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).remove(&peer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_an_address_double_its_delay_up_to_a_bound() {
        let admission = Admission::new(1, 1, 1, [7; 32]);
        let peer = admission.peer_hash("192.0.2.1".parse().unwrap());
        let delays: Vec<_> = (0..7).map(|_| admission.failed(peer).as_millis()).collect();
        assert_eq!(delays, [250, 500, 1000, 2000, 4000, 4000, 4000]);
        let other = admission.peer_hash("192.0.2.2".parse().unwrap());
        assert_eq!(admission.failed(other), PENALTY_FIRST);
        admission.succeeded(peer);
        assert_eq!(admission.failed(peer), PENALTY_FIRST);
    }

    #[test]
    fn an_ipv6_network_counts_as_one_address_and_names_are_keyed() {
        let admission = Admission::new(1, 1, 1, [7; 32]);
        let hash = |text: &str| admission.peer_hash(text.parse().unwrap());
        assert_eq!(hash("2001:db8::1"), hash("2001:db8::ffff:2"));
        assert_ne!(hash("2001:db8::1"), hash("2001:db8:0:1::1"));
        assert_eq!(hash("::ffff:192.0.2.1"), hash("192.0.2.1"));
        let elsewhere = Admission::new(1, 1, 1, [8; 32]);
        assert_ne!(hash("192.0.2.1"), elsewhere.peer_hash("192.0.2.1".parse().unwrap()));
    }

    #[test]
    fn room_is_taken_before_the_work_and_given_back_with_the_permit() {
        let admission = Admission::new(2, 1, 1, [0; 32]);
        let (_session, handshake) = admission.enter().unwrap();
        assert_eq!(admission.enter().err(), Some(Refusal::Busy), "one handshake at a time");
        drop(handshake);
        let (_second, handshake) = admission.enter().unwrap();
        drop(handshake);
        assert_eq!(admission.enter().err(), Some(Refusal::Busy), "two sessions");
    }

    #[test]
    fn an_address_has_its_share_of_the_unproven_and_leaves_nothing_behind() {
        let admission = Admission::new(9, 9, 2, [0; 32]);
        let peer = |text: &str| admission.peer_hash(text.parse().unwrap());
        let greedy = peer("192.0.2.1");
        let one = admission.approach(greedy).unwrap();
        let two = admission.approach(greedy).unwrap();
        assert_eq!(admission.approach(greedy).err(), Some(Refusal::Busy));
        let other = admission.approach(peer("192.0.2.2")).unwrap();
        drop(one);
        drop(admission.approach(greedy).unwrap());
        drop((two, other));
        assert!(admission.unproven.lock().unwrap().is_empty());
    }
}
