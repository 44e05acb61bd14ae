//! A worker's directory: the id of this installation and the receipts of its sessions.
//!
//! **Promise:** a file is replaced whole or not at all, so a crash leaves the old one.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::receipts;
use crate::types::{Hex, WorkerId};
use crate::wire::receipt::KeptReceipt;

const ID_FILE: &str = "worker_id";
const RECEIPTS_DIR: &str = "receipts";

/// Why the directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    /// Reading or writing failed.
    #[error("cannot use {path}: {source}")]
    Io {
        /// File or directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The id file holds something else.
    #[error("{path}: expected a worker id of 32 lower-case hex digits; delete the file to draw a new one")]
    Id {
        /// The file.
        path: PathBuf,
    },
    /// The operating system gave no randomness.
    #[error("no randomness for a worker id: {0}")]
    Random(#[from] getrandom::Error),
}

/// See the module.
pub(super) struct Home {
    /// This installation.
    pub worker_id: WorkerId,
    /// Receipts live here.
    pub receipts: PathBuf,
}

impl Home {
    /// Opens the directory, making it and the id when they are missing.
    pub fn open(dir: &Path) -> Result<Self, HomeError> {
        let receipts = dir.join(RECEIPTS_DIR);
        fs::create_dir_all(&receipts).map_err(|source| HomeError::Io { path: receipts.clone(), source })?;
        Ok(Self { worker_id: worker_id(dir.join(ID_FILE))?, receipts })
    }
}

fn worker_id(path: PathBuf) -> Result<WorkerId, HomeError> {
    match fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().map_err(|_| HomeError::Id { path }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut id = Hex([0; 16]);
            getrandom::fill(&mut id.0)?;
            replace(&path, id.to_string().as_bytes()).map_err(|source| HomeError::Io { path, source })?;
            Ok(id)
        }
        Err(source) => Err(HomeError::Io { path, source }),
    }
}

/// The receipts that the worker of a state directory has kept, and the files beside them that hold none.
///
/// # Errors
/// A directory that cannot be read; none when there never was one.
pub fn kept_receipts(state_dir: &Path) -> io::Result<(Vec<KeptReceipt>, Vec<PathBuf>)> {
    let dir = state_dir.join(RECEIPTS_DIR);
    if dir.exists() { receipts::kept(&dir) } else { Ok(Default::default()) }
}

/// Writes a file beside its old version, syncs it, and puts it in place.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let fresh = path.with_extension("new");
    let mut file = fs::File::create(&fresh)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&fresh, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installation_keeps_its_id() {
        let dir = tempfile::tempdir().unwrap();
        let first = Home::open(dir.path()).unwrap().worker_id;
        assert_eq!(Home::open(dir.path()).unwrap().worker_id, first);
        fs::write(dir.path().join(ID_FILE), "nonsense").unwrap();
        assert!(matches!(Home::open(dir.path()), Err(HomeError::Id { .. })));
    }
}
