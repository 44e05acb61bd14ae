//! What was typed: commands, flags and the environment names that stand for flags.
//!
//! Nothing is decided here; `config` says what it means and `run` does it.

mod api;
mod bench;
mod courtesy;
mod decode;
mod doctor;
mod experts;
mod hub;
mod layers;
mod ledger;
mod model;
mod network;
mod roles;
mod trust;
mod wallet;

use clap::{Args, Parser, Subcommand};

pub use api::{ApiFlags, CreateKeyArgs, KeyRoute, KeysCommand};
pub use bench::{
    BenchDecodeArgs, BenchDenseArgs, BenchDispatchArgs, BenchExpertsArgs, BenchLedgerArgs, BenchPrefillArgs,
    BenchSpliceArgs, OutsideFlags,
};
pub use courtesy::CourtesyFlags;
pub use decode::{DEMO_PROMPT, DemoArgs, GenerateArgs, Speculate};
pub use doctor::DoctorArgs;
pub use experts::{ExpertFlags, ExpertsLocal};
pub use hub::{AdmissionMode, HubCommand, InviteArgs, WalletArgs};
pub use layers::{LayerSelection, LayerSelectionError, RemoteLayers, RemoteLayersError};
pub use ledger::{LedgerCommand, LedgerUrl};
pub use model::{ConvertArgs, InspectArgs, ModelCommand, exact_type};
pub use network::NetworkFlags;
pub use roles::{Device, GpuFlags, Role, RoleFlags};
pub use trust::{AuditSelection, AuditSelectionError, TrustFlags};
pub use wallet::{AtGateway, NewWallet, WORKER_STATE, WalletCommand, WalletState};

/// Run a Mixture-of-Experts model whose experts are computed by whatever hardware shows up, exactly and for pay.
#[derive(Debug, Parser)]
#[command(name = "kvasir", version, subcommand_negates_reqs = true, args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// Run one server role instead of the desktop app.
    #[arg(long, value_enum)]
    pub headless: Option<Role>,
    /// Open the app's window, with a join link if the desktop was given one.
    #[arg(long, value_name = "LINK", num_args = 0..=1, conflicts_with = "headless")]
    pub open: Option<Option<String>>,
    /// Start the app without its window, for the start of a session.
    #[arg(long, conflicts_with_all = ["headless", "open"])]
    pub hidden: bool,
    /// Flags of the server roles.
    #[command(flatten)]
    pub flags: RoleFlags,
    /// What to do, unless a role is run.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// One-shot commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// All roles in one process on loopback: decode locally and remotely, compare, and get paid.
    Demo(DemoArgs),
    /// Continue a prompt with a local model.
    Generate(GenerateArgs),
    /// Measure speed.
    #[command(subcommand)]
    Bench(BenchCommand),
    /// The GPUs of this machine: what they are, whether their kernels are right, and how fast they are.
    Gpu(GpuArgs),
    /// Why does it not work? The network leg by leg, and the machine, each with what to do.
    Doctor(DoctorArgs),
    /// The operator's side of a hub.
    #[command(subcommand)]
    Hub(HubCommand),
    /// Look into model files.
    #[command(subcommand)]
    Model(ModelCommand),
    /// The keys that open the backbone's API.
    #[command(subcommand)]
    Keys(KeysCommand),
    /// The key that is paid.
    #[command(subcommand)]
    Wallet(WalletCommand),
    /// The accounts.
    #[command(subcommand)]
    Ledger(LedgerCommand),
}

/// `kvasir bench …`.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Exact experts at real geometry against a plain read of their weights.
    Experts(BenchExpertsArgs),
    /// Dense matrices of one shape against a plain read of their weights.
    Dense(BenchDenseArgs),
    /// Local and remote decode of the same model in one run; with --batch, several streams at once, all local.
    Decode(BenchDecodeArgs),
    /// Prompts of several streams at once.
    Prefill(BenchPrefillArgs),
    /// Steps of one or more layers through gateway, hub and workers, by rows and by round trip.
    Dispatch(BenchDispatchArgs),
    /// Credits by several gateways, and the check of many transfers, on either store.
    Ledger(BenchLedgerArgs),
    /// The gateway's splice beside nginx and haproxy (where installed) as WebSocket proxies, on loopback TLS.
    Splice(BenchSpliceArgs),
}

/// Flags of `kvasir gpu`.
#[derive(Debug, Args)]
pub struct GpuArgs {
    /// Which GPUs.
    #[command(flatten)]
    pub gpu: GpuFlags,
    /// Leave this GPU alone, by its identity (repeatable).
    #[arg(long, value_name = "IDENTITY")]
    pub off: Vec<String>,
    /// Only name them: nothing is opened or measured.
    #[arg(long)]
    pub list: bool,
    /// One JSON document on stdout.
    #[arg(long)]
    pub json: bool,
}

/// Prints what can be typed, on stdout.
///
/// # Errors
/// When stdout is closed.
pub fn print_help() -> std::io::Result<()> {
    <Cli as clap::CommandFactory>::command().print_help()
}

#[cfg(test)]
mod tests;
