//! Who may hold a connection: so many in all, of an address, of an address without a request, and so often.
//!
//! A connection without a permit is closed at once; it costs neither a handshake nor a task. An IPv6 customer has a /64,
//! so that is what counts as an address there.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::Instant;

use super::config::Limits;
use super::rates::Rates;

/// The permits of a gateway. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Permits {
    limits: Limits,
    held: Arc<Mutex<Held>>,
    rates: Arc<Rates>,
}

#[derive(Debug, Default)]
struct Held {
    all: usize,
    by_peer: HashMap<Peer, OfPeer>,
}

/// What one address holds.
#[derive(Debug, Default, Clone, Copy)]
struct OfPeer {
    all: usize,
    /// Those of which no request was read yet.
    fresh: usize,
}

/// An IPv4 address, or the /64 that an IPv6 customer gets: counting single IPv6 addresses limits nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Peer {
    /// The address.
    V4([u8; 4]),
    /// The network's half.
    V6([u16; 4]),
}

impl Peer {
    /// Who counts for `ip`.
    #[must_use]
    pub fn of(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(ip) => Self::V4(ip.octets()),
            IpAddr::V6(ip) => {
                let [a, b, c, d, ..] = ip.segments();
                Self::V6([a, b, c, d])
            }
        }
    }
}

/// The limit that keeps a connection out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Connections in all.
    All,
    /// Connections of an address.
    Peer,
    /// Connections of an address without a request.
    Fresh,
    /// Handshakes of an address in a minute.
    Rate,
}

impl Limit {
    /// All of them, in the order of their numbers.
    pub const EACH: [Self; 4] = [Self::All, Self::Peer, Self::Fresh, Self::Rate];

    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::All => "connections",
            Self::Peer => "connections_of_address",
            Self::Fresh => "without_request_of_address",
            Self::Rate => "handshakes_of_address",
        }
    }
}

/// The right to hold one connection; given back when dropped.
#[derive(Debug)]
pub struct Permit {
    peer: Peer,
    fresh: bool,
    held: Arc<Mutex<Held>>,
    rates: Arc<Rates>,
}

impl Permits {
    /// No permit is held yet.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, held: Arc::default(), rates: Arc::new(Rates::new(limits.handshakes_per_peer_minute)) }
    }

    /// A permit for a connection that came from `ip` at `now`.
    ///
    /// # Errors
    /// The limit that is reached.
    pub fn take(&self, ip: IpAddr, now: Instant) -> Result<Permit, Limit> {
        let peer = Peer::of(ip);
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let of_peer = held.by_peer.get(&peer).copied().unwrap_or_default();
        if held.all >= self.limits.connections {
            return Err(Limit::All);
        }
        if of_peer.all >= self.limits.connections_per_peer {
            return Err(Limit::Peer);
        }
        if of_peer.fresh >= self.limits.fresh_per_peer {
            return Err(Limit::Fresh);
        }
        if !self.rates.take(peer, now) {
            return Err(Limit::Rate);
        }
        held.all += 1;
        held.by_peer.insert(peer, OfPeer { all: of_peer.all + 1, fresh: of_peer.fresh + 1 });
        Ok(Permit { peer, fresh: true, held: Arc::clone(&self.held), rates: Arc::clone(&self.rates) })
    }
}

impl Permit {
    /// It is a server of ours, which comes as often as it has to: it takes nothing from its neighbours' share.
    pub fn is_ours(&mut self) {
        self.requested();
        self.rates.give_back(self.peer);
    }

    /// A request was read: from now on the connection counts among those that are served.
    pub fn requested(&mut self) {
        if std::mem::take(&mut self.fresh) {
            let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(of_peer) = held.by_peer.get_mut(&self.peer) {
                of_peer.fresh = of_peer.fresh.saturating_sub(1);
            }
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.requested();
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.all = held.all.saturating_sub(1);
        if let Some(of_peer) = held.by_peer.get_mut(&self.peer) {
            of_peer.all = of_peer.all.saturating_sub(1);
            if of_peer.all == 0 {
                held.by_peer.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(permits: &Permits, ip: &str) -> Result<Permit, Limit> {
        permits.take(ip.parse().unwrap(), Instant::now())
    }

    #[test]
    fn limits_count_all_an_ipv4_address_and_an_ipv6_64() {
        let permits = Permits::new(Limits { connections: 4, connections_per_peer: 2, ..Limits::default() });
        let one = take(&permits, "192.0.2.1").unwrap();
        let _two = take(&permits, "::ffff:192.0.2.1").unwrap();
        assert_eq!(take(&permits, "192.0.2.1").err(), Some(Limit::Peer));
        let _three = take(&permits, "2001:db8:0:1::1").unwrap();
        let four = take(&permits, "2001:db8:0:1:ffff::2").unwrap();
        assert_eq!(take(&permits, "192.0.2.9").err(), Some(Limit::All), "four in all");
        drop(four);
        assert!(take(&permits, "2001:db8:0:2::1").is_ok());
        drop(one);
        assert!(take(&permits, "192.0.2.1").is_ok());
    }

    #[test]
    fn connections_without_a_request_have_a_limit_of_their_own() {
        let permits = Permits::new(Limits { fresh_per_peer: 2, ..Limits::default() });
        let mut one = take(&permits, "192.0.2.1").unwrap();
        let _two = take(&permits, "192.0.2.1").unwrap();
        assert_eq!(take(&permits, "192.0.2.1").err(), Some(Limit::Fresh));
        one.requested();
        one.requested();
        let _three = take(&permits, "192.0.2.1").unwrap();
        assert_eq!(take(&permits, "192.0.2.1").err(), Some(Limit::Fresh));
    }

    #[test]
    fn an_address_that_comes_too_often_waits() {
        let permits = Permits::new(Limits { handshakes_per_peer_minute: 3, ..Limits::default() });
        let came = (0..5).map(|_| take(&permits, "192.0.2.1").map(drop)).collect::<Vec<_>>();
        assert_eq!(came, [Ok(()), Ok(()), Ok(()), Err(Limit::Rate), Err(Limit::Rate)]);
        assert!(take(&permits, "192.0.2.2").is_ok());
    }

    #[test]
    fn a_hub_of_ours_takes_no_handshakes_from_its_address() {
        let permits = Permits::new(Limits { handshakes_per_peer_minute: 2, fresh_per_peer: 1, ..Limits::default() });
        for _ in 0..5 {
            take(&permits, "192.0.2.1").unwrap().is_ours();
        }
        let stranger = take(&permits, "192.0.2.1").map(drop);
        let came = [stranger, take(&permits, "192.0.2.1").map(drop), take(&permits, "192.0.2.1").map(drop)];
        assert_eq!(came, [Ok(()), Ok(()), Err(Limit::Rate)]);
    }

    #[test]
    fn given_back_permits_leave_nothing_behind() {
        let permits = Permits::new(Limits::default());
        drop(take(&permits, "192.0.2.1"));
        let held = permits.held.lock().unwrap();
        assert_eq!((held.all, held.by_peer.len()), (0, 0));
    }
}
