//! The commands of the key that is paid.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::net::proxy::ProxyChoice;
use crate::types::PublicKey;

/// State directory of the worker, where its wallet key is kept.
pub const WORKER_STATE: &str = "kvasir-state/worker";

/// `kvasir wallet …`.
#[derive(Debug, Subcommand)]
pub enum WalletCommand {
    /// Make a wallet in an owner-only file of the state directory.
    #[command(alias = "new")]
    Create(NewWallet),
    /// Show the address of the wallet in the state directory.
    Show(WalletState),
    /// Print the backup phrase of the wallet, for paper: whoever reads it owns what the wallet is owed.
    Phrase(WalletState),
    /// Make the wallet of a backup phrase that of the state directory. The phrase is read from standard input.
    Restore(NewWallet),
    /// Claim to be paid all credit that is old enough.
    Claim {
        /// Where.
        #[command(flatten)]
        at: AtGateway,
        /// How long the claim may wait to be paid: 30d, 12h or 45m.
        #[arg(long, default_value = "30d")]
        expires: String,
    },
    /// Hand in the receipts that the worker kept, for an operator whose accounts were restored from a backup.
    Receipts(AtGateway),
}

/// Which wallet.
#[derive(Debug, Args)]
pub struct WalletState {
    /// Directory of the key.
    #[arg(long, env = "KVASIR_STATE", default_value = WORKER_STATE)]
    pub state: PathBuf,
}

/// A wallet for a state directory.
#[derive(Debug, Args)]
pub struct NewWallet {
    /// Where.
    #[command(flatten)]
    pub at: WalletState,
    /// Take it in place of another wallet that is there; that one's key stays in its file.
    #[arg(long)]
    pub switch: bool,
}

/// Which wallet, at which gateway.
#[derive(Debug, Args)]
pub struct AtGateway {
    /// Directory of the key.
    #[command(flatten)]
    pub wallet: WalletState,
    /// Gateway, e.g. wss://gateway.example; without it, those of the network that the worker has joined.
    #[arg(long, env = "KVASIR_GATEWAY", requires = "operator")]
    pub gateway: Option<String>,
    /// Operator of that gateway.
    #[arg(long, env = "KVASIR_OPERATOR", requires = "gateway")]
    pub operator: Option<PublicKey>,
    /// PEM file with the certificate authority of that gateway, when it is not a public one.
    #[arg(long)]
    pub ca: Option<PathBuf>,
    /// Proxy, http://[user:password@]host:port, or none; without it as HTTPS_PROXY, ALL_PROXY and NO_PROXY say, else the
    /// desktop's settings.
    #[arg(long, value_name = "URL")]
    pub proxy: Option<ProxyChoice>,
}
