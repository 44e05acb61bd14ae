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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Hex;
    use crate::wire::receipt::{self, Counters, KeptReceipt};
    use crate::wire::signature::KeyPair;

    #[tokio::test]
    async fn receipts_are_those_of_the_wallet_at_what_they_are_worth() {
        let dir = tempfile::tempdir().unwrap();
        let receipts = dir.path().join("receipts");
        std::fs::create_dir_all(&receipts).unwrap();
        let (hub, session) = (KeyPair::from_seed(&[1; 32]), KeyPair::from_seed(&[2; 32]));
        let (own, other) = (PublicKey([4; 32]), PublicKey([5; 32]));
        for (number, wallet) in [(1, own), (2, own), (3, other)] {
            let session_id = Hex([number; 16]);
            let (hub_epoch, work_bytes) = (u64::from(number), 1000 * u64::from(number));
            let counters = Counters {
                hub_epoch,
                session_id,
                wallet,
                assignments: 1,
                work_bytes,
                voided_bytes: 100,
                sequence: 1,
                r#final: number == 2,
            };
            let receipt = receipt::sign(&hub, &counters);
            let ack = receipt::ack(&session, &receipt);
            let kept = KeptReceipt { receipt, session_key: session.public(), ack };
            std::fs::write(receipts.join(format!("{session_id}.json")), serde_json::to_vec(&kept).unwrap()).unwrap();
        }
        let mut lines = of(dir.path().to_owned(), own, Some(7)).await.unwrap();
        assert!(lines.iter().all(|line| line.unix_s > 0));
        lines.sort_by_key(|line| line.epoch);
        let shown: Vec<_> = lines.iter().map(|line| (line.work_bytes, line.nano.as_deref(), line.is_final)).collect();
        assert_eq!(shown, [(1000, Some("6300"), false), (2000, Some("13300"), true)]);
        assert_eq!(of(dir.path().to_owned(), own, None).await.unwrap()[0].nano, None);
        assert!(of(dir.path().join("nowhere"), own, None).await.unwrap().is_empty());
    }
}
