//! What the command line and `kvasir.toml` mean: one checked struct per role.
//!
//! A flag (or its environment variable) beats the file, the file beats the default. Unknown keys are refused,
//! and every default is a named constant.

mod duration;
mod file;
mod size;
mod trust;

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use crate::cli::{Device, GpuFlags, LayerSelection, RoleFlags, exact_type};
use crate::model::BlockType;
use crate::types::PublicKey;

pub use duration::parse_duration;
pub use file::File;
pub use size::parse_bytes;
pub use trust::{Audit, Trust};

/// Where each role keeps its keys and ledgers unless told otherwise: below this directory, by role.
pub const STATE_DIR: &str = "kvasir-state";
/// The backbone listens for hubs here: loopback, since hidden states pass.
pub const BACKBONE_LISTEN: SocketAddr = loopback(7070);
/// The API: loopback, where it needs neither keys nor TLS.
pub const BACKBONE_API: SocketAddr = loopback(8080);
/// The hub listens for gateways here.
pub const HUB_LISTEN: SocketAddr = loopback(7071);
/// The gateway's public address.
pub const GATEWAY_LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 443);
/// Host that workers dial unless the operator names another.
pub const PUBLIC_HOST: &str = "localhost";

const fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

/// Why a role cannot be configured.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not what it should be.
    #[error("{path}: {message}")]
    File {
        /// The file.
        path: PathBuf,
        /// Where and what.
        message: String,
    },
    /// Something that the role cannot do without.
    #[error("{role} needs {flag}: {why}")]
    Missing {
        /// The role.
        role: &'static str,
        /// Flag or key.
        flag: &'static str,
        /// What to do.
        why: &'static str,
    },
    /// A value that makes no sense.
    #[error("{what}: expected {expected}, got {got:?}")]
    Value {
        /// Flag or key.
        what: &'static str,
        /// What would do.
        expected: &'static str,
        /// What was given.
        got: String,
    },
}

/// Keys between our own servers. No key file = plain TCP, which only loopback may use; no trusted key = nobody may come.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Peers {
    /// This server's key file.
    pub key_file: Option<PathBuf>,
    /// Keys of the servers it talks to.
    pub trusted: Vec<PublicKey>,
}

/// How the backbone's API serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Api {
    /// For clients.
    pub listen: SocketAddr,
    /// PEM files of the certificate chain and its private key; plain HTTP without.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Whether other machines may be served without TLS or keys.
    pub allow_insecure: bool,
    /// Bytes for the states of running generations, if said.
    pub state_bytes: Option<u64>,
    /// Most new tokens of one request, if said.
    pub new_tokens_max: Option<NonZeroUsize>,
}

/// `--headless backbone`.
#[derive(Debug, Clone, PartialEq)]
pub struct Backbone {
    /// Model; the embedded one when absent.
    pub model: Option<PathBuf>,
    /// Type that its routed experts are quantised to in memory.
    pub experts: Option<BlockType>,
    /// For hubs.
    pub listen: SocketAddr,
    /// For clients.
    pub api: Api,
    /// Keys of the API and their usage.
    pub state: PathBuf,
    /// Layers that workers may hold.
    pub remote_layers: LayerSelection,
    /// Whom it trusts, and how far.
    pub trust: Trust,
    /// Whether a public address is meant.
    pub allow_public: bool,
    /// Keys.
    pub peers: Peers,
}

/// `--headless hub`.
#[derive(Debug, Clone, PartialEq)]
pub struct Hub {
    /// For gateways.
    pub listen: SocketAddr,
    /// The backbone's listener.
    pub backbone: SocketAddr,
    /// Host names that workers dial.
    pub public_hosts: Vec<String>,
    /// Keys and meters.
    pub state: PathBuf,
    /// Meters.
    pub ledger: String,
    /// Whether a public address is meant.
    pub allow_public: bool,
    /// Keys.
    pub peers: Peers,
}

