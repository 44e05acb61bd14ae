//! What the running workers of a directory need: one small file each, locked for as long as its worker runs.
//!
//! A file whose lock is free belongs to a worker that is gone, however it went, and is deleted by the next who looks.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use crate::types::{Digest, Hex};

const ENDING: &str = "holder";
/// Bytes of such a file that are read: more experts than any model has.
const BYTES_MAX: u64 = 32 << 20;

/// A worker's own file and what stands in it.
pub(super) struct Holder {
    path: PathBuf,
    file: File,
    digests: HashSet<Digest>,
}

impl Holder {
    /// Makes the file, under a name that no other worker has.
    pub fn enter(dir: &Path) -> io::Result<Self> {
        let mut name = [0; 16];
        getrandom::fill(&mut name).map_err(io::Error::other)?;
        let path = dir.join(format!("{}.{ENDING}", Hex(name)));
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        file.lock()?;
        Ok(Self { path, file, digests: HashSet::new() })
    }

    /// Writes down what is needed from now on.
    pub fn name(&mut self, dir: &Path, digests: HashSet<Digest>) -> io::Result<()> {
        if !self.path.exists() {
            // Somebody deleted the directory's content; what is needed is needed all the same.
            fs::create_dir_all(dir)?;
            *self = Self::enter(dir)?;
        }
        self.digests = digests;
        let bytes: Vec<u8> = self.digests.iter().flat_map(|digest| digest.0).collect();
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(&bytes)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// What `own` and every other running worker of `dir` need. Files of workers that are gone are deleted.
pub(super) fn needed(dir: &Path, own: &Holder) -> HashSet<Digest> {
    let mut needed = own.digests.clone();
    let entries = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    for path in entries.filter(|path| path.extension().is_some_and(|e| e == ENDING) && *path != own.path) {
        let Ok(mut file) = File::open(&path) else { continue };
        if file.try_lock().is_ok() {
            let _ = fs::remove_file(&path);
            continue;
        }
        let mut bytes = Vec::new();
        if (&mut file).take(BYTES_MAX).read_to_end(&mut bytes).is_ok() {
            needed.extend(bytes.as_chunks::<32>().0.iter().map(|digest| Hex(*digest)));
        }
    }
    needed
}
