//! Experts on the worker's disk, by digest, so that a worker that comes back serves at once.
//!
//! Before: a lease names digests. After: bytes of that digest, or the place where a download goes on. Every expert is a
//! file of its own; what is still coming in is a partial beside it, which the next attempt continues, also after a
//! kill. Several workers may share a directory: files appear whole, a partial is written by one worker at a time, and
//! what a running worker needs is named where the others look before they delete.
//! **Promises:** nothing is returned whose digest was not checked; the disk is the truth, so files that somebody
//! deletes are just missing; a full disk costs no expert and no answer, only the keeping.

mod holders;
mod part;
mod room;

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tracing::{debug, info, warn};

use super::status::Board;
use crate::clock::Clock;
use crate::types::{Digest, Hex};
use holders::Holder;
pub(super) use part::{Opened, Part};

/// Free space that a worker leaves on anybody's disk.
const FLOOR_BYTES: u64 = 1 << 30;

/// Where experts are kept, and how much of the disk they may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// The directory; several workers may share it.
    pub dir: PathBuf,
    /// Most bytes of it; when absent, twice what the worker offers to hold: its slice and the one before.
    pub bytes_max: Option<u64>,
    /// Bytes of the file system that stay free.
    pub floor_bytes: u64,
}

impl CacheConfig {
    /// A cache that leaves 1 GiB of the disk free.
    #[must_use]
    pub fn new(dir: PathBuf, bytes_max: Option<u64>) -> Self {
        Self { dir, bytes_max, floor_bytes: FLOOR_BYTES }
    }
}

/// See the module. Its calls block, on the disk and for a moment on other workers' clearing up.
pub(super) struct Cache {
    config: CacheConfig,
    /// Experts whose file can be neither read nor removed.
    useless: Mutex<HashSet<Digest>>,
    clock: Arc<dyn Clock>,
    board: Arc<Board>,
    bytes_max: AtomicU64,
    /// What the lease needs, for us and for the others.
    holder: Mutex<Holder>,
    counted: Mutex<Option<room::Counted>>,
    /// Why nothing is written at the moment.
    trouble: Mutex<Option<String>>,
}

impl Cache {
    /// Opens the directory, making it when it is missing.
    ///
    /// # Errors
    /// A directory that cannot be made or written.
    pub fn open(config: CacheConfig, clock: Arc<dyn Clock>, board: Arc<Board>) -> io::Result<Self> {
        fs::create_dir_all(&config.dir)?;
        let holder = Mutex::new(Holder::enter(&config.dir)?);
        let bytes_max = AtomicU64::new(config.bytes_max.unwrap_or(0));
        Ok(Self {
            bytes_max,
            config,
            useless: Mutex::default(),
            clock,
            board,
            holder,
            counted: Mutex::default(),
            trouble: Mutex::default(),
        })
    }

    /// The worker offers to hold `room` bytes.
    pub fn offered(&self, room: u64) {
        self.bytes_max.store(self.config.bytes_max.unwrap_or(room.saturating_mul(2)), Relaxed);
    }

    /// Names what the lease needs: it stays, here and for every other worker, until other things are named.
    pub fn need(&self, digests: impl Iterator<Item = Digest>) {
        let digests: HashSet<Digest> = digests.collect();
        let named = self.alone().and_then(|_lock| self.holder().name(&self.config.dir, digests));
        if let Err(error) = named {
            debug!(%error, "other workers are not told what this one needs");
        }
    }

    fn holder(&self) -> std::sync::MutexGuard<'_, Holder> {
        self.holder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn whole(&self, digest: Digest) -> PathBuf {
        self.config.dir.join(format!("{digest}.expert"))
    }

    /// The bytes of `digest`, checked; a file with other bytes is deleted.
    pub fn read(&self, digest: Digest) -> Option<Vec<u8>> {
        let path = self.whole(digest);
        match fs::read(&path) {
            Ok(bytes) if Hex(*blake3::hash(&bytes).as_bytes()) == digest => {
                self.touch(&path);
                return Some(bytes);
            }
            Ok(_) => warn!(path = %path.display(), "damaged on disk, fetching it again"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => warn!(path = %path.display(), %error, "cannot be read, fetching it again"),
        }
        if let Err(error) = fs::remove_file(&path) {
            warn!(path = %path.display(), %error, "cannot be removed; the expert is kept in memory only");
            self.useless.lock().unwrap_or_else(PoisonError::into_inner).insert(digest);
        }
        None
    }

    /// Whether another worker is fetching `digest`.
    pub fn is_busy(&self, digest: Digest) -> bool {
        let part = fs::File::open(self.config.dir.join(format!("{digest}.part")));
        part.is_ok_and(|file| matches!(file.try_lock(), Err(fs::TryLockError::WouldBlock)))
    }

    /// Opens the place where `bytes` bytes of `digest` go as they come.
    pub fn part(self: &Arc<Self>, digest: Digest, bytes: u64) -> Opened {
        if self.useless.lock().unwrap_or_else(PoisonError::into_inner).contains(&digest) {
            return Opened::Part(Part::unkept(bytes));
        }
        let path = self.config.dir.join(format!("{digest}.part"));
        match Part::open(self, path, self.whole(digest), bytes) {
            Ok(opened) => opened,
            Err(error) => {
                self.pause(&error.to_string());
                Opened::Part(Part::unkept(bytes))
            }
        }
    }

    /// Keeps small bytes under their digest, if it can: a manifest.
    pub fn put(self: &Arc<Self>, digest: Digest, bytes: &[u8]) {
        if let Opened::Part(mut part) = self.part(digest, bytes.len() as u64) {
            let rest = bytes.get(part.bytes().len()..).unwrap_or_default();
            part.append(rest);
            if part.bytes() == bytes { part.keep() } else { part.discard() }
        }
    }

    /// The latest use decides what goes first.
    fn touch(&self, path: &Path) {
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(self.clock.unix_ms());
        let touched = fs::File::options().write(true).open(path).and_then(|file| file.set_modified(now));
        if let Err(error) = touched {
            debug!(path = %path.display(), %error, "last use not noted");
        }
    }

    /// Nothing is kept for now; said once until it works again.
    fn pause(&self, why: &str) {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if trouble.is_none() {
            warn!(dir = %self.config.dir.display(), why, "experts are not kept on disk; serving goes on from memory");
            self.board.disk_trouble(Some(why.to_owned()));
        }
        *trouble = Some(why.to_owned());
    }

    fn resume(&self) {
        if self.trouble.lock().unwrap_or_else(PoisonError::into_inner).take().is_some() {
            info!(dir = %self.config.dir.display(), "experts are kept on disk again");
            self.board.disk_trouble(None);
        }
    }
}

#[cfg(test)]
mod tests;
