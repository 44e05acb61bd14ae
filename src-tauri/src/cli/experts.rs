//! What was typed about experts: where their bytes come from, where they are kept and who computes them.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::RemoteLayers;

/// Flags about experts.
#[derive(Debug, Default, Args)]
pub struct ExpertFlags {
    /// backbone: layers whose experts may be computed by workers; auto: those that memory here does not take.
    #[arg(long)]
    pub remote_layers: Option<RemoteLayers>,
    /// backbone: with --remote-layers auto, memory for the experts that stay, e.g. 20GiB; what the machine has left
    /// when absent.
    #[arg(long, value_name = "BYTES")]
    pub experts_memory: Option<String>,
    /// backbone: memory for experts that workers hold and that are computed here now and then, e.g. 512MiB.
    #[arg(long, value_name = "BYTES")]
    pub expert_cache: Option<String>,
    /// backbone: whether it computes experts of remote layers that no worker brings; if not, a request that needs one
    /// is answered with 503.
    #[arg(long, value_enum)]
    pub experts_local: Option<ExpertsLocal>,
    /// worker: model file or directory on this machine; experts of it that are served are not fetched.
    #[arg(long, value_name = "PATH")]
    pub weights: Option<PathBuf>,
    /// worker: directory where fetched experts are kept; several workers may share it. In the state directory when
    /// absent.
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// worker: most bytes of that directory, e.g. 20GiB, 0 for none; twice what the worker holds when absent.
    #[arg(long, value_name = "BYTES")]
    pub cache_size: Option<String>,
}

/// What the backbone computes of layers that workers may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExpertsLocal {
    /// Whatever no worker brings in time.
    All,
    /// Nothing.
    None,
}
