//! Who may not come (back), since when, why and by whose word; remembered over restarts.
//!
//! A text file that only grows, one signed JSON record a line: a ban of a wallet or of one of its devices, or the lifting
//! of all of a wallet's. Operators can read it; a line that is a bare address bans that wallet too. **Promises:** a torn
//! last line after a crash is dropped, not misread, and spoils no later line; a record says who decided and is signed by
//! the hub's key, so that a line that somebody wrote in later is told apart, and holds all the same.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::types::{Hex, PublicKey, WorkerId};
use crate::wire::control::DeviceName;
use crate::wire::signature::{Context, KeyPair};

/// Most wallets with a ban.
const WALLETS_MAX: usize = 100_000;
/// Most devices of a wallet with a ban; of more, the wallet itself is the problem.
const DEVICES_MAX: usize = 64;
/// Longest reason, in bytes.
const REASON_BYTES_MAX: usize = 512;
/// Largest list that is read: every wallet banned and lifted once, with a reason of the usual length.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// Why the list cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BanError {
    /// The file cannot be read or written.
    #[error("list of bans {path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The list cannot take another ban.
    #[error("expected at most {WALLETS_MAX} banned wallets and {DEVICES_MAX} devices of each")]
    Full,
}

/// Who decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// The backbone caught it.
    Backbone,
    /// A person.
    Operator,
}

/// A decision about a wallet, or about one device of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ban {
    /// Whose.
    pub wallet: PublicKey,
    /// Only this device.
    pub device: Option<DeviceName>,
    /// When it was decided.
    pub since_unix_ms: u64,
    /// By whose word.
    pub by: By,
    /// Why.
    pub reason: String,
}

/// A line of the file.
#[derive(Serialize, Deserialize)]
struct Line {
    /// Whether the wallet's bans end here.
    lifted: bool,
    #[serde(flatten)]
    ban: Ban,
    /// By the hub's key, over the line without this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    signature: Option<Hex<64>>,
}

impl Line {
    fn parse(text: &str) -> Option<Self> {
        let by_hand = |wallet| {
            let reason = "written by hand".to_owned();
            Self {
                lifted: false,
                ban: Ban { wallet, device: None, since_unix_ms: 0, by: By::Operator, reason },
                signature: None,
            }
        };
        serde_json::from_str(text).ok().or_else(|| text.parse().ok().map(by_hand))
    }

    /// What is signed.
    fn unsigned(&self) -> Vec<u8> {
        let line = Self { signature: None, ban: self.ban.clone(), ..*self };
        serde_json::to_vec(&line).unwrap_or_default()
    }
}

/// The bans of a wallet: its own, and those of its devices.
type Bans = BTreeMap<PublicKey, BTreeMap<Option<DeviceName>, Ban>>;

/// The list.
pub struct BanList {
    path: PathBuf,
    key: KeyPair,
    bans: Mutex<Bans>,
}

impl BanList {
    /// Reads the list at `path`; an absent file is an empty list. `key` signs what is added.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn open(path: &Path, key: KeyPair) -> Result<Self, BanError> {
        let mut text = String::new();
        match File::open(path) {
            Ok(file) => file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(at(path))?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => 0,
            Err(e) => return Err(at(path)(e)),
        };
        let mut bans = Bans::new();
        for line in text.lines().filter_map(Line::parse) {
            let signed = line
                .signature
                .as_ref()
                .is_some_and(|signature| Context::Ban.verify(&key.public(), &[&line.unsigned()], signature).is_ok());
            if !signed {
                tracing::warn!(wallet = %line.ban.wallet, "a ban that this hub's key did not sign");
            }
            if line.lifted {
                bans.remove(&line.ban.wallet);
            } else {
                bans.entry(line.ban.wallet).or_default().insert(line.ban.device.clone(), line.ban);
            }
        }
        Ok(Self { path: path.to_path_buf(), key, bans: Mutex::new(bans) })
    }

    fn bans(&self) -> MutexGuard<'_, Bans> {
        self.bans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The ban of a wallet, if there is one.
    #[must_use]
    pub fn of(&self, wallet: &PublicKey) -> Option<Ban> {
        self.bans().get(wallet)?.get(&None).cloned()
    }

    /// The devices with which an installation of a wallet may not come, by name.
    #[must_use]
    pub fn devices(&self, wallet: &PublicKey, worker_id: &WorkerId) -> Vec<String> {
        let bans = self.bans();
        let devices = bans.get(wallet).into_iter().flat_map(BTreeMap::keys).flatten();
        devices.filter(|device| device.worker_id == *worker_id).map(|device| device.name.clone()).collect()
    }

    /// Every ban.
    #[must_use]
    pub fn all(&self) -> Vec<Ban> {
        self.bans().values().flat_map(BTreeMap::values).cloned().collect()
    }

    /// Bans, in memory first and then on disk (blocking); whether it was news.
    ///
    /// # Errors
    /// A full list, or a file that cannot be written; the ban then holds until the hub stops.
    pub fn add(&self, mut ban: Ban) -> Result<bool, BanError> {
        cut(&mut ban.reason);
        {
            let mut bans = self.bans();
            let is_full = bans.len() >= WALLETS_MAX && !bans.contains_key(&ban.wallet);
            if is_full {
                return Err(BanError::Full);
            }
            let own = bans.entry(ban.wallet).or_default();
            if own.contains_key(&ban.device) {
                return Ok(false);
            }
            if own.len() > DEVICES_MAX {
                return Err(BanError::Full);
            }
            own.insert(ban.device.clone(), ban.clone());
        }
        self.append(false, ban).map(|()| true)
    }

    /// Lifts every ban of a wallet (blocking); whether there was one. `since_unix_ms` and `reason` are the lifting's.
    ///
    /// # Errors
    /// A file that cannot be written; the bans are back after a restart then.
    pub fn lift(&self, wallet: PublicKey, since_unix_ms: u64, by: By, mut reason: String) -> Result<bool, BanError> {
        if self.bans().remove(&wallet).is_none() {
            return Ok(false);
        }
        cut(&mut reason);
        self.append(true, Ban { wallet, device: None, since_unix_ms, by, reason }).map(|()| true)
    }

    fn append(&self, lifted: bool, ban: Ban) -> Result<(), BanError> {
        let mut line = Line { lifted, ban, signature: None };
        line.signature = Some(self.key.sign(Context::Ban, &[&line.unsigned()]));
        let text = serde_json::to_string(&line).map_err(io::Error::from).map_err(at(&self.path))?;
        tracing::warn!(record = text, "{}", if lifted { "bans lifted" } else { "banned" });
        let append = || {
            // The line end comes first, so that a torn line before it cannot spoil this one.
            let mut file = OpenOptions::new().create(true).append(true).open(&self.path)?;
            file.write_all(format!("\n{text}").as_bytes())?;
            file.sync_data()
        };
        append().map_err(at(&self.path))
    }
}

