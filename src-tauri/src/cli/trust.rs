//! What was typed about whom the backbone trusts, and how far.

use clap::Args;

use super::LayerSelection;
use crate::types::PublicKey;

/// Flags of the backbone about workers' honesty.
#[derive(Debug, Default, Args)]
pub struct TrustFlags {
    /// backbone: recompute all answers of workers before they are used (before_use), or this share of them after use,
    /// e.g. 0.01. A newcomer's first work is always recomputed before use.
    #[arg(long, value_name = "before_use|SHARE")]
    pub audit: Option<AuditSelection>,
    /// backbone: layers that only trusted wallets may hold: 0, 0-3, 0,2.
    #[arg(long)]
    pub trusted_layers: Option<LayerSelection>,
    /// backbone: wallet that is trusted (repeatable).
    #[arg(long = "trusted-wallet")]
    pub trusted_wallets: Vec<PublicKey>,
}

/// Which answers of workers are recomputed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum AuditSelection {
    /// All of them, before they are used.
    BeforeUse,
    /// This share, after use.
    Share(f64),
}

/// A text that says neither.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("expected before_use or a share such as 0.01, got {got:?}")]
pub struct AuditSelectionError {
    got: String,
}

impl std::str::FromStr for AuditSelection {
    type Err = AuditSelectionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "before_use" {
            return Ok(Self::BeforeUse);
        }
        let share = text.parse().map_err(|_| AuditSelectionError { got: text.chars().take(64).collect() });
        share.map(Self::Share)
    }
}
