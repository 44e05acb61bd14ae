//! The network that this installation works for: taken from a join code once, kept beside the worker's id.
//!
//! What is kept is the code itself, so its signature is checked again at every start. An expired code is good for those
//! who took it in time. **Promise:** a code that is refused changes nothing.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::home::replace;
use crate::types::PublicKey;
use crate::wire::invite::{INVITE_CHARS_MAX, INVITE_PREFIX, Invite, InviteError};

const NETWORK_FILE: &str = "network";
/// Join code of the network that this build works for unless told otherwise.
const DEFAULT_CODE: Option<&str> = option_env!("KVASIR_DEFAULT_JOIN");

/// Why there is no network to work for.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The code.
    #[error(transparent)]
    Invite(#[from] InviteError),
    /// The kept code.
    #[error("{path}: {source}; delete the file to join anew")]
    Kept {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: InviteError,
    },
    /// A file that cannot be read or written.
    #[error("cannot use {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl NetworkError {
    /// A stable code for the user interface.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Invite(error) => error.code(),
            Self::Kept { .. } => "network_damaged",
            Self::Io { .. } => "network_file",
        }
    }
}

/// The network of `state_dir`, `None` when nobody was joined. With a code (or a file that holds one) that network is
/// joined and kept; without one it is the kept network, else the build's own. Operators, when named, must include the
/// network's.
///
/// # Errors
/// [`NetworkError`].
pub fn join(
    state_dir: &Path,
    code_or_file: Option<&str>,
    operators: &[PublicKey],
    now_unix_s: u64,
) -> Result<Option<Invite>, NetworkError> {
    let kept = || kept(state_dir);
    let Some(text) = code_or_file else {
        return match (kept()?, build_network()) {
            // Whoever joined stays, whatever the time; a build belongs to its network for as long as it is used.
            (Some(invite), _) => Ok(Some(invite.accept(operators, 0)?)),
            (None, Some(code)) => Ok(Some(Invite::read(code)?.accept(operators, 0)?)),
            (None, None) => Ok(None),
        };
    };
    let code = code_of(text)?;
    let invite = Invite::read(&code)?;
    // A damaged file is no reason to refuse a good code.
    let is_kept = kept().is_ok_and(|kept| kept.as_ref() == Some(&invite));
    let invite = invite.accept(operators, if is_kept { 0 } else { now_unix_s })?;
    if !is_kept {
        keep(state_dir, &code)?;
    }
    Ok(Some(invite))
}

/// Keeps the network of a code that was accepted, in place of an older one.
///
/// # Errors
/// [`NetworkError::Io`].
pub fn keep(state_dir: &Path, code: &str) -> Result<(), NetworkError> {
    let path = state_dir.join(NETWORK_FILE);
    let written = fs::create_dir_all(state_dir).and_then(|()| replace(&path, format!("{}\n", code.trim()).as_bytes()));
    written.map_err(|source| NetworkError::Io { path, source })
}

/// Whether a network was joined, and not only named by the build.
#[must_use]
pub fn is_joined(state_dir: &Path) -> bool {
    state_dir.join(NETWORK_FILE).exists()
}

/// The code of the network that was joined, or of the build's; for a hub that asks to see it.
#[must_use]
pub fn code(state_dir: &Path) -> Option<String> {
    let kept = read(&state_dir.join(NETWORK_FILE)).ok().map(|text| text.trim().to_owned());
    kept.or_else(|| build_network().map(str::to_owned))
}

/// Forgets the kept network.
///
/// # Errors
/// [`NetworkError::Io`].
pub fn leave(state_dir: &Path) -> Result<(), NetworkError> {
    let path = state_dir.join(NETWORK_FILE);
    match fs::remove_file(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(NetworkError::Io { path, source }),
        _ => Ok(()),
    }
}

