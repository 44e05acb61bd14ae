//! Claims: what a wallet signs to be paid, readable by whoever signs it.
//!
//! A claim names the operator, the wallet, all that the wallet was ever paid and wants to be paid (so that the same claim
//! pays once, however often it is handed in), a number and a day of expiry. It is signed as an off-chain message of
//! Solana's format 0, which hardware wallets show before they sign; its first byte, 0xff, starts no transaction.

use ed25519_dalek::{Signature, Signer, VerifyingKey};

use super::Wallet;
use crate::types::{Hex, NanoKvr, PublicKey};

/// First bytes of an off-chain message.
const SIGNING_DOMAIN: &[u8; 16] = b"\xffsolana offchain";
/// Who asks for the signature, padded with zeros to 32 bytes.
const APPLICATION: &[u8] = b"kvasir";
/// Longest text of format 0, which fits the memory of a hardware wallet.
const TEXT_BYTES_MAX: usize = 1212;
/// First second that has no date of four digits of a year.
const EXPIRES_MAX: u64 = 253_402_300_800;

/// Why a text is no claim, or no signed one.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum ClaimTextError {
    /// Not the words of a claim.
    #[error("expected \"Kvasir claim v1 | operator … | wallet … | lifetime … nano-KVR | sequence … | expires …\"")]
    Text,
    /// Not signed by its wallet.
    #[error("expected a signature of the claim by wallet {0}")]
    Signature(PublicKey),
}

/// What a wallet asks to be paid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Whose accounts these are.
    pub operator: PublicKey,
    /// Who asks, and is paid.
    pub wallet: PublicKey,
    /// All that the wallet was ever paid, and this.
    pub lifetime: NanoKvr,
    /// 1, 2, 3, … of the wallet's claims.
    pub sequence: u64,
    /// When the claim is void unless it was paid, in seconds since 1970.
    pub expires_unix_s: u64,
}

/// A claim with its signature, as it is handed in.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignedClaim {
    /// The claim's words.
    pub text: String,
    /// The wallet's signature of the off-chain message that they are in.
    pub signature: Hex<64>,
}

impl Claim {
    /// How the words of every claim on an operator begin.
    #[must_use]
    pub fn beginning(operator: &PublicKey) -> String {
        format!("Kvasir claim v1 | operator {operator} | ")
    }

    /// The words that are signed.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { operator, wallet, lifetime, sequence, expires_unix_s } = self;
        let (lifetime, expires) = (lifetime.0, date_of(*expires_unix_s));
        let rest = format!("wallet {wallet} | lifetime {lifetime} nano-KVR | sequence {sequence} | expires {expires}");
        Self::beginning(operator) + &rest
    }

    /// The claim that a text is, if it is the very text of one.
    ///
    /// # Errors
    /// [`ClaimTextError::Text`].
    pub fn parse(text: &str) -> Result<Self, ClaimTextError> {
        let claim = Self::fields(text).ok_or(ClaimTextError::Text)?;
        if claim.text() == text { Ok(claim) } else { Err(ClaimTextError::Text) }
    }

    fn fields(text: &str) -> Option<Self> {
        if text.len() > TEXT_BYTES_MAX {
            return None;
        }
        let mut parts = text.strip_prefix("Kvasir claim v1 | ")?.split(" | ");
        let mut field = |name: &str| parts.next()?.strip_prefix(name)?.strip_prefix(' ');
        Some(Self {
            operator: field("operator")?.parse().ok()?,
            wallet: field("wallet")?.parse().ok()?,
            lifetime: NanoKvr(field("lifetime")?.strip_suffix(" nano-KVR")?.parse().ok()?),
            sequence: field("sequence")?.parse().ok()?,
            expires_unix_s: second_of(field("expires")?)?,
        })
    }

    /// The off-chain message of a claim's text, as its wallet signs it.
    #[must_use]
    pub fn message(&self) -> Vec<u8> {
        let text = self.text();
        let mut message = SIGNING_DOMAIN.to_vec();
        message.push(0);
        message.extend_from_slice(APPLICATION);
        message.resize(SIGNING_DOMAIN.len() + 1 + 32, 0);
        // Format 0, printable ASCII; one signer.
        message.extend_from_slice(&[0, 1]);
        message.extend_from_slice(&self.wallet.0);
        // A claim is a few hundred bytes.
        message.extend_from_slice(&u16::try_from(text.len()).unwrap_or(u16::MAX).to_le_bytes());
        message.extend_from_slice(text.as_bytes());
        message
    }
}

impl SignedClaim {
    /// The claim, if its wallet signed it.
    ///
    /// # Errors
    /// [`ClaimTextError`].
    pub fn verify(&self) -> Result<Claim, ClaimTextError> {
        let claim = Claim::parse(&self.text)?;
        VerifyingKey::from_bytes(&claim.wallet.0)
            .and_then(|key| key.verify_strict(&claim.message(), &Signature::from_bytes(&self.signature.0)))
            .map_err(|_| ClaimTextError::Signature(claim.wallet))?;
        Ok(claim)
    }
}

