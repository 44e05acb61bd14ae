//! `kvasir.toml`: one table per role and one for audits, unknown keys refused.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{Audit, ConfigError};
use crate::cli::{AdmissionMode, Device, ExpertsLocal, LayerSelection, RemoteLayers, Speculate};
use crate::net::proxy::ProxyChoice;
use crate::types::PublicKey;

/// Largest configuration file: far more than all keys need.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct File {
    pub(super) backbone: BackboneTable,
    pub(super) audit: Audit,
    pub(super) hub: HubTable,
    pub(super) gateway: GatewayTable,
    pub(super) worker: WorkerTable,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct BackboneTable {
    pub model: Option<PathBuf>,
    pub experts: Option<String>,
    pub listen: Option<SocketAddr>,
    pub api: Option<SocketAddr>,
    pub api_tls_cert: Option<PathBuf>,
    pub api_tls_key: Option<PathBuf>,
    pub allow_insecure_api: Option<bool>,
    pub state_memory: Option<String>,
    pub speculate: Option<Speculate>,
    pub new_tokens_max: Option<NonZeroUsize>,
    pub state: Option<PathBuf>,
    pub remote_layers: Option<RemoteLayers>,
    pub experts_memory: Option<String>,
    pub trusted_layers: Option<LayerSelection>,
    pub trusted_wallets: Option<Vec<PublicKey>>,
    pub expert_cache: Option<String>,
    pub experts_local: Option<ExpertsLocal>,
    pub allow_public: Option<bool>,
    pub peer_key: Option<PathBuf>,
    pub peers: Option<Vec<PublicKey>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct HubTable {
    pub listen: Option<SocketAddr>,
    pub backbone: Option<SocketAddr>,
    pub rendezvous: Option<Vec<String>>,
    pub proxy: Option<ProxyChoice>,
    pub public_hosts: Option<Vec<String>>,
    pub admission: Option<AdmissionMode>,
    pub allow: Option<Vec<PublicKey>>,
    pub oldest_worker: Option<String>,
    pub state: Option<PathBuf>,
    pub ledger: Option<String>,
    pub allow_public: Option<bool>,
    pub peer_key: Option<PathBuf>,
    pub peers: Option<Vec<PublicKey>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct GatewayTable {
    pub listen: Option<SocketAddr>,
    pub connections_per_address: Option<NonZeroUsize>,
    pub admin: Option<SocketAddr>,
    pub allow_public: Option<bool>,
    pub hubs: Option<Vec<SocketAddr>>,
    pub public_hosts: Option<Vec<String>>,
    pub tls_cert: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
    pub tls_trial: Option<bool>,
    pub operator: Option<PublicKey>,
    pub claim_after: Option<String>,
    pub state: Option<PathBuf>,
    pub ledger: Option<String>,
    pub peer_key: Option<PathBuf>,
    pub peers: Option<Vec<PublicKey>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct WorkerTable {
    pub gateways: Option<Vec<String>>,
    pub operators: Option<Vec<PublicKey>>,
    pub join: Option<String>,
    pub ca: Option<PathBuf>,
    pub proxy: Option<ProxyChoice>,
    pub state: Option<PathBuf>,
    pub memory: Option<String>,
    pub model: Option<PathBuf>,
    pub weights: Option<PathBuf>,
    pub cache: Option<PathBuf>,
    pub cache_size: Option<String>,
    pub experts: Option<String>,
    pub device: Option<Device>,
    pub gpu: Option<String>,
    pub allow_software: Option<bool>,
    pub duty_percent: Option<u8>,
    pub schedule: Option<Vec<String>>,
    pub on_battery: Option<bool>,
    pub on_metered: Option<bool>,
    pub only_when_idle: Option<bool>,
    pub pause_for_apps: Option<Vec<String>>,
    pub pause_for_fullscreen: Option<bool>,
}

impl File {
    /// Reads `path`, or nothing when there is none.
    ///
    /// # Errors
    /// A file that cannot be read, is too large, or has a key that does not belong there.
    pub fn read(path: Option<&Path>) -> Result<Self, ConfigError> {
        let Some(path) = path else { return Ok(Self::default()) };
        let read = |source| ConfigError::Read { path: path.to_owned(), source };
        let bytes = std::fs::metadata(path).map_err(read)?.len();
        if bytes > FILE_BYTES_MAX {
            let message = format!("expected at most {FILE_BYTES_MAX} bytes, got {bytes}");
            return Err(ConfigError::File { path: path.to_owned(), message });
        }
        let text = std::fs::read_to_string(path).map_err(read)?;
        toml::from_str(&text)
            .map_err(|e| ConfigError::File { path: path.to_owned(), message: e.to_string().trim_end().to_owned() })
    }
}
