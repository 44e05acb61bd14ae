//! What was typed: commands, flags and the environment names that stand for flags.
//!
//! Nothing is decided here; `config` says what it means and `run` does it.

mod api;
mod bench;
mod hub;
mod layers;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::model::BlockType;
use crate::types::PublicKey;

pub use api::{ApiFlags, CreateKeyArgs, KeyRoute, KeysCommand};
pub use bench::{BenchDecodeArgs, BenchPrefillArgs};
pub use hub::{HubCommand, InviteArgs};
pub use layers::{LayerSelection, LayerSelectionError};

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
    /// Listen on an address that the whole network reaches, although hub and backbone should not be public.
    #[arg(long)]
    pub allow_public: bool,
    /// backbone, worker: model file (.gguf) or directory (safetensors); worker: take the slice from it instead of the link.
    #[arg(long)]
    pub model: Option<PathBuf>,
    /// Flags of the backbone's API.
    #[command(flatten)]
    pub api: ApiFlags,
    /// backbone: layers whose experts may be computed by workers.
    #[arg(long)]
    pub remote_layers: Option<LayerSelection>,
    /// hub: address where the backbone listens for hubs.
    #[arg(long)]
    pub backbone: Option<SocketAddr>,
    /// hub, gateway: host name that workers dial (repeatable); a worker that was sent to another host is refused.
    #[arg(long = "public-host")]
    pub public_hosts: Vec<String>,
    /// gateway: address of a hub (repeatable).
    #[arg(long = "hub")]
    pub hubs: Vec<SocketAddr>,
    /// hub, gateway: where accounts are kept, e.g. sqlite:ledger.db.
    #[arg(long, env = "KVASIR_LEDGER")]
    pub ledger: Option<String>,
    /// gateway: PEM file with the certificate chain.
    #[arg(long, requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// gateway: PEM file with the certificate's private key.
    #[arg(long, requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// gateway: a certificate authority of its own in the state directory (made when missing), for trials on one network.
    #[arg(long, conflicts_with = "tls_cert")]
    pub tls_trial: bool,
    /// worker: gateway to dial, e.g. wss://gateway.example (repeatable, tried in order).
    #[arg(long = "gateway", env = "KVASIR_GATEWAY")]
    pub gateways: Vec<String>,
    /// worker: public key of an operator whose hubs are trusted (repeatable).
    #[arg(long = "operator", env = "KVASIR_OPERATOR")]
    pub operators: Vec<PublicKey>,
    /// worker: join code, or file with one: gateways, operator and certificate authority of a network in one text.
    #[arg(long, env = "KVASIR_JOIN")]
    pub join: Option<String>,
    /// worker: PEM file with an additional certificate authority.
    #[arg(long)]
    pub ca: Option<PathBuf>,
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

/// Flags of `kvasir demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Model file or directory; the embedded kvasir-tiny when absent.
    #[arg(long)]
    pub model: Option<PathBuf>,
    /// Text to continue.
    #[arg(long, default_value = DEMO_PROMPT)]
    pub prompt: String,
    /// Tokens to generate.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub tokens: u32,
    /// Workers to start.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub workers: u16,
    /// Layers whose experts are computed by the workers: all, 0, 0-3, 0,2.
    #[arg(long, default_value = "all")]
    pub remote_layers: LayerSelection,
    /// Round-trip time to add between workers and gateway, in milliseconds.
    #[arg(long, default_value_t = 0.0)]
    pub rtt: f64,
    /// What the workers compute on; several, separated by commas, are dealt to them in turn. The run to compare with
    /// is always the CPU's.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "auto")]
    pub device: Vec<Device>,
    /// Which GPU.
    #[command(flatten)]
    pub gpu: GpuFlags,
    /// Kill a worker in the middle of the decode.
    #[arg(long)]
    pub chaos: bool,
    /// One JSON document on stdout.
    #[arg(long)]
    pub json: bool,
}

/// State directory of the worker, where its wallet key is kept.
pub const WORKER_STATE: &str = "kvasir-state/worker";
/// What the demo continues when nothing is asked for.
pub const DEMO_PROMPT: &str = "The princess opened the door, and";