impl Wallet {
    /// Claims to have been paid `lifetime` in all, from `operator`.
    #[must_use]
    pub fn claim(&self, operator: PublicKey, lifetime: NanoKvr, sequence: u64, expires_unix_s: u64) -> SignedClaim {
        let expires_unix_s = expires_unix_s.min(EXPIRES_MAX - 1);
        let claim = Claim { operator, wallet: self.address(), lifetime, sequence, expires_unix_s };
        SignedClaim { text: claim.text(), signature: Hex(self.key.sign(&claim.message()).to_bytes()) }
    }
}

/// `2026-12-01`: the day, in UTC, of a second since 1970.
#[must_use]
pub fn day_of(unix_s: u64) -> String {
    let mut date = date_of(unix_s.min(EXPIRES_MAX - 1));
    date.truncate("2026-12-01".len());
    date
}

/// `2026-12-01T00:00:00Z`, by the calendar's 400-year cycle counted from March (Hinnant, "chrono-compatible low-level
/// date algorithms").
fn date_of(unix_s: u64) -> String {
    let (days, second) = (unix_s / 86_400 + 719_468, unix_s % 86_400);
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hours, minutes, seconds) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}Z")
}

/// The second of such a date; whether the date exists is seen by writing it again.
fn second_of(date: &str) -> Option<u64> {
    let number = |from: usize, to: usize| date.get(from..to)?.parse::<u64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hours, minutes, seconds) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) || date.len() != 20 {
        return None;
    }
    let year = year - u64::from(month <= 2);
    let from_march = if month > 2 { month - 3 } else { month + 9 };
    let of_era = year % 400 * 365 + year % 400 / 4 - year % 400 / 100 + (153 * from_march + 2) / 5 + day - 1;
    let days = (year / 400 * 146_097 + of_era).checked_sub(719_468)?;
    Some(days * 86_400 + hours * 3600 + minutes * 60 + seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim() -> SignedClaim {
        Wallet::from_seed(&[7; 32]).claim(PublicKey([3; 32]), NanoKvr(8_945_664), 17, 1_796_083_200)
    }

    #[test]
    fn a_claim_is_these_words_and_this_message() {
        let signed = claim();
        assert_eq!(
            signed.text,
            "Kvasir claim v1 | operator CktRuQ2mttgRGkXJtyksdKHjUdc2C4TgDzyB98oEzy8 | \
             wallet GmaDrppBC7P5ARKV8g3djiwP89vz1jLK23V2GBjuAEGB | lifetime 8945664 nano-KVR | sequence 17 | \
             expires 2026-12-01T00:00:00Z"
        );
        let message = signed.verify().unwrap().message();
        let head = "ff736f6c616e61206f6666636861696e 00 6b76617369720000000000000000000000000000000000000000000000000000 \
                    00 01 ea4a6c63e29c520abef5507b132ec5f9954776aebebe7b92421eea691446d22c c500";
        let head: String = head.split_whitespace().collect();
        let hex: String = message.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex[..head.len()], head);
        assert_eq!(&message[head.len() / 2..], signed.text.as_bytes());
        // As `openssl pkeyutl -sign -rawin` signs the message.
        assert_eq!(
            signed.signature.to_string(),
            "22cba4ec8be2f7e38a1349feedba83d66173ef73d3fc5779f74947aab55af57a35db34508d3b6267739c3fc69f07490801cb77abbf4cc85945b6164d114ce700"
        );
    }

    #[test]
    fn other_words_other_signers_and_other_dates_are_refused() {
        let signed = claim();
        let with = |from: &str, to: &str| SignedClaim { text: signed.text.replacen(from, to, 1), ..signed.clone() };
        for (from, to) in [("8945664", "8945665"), ("sequence 17", "sequence 18"), ("2026", "2027")] {
            assert!(matches!(with(from, to).verify(), Err(ClaimTextError::Signature(_))), "{to}");
        }
        for (from, to) in [
            ("v1", "v2"),
            ("8945664", "08945664"),
            ("8945664", "+8945664"),
            (" | sequence", " |  sequence"),
            ("12-01T", "02-30T"),
            ("00:00Z", "00:60Z"),
            ("Z", "Z | pay to nobody"),
            ("nano-KVR", "KVR"),
        ] {
            assert_eq!(with(from, to).verify(), Err(ClaimTextError::Text), "{to}");
        }
        let mut damaged = signed.clone();
        damaged.signature.0[5] ^= 1;
        assert!(damaged.verify().is_err());
    }

    #[test]
    fn every_day_reads_as_written() {
        assert_eq!(date_of(0), "1970-01-01T00:00:00Z");
        assert_eq!(date_of(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(date_of(EXPIRES_MAX - 1), "9999-12-31T23:59:59Z");
        for day in 0..EXPIRES_MAX / 86_400 {
            let second = day * 86_400 + day % 86_400;
            assert_eq!(second_of(&date_of(second)), Some(second));
        }
    }
}
