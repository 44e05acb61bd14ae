//! The receipts that this installation's worker kept, for windows.

use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use tokio::task::spawn_blocking;

use super::EngineError;
use super::facts::ReceiptLine;
use crate::types::PublicKey;
use crate::worker::{self, OnDisk};

/// The receipts of `wallet`, newest first, at `rate` nano-KVR per work byte.
pub(super) async fn of(
    state_dir: PathBuf,
    wallet: PublicKey,
    rate: Option<u64>,
) -> Result<Vec<ReceiptLine>, EngineError> {
    let read = spawn_blocking(move || worker::kept_receipts(&state_dir));
    let (kept, _) =
        read.await.map_err(|_| EngineError::Gone("the thread that reads receipts"))?.map_err(EngineError::Receipts)?;
    let own = kept.into_iter().filter(|on_disk| on_disk.kept.receipt.wallet == wallet);
    let mut lines: Vec<ReceiptLine> = own.map(|on_disk| line(&on_disk, rate)).collect();
    lines.sort_by(|a, b| (b.unix_s, &b.session).cmp(&(a.unix_s, &a.session)));
    Ok(lines)
}

fn line(on_disk: &OnDisk, rate: Option<u64>) -> ReceiptLine {
    let receipt = &on_disk.kept.receipt;
    let paid = receipt.work_bytes.saturating_sub(receipt.voided_bytes);
    ReceiptLine {
        epoch: receipt.hub_epoch,
        session: receipt.session_id.to_string(),
        nano: rate.map(|rate| (u128::from(paid) * u128::from(rate)).to_string()),
        work_bytes: receipt.work_bytes,
        voided_bytes: receipt.voided_bytes,
        unix_s: on_disk.written.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        is_final: receipt.r#final,
    }
}
