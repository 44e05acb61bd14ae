//! The key that is paid: an ed25519 wallet on the user's own machine, kept by a [`KeyStore`].
//!
//! **Promises:** a secret is wiped when dropped and never shown; a wallet signs session openings, claims and the
//! return of its receipts, and nothing that a peer chose; a key is never overwritten; a wallet that once existed is never silently replaced by a new one:
//! its credit belongs to the old key, and only its backup can bring it back.

mod claim;
mod file;
pub mod keyfile;
#[cfg(feature = "os-keyring")]
mod keyring;
mod phrase;
mod private;
mod sealed;

use std::fmt;
use std::path::Path;

use ed25519_dalek::{Signer, SigningKey};
use zeroize::Zeroizing;

use crate::types::{Hex, PublicKey};
use crate::wire::handshake::{AuthMessage, AuthSigner};
use crate::wire::receipt::{KeptReceipt, ReturnedReceipt};

pub use claim::{Claim, ClaimTextError, SignedClaim, day_of};
pub use file::FileKeyStore;
#[cfg(feature = "os-keyring")]
pub use keyring::OsKeyStore;
pub use phrase::{PHRASE_WORDS, Phrase, PhraseError};
pub use private::PrivateFileError;
pub(crate) use private::{make_private_dir, unfinished_in};
pub use sealed::{PASSWORD_CHARS_MIN, PasswordKeyStore};

/// Name of the file of a state directory that remembers which wallet belongs there.
pub const WALLET_RECORD: &str = "wallet";
/// Name of the file beside it that remembers which wallet was backed up.
pub const BACKED_UP: &str = "backed_up";

/// An ed25519 wallet.
pub struct Wallet {
    key: SigningKey,
    /// What its phrase stands for; wallets of before phrases have none.
    entropy: Option<Zeroizing<[u8; phrase::ENTROPY_BYTES]>>,
}

impl Wallet {
    /// The wallet of a 32-byte seed, which no phrase brings back.
    #[must_use]
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        Self { key: SigningKey::from_bytes(seed), entropy: None }
    }

    /// The wallet of a backup phrase.
    #[must_use]
    pub fn of_phrase(phrase: &Phrase) -> Self {
        Self { key: SigningKey::from_bytes(&phrase.key()), entropy: Some(phrase.entropy()) }
    }

    /// A new wallet with a new phrase.
    ///
    /// # Errors
    /// When the operating system gives no randomness.
    pub fn generate() -> Result<Self, getrandom::Error> {
        Phrase::generate().map(|phrase| Self::of_phrase(&phrase))
    }

    /// Its backup phrase; `None` for a wallet of before phrases, whose only backup is its key.
    #[must_use]
    pub fn phrase(&self) -> Option<Phrase> {
        self.entropy.as_ref().map(|entropy| Phrase::of_entropy(entropy))
    }

    /// The public half; its text is the address.
    #[must_use]
    pub fn address(&self) -> PublicKey {
        PublicKey(self.key.verifying_key().to_bytes())
    }

    /// Hands a receipt in again that this wallet's worker kept.
    #[must_use]
    pub fn return_receipt(&self, kept: KeptReceipt) -> ReturnedReceipt {
        let wallet_signature = Hex(self.key.sign(&kept.return_message()).to_bytes());
        ReturnedReceipt { kept, wallet_signature }
    }

    /// The secret as a key store keeps it: hex digits and a line end, wiped when dropped. 32 digits are a phrase's
    /// entropy, 64 a seed.
    fn secret_line(&self) -> Zeroizing<String> {
        match &self.entropy {
            Some(entropy) => private::hex_line(entropy.as_ref()),
            None => private::hex_line(self.key.as_bytes()),
        }
    }

    /// The wallet of a stored secret, if the text is one.
    fn from_secret_line(text: &str) -> Option<Self> {
        match private::bytes_of(text) {
            Some(entropy) => Some(Self::of_phrase(&Phrase::of_entropy(&entropy))),
            None => private::bytes_of(text).map(|seed| Self::from_seed(&seed)),
        }
    }
}

impl AuthSigner for Wallet {
    fn address(&self) -> PublicKey {
        Wallet::address(self)
    }

    fn sign_auth(&self, message: &AuthMessage) -> [u8; 64] {
        self.key.sign(message.as_bytes()).to_bytes()
    }
}

impl fmt::Debug for Wallet {
    /// The address only.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Wallet({})", self.address())
    }
}

