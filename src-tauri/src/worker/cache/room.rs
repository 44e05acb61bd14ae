//! Makes room on the disk: what no lease needs goes, what was used longest ago first.

use std::collections::HashSet;
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime};

use super::{Cache, holders};
use crate::model::room::disk_free;
use crate::types::Digest;

/// Taken while files are counted and deleted, so that two workers do not do it at once.
const LOCK_FILE: &str = "lock";

/// How long a count of the directory holds: other workers write there too.
const RECOUNT: Duration = Duration::from_secs(5);

/// What the directory held, and what was promised since.
pub(super) struct Counted {
    at: Instant,
    used: u64,
}

/// Why a piece of an expert is not kept.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoRoom {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("the cache would take {wanted} bytes of the {max} it may: allow more with --cache-size")]
    Cap { wanted: u64, max: u64 },
    #[error("the disk has {free} bytes free, and {floor} are to stay free beside {wanted} more")]
    Floor { free: u64, floor: u64, wanted: u64 },
}

/// A file that may be deleted.
struct Old {
    used: SystemTime,
    bytes: u64,
    path: PathBuf,
}

impl Cache {
    /// Deletes until `bytes` more fit under the cap and above the floor.
    pub(super) fn make_room(&self, bytes: u64) -> Result<(), NoRoom> {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = counted.as_mut().filter(|last| last.at.elapsed() < RECOUNT)
            && self.short_of(last.used, bytes).is_ok()
        {
            last.used += bytes;
            return Ok(());
        }
        let _lock = self.alone()?;
        let needed = holders::needed(&self.config.dir, &self.holder());
        let (mut used, mut old) = self.look(&needed)?;
        old.sort_by(|a, b| (a.used, &a.path).cmp(&(b.used, &b.path)));
        let mut old = old.into_iter();
        loop {
            let short = self.short_of(used, bytes);
            let Err(why) = short else {
                *counted = Some(Counted { at: Instant::now(), used: used + bytes });
                return Ok(());
            };
            let Some(next) = old.next() else { return Err(why) };
            if fs::remove_file(&next.path).is_ok() {
                tracing::debug!(path = %next.path.display(), bytes = next.bytes, "dropped from the disk");
                used -= next.bytes;
            }
        }
    }

    /// Until the lock is dropped, no other worker deletes anything or changes what it needs.
    pub(super) fn alone(&self) -> std::io::Result<File> {
        let path = self.config.dir.join(LOCK_FILE);
        let lock = File::options().write(true).create(true).truncate(false).open(path)?;
        lock.lock()?;
        Ok(lock)
    }

    fn short_of(&self, used: u64, bytes: u64) -> Result<(), NoRoom> {
        let (max, floor) = (self.bytes_max.load(Relaxed), self.config.floor_bytes);
        let wanted = used.saturating_add(bytes);
        if wanted > max {
            return Err(NoRoom::Cap { wanted, max });
        }
        let free = disk_free(&self.config.dir)?;
        if free < floor.saturating_add(bytes) {
            return Err(NoRoom::Floor { free, floor, wanted: bytes });
        }
        Ok(())
    }

    /// Bytes of all experts and partials, and those that nobody needs.
    fn look(&self, needed: &HashSet<Digest>) -> std::io::Result<(u64, Vec<Old>)> {
        let (mut used, mut old) = (0, Vec::new());
        for entry in fs::read_dir(&self.config.dir)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some((digest, kind)) = name.to_str().and_then(|name| name.split_once('.')) else { continue };
            let Ok(digest) = digest.parse::<Digest>() else { continue };
            // Another worker may have deleted it meanwhile.
            let Ok(meta) = entry.metadata() else { continue };
            used += meta.len();
            let is_free = match kind {
                "expert" => true,
                "part" => File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok()),
                _ => false,
            };
            if is_free && !needed.contains(&digest) {
                let used = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                old.push(Old { used, bytes: meta.len(), path: entry.path() });
            }
        }
        Ok((used, old))
    }
}
