//! Wallet keys in the operating system's keyring: macOS Keychain, Windows Credential Manager, Secret Service.
//!
//! A secret is kept as hex text – a phrase's 16 bytes, or the seed of a wallet of before phrases – because some keyrings hold text only. Keyrings cannot list what they hold in one
//! portable way, so an entry of its own keeps the addresses; it is written after the key it names.
//!
//! **Promises:** a keyring that could not be had is asked again at the next call; a locked one is never taken for one
//! without the key. Why the stores are opened here and not by a crate that chooses: that one remembers a failure for as
//! long as the process lives, and an app may start before its keyring does.

use std::sync::{Arc, Mutex, PoisonError};

use keyring_core::{CredentialStore, Entry, Error};
use zeroize::Zeroizing;

use super::{KeyStore, KeyStoreError, Wallet};
use crate::types::PublicKey;

/// Name of the entry with the addresses; no base58 text contains a hyphen.
const INDEX: &str = "wallet-addresses";
/// Name of the entry that is written and removed to learn whether the keyring is open.
const PROBE: &str = "unlock-probe";
/// The keyring of this process, once it could be had.
static STORE: Mutex<Option<Arc<CredentialStore>>> = Mutex::new(None);
/// One writer at a time, so that no address falls out of the index.
static INDEX_WRITE: Mutex<()> = Mutex::new(());

/// The keyring of the user who runs this process.
#[derive(Clone, Debug)]
pub struct OsKeyStore {
    service: String,
}

impl OsKeyStore {
    /// Keys under the name `service`; builds and networks that must not share keys use different names.
    #[must_use]
    pub fn new(service: &str) -> Self {
        Self { service: service.to_owned() }
    }

    /// Whether the keyring answers; asks for nothing and changes nothing.
    ///
    /// # Errors
    /// [`KeyStoreError::Unavailable`] with the operating system's reason.
    pub fn check(&self) -> Result<(), KeyStoreError> {
        self.read(INDEX).map(|_| ())
    }

    fn entry(&self, user: &str) -> Result<Entry, KeyStoreError> {
        let mut store = STORE.lock().unwrap_or_else(PoisonError::into_inner);
        if store.is_none() {
            *store = Some(open_store().map_err(|error| unavailable(&error))?);
        }
        let Some(store) = store.as_ref() else { return Err(unavailable(&Error::NoDefaultStore)) };
        Entry::new_in_store(store, &self.service, user).map_err(|error| unavailable(&error))
    }

    /// Whether the keyring is open, asking its owner to open it if need be: a locked one finds nothing either.
    fn ensure_open(&self) -> Result<(), KeyStoreError> {
        let probe = self.entry(PROBE)?;
        probe.set_password(PROBE).map_err(|error| unavailable(&error))?;
        // Left behind it would do no harm.
        let _ = probe.delete_credential();
        Ok(())
    }

    fn read(&self, user: &str) -> Result<Option<Zeroizing<String>>, KeyStoreError> {
        match self.entry(user)?.get_password() {
            Ok(text) => Ok(Some(Zeroizing::new(text))),
            Err(Error::NoEntry) => Ok(None),
            Err(error) => Err(unavailable(&error)),
        }
    }

    fn write_index<'a>(&self, known: impl Iterator<Item = &'a PublicKey>) -> Result<(), KeyStoreError> {
        let index: Vec<String> = known.map(ToString::to_string).collect();
        self.write(INDEX, &index.join(" "))
    }

    fn write(&self, user: &str, text: &str) -> Result<(), KeyStoreError> {
        self.entry(user)?.set_password(text).map_err(|error| unavailable(&error))
    }
}

#[cfg(target_os = "macos")]
fn open_store() -> Result<Arc<CredentialStore>, Error> {
    Ok(apple_native_keyring_store::keychain::Store::new()?)
}

#[cfg(windows)]
fn open_store() -> Result<Arc<CredentialStore>, Error> {
    Ok(windows_native_keyring_store::Store::new()?)
}

#[cfg(all(unix, not(target_os = "macos")))]
fn open_store() -> Result<Arc<CredentialStore>, Error> {
    Ok(zbus_secret_service_keyring_store::Store::new()?)
}

fn unavailable(error: &Error) -> KeyStoreError {
    KeyStoreError::Unavailable { reason: error.to_string() }
}

impl KeyStore for OsKeyStore {
    fn load(&self, address: &PublicKey) -> Result<Wallet, KeyStoreError> {
        let name = address.to_string();
        let text = match self.read(&name)? {
            None => {
                self.ensure_open()?;
                self.read(&name)?
            }
            found => found,
        };
        let Some(text) = text else {
            return Err(KeyStoreError::Missing { address: *address, store: self.name() });
        };
        match Wallet::from_secret_line(&text) {
            Some(wallet) if wallet.address() == *address => Ok(wallet),
            _ => Err(KeyStoreError::Damaged { address: *address, store: self.name() }),
        }
    }

    fn store(&self, wallet: &Wallet) -> Result<(), KeyStoreError> {
        let address = wallet.address();
        let _one_writer = INDEX_WRITE.lock().unwrap_or_else(PoisonError::into_inner);
        match self.load(&address) {
            Err(KeyStoreError::Missing { .. }) => self.write(&address.to_string(), wallet.secret_line().trim_end())?,
            other => drop(other?),
        }
        // Read back before anybody relies on it.
        self.load(&address)?;
        let mut known = self.list()?;
        if !known.contains(&address) {
            known.push(address);
            self.write_index(known.iter())?;
        }
        Ok(())
    }

    fn remove(&self, address: &PublicKey) -> Result<(), KeyStoreError> {
        let _one_writer = INDEX_WRITE.lock().unwrap_or_else(PoisonError::into_inner);
        // First the key: an address without one is found missing, a key without an address would not be found at all.
        match self.entry(&address.to_string())?.delete_credential() {
            Ok(()) | Err(Error::NoEntry) => {}
            Err(error) => return Err(unavailable(&error)),
        }
        let known = self.list()?;
        if known.contains(address) {
            self.write_index(known.iter().filter(|known| *known != address))?;
        }
        Ok(())
    }

    fn list(&self) -> Result<Vec<PublicKey>, KeyStoreError> {
        let index = match self.read(INDEX)? {
            // A locked keyring finds nothing, and nothing found means that a first wallet is made.
            None => {
                self.ensure_open()?;
                self.read(INDEX)?
            }
            found => found,
        };
        let index = index.unwrap_or_default();
        Ok(index.split_whitespace().filter_map(|text| text.parse().ok()).collect())
    }

    fn name(&self) -> String {
        format!("the system keyring ({})", self.service)
    }
}
