//! Receipts that wallets hand in again: checked here, then passed to the hub that signed them.
//!
//! Only the hub's own ledger says what a session came to, so that a receipt is credited as all work is: its hub raises
//! the meter, and the next poll brings the difference. Nothing changes when it comes again.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use super::api::Api;
use super::hub_leg::{self, HubError};
use super::reply::Refusal;
use crate::wire::RECEIPTS_PATH;
use crate::wire::receipt::{RETURNED_BYTES_MAX, ReturnedReceipt};

/// What the hub made of a receipt.
#[derive(Debug, Serialize, Deserialize)]
pub struct Returned {
    /// Whether its ledger had less.
    raised: bool,
}

/// `POST /v1/receipts` with a [`ReturnedReceipt`].
pub async fn take(State(api): State<Arc<Api>>, body: Bytes) -> Result<Json<Returned>, Refusal> {
    let fits = body.len() <= RETURNED_BYTES_MAX;
    let returned: Option<ReturnedReceipt> = fits.then(|| serde_json::from_slice(&body).ok()).flatten();
    let returned =
        returned.ok_or_else(|| Refusal::new(400, "receipt", "expected a kept receipt, signed by its wallet"))?;
    let hub = returned.kept.receipt.hub_key;
    returned.verify(&hub).map_err(|error| Refusal::new(400, "receipt", error))?;
    let legs = api.metrics.legs.all();
    let leg = legs.iter().find(|leg| leg.hub() == Some(hub)).ok_or_else(|| {
        if legs.iter().any(|leg| leg.hub().is_none()) {
            return Refusal::new(503, "hub", "a hub of this gateway was not heard of yet, try again");
        }
        Refusal::new(404, "hub", format!("no hub of this gateway has the key {hub}"))
    })?;
    let _room = api.room().await?;
    // As the hub reads it: a head alone, like all that it is asked.
    let target = format!("{RECEIPTS_PATH}?receipt={}", BASE64_URL_SAFE_NO_PAD.encode(&body));
    match hub_leg::post(leg, &target, &api.config).await {
        Ok(returned) => Ok(Json(returned)),
        Err(HubError::Status { got: 409, .. }) => Err(Refusal::new(
            409,
            "receipt",
            "the hub's ledger refuses it: the session is open, or is another wallet's",
        )),
        Err(error) => {
            tracing::warn!(%error, "a hub took no receipt");
            Err(Refusal::new(503, "hub", "the hub is not available, try again"))
        }
    }
}
