//! The one way out: every HTTPS and WebSocket connection of every role is made here, leg by leg.
//!
//! DNS, TCP, the proxy if one is demanded, TLS; the caller adds its upgrade. Names are resolved at every attempt, both
//! address families are raced (RFC 8305), and all legs together have one deadline. **Promises:** a failure names its leg;
//! "this machine is offline" is told from "the gateway is down"; nothing is dialled past a proxy that is demanded.

mod error;

use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use super::Io;
use super::bind::is_loopback;
use super::proxy::{self, Proxies, Proxy, ProxyChoice, ProxyError};
use super::resolve::{Resolve, SystemResolver};
use super::route::Outward;
use super::tcp::{self, ConnectError};
use super::tls::{self, TlsError};
use super::trust::{Seen, Trust};

pub use error::{DialError, Leg};

/// How long all legs may take together.
pub const DIAL_DEADLINE: Duration = tcp::CONNECT_DEADLINE;

/// A leg that was passed.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    /// Which.
    pub leg: Leg,
    /// How long it took.
    pub took: Duration,
    /// What was found, in words.
    pub found: String,
}

/// The way that a connection took, as far as it came.
#[derive(Clone, Debug, Default)]
pub struct Trip {
    /// The legs that were passed, in order.
    pub steps: Vec<Step>,
    /// Our end of the TCP connection and the other: the gateway's, or the proxy's.
    pub ends: Option<(SocketAddr, SocketAddr)>,
    /// The gateway's certificate.
    pub certificate: Option<Seen>,
}

impl Trip {
    /// Runs a leg until `until` and notes what it found.
    pub(super) async fn leg<T, E: Into<DialError>>(
        &mut self,
        leg: Leg,
        to: &Destination<'_>,
        work: impl Future<Output = Result<T, E>>,
        found: impl FnOnce(&T) -> String,
    ) -> Result<T, DialError> {
        let start = Instant::now();
        let late = |_| DialError::Deadline { host: to.host.to_owned(), leg, deadline_ms: to.deadline.as_millis() };
        let done = timeout_at(to.until, work).await.map_err(late)?.map_err(Into::into)?;
        self.steps.push(Step { leg, took: start.elapsed(), found: found(&done) });
        Ok(done)
    }
}

/// Where a connection leads, and until when it must stand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Destination<'a> {
    pub host: &'a str,
    pub port: u16,
    pub deadline: Duration,
    pub until: Instant,
}

impl<'a> Destination<'a> {
    pub fn new(host: &'a str, port: u16, deadline: Duration) -> Self {
        Self { host, port, deadline, until: Instant::now() + deadline }
    }
}

/// How to get out: what was typed about proxies and trust.
#[derive(Clone)]
pub struct Outbound {
    /// Proxies.
    pub proxy: ProxyChoice,
    /// PEM files of additional certificate authorities.
    pub extra_ca: Vec<PathBuf>,
    /// One more, as a PEM text: the network's own.
    pub network_ca_pem: Option<String>,
    /// Who knows names.
    pub resolver: Arc<dyn Resolve>,
}

impl Default for Outbound {
    fn default() -> Self {
        let resolver = Arc::new(SystemResolver);
        Self { proxy: ProxyChoice::default(), extra_ca: Vec::new(), network_ca_pem: None, resolver }
    }
}

/// Makes connections of TLS. One serves all that leave by the same settings.
pub struct Connector {
    way: Way,
    trust: Trust,
}

impl Connector {
    /// By these settings and the environment's.
    ///
    /// # Errors
    /// A certificate authority that cannot be read.
    pub fn new(outbound: &Outbound) -> Result<Self, TlsError> {
        let trust = Trust::new(&outbound.extra_ca, outbound.network_ca_pem.as_deref())?;
        Ok(Self { way: Way::new(outbound), trust })
    }

    /// Without any proxy, whatever the environment says.
    #[must_use]
    pub fn direct(trust: impl Into<Trust>) -> Self {
        let outbound = Outbound { proxy: ProxyChoice::Direct, ..Outbound::default() };
        Self { way: Way::new(&outbound), trust: trust.into() }
    }

    /// Whom it trusts.
    #[must_use]
    pub fn trust(&self) -> &Trust {
        &self.trust
    }

    /// A stream of TLS to a host.
    pub(super) async fn secure(&self, to: &Destination<'_>, trip: &mut Trip) -> Result<Io, DialError> {
        let io = self.way.open(to, Some(&self.trust), trip).await?;
        let name = tls::server_name(to.host)?;
        let handshake = async {
            let stream = tls::wrap_client(self.trust.config(), to.host, io).await?;
            let seen = self.trust.see(to.host, &name, stream.get_ref().1);
            Ok::<_, TlsError>((Box::new(stream) as Io, seen))
        };
        let found = |(_, seen): &(Io, Option<Seen>)| match seen {
            Some(seen) => format!("{}, certificate by {}", seen.version, seen.issuer),
            None => "a certificate that is taken".to_owned(),
        };
        let (io, seen) = trip.leg(Leg::Tls, to, handshake, found).await?;
        trip.certificate = seen;
        Ok(io)
    }

