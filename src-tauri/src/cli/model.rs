//! `kvasir model …`.

use std::path::PathBuf;

use clap::Subcommand;

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
