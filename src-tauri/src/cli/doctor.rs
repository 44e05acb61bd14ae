//! Flags of `kvasir doctor`.

use std::path::PathBuf;

use clap::Args;

use super::GpuFlags;
use crate::net::proxy::ProxyChoice;
use crate::types::PublicKey;

/// What to examine; without gateway or join code, the network that the worker of the state directory has joined.
#[derive(Debug, Default, Args)]
pub struct DoctorArgs {
    /// Gateway to reach, e.g. wss://gateway.example (repeatable).
    #[arg(long = "gateway", value_name = "URL", env = "KVASIR_GATEWAY")]
    pub gateways: Vec<String>,
    /// Public key of an operator whose hubs are trusted (repeatable).
    #[arg(long = "operator", value_name = "KEY", env = "KVASIR_OPERATOR")]
    pub operators: Vec<PublicKey>,
    /// Join code, or file with one; it is read, not joined.
    #[arg(long, env = "KVASIR_JOIN")]
    pub join: Option<String>,
    /// PEM file with an additional certificate authority.
    #[arg(long)]
    pub ca: Option<PathBuf>,
    /// Proxy, http://[user:password@]host:port, or none; without it as HTTPS_PROXY, ALL_PROXY and NO_PROXY say, else the
    /// desktop's settings.
    #[arg(long, value_name = "URL")]
    pub proxy: Option<ProxyChoice>,
    /// Configuration file, of which the worker's table is read.
    #[arg(long, env = "KVASIR_CONFIG")]
    pub config: Option<PathBuf>,
    /// Directory of the worker's key and receipts.
    #[arg(long, env = "KVASIR_STATE")]
    pub state: Option<PathBuf>,
    /// Which GPU.
    #[command(flatten)]
    pub gpu: GpuFlags,
    /// One JSON document on stdout.
    #[arg(long)]
    pub json: bool,
    /// Write the report to a file as well, without keys, addresses, passwords and home directories.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// A log whose newest lines go into that file, redacted.
    #[arg(long, value_name = "FILE", requires = "report")]
    pub log: Option<PathBuf>,
}
