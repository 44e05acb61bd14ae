//! What a hub is told.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::{BACKBONE_LISTEN, ConfigError, File, HUB_LISTEN, PUBLIC_HOST, Peers, ledger_url, list, peers, state};
use crate::cli::{AdmissionMode, RoleFlags};
use crate::net::proxy::ProxyChoice;
use crate::types::PublicKey;
use crate::wire::agent::Version;

/// Where a gateway listens unless its URL says otherwise.
const HTTPS: u16 = 443;

/// `--headless hub`.
#[derive(Debug, Clone, PartialEq)]
pub struct Hub {
    /// For gateways.
    pub listen: SocketAddr,
    /// The backbone's listener.
    pub backbone: SocketAddr,
    /// Public listeners of gateways, `host:port`, where connections are kept ready.
    pub rendezvous: Vec<String>,
    /// Proxy towards them.
    pub proxy: ProxyChoice,
    /// Host names that workers dial.
    pub public_hosts: Vec<String>,
    /// Whose workers are taken.
    pub admission: AdmissionMode,
    /// Wallets that are always taken.
    pub allowed: Vec<PublicKey>,
    /// Older programs of workers are told to update.
    pub oldest_worker: Option<Version>,
    /// Keys and meters.
    pub state: PathBuf,
    /// Meters.
    pub ledger: String,
    /// Whether a public address is meant.
    pub allow_public: bool,
    /// Keys.
    pub peers: Peers,
}

impl Hub {
    /// The hub's configuration.
    ///
    /// # Errors
    /// What is missing or makes no sense.
    pub fn new(flags: &RoleFlags, file: File) -> Result<Self, ConfigError> {
        let file = file.hub;
        let state = state(flags, file.state, "hub");
        let mut public_hosts = list(&flags.public_hosts, file.public_hosts);
        if public_hosts.is_empty() {
            public_hosts.push(PUBLIC_HOST.to_owned());
        }
        let peers = peers(flags, file.peer_key, file.peers)?;
        let rendezvous = list(&flags.rendezvous, file.rendezvous);
        let rendezvous: Vec<_> = rendezvous.iter().map(|url| listener(url)).collect::<Result<_, _>>()?;
        if !rendezvous.is_empty() && (peers.key_file.is_none() || peers.trusted.is_empty()) {
            let why = "a gateway tells its hubs from the public by their keys: name our key file and the gateway's key";
            return Err(ConfigError::Missing { role: "a hub with --rendezvous", flag: "--peer-key and --peer", why });
        }
        let from_file = file.oldest_worker.map(|text| {
            let expected = "a version such as 1.2.3";
            text.parse().map_err(|_| ConfigError::Value { what: "oldest_worker", expected, got: text })
        });
        Ok(Self {
            oldest_worker: flags.oldest_worker.map(Ok).or(from_file).transpose()?,
            listen: flags.listen.or(file.listen).unwrap_or(HUB_LISTEN),
            backbone: flags.backbone.or(file.backbone).unwrap_or(BACKBONE_LISTEN),
            rendezvous,
            proxy: flags.network.proxy.clone().or(file.proxy).unwrap_or_default(),
            public_hosts,
            admission: flags.admission.or(file.admission).unwrap_or_default(),
            allowed: list(&flags.allowed, file.allow),
            ledger: ledger_url(flags, file.ledger, &state),
            state,
            allow_public: flags.allow_public || file.allow_public.unwrap_or(false),
            peers,
        })
    }
}

/// `host:port` of a gateway's URL: `wss://host`, `wss://host:port`, or the same without a scheme.
fn listener(url: &str) -> Result<String, ConfigError> {
    let bare = url.strip_prefix("wss://").unwrap_or(url);
    let bare = bare.strip_suffix('/').unwrap_or(bare);
    let fits = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'-' | b'_' | b':' | b'[' | b']');
    if bare.is_empty() || !bare.bytes().all(fits) {
        let expected = "wss://host or wss://host:port";
        return Err(ConfigError::Value { what: "--rendezvous", expected, got: url.to_owned() });
    }
    let has_port = bare.rsplit_once(':').is_some_and(|(host, port)| !port.contains(']') && !host.is_empty());
    Ok(if has_port { bare.to_owned() } else { format!("{bare}:{HTTPS}") })
}
