//! The file of keys: written by `kvasir keys` alone, replaced as a whole.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::backbone::Reach;

/// How every key begins, so that scanners for leaked secrets can know it.
const PREFIX: &str = "kvk-";
/// Characters of an id: enough to tell a million keys apart.
const ID_CHARS: usize = 10;
/// Largest file: some twenty thousand keys.
const FILE_BYTES_MAX: u64 = 8 << 20;
const FILE: &str = "keys.json";
const LOCK: &str = "keys.lock";

/// Why keys cannot be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file system refused.
    #[error("cannot use {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file that this version did not write.
    #[error("{path}: expected keys as kvasir writes them, got {reason}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// There were keys, and now there are none.
    #[error(
        "{path}: expected the keys that were there before, got none: put the file back; to serve without keys, \
             stop the server and delete usage.json beside it as well"
    )]
    Gone {
        /// The file.
        path: PathBuf,
    },
    /// No such key.
    #[error("expected the id of a key in {path}, got {id}: see kvasir keys list")]
    Unknown {
        /// The file.
        path: PathBuf,
        /// What was asked for.
        id: String,
    },
    /// No random numbers.
    #[error("no random numbers for a key: {0}")]
    Random(getrandom::Error),
}

/// Where the hidden states of a key's requests may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Route {
    /// To any worker, unless a request asks for less.
    #[default]
    Any,
    /// To workers whose wallets the operator trusts.
    Trusted,
    /// Nowhere.
    Local,
}

impl Route {
    /// The stricter of a key's route and a request's.
    #[must_use]
    pub fn limit(self, asked: Reach) -> Reach {
        match (self, asked) {
            (Self::Local, _) | (_, Reach::Local) => Reach::Local,
            (Self::Trusted, _) | (_, Reach::Trusted) => Reach::Trusted,
            (Self::Any, Reach::Any) => Reach::Any,
        }
    }
}

/// What a new key may do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NewKey {
    /// For people.
    pub name: String,
    /// Where its hidden states may go.
    pub route: Route,
    /// Streams at once, if limited.
    pub streams: Option<u32>,
    /// Requests in a minute, if limited.
    pub requests_per_minute: Option<u32>,
    /// Prompt and new tokens over its whole life, if limited.
    pub tokens: Option<u64>,
}

/// A key as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApiKey {
    /// Names it in lists and logs; no secret.
    pub id: String,
    /// For people.
    pub name: String,
    /// BLAKE3 of the key, in hexadecimal.
    pub hash: String,
    /// Where its hidden states may go.
    pub route: Route,
    /// Streams at once, if limited.
    pub streams: Option<u32>,
    /// Requests in a minute, if limited.
    pub requests_per_minute: Option<u32>,
    /// Prompt and new tokens over its whole life, if limited.
    pub tokens: Option<u64>,
    /// Unix milliseconds.
    pub created_unix_ms: u64,
    /// Whether it no longer opens anything.
    pub revoked: bool,
}

/// The hash under which a key is stored.
#[must_use]
pub fn hash(key: &str) -> String {
    blake3::hash(key.as_bytes()).to_hex().to_string()
}

/// The keys of one backbone.
#[derive(Debug, Clone)]
pub struct KeyFile(PathBuf);

impl KeyFile {
    /// The file in a backbone's state directory.
    #[must_use]
    pub fn within(state: &Path) -> Self {
        Self(state.join(FILE))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// All keys, revoked ones too; none without a file.
    ///
    /// # Errors
    /// A file that cannot be read, or is no file of keys.
    pub fn read(&self) -> Result<Vec<ApiKey>, KeyError> {
        let mut text = String::new();
        match File::open(&self.0).and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(self.io(source)),
            Ok(_) => {}
        }
        serde_json::from_str(&text).map_err(|e| KeyError::File { path: self.0.clone(), reason: e.to_string() })
    }

    /// Makes a key at `now_unix_ms`; gives its record and the key itself, which nobody can show again.
    ///
    /// # Errors
    /// As [`KeyFile::read`], or a file that cannot be written.
    pub fn create(&self, new: NewKey, now_unix_ms: u64) -> Result<(ApiKey, String), KeyError> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(KeyError::Random)?;
        let key = format!("{PREFIX}{}", bs58::encode(secret).into_string());
        let hash = hash(&key);
        let NewKey { name, route, streams, requests_per_minute, tokens } = new;
        let id = hash[..ID_CHARS].to_owned();
        let created_unix_ms = now_unix_ms;
        let made =
            ApiKey { id, name, hash, route, streams, requests_per_minute, tokens, created_unix_ms, revoked: false };
        self.change(|keys| {
            keys.push(made.clone());
            Ok(())
        })?;
        Ok((made, key))
    }

    /// Ends a key.
    ///
    /// # Errors
    /// [`KeyError::Unknown`], and as [`KeyFile::create`].
    pub fn revoke(&self, id: &str) -> Result<(), KeyError> {
        self.change(|keys| match keys.iter_mut().find(|key| key.id == id) {
            Some(key) => {
                key.revoked = true;
                Ok(())
            }
            None => Err(KeyError::Unknown { path: self.0.clone(), id: id.chars().take(64).collect() }),
        })
    }

    /// Reads, changes and replaces the file, alone among all processes that do.
    fn change(&self, change: impl FnOnce(&mut Vec<ApiKey>) -> Result<(), KeyError>) -> Result<(), KeyError> {
        let dir = self.0.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(dir).map_err(|source| self.io(source))?;
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(dir.join(LOCK));
        let lock = lock.map_err(|source| self.io(source))?;
        lock.lock().map_err(|source| self.io(source))?;
        let mut keys = self.read()?;
        change(&mut keys)?;
        replace(&self.0, &keys).map_err(|source| self.io(source))
    }

    fn io(&self, source: std::io::Error) -> KeyError {
        KeyError::Io { path: self.0.clone(), source }
    }
}

/// Puts `value` as JSON in the place of `path`, all of it or nothing, readable by its owner alone.
pub(super) fn replace(path: &Path, value: &impl Serialize) -> std::io::Result<()> {
    let mut file = tempfile::NamedTempFile::new_in(path.parent().unwrap_or(Path::new(".")))?;
    file.write_all(&serde_json::to_vec_pretty(value)?)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}
