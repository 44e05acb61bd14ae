//! What each key used: counted by the running backbone alone, kept beside the keys.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::file::{KeyError, replace};

const FILE: &str = "usage.json";
/// Far above what all keys of the largest key file take.
const FILE_BYTES_MAX: u64 = 8 << 20;

/// What a key used since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Requests that were accepted.
    pub requests: u64,
    /// Tokens of their prompts.
    pub prompt_tokens: u64,
    /// Tokens that were generated for them.
    pub new_tokens: u64,
    /// Assignments that workers computed for them.
    pub assignments_remote: u64,
}

impl Usage {
    /// Adds another.
    pub fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.prompt_tokens += other.prompt_tokens;
        self.new_tokens += other.new_tokens;
        self.assignments_remote += other.assignments_remote;
    }

    /// Tokens read and written.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.prompt_tokens + self.new_tokens
    }
}

/// The usage of all keys, by id.
#[derive(Debug, Clone)]
pub struct UsageFile(PathBuf);

impl UsageFile {
    /// The file in a backbone's state directory.
    #[must_use]
    pub fn within(state: &Path) -> Self {
        Self(state.join(FILE))
    }

    /// What was used; nothing without a file.
    ///
    /// # Errors
    /// A file that cannot be read, or is no file of usage.
    pub fn read(&self) -> Result<BTreeMap<String, Usage>, KeyError> {
        let io = |source| KeyError::Io { path: self.0.clone(), source };
        match std::fs::metadata(&self.0) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
            Err(source) => return Err(io(source)),
            Ok(found) if found.len() > FILE_BYTES_MAX => {
                return Err(KeyError::File { path: self.0.clone(), reason: format!("{} bytes", found.len()) });
            }
            Ok(_) => {}
        }
        let text = std::fs::read(&self.0).map_err(io)?;
        serde_json::from_slice(&text).map_err(|e| KeyError::File { path: self.0.clone(), reason: e.to_string() })
    }

    /// Replaces it.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn write(&self, usage: &BTreeMap<String, Usage>) -> Result<(), KeyError> {
        replace(&self.0, usage).map_err(|source| KeyError::Io { path: self.0.clone(), source })
    }
}
