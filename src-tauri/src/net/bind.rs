//! Listening, and the guard that keeps inner servers off public addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::TcpListener;

/// Why a server does not listen.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// An address that strangers may reach.
    #[error("{addr} may be reached from outside: bind a private address, or allow it with {flag}")]
    Public {
        /// The address asked for.
        addr: SocketAddr,
        /// What allows it.
        flag: &'static str,
    },
    /// An address that other machines may reach.
    #[error("{addr} may be reached from other machines: bind a loopback address, or allow it with {flag}")]
    NotLoopback {
        /// The address asked for.
        addr: SocketAddr,
        /// What allows it.
        flag: &'static str,
    },
    /// The operating system refused.
    #[error("cannot listen on {addr}: {source}")]
    Listen {
        /// The address asked for.
        addr: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
}

/// Whether only this machine or its own network can reach the address. Unspecified (0.0.0.0, ::) counts as public.
#[must_use]
pub fn is_private(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_private_v4(ip),
        IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
            Some(mapped) => is_private_v4(mapped),
            None => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
        },
    }
}

/// Loopback in either family, mapped addresses included.
#[must_use]
pub fn is_loopback(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_loopback(),
        IpAddr::V6(ip) => ip == Ipv6Addr::LOCALHOST || ip.to_ipv4_mapped().is_some_and(|v4| v4.is_loopback()),
    }
}

fn is_private_v4(ip: Ipv4Addr) -> bool {
    let [a, b, ..] = ip.octets();
    // 100.64.0.0/10 is what overlay networks hand out.
    ip.is_loopback() || ip.is_private() || ip.is_link_local() || (a == 100 && (64..128).contains(&b))
}

/// Listens on an address that only our own network reaches.
///
/// # Errors
/// [`BindError::Public`] unless `allow_public`; `flag` names the switch in the message. [`BindError::Listen`].
pub async fn listen_private(
    addr: SocketAddr,
    allow_public: bool,
    flag: &'static str,
) -> Result<TcpListener, BindError> {
    if !allow_public && !is_private(addr.ip()) {
        return Err(BindError::Public { addr, flag });
    }
    listen(addr).await
}

/// Listens on an address that only this machine reaches.
///
/// # Errors
/// [`BindError::NotLoopback`] unless `allow_others`; `flag` names the switch in the message. [`BindError::Listen`].
pub async fn listen_loopback(
    addr: SocketAddr,
    allow_others: bool,
    flag: &'static str,
) -> Result<TcpListener, BindError> {
    if !allow_others && !is_loopback(addr.ip()) {
        return Err(BindError::NotLoopback { addr, flag });
    }
    listen(addr).await
}

/// Listens on any address.
///
/// # Errors
/// [`BindError::Listen`].
pub async fn listen(addr: SocketAddr) -> Result<TcpListener, BindError> {
    TcpListener::bind(addr).await.map_err(|source| BindError::Listen { addr, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_and_unspecified_addresses_are_told_from_private_ones() {
        for private in ["127.0.0.1", "10.1.2.3", "192.168.0.9", "172.16.0.1", "169.254.1.1", "100.100.0.1", "::1"] {
            assert!(is_private(private.parse().unwrap()), "{private}");
        }
        for private in ["fd00::1", "fe80::1", "::ffff:10.0.0.1"] {
            assert!(is_private(private.parse().unwrap()), "{private}");
        }
        for public in ["0.0.0.0", "::", "8.8.8.8", "100.128.0.1", "172.32.0.1", "2001:4860::1", "::ffff:8.8.8.8"] {
            assert!(!is_private(public.parse().unwrap()), "{public}");
        }
    }
}