/// How the gateway proves its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tls {
    /// From PEM files.
    Files {
        /// Certificate chain.
        cert: PathBuf,
        /// Private key.
        key: PathBuf,
    },
    /// A throw-away authority kept in the state directory.
    Trial,
}

/// `--headless gateway`.
#[derive(Debug, Clone, PartialEq)]
pub struct Gateway {
    /// For workers and the public.
    pub listen: SocketAddr,
    /// Hubs.
    pub hubs: Vec<SocketAddr>,
    /// Host names that workers may have dialled and that a trial certificate is for; empty = any.
    pub public_hosts: Vec<String>,
    /// Certificates.
    pub tls: Tls,
    /// Trial certificates and accounts.
    pub state: PathBuf,
    /// Accounts.
    pub ledger: String,
    /// Keys.
    pub peers: Peers,
}

/// `--headless worker`.
#[derive(Debug, Clone, PartialEq)]
pub struct Worker {
    /// Gateways, tried in order; none = those of the join code.
    pub gateways: Vec<String>,
    /// Operators whose hubs are trusted; none = the one of the join code.
    pub operators: Vec<PublicKey>,
    /// Join code, or the file with it.
    pub join: Option<String>,
    /// Additional certificate authority.
    pub ca: Option<PathBuf>,
    /// Wallet key, worker id, receipts.
    pub state: PathBuf,
    /// Bytes for experts; when absent, what the hardware offers.
    pub memory_bytes: Option<u64>,
    /// Local model to cut the slice from.
    pub model: Option<PathBuf>,
    /// Type that its routed experts are quantised to in memory.
    pub experts: Option<BlockType>,
    /// What computes.
    pub device: Device,
    /// Which GPU.
    pub gpu: GpuFlags,
}

fn state(flags: &RoleFlags, from_file: Option<PathBuf>, role: &str) -> PathBuf {
    flags.state.clone().or(from_file).unwrap_or_else(|| Path::new(STATE_DIR).join(role))
}

/// The first list that says anything.
fn list<T: Clone>(typed: &[T], from_file: Option<Vec<T>>) -> Vec<T> {
    if typed.is_empty() { from_file.unwrap_or_default() } else { typed.to_vec() }
}

fn experts(flags: &RoleFlags, from_file: Option<String>) -> Result<Option<BlockType>, ConfigError> {
    let named = |text: String| {
        let expected = "q8_0, q6_k, q5_k, q4_k or q4_0";
        exact_type(&text).map_err(|_| ConfigError::Value { what: "experts", expected, got: text })
    };
    flags.experts.map(Ok).or(from_file.map(named)).transpose()
}

fn ledger_url(flags: &RoleFlags, from_file: Option<String>, state: &Path) -> String {
    let default = || format!("sqlite:{}", state.join("ledger.db").display());
    flags.ledger.clone().or(from_file).unwrap_or_else(default)
}

fn peers(flags: &RoleFlags, key: Option<PathBuf>, trusted: Option<Vec<PublicKey>>) -> Result<Peers, ConfigError> {
    let peers = Peers { key_file: flags.peer_key.clone().or(key), trusted: list(&flags.peers, trusted) };
    if peers.key_file.is_none() && !peers.trusted.is_empty() {
        let why = "a trusted peer is talked to with a key of our own; name a file, it is made when missing";
        return Err(ConfigError::Missing { role: "a server with --peer", flag: "--peer-key", why });
    }
    Ok(peers)
}

