//! Takes away what this installation put on the disk, by its owner's order.
//!
//! **Promise:** only files that Kvasir makes are removed, by name; a state directory that holds something else keeps it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tokio::task::spawn_blocking;

use super::EngineError;
use super::kept::KeptError;
use super::work::EXPERTS_DIR;
use crate::wallet;

/// Files and directories of a state directory; keys go with their store, and the lock with the program.
const OURS: &[&str] = &[
    "wallet",
    "backed_up",
    "network",
    "worker_id",
    "receipts",
    "gpu",
    "settings.json",
    "intent.json",
    "earned.json",
    "close-explained",
    "release",
];

/// Bytes of the files that [`slices`] removes.
pub(super) async fn slices_bytes(state_dir: PathBuf) -> Result<u64, EngineError> {
    let counting = spawn_blocking(move || {
        let dir = state_dir.join(EXPERTS_DIR);
        match fs::read_dir(&dir) {
            // One that goes meanwhile takes nothing.
            Ok(entries) => {
                let files = entries.flatten().filter_map(|entry| entry.metadata().ok()).filter(fs::Metadata::is_file);
                Ok(files.map(|file| file.len()).sum())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(source) => Err(KeptError::Io { path: dir, source }),
        }
    });
    Ok(counting.await.map_err(|_| EngineError::Gone("the thread that counts files"))??)
}

/// Removes every expert.
pub(super) async fn slices(state_dir: PathBuf) -> Result<(), EngineError> {
    let removing = spawn_blocking(move || remove(&state_dir.join(EXPERTS_DIR)));
    Ok(removing.await.map_err(|_| EngineError::Gone("the thread that removes files"))??)
}

/// Removes everything but keys; blocks. What a crash left half written goes too.
pub(super) fn everything(state_dir: &Path) -> Result<(), KeptError> {
    remove(&state_dir.join(EXPERTS_DIR))?;
    for name in OURS.iter().map(|name| state_dir.join(name)) {
        remove(&name)?;
        remove(&name.with_added_extension("bad"))?;
        remove(&name.with_extension("new"))?;
    }
    wallet::unfinished_in(state_dir).iter().try_for_each(|path| remove(path))
}

fn remove(path: &Path) -> Result<(), KeptError> {
    let removed = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(KeptError::Io { path: path.to_owned(), source }),
        _ => Ok(()),
    }
}
