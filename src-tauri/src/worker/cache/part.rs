//! An expert on its way: what came so far, in memory and in a file that the next attempt continues.
//!
//! The file is locked while it is written, so that of several workers one fetches and the others wait for it. It becomes
//! the expert's file by its name alone. Why nothing is synced to the platter: whatever a lost power supply does to a
//! file, its digest is checked at every use.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tracing::debug;

use super::Cache;

/// What there is of an expert.
pub(in crate::worker) enum Opened {
    /// All of it, by now.
    Whole,
    /// Another worker is fetching it.
    Busy,
    /// The place to put what comes.
    Part(Part),
}

/// See the module.
pub(in crate::worker) struct Part {
    bytes: Vec<u8>,
    file: Option<Kept>,
}

struct Kept {
    cache: Arc<Cache>,
    file: File,
    part: PathBuf,
    whole: PathBuf,
}

impl Part {
    /// A place in memory alone.
    pub fn unkept(bytes: u64) -> Self {
        Self { bytes: Vec::with_capacity(usize::try_from(bytes).unwrap_or(0)), file: None }
    }

    pub(super) fn open(cache: &Arc<Cache>, part: PathBuf, whole: PathBuf, bytes: u64) -> io::Result<Opened> {
        if whole.exists() {
            return Ok(Opened::Whole);
        }
        let mut file = open(&part)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(Opened::Busy),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // Whoever held the lock may have finished it, and then the open file is the expert's own.
        if whole.exists() {
            return Ok(Opened::Whole);
        }
        let mut this = Self::unkept(bytes);
        (&mut file).take(bytes + 1).read_to_end(&mut this.bytes)?;
        if this.bytes.len() as u64 > bytes {
            this.bytes.clear();
            restart(&mut file)?;
        }
        match cache.make_room(bytes - this.bytes.len() as u64) {
            Ok(()) => this.file = Some(Kept { cache: Arc::clone(cache), file, part, whole }),
            Err(why) => {
                cache.pause(&why.to_string());
                if this.bytes.is_empty() {
                    let _ = fs::remove_file(&part);
                }
            }
        }
        Ok(Opened::Part(this))
    }

    /// What came so far.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Adds what came; when the disk takes no more, it goes on in memory.
    pub fn append(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        let Some(kept) = &mut self.file else { return };
        match kept.file.write_all(bytes) {
            Ok(()) => kept.cache.resume(),
            Err(error) => {
                kept.cache.pause(&error.to_string());
                // Half a file is of use to the next attempt only where there is room for the other half.
                let _ = fs::remove_file(&kept.part);
                self.file = None;
            }
        }
    }

    /// Takes the bytes, which the caller checks, and what makes a file of them.
    pub fn take(mut self) -> (Vec<u8>, Self) {
        (std::mem::take(&mut self.bytes), self)
    }

    /// The digest is right: the file gets its name.
    pub fn keep(self) {
        if let Some(Kept { part, whole, cache, .. }) = self.file {
            match fs::rename(&part, &whole) {
                Ok(()) => cache.touch(&whole),
                Err(error) => debug!(path = %part.display(), %error, "expert not kept"),
            }
        }
    }

    /// The digest is wrong: nothing of it is of use.
    pub fn discard(self) {
        if let Some(kept) = self.file {
            let _ = fs::remove_file(&kept.part);
        }
    }
}

/// Opens the file, in a directory that somebody may have deleted.
fn open(path: &Path) -> io::Result<File> {
    let open = || File::options().read(true).write(true).create(true).truncate(false).open(path);
    match (open(), path.parent()) {
        (Err(error), Some(dir)) if error.kind() == io::ErrorKind::NotFound => {
            fs::create_dir_all(dir)?;
            open()
        }
        (opened, _) => opened,
    }
}

fn restart(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()
}
