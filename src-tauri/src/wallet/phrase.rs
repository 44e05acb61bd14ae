//! Backup phrases: 12 English words (BIP39) that a wallet's key is derived from, here and in other wallets.
//!
//! Before: 16 random bytes. After: the words for paper, and by SLIP-0010 at `m/44'/501'/0'/0'` the ed25519 key, so that
//! Solana wallets find the same address. **Promise:** no error repeats a word; phrase, seed and keys on the way are
//! wiped when dropped.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256, Sha512};
use zeroize::{Zeroize, Zeroizing};

/// The 2048 words of BIP39's English list, in its order, which is that of the alphabet.
const ENGLISH: &str = include_str!("english.txt");
/// Bits of a word.
const WORD_BITS: usize = 11;
/// Words of a phrase.
pub const PHRASE_WORDS: usize = 12;
/// Random bytes that a phrase stands for; the last word ends in four bits of their SHA-256.
pub(super) const ENTROPY_BYTES: usize = 16;
/// Rounds of PBKDF2 from words to seed.
const SEED_ROUNDS: usize = 2048;
/// Purpose, coin (Solana, by SLIP-0044), account, change: all hardened, as ed25519 asks.
const PATH: [u32; 4] = [44, 501, 0, 0];

/// Why a text is no phrase. Words are told by their places.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PhraseError {
    /// Too few or too many.
    #[error("expected {PHRASE_WORDS} words, got {0}")]
    Count(usize),
    /// Not a word of the list.
    #[error("expected a word of the English BIP39 list in place {0}, got another: look at its spelling")]
    Word(usize),
    /// All are words, but not of one phrase.
    #[error("expected the words of one phrase in their order, got words that do not belong together: look again")]
    Checksum,
}

/// A backup phrase.
pub struct Phrase {
    entropy: Zeroizing<[u8; ENTROPY_BYTES]>,
}

impl Phrase {
    /// A new phrase from the operating system's randomness.
    ///
    /// # Errors
    /// When the operating system gives none.
    pub(super) fn generate() -> Result<Self, getrandom::Error> {
        let mut entropy = Zeroizing::new([0u8; ENTROPY_BYTES]);
        getrandom::fill(entropy.as_mut())?;
        Ok(Self { entropy })
    }

    pub(super) fn of_entropy(entropy: &[u8; ENTROPY_BYTES]) -> Self {
        Self { entropy: Zeroizing::new(*entropy) }
    }

    /// The phrase that a person typed: any case, any white space.
    ///
    /// # Errors
    /// [`PhraseError`].
    pub fn parse(text: &str) -> Result<Self, PhraseError> {
        let count = text.split_whitespace().count();
        if count != PHRASE_WORDS {
            return Err(PhraseError::Count(count));
        }
        let list: Vec<&str> = ENGLISH.lines().collect();
        // The words' numbers, one after another, are the random bits and the four that check them.
        let mut bits = Zeroizing::new([0u8; ENTROPY_BYTES + 1]);
        for (place, typed) in text.split_whitespace().enumerate() {
            let word = Zeroizing::new(typed.to_lowercase());
            let number = list.binary_search(&word.as_str()).map_err(|_| PhraseError::Word(place + 1))?;
            for bit in (0..WORD_BITS).filter(|bit| number >> (WORD_BITS - 1 - bit) & 1 == 1) {
                let at = place * WORD_BITS + bit;
                bits[at / 8] |= 0x80 >> (at % 8);
            }
        }
        let mut phrase = Self { entropy: Zeroizing::new([0; ENTROPY_BYTES]) };
        phrase.entropy.copy_from_slice(&bits[..ENTROPY_BYTES]);
        if phrase.bits() == bits { Ok(phrase) } else { Err(PhraseError::Checksum) }
    }

    /// The random bits and those that check them.
    fn bits(&self) -> Zeroizing<[u8; ENTROPY_BYTES + 1]> {
        let mut bits = Zeroizing::new([0; ENTROPY_BYTES + 1]);
        bits[..ENTROPY_BYTES].copy_from_slice(self.entropy.as_ref());
        bits[ENTROPY_BYTES] = Sha256::digest(self.entropy.as_ref())[0] & 0xf0;
        bits
    }

