//! Wallet keys in files that a password opens, for desktops without a keyring: `<address>.sealed`, owner-only.
//!
//! A file is `"kvasirpw" | version u8 | memory_kib u32 | passes u32 | lanes u32 | salt 16 | nonce 24 | sealed`, numbers
//! little-endian. Argon2id makes the key, XChaCha20-Poly1305 seals the secret; what stands before it and the wallet's
//! address are authenticated with it. **Promises:** a wrong password changes nothing; costs that a file asks for are
//! bounded before they are paid; password and keys are wiped when dropped.

use std::path::{Path, PathBuf};

use argon2::{Algorithm, Argon2, Params, Version};
use chacha20poly1305::aead::{AeadInOut, KeyInit};
use chacha20poly1305::{Tag, XChaCha20Poly1305, XNonce};
use zeroize::Zeroizing;

use super::private::{self, PrivateFileError};
use super::{KeyStore, KeyStoreError, Wallet};
use crate::types::PublicKey;

const ENDING: &str = ".sealed";
const MAGIC: &[u8; 8] = b"kvasirpw";
const VERSION: u8 = 1;
const SALT_BYTES: usize = 16;
const NONCE_BYTES: usize = 24;
const TAG_BYTES: usize = 16;
/// Magic, version, three costs, salt and nonce.
const HEAD_BYTES: usize = 8 + 1 + 12 + SALT_BYTES + NONCE_BYTES;
/// The secret as text, filled up with line ends, so that its length tells nothing.
const SECRET_BYTES: usize = 72;
/// RFC 9106's second choice: 64 MiB, three passes, four lanes; a fifth of a second of one core.
const COSTS: Costs = Costs { memory_kib: 64 * 1024, passes: 3, lanes: 4 };
/// Most that a file may ask for.
const COSTS_MAX: Costs = Costs { memory_kib: 1024 * 1024, passes: 16, lanes: 16 };
/// Shortest password.
pub const PASSWORD_CHARS_MIN: usize = 10;
const EXPECTED: &str = "a wallet sealed with a password, version 1";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Costs {
    memory_kib: u32,
    passes: u32,
    lanes: u32,
}

/// A directory of sealed keys and the password that opens them.
pub struct PasswordKeyStore {
    dir: PathBuf,
    password: Zeroizing<String>,
}

impl PasswordKeyStore {
    /// The store in `dir`, which is made when a key is first kept.
    ///
    /// # Errors
    /// [`KeyStoreError::WeakPassword`].
    pub fn new(dir: impl Into<PathBuf>, password: Zeroizing<String>) -> Result<Self, KeyStoreError> {
        if password.chars().count() < PASSWORD_CHARS_MIN {
            return Err(KeyStoreError::WeakPassword);
        }
        Ok(Self { dir: dir.into(), password })
    }

    /// Wallets that are sealed in `dir`; no password is needed to see which.
    ///
    /// # Errors
    /// A directory that cannot be read.
    pub fn sealed_in(dir: &Path) -> Result<Vec<PublicKey>, KeyStoreError> {
        Ok(private::addresses_in(dir, ENDING)?)
    }

