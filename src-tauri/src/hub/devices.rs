//! The devices that computed wrongly and may not come back, remembered over restarts; and the signed record of a catch.
//!
//! A text file, one signed JSON record a line, so that an operator can read it and take a line out while the hub is
//! stopped. **Promises:** a torn last line after a crash is dropped, not misread, and spoils no later line; a record that
//! this hub's key did not sign is told apart, and holds all the same. Why beside the list of wallets: a broken device is
//! no reason to turn its owner away.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::lines::{Lines, LinesError};
use crate::types::{Hex, PublicKey, SessionId, WorkerId};
use crate::wire::control::DeviceName;
use crate::wire::signature::{Context, KeyPair};
use crate::wire::text::plain;

/// Most records.
const DEVICES_MAX: usize = 100_000;
/// Most of one wallet; of more, the wallet itself is the problem.
const DEVICES_PER_WALLET_MAX: usize = 64;
/// Largest file that is read: records are below 2 KiB, since their texts are plain.
const FILE_BYTES_MAX: u64 = 2048 * DEVICES_MAX as u64;

/// Why the list cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DevicesError {
    /// The file cannot be read or written.
    #[error("list of devices {0}")]
    File(#[from] LinesError),
    /// The list cannot take another device.
    #[error("expected at most {DEVICES_MAX} devices that are kept out, {DEVICES_PER_WALLET_MAX} of a wallet")]
    Full,
}

/// What the backbone caught, and when: a wallet, or one device of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caught {
    /// Whose.
    pub wallet: PublicKey,
    /// In which session.
    pub session: SessionId,
    /// Only this device; without it the wallet.
    pub device: Option<DeviceName>,
    /// Milliseconds since 1970.
    pub since_unix_ms: u64,
    /// In plain words.
    pub reason: String,
    /// By the hub's key, over the record without this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<Hex<64>>,
}

impl Caught {
    fn unsigned(&self) -> Vec<u8> {
        serde_json::to_vec(&Self { signature: None, ..self.clone() }).unwrap_or_default()
    }

    /// The record with the hub's signature.
    #[must_use]
    pub fn signed(self, key: &KeyPair) -> Self {
        let plain = Self { reason: plain(&self.reason), ..self };
        Self { signature: Some(key.sign(Context::Caught, &[&plain.unsigned()])), ..plain }
    }

    /// Whether it has the signature of `key`.
    #[must_use]
    pub fn is_signed_by(&self, key: &PublicKey) -> bool {
        let verify = |signature| Context::Caught.verify(key, &[&self.unsigned()], signature).is_ok();
        self.signature.as_ref().is_some_and(verify)
    }

