//! The operator's commands of a hub.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// State directory of the hub, where its operator's key is kept.
pub const HUB_STATE: &str = "kvasir-state/hub";

/// `kvasir hub …`.
#[derive(Debug, Subcommand)]
pub enum HubCommand {
    /// Print a join code: what somebody needs to work for this hub's network.
    Invite(InviteArgs),
}

/// Flags of `kvasir hub invite`.
#[derive(Debug, Args)]
pub struct InviteArgs {
    /// Directory of the hub, where its operator key is.
    #[arg(long, env = "KVASIR_STATE", default_value = HUB_STATE)]
    pub state: PathBuf,
    /// Gateway that workers dial, e.g. wss://gateway.example (repeatable, tried in order).
    #[arg(long = "gateway", required = true)]
    pub gateways: Vec<String>,
    /// PEM file with the certificate authority of these gateways, when it is not a public one.
    #[arg(long)]
    pub ca: Option<PathBuf>,
    /// Until when the code may be taken: 30d, 12h or 45m from now. Who has joined stays.
    #[arg(long, default_value = "30d")]
    pub expires: String,
    /// Write the code to this file too.
    #[arg(long)]
    pub file: Option<PathBuf>,
}