    /// Seals a wallet that is here with this store's password, in place of the one before.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn reseal(&self, wallet: &Wallet) -> Result<(), KeyStoreError> {
        let sealed = self.seal(wallet)?;
        private::replace(&self.path(&wallet.address()), &sealed)?;
        self.load(&wallet.address()).map(drop)
    }

    /// Removes a sealed key, by its owner's order, for which no password is needed.
    ///
    /// # Errors
    /// A file that cannot be removed.
    pub fn remove_sealed(dir: &Path, address: &PublicKey) -> Result<(), KeyStoreError> {
        Ok(private::remove(&path(dir, address))?)
    }

    fn path(&self, address: &PublicKey) -> PathBuf {
        path(&self.dir, address)
    }

    fn seal(&self, wallet: &Wallet) -> Result<Vec<u8>, KeyStoreError> {
        let mut head = Vec::with_capacity(HEAD_BYTES + SECRET_BYTES + TAG_BYTES);
        head.extend_from_slice(MAGIC);
        head.push(VERSION);
        [COSTS.memory_kib, COSTS.passes, COSTS.lanes]
            .iter()
            .for_each(|cost| head.extend_from_slice(&cost.to_le_bytes()));
        head.resize(HEAD_BYTES, 0);
        getrandom::fill(&mut head[HEAD_BYTES - SALT_BYTES - NONCE_BYTES..])?;
        let mut secret = Zeroizing::new([b'\n'; SECRET_BYTES]);
        let line = wallet.secret_line();
        secret.iter_mut().zip(line.bytes()).for_each(|(place, byte)| *place = byte);
        let tag = self
            .cipher(&head, COSTS)
            .and_then(|cipher| {
                let (nonce, about) = (nonce_of(&head)?, about(&head, &wallet.address()));
                cipher.encrypt_inout_detached(&nonce, &about, secret.as_mut_slice().into()).ok()
            })
            .ok_or(KeyStoreError::NoMemory)?;
        head.extend_from_slice(secret.as_ref());
        head.extend_from_slice(&tag);
        Ok(head)
    }

    fn cipher(&self, head: &[u8], costs: Costs) -> Option<XChaCha20Poly1305> {
        let Costs { memory_kib, passes, lanes } = costs;
        let params = Params::new(memory_kib, passes, lanes, Some(32)).ok()?;
        let salt = head.get(HEAD_BYTES - SALT_BYTES - NONCE_BYTES..HEAD_BYTES - NONCE_BYTES)?;
        let mut key = Zeroizing::new([0u8; 32]);
        let argon = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
        argon.hash_password_into(self.password.as_bytes(), salt, key.as_mut()).ok()?;
        XChaCha20Poly1305::new_from_slice(key.as_ref()).ok()
    }
}

fn path(dir: &Path, address: &PublicKey) -> PathBuf {
    dir.join(format!("{address}{ENDING}"))
}

fn nonce_of(head: &[u8]) -> Option<XNonce> {
    XNonce::try_from(head.get(HEAD_BYTES - NONCE_BYTES..HEAD_BYTES)?).ok()
}

/// What is authenticated beside the secret.
fn about(head: &[u8], address: &PublicKey) -> Vec<u8> {
    [&head[..HEAD_BYTES.min(head.len())], &address.0].concat()
}

/// The costs of a file of this version, when they can be paid.
fn costs_of(file: &[u8]) -> Option<Costs> {
    let rest = file.strip_prefix(MAGIC)?.strip_prefix(&[VERSION])?;
    let number = |at: usize| rest.get(at..at + 4)?.first_chunk::<4>().map(|bytes| u32::from_le_bytes(*bytes));
    let costs = Costs { memory_kib: number(0)?, passes: number(4)?, lanes: number(8)? };
    let can_be_paid = costs.memory_kib <= COSTS_MAX.memory_kib
        && costs.passes <= COSTS_MAX.passes
        && costs.lanes <= COSTS_MAX.lanes
        && file.len() == HEAD_BYTES + SECRET_BYTES + TAG_BYTES;
    can_be_paid.then_some(costs)
}

impl KeyStore for PasswordKeyStore {
    fn load(&self, address: &PublicKey) -> Result<Wallet, KeyStoreError> {
        let path = self.path(address);
        let Some(file) = private::read_secret_bytes(&path)? else {
            return Err(KeyStoreError::Missing { address: *address, store: self.name() });
        };
        let content = || PrivateFileError::Content { path: path.clone(), expected: EXPECTED };
        let costs = costs_of(&file).ok_or_else(content)?;
        let (head, sealed) = file.split_at(HEAD_BYTES);
        let (sealed, tag) = sealed.split_at(SECRET_BYTES);
        let mut secret = Zeroizing::new([0u8; SECRET_BYTES]);
        secret.copy_from_slice(sealed);
        let opened = self.cipher(head, costs).zip(nonce_of(head)).zip(Tag::try_from(tag).ok());
        let ((cipher, nonce), tag) = opened.ok_or_else(content)?;
        cipher
            .decrypt_inout_detached(&nonce, &about(head, address), secret.as_mut_slice().into(), &tag)
            .map_err(|_| KeyStoreError::Password)?;
        let text = std::str::from_utf8(secret.as_ref()).ok();
        match text.and_then(Wallet::from_secret_line) {
            Some(wallet) if wallet.address() == *address => Ok(wallet),
            _ => Err(KeyStoreError::Damaged { address: *address, store: self.name() }),
        }
    }

