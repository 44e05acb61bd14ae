//! What was typed about the backbone's API: its flags, and `kvasir keys`.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::Speculate;

/// State directory of the backbone, where its API's keys are kept.
pub const BACKBONE_STATE: &str = "kvasir-state/backbone";

/// Flags of the backbone's API.
#[derive(Debug, Default, Args)]
pub struct ApiFlags {
    /// backbone: address of the API.
    #[arg(id = "api", long = "api")]
    pub listen: Option<SocketAddr>,
    /// backbone: PEM file with the API's certificate chain.
    #[arg(id = "api_tls_cert", long = "api-tls-cert", requires = "api_tls_key")]
    pub cert: Option<PathBuf>,
    /// backbone: PEM file with the private key of the API's certificate.
    #[arg(id = "api_tls_key", long = "api-tls-key", requires = "api_tls_cert")]
    pub key: Option<PathBuf>,
    /// backbone: serve the API to other machines although it lacks TLS or keys.
    #[arg(id = "allow_insecure_api", long = "allow-insecure-api")]
    pub allow_insecure: bool,
    /// backbone: memory for the states of running generations, e.g. 4GiB.
    #[arg(long)]
    pub state_memory: Option<String>,
    /// backbone: who drafts tokens ahead; texts stay the same.
    #[arg(long, value_enum)]
    pub speculate: Option<Speculate>,
    /// backbone: most new tokens of one request.
    #[arg(long)]
    pub new_tokens_max: Option<NonZeroUsize>,
}

/// `kvasir keys …`.
#[derive(Debug, Subcommand)]
pub enum KeysCommand {
    /// Print the public key of a server's --peer-key file, for --peer of the others; the file is made when missing.
    Peer {
        /// The key file.
        file: PathBuf,
    },
    /// Make a key and show it, once. The first one closes the API to everybody without a key.
    Create(CreateKeyArgs),
    /// Show all keys, their limits and what they used.
    List {
        /// Directory of the keys.
        #[arg(long, env = "KVASIR_STATE", default_value = BACKBONE_STATE)]
        state: PathBuf,
        /// One JSON document on stdout.
        #[arg(long)]
        json: bool,
    },
    /// End a key, at once.
    Revoke {
        /// Its id, as `keys list` shows it.
        id: String,
        /// Directory of the keys.
        #[arg(long, env = "KVASIR_STATE", default_value = BACKBONE_STATE)]
        state: PathBuf,
    },
}

/// Flags of `kvasir keys create`.
#[derive(Debug, Args)]
pub struct CreateKeyArgs {
    /// Whose key it is, for people.
    #[arg(long, default_value = "")]
    pub name: String,
    /// Where the hidden states of its requests may go.
    #[arg(long, value_enum, default_value = "any")]
    pub route: KeyRoute,
    /// Most streams at once.
    #[arg(long)]
    pub streams: Option<u32>,
    /// Most requests in a minute.
    #[arg(long)]
    pub requests_per_minute: Option<u32>,
    /// Most prompt and new tokens over its whole life.
    #[arg(long)]
    pub tokens: Option<u64>,
    /// Directory of the keys.
    #[arg(long, env = "KVASIR_STATE", default_value = BACKBONE_STATE)]
    pub state: PathBuf,
    /// One JSON document on stdout.
    #[arg(long)]
    pub json: bool,
}

/// Where a key's hidden states may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KeyRoute {
    /// To any worker.
    Any,
    /// To workers of trusted wallets alone.
    Trusted,
    /// Not out of the backbone.
    Local,
}
