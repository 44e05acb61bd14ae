//! `kvasir ledger …`: checks and repairs the accounts of hubs and gateways, which may be running.

use std::process::ExitCode;

use serde_json::json;

use super::{AnyError, runtime, say};
use crate::cli::LedgerCommand;
use crate::ledger::Ledger;

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

async fn repair(ledger: &Ledger, credits: &Ledger) -> Result<ExitCode, AnyError> {
    let put = ledger.repair_meters(credits).await?;
    let refused = put.refused.iter().map(|row| json!({ "session": row.session, "why": row.refusal.to_string() }));
    say(serde_json::to_string_pretty(&json!({ "raised": put.written, "refused": refused.collect::<Vec<_>>() }))?)?;
    Ok(if put.refused.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