    /// The record as one line.
    #[must_use]
    pub fn line(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

type Devices = HashMap<PublicKey, Vec<Caught>>;

/// The list.
pub struct DeviceList {
    lines: Lines,
    devices: Mutex<Devices>,
}

impl DeviceList {
    /// Reads the list at `path`; an absent file is an empty list. `key` is this hub's.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn open(path: &Path, key: &PublicKey) -> Result<Self, DevicesError> {
        let (lines, text) = Lines::open(path, FILE_BYTES_MAX)?;
        let mut devices = Devices::new();
        for caught in text.lines().filter_map(|line| serde_json::from_str::<Caught>(line).ok()) {
            if !caught.is_signed_by(key) {
                tracing::warn!(wallet = %caught.wallet, "a device is kept out by a record that this hub did not sign");
            }
            devices.entry(caught.wallet).or_default().push(caught);
        }
        Ok(Self { lines, devices: Mutex::new(devices) })
    }

    fn devices(&self) -> MutexGuard<'_, Devices> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The devices with which an installation of a wallet may not come, by name.
    #[must_use]
    pub fn of(&self, wallet: &PublicKey, worker_id: &WorkerId) -> Vec<String> {
        let devices = self.devices();
        let own = devices.get(wallet).into_iter().flatten().filter_map(|caught| caught.device.as_ref());
        own.filter(|device| device.worker_id == *worker_id).map(|device| device.name.clone()).collect()
    }

    /// Remembers a device, in memory first and then on disk (blocking). The first record of a device stays.
    ///
    /// # Errors
    /// A full list, or a file that cannot be written; the device is then remembered until the hub stops.
    pub fn add(&self, caught: Caught) -> Result<(), DevicesError> {
        let (pen, line) = (self.lines.pen(), caught.line());
        {
            let mut devices = self.devices();
            let count: usize = devices.values().map(Vec::len).sum();
            let own = devices.entry(caught.wallet).or_default();
            if own.iter().any(|known| known.device == caught.device) {
                return Ok(());
            }
            if count >= DEVICES_MAX || own.len() >= DEVICES_PER_WALLET_MAX {
                return Err(DevicesError::Full);
            }
            own.push(caught);
        }
        Ok(pen.append(&line)?)
    }

    /// Lets all devices of a wallet in again (blocking); whether one was kept out.
    ///
    /// # Errors
    /// A file that cannot be replaced; they are then let in until the hub stops.
    pub fn remove(&self, wallet: &PublicKey) -> Result<bool, DevicesError> {
        let pen = self.lines.pen();
        let left: Vec<String> = {
            let mut devices = self.devices();
            if devices.remove(wallet).is_none() {
                return Ok(false);
            }
            devices.values().flatten().map(Caught::line).collect()
        };
        pen.replace(&left)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: PublicKey = PublicKey([1; 32]);
    const TWO: PublicKey = PublicKey([2; 32]);
    const WORKER: WorkerId = Hex([5; 16]);

    fn key() -> KeyPair {
        KeyPair::from_seed(&[9; 32])
    }

    fn open(path: &Path) -> DeviceList {
        DeviceList::open(path, &key().public()).unwrap()
    }

    fn caught(wallet: PublicKey, name: &str) -> Caught {
        let device = Some(DeviceName { worker_id: WORKER, name: name.to_owned() });
        let reason = "challenge on layer 1: row 3 is wrong".to_owned();
        Caught { wallet, session: Hex([4; 16]), device, since_unix_ms: 7, reason, signature: None }.signed(&key())
    }

    #[test]
    fn the_list_survives_a_restart_and_a_torn_line_until_a_wallet_is_let_in_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("devices");
        let list = open(&path);
        list.add(caught(ONE, "gpu")).unwrap();
        list.add(caught(ONE, "gpu")).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 2, "an empty first line and one device: {text:?}");
        std::fs::write(&path, format!("{text}\n{{\"wallet\":\"4uQeV")).unwrap();
        open(&path).add(caught(TWO, "cpu")).unwrap();
        let list = open(&path);
        assert_eq!((list.of(&ONE, &WORKER), list.of(&TWO, &WORKER)), (vec!["gpu".into()], vec!["cpu".into()]));
        assert!(list.of(&ONE, &Hex([6; 16])).is_empty(), "another machine of theirs");
        assert!(list.remove(&ONE).unwrap() && !list.remove(&ONE).unwrap());
        assert!(open(&path).of(&ONE, &WORKER).is_empty() && !open(&path).of(&TWO, &WORKER).is_empty());
    }

    #[test]
    fn a_record_is_signed_and_a_changed_one_is_told_apart() {
        let record = caught(ONE, "gpu");
        assert!(record.is_signed_by(&key().public()));
        assert!(!record.is_signed_by(&TWO));
        assert!(!Caught { wallet: TWO, ..record }.is_signed_by(&key().public()));
    }

    #[test]
    fn a_list_that_cannot_be_written_still_holds_until_the_stop() {
        let dir = tempfile::tempdir().unwrap();
        let list = open(&dir.path().join("absent/devices"));
        assert!(matches!(list.add(caught(ONE, "gpu")), Err(DevicesError::File(_))));
        assert_eq!(list.of(&ONE, &WORKER), ["gpu"]);
    }
}
