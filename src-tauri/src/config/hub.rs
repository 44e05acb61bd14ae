//! What a hub is told.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::{BACKBONE_LISTEN, ConfigError, File, HUB_LISTEN, PUBLIC_HOST, Peers, ledger_url, list, peers, state};
use crate::cli::{AdmissionMode, RoleFlags};
use crate::types::PublicKey;

/// `--headless hub`.
#[derive(Debug, Clone, PartialEq)]
pub struct Hub {
    /// For gateways.
    pub listen: SocketAddr,
    /// The backbone's listener.
    pub backbone: SocketAddr,
    /// Host names that workers dial.
    pub public_hosts: Vec<String>,
    /// Whose workers are taken.
    pub admission: AdmissionMode,
    /// Wallets that are always taken.
    pub allowed: Vec<PublicKey>,
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
        Ok(Self {
            listen: flags.listen.or(file.listen).unwrap_or(HUB_LISTEN),
            backbone: flags.backbone.or(file.backbone).unwrap_or(BACKBONE_LISTEN),
            public_hosts,
            admission: flags.admission.or(file.admission).unwrap_or_default(),
            allowed: list(&flags.allowed, file.allow),
            ledger: ledger_url(flags, file.ledger, &state),
            state,
            allow_public: flags.allow_public || file.allow_public.unwrap_or(false),
            peers: peers(flags, file.peer_key, file.peers)?,
        })
    }
}