/// Flags of `kvasir generate`.
#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// Model file or directory; the embedded kvasir-tiny when absent.
    #[arg(long)]
    pub model: Option<PathBuf>,
    /// Text to continue.
    #[arg(long, required_unless_present = "ids", conflicts_with = "ids")]
    pub prompt: Option<String>,
    /// Token ids to continue, separated by commas.
    #[arg(long, value_delimiter = ',')]
    pub ids: Option<Vec<u32>>,
    /// Tokens to generate.
    #[arg(long, default_value_t = 64)]
    pub tokens: u32,
    /// 0 = greedy; the default is 0.7 for text that people read, and greedy with --json, --ids or --logits.
    #[arg(long)]
    pub temperature: Option<f32>,
    /// Probability mass that is sampled from.
    #[arg(long, default_value_t = 0.9)]
    pub top_p: f32,
    /// Most likely tokens that are sampled from.
    #[arg(long, default_value_t = 40)]
    pub top_k: u32,
    /// Seed of the sampler; drawn at random when absent.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Compute everything in float, the experts too.
    #[arg(long)]
    pub float: bool,
    /// Write the logits of the prompt and of its greedy continuation to this safetensors file.
    #[arg(long, conflicts_with_all = ["temperature", "top_p", "top_k", "seed"])]
    pub logits: Option<PathBuf>,
    /// One JSON document on stdout.
    #[arg(long)]
    pub json: bool,
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
}

/// Flags of `kvasir gpu`.
#[derive(Debug, Args)]
pub struct GpuArgs {
    /// Measure GPUs that are programs on the CPU, too.
    #[arg(long)]
    pub allow_software: bool,
    /// One JSON document on stdout.
    #[arg(long)]
    pub json: bool,
}

/// Flags of `kvasir bench experts`.
#[derive(Debug, Args)]
pub struct BenchExpertsArgs {
    /// What computes.
    #[arg(long, value_enum, default_value = "cpu")]
    pub device: Device,
    /// Which GPU.
    #[command(flatten)]
    pub gpu: GpuFlags,
    /// Rows of a request, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "1,8,32,64,128,512", value_parser = clap::value_parser!(u16).range(1..=2048))]
    pub rows: Vec<u16>,
    /// Types of the weights, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "q4_k,q6_k,q8_0", value_parser = block_type)]
    pub types: Vec<BlockType>,
    /// Threads of the CPU, separated by commas; all of them when absent.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Vec<u16>,
    /// Requests per figure, of which the median is taken; fewer where they take long.
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,
    /// Every path that this CPU supports, not only the fastest.
    #[arg(long)]
    pub all_paths: bool,
    /// One JSON document on stdout.
    #[arg(long)]
    pub json: bool,
}

/// Flags of `kvasir bench dense`.
#[derive(Debug, Args)]
pub struct BenchDenseArgs {
    /// Input width.
    #[arg(long, default_value_t = 3072, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub input: u32,
    /// Output width.
    #[arg(long, default_value_t = 12288, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub output: u32,
    /// Rows that meet a matrix at once, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "1,8,64,512", value_parser = clap::value_parser!(u16).range(1..=2048))]
    pub rows: Vec<u16>,
    /// Types of the weights, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "q8_0,q4_k,bf16", value_parser = block_type)]
    pub types: Vec<BlockType>,
    /// Threads of the CPU; all of them when absent.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Matrices per figure, of which the median is taken; fewer where they take long.
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,
    /// One JSON document on stdout.
    #[arg(long)]
    pub json: bool,
}

/// `kvasir model …`.
#[derive(Debug, Subcommand)]
pub enum ModelCommand {
    /// Geometry, types and sizes of a model.
    Inspect {
        /// Model file or directory.
        path: PathBuf,
        /// One JSON document on stdout.
        #[arg(long)]
        json: bool,
    },
}

/// `kvasir wallet …`.
#[derive(Debug, Subcommand)]
pub enum WalletCommand {
    /// Make a wallet key in an owner-only file of the state directory.
    Create {
        /// Directory of the key.
        #[arg(long, env = "KVASIR_STATE", default_value = crate::cli::WORKER_STATE)]
        state: PathBuf,
    },
    /// Show the address of the wallet in the state directory.
    Show {
        /// Directory of the key.
        #[arg(long, env = "KVASIR_STATE", default_value = crate::cli::WORKER_STATE)]
        state: PathBuf,
    },
}

/// `kvasir ledger …`.
#[derive(Debug, Subcommand)]
pub enum LedgerCommand {
    /// Recompute every balance and invariant from the immutable transfers.
    Check {
        /// Where the accounts are, e.g. sqlite:ledger.db.
        #[arg(long, env = "KVASIR_LEDGER")]
        ledger: String,
    },
}

fn block_type(text: &str) -> Result<BlockType, String> {
    let named = BlockType::ALL.into_iter().find(|ty| ty.name().eq_ignore_ascii_case(text));
    named.ok_or_else(|| format!("expected a type such as q4_k, q8_0 or bf16, got {text:?}"))
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
