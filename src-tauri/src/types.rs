//! Words that every room shares: keys, ids, experts, money and wishes.
//!
//! **Invariant:** money is an integer number of nano-KVR and is formatted in exactly one place.

mod rules;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use rules::{ENTRIES_MAX, ENTRY_CHARS_MAX, Hours, HoursTextError, Rules, SettingsError};

/// An ed25519 public key; a wallet's address is its base58 text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicKey(pub [u8; 32]);

/// A text that is not a base58 ed25519 public key.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("expected a base58 key of 32 bytes, got {got:?}")]
pub struct KeyTextError {
    /// What was given, cut to 64 characters.
    pub got: String,
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&bs58::encode(self.0).into_string())
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PublicKey {
    type Err = KeyTextError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut key = [0u8; 32];
        match bs58::decode(text).onto(&mut key) {
            Ok(32) => Ok(Self(key)),
            _ => Err(KeyTextError { got: text.chars().take(64).collect() }),
        }
    }
}

impl Serialize for PublicKey {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PublicKey {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Fixed-size bytes that read and write as lower-case hex text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hex<const N: usize>(pub [u8; N]);

impl<const N: usize> fmt::Display for Hex<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl<const N: usize> fmt::Debug for Hex<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is not lower-case hex of the expected length.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("expected {expected} lower-case hex digits, got {got:?}")]
pub struct HexTextError {
    /// Digits expected.
    pub expected: usize,
    /// What was given, cut to 80 characters.
    pub got: String,
}

impl<const N: usize> FromStr for Hex<N> {
    type Err = HexTextError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = || HexTextError { expected: 2 * N, got: text.chars().take(80).collect() };
        let digits = text.as_bytes();
        if digits.len() != 2 * N {
            return Err(fail());
        }
        let nibble = |c: u8| match c {
            b'0'..=b'9' => Ok(c - b'0'),
            b'a'..=b'f' => Ok(c - b'a' + 10),
            _ => Err(fail()),
        };
        let mut out = [0u8; N];
        for (byte, pair) in out.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
        }
        Ok(Self(out))
    }
}

impl<const N: usize> Serialize for Hex<N> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de, const N: usize> Deserialize<'de> for Hex<N> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// One authenticated connection of a worker; drawn at random by the hub.
pub type SessionId = Hex<16>;
/// One installation of the worker; drawn at random once.
pub type WorkerId = Hex<16>;
/// One run of a gateway's process; drawn at random when it starts.
pub type GatewayRun = Hex<16>;
/// A BLAKE3 digest.
pub type Digest = Hex<32>;

/// One prompt being continued, numbered since the backbone's start.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct GenerationId(pub u64);

impl fmt::Display for GenerationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// One routed expert of the model.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ExpertId {
    /// Layer index; the trunk's layers come first, then the MTP layer.
    pub layer: u16,
    /// Index within the layer.
    pub expert: u16,
}

/// The scalar that multiplies a partial, as `mantissa · 2^exponent` (numerics §0).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GateWeight {
    /// 32768..=65535.
    pub mantissa: u16,
    /// Power of two.
    pub exponent: i8,
}

/// Money: 10⁻⁹ KVR.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NanoKvr(pub u64);

impl fmt::Display for NanoKvr {
    /// KVR with five decimals, rounded half up: 8,945,664 → `0.00895`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hundred_thousandths = self.0 / 10_000 + u64::from(self.0 % 10_000 >= 5_000);
        write!(f, "{}.{:05}", hundred_thousandths / 100_000, hundred_thousandths % 100_000)
    }
}

/// Work bytes as units of 10⁶ with six decimals, exact: 1,277,952 → `1.277952`.
#[must_use]
pub fn units(work_bytes: u64) -> String {
    format!("{}.{:06}", work_bytes / 1_000_000, work_bytes % 1_000_000)
}
