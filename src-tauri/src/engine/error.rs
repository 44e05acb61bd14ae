//! What the engine refuses, and why; each refusal has a stable code for windows and scripts.

use std::sync::Arc;

use super::account::AccountError;
use super::claim::ClaimError;
use super::kept::KeptError;
use super::settings::SettingsError;
use crate::net::tls::TlsError;
use crate::types::PublicKey;
use crate::wallet::{KeyStoreError, PhraseError};
use crate::wire::invite::InviteError;
use crate::worker::network::NetworkError;
use crate::worker::{HomeError, WorkerError};

/// Why the engine does not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A join code, or the file of the joined network.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The wallet's key.
    #[error(transparent)]
    Wallet(#[from] KeyStoreError),
    /// The network's certificate authority.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The worker cannot even try.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// The gateway's account.
    #[error(transparent)]
    Account(#[from] AccountProblem),
    /// Nothing here computes.
    #[error("{0}")]
    Device(String),
    /// Contribute before any network was joined.
    #[error("expected a network to contribute to, got none: paste the join code that its operator gave you")]
    NoNetwork,
    /// Contribute before the wallet is open.
    #[error("expected an open wallet, got none: see what the keyring says")]
    NoWallet,
    /// Contribute before the device is open.
    #[error("expected a device that computes, got none yet: try again in a moment")]
    NoDevice,
    /// An invitation of another operator while one waits for its answer: nobody shall take one and get the other.
    #[error(
        "expected an answer to the invitation that waits, got a join code of another operator: join or decline first"
    )]
    OfferWaiting,
    /// Accept without an invitation.
    #[error("expected an invitation to accept, got none: paste the join code again")]
    NoOffer,
    /// One errand for the wallet before the one before is over.
    #[error("the wallet is being opened already: answer the keyring, or wait a moment")]
    WalletBusy,
    /// The wallet's file, before its password.
    #[error("the wallet is in a file that a password opens: type the password")]
    WalletLocked,
    /// A password where no file waits for one.
    #[error("expected a wallet in a file that a password opens, got none")]
    NothingLocked,
    /// A password although the keyring works.
    #[error("expected a system without a keyring, got one that keeps the wallet: no password is needed")]
    KeyringKeeps,
    /// A phrase.
    #[error(transparent)]
    Phrase(#[from] PhraseError),
    /// A phrase of a wallet of before phrases.
    #[error("the wallet was made before phrases: back up its key file, or claim what it is owed and make a new wallet")]
    NoPhrase,
    /// Too few words to show that its owner has the phrase.
    #[error("expected at least {expected} words of the phrase, got {got}")]
    FewWords {
        /// How many show it.
        expected: usize,
        /// Different places that were answered.
        got: usize,
    },
    /// A word that does not stand there.
    #[error("word {0} of the phrase is another one: look at the paper again")]
    WrongWord(usize),
    /// The phrase of another wallet while one waits for its key.
    #[error(
        "expected the phrase of wallet {expected}, got that of {got}: make a new wallet first to give the other up"
    )]
    OtherWallet {
        /// Which one is missing its key.
        expected: PublicKey,
        /// Whose phrase it is.
        got: PublicKey,
    },
    /// Removing a wallet that is not backed up.
    #[error("expected a wallet that is backed up, got one that is not: what it is owed would be lost with its key")]
    NotBackedUp,
    /// Anything but looking, in a state directory that another program works in or that cannot be used.
    #[error(transparent)]
    StateDir(#[from] Arc<HomeError>),
    /// A file of the state directory.
    #[error(transparent)]
    Kept(#[from] KeptError),
    /// Settings that make no sense.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// A switch of a device that is not here.
    #[error("expected a device of this machine, got {0:?}")]
    NoSuchDevice(String),
    /// An answer to a question that was not asked.
    #[error("no download waits for an answer")]
    NothingAsked,
    /// A claim.
    #[error(transparent)]
    Claim(Box<ClaimError>),
    /// The directory of the receipts.
    #[error("receipts cannot be read: {0}")]
    Receipts(#[source] std::io::Error),
    /// A part of the engine ended as it should not.
    #[error("{0} ended without a word: start Kvasir again")]
    Gone(&'static str),
}

/// A gateway's account that is not known.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct AccountProblem(#[from] pub(super) AccountError);

impl From<InviteError> for EngineError {
    fn from(error: InviteError) -> Self {
        Self::Network(error.into())
    }
}

impl From<ClaimError> for EngineError {
    fn from(error: ClaimError) -> Self {
        Self::Claim(Box::new(error))
    }
}

impl EngineError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Network(error) => error.code(),
            Self::Wallet(error) => error.code(),
            Self::Tls(_) => "network_authority",
            Self::Worker(_) => "worker",
            Self::Account(error) => error.0.code(),
            Self::Device(_) => "device",
            Self::NoNetwork => "no_network",
            Self::NoWallet => "no_wallet",
            Self::NoDevice => "no_device",
            Self::OfferWaiting => "offer_waiting",
            Self::NoOffer => "no_offer",
            Self::WalletBusy => "wallet_busy",
            Self::WalletLocked => "wallet_locked",
            Self::NothingLocked => "nothing_locked",
            Self::KeyringKeeps => "keyring_keeps",
            Self::Phrase(PhraseError::Count(_)) => "phrase_count",
            Self::Phrase(PhraseError::Word(_)) => "phrase_word",
            Self::Phrase(PhraseError::Checksum) => "phrase_checksum",
            Self::NoPhrase => "no_phrase",
            Self::FewWords { .. } => "few_words",
            Self::WrongWord(_) => "wrong_word",
            Self::OtherWallet { .. } => "other_wallet",
            Self::NotBackedUp => "not_backed_up",
            Self::StateDir(error) => match **error {
                HomeError::InUse { .. } => "state_in_use",
                _ => "state_file",
            },
            Self::Kept(error) => error.code(),
            Self::Settings(_) => "settings",
            Self::NoSuchDevice(_) => "no_such_device",
            Self::NothingAsked => "nothing_asked",
            Self::Claim(error) => error.code(),
            Self::Receipts(_) => "receipts",
            Self::Gone(_) => "gone",
        }
    }
}
