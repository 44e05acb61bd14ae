//! Dialling and tuning TCP: both address families raced, one deadline, no delay before small writes.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::resolve::{Resolve, SystemResolver};

/// How long a connection attempt may take as a whole.
pub const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// Head start of each address before the next is tried beside it (RFC 8305).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// Silence after which the kernel probes; the WebSocket's pings are what really counts.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(30);
/// Most addresses of one name that are tried.
const ADDRESSES_MAX: usize = 16;

/// Which leg failed, and how.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// DNS.
    #[error("cannot resolve {host}: {source}")]
    Resolve {
        /// The name.
        host: String,
        /// Why.
        source: io::Error,
    },
    /// DNS knows the name, but no address.
    #[error("{host} has no address")]
    NoAddress {
        /// The name.
        host: String,
    },
    /// No address took the connection.
    #[error("cannot reach {host} port {port} ({tried} addresses tried): {source}")]
    Unreachable {
        /// The name.
        host: String,
        /// The port.
        port: u16,
        /// Addresses tried.
        tried: usize,
        /// The last reason.
        source: io::Error,
    },
    /// Nothing answered in time.
    #[error("no answer from {host} port {port} within {deadline_ms} ms")]
    Deadline {
        /// The name.
        host: String,
        /// The port.
        port: u16,
        /// The bound.
        deadline_ms: u128,
    },
}

impl ConnectError {
    /// Whether the name was not found, rather than not reached.
    #[must_use]
    pub fn is_of_dns(&self) -> bool {
        matches!(self, Self::Resolve { .. } | Self::NoAddress { .. })
    }

    /// Whether a machine without any way out would fail like this.
    #[must_use]
    pub fn may_be_offline(&self) -> bool {
        self.is_of_dns() || matches!(self, Self::Unreachable { source, .. } if is_of_a_route(source))
    }
}

/// Connects to the first address of `host` that answers, and tunes the socket.
///
/// # Errors
/// [`ConnectError`], within `deadline`.
pub async fn connect(host: &str, port: u16, deadline: Duration) -> Result<TcpStream, ConnectError> {
    let late = || ConnectError::Deadline { host: host.to_owned(), port, deadline_ms: deadline.as_millis() };
    let connecting = async {
        let addresses = addresses(&SystemResolver, host, port).await?;
        reach(host, port, addresses).await
    };
    timeout(deadline, connecting).await.map_err(|_| late())?
}

/// The addresses of `host`, which may stand in brackets, at most [`ADDRESSES_MAX`], the families in turn.
///
/// # Errors
/// [`ConnectError::Resolve`] and [`ConnectError::NoAddress`]. The caller bounds the time.
pub async fn addresses(resolver: &dyn Resolve, host: &str, port: u16) -> Result<Vec<SocketAddr>, ConnectError> {
    let found = match bare(host).parse::<IpAddr>() {
        Ok(ip) => vec![SocketAddr::new(ip, port)],
        Err(_) => resolver
            .resolve(bare(host), port)
            .await
            .map_err(|source| ConnectError::Resolve { host: host.to_owned(), source })?,
    };
    if found.is_empty() {
        return Err(ConnectError::NoAddress { host: host.to_owned() });
    }
    let mut addresses = interleave(found);
    addresses.truncate(ADDRESSES_MAX);
    Ok(addresses.into())
}

/// Connects to the first of these addresses that answers, each with a head start, and tunes the socket.
///
/// # Errors
/// [`ConnectError::Unreachable`]. The caller bounds the time.
pub async fn reach(host: &str, port: u16, addresses: Vec<SocketAddr>) -> Result<TcpStream, ConnectError> {
    let tried = addresses.len();
    let unreachable = |source| ConnectError::Unreachable { host: host.to_owned(), port, tried, source };
    let stream = race(addresses.into()).await.map_err(unreachable)?;
    tune(&stream);
    Ok(stream)
}

/// A host without the brackets of an IPv6 address.
#[must_use]
pub fn bare(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// The families in turn, the resolver's first choice first.
fn interleave(addresses: Vec<SocketAddr>) -> VecDeque<SocketAddr> {
    let first_is_v6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (first, second): (Vec<_>, Vec<_>) = addresses.into_iter().partition(|a| a.is_ipv6() == first_is_v6);
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    let mut out = VecDeque::new();
    loop {
        match (first.next(), second.next()) {
            (None, None) => return out,
            (a, b) => out.extend(a.into_iter().chain(b)),
        }
    }
}

/// Starts an attempt every [`ATTEMPT_DELAY`], sooner when one fails; the first to succeed wins.
async fn race(mut addresses: VecDeque<SocketAddr>) -> io::Result<TcpStream> {
    let mut attempts = FuturesUnordered::new();
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    loop {
        if let Some(address) = addresses.pop_front() {
            attempts.push(TcpStream::connect(address));
        }
        tokio::select! {
            done = attempts.next() => match done {
                Some(Ok(stream)) => return Ok(stream),
                // A refusal tells more than a family that leads nowhere.
                Some(Err(error)) if is_of_a_route(&last) || !is_of_a_route(&error) => last = error,
                Some(Err(_)) => {}
                None => return Err(last),
            },
            () = sleep(ATTEMPT_DELAY), if !addresses.is_empty() => {}
        }
    }
}

/// Whether the way is missing, rather than the server.
fn is_of_a_route(error: &io::Error) -> bool {
    use io::ErrorKind::{AddrNotAvailable, HostUnreachable, NetworkUnreachable};
    matches!(error.kind(), AddrNotAvailable | HostUnreachable | NetworkUnreachable)
}

/// Sets what every socket of ours has: no delay, keepalive and, where Linux lets us, cubic: BBR adds about 7 ms
/// to a 13 ms exchange of small frames. A socket that refuses an option still works.
pub fn tune(stream: &TcpStream) {
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_AFTER);
    let options = [
        ("TCP_NODELAY", stream.set_nodelay(true)),
        ("SO_KEEPALIVE", socket.set_tcp_keepalive(&keepalive)),
        #[cfg(target_os = "linux")]
        ("TCP_CONGESTION", socket.set_tcp_congestion(b"cubic")),
    ];
    for (option, result) in options {
        if let Err(error) = result {
            tracing::debug!(option, %error, "socket option not set");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_families_take_turns_from_the_resolvers_first_choice() {
        let parse = |texts: &[&str]| texts.iter().map(|t| t.parse().unwrap()).collect::<Vec<SocketAddr>>();
        let given = parse(&["[::1]:1", "[::2]:1", "[::3]:1", "1.1.1.1:1"]);
        assert_eq!(Vec::from(interleave(given)), parse(&["[::1]:1", "1.1.1.1:1", "[::2]:1", "[::3]:1"]));
    }

    #[tokio::test]
    async fn a_refused_address_gives_way_to_the_next_at_once() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let stream = race(VecDeque::from([closed, listener.local_addr().unwrap()])).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), listener.local_addr().unwrap());
        tune(&stream);
        assert!(stream.nodelay().unwrap());
    }

    #[tokio::test]
    async fn nothing_but_refusals_is_unreachable() {
        let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let error = connect("127.0.0.1", closed.port(), CONNECT_DEADLINE).await.unwrap_err();
        assert!(matches!(error, ConnectError::Unreachable { tried: 1, .. }), "{error}");
    }
}
