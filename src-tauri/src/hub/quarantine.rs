//! The wallets that are kept out, remembered over restarts: those that were caught and those that the operator banned.
//!
//! A text file, `address since_unix_ms by reason` a line, so that an operator can read it and take a line out while the
//! hub is stopped. **Promise:** a torn last line after a crash is dropped, not misread, and spoils no later line; a
//! removal replaces the file whole.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::lines::{Lines, LinesError};
use crate::types::PublicKey;
use crate::wire::admin::BanView;
use crate::wire::text::{PLAIN_CHARS_MAX, plain};

/// Most wallets on the list.
const WALLETS_MAX: usize = 100_000;
/// Longest line: a line end, an address of 44 characters, 20 digits, a word, a reason in UTF-8.
const LINE_BYTES_MAX: usize = 1 + 44 + 1 + 20 + 1 + 8 + 1 + 4 * PLAIN_CHARS_MAX;
const FILE_BYTES_MAX: u64 = (LINE_BYTES_MAX * WALLETS_MAX) as u64;

/// Why the list cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum QuarantineError {
    /// The file cannot be read or written.
    #[error("quarantine list {0}")]
    File(#[from] LinesError),
    /// The list cannot take another wallet.
    #[error("expected at most {WALLETS_MAX} wallets that are kept out")]
    Full,
}

/// Who keeps a wallet out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// The backbone caught it.
    Backbone,
    /// The operator banned it.
    Operator,
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Backbone => "backbone",
            Self::Operator => "operator",
        })
    }
}

/// Why a wallet is kept out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Milliseconds since 1970; 0 when the list does not say.
    pub since_unix_ms: u64,
    /// Who said so.
    pub by: By,
    /// In plain words.
    pub reason: String,
}

type Wallets = HashMap<PublicKey, Entry>;

/// The list.
pub struct QuarantineList {
    lines: Lines,
    wallets: Mutex<Wallets>,
}

impl QuarantineList {
    /// Reads the list at `path`; an absent file is an empty list.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn open(path: &Path) -> Result<Self, QuarantineError> {
        let (lines, text) = Lines::open(path, FILE_BYTES_MAX)?;
        let wallets = text.lines().filter_map(read_line).collect();
        Ok(Self { lines, wallets: Mutex::new(wallets) })
    }

    /// Who keeps a wallet out, if anybody does.
    #[must_use]
    pub fn by(&self, wallet: &PublicKey) -> Option<By> {
        self.wallets().get(wallet).map(|entry| entry.by)
    }

    /// The wallets that the backbone caught.
    #[must_use]
    pub fn caught(&self) -> Vec<PublicKey> {
        let wallets = self.wallets();
        wallets.iter().filter(|(_, entry)| entry.by == By::Backbone).map(|(wallet, _)| *wallet).collect()
    }

    /// The whole list, by address.
    #[must_use]
    pub fn views(&self) -> Vec<BanView> {
        let view = |(wallet, entry): (&PublicKey, &Entry)| BanView {
            wallet: *wallet,
            since_unix_ms: entry.since_unix_ms,
            by: entry.by.to_string(),
            reason: entry.reason.clone(),
        };
        let mut views: Vec<BanView> = self.wallets().iter().map(view).collect();
        views.sort_by_key(|view| view.wallet);
        views
    }

    /// Remembers a wallet, in memory first and then on disk (blocking). The first entry of a wallet stays.
    ///
    /// # Errors
    /// A full list, or a file that cannot be written; the wallet is then remembered until the hub stops.
    pub fn add(&self, wallet: PublicKey, entry: Entry) -> Result<(), QuarantineError> {
        let entry = Entry { reason: plain(&entry.reason), ..entry };
        let (pen, line) = (self.lines.pen(), line(&wallet, &entry));
        {
            let mut wallets = self.wallets();
            if wallets.contains_key(&wallet) {
                return Ok(());
            }
            if wallets.len() >= WALLETS_MAX {
                return Err(QuarantineError::Full);
            }
            wallets.insert(wallet, entry);
        }
        Ok(pen.append(&line)?)
    }

    /// Lets a wallet in again (blocking); whether it was kept out.
    ///
    /// # Errors
    /// A file that cannot be replaced; the wallet is then let in until the hub stops.
    pub fn remove(&self, wallet: &PublicKey) -> Result<bool, QuarantineError> {
        let pen = self.lines.pen();
        let left: Vec<String> = {
            let mut wallets = self.wallets();
            if wallets.remove(wallet).is_none() {
                return Ok(false);
            }
            wallets.iter().map(|(wallet, entry)| line(wallet, entry)).collect()
        };
        pen.replace(&left)?;
        Ok(true)
    }

    fn wallets(&self) -> MutexGuard<'_, Wallets> {
        // Every change is one insert or remove, so the list of a panicked holder is whole.
        self.wallets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn line(wallet: &PublicKey, entry: &Entry) -> String {
    format!("{wallet} {} {} {}", entry.since_unix_ms, entry.by, entry.reason)
}