impl Backbone {
    /// The backbone's configuration.
    ///
    /// # Errors
    /// What is missing or makes no sense.
    pub fn new(flags: &RoleFlags, file: File) -> Result<Self, ConfigError> {
        let (file, audit) = (file.backbone, file.audit);
        let memory = flags.api.state_memory.clone().or(file.state_memory);
        Ok(Self {
            model: flags.model.clone().or(file.model),
            experts: experts(flags, file.experts)?,
            listen: flags.listen.or(file.listen).unwrap_or(BACKBONE_LISTEN),
            api: Api {
                listen: flags.api.listen.or(file.api).unwrap_or(BACKBONE_API),
                tls: flags.api.cert.clone().zip(flags.api.key.clone()).or(file.api_tls_cert.zip(file.api_tls_key)),
                allow_insecure: flags.api.allow_insecure || file.allow_insecure_api.unwrap_or(false),
                state_bytes: memory.map(|text| parse_bytes("--state-memory", &text)).transpose()?,
                new_tokens_max: flags.api.new_tokens_max.or(file.new_tokens_max),
            },
            state: state(flags, file.state, "backbone"),
            remote_layers: flags.remote_layers.clone().or(file.remote_layers).unwrap_or_default(),
            trust: Trust::new(&flags.trust, audit, file.trusted_layers, file.trusted_wallets),
            allow_public: flags.allow_public || file.allow_public.unwrap_or(false),
            peers: peers(flags, file.peer_key, file.peers)?,
        })
    }
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
            ledger: ledger_url(flags, file.ledger, &state),
            state,
            allow_public: flags.allow_public || file.allow_public.unwrap_or(false),
            peers: peers(flags, file.peer_key, file.peers)?,
        })
    }
}

impl Gateway {
    /// The gateway's configuration.
    ///
    /// # Errors
    /// What is missing or makes no sense.
    pub fn new(flags: &RoleFlags, file: File) -> Result<Self, ConfigError> {
        let file = file.gateway;
        let state = state(flags, file.state, "gateway");
        let files = flags.tls_cert.clone().zip(flags.tls_key.clone()).or(file.tls_cert.zip(file.tls_key));
        let tls = match files {
            Some((cert, key)) => Tls::Files { cert, key },
            None if flags.tls_trial || file.tls_trial.unwrap_or(false) => Tls::Trial,
            None => {
                let why = "workers must be able to check whom they dial; for a trial on one network use --tls-trial";
                return Err(ConfigError::Missing { role: "gateway", flag: "--tls-cert and --tls-key", why });
            }
        };
        let mut hubs = list(&flags.hubs, file.hubs);
        if hubs.is_empty() {
            hubs.push(HUB_LISTEN);
        }
        Ok(Self {
            listen: flags.listen.or(file.listen).unwrap_or(GATEWAY_LISTEN),
            hubs,
            public_hosts: list(&flags.public_hosts, file.public_hosts),
            tls,
            ledger: ledger_url(flags, file.ledger, &state),
            state,
            peers: peers(flags, file.peer_key, file.peers)?,
        })
    }
}

impl Worker {
    /// The worker's configuration.
    ///
    /// # Errors
    /// What is missing or makes no sense.
    pub fn new(flags: &RoleFlags, file: File) -> Result<Self, ConfigError> {
        let file = file.worker;
        let gateways = list(&flags.gateways, file.gateways);
        let operators = list(&flags.operators, file.operators);
        let join = flags.join.clone().or(file.join);
        if !gateways.is_empty() && operators.is_empty() && join.is_none() {
            let why = "the key that the operator's hub prints at its start; work is taken from no one else";
            return Err(ConfigError::Missing { role: "worker", flag: "--operator", why });
        }
        let memory = flags.memory.clone().or(file.memory);
        Ok(Self {
            gateways,
            operators,
            join,
            ca: flags.ca.clone().or(file.ca),
            state: state(flags, file.state, "worker"),
            memory_bytes: memory.map(|text| parse_bytes("--memory", &text)).transpose()?,
            model: flags.model.clone().or(file.model),
            experts: experts(flags, file.experts)?,
            device: flags.device.or(file.device).unwrap_or(Device::Auto),
            gpu: GpuFlags {
                name: flags.gpu.name.clone().or(file.gpu),
                allow_software: flags.gpu.allow_software || file.allow_software.unwrap_or(false),
            },
        })
    }
}

#[cfg(test)]
mod tests;
