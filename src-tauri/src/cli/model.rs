//! What was typed about model files.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::model::BlockType;

/// `kvasir model …`.
#[derive(Debug, Subcommand)]
pub enum ModelCommand {
    /// Geometry, types and sizes of a model, and what a slice of it would hold.
    Inspect(InspectArgs),
    /// Quantise a float checkpoint's routed experts, so that workers compute them exactly, and write it as one GGUF file.
    ///
    /// Only routed experts are quantised, with the reference quantisers; all other tensors (embeddings, attention,
    /// DeltaNet, router, shared experts, norms) keep their types. Takes BF16, F16 or F32, as GGUF (whole or in parts)
    /// or as a Hugging Face directory. A few experts are in memory at a time.
    Convert(ConvertArgs),
}

/// Flags of `kvasir model inspect`.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// Model file or directory.
    pub path: PathBuf,
    /// Say what a slice of this size would hold, e.g. 4GiB.
    #[arg(long, value_name = "BYTES")]
    pub slice: Option<String>,
    /// One JSON document on stdout.
    #[arg(long)]
    pub json: bool,
}

/// Flags of `kvasir model convert`.
#[derive(Debug, Args)]
pub struct ConvertArgs {
    /// Model file, any part of a split one, or directory.
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// The GGUF file to write.
    #[arg(value_name = "OUT")]
    pub output: PathBuf,
    /// Type of the routed experts: q8_0, q6_k, q5_k, q4_k or q4_0.
    #[arg(long, value_name = "TYPE", value_parser = exact_type)]
    pub to: BlockType,
    /// Replace OUT when it exists.
    #[arg(long)]
    pub overwrite: bool,
}

/// A type that routed experts can be quantised to.
///
/// # Errors
/// Any other text, with the types that would do.
pub fn exact_type(text: &str) -> Result<BlockType, String> {
    let named = BlockType::ALL.into_iter().find(|ty| ty.is_exact() && ty.name().eq_ignore_ascii_case(text));
    named.ok_or_else(|| format!("expected q8_0, q6_k, q5_k, q4_k or q4_0, got {text:?}"))
}
