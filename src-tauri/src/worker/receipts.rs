//! The newest receipt of every session, on disk with our agreement, so that credit can be shown later.
//!
//! **Promise:** a receipt that is not the session's own, goes back or is signed wrongly ends the session unsigned.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::watch;
use tracing::warn;

use super::home;
use crate::types::{PublicKey, SessionId};
use crate::wire::control::{Receipt, ReceiptAck};
use crate::wire::receipt::{self, KeptReceipt, RETURNED_BYTES_MAX, ReceiptError};
use crate::wire::signature::KeyPair;

/// Receipts kept; the oldest go first.
const KEPT_MAX: usize = 256;

/// Checks the receipts of one session and keeps the newest.
pub(super) struct Receipts {
    hub: PublicKey,
    session_id: SessionId,
    wallet: PublicKey,
    signer: KeyPair,
    last: Option<Receipt>,
    to_disk: watch::Sender<Option<Arc<KeptReceipt>>>,
}

impl Receipts {
    /// For a session with this hub; files go to `dir`.
    pub fn new(hub: PublicKey, session_id: SessionId, wallet: PublicKey, signer: KeyPair, dir: PathBuf) -> Self {
        let (to_disk, newest) = watch::channel(None);
        tokio::spawn(keep(dir, session_id, newest));
        Self { hub, session_id, wallet, signer, last: None, to_disk }
    }

    /// Checks a receipt and agrees to it.
    ///
    /// # Errors
    /// A receipt that this session cannot have.
    pub fn agree(&mut self, receipt: Receipt) -> Result<ReceiptAck, ReceiptError> {
        receipt::verify(&receipt, &self.hub)?;
        let foreign = |what, got: String, expected: String| ReceiptError::Foreign { what, got, expected };
        if receipt.session_id != self.session_id {
            return Err(foreign("session", receipt.session_id.to_string(), self.session_id.to_string()));
        }
        if receipt.wallet != self.wallet {
            return Err(foreign("wallet", receipt.wallet.to_string(), self.wallet.to_string()));
        }
        if let Some(last) = &self.last {
            receipt::follows(last, &receipt)?;
        }
        let ack = receipt::ack(&self.signer, &receipt);
        self.last = Some(receipt.clone());
        let stored = KeptReceipt { receipt, session_key: self.signer.public(), ack: ack.clone() };
        self.to_disk.send_replace(Some(Arc::new(stored)));
        Ok(ack)
    }
}

/// Writes the newest receipt over the one before, until the session has ended and its last is written.
async fn keep(dir: PathBuf, session_id: SessionId, mut newest: watch::Receiver<Option<Arc<KeptReceipt>>>) {
    let path = dir.join(format!("{session_id}.json"));
    if let Err(error) = blocking(move || prune(&dir)).await {
        warn!(%error, "old receipts stay");
    }
    while newest.changed().await.is_ok() {
        let Some(stored) = newest.borrow_and_update().clone() else { continue };
        let path = path.clone();
        let written = blocking(move || home::replace(&path, &serde_json::to_vec_pretty(&*stored)?));
        if let Err(error) = written.await {
            warn!(%session_id, %error, "receipt not kept");
        }
    }
}

/// A receipt and when it was written.
#[derive(Clone, Debug)]
pub struct OnDisk {
    /// The receipt, with our agreement.
    pub kept: KeptReceipt,
    /// The last time its session had a newer one.
    pub written: SystemTime,
}

/// The receipts that are kept in `dir`, and the files among them that hold none.
///
/// # Errors
/// A directory that cannot be read.
pub fn kept(dir: &Path) -> io::Result<(Vec<OnDisk>, Vec<PathBuf>)> {
    let (mut receipts, mut others) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(dir)?.take(2 * KEPT_MAX) {
        let path = entry?.path();
        let read =
            fs::metadata(&path).ok().filter(|file| file.len() <= RETURNED_BYTES_MAX as u64).and(fs::read(&path).ok());
        match read.and_then(|bytes| serde_json::from_slice(&bytes).ok()) {
            Some(kept) => {
                let written = fs::metadata(&path).and_then(|file| file.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
                receipts.push(OnDisk { kept, written });
            }
            None => others.push(path),
        }
    }
    Ok((receipts, others))
}

/// Work on the disk, off the tasks that move bytes.
async fn blocking(work: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    tokio::task::spawn_blocking(work).await?
}

/// Makes room for one more session.
fn prune(dir: &Path) -> io::Result<()> {
    let mut files: Vec<(SystemTime, PathBuf)> = fs::read_dir(dir)?
        .filter_map(|entry| {
            let entry = entry.ok()?;
            Some((entry.metadata().ok()?.modified().ok()?, entry.path()))
        })
        .collect();
    files.sort();
    let surplus = (files.len() + 1).saturating_sub(KEPT_MAX);
    files.iter().take(surplus).try_for_each(|(_, path)| fs::remove_file(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Hex;
    use crate::wire::receipt::Counters;

    fn counters(sequence: u64, work_bytes: u64) -> Counters {
        Counters {
            hub_epoch: 1,
            session_id: Hex([3; 16]),
            wallet: PublicKey([4; 32]),
            assignments: work_bytes / 4,
            work_bytes,
            voided_bytes: 0,
            sequence,
            r#final: false,
        }
    }

    #[tokio::test]
    async fn only_the_sessions_own_rising_receipts_are_agreed_to() {
        let dir = tempfile::tempdir().unwrap();
        let (hub, other, session) = (KeyPair::from_seed(&[1; 32]), KeyPair::from_seed(&[2; 32]), [9; 32]);
        let signer = KeyPair::from_seed(&session);
        let key = signer.public();
        let mut receipts = Receipts::new(hub.public(), Hex([3; 16]), PublicKey([4; 32]), signer, dir.path().to_owned());
        let first = receipt::sign(&hub, &counters(1, 100));
        let ack = receipts.agree(first.clone()).unwrap();
        receipt::verify_ack(&ack, &first, &key).unwrap();
        assert!(receipts.agree(receipt::sign(&other, &counters(2, 200))).is_err());
        assert!(receipts.agree(receipt::sign(&hub, &counters(2, 50))).is_err());
        assert!(receipts.agree(first).is_err());
        let foreign = Counters { session_id: Hex([5; 16]), ..counters(2, 200) };
        assert!(receipts.agree(receipt::sign(&hub, &foreign)).is_err());
        receipts.agree(receipt::sign(&hub, &counters(2, 200))).unwrap();
    }

    #[test]
    fn the_oldest_receipts_make_room() {
        let dir = tempfile::tempdir().unwrap();
        (0..KEPT_MAX + 5).for_each(|n| fs::write(dir.path().join(format!("{n}.json")), "{}").unwrap());
        prune(dir.path()).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), KEPT_MAX - 1);
    }
}
