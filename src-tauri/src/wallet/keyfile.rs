//! Key files of servers: an operator's key, a hub's key, the keys between our own servers.

use std::path::Path;

use zeroize::Zeroizing;

use super::private::{self, PrivateFileError};
use crate::wire::signature::KeyPair;

const EXPECTED: &str = "an ed25519 seed of 64 lower-case hex digits";

/// The key in an owner-only file.
///
/// # Errors
/// [`PrivateFileError`]; a file that is not there is [`PrivateFileError::Io`].
pub fn load(path: &Path) -> Result<KeyPair, PrivateFileError> {
    match load_optional(path)? {
        Some(key) => Ok(key),
        None => Err(PrivateFileError::Io { path: path.to_owned(), source: std::io::ErrorKind::NotFound.into() }),
    }
}

/// The key in an owner-only file, which is made with a new key when missing.
///
/// # Errors
/// [`PrivateFileError`].
pub fn load_or_create(path: &Path) -> Result<KeyPair, PrivateFileError> {
    if let Some(key) = load_optional(path)? {
        return Ok(key);
    }
    let mut seed = Zeroizing::new([0u8; 32]);
    let no_randomness = |e: getrandom::Error| std::io::Error::other(e.to_string());
    getrandom::fill(seed.as_mut())
        .map_err(|e| PrivateFileError::Io { path: path.to_owned(), source: no_randomness(e) })?;
    let text = private::hex_line(seed.as_ref());
    match private::write_new(path, text.as_bytes()) {
        // Another process was faster: its key is the key.
        Err(PrivateFileError::Exists { .. }) => load(path),
        other => other.map(|()| KeyPair::from_seed(&seed)),
    }
}

fn load_optional(path: &Path) -> Result<Option<KeyPair>, PrivateFileError> {
    let Some(text) = private::read_secret(path)? else { return Ok(None) };
    let content = || PrivateFileError::Content { path: path.to_owned(), expected: EXPECTED };
    let seed = private::bytes_of(&text).ok_or_else(content)?;
    Ok(Some(KeyPair::from_seed(&seed)))
}
