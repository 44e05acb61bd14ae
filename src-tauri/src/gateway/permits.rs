//! Who may hold a connection: so many in all, so many per address.
//!
//! A connection without a permit is closed at once; it costs neither a handshake nor a task.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use super::config::Limits;

/// The permits of a gateway. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Permits {
    limits: Limits,
    held: Arc<Mutex<Held>>,
}

#[derive(Debug, Default)]
struct Held {
    all: usize,
    by_peer: HashMap<Peer, usize>,
}

/// An IPv4 address, or the /64 that an IPv6 customer gets: counting single IPv6 addresses limits nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Peer {
    V4([u8; 4]),
    V6([u16; 4]),
}

impl Peer {
    pub(super) fn of(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(ip) => Self::V4(ip.octets()),
            IpAddr::V6(ip) => {
                let [a, b, c, d, ..] = ip.segments();
                Self::V6([a, b, c, d])
            }
        }
    }
}

/// The right to hold one connection; given back when dropped.
#[derive(Debug)]
pub struct Permit {
    peer: Peer,
    held: Arc<Mutex<Held>>,
}

impl Permits {
    /// No permit is held yet.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, held: Arc::default() }
    }

    /// A permit for a connection from `ip`, or `None` when a limit is reached.
    #[must_use]
    pub fn take(&self, ip: IpAddr) -> Option<Permit> {
        let peer = Peer::of(ip);
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let of_peer = held.by_peer.get(&peer).copied().unwrap_or(0);
        if held.all >= self.limits.connections || of_peer >= self.limits.connections_per_peer {
            return None;
        }
        held.all += 1;
        held.by_peer.insert(peer, of_peer + 1);
        Some(Permit { peer, held: Arc::clone(&self.held) })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.all = held.all.saturating_sub(1);
        if let Some(of_peer) = held.by_peer.get_mut(&self.peer) {
            *of_peer = of_peer.saturating_sub(1);
            if *of_peer == 0 {
                held.by_peer.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(permits: &Permits, ip: &str) -> Option<Permit> {
        permits.take(ip.parse().unwrap())
    }

    #[test]
    fn limits_count_all_an_ipv4_address_and_an_ipv6_64() {
        let permits = Permits::new(Limits { connections: 4, connections_per_peer: 2, ..Limits::default() });
        let one = take(&permits, "192.0.2.1").unwrap();
        let _two = take(&permits, "::ffff:192.0.2.1").unwrap();
        assert!(take(&permits, "192.0.2.1").is_none());
        let _three = take(&permits, "2001:db8:0:1::1").unwrap();
        let four = take(&permits, "2001:db8:0:1:ffff::2").unwrap();
        assert!(take(&permits, "192.0.2.9").is_none(), "four in all");
        drop(four);
        assert!(take(&permits, "2001:db8:0:2::1").is_some());
        drop(one);
        assert!(take(&permits, "192.0.2.1").is_some());
    }

    #[test]
    fn given_back_permits_leave_nothing_behind() {
        let permits = Permits::new(Limits::default());
        drop(take(&permits, "192.0.2.1"));
        let held = permits.held.lock().unwrap();
        assert_eq!((held.all, held.by_peer.len()), (0, 0));
    }
}
