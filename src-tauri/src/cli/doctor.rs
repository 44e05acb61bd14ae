//! Flags of `kvasir doctor`.

use std::path::PathBuf;

use clap::Args;

use super::{CourtesyFlags, GpuFlags, NetworkFlags};

/// What to examine; without gateway or join code, the network that the worker of the state directory has joined.
#[derive(Debug, Default, Args)]
pub struct DoctorArgs {
    /// Which network.
    #[command(flatten)]
    pub network: NetworkFlags,
    /// Wishes that are held against what the machine does.
    #[command(flatten)]
    pub courtesy: CourtesyFlags,
    /// Configuration file, of which the worker's table is read.
    #[arg(long, env = "KVASIR_CONFIG")]
    pub config: Option<PathBuf>,
    /// Directory of the worker's key and receipts.
    #[arg(long, env = "KVASIR_STATE")]
    pub state: Option<PathBuf>,
    /// Which GPU.
    #[command(flatten)]
    pub gpu: GpuFlags,
    /// One JSON document on stdout.
    #[arg(long)]
    pub json: bool,
    /// Write the report to a file as well, without keys, addresses, passwords and home directories.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// A log whose newest lines go into that file, redacted.
    #[arg(long, value_name = "FILE", requires = "report")]
    pub log: Option<PathBuf>,
}