    /// The words in their order, for their owner's eyes.
    #[must_use]
    pub fn words(&self) -> Zeroizing<Vec<String>> {
        let (list, bits): (Vec<&str>, _) = (ENGLISH.lines().collect(), self.bits());
        let bit = |at: usize| usize::from(bits[at / 8] >> (7 - at % 8) & 1);
        let number = |place: usize| (0..WORD_BITS).fold(0, |number, at| number << 1 | bit(place * WORD_BITS + at));
        Zeroizing::new((0..PHRASE_WORDS).map(|place| list[number(place)].to_owned()).collect())
    }

    pub(super) fn entropy(&self) -> Zeroizing<[u8; ENTROPY_BYTES]> {
        self.entropy.clone()
    }

    /// The ed25519 seed of the wallet.
    pub(super) fn key(&self) -> Zeroizing<[u8; 32]> {
        let sentence = Zeroizing::new(self.words().join(" "));
        derive(stretch(sentence.as_bytes()).as_ref(), &PATH)
    }
}

/// HMAC-SHA512 of `parts`, one after another.
fn hmac(key: &[u8], parts: &[&[u8]]) -> Zeroizing<[u8; 64]> {
    let mut out = Zeroizing::new([0; 64]);
    // HMAC takes keys of any length.
    if let Ok(mut mac) = <Hmac<Sha512> as KeyInit>::new_from_slice(key) {
        parts.iter().for_each(|part| mac.update(part));
        let mut bytes = mac.finalize().into_bytes();
        out.copy_from_slice(&bytes);
        bytes.as_mut_slice().zeroize();
    }
    out
}

/// BIP39's seed of a sentence without a passphrase: the first block of PBKDF2-HMAC-SHA512.
fn stretch(sentence: &[u8]) -> Zeroizing<[u8; 64]> {
    let mut round = hmac(sentence, &[b"mnemonic", &1u32.to_be_bytes()]);
    let mut seed = round.clone();
    for _ in 1..SEED_ROUNDS {
        round = hmac(sentence, &[round.as_ref()]);
        seed.iter_mut().zip(round.iter()).for_each(|(sum, byte)| *sum ^= byte);
    }
    seed
}

/// Key and chain code of a node of the tree of keys.
struct Node {
    key: Zeroizing<[u8; 32]>,
    chain: Zeroizing<[u8; 32]>,
}

impl Node {
    /// SLIP-0010: of an HMAC the left half is the key, the right one the chain code.
    fn of(chain: &[u8], parts: &[&[u8]]) -> Self {
        let both = hmac(chain, parts);
        let mut node = Self { key: Zeroizing::new([0; 32]), chain: Zeroizing::new([0; 32]) };
        node.key.copy_from_slice(&both[..32]);
        node.chain.copy_from_slice(&both[32..]);
        node
    }

    fn child(&self, index: u32) -> Self {
        const HARDENED: u32 = 1 << 31;
        Self::of(self.chain.as_ref(), &[&[0], self.key.as_ref(), &(index | HARDENED).to_be_bytes()])
    }
}

