//! What the command line and `kvasir.toml` mean: one checked struct per role.
//!
//! A flag (or its environment variable) beats the file, the file beats the default. Unknown keys are refused,
//! and every default is a named constant.

mod backbone;
mod doctor;
mod duration;
mod file;
mod gateway;
mod hub;
mod site;
mod size;
mod trust;
mod worker;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use crate::cli::{RoleFlags, exact_type};
use crate::model::BlockType;
use crate::types::PublicKey;

pub use backbone::{Api, Backbone};
pub use duration::parse_duration;
pub use file::File;
pub use gateway::{Gateway, Tls};
pub use hub::Hub;
pub use site::Site;
pub use size::parse_bytes;
pub use trust::{Audit, Trust};
pub use worker::Worker;

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
/// Where a worker keeps fetched experts, in its state directory.
const CACHE_DIR: &str = "experts";
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

fn state(flags: &RoleFlags, from_file: Option<PathBuf>, role: &str) -> PathBuf {
    flags.state.clone().or(from_file).unwrap_or_else(|| Path::new(STATE_DIR).join(role))
}

/// A size from flag or file.
fn bytes(flag: &'static str, typed: Option<&String>, file: Option<String>) -> Result<Option<u64>, ConfigError> {
    typed.cloned().or(file).map(|text| parse_bytes(flag, &text)).transpose()
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

#[cfg(test)]
mod tests;
