//! ed25519 signatures with a context, so that one made here can never be used elsewhere.
//!
//! What is signed starts with `0xff ‖ "kvasir/<context>/v1\0"`: 0xff cannot start a Solana transaction, and no two
//! contexts share a message. **Promise:** verification is strict (no weak keys, no second form of a signature).

use std::fmt;

use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use zeroize::Zeroizing;

use crate::types::{Hex, PublicKey};

/// What a signature is for; each has its own first bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Context {
    /// An operator vouches for a hub's key.
    HubCert,
    /// A hub opens a session.
    HubHello,
    /// A wallet joins a session.
    WorkerAuth,
    /// A worker shows that it holds the session key.
    SessionKey,
    /// A hub accepts a worker.
    Welcome,
    /// A hub's cumulative counters.
    Receipt,
    /// A worker's agreement to a receipt.
    ReceiptAck,
    /// An operator invites to its network.
    Invite,
    /// A wallet hands a receipt in again.
    ReceiptReturn,
    /// An operator vouches for a batch of settlements.
    Settlement,
    /// A hub notes that a wallet or a device was caught.
    Caught,
}

/// A signature that does not hold.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("bad {context:?} signature: expected one by {key}")]
pub struct SignatureError {
    /// What it should have been for.
    pub context: Context,
    /// Whose it should have been.
    pub key: PublicKey,
}

impl Context {
    fn name(self) -> &'static str {
        match self {
            Self::HubCert => "hub-cert",
            Self::HubHello => "hub-hello",
            Self::WorkerAuth => "worker-auth",
            Self::SessionKey => "session-key",
            Self::Welcome => "welcome",
            Self::Receipt => "receipt",
            Self::ReceiptAck => "receipt-ack",
            Self::Invite => "invite",
            Self::ReceiptReturn => "receipt-return",
            Self::Settlement => "settlement",
            Self::Caught => "caught",
        }
    }

    /// The bytes to sign: this context's prefix, then `parts` one after another.
    ///
    /// The parts carry no lengths: every caller uses fixed sizes for all but the last.
    #[must_use]
    pub fn message(self, parts: &[&[u8]]) -> Vec<u8> {
        let mut out = vec![0xff];
        out.extend_from_slice(b"kvasir/");
        out.extend_from_slice(self.name().as_bytes());
        out.extend_from_slice(b"/v1\0");
        parts.iter().for_each(|part| out.extend_from_slice(part));
        out
    }

    /// Checks a signature over [`Context::message`].
    ///
    /// # Errors
    /// A weak or malformed key, or a signature by another key or over other bytes.
    pub fn verify(self, key: &PublicKey, parts: &[&[u8]], signature: &Hex<64>) -> Result<(), SignatureError> {
        VerifyingKey::from_bytes(&key.0)
            .and_then(|k| k.verify_strict(&self.message(parts), &Signature::from_bytes(&signature.0)))
            .map_err(|_| SignatureError { context: self, key: *key })
    }
}

/// An ed25519 key of a server or a session.
#[derive(Clone)]
pub struct KeyPair(SigningKey);

impl KeyPair {
    /// The key of a 32-byte seed.
    #[must_use]
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        Self(SigningKey::from_bytes(seed))
    }

    /// A new key from the operating system's randomness.
    ///
    /// # Errors
    /// When the operating system gives none.
    pub fn generate() -> Result<Self, getrandom::Error> {
        let mut seed = Zeroizing::new([0u8; 32]);
        getrandom::fill(seed.as_mut())?;
        Ok(Self::from_seed(&seed))
    }

    /// The seed, wiped when dropped.
    #[must_use]
    pub fn seed(&self) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(self.0.to_bytes())
    }

    /// The public half.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key().to_bytes())
    }

    /// Signs [`Context::message`] of `parts`.
    #[must_use]
    pub fn sign(&self, context: Context, parts: &[&[u8]]) -> Hex<64> {
        Hex(self.0.sign(&context.message(parts)).to_bytes())
    }
}

impl fmt::Debug for KeyPair {
    /// The public half only.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyPair({})", self.public())
    }
}
