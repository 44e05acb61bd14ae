//! A worker's directory: the id of this installation and the receipts of its sessions.
//!
//! **Promises:** a file is replaced whole or not at all, so a crash leaves the old one; nobody else reads what is here.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::receipts::{self, OnDisk};
use crate::types::{Hex, WorkerId};
use crate::wallet::make_private_dir;

const ID_FILE: &str = "worker_id";
const RECEIPTS_DIR: &str = "receipts";
/// Locked for as long as a program works in the directory.
const LOCK_FILE: &str = "lock";

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
    /// Another program works there.
    #[error("{path} is in use by another Kvasir: close that one, or give this one a directory of its own with --state")]
    InUse {
        /// The directory.
        path: PathBuf,
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

/// A state directory that this program alone works in, until it is dropped or the program ends, however it ends.
#[derive(Debug)]
pub struct Occupied {
    /// Locked.
    _file: fs::File,
}

/// Takes a state directory for this program alone, making it when it is missing.
///
/// # Errors
/// [`HomeError::InUse`], or a directory that cannot be used.
pub fn occupy(state_dir: &Path) -> Result<Occupied, HomeError> {
    let path = state_dir.join(LOCK_FILE);
    let io = |source| HomeError::Io { path: path.clone(), source };
    make_private_dir(state_dir).map_err(io)?;
    let file = fs::File::options().write(true).create(true).truncate(false).open(&path).map_err(io)?;
    match file.try_lock() {
        Ok(()) => Ok(Occupied { _file: file }),
        Err(fs::TryLockError::WouldBlock) => Err(HomeError::InUse { path: state_dir.to_owned() }),
        Err(fs::TryLockError::Error(source)) => Err(io(source)),
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
pub fn kept_receipts(state_dir: &Path) -> io::Result<(Vec<OnDisk>, Vec<PathBuf>)> {
    let dir = state_dir.join(RECEIPTS_DIR);
    if dir.exists() { receipts::kept(&dir) } else { Ok(Default::default()) }
}

/// Writes an owner-only file beside its old version, syncs it, and puts it in place.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let fresh = path.with_extension("new");
    let mut options = fs::File::options();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&fresh)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&fresh, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_program_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let first = occupy(dir.path()).unwrap();
        let second = occupy(dir.path()).unwrap_err();
        assert!(matches!(&second, HomeError::InUse { .. }) && second.to_string().contains("--state"), "{second}");
        drop(first);
        drop(occupy(dir.path()).unwrap());
    }

    #[cfg(unix)]
    #[test]
    fn nobody_else_looks_into_a_directory_that_is_made_here() {
        use std::os::unix::fs::PermissionsExt;
        let above = tempfile::tempdir().unwrap();
        let dir = above.path().join("state/worker");
        let _alone = occupy(&dir).unwrap();
        replace(&dir.join("network"), b"kvasir://join#").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&dir), mode(&dir.join("network"))), (0o700, 0o600));
    }

    #[test]
    fn an_installation_keeps_its_id() {
        let dir = tempfile::tempdir().unwrap();
        let first = Home::open(dir.path()).unwrap().worker_id;
        assert_eq!(Home::open(dir.path()).unwrap().worker_id, first);
        fs::write(dir.path().join(ID_FILE), "nonsense").unwrap();
        assert!(matches!(Home::open(dir.path()), Err(HomeError::Id { .. })));
    }
}
