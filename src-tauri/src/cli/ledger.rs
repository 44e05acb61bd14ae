//! The commands of the accounts.

use clap::{Args, Subcommand};

/// `kvasir ledger …`.
#[derive(Debug, Subcommand)]
pub enum LedgerCommand {
    /// Recompute every balance and invariant from the immutable transfers; fails when one does not hold.
    Check(LedgerUrl),
    /// Raise meters to what was credited, after a hub's ledger was restored from a backup.
    Repair {
        /// The ledger with the meters: the hub's.
        #[command(flatten)]
        ledger: LedgerUrl,
        /// The ledger with the credits, when gateways keep their own.
        #[arg(long, value_name = "URL")]
        credits: Option<String>,
    },
}

/// Which ledger; it must be there already.
#[derive(Debug, Args)]
pub struct LedgerUrl {
    /// Where the accounts are, e.g. sqlite:ledger.db or postgres://kvasir@localhost/kvasir.
    #[arg(long = "ledger", value_name = "URL", env = "KVASIR_LEDGER", hide_env_values = true)]
    pub url: String,
}
