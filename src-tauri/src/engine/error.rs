//! What the engine refuses, and why; each refusal has a stable code for windows and scripts.

use super::account::AccountError;
use crate::net::tls::TlsError;
use crate::wallet::KeyStoreError;
use crate::wire::invite::InviteError;
use crate::worker::WorkerError;
use crate::worker::network::NetworkError;

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
    /// What this build does not do.
    #[error("{0} is not part of this build yet")]
    NotYet(&'static str),
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
            Self::NotYet(_) => "not_yet",
            Self::Gone(_) => "gone",
        }
    }
}
