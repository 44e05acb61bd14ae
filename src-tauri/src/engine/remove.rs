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

/// Files and directories of a state directory; keys go with their store, and the lock with the program.
const OURS: &[&str] =
    &["wallet", "backed_up", "network", "worker_id", "receipts", "gpu", "settings.json", "intent.json", "earned.json"];

/// Bytes of the files that [`slices`] removes.
pub(super) async fn slices_bytes(state_dir: PathBuf) -> Result<u64, EngineError> {
    away(move || {
        let dir = state_dir.join(EXPERTS_DIR);
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            Err(source) => return Err(KeptError::Io { path: dir, source }),
        };
        // One that goes meanwhile takes nothing.
        Ok(entries
            .flatten()
            .filter_map(|entry| entry.metadata().ok())
            .filter(fs::Metadata::is_file)
            .map(|meta| meta.len())
            .sum())
    })
    .await
}

/// Removes every expert.
pub(super) async fn slices(state_dir: PathBuf) -> Result<(), EngineError> {
    away(move || remove(&state_dir.join(EXPERTS_DIR))).await
}

/// Removes everything but keys.
pub(super) async fn everything(state_dir: PathBuf) -> Result<(), EngineError> {
    away(move || {
        remove(&state_dir.join(EXPERTS_DIR))?;
        OURS.iter().try_for_each(|name| {
            remove(&state_dir.join(name))?;
            remove(&state_dir.join(name).with_added_extension("bad"))
        })
    })
    .await
}

async fn away<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, KeptError> + Send + 'static,
) -> Result<T, EngineError> {
    Ok(spawn_blocking(work).await.map_err(|_| EngineError::Gone("the thread that looks after files"))??)
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