/// A line of the file; an address alone is one that was caught.
fn read_line(line: &str) -> Option<(PublicKey, Entry)> {
    let mut words = line.splitn(4, ' ');
    let wallet = PublicKey::from_str(words.next()?).ok()?;
    let since_unix_ms = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
    let by = if words.next() == Some("operator") { By::Operator } else { By::Backbone };
    Some((wallet, Entry { since_unix_ms, by, reason: plain(words.next().unwrap_or_default()) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(by: By, reason: &str) -> Entry {
        Entry { since_unix_ms: 1_700_000_000_000, by, reason: reason.into() }
    }

    #[test]
    fn the_list_survives_a_restart_and_a_torn_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("quarantine");
        let (one, two) = (PublicKey([1; 32]), PublicKey([2; 32]));
        let list = QuarantineList::open(&path).unwrap();
        list.add(one, entry(By::Backbone, "wrong rows in request 7")).unwrap();
        list.add(one, entry(By::Operator, "twice")).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 2, "an empty first line and one wallet: {text:?}");
        std::fs::write(&path, format!("{text}\n4uQeVj5tqViQ")).unwrap();
        QuarantineList::open(&path).unwrap().add(two, entry(By::Operator, "asked\nto go\u{202e}")).unwrap();
        let views = QuarantineList::open(&path).unwrap().views();
        let seen: Vec<_> = views.iter().map(|v| (v.wallet, v.by.as_str(), v.reason.as_str())).collect();
        assert_eq!(seen, [(one, "backbone", "wrong rows in request 7"), (two, "operator", "askedto go")]);
    }

    #[test]
    fn a_list_of_addresses_alone_is_still_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("quarantine");
        std::fs::write(&path, format!("\n{}", PublicKey([1; 32]))).unwrap();
        assert_eq!(QuarantineList::open(&path).unwrap().by(&PublicKey([1; 32])), Some(By::Backbone));
    }

    #[test]
    fn who_is_let_in_again_stays_in_and_the_others_stay_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("quarantine");
        let (one, two) = (PublicKey([1; 32]), PublicKey([2; 32]));
        let list = QuarantineList::open(&path).unwrap();
        list.add(one, entry(By::Operator, "")).unwrap();
        list.add(two, entry(By::Operator, "noise")).unwrap();
        assert!(list.remove(&one).unwrap());
        assert!(!list.remove(&one).unwrap());
        for list in [list, QuarantineList::open(&path).unwrap()] {
            assert_eq!((list.by(&one), list.by(&two)), (None, Some(By::Operator)));
        }
    }

    #[test]
    fn a_list_that_cannot_be_written_still_holds_until_the_stop() {
        let dir = tempfile::tempdir().unwrap();
        let list = QuarantineList::open(&dir.path().join("absent/quarantine")).unwrap();
        let wallet = PublicKey([1; 32]);
        assert!(matches!(list.add(wallet, entry(By::Operator, "x")), Err(QuarantineError::File(_))));
        assert_eq!(list.by(&wallet), Some(By::Operator));
    }
}
