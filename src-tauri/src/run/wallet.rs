//! `kvasir wallet …`: the key that is paid, and what only its holder can ask of a gateway.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use serde_json::{Value, json};

use super::{AnyError, runtime, say};
use crate::cli::{AtGateway, WalletCommand, WalletState};
use crate::clock::{Clock, SystemClock};
use crate::config::{ConfigError, parse_duration};
use crate::ledger::Claimable;
use crate::net::dial::{Connector, Outbound};
use crate::net::https::{Gateway, HttpsError};
use crate::types::PublicKey;
use crate::wallet::{self, FileKeyStore, KeyStore, KeyStoreError, Wallet};
use crate::worker::{self, network};

/// `kvasir wallet …`.
pub fn run(command: WalletCommand) -> Result<ExitCode, AnyError> {
    match command {
        WalletCommand::Create(WalletState { state }) => {
            if exists(&state)? {
                return Err(
                    format!("expected no wallet in {}, got one: see kvasir wallet show", state.display()).into()
                );
            }
            say(open_wallet(&state)?.address())?;
        }
        WalletCommand::Show(WalletState { state }) => say(present(&state)?.address())?,
        WalletCommand::Claim { at, expires } => {
            let lasts = parse_duration("--expires", &expires)?;
            let expires_unix_s = SystemClock::default().unix_ms() / 1000 + lasts.as_secs();
            return runtime()?.block_on(claim(&at, expires_unix_s));
        }
        WalletCommand::Receipts(at) => return runtime()?.block_on(receipts(&at)),
    }
    Ok(ExitCode::SUCCESS)
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
    state.join("wallet")
}

/// Signs a claim of all that may be claimed, shows its words, and hands it in.
async fn claim(at: &AtGateway, expires_unix_s: u64) -> Result<ExitCode, AnyError> {
    let wallet = present(&at.wallet.state)?;
    let (gateways, operator) = gateways(at)?;
    let path = format!("/v1/wallets/{}/claim", wallet.address());
    let (gateway, claimable) = first(&gateways, async |gateway| gateway.get::<Claimable>(&path).await).await?;
    if claimable.operator != operator {
        // A gateway must not choose for whom a wallet signs.
        return Err(format!("expected a gateway of operator {operator}, got one of {}", claimable.operator).into());
    }
    if claimable.lifetime_nano_kvr <= claimable.settled_nano_kvr {
        let settled = claimable.settled_nano_kvr.0;
        return Err(format!("nothing to claim yet: {settled} nano-KVR were paid, newer credit must wait").into());
    }
    let claim = wallet.claim(operator, claimable.lifetime_nano_kvr, claimable.sequence, expires_unix_s);
    say(&claim.text)?;
    gateway.post::<Value>("/v1/claims", &claim).await?;
    Ok(ExitCode::SUCCESS)
}

/// Hands in every receipt of this wallet that the worker kept; says what became of each.
async fn receipts(at: &AtGateway) -> Result<ExitCode, AnyError> {
    let wallet = present(&at.wallet.state)?;
    let (gateways, _) = gateways(at)?;
    let (kept, others) = worker::kept_receipts(&at.wallet.state)?;
    let (mut raised, mut known, mut refused) = (0, 0, Vec::new());
    for receipt in kept.into_iter().filter(|kept| kept.receipt.wallet == wallet.address()) {
        let session = receipt.receipt.session_id;
        let returned = wallet.return_receipt(receipt);
        match first(&gateways, async |gateway| gateway.post::<Value>("/v1/receipts", &returned).await).await {
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

/// Whether another gateway of the network may do what this one does not: it is silent, it takes no claims, or the
/// receipt's hub is none of its hubs, or not heard of yet.
fn is_for_another(error: &HttpsError) -> bool {
    match error {
        HttpsError::Refused { code, .. } => code == "hub" || code == "claims",
        error => error.is_of_the_way(),
    }
}

/// Asks the gateways in turn until one answers for all; what the last one said when none does.
async fn first<'a, T>(
    gateways: &'a [Gateway],
    ask: impl AsyncFn(&'a Gateway) -> Result<T, HttpsError>,
) -> Result<(&'a Gateway, T), HttpsError> {
    let mut failure = HttpsError::Url("none".to_owned());
    for gateway in gateways {
        match ask(gateway).await {
            Ok(answer) => return Ok((gateway, answer)),
            Err(error) if is_for_another(&error) => failure = error,
            Err(error) => return Err(error),
        }
    }
    Err(failure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_gateway_that_does_not_know_the_hub_gives_way_to_the_next() {
        let connector = Arc::new(Connector::new(&Outbound::default()).unwrap());
        let gateways = ["wss://a", "wss://b"].map(|url| Gateway::at(url, Arc::clone(&connector)).unwrap());
        let refused = |code: &str| HttpsError::Refused { gateway: "a".into(), code: code.into(), message: "no".into() };
        for (code, asked) in [("hub", 2), ("claims", 2), ("receipt", 1), ("claim_sequence", 1)] {
            let calls = std::cell::Cell::new(0);
            let answer = first(&gateways, async |_| {
                calls.set(calls.get() + 1);
                if calls.get() == 1 { Err(refused(code)) } else { Ok(()) }
            });
            assert_eq!(answer.await.is_ok(), asked == 2, "{code}");
            assert_eq!(calls.get(), asked, "{code}");
        }
        let nobody = first(&gateways, async |_| Err::<(), _>(refused("hub"))).await;
        assert!(matches!(nobody, Err(HttpsError::Refused { code, .. }) if code == "hub"), "the reason is said");
    }
}
