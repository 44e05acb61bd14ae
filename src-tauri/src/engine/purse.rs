//! The wallet of this installation: opened, made, restored, and kept in the keyring or in a file with a password.
//!
//! A keyring may ask its owner for a password, so each errand runs on a thread of its own, one at a time. **Promises:**
//! a new key is kept and read back before it takes the place of another; a wallet whose key is missing is replaced only
//! by its own phrase or by its owner's order for a new one; what is to be removed is said to be gone only when it is.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::task::{JoinError, JoinHandle, spawn_blocking};
use tracing::warn;
use zeroize::Zeroizing;

use super::EngineError;
use super::facts::{Needs, Stored, WalletStatus};
use super::remove;
use super::status::{Problem, WalletState};
use crate::types::PublicKey;
use crate::wallet::{self, BACKED_UP, KeyStore, KeyStoreError, PasswordKeyStore, Phrase, WALLET_RECORD, Wallet};

/// Words of the phrase that show that its owner has it.
const VERIFIED_WORDS_MIN: usize = 3;

/// What is wanted of the wallet.
pub(super) enum Errand {
    /// The wallet that is there, or a first one.
    Open,
    /// The same, from a file with a password.
    Unlock(Zeroizing<String>),
    /// A file with a password in place of the keyring, or another password.
    SetPassword(Zeroizing<String>),
    /// Another wallet, with a new phrase.
    New,
    /// The wallet of a phrase.
    Restore(Phrase),
    /// No wallet, and nothing else of this installation: its key goes first, then the files.
    Remove {
        /// Although it is not backed up.
        confirmed: bool,
    },
}

/// What an errand changed.
pub(super) enum Brought {
    /// The open wallet, if any, is the one of before.
    Same,
    /// Another wallet is open.
    Other,
    /// Wallet and files are gone.
    Removed,
}

/// What came of an errand.
enum Fetched {
    Wallet {
        /// `None` where the one of before stays.
        wallet: Option<Arc<Wallet>>,
        /// The file's store, when the key is in one from now on.
        password: Option<Arc<PasswordKeyStore>>,
    },
    Removed,
}

type Came = Result<Fetched, EngineError>;

/// See the module.
pub(super) struct Purse {
    keyring: Arc<dyn KeyStore>,
    dir: PathBuf,
    password: Option<Arc<PasswordKeyStore>>,
    open: Option<Arc<Wallet>>,
    errand: Option<JoinHandle<Came>>,
    /// Whether the last errand was to open what is here.
    was_to_open: bool,
}

impl Purse {
    /// A purse with the wallet of `dir`; nothing is opened yet.
    pub fn new(keyring: Arc<dyn KeyStore>, dir: PathBuf) -> Self {
        Self { keyring, dir, password: None, open: None, errand: None, was_to_open: false }
    }

    /// The wallet, when it is open.
    pub fn wallet(&self) -> Option<&Arc<Wallet>> {
        self.open.as_ref()
    }

    /// Sets out.
    ///
    /// # Errors
    /// [`EngineError::WalletBusy`] while another errand is under way.
    pub fn send(&mut self, errand: Errand) -> Result<(), EngineError> {
        self.check_free()?;
        self.was_to_open = matches!(errand, Errand::Open | Errand::Unlock(_));
        let desk = Desk {
            keyring: Arc::clone(&self.keyring),
            dir: self.dir.clone(),
            password: self.password.clone(),
            open: self.open.clone(),
        };
        self.errand = Some(spawn_blocking(move || desk.run(errand)));
        Ok(())
    }

    /// Whether an errand can be sent.
    pub fn check_free(&self) -> Result<(), EngineError> {
        if self.errand.is_some() { Err(EngineError::WalletBusy) } else { Ok(()) }
    }

    /// Completes when the errand is over; never without one.
    pub async fn returned(&mut self) -> Result<Brought, EngineError> {
        let came: Result<Came, JoinError> = super::task::end_of(&mut self.errand).await;
        match came.map_err(|_| EngineError::Gone("the wallet's thread"))?? {
            Fetched::Removed => {
                (self.open, self.password) = (None, None);
                Ok(Brought::Removed)
            }
            Fetched::Wallet { wallet, password } => {
                self.password = password;
                let is_open =
                    |wallet: &Arc<Wallet>| self.open.as_ref().is_some_and(|o| o.address() == wallet.address());
                let Some(other) = wallet.filter(|wallet| !is_open(wallet)) else { return Ok(Brought::Same) };
                self.open = Some(other);
                Ok(Brought::Other)
            }
        }
    }

    /// Whether the last errand was to open what is here: how it ends is how the wallet stands. That another errand was
    /// refused changes nothing of what the wallet waits for.
    pub fn was_to_open(&self) -> bool {
        self.was_to_open
    }

