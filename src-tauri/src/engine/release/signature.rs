//! Who signed a package, as which version and file: minisign, as `tauri signer` writes it.
//!
//! Both are in the signature's trusted comment, since an announcement is not signed: without it whoever can forge
//! an announcement could pass an old release, with holes that are known, off as a new one, or
//! replace a program by one that does not run here.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use minisign_verify::{Error, PublicKey, Signature};

use super::announced::Platform;
use crate::wire::agent::Version;

/// Where the signed version stands among the words of the trusted comment.
const VERSION: &str = "version:";
/// The same of the name of the file that was signed.
const FILE: &str = "file:";
/// Most of a signed word that an error repeats.
const NAMED_CHARS_MAX: usize = 64;

/// Why a package is not trusted, or nobody can be.
#[derive(Debug, thiserror::Error)]
pub enum SignatureError {
    /// The key of this build.
    #[error("expected the public key that `tauri signer generate` prints, got {0}")]
    Key(String),
    /// A text that is no signature.
    #[error("expected the text of the package's .sig file, got {0}")]
    Malformed(String),
    /// A signature, but not of these bytes by this key.
    #[error("expected a package that the releases' key has signed, got another: {0}")]
    Untrusted(Error),
    /// A signature of these bytes as something else.
    #[error("expected a package that was signed as version {announced}, got one signed as {signed}")]
    OtherVersion {
        /// What was announced.
        announced: Version,
        /// What was signed.
        signed: String,
    },
    /// A signature of these bytes as a package for other computers.
    #[error("expected a package for this computer, of the kind that it has, got one signed as {0}")]
    OtherPlatform(String),
}

/// The public half of the key that signs releases.
#[derive(Debug)]
pub struct ReleaseKey(PublicKey);

impl ReleaseKey {
    /// The key in `text`, base64 of a minisign key file.
    ///
    /// # Errors
    /// Another text.
    pub fn read(text: &str) -> Result<Self, SignatureError> {
        let file = decoded(text).map_err(SignatureError::Key)?;
        Ok(Self(PublicKey::decode(&file).map_err(|error| SignatureError::Key(error.to_string()))?))
    }

    /// Whether this key signed `package` as `announced` and for `platform`; `signature` is base64 of a minisign signature file.
    ///
    /// # Errors
    /// It did not.
    pub fn verify(
        &self,
        package: &[u8],
        signature: &str,
        announced: Version,
        platform: &Platform,
    ) -> Result<(), SignatureError> {
        let file = decoded(signature).map_err(SignatureError::Malformed)?;
        let signature = Signature::decode(&file).map_err(|error| SignatureError::Malformed(error.to_string()))?;
        // Nothing is signed the old way, over the bytes themselves.
        self.0.verify(package, &signature, false).map_err(SignatureError::Untrusted)?;
        // Only now the comment can be believed: the key has signed it too.
        let signed = |name: &str| signature.trusted_comment().split('\t').find_map(|word| word.strip_prefix(name));
        let short = |word: &str| word.chars().take(NAMED_CHARS_MAX).collect();
        let version = signed(VERSION);
        if version.and_then(|version| version.parse().ok()) != Some(announced) {
            return Err(SignatureError::OtherVersion { announced, signed: short(version.unwrap_or("none")) });
        }
        match signed(FILE).filter(|file| !platform.suits(file)) {
            Some(file) => Err(SignatureError::OtherPlatform(short(file))),
            None => Ok(()),
        }
    }
}

/// The file in `text`, or what is wrong with it.
fn decoded(text: &str) -> Result<String, String> {
    let bytes = BASE64_STANDARD.decode(text.trim()).map_err(|error| format!("no base64: {error}"))?;
    String::from_utf8(bytes).map_err(|_| "no text".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Platform = Platform { target: "linux", arch: "x86_64", bundle: Some("deb") };
    const KEY: &str = include_str!("../../../../tests/data/release/key.pub");
    const PACKAGE: &[u8] = include_bytes!("../../../../tests/data/release/package");
    const NEWER: &str = include_str!("../../../../tests/data/release/newer.sig");
    const OLDER: &str = include_str!("../../../../tests/data/release/older.sig");
    const UNVERSIONED: &str = include_str!("../../../../tests/data/release/unversioned.sig");
    const FOREIGN: &str = include_str!("../../../../tests/data/release/foreign.sig");
    const ANOTHER: &str = include_str!("../../../../tests/data/release/another.sig");

    #[test]
    fn only_the_releases_key_vouches_and_only_for_the_version_that_it_signed() {
        let key = ReleaseKey::read(KEY).unwrap();
        let verdict = |package: &[u8], signature: &str, version: &str| {
            key.verify(package, signature, version.parse().unwrap(), &HERE).map_err(|error| error.to_string())
        };
        assert_eq!(verdict(PACKAGE, NEWER, "9.9.9"), Ok(()));
        let mut changed = PACKAGE.to_vec();
        changed[0] ^= 1;
        for (package, signature, version, why) in [
            (&changed[..], NEWER, "9.9.9", "verification failed"),
            (&PACKAGE[..5], NEWER, "9.9.9", "verification failed"),
            (PACKAGE, ANOTHER, "9.9.9", "different key"),
            (PACKAGE, OLDER, "9.9.9", "as version 9.9.9, got one signed as 0.0.1"),
            (PACKAGE, NEWER, "9.9.8", "as version 9.9.8, got one signed as 9.9.9"),
            (PACKAGE, UNVERSIONED, "9.9.9", "got one signed as none"),
            (
                PACKAGE,
                FOREIGN,
                "9.9.9",
                "for this computer, of the kind that it has, got one signed as Kvasir_9.9.9_arm64",
            ),
            (PACKAGE, "", "9.9.9", ".sig file"),
            (PACKAGE, "?", "9.9.9", "no base64"),
            (PACKAGE, &NEWER[..100], "9.9.9", ".sig file"),
        ] {
            let said = verdict(package, signature, version).unwrap_err();
            assert!(said.contains(why), "{said}");
        }
    }

    #[test]
    fn a_version_that_was_written_in_afterwards_counts_for_nothing() {
        let file = decoded(OLDER).unwrap().replace("version:0.0.1", "version:9.9.9");
        let forged = BASE64_STANDARD.encode(file);
        let verdict = ReleaseKey::read(KEY).unwrap().verify(PACKAGE, &forged, "9.9.9".parse().unwrap(), &HERE);
        assert!(matches!(verdict, Err(SignatureError::Untrusted(Error::InvalidSignature))), "{verdict:?}");
    }

    #[test]
    fn a_placeholder_is_no_key() {
        for text in ["PUBLIC KEY OF RELEASES: what `tauri signer generate` prints", "", "aGVsbG8K"] {
            assert!(matches!(ReleaseKey::read(text), Err(SignatureError::Key(_))), "{text}");
        }
    }
}
