//! Claims at the public HTTP: what a wallet may claim, and the claims that wallets hand in.
//!
//! Nobody but the wallet can make its claim, so that whoever hands it in needs no other proof of who they are.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use serde::Serialize;

use super::api::{Api, parse_address};
use super::reply::Refusal;
use crate::ledger::{ClaimTerms, Claimable, SignedClaim};
use crate::types::{NanoKvr, PublicKey};

/// Longest claim in JSON: twice its words.
const CLAIM_BYTES_MAX: usize = 4096;

/// A claim that was taken, now or before.
#[derive(Debug, Serialize)]
pub struct Taken {
    wallet: PublicKey,
    sequence: u64,
    lifetime_nano_kvr: NanoKvr,
    expires_unix_s: u64,
}

fn terms(api: &Api) -> Result<ClaimTerms, Refusal> {
    api.claims
        .ok_or_else(|| Refusal::new(503, "claims", "this gateway takes no claims: its operator gave it no --operator"))
}

/// `GET /v1/wallets/{address}/claim`.
pub async fn claimable(State(api): State<Arc<Api>>, Path(address): Path<String>) -> Result<Json<Claimable>, Refusal> {
    let (address, terms) = (parse_address(&address)?, terms(&api)?);
    let _room = api.room().await?;
    Ok(Json(api.ledger.claimable(address, terms).await?))
}

/// `POST /v1/claims` with a [`SignedClaim`].
pub async fn take(State(api): State<Arc<Api>>, body: Bytes) -> Result<Json<Taken>, Refusal> {
    let terms = terms(&api)?;
    let signed: Option<SignedClaim> =
        (body.len() <= CLAIM_BYTES_MAX).then(|| serde_json::from_slice(&body).ok()).flatten();
    let signed = signed.ok_or_else(|| Refusal::new(400, "claim", "expected {\"text\": …, \"signature\": <hex>}"))?;
    let _room = api.room().await?;
    let claim = api.ledger.take_claim(&signed, terms).await?;
    let claim = claim.map_err(|refusal| Refusal::new(409, refusal.code(), refusal.to_string()))?;
    tracing::info!(wallet = %claim.wallet, sequence = claim.sequence, lifetime = claim.lifetime.0, "a claim was taken");
    Ok(Json(Taken {
        wallet: claim.wallet,
        sequence: claim.sequence,
        lifetime_nano_kvr: claim.lifetime,
        expires_unix_s: claim.expires_unix_s,
    }))
}