    /// Whether a password is at hand.
    pub fn has_password(&self) -> bool {
        self.password.is_some()
    }

    /// The phrase of the open wallet.
    pub fn phrase(&self) -> Result<Phrase, EngineError> {
        self.open.as_ref().ok_or(EngineError::NoWallet)?.phrase().ok_or(EngineError::NoPhrase)
    }

    /// Remembers that the wallet is backed up, if these words stand in these places, counted from 1.
    pub fn verify(&self, answers: &[(usize, Zeroizing<String>)]) -> Result<(), EngineError> {
        let words = self.phrase()?.words();
        let mut places: Vec<usize> = answers.iter().map(|(place, _)| *place).collect();
        places.sort_unstable();
        places.dedup();
        if places.len() < VERIFIED_WORDS_MIN {
            return Err(EngineError::FewWords { expected: VERIFIED_WORDS_MIN, got: places.len() });
        }
        let is_right = |(place, word): &&(usize, Zeroizing<String>)| {
            let expected = place.checked_sub(1).and_then(|index| words.get(index));
            expected.is_some_and(|expected| word.trim().eq_ignore_ascii_case(expected))
        };
        if let Some((place, _)) = answers.iter().find(|answer| !is_right(answer)) {
            return Err(EngineError::WrongWord(*place));
        }
        let address = self.open.as_ref().ok_or(EngineError::NoWallet)?.address();
        Ok(wallet::mark_backed_up(&self.dir.join(BACKED_UP), &address).map_err(KeyStoreError::from)?)
    }

    /// Whether losing this machine loses no wallet: it is backed up, or there is none.
    pub fn is_safe(&self) -> bool {
        matches!(wallet::recorded(&self.dir.join(WALLET_RECORD)), Ok(None)) || self.is_backed_up()
    }

    /// Whether there is a wallet, open or not, that is backed up.
    fn is_backed_up(&self) -> bool {
        let recorded = wallet::recorded(&self.dir.join(WALLET_RECORD)).ok().flatten();
        recorded.is_some_and(|address| wallet::is_backed_up(&self.dir.join(BACKED_UP), &address))
    }

    /// The open wallet, for windows.
    pub fn status(&self) -> WalletStatus {
        let Some(wallet) = &self.open else { return WalletStatus::default() };
        let address = wallet.address();
        WalletStatus {
            state: WalletState::Ready { address: address.to_string() },
            backed_up: wallet::is_backed_up(&self.dir.join(BACKED_UP), &address),
            has_phrase: wallet.phrase().is_some(),
            stored: if self.password.is_some() { Stored::PasswordFile } else { Stored::Keyring },
            needs: None,
        }
    }

    /// What an opening that failed leaves, for windows.
    pub fn failed(&self, error: &EngineError) -> WalletStatus {
        let problem = Problem::from(error);
        let (needs, stored) = match error {
            EngineError::Wallet(KeyStoreError::Missing { .. } | KeyStoreError::Ambiguous { .. }) => {
                (Some(Needs::Restore), Stored::None)
            }
            EngineError::WalletLocked | EngineError::Wallet(KeyStoreError::Password) => {
                (Some(Needs::Password), Stored::PasswordFile)
            }
            // With a password at hand the phrase is what is missing.
            EngineError::Wallet(KeyStoreError::Unavailable { .. }) if self.password.is_some() => {
                (Some(Needs::Restore), Stored::None)
            }
            EngineError::Wallet(KeyStoreError::Unavailable { .. }) => (Some(Needs::Password), Stored::None),
            _ => (None, Stored::None),
        };
        let state = match error {
            EngineError::Wallet(KeyStoreError::Missing { address, .. }) => {
                WalletState::KeyMissing { address: address.to_string(), problem }
            }
            _ => WalletState::Failed { problem },
        };
        WalletStatus { state, backed_up: self.is_backed_up(), stored, needs, ..WalletStatus::default() }
    }
}

/// What an errand takes along.
struct Desk {
    keyring: Arc<dyn KeyStore>,
    dir: PathBuf,
    password: Option<Arc<PasswordKeyStore>>,
    open: Option<Arc<Wallet>>,
}

