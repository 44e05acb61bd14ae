//! Flags of the server roles; `config` puts them together with the file and the defaults.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{AdmissionMode, ApiFlags, CourtesyFlags, ExpertFlags, NetworkFlags, TrustFlags, exact_type};
use crate::model::BlockType;
use crate::types::PublicKey;
use crate::wire::agent::Version;

/// The server roles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Runs the model and serves completions.
    Backbone,
    /// Owns the workers' sessions and meters them.
    Hub,
    /// Public TLS end: splices workers to the hub, credits wallets.
    Gateway,
    /// Computes experts for pay.
    Worker,
}

/// Flags of the server roles; each one overrides its key in `kvasir.toml`.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Server roles")]
pub struct RoleFlags {
    /// Configuration file; one table per role.
    #[arg(long, env = "KVASIR_CONFIG")]
    pub config: Option<PathBuf>,
    /// Directory for keys, ledgers and receipts of this role.
    #[arg(long, env = "KVASIR_STATE")]
    pub state: Option<PathBuf>,
    /// Address to listen on (backbone: for hubs; hub: for gateways; gateway: for workers and the public).
    #[arg(long)]
    pub listen: Option<SocketAddr>,
    /// Listen on an address that the whole network reaches, although hub and backbone (gateway: --admin) should not be public.
    #[arg(long)]
    pub allow_public: bool,
    /// backbone: model file (.gguf) or directory (safetensors); worker: as --weights.
    #[arg(long)]
    pub model: Option<PathBuf>,
    /// backbone, worker: quantise a float model's routed experts in memory: q8_0, q6_k, q5_k, q4_k or q4_0.
    #[arg(long, value_name = "TYPE", value_parser = exact_type)]
    pub experts: Option<BlockType>,
    /// Flags of the backbone's API.
    #[command(flatten)]
    pub api: ApiFlags,
    /// Flags about experts.
    #[command(flatten)]
    pub holding: ExpertFlags,
    /// Flags about workers' honesty.
    #[command(flatten)]
    pub trust: TrustFlags,
    /// hub: address where the backbone listens for hubs.
    #[arg(long)]
    pub backbone: Option<SocketAddr>,
    /// hub: gateway where connections are kept ready, for a hub that the gateway cannot dial, e.g. wss://gateway.example
    /// (repeatable); both need each other's key (--peer).
    #[arg(long = "rendezvous", value_name = "URL")]
    pub rendezvous: Vec<String>,
    /// hub, gateway: host name that workers dial (repeatable); a worker that was sent to another host is refused.
    #[arg(long = "public-host")]
    pub public_hosts: Vec<String>,
    /// hub: whose workers are taken.
    #[arg(long, value_enum)]
    pub admission: Option<AdmissionMode>,
    /// hub: wallet whose workers are always taken, unless it is banned (repeatable).
    #[arg(long = "allow", value_name = "WALLET")]
    pub allowed: Vec<PublicKey>,
    /// hub: tell workers with an older program than this to update, e.g. 0.2.0.
    #[arg(long, value_name = "VERSION")]
    pub oldest_worker: Option<Version>,
    /// gateway: address of a hub (repeatable). Hubs whose keys are pinned with --peer may also dial in.
    #[arg(long = "hub")]
    pub hubs: Vec<SocketAddr>,
    /// gateway: most connections of one address (IPv6: of a /64); more than 256 where many rigs share one.
    #[arg(long)]
    pub connections_per_address: Option<NonZeroUsize>,
    /// gateway: address of a plain HTTP listener for the operator (/metrics, /status), on loopback; none when absent.
    #[arg(long, value_name = "ADDR")]
    pub admin: Option<SocketAddr>,
    /// hub, gateway: where accounts are kept: sqlite:FILE for one machine, postgres://USER@HOST/DATABASE for several.
    #[arg(long, value_name = "URL", env = "KVASIR_LEDGER", hide_env_values = true)]
    pub ledger: Option<String>,
    /// gateway: how old credit must be to be claimed: 24h unless told otherwise.
    #[arg(long, value_name = "TIME")]
    pub claim_after: Option<String>,
    /// gateway: PEM file with the certificate chain; a changed file is taken without a restart.
    #[arg(long, requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// gateway: PEM file with the certificate's private key.
    #[arg(long, requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// gateway: a certificate authority of its own in the state directory (made when missing), for trials on one network.
    #[arg(long, conflicts_with = "tls_cert")]
    pub tls_trial: bool,
    /// Flags about a worker's network.
    #[command(flatten)]
    pub network: NetworkFlags,
    /// Flags about the owner's wishes.
    #[command(flatten)]
    pub courtesy: CourtesyFlags,
    /// worker: memory for experts, e.g. 4GiB; without it a GPU gives what it has free, a CPU 2GiB.
    #[arg(long)]
    pub memory: Option<String>,
    /// worker: what computes.
    #[arg(long, value_enum)]
    pub device: Option<Device>,
    /// worker: which GPU.
    #[command(flatten)]
    pub gpu: GpuFlags,
    /// Key file of this server towards our own other servers (made when missing).
    #[arg(long)]
    pub peer_key: Option<PathBuf>,
    /// Public key of another server of ours that may connect or is dialled (repeatable).
    #[arg(long = "peer")]
    pub peers: Vec<PublicKey>,
}

/// What computes experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// This machine's CPU.
    Cpu,
    /// A GPU; an error when there is none.
    Gpu,
    /// A GPU if there is one, else the CPU.
    Auto,
}

/// Which GPU, where a GPU computes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct GpuFlags {
    /// Part of the GPU's name or identity, as `kvasir gpu` shows them; the best one when absent.
    #[arg(long = "gpu", value_name = "NAME")]
    pub name: Option<String>,
    /// Take a GPU that is a program on the CPU, too: for tests, since it is slower than the CPU itself.
    #[arg(long)]
    pub allow_software: bool,
}