fn cut(reason: &mut String) {
    if reason.len() > REASON_BYTES_MAX {
        let end = (0..=REASON_BYTES_MAX).rev().find(|end| reason.is_char_boundary(*end)).unwrap_or(0);
        reason.truncate(end);
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> BanError + '_ {
    move |source| BanError::Io { path: path.to_path_buf(), source }
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

    fn ban(wallet: PublicKey, device: Option<&str>) -> Ban {
        let reason = "audit: row 3 differs".to_owned();
        let device = device.map(|name| DeviceName { worker_id: WORKER, name: name.to_owned() });
        Ban { wallet, device, since_unix_ms: 7, by: By::Backbone, reason }
    }

    #[test]
    fn the_list_survives_a_restart_a_torn_line_and_a_line_by_hand() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bans");
        let list = BanList::open(&path, key()).unwrap();
        assert!(list.add(ban(ONE, None)).unwrap() && !list.add(ban(ONE, None)).unwrap());
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 2, "an empty first line and one ban: {text:?}");
        std::fs::write(&path, format!("{text}\n{{\"lifted\":true,\"wal")).unwrap();
        BanList::open(&path, key()).unwrap().add(ban(TWO, Some("gpu"))).unwrap();
        let by_hand = PublicKey([3; 32]);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{text}\n{by_hand}\n")).unwrap();
        let list = BanList::open(&path, key()).unwrap();
        assert_eq!(list.of(&ONE), Some(ban(ONE, None)));
        assert_eq!((list.of(&TWO), list.devices(&TWO, &WORKER)), (None, vec!["gpu".to_owned()]));
        assert!(list.devices(&TWO, &Hex([6; 16])).is_empty(), "another machine of theirs");
        assert_eq!(list.of(&by_hand).map(|ban| ban.by), Some(By::Operator));
        assert_eq!(list.all().len(), 3);
    }

    #[test]
    fn lifting_ends_every_ban_of_a_wallet_for_good() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bans");
        let list = BanList::open(&path, key()).unwrap();
        for device in [None, Some("gpu"), Some("cpu")] {
            list.add(ban(ONE, device)).unwrap();
        }
        assert!(list.lift(ONE, 8, By::Operator, "it was the driver".into()).unwrap());
        assert!(!list.lift(ONE, 8, By::Operator, String::new()).unwrap());
        let list = BanList::open(&path, key()).unwrap();
        assert!(list.all().is_empty() && list.devices(&ONE, &WORKER).is_empty());
        assert!(list.add(ban(ONE, None)).unwrap());
    }

    #[test]
    fn every_record_is_signed_by_the_hub() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bans");
        let list = BanList::open(&path, key()).unwrap();
        list.add(Ban { reason: "ü".repeat(REASON_BYTES_MAX), ..ban(ONE, Some("gpu")) }).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let line = Line::parse(text.trim()).unwrap();
        assert_eq!(line.ban.reason.len(), REASON_BYTES_MAX);
        let verify = |line: &Line| Context::Ban.verify(&key().public(), &[&line.unsigned()], &line.signature.unwrap());
        verify(&line).unwrap();
        let changed = Line { ban: Ban { wallet: TWO, ..line.ban.clone() }, ..line };
        verify(&changed).unwrap_err();
    }

    #[test]
    fn a_ban_that_cannot_be_written_still_holds_until_the_stop() {
        let dir = tempfile::tempdir().unwrap();
        let list = BanList::open(&dir.path().join("absent/bans"), key()).unwrap();
        assert!(matches!(list.add(ban(ONE, None)), Err(BanError::Io { .. })));
        assert!(list.of(&ONE).is_some());
    }
}