/// The join code that `text` is or, when it is the path of a file, that the file holds.
///
/// # Errors
/// A file that cannot be read.
pub fn code_of(text: &str) -> Result<String, NetworkError> {
    let path = Path::new(text);
    if text.starts_with(INVITE_PREFIX) || !path.is_file() {
        return Ok(text.to_owned());
    }
    read(path).map_err(|source| NetworkError::Io { path: path.to_owned(), source })
}

/// The join code that was compiled in, if any.
fn build_network() -> Option<&'static str> {
    DEFAULT_CODE.filter(|code| !code.is_empty())
}

fn kept(state_dir: &Path) -> Result<Option<Invite>, NetworkError> {
    let path = state_dir.join(NETWORK_FILE);
    match read(&path) {
        Ok(text) => Invite::read(&text).map(Some).map_err(|source| NetworkError::Kept { path, source }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(NetworkError::Io { path, source }),
    }
}

/// A small text; one that is too long is cut, and then no code any more.
fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(INVITE_CHARS_MAX as u64 + 1).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::signature::KeyPair;

    const NOW: u64 = 1_800_000_000;

    fn code(operator: u8, host: &str) -> String {
        let operator = KeyPair::from_seed(&[operator; 32]);
        let gateways = vec![format!("wss://{host}")];
        let invite = Invite { operator: operator.public(), gateways, ca_pem: None, expires_unix_s: NOW };
        invite.sign(&operator).unwrap()
    }

    #[test]
    fn who_joined_in_time_stays() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(join(dir.path(), None, &[], NOW).unwrap(), None);
        let invite = join(dir.path(), Some(&code(1, "a")), &[], NOW).unwrap();
        assert_eq!(invite.as_ref().unwrap().gateways, ["wss://a"]);
        assert_eq!(join(dir.path(), None, &[], NOW + 9).unwrap(), invite);
        assert_eq!(join(dir.path(), Some(&code(1, "a")), &[], NOW + 9).unwrap(), invite);
        leave(dir.path()).unwrap();
        leave(dir.path()).unwrap();
        assert_eq!(join(dir.path(), None, &[], NOW).unwrap(), None);
        assert_eq!(join(dir.path(), Some(&code(1, "a")), &[], NOW + 9).unwrap_err().code(), "invite_expired");
    }

    #[test]
    fn a_refused_code_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let first = join(dir.path(), Some(&code(1, "a")), &[], NOW).unwrap();
        let pinned = [KeyPair::from_seed(&[1; 32]).public()];
        let other = code(2, "b");
        assert_eq!(join(dir.path(), Some(&other), &pinned, NOW).unwrap_err().code(), "invite_other_operator");
        assert_eq!(join(dir.path(), Some(&other), &[], NOW + 1).unwrap_err().code(), "invite_expired");
        assert_eq!(join(dir.path(), Some("nonsense"), &[], NOW).unwrap_err().code(), "invite_malformed");
        assert_eq!(join(dir.path(), None, &[], NOW).unwrap(), first);
    }

    #[test]
    fn a_code_may_come_in_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("invitation.txt");
        fs::write(&file, format!("{}\n", code(1, "a"))).unwrap();
        let invite = join(dir.path(), file.to_str(), &[], NOW).unwrap();
        assert_eq!(invite.unwrap().gateways, ["wss://a"]);
    }

    #[test]
    fn a_kept_code_that_was_changed_is_refused_and_can_be_replaced() {
        let dir = tempfile::tempdir().unwrap();
        join(dir.path(), Some(&code(1, "a")), &[], NOW).unwrap();
        let path = dir.path().join(NETWORK_FILE);
        let text = fs::read_to_string(&path).unwrap().replacen("AY", "AZ", 1);
        fs::write(&path, text).unwrap();
        assert_eq!(join(dir.path(), None, &[], NOW).unwrap_err().code(), "network_damaged");
        assert!(join(dir.path(), Some(&code(1, "b")), &[], NOW).unwrap().is_some());
    }
}
