//! Receipts that wallets hand in again, because a ledger was restored from a backup and has less than they hold.
//!
//! A receipt with all its signatures raises its session's meter to its counters, never lowers one, and changes nothing
//! when it comes again. A session that is open is left alone: its counters are ahead of its receipts. **Promise:** a
//! receipt brings a wallet that was caught nothing back.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde_json::json;

use super::Hub;
use super::http::Answer;
use super::quarantine::By;
use crate::ledger::Meter;
use crate::wire::control::Receipt;
use crate::wire::receipt::{RETURNED_BYTES_MAX, ReturnedReceipt};

/// Answers `POST /v1/receipts?receipt=<base64url of its JSON>`: a head alone, as everything that a hub is asked.
pub async fn answer(hub: &Hub, query: &str) -> Answer {
    let Some(returned) = query.strip_prefix("receipt=").and_then(read) else {
        return Answer::refused(400, "receipt", "expected receipt=<base64url of a returned receipt>");
    };
    if let Err(error) = returned.verify(&hub.identity.key().public()) {
        return Answer::refused(400, "receipt", error);
    }
    let Receipt { session_id, wallet, .. } = returned.kept.receipt;
    match hub.meters.raise(&meter(hub, &returned.kept.receipt)).await {
        Ok(Ok(raised)) => {
            if raised {
                tracing::warn!(session = %session_id, %wallet, "a meter was raised to a receipt of a lost history");
            }
            Answer::json(200, &json!({ "raised": raised }))
        }
        Ok(Err(refusal)) => Answer::refused(409, "receipt", refusal),
        Err(error) => {
            tracing::error!(%error, "no meter for a returned receipt");
            Answer::refused(503, "ledger", "the ledger is not available")
        }
    }
}

fn read(text: &str) -> Option<ReturnedReceipt> {
    // A head is bounded, and so is what a character of it decodes to.
    let json = BASE64_URL_SAFE_NO_PAD.decode(text).ok().filter(|json| json.len() <= RETURNED_BYTES_MAX)?;
    serde_json::from_slice(&json).ok()
}

/// The meter that a receipt proves.
fn meter(hub: &Hub, receipt: &Receipt) -> Meter {
    let is_caught = hub.quarantined.by(&receipt.wallet) == Some(By::Backbone);
    let is_void = is_caught || hub.meters.is_void_due(&receipt.wallet);
    Meter {
        hub: receipt.hub_key,
        session: receipt.session_id,
        wallet: receipt.wallet,
        epoch: receipt.hub_epoch,
        assignments: receipt.assignments,
        work_bytes: receipt.work_bytes,
        voided_bytes: if is_void { receipt.work_bytes } else { receipt.voided_bytes },
        raw_bytes: 0,
        change_seq: 0,
        r#final: true,
    }
}
