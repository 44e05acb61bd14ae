//! Which of this machine's addresses lead out: tells "this machine is offline" from "the gateway is down", and a network
//! that changed under a link that still looks alive.
//!
//! The kernel is asked by "connecting" a UDP socket, which chooses a route and sends nothing. Why not netlink: this is
//! four system calls on every system, and whether packets would leave from another address is all that a link wants to know.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use tokio::time::sleep;

/// Addresses that nobody has (RFC 5737, RFC 3849): on the way to them lies the way to everybody.
const ELSEWHERE: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))];
/// Any port does, since nothing is sent; "discard".
const PORT: u16 = 9;

/// The addresses from which packets to the internet leave, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outward {
    v4: Option<IpAddr>,
    v6: Option<IpAddr>,
}

impl Outward {
    /// As the system would send now.
    #[must_use]
    pub fn now() -> Self {
        let [v4, v6] = ELSEWHERE.map(|ip| towards(SocketAddr::new(ip, PORT)));
        Self { v4, v6 }
    }

    /// Whether nothing leads out.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.v4.is_none() && self.v6.is_none()
    }
}

/// The address of this machine from which packets to `peer` would leave; `None` without a route.
#[must_use]
pub fn towards(peer: SocketAddr) -> Option<IpAddr> {
    let any: SocketAddr = match peer {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(peer).ok()?;
    socket.local_addr().ok().map(|local| local.ip())
}

/// Completes once packets to `peer` leave from another address than now, or leave again after nothing led there: what
/// was connected before is then of no use. Looks every `every`.
pub async fn moved(peer: SocketAddr, every: Duration) {
    let first = towards(peer);
    let mut was_cut_off = false;
    loop {
        sleep(every).await;
        match towards(peer) {
            None => was_cut_off = first.is_some(),
            now if was_cut_off || now != first => return,
            Some(_) => {}
        }
    }
}

/// Completes once something leads out that did not at `before`. Looks every `every`.
pub async fn opened(before: Outward, every: Duration) {
    loop {
        sleep(every).await;
        let now = Outward::now();
        if now != before && !now.is_none() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_to_this_machine_leave_from_it() {
        let loopback: SocketAddr = "127.0.0.1:443".parse().unwrap();
        assert_eq!(towards(loopback), Some(loopback.ip()));
    }
}
