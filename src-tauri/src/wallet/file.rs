//! Wallet keys as owner-only files in one directory, `<address>.wallet`, for machines without a keyring.

use std::path::PathBuf;

use super::private::{self, PrivateFileError};
use super::{KeyStore, KeyStoreError, Wallet};
use crate::types::PublicKey;

const ENDING: &str = ".wallet";

/// A directory of wallet keys.
#[derive(Clone, Debug)]
pub struct FileKeyStore {
    dir: PathBuf,
}

impl FileKeyStore {
    /// The store in `dir`, which is made when a key is first kept.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    fn path(&self, address: &PublicKey) -> PathBuf {
        self.dir.join(format!("{address}{ENDING}"))
    }
}

impl KeyStore for FileKeyStore {
    fn load(&self, address: &PublicKey) -> Result<Wallet, KeyStoreError> {
        let path = self.path(address);
        let Some(text) = private::read_secret(&path)? else {
            return Err(KeyStoreError::Missing { address: *address, store: self.name() });
        };
        match Wallet::from_secret_line(&text) {
            Some(wallet) if wallet.address() == *address => Ok(wallet),
            _ => Err(KeyStoreError::Damaged { address: *address, store: self.name() }),
        }
    }

    fn store(&self, wallet: &Wallet) -> Result<(), KeyStoreError> {
        let text = wallet.secret_line();
        match private::write_new(&self.path(&wallet.address()), text.as_bytes()) {
            // Either the same key, or a file that must be looked at.
            Err(PrivateFileError::Exists { .. }) => self.load(&wallet.address()).map(|_| ()),
            other => Ok(other?),
        }
    }

    fn remove(&self, address: &PublicKey) -> Result<(), KeyStoreError> {
        Ok(private::remove(&self.path(address))?)
    }

    fn list(&self) -> Result<Vec<PublicKey>, KeyStoreError> {
        Ok(private::addresses_in(&self.dir, ENDING)?)
    }

    fn name(&self) -> String {
        self.dir.display().to_string()
    }
}