impl Desk {
    fn run(self, errand: Errand) -> Came {
        let record = self.dir.join(WALLET_RECORD);
        match errand {
            Errand::Open if self.is_sealed(&record)? => match self.password {
                Some(store) => Self::opened(store, &record),
                None => Err(EngineError::WalletLocked),
            },
            // A password that was typed while the keyring was away has sealed nothing: the keyring may be back.
            Errand::Open => {
                Ok(Fetched::Wallet { wallet: Some(Arc::new(wallet::open(&*self.keyring, &record)?)), password: None })
            }
            Errand::Unlock(password) => {
                if !self.is_sealed(&record)? {
                    return Err(EngineError::NothingLocked);
                }
                // A password that was never allowed opens nothing.
                let store = PasswordKeyStore::new(&self.dir, password).map_err(|_| KeyStoreError::Password)?;
                Self::opened(Arc::new(store), &record)
            }
            Errand::Remove { .. } => self.remove(&record),
            Errand::SetPassword(password) => self.set_password(password, &record),
            Errand::New => {
                let wallet = Wallet::generate().map_err(KeyStoreError::from)?;
                self.switch(wallet, &record)
            }
            Errand::Restore(phrase) => {
                let wallet = Wallet::of_phrase(&phrase);
                let known = wallet::recorded(&record).map_err(KeyStoreError::from)?;
                if let Some(expected) = known.filter(|known| self.open.is_none() && *known != wallet.address()) {
                    return Err(EngineError::OtherWallet { expected, got: wallet.address() });
                }
                let address = wallet.address();
                let fetched = self.switch(wallet, &record)?;
                // Whoever typed all of it has it. The wallet is switched, whatever becomes of this mark.
                if let Err(error) = wallet::mark_backed_up(&record.with_file_name(BACKED_UP), &address) {
                    warn!(%error, "the backup is asked for again");
                }
                Ok(fetched)
            }
        }
    }

    /// Where this installation's key is, or would be.
    fn store(&self, record: &Path) -> Result<&dyn KeyStore, EngineError> {
        match &self.password {
            Some(password) => Ok(&**password),
            None if self.is_sealed(record)? => Err(EngineError::WalletLocked),
            None => Ok(&*self.keyring),
        }
    }

    fn is_sealed(&self, record: &Path) -> Result<bool, EngineError> {
        let sealed: Vec<PublicKey> = PasswordKeyStore::sealed_in(&self.dir)?;
        let recorded = wallet::recorded(record).map_err(KeyStoreError::from)?;
        Ok(recorded.map_or(!sealed.is_empty(), |address| sealed.contains(&address)))
    }

    fn switch(self, wallet: Wallet, record: &Path) -> Came {
        wallet::switch(self.store(record)?, record, &wallet)?;
        Ok(Fetched::Wallet { wallet: Some(Arc::new(wallet)), password: self.password })
    }

    fn opened(store: Arc<PasswordKeyStore>, record: &Path) -> Came {
        let wallet = wallet::open(&*store, record)?;
        Ok(Fetched::Wallet { wallet: Some(Arc::new(wallet)), password: Some(store) })
    }

    fn remove(self, record: &Path) -> Came {
        let recorded = wallet::recorded(record).map_err(KeyStoreError::from)?;
        let sealed = PasswordKeyStore::sealed_in(&self.dir)?;
        let is_elsewhere = recorded.is_none_or(|address| sealed.contains(&address));
        // The keys of wallets that this one took the place of go too: the next start would take one for its own.
        let kept: Vec<PublicKey> = match self.keyring.list() {
            // A key that is in a file is in no keyring; any other may be in one that is only locked.
            Err(KeyStoreError::Unavailable { .. }) if is_elsewhere => Vec::new(),
            // The present one last: what fails on the way leaves it. A crash may have kept it out of the list.
            listed => listed?.into_iter().filter(|address| Some(*address) != recorded).chain(recorded).collect(),
        };
        kept.iter().try_for_each(|address| self.keyring.remove(address))?;
        sealed.iter().try_for_each(|address| PasswordKeyStore::remove_sealed(&self.dir, address))?;
        remove::everything(&self.dir)?;
        Ok(Fetched::Removed)
    }

    fn set_password(self, password: Zeroizing<String>, record: &Path) -> Came {
        let store = PasswordKeyStore::new(&self.dir, password)?;
        match (&self.open, &self.password) {
            (Some(open), Some(_)) => {
                store.reseal(open)?;
                return Ok(Fetched::Wallet { wallet: None, password: Some(Arc::new(store)) });
            }
            (Some(_), None) => return Err(EngineError::KeyringKeeps),
            (None, _) if self.is_sealed(record)? => return Err(EngineError::WalletLocked),
            (None, _) => {}
        }
        match self.keyring.list() {
            Err(KeyStoreError::Unavailable { .. }) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return Err(EngineError::KeyringKeeps),
        }
        match wallet::recorded(record).map_err(KeyStoreError::from)? {
            // Its key is in a keyring that is away: only its phrase brings it into a file.
            Some(_) => Ok(Fetched::Wallet { wallet: None, password: Some(Arc::new(store)) }),
            None => Self::opened(Arc::new(store), record),
        }
    }
}
