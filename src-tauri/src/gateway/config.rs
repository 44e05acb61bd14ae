//! What a gateway needs to know, every limit with its default and reason.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;

use crate::ledger::{ClaimTerms, Rate};
use crate::net::certificate::CertificateFiles;
use crate::net::peer::PeerSecurity;
use crate::wire::rendezvous;

/// A hub that this gateway serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubEndpoint {
    /// Where it listens for gateways.
    pub addr: SocketAddr,
}

/// How many of each a gateway takes at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections in all. 10,000 leaves room below the usual 65,536 descriptors: a splice takes two.
    pub connections: usize,
    /// Connections of one IPv4 address or IPv6 /64. Several rigs share a home, many homes share a carrier's address.
    pub connections_per_peer: usize,
    /// Connections that one hub may keep here, ready for workers; a hub keeps eight unless told otherwise.
    pub parked_per_hub: usize,
    /// Those of an address of which no request was read yet: a crowd behind one address comes in over some seconds,
    /// each of it is here for a few round trips.
    pub fresh_per_peer: usize,
    /// Handshakes of an address in a minute. Four for each of its connections: at 0.3 ms each, one address can have half
    /// a hundredth of a core.
    pub handshakes_per_peer_minute: usize,
    /// Subscriptions to wallets in all, of an address, and to one wallet.
    pub subscriptions: Subscribers,
}

/// How many may listen for credits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subscribers {
    /// In all: a tenth of the connections.
    pub all: usize,
    /// Of one address.
    pub per_peer: usize,
    /// To one wallet; it is one person's.
    pub per_wallet: usize,
}

impl Limits {
    /// As many connections of one address as said, and four times as many handshakes in a minute.
    #[must_use]
    pub fn of_address(connections: usize) -> Self {
        let handshakes_per_peer_minute = connections.saturating_mul(4);
        Self { connections_per_peer: connections, handshakes_per_peer_minute, ..Self::default() }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            connections_per_peer: 256,
            parked_per_hub: 64,
            fresh_per_peer: 64,
            handshakes_per_peer_minute: 4 * 256,
            subscriptions: Subscribers { all: 1_000, per_peer: 32, per_wallet: 8 },
        }
    }
}

/// How long a gateway waits for each thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// TLS and the request head together; a total, so that single bytes buy no time.
    pub head: Duration,
    /// Reaching a hub and its answer to a poll; finding a worker a hub among several.
    pub hub: Duration,
    /// One hub's answer to a worker's upgrade, before the next hub is tried: a worker waits ten seconds in all.
    pub attempt: Duration,
    /// Between two pings of a connection that a hub keeps here.
    pub parked_ping: Duration,
    /// The answer to such a ping.
    pub parked_answer: Duration,
    /// One public request and its answer.
    pub public: Duration,
    /// A splice without a byte either way. Both ends ping within 30 s, so a living one never comes near.
    pub idle: Duration,
    /// The same once one side has ended: a peer that never closes must not keep a dead splice.
    pub half_closed: Duration,
    /// Splices that go on after the shutdown was asked for.
    pub drain: Duration,
    /// A subscription; whoever still listens comes again.
    pub subscription: Duration,
    /// Between two signs of life of a subscription without news: well below the minute of most proxies.
    pub heartbeat: Duration,
    /// Between two looks at the accounts behind all subscriptions, for what other gateways credited.
    pub refresh: Duration,
    /// Between two looks at the certificate's files.
    pub certificate: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            head: Duration::from_secs(10),
            hub: Duration::from_secs(10),
            attempt: Duration::from_secs(3),
            parked_ping: rendezvous::PING_EVERY,
            parked_answer: Duration::from_secs(10),
            public: Duration::from_secs(30),
            idle: Duration::from_secs(90),
            half_closed: Duration::from_secs(10),
            drain: Duration::from_secs(30),
            subscription: Duration::from_secs(3600),
            heartbeat: Duration::from_secs(20),
            refresh: Duration::from_secs(10),
            certificate: Duration::from_secs(10),
        }
    }
}

/// A gateway's configuration.
#[derive(Clone)]
pub struct GatewayConfig {
    /// The public certificate; `http/1.1` is the only protocol spoken.
    pub tls: Arc<ServerConfig>,
    /// The files behind it, to be looked at again; none when it came from elsewhere.
    pub certificate: Option<Arc<CertificateFiles>>,
    /// Hubs that are dialled. Those whose keys are pinned in `hub_peer` may also dial in.
    pub hubs: Vec<HubEndpoint>,
    /// How this gateway and its hubs recognise each other.
    pub hub_peer: PeerSecurity,
    /// Names a worker may have dialled, without port; empty = any.
    pub public_hosts: Vec<String>,
    /// Where the accounts are kept, if on this machine: its disk is watched.
    pub kept_in: Option<PathBuf>,
    /// Price of work.
    pub rate: Rate,
    /// What claims are taken; none without an operator that they are addressed to.
    pub claims: Option<ClaimTerms>,
    /// Between two polls of a hub.
    pub poll_interval: Duration,
    /// Limits.
    pub limits: Limits,
    /// Deadlines.
    pub deadlines: Deadlines,
}

impl GatewayConfig {
    /// The defaults: hubs on this machine, any public host, 7 nano-KVR per work byte, a poll a second.
    #[must_use]
    pub fn new(tls: Arc<ServerConfig>, hubs: Vec<HubEndpoint>) -> Self {
        Self {
            tls,
            certificate: None,
            hubs,
            hub_peer: PeerSecurity::Loopback,
            public_hosts: Vec::new(),
            kept_in: None,
            rate: Rate::default(),
            claims: None,
            poll_interval: Duration::from_secs(1),
            limits: Limits::default(),
            deadlines: Deadlines::default(),
        }
    }
}

impl fmt::Debug for GatewayConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatewayConfig")
            .field("hubs", &self.hubs)
            .field("public_hosts", &self.public_hosts)
            .field("rate", &self.rate)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}
