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
mod private;

use std::fmt;
use std::path::Path;

use ed25519_dalek::{Signer, SigningKey};
use zeroize::Zeroizing;

use crate::types::{Hex, PublicKey};
use crate::wire::handshake::{AuthMessage, AuthSigner};
use crate::wire::receipt::{KeptReceipt, ReturnedReceipt};

pub use claim::{Claim, ClaimTextError, SignedClaim};
pub use file::FileKeyStore;
#[cfg(feature = "os-keyring")]
pub use keyring::OsKeyStore;
pub use private::PrivateFileError;

/// An ed25519 wallet.
pub struct Wallet(SigningKey);

impl Wallet {
    /// The wallet of a 32-byte seed.
    #[must_use]
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        Self(SigningKey::from_bytes(seed))
    }

    /// A new wallet from the operating system's randomness.
    ///
    /// # Errors
    /// When the operating system gives none.
    pub fn generate() -> Result<Self, getrandom::Error> {
        let mut seed = Zeroizing::new([0u8; 32]);
        getrandom::fill(seed.as_mut())?;
        Ok(Self::from_seed(&seed))
    }

    /// The public half; its text is the address.
    #[must_use]
    pub fn address(&self) -> PublicKey {
        PublicKey(self.0.verifying_key().to_bytes())
    }

    /// Hands a receipt in again that this wallet's worker kept.
    #[must_use]
    pub fn return_receipt(&self, kept: KeptReceipt) -> ReturnedReceipt {
        let wallet_signature = Hex(self.0.sign(&kept.return_message()).to_bytes());
        ReturnedReceipt { kept, wallet_signature }
    }

    /// The seed as a key store keeps it: hex digits and a line end, wiped when dropped.
    fn seed_line(&self) -> Zeroizing<String> {
        private::seed_line(self.0.as_bytes())
    }

    /// The wallet of a stored seed, if the text is one.
    fn from_seed_line(text: &str) -> Option<Self> {
        private::seed_of(text).map(|seed| Self::from_seed(&seed))
    }
}

impl AuthSigner for Wallet {
    fn address(&self) -> PublicKey {
        Wallet::address(self)
    }

    fn sign_auth(&self, message: &AuthMessage) -> [u8; 64] {
        self.0.sign(message.as_bytes()).to_bytes()
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
    if let Some(text) = private::read_plain(record)? {
        let address = text
            .trim()
            .parse()
            .map_err(|_| PrivateFileError::Content { path: record.to_owned(), expected: "a wallet address" })?;
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
