//! `kvasir ledger …`: checks, repairs, settles and exports the accounts of hubs and gateways, which may be running.

use std::path::Path;
use std::process::ExitCode;

use serde_json::json;

use super::{AnyError, runtime, say};
use crate::cli::LedgerCommand;
use crate::ledger::{Ledger, merkle};
use crate::types::PublicKey;
use crate::wallet::keyfile;

/// `kvasir ledger …`.
pub fn run(command: LedgerCommand) -> Result<ExitCode, AnyError> {
    runtime()?.block_on(async {
        match command {
            LedgerCommand::Check(ledger) => check(&open(&ledger.url).await?).await,
            LedgerCommand::Repair { ledger, credits } => {
                let ledger = open(&ledger.url).await?;
                let credits = match credits {
                    Some(url) => open(&url).await?,
                    None => ledger.clone(),
                };
                repair(&ledger, &credits).await
            }
            LedgerCommand::Settle { ledger, operator_key } => settle(&open(&ledger.url).await?, &operator_key).await,
            LedgerCommand::Export { ledger, batch, wallet } => export(&open(&ledger.url).await?, batch, wallet).await,
        }
    })
}

async fn open(url: &str) -> Result<Ledger, AnyError> {
    Ok(Ledger::open_existing(url).await?)
}

async fn check(ledger: &Ledger) -> Result<ExitCode, AnyError> {
    let report = ledger.check().await?;
    say(serde_json::to_string_pretty(&report)?)?;
    Ok(if report.is_sound() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Pays what was claimed, batch by batch, and says each; all are exported as one, since sums are over a lifetime.
async fn settle(ledger: &Ledger, operator_key: &Path) -> Result<ExitCode, AnyError> {
    // Made by nobody but the hub: a key from a mistyped directory would sign what nobody trusts.
    let operator = keyfile::load(operator_key)
        .map_err(|e| format!("{e}: the hub makes its operator's key when it first starts"))?;
    loop {
        let settled = ledger.settle(&operator).await?;
        say(serde_json::to_string(&settled)?)?;
        if settled.batch.is_none() {
            let (own, others) = (operator.public(), settled.others.len());
            return match others {
                0 => Ok(ExitCode::SUCCESS),
                _ => {
                    Err(format!("{others} claims name another operator than {own}: settle with that one's key").into())
                }
            };
        }
    }
}

/// A batch as lines of JSON: the signed head, then a leaf a line; or one wallet's leaf with its proof.
async fn export(ledger: &Ledger, batch: Option<u64>, wallet: Option<PublicKey>) -> Result<ExitCode, AnyError> {
    let (batch, leaves) = ledger.export(batch).await?;
    let Some(wallet) = wallet else {
        say(serde_json::to_string(&batch)?)?;
        for leaf in &leaves {
            say(serde_json::to_string(leaf)?)?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    let found = leaves.iter().position(|leaf| leaf.address == wallet);
    let index = found.ok_or_else(|| format!("batch {}: {wallet} was never paid", batch.batch))?;
    say(serde_json::to_string_pretty(&json!({
        "batch": batch,
        "leaf": leaves[index],
        "proof": merkle::proof(&leaves, index),
    }))?)?;
    Ok(ExitCode::SUCCESS)
}

async fn repair(ledger: &Ledger, credits: &Ledger) -> Result<ExitCode, AnyError> {
    let put = ledger.repair_meters(credits).await?;
    let refused = put.refused.iter().map(|row| json!({ "session": row.session, "why": row.refusal.to_string() }));
    say(serde_json::to_string_pretty(&json!({ "raised": put.written, "refused": refused.collect::<Vec<_>>() }))?)?;
    Ok(if put.refused.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