    /// A stream of bytes to a server on this machine, in the clear, which no proxy is asked for.
    pub(super) async fn plain(&self, to: &Destination<'_>, trip: &mut Trip) -> Result<Io, DialError> {
        let addresses = self.way.resolve(to, trip).await?;
        if !addresses.iter().all(|address| is_loopback(address.ip())) {
            return Err(DialError::Plain { host: to.host.to_owned() });
        }
        Ok(Box::new(reach(to, addresses, trip).await?))
    }
}

/// The way to a host below TLS: direct, or through the proxy that is demanded.
pub struct Way {
    proxies: Proxies,
    resolver: Arc<dyn Resolve>,
}

impl Way {
    /// By these settings and the environment's.
    #[must_use]
    pub fn new(outbound: &Outbound) -> Self {
        let env = |name: &str| std::env::var(name).ok();
        Self { proxies: Proxies::new(&outbound.proxy, env), resolver: Arc::clone(&outbound.resolver) }
    }

    /// A stream of bytes to a host; `trust` is for a proxy that speaks TLS itself.
    pub(super) async fn open(
        &self,
        to: &Destination<'_>,
        trust: Option<&Trust>,
        trip: &mut Trip,
    ) -> Result<Io, DialError> {
        let Some(proxy) = self.proxies.towards(to.host, to.port).await? else {
            return Ok(Box::new(self.connect(to, trip).await?));
        };
        let io = self.to_proxy(&proxy, to, trust, trip).await?;
        let tunnel = proxy::ask(&proxy, io, to.host, to.port, to.until);
        trip.leg(Leg::Proxy, to, tunnel, |_| proxy.to_string()).await
    }

    async fn to_proxy(
        &self,
        proxy: &Proxy,
        to: &Destination<'_>,
        trust: Option<&Trust>,
        trip: &mut Trip,
    ) -> Result<Io, DialError> {
        let at = Destination { host: proxy.host(), port: proxy.port(), ..*to };
        let tcp = self.connect(&at, trip).await.map_err(|error| match error {
            DialError::Tcp(source) => ProxyError::Down { proxy: proxy.clone(), source }.into(),
            other => other,
        })?;
        if !proxy.is_tls() {
            return Ok(Box::new(tcp));
        }
        let secured = async {
            let tls = |source| ProxyError::Tls { proxy: proxy.clone(), source: Box::new(source) };
            let config = match trust {
                Some(trust) => trust.config(),
                None => Trust::new(&[], None).map_err(tls)?.config(),
            };
            tls::wrap_client(config, at.host, tcp).await.map_err(tls)
        };
        Ok(Box::new(trip.leg(Leg::Proxy, to, secured, |_| "TLS with the proxy".to_owned()).await?))
    }

    async fn connect(&self, to: &Destination<'_>, trip: &mut Trip) -> Result<TcpStream, DialError> {
        let addresses = self.resolve(to, trip).await?;
        reach(to, addresses, trip).await
    }

    async fn resolve(&self, to: &Destination<'_>, trip: &mut Trip) -> Result<Vec<SocketAddr>, DialError> {
        let listed = |found: &Vec<SocketAddr>| {
            let all: Vec<_> = found.iter().map(|address| address.ip().to_string()).collect();
            all.join(", ")
        };
        let resolved = trip.leg(Leg::Dns, to, tcp::addresses(&*self.resolver, to.host, to.port), listed).await;
        resolved.map_err(|error| unreached(to.host, error))
    }
}

async fn reach(to: &Destination<'_>, addresses: Vec<SocketAddr>, trip: &mut Trip) -> Result<TcpStream, DialError> {
    let reaching = async {
        let stream = tcp::reach(to.host, to.port, addresses).await?;
        let ends = stream.local_addr().and_then(|local| Ok((local, stream.peer_addr()?))).ok();
        Ok::<_, ConnectError>((stream, ends))
    };
    let found = |(_, ends): &(TcpStream, Option<(SocketAddr, SocketAddr)>)| {
        ends.map_or_else(String::new, |(_, peer)| peer.to_string())
    };
    let reached = trip.leg(Leg::Tcp, to, reaching, found).await;
    let (stream, ends) = reached.map_err(|error| unreached(to.host, error))?;
    trip.ends = ends;
    Ok(stream)
}

/// Tells a machine that is offline from a server that is down.
fn unreached(host: &str, error: DialError) -> DialError {
    match error {
        DialError::Tcp(source) if source.may_be_offline() && Outward::now().is_none() => {
            DialError::Offline { host: host.to_owned(), source }
        }
        other => other,
    }
}