/// The key at a path of hardened steps below `seed`.
fn derive(seed: &[u8], path: &[u32]) -> Zeroizing<[u8; 32]> {
    let master = Node::of(b"ed25519 seed", &[seed]);
    path.iter().fold(master, |node, index| node.child(*index)).key
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Hex;
    use crate::wallet::Wallet;

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    #[test]
    fn keys_are_derived_as_slip_0010_says() {
        // Test vectors 1 and 2 for ed25519 of SLIP-0010: path and private key.
        let first: &[(&[u32], &str)] = &[
            (&[], "2b4be7f19ee27bbf30c667b642d5f4aa69fd169872f8fc3059c08ebae2eb19e7"),
            (&[0], "68e0fe46dfb67e368c75379acec591dad19df3cde26e63b93a8e704f1dade7a3"),
            (&[0, 1], "b1d0bad404bf35da785a64ca1ac54b2617211d2777696fbffaf208f746ae84f2"),
            (&[0, 1, 2], "92a5b23c0b8a99e37d07df3fb9966917f5d06e02ddbd909c7e184371463e9fc9"),
            (&[0, 1, 2, 2], "30d1dc7e5fc04c31219ab25a27ae00b50f6fd66622f6e9c913253d6511d1e662"),
            (&[0, 1, 2, 2, 1_000_000_000], "8f94d394a8e8fd6b1bc2f3f49f5c47e385281d5c17e65324b0f62483e37e8793"),
        ];
        let second: &[(&[u32], &str)] = &[
            (&[], "171cb88b1b3c1db25add599712e36245d75bc65a1a5c9e18d76f9f2b1eab4012"),
            (&[0], "1559eb2bbec5790b0c65d8693e4d0875b1747f4970ae8b650486ed7470845635"),
        ];
        let seeds = [
            "000102030405060708090a0b0c0d0e0f",
            "fffcf9f6f3f0edeae7e4e1dedbd8d5d2cfccc9c6c3c0bdbab7b4b1aeaba8a5a29f9c999693908d8a8784817e7b7875726f6c696663605d5a5754514e4b484542",
        ];
        for (seed, rows) in seeds.iter().zip([first, second]) {
            for (path, key) in rows {
                assert_eq!(Hex(*derive(&bytes(seed), path)).to_string(), *key, "{path:?}");
            }
        }
    }

    #[test]
    fn a_phrase_has_the_address_that_other_wallets_find() {
        let phrase = "abandon abandon abandon abandon abandon abandon abandon abandon abandon abandon abandon about";
        let parsed = Phrase::parse(phrase).unwrap();
        assert_eq!(parsed.words().join(" "), phrase);
        // As Solana's own wallets derive it.
        let address = "HAgk14JpMQLgt6rVgv7cBQFJWFto5Dqxi472uT3DKpqk";
        assert_eq!(Wallet::of_phrase(&parsed).address().to_string(), address);
        let back = Phrase::of_entropy(&parsed.entropy());
        assert_eq!(back.words().join(" "), phrase);
    }

    #[test]
    fn what_is_no_phrase_is_told_by_places_and_never_by_words() {
        let typed = |text: &str| Phrase::parse(text).err();
        let good = "abandon abandon abandon abandon abandon abandon abandon abandon abandon abandon abandon about";
        assert_eq!(typed(&good.replace(' ', " \n\t").to_uppercase()), None);
        assert_eq!(typed(""), Some(PhraseError::Count(0)));
        assert_eq!(typed(&format!("{good} about")), Some(PhraseError::Count(13)));
        assert_eq!(typed(&good.replacen("abandon", "secretword", 1)), Some(PhraseError::Word(1)));
        assert_eq!(typed(&good.replace("about", "abandon")), Some(PhraseError::Checksum));
        assert_eq!(typed(&"é ".repeat(12)), Some(PhraseError::Word(1)));
        let error = typed(&good.replacen("abandon", "secretword", 1)).unwrap();
        assert!(!error.to_string().contains("secretword"), "{error}");
    }

    #[test]
    fn words_and_seeds_are_those_of_bip39() {
        let list: Vec<&str> = ENGLISH.lines().collect();
        assert!(list.len() == 1 << WORD_BITS && list.is_sorted());
        // Vectors of the reference implementation, whose passphrase is "TREZOR"; without one, the seed of the first.
        for (entropy, words) in [
            (
                "7f7f7f7f7f7f7f7f7f7f7f7f7f7f7f7f",
                "legal winner thank year wave sausage worth useful legal winner thank yellow",
            ),
            (
                "80808080808080808080808080808080",
                "letter advice cage absurd amount doctor acoustic avoid letter advice cage above",
            ),
            ("ffffffffffffffffffffffffffffffff", "zoo zoo zoo zoo zoo zoo zoo zoo zoo zoo zoo wrong"),
            (
                "9e885d952ad362caeb4efe34a8e91bd2",
                "ozone drill grab fiber curtain grace pudding thank cruise elder eight picnic",
            ),
        ] {
            let phrase = Phrase::of_entropy(bytes(entropy).first_chunk().unwrap());
            assert_eq!(phrase.words().join(" "), words);
            assert_eq!(Phrase::parse(words).unwrap().entropy(), phrase.entropy());
        }
        let zeros = Phrase::of_entropy(&[0; 16]).words().join(" ");
        assert_eq!(
            Hex(*stretch(zeros.as_bytes())).to_string(),
            "5eb00bbddcf069084889a8ab9155568165f5c453ccb85e70811aaed6f6da5fc19a5ac40b389cd370d086206dec8aa6c43daea6690f20ad3d8d48b2d2ce9e38e4"
        );
    }

    #[test]
    fn new_phrases_differ() {
        let [one, two] = [(); 2].map(|()| Phrase::generate().unwrap().words());
        assert_eq!(one.len(), PHRASE_WORDS);
        assert_ne!(one, two);
    }
}
