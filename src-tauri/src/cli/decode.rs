//! The commands that write text: `kvasir demo` and `kvasir generate`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{Device, GpuFlags, LayerSelection, exact_type};
use crate::model::BlockType;

/// Flags of `kvasir demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Model file or directory; the embedded kvasir-tiny when absent.
    #[arg(long)]
    pub model: Option<PathBuf>,
    /// Quantise a float model's routed experts in memory, so that they are computed exactly: q8_0, q6_k, q5_k, q4_k
    /// or q4_0.
    #[arg(long, value_name = "TYPE", value_parser = exact_type)]
    pub experts: Option<BlockType>,
    /// Text to continue.
    #[arg(long, default_value = DEMO_PROMPT)]
    pub prompt: String,
    /// Tokens to generate; 32 when absent, 256 with --chaos alone.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub tokens: Option<u32>,
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
    /// Kill workers in the middle of the decode and start them again.
    #[arg(long)]
    pub chaos: bool,
    /// Decides who dies when; drawn and shown when absent.
    #[arg(long, requires = "chaos")]
    pub seed: Option<u64>,
    /// Go on decoding for this long, e.g. 20m, with a kill every two seconds, and fail when memory or open files grow.
    #[arg(long, requires = "chaos")]
    pub soak: Option<String>,
    /// One JSON document on stdout.
    #[arg(long)]
    pub json: bool,
}

/// Who drafts tokens that one step of the model then judges together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Speculate {
    /// Whichever pays most at the moment, or nobody.
    #[default]
    Auto,
    /// Nobody.
    Off,
    /// The model's multi-token-prediction head.
    Mtp,
    /// What followed when the last tokens stood there before.
    Lookup,
}

/// What the demo continues when nothing is asked for.
pub const DEMO_PROMPT: &str = "The princess opened the door, and";

/// Flags of `kvasir generate`.
#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// Model file or directory; the embedded kvasir-tiny when absent.
    #[arg(long)]
    pub model: Option<PathBuf>,
    /// Quantise a float model's routed experts in memory, so that they are computed exactly: q8_0, q6_k, q5_k, q4_k
    /// or q4_0.
    #[arg(long, value_name = "TYPE", value_parser = exact_type)]
    pub experts: Option<BlockType>,
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
    /// Who drafts tokens ahead; the text stays the same.
    #[arg(long, value_enum, default_value = "auto")]
    pub speculate: Speculate,
    /// Compute everything in float, the experts too.
    #[arg(long)]
    pub float: bool,
    /// Write the logits of the prompt and of its greedy continuation to this safetensors file.
    #[arg(long, conflicts_with_all = ["temperature", "top_p", "top_k", "seed", "speculate"])]
    pub logits: Option<PathBuf>,
    /// One JSON document on stdout.
    #[arg(long)]
    pub json: bool,
}
