//! What was typed about measuring decode and prefill.

use std::path::PathBuf;

use clap::Args;

use super::LayerSelection;

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
    /// Streams at once, e.g. 1,4,16,64, instead of the remote run.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=128))]
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
    #[arg(long, value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u16).range(1..=128))]
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
