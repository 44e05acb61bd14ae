//! `kvasir wallet …`: the key that is paid, and what only its holder can ask of a gateway.

use std::io::{BufRead, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::{AnyError, runtime, say, tell};
use crate::cli::{AtGateway, NewWallet, WalletCommand, WalletState};
use crate::clock::{Clock, SystemClock};
use crate::config::{ConfigError, parse_duration};
use crate::engine::claim;
use crate::net::dial::{Connector, Outbound};
use crate::net::https::{self, Gateway, HttpsError};
use crate::types::PublicKey;
use crate::wallet::{self, BACKED_UP, FileKeyStore, KeyStore, KeyStoreError, Phrase, WALLET_RECORD, Wallet};
use crate::worker::{self, network};

/// Longest line that is read as a phrase: words have at most eight letters.
const TYPED_BYTES_MAX: u64 = 1024;

/// `kvasir wallet …`.
pub fn run(command: WalletCommand) -> Result<ExitCode, AnyError> {
    match command {
        WalletCommand::Create(NewWallet { at: WalletState { state }, switch }) => {
            if !switch && exists(&state)? {
                return Err(format!(
                    "expected no wallet in {}, got one: see kvasir wallet show, or take a new one with --switch",
                    state.display()
                )
                .into());
            }
            let wallet = Wallet::generate().map_err(KeyStoreError::from)?;
            wallet::switch(&FileKeyStore::new(&state), &wallet_record(&state), &wallet)?;
            say(wallet.address())?;
            tell("write down its backup phrase: kvasir wallet phrase")?;
        }
        WalletCommand::Phrase(WalletState { state }) => {
            let phrase = present(&state)?.phrase().ok_or(
                "the wallet was made before phrases: back up its key file, which ends in .wallet, or make a new wallet with kvasir wallet create --switch",
            )?;
            say(Zeroizing::new(phrase.words().join(" ")).as_str())?;
        }
        WalletCommand::Restore(NewWallet { at: WalletState { state }, switch }) => {
            let wallet = Wallet::of_phrase(&typed_phrase()?);
            let address = wallet.address();
            let store = FileKeyStore::new(&state);
            let known = wallet::recorded(&wallet_record(&state))?;
            if let Some(other) = known.filter(|known| !switch && *known != address) {
                return Err(format!("expected the phrase of wallet {other}, got that of {address}: to take it in place of the other, use --switch").into());
            }
            wallet::switch(&store, &wallet_record(&state), &wallet)?;
            wallet::mark_backed_up(&state.join(BACKED_UP), &address)?;
            say(address)?;
        }
        WalletCommand::Show(WalletState { state }) => say(present(&state)?.address())?,
        WalletCommand::Claim { at, expires } => {
            let lasts = parse_duration("--expires", &expires)?;
            let expires_unix_s = SystemClock::default().unix_ms() / 1000 + lasts.as_secs();
            return runtime()?.block_on(claim_all(&at, expires_unix_s));
        }
        WalletCommand::Receipts(at) => return runtime()?.block_on(receipts(&at)),
    }
    Ok(ExitCode::SUCCESS)
}

/// A backup phrase from standard input: a line of a terminal, or all of a pipe that is no longer than a phrase.
fn typed_phrase() -> Result<Phrase, AnyError> {
    let mut text = Zeroizing::new(String::with_capacity(TYPED_BYTES_MAX as usize));
    let input = std::io::stdin().lock();
    if input.is_terminal() {
        tell("type the 12 words of the backup phrase, then Enter:")?;
    }
    input.take(TYPED_BYTES_MAX).read_line(&mut text)?;
    Ok(Phrase::parse(&text)?)
}

/// The wallet of a worker's state directory; a first one is made, a lost one is an error.
pub(super) fn open_wallet(state: &Path) -> Result<Wallet, KeyStoreError> {
    wallet::open(&FileKeyStore::new(state), &wallet_record(state))
}

/// The wallet that is there already.
fn present(state: &Path) -> Result<Wallet, AnyError> {
    if !exists(state)? {
        return Err(format!("no wallet in {}: make one with kvasir wallet create", state.display()).into());
    }
    Ok(open_wallet(state)?)
}

/// Whether there is, or once was, a wallet in a state directory.
pub(super) fn exists(state: &Path) -> Result<bool, KeyStoreError> {
    Ok(wallet_record(state).exists() || !FileKeyStore::new(state).list()?.is_empty())
}

/// The file that remembers which wallet belongs to this worker.
fn wallet_record(state: &Path) -> PathBuf {
    state.join(WALLET_RECORD)
}

/// Signs a claim of all that may be claimed, shows its words, and hands it in.
async fn claim_all(at: &AtGateway, expires_unix_s: u64) -> Result<ExitCode, AnyError> {
    let wallet = present(&at.wallet.state)?;
    let (gateways, operator) = gateways(at)?;
    let prepared = claim::prepare(&wallet, &gateways, operator, None, expires_unix_s).await?;
    say(&prepared.claim.text)?;
    prepared.hand_in().await?;
    Ok(ExitCode::SUCCESS)
}

/// Hands in every receipt of this wallet that the worker kept; says what became of each.
async fn receipts(at: &AtGateway) -> Result<ExitCode, AnyError> {
    let wallet = present(&at.wallet.state)?;
    let (gateways, _) = gateways(at)?;
    let (kept, others) = worker::kept_receipts(&at.wallet.state)?;
    let (mut raised, mut known, mut refused) = (0, 0, Vec::new());
    let kept = kept.into_iter().map(|on_disk| on_disk.kept);
    for receipt in kept.filter(|kept| kept.receipt.wallet == wallet.address()) {
        let session = receipt.receipt.session_id;
        let returned = wallet.return_receipt(receipt);
        match https::first(&gateways, async |gateway| gateway.post::<Value>("/v1/receipts", &returned).await).await {
            Ok((_, answer)) if answer["raised"] == true => raised += 1,
            Ok(_) => known += 1,
            Err(HttpsError::Refused { message, .. }) => refused.push(json!({ "session": session, "why": message })),
            Err(error) => return Err(error.into()),
        }
    }
    refused.extend(others.iter().map(|path| json!({ "file": path, "why": "holds no receipt" })));
    say(serde_json::to_string_pretty(&json!({ "raised": raised, "known": known, "refused": refused }))?)?;
    Ok(if refused.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The gateways to ask, and the operator whom they serve.
fn gateways(at: &AtGateway) -> Result<(Vec<Gateway>, PublicKey), AnyError> {
    let outbound = Outbound {
        proxy: at.proxy.clone().unwrap_or_default(),
        extra_ca: at.ca.iter().cloned().collect(),
        ..Outbound::default()
    };
    if let (Some(url), Some(operator)) = (&at.gateway, at.operator) {
        return Ok((vec![Gateway::at(url, Arc::new(Connector::new(&outbound)?))?], operator));
    }
    let now_unix_s = SystemClock::default().unix_ms() / 1000;
    let Some(invite) = network::join(&at.wallet.state, None, &[], now_unix_s)? else {
        let why = "the worker has joined no network; or name one with --operator too";
        return Err(ConfigError::Missing { role: "wallet", flag: "--gateway", why }.into());
    };
    let connector = Arc::new(Connector::new(&Outbound { network_ca_pem: invite.ca_pem, ..outbound })?);
    let of = |url: &String| Gateway::at(url, Arc::clone(&connector));
    Ok((invite.gateways.iter().map(of).collect::<Result<_, _>>()?, invite.operator))
}
