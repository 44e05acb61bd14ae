//! `kvasir bench …`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use super::{DEMO_PROMPT, Device, GpuFlags, LayerSelection, Speculate};
use crate::model::BlockType;

/// Flags of `kvasir bench decode`.
#[derive(Debug, Args)]
pub struct BenchDecodeArgs {
    /// Model file or directory; the embedded kvasir-tiny when absent.
    #[arg(long)]
    pub model: Option<PathBuf>,
    /// Tokens to generate.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub tokens: u32,
    /// Workers of the remote run.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub workers: u16,
    /// Layers of the remote run.
    #[arg(long, default_value = "all")]
    pub remote_layers: LayerSelection,
    /// Round-trip time to add between workers and gateway, in milliseconds.
    #[arg(long, default_value_t = 0.0)]
    pub rtt: f64,
    /// What that line carries each way, in Mbit/s; no limit when absent.
    #[arg(long, conflicts_with = "outside", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub mbit: Option<u32>,
    /// Workers of other machines.
    #[command(flatten)]
    pub outside: OutsideFlags,
    /// Streams at once through the scheduler, e.g. 16,64,256, locally and remote.
    #[arg(long, value_delimiter = ',', conflicts_with = "batch", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub streams: Vec<u16>,
    /// Streams at once, e.g. 1,4,16,64, instead of the remote run.
    #[arg(long, value_delimiter = ',', conflicts_with = "outside", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub batch: Vec<u16>,
    /// One stream through workers with and without drafts, instead of the local run: who drafts.
    #[arg(long, value_enum, conflicts_with_all = ["batch", "streams"])]
    pub speculate: Option<Speculate>,
    /// Text that --speculate continues (repeatable).
    #[arg(long, requires = "speculate", default_value = DEMO_PROMPT)]
    pub prompt: Vec<String>,
    /// Threads of the backbone and of each worker; all processors and one when absent.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Measurements of each size, of which the median counts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub rounds: u16,
    /// One JSON document on stdout.
    #[arg(long)]
    pub json: bool,
}

/// Workers of other processes or machines, instead of a bench's own.
#[derive(Debug, Args)]
pub struct OutsideFlags {
    /// Instead of workers of its own: so many of other machines, which join with --invitation; --rtt is then their way's.
    #[arg(long, requires_all = ["listen", "invitation"], conflicts_with = "workers", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub outside: Option<u16>,
    /// With --outside: address that these workers reach.
    #[arg(long, value_name = "ADDRESS", requires = "outside")]
    pub listen: Option<SocketAddr>,
    /// With --outside: file that their join code is written to.
    #[arg(long, value_name = "FILE", requires = "outside")]
    pub invitation: Option<PathBuf>,
}

/// Flags of `kvasir bench prefill`.
#[derive(Debug, Args)]
pub struct BenchPrefillArgs {
    /// Model file or directory; the embedded kvasir-tiny when absent.
    #[arg(long)]
    pub model: Option<PathBuf>,
    /// Prompt tokens of each stream.
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub tokens: u32,
    /// Streams at once, e.g. 1,4,16,64.
    #[arg(long, value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub batch: Vec<u16>,
    /// Threads; all processors when absent.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Measurements of each size, of which the median counts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub rounds: u16,
    /// One JSON document on stdout.
    #[arg(long)]
    pub json: bool,
}

/// Flags of `kvasir bench dispatch`.
#[derive(Debug, Args)]
pub struct BenchDispatchArgs {
    /// Model file or directory; the embedded kvasir-tiny when absent.
    #[arg(long)]
    pub model: Option<PathBuf>,
    /// Rows of a step, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "1,8,64,512", value_parser = clap::value_parser!(u16).range(1..=2048))]
    pub rows: Vec<u16>,
    /// Round trips between workers and gateway in milliseconds, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "0,13,50,100,150")]
    pub rtt: Vec<f64>,
    /// Remote layers of a pass, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub layers: Vec<u16>,
    /// Workers.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub workers: u16,
    /// Workers of other machines.
    #[command(flatten)]
    pub outside: OutsideFlags,
    /// Threads of the kernels; all processors when absent.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Seconds for each figure.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(0..=3600))]
    pub seconds: u16,
    /// One JSON document on stdout.
    #[arg(long)]
    pub json: bool,
}

/// Flags of `kvasir bench splice`.
#[derive(Debug, Args)]
pub struct BenchSpliceArgs {
    /// Rounds, of which the median counts.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub rounds: u16,
    /// Round trips of 12 KiB in a round.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub pings: u32,
    /// Messages of 1 MiB in a round, each way.
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    pub messages: u32,
    /// Idle connections through our gateway, after the rest, e.g. 5000; each takes two files here and two there.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=9000))]
    pub idle: u16,
    /// Seconds for which they are watched, silent and pinging.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=3600))]
    pub seconds: u16,
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

/// Flags of `kvasir bench ledger`.
#[derive(Debug, Args)]
pub struct BenchLedgerArgs {
    /// An empty ledger to fill, e.g. postgres://kvasir@localhost/bench; a SQLite file of its own when absent.
    #[arg(long, value_name = "URL")]
    pub ledger: Option<String>,
    /// Gateways that credit at once.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub gateways: u16,
    /// Credits in all.
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub credits: u32,
    /// Transfers to be checked, in all.
    #[arg(long, default_value_t = 1_000_000)]
    pub transfers: u64,
    /// One JSON document on stdout.
    #[arg(long)]
    pub json: bool,
}

fn block_type(text: &str) -> Result<BlockType, String> {
    let named = BlockType::ALL.into_iter().find(|ty| ty.name().eq_ignore_ascii_case(text));
    named.ok_or_else(|| format!("expected a type such as q4_k, q8_0 or bf16, got {text:?}"))
}
