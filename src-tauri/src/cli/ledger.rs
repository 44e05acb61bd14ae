//! The commands of the accounts.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::types::PublicKey;

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
    /// Pay what wallets have claimed: pending becomes settled, in batches that the operator signs.
    Settle {
        /// The gateways' ledger.
        #[command(flatten)]
        ledger: LedgerUrl,
        /// File of the operator's key.
        #[arg(long, value_name = "FILE", default_value = "kvasir-state/hub/operator.key")]
        operator_key: PathBuf,
    },
    /// Print a batch as lines of JSON: its signed root, then what each wallet was ever paid.
    Export {
        /// The gateways' ledger.
        #[command(flatten)]
        ledger: LedgerUrl,
        /// Which batch; the newest when absent.
        #[arg(long, value_name = "NUMBER")]
        batch: Option<u64>,
        /// Print this wallet's line alone, with its proof against the root.
        #[arg(long, value_name = "ADDRESS")]
        wallet: Option<PublicKey>,
    },
}

/// Which ledger; it must be there already.
#[derive(Debug, Args)]
pub struct LedgerUrl {
    /// Where the accounts are, e.g. sqlite:ledger.db or postgres://kvasir@localhost/kvasir.
    #[arg(long = "ledger", value_name = "URL", env = "KVASIR_LEDGER", hide_env_values = true)]
    pub url: String,
}
