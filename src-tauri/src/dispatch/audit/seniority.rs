//! How much accepted work each wallet has behind it, remembered over restarts.
//!
//! A text file, `address assignments` a line. Why on disk: a wallet's first work is audited in full, and neither a
//! restart nor a new session may start that over. **Promises:** the file is replaced whole or not at all; a memory that
//! is full forgets no one, so that newcomers stay audited.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::types::PublicKey;

/// Most wallets remembered.
const WALLETS_MAX: usize = 100_000;
/// An address has at most 44 characters, a number 20.
const FILE_BYTES_MAX: u64 = 66 * WALLETS_MAX as u64;

#[derive(Default)]
struct Book {
    accepted: HashMap<PublicKey, u64>,
    changed: bool,
}

/// See the module.
#[derive(Default)]
pub struct Seniority {
    path: Option<PathBuf>,
    book: Mutex<Book>,
}

impl Seniority {
    /// What is remembered at `path`; nothing when there is no such file. Without a path ([`Seniority::default`]) nothing
    /// outlives the process.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut text = String::new();
        match fs::File::open(path) {
            Ok(file) => file.take(FILE_BYTES_MAX).read_to_string(&mut text).map(drop)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let line = |line: &str| {
            let (wallet, accepted) = line.split_once(' ')?;
            Some((wallet.parse().ok()?, accepted.parse().ok()?))
        };
        let accepted = text.lines().filter_map(line).take(WALLETS_MAX).collect();
        let book = Mutex::new(Book { accepted, changed: false });
        Ok(Self { path: Some(path.to_path_buf()), book })
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepted assignments of a wallet, as far as they are counted.
    #[must_use]
    pub fn accepted(&self, wallet: &PublicKey) -> u64 {
        self.book().accepted.get(wallet).copied().unwrap_or(0)
    }

    /// More of a wallet's work was accepted; counts end at `enough`.
    pub(in crate::dispatch) fn add(&self, wallet: PublicKey, assignments: u64, enough: u64) {
        let mut book = self.book();
        if book.accepted.len() >= WALLETS_MAX && !book.accepted.contains_key(&wallet) {
            return;
        }
        let accepted = book.accepted.entry(wallet).or_default();
        let now = accepted.saturating_add(assignments).min(enough);
        let moved = std::mem::replace(accepted, now) != now;
        book.changed |= moved;
    }

    /// A caught wallet starts over, if it ever comes back.
    pub(in crate::dispatch) fn forget(&self, wallet: &PublicKey) {
        let mut book = self.book();
        book.changed |= book.accepted.remove(wallet).is_some();
    }

    /// Writes what changed since the last time (blocking).
    ///
    /// # Errors
    /// A file that cannot be written; it is tried again the next time.
    pub fn save(&self) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let text = {
            let mut book = self.book();
            if !std::mem::take(&mut book.changed) {
                return Ok(());
            }
            book.accepted.iter().map(|(wallet, accepted)| format!("{wallet} {accepted}\n")).collect::<String>()
        };
        let saved = replace(path, &text);
        if saved.is_err() {
            self.book().changed = true;
        }
        saved
    }
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = fs::File::create(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_data()?;
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_wallet_has_behind_it_survives_a_restart_and_a_torn_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("seniority");
        let (one, two) = (PublicKey([1; 32]), PublicKey([2; 32]));
        let seniority = Seniority::open(&path).unwrap();
        seniority.add(one, 700, 1_000);
        seniority.add(two, 7, 1_000);
        seniority.add(one, 700, 1_000);
        seniority.save().unwrap();
        let seniority = Seniority::open(&path).unwrap();
        assert_eq!((seniority.accepted(&one), seniority.accepted(&two)), (1_000, 7));
        seniority.forget(&one);
        seniority.save().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{text}4uQeVj5tqViQ")).unwrap();
        let seniority = Seniority::open(&path).unwrap();
        assert_eq!((seniority.accepted(&one), seniority.accepted(&two)), (0, 7));
    }

    #[test]
    fn nothing_is_written_when_nothing_changed_and_a_failed_write_is_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("absent").join("seniority");
        let seniority = Seniority::open(&path).unwrap();
        seniority.save().unwrap();
        seniority.add(PublicKey([1; 32]), 10, 10);
        assert!(seniority.save().is_err());
        fs::create_dir(dir.path().join("absent")).unwrap();
        seniority.save().unwrap();
        fs::remove_file(&path).unwrap();
        seniority.add(PublicKey([1; 32]), 10, 10);
        seniority.save().unwrap();
        assert!(!path.exists(), "a wallet that is old enough changes nothing");
    }
}
