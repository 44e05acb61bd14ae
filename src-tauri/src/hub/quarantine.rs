//! The wallets that were caught, remembered over restarts.
//!
//! A text file, one address a line, so that an operator can read it and take a line out while the hub is stopped.
//! **Promise:** a torn last line after a crash is dropped, not misread, and spoils no later line.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::types::PublicKey;

/// Most wallets on the list.
const WALLETS_MAX: usize = 100_000;
/// An address has at most 44 characters; a line begins with its line end.
const FILE_BYTES_MAX: u64 = 45 * WALLETS_MAX as u64;

/// Why the list cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum QuarantineError {
    /// The file cannot be read or written.
    #[error("quarantine list {path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The list cannot take another wallet.
    #[error("expected at most {WALLETS_MAX} quarantined wallets")]
    Full,
}

/// The list.
pub struct QuarantineList {
    path: PathBuf,
    wallets: Mutex<HashSet<PublicKey>>,
}

impl QuarantineList {
    /// Reads the list at `path`; an absent file is an empty list.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn open(path: &Path) -> Result<Self, QuarantineError> {
        let mut text = String::new();
        match File::open(path) {
            Ok(file) => file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(at(path))?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => 0,
            Err(e) => return Err(at(path)(e)),
        };
        let wallets = text.lines().filter_map(|line| line.parse().ok()).collect();
        Ok(Self { path: path.to_path_buf(), wallets: Mutex::new(wallets) })
    }

    /// Whether a wallet was caught.
    #[must_use]
    pub fn contains(&self, wallet: &PublicKey) -> bool {
        self.wallets.lock().unwrap_or_else(PoisonError::into_inner).contains(wallet)
    }

    /// Remembers a caught wallet, in memory first and then on disk (blocking).
    ///
    /// # Errors
    /// A full list, or a file that cannot be written; the wallet is then remembered until the hub stops.
    pub fn add(&self, wallet: PublicKey) -> Result<(), QuarantineError> {
        {
            let mut wallets = self.wallets.lock().unwrap_or_else(PoisonError::into_inner);
            if wallets.contains(&wallet) {
                return Ok(());
            }
            if wallets.len() >= WALLETS_MAX {
                return Err(QuarantineError::Full);
            }
            wallets.insert(wallet);
        }
        let append = || {
            // The line end comes first, so that a torn line before it cannot spoil this one.
            let mut file = OpenOptions::new().create(true).append(true).open(&self.path)?;
            file.write_all(format!("\n{wallet}").as_bytes())?;
            file.sync_data()
        };
        append().map_err(at(&self.path))
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> QuarantineError + '_ {
    move |source| QuarantineError::Io { path: path.to_path_buf(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_survives_a_restart_and_a_torn_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("quarantine");
        let (one, two) = (PublicKey([1; 32]), PublicKey([2; 32]));
        let list = QuarantineList::open(&path).unwrap();
        list.add(one).unwrap();
        list.add(one).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 2, "an empty first line and one wallet: {text:?}");
        std::fs::write(&path, format!("{text}\n4uQeVj5tqViQ")).unwrap();
        QuarantineList::open(&path).unwrap().add(two).unwrap();
        let list = QuarantineList::open(&path).unwrap();
        assert!(list.contains(&one) && list.contains(&two) && !list.contains(&PublicKey([3; 32])));
    }

    #[test]
    fn a_list_that_cannot_be_written_still_holds_until_the_stop() {
        let dir = tempfile::tempdir().unwrap();
        let list = QuarantineList::open(&dir.path().join("absent/quarantine")).unwrap();
        let wallet = PublicKey([1; 32]);
        assert!(matches!(list.add(wallet), Err(QuarantineError::Io { .. })));
        assert!(list.contains(&wallet));
    }
}