/// Why a wallet's key cannot be had or kept.
#[derive(Debug, thiserror::Error)]
pub enum KeyStoreError {
    /// The wallet is known, its key is gone.
    #[error(
        "the key of wallet {address} is not in {store}. Its credit belongs to that key: restore the key from its \
         backup; no new wallet was made"
    )]
    Missing {
        /// The wallet.
        address: PublicKey,
        /// Where it should be.
        store: String,
    },
    /// Several wallets, and nothing says which.
    #[error("{store} holds {count} wallets: choose one by its address")]
    Ambiguous {
        /// Where they are.
        store: String,
        /// How many.
        count: usize,
    },
    /// The stored key belongs to another address.
    #[error("what {store} holds for wallet {address} is not its key")]
    Damaged {
        /// The wallet.
        address: PublicKey,
        /// Where it is.
        store: String,
    },
    /// An owner-only file that cannot be used.
    #[error(transparent)]
    File(#[from] PrivateFileError),
    /// The operating system's keyring does not answer; see the text for what to do.
    #[error("the system keyring is not available: {reason}. Unlock it or start it, then try again")]
    Unavailable {
        /// Why.
        reason: String,
    },
    /// A sealed key and another password.
    #[error("expected the password of the wallet's file, got another one")]
    Password,
    /// A password that a machine guesses.
    #[error("expected a password of at least {PASSWORD_CHARS_MIN} characters, got a shorter one")]
    WeakPassword,
    /// Sealing takes more memory than there is.
    #[error("no memory to seal a key with: close something and try again")]
    NoMemory,
    /// No randomness for a new key.
    #[error("no randomness from the operating system: {0}")]
    Random(#[from] getrandom::Error),
}

impl KeyStoreError {
    /// A stable code for the user interface.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Missing { .. } => "wallet_key_missing",
            Self::Ambiguous { .. } => "wallet_ambiguous",
            Self::Damaged { .. } => "wallet_key_damaged",
            Self::File(_) => "wallet_file",
            Self::Unavailable { .. } => "keyring_unavailable",
            Self::Password => "wallet_password",
            Self::WeakPassword => "weak_password",
            Self::NoMemory => "no_memory",
            Self::Random(_) => "no_randomness",
        }
    }
}

/// Keeps wallets' keys. Calls may block on a disk or a prompt: not for async code.
pub trait KeyStore: Send + Sync {
    /// The wallet of `address`.
    ///
    /// # Errors
    /// [`KeyStoreError::Missing`] when it is not there.
    fn load(&self, address: &PublicKey) -> Result<Wallet, KeyStoreError>;

    /// Keeps a wallet; one that is there already is left as it is.
    ///
    /// # Errors
    /// When it cannot be kept safely.
    fn store(&self, wallet: &Wallet) -> Result<(), KeyStoreError>;

    /// Removes a wallet's key, by its owner's order; one that is not there is removed already.
    ///
    /// # Errors
    /// When it cannot be removed.
    fn remove(&self, address: &PublicKey) -> Result<(), KeyStoreError>;

    /// Addresses of the wallets that are kept.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn list(&self) -> Result<Vec<PublicKey>, KeyStoreError>;

    /// Where keys are, for people.
    fn name(&self) -> String;
}

/// The wallet of this installation. `record` is a file with its address, written when the wallet is first opened:
/// once it exists, only that wallet will do. Without it the store's only wallet is taken, or a first one made.
///
/// # Errors
/// [`KeyStoreError::Missing`] for a recorded wallet without a key, [`KeyStoreError::Ambiguous`], or a store or file
/// that cannot be used.
pub fn open(store: &dyn KeyStore, record: &Path) -> Result<Wallet, KeyStoreError> {
    if let Some(address) = recorded(record)? {
        return store.load(&address);
    }
    let wallet = match store.list()?.as_slice() {
        [] => {
            let wallet = Wallet::generate()?;
            store.store(&wallet)?;
            wallet
        }
        [address] => store.load(address)?,
        several => return Err(KeyStoreError::Ambiguous { store: store.name(), count: several.len() }),
    };
    private::write_new(record, format!("{}\n", wallet.address()).as_bytes())?;
    Ok(wallet)
}

/// The wallet that a record names, `None` without a record.
///
/// # Errors
/// A file that cannot be read or holds something else.
pub fn recorded(record: &Path) -> Result<Option<PublicKey>, PrivateFileError> {
    let Some(text) = private::read_plain(record)? else { return Ok(None) };
    let content = || PrivateFileError::Content { path: record.to_owned(), expected: "a wallet address" };
    text.trim().parse().map(Some).map_err(|_| content())
}

/// Makes `wallet` this installation's: its key is kept and read back first, then the record names it. The key of the
/// wallet before stays where it is kept.
///
/// # Errors
/// When key or record cannot be kept; the wallet before is this installation's then.
pub fn switch(store: &dyn KeyStore, record: &Path, wallet: &Wallet) -> Result<(), KeyStoreError> {
    store.store(wallet)?;
    store.load(&wallet.address())?;
    Ok(private::replace(record, format!("{}\n", wallet.address()).as_bytes())?)
}

/// Whether the owner of `address` has shown to have its backup; `mark` is a file that names the wallet.
#[must_use]
pub fn is_backed_up(mark: &Path, address: &PublicKey) -> bool {
    recorded(mark).is_ok_and(|marked| marked.as_ref() == Some(address))
}

/// Remembers that the owner of `address` has its backup.
///
/// # Errors
/// A file that cannot be written.
pub fn mark_backed_up(mark: &Path, address: &PublicKey) -> Result<(), PrivateFileError> {
    private::replace(mark, format!("{address}\n").as_bytes())
}