    fn store(&self, wallet: &Wallet) -> Result<(), KeyStoreError> {
        match private::write_new(&self.path(&wallet.address()), &self.seal(wallet)?) {
            // Either the same key under the same password, or a file that must be looked at.
            Err(PrivateFileError::Exists { .. }) => {}
            other => other?,
        }
        // Read back before anybody relies on it.
        self.load(&wallet.address()).map(drop)
    }

    fn remove(&self, address: &PublicKey) -> Result<(), KeyStoreError> {
        Self::remove_sealed(&self.dir, address)
    }

    fn list(&self) -> Result<Vec<PublicKey>, KeyStoreError> {
        Self::sealed_in(&self.dir)
    }

    fn name(&self) -> String {
        format!("password files in {}", self.dir.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(dir: &Path, password: &str) -> PasswordKeyStore {
        PasswordKeyStore::new(dir, Zeroizing::new(password.to_owned())).unwrap()
    }

    #[test]
    fn only_the_password_opens_a_sealed_wallet() {
        let dir = tempfile::tempdir().unwrap();
        let (right, wrong) = (store(dir.path(), "correct horse battery"), store(dir.path(), "correct horse batterx"));
        let wallet = Wallet::generate().unwrap();
        let address = wallet.address();
        right.store(&wallet).unwrap();
        right.store(&wallet).unwrap();
        assert_eq!(PasswordKeyStore::sealed_in(dir.path()).unwrap(), [address]);
        let opened = right.load(&address).unwrap();
        assert_eq!(opened.phrase().unwrap().words(), wallet.phrase().unwrap().words());
        assert!(matches!(wrong.load(&address), Err(KeyStoreError::Password)));
        wrong.reseal(&wallet).unwrap();
        assert!(matches!(right.load(&address), Err(KeyStoreError::Password)));
        assert_eq!(wrong.load(&address).unwrap().address(), address);
    }

    #[test]
    fn a_sealed_file_tells_nothing_and_every_byte_of_it_counts() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path(), "correct horse battery");
        let wallet = Wallet::from_seed(&[7; 32]);
        store.store(&wallet).unwrap();
        let path = store.path(&wallet.address());
        let file = std::fs::read(&path).unwrap();
        assert!(!file.windows(16).any(|part| wallet.secret_line().as_bytes().windows(16).any(|secret| secret == part)));
        for at in [0, 8, 9, 13, 21, 37, HEAD_BYTES, file.len() - 1] {
            let mut damaged = file.clone();
            damaged[at] ^= 1;
            private::replace(&path, &damaged).unwrap();
            assert!(store.load(&wallet.address()).is_err(), "byte {at}");
        }
        let mut dear = file.clone();
        dear[9..13].copy_from_slice(&u32::MAX.to_le_bytes());
        private::replace(&path, &dear).unwrap();
        assert!(matches!(store.load(&wallet.address()), Err(KeyStoreError::File(PrivateFileError::Content { .. }))));
        private::replace(&path, &file).unwrap();
        // Under another address it is not its key.
        std::fs::rename(&path, store.path(&PublicKey([1; 32]))).unwrap();
        assert!(matches!(store.load(&PublicKey([1; 32])), Err(KeyStoreError::Password)));
    }

    #[test]
    fn a_short_password_is_refused() {
        let weak = PasswordKeyStore::new("nowhere", Zeroizing::new("ninechars".into()));
        assert!(matches!(weak.map(drop), Err(KeyStoreError::WeakPassword)));
    }
}
