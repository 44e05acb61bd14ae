//! The operator's commands of a hub.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use crate::types::PublicKey;

/// State directory of the hub, where its operator's key is kept.
pub const HUB_STATE: &str = "kvasir-state/hub";

/// `kvasir hub …`.
#[derive(Debug, Subcommand)]
pub enum HubCommand {
    /// Print a join code: what somebody needs to work for this hub's network.
    Invite(InviteArgs),
    /// Show who is connected to the running hub, and which wallets are kept out.
    Workers {
        /// Directory of the hub.
        #[arg(long, env = "KVASIR_STATE", default_value = HUB_STATE)]
        state: PathBuf,
        /// One JSON document on stdout.
        #[arg(long)]
        json: bool,
    },
    /// Let a wallet's workers, or all, finish what they have, send them away, and keep them away for a while.
    Drain {
        /// Address of the wallet.
        #[arg(required_unless_present = "all")]
        wallet: Option<PublicKey>,
        /// All workers: gateways lead them to other hubs meanwhile.
        #[arg(long, conflicts_with = "wallet")]
        all: bool,
        /// Directory of the hub.
        #[arg(long, env = "KVASIR_STATE", default_value = HUB_STATE)]
        state: PathBuf,
        /// How long they are kept away: 30d, 12h or 45m, a day at most.
        #[arg(long = "for", default_value = "10m")]
        lasts: String,
    },
    /// Take workers again before the time of `drain --all` is over.
    Resume {
        /// Directory of the hub.
        #[arg(long, env = "KVASIR_STATE", default_value = HUB_STATE)]
        state: PathBuf,
    },
    /// End the sessions of a wallet now; its workers may come back.
    Kick(WalletArgs),
    /// End the sessions of a wallet now and keep it out, also after a restart, until it is let in again.
    Ban {
        /// Whose workers.
        #[command(flatten)]
        whose: WalletArgs,
        /// Why, for whoever reads the list.
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// Let a wallet in again that was banned, or quarantined because its work was wrong.
    Unban(WalletArgs),
}

/// A wallet and the hub that is asked to do something about it.
#[derive(Debug, Args)]
pub struct WalletArgs {
    /// Address of the wallet.
    pub wallet: PublicKey,
    /// Directory of the hub.
    #[arg(long, env = "KVASIR_STATE", default_value = HUB_STATE)]
    pub state: PathBuf,
}

/// Whose workers a hub takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AdmissionMode {
    /// Everybody's.
    #[default]
    Open,
    /// Those of wallets that once showed a join code of this hub's operator while it held.
    Invite,
    /// Those of the wallets that --allow names.
    List,
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
