//! A cheap, clonable view of a model's bytes: mapped from a file, compiled into the binary, or owned.
//!
//! Mapped bytes that are looked at stay in this process's memory for as long as the system likes. Whoever needs them
//! once reads a copy instead ([`Data::read`], [`Data::visit`]), which leaves nothing behind.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// Bytes that are read at once by [`Data::visit`].
const BLOCK_BYTES: usize = 256 * 1024;

/// Bytes of a tensor or a file.
#[derive(Clone)]
pub struct Data {
    owner: Owner,
    start: usize,
    end: usize,
}

#[derive(Clone)]
enum Owner {
    Mapped(Arc<Mapped>),
    Static(&'static [u8]),
    // A `Vec`, since turning it into `Arc<[u8]>` would copy what may be gigabytes.
    Owned(Arc<Vec<u8>>),
}

/// A file and its map, which covers all of it.
struct Mapped {
    map: memmap2::Mmap,
    file: File,
}

impl Data {
    /// The bytes of a file through a map of all of it.
    pub(super) fn mapped(file: File, map: memmap2::Mmap) -> Self {
        let end = map.len();
        Self { owner: Owner::Mapped(Arc::new(Mapped { map, file })), start: 0, end }
    }

    /// A copy of the part `range` of these bytes, as much of it as lies inside; of a file no page becomes resident.
    ///
    /// # Errors
    /// A file that cannot be read, or that is shorter than it was.
    pub fn read(&self, range: Range<usize>) -> io::Result<Vec<u8>> {
        let end = range.end.min(self.len());
        let start = range.start.min(end);
        match &self.owner {
            Owner::Mapped(mapped) => {
                let mut bytes = vec![0; end - start];
                read_at(&mapped.file, &mut bytes, (self.start + start) as u64)?;
                Ok(bytes)
            }
            Owner::Static(_) | Owner::Owned(_) => Ok(self[start..end].to_vec()),
        }
    }

    /// Shows all bytes to `look`, in order and piece by piece; of a file no page becomes resident.
    ///
    /// # Errors
    /// As [`Data::read`].
    pub fn visit(&self, mut look: impl FnMut(&[u8])) -> io::Result<()> {
        let Owner::Mapped(mapped) = &self.owner else {
            look(self);
            return Ok(());
        };
        let mut block = vec![0; BLOCK_BYTES.min(self.len())];
        let mut at = self.start;
        while at < self.end {
            let block = &mut block[..BLOCK_BYTES.min(self.end - at)];
            read_at(&mapped.file, block, at as u64)?;
            look(block);
            at += block.len();
        }
        Ok(())
    }

    /// These bytes without a map: a copy of a file's, the same ones where they are in memory anyway.
    ///
    /// # Errors
    /// As [`Data::read`].
    pub fn copied(&self) -> io::Result<Self> {
        match &self.owner {
            Owner::Mapped(_) => Ok(Self::from(self.read(0..self.len())?)),
            Owner::Static(_) | Owner::Owned(_) => Ok(self.clone()),
        }
    }

    /// The part `range` of these bytes, sharing them; `None` when it does not lie inside.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        if range.start > range.end || range.end > self.len() {
            return None;
        }
        Some(Self { owner: self.owner.clone(), start: self.start + range.start, end: self.start + range.end })
    }

    /// Which file's map these bytes lie in, as a number that tells maps apart, and where; `None` when they are no map.
    pub(super) fn place(&self) -> Option<(usize, Range<usize>)> {
        match &self.owner {
            Owner::Mapped(mapped) => Some((Arc::as_ptr(mapped) as usize, self.start..self.end)),
            Owner::Static(_) | Owner::Owned(_) => None,
        }
    }

    /// Bytes `range` of the whole map that these are part of; `None` outside of it or when they are no map.
    pub(super) fn of_same_map(&self, range: Range<usize>) -> Option<Self> {
        let Owner::Mapped(mapped) = &self.owner else { return None };
        let whole = Self { owner: self.owner.clone(), start: 0, end: mapped.map.len() };
        whole.slice(range)
    }

    /// Tells the system that these bytes will be read soon. Without a map, or on a system that takes no advice, nothing
    /// happens.
    pub(super) fn will_need(&self) {
        #[cfg(unix)]
        if let Owner::Mapped(mapped) = &self.owner {
            // Only advice: bytes that are not read ahead are read when they are met.
            let _ = mapped.map.advise_range(memmap2::Advice::WillNeed, self.start, self.len());
        }
    }

    /// Gives back the memory that a map's bytes take in this process; they are read from the file again when they are
    /// met again.
    pub fn release(&self) {
        #[cfg(unix)]
        if let Owner::Mapped(mapped) = &self.owner {
            // SAFETY: the map is a read-only one of a file, so that a dropped page comes back with the same bytes.
            #[expect(unsafe_code, reason = "the advice would lose what is written to a private map; this one is not")]
            let given_back = unsafe {
                mapped.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, self.start, self.len())
            };
            // Only advice: memory that is not given back now is taken when somebody else needs it.
            let _ = given_back;
        }
    }
}

/// Fills `bytes` from the file at `offset`; the file's own position is nobody's business.
#[cfg(unix)]
fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, offset)
}

/// The same where a read says how far it came.
#[cfg(windows)]
fn read_at(file: &File, mut bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let read = std::os::windows::fs::FileExt::seek_read(file, bytes, offset)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes = &mut bytes[read..];
        offset += read as u64;
    }
    Ok(())
}

impl From<&'static [u8]> for Data {
    fn from(bytes: &'static [u8]) -> Self {
        Self { owner: Owner::Static(bytes), start: 0, end: bytes.len() }
    }
}

impl From<Vec<u8>> for Data {
    fn from(bytes: Vec<u8>) -> Self {
        let end = bytes.len();
        Self { owner: Owner::Owned(Arc::new(bytes)), start: 0, end }
    }
}

impl Deref for Data {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let all: &[u8] = match &self.owner {
            Owner::Mapped(mapped) => &mapped.map,
            Owner::Static(bytes) => bytes,
            Owner::Owned(bytes) => bytes,
        };
        &all[self.start..self.end]
    }
}

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_a_files_bytes_are_the_mapped_ones() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let bytes: Vec<u8> = (0..2 * BLOCK_BYTES + 777).map(|i| (i * 31 % 251) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let data = crate::model::files::map(&path).unwrap().slice(100..bytes.len() - 7).unwrap();
        let expected = &bytes[100..bytes.len() - 7];
        assert_eq!(data.read(3..BLOCK_BYTES + 9).unwrap(), expected[3..BLOCK_BYTES + 9]);
        assert_eq!(data.read(expected.len() - 4..usize::MAX).unwrap(), expected[expected.len() - 4..]);
        assert!(data.read(usize::MAX..usize::MAX).unwrap().is_empty());
        let mut seen = Vec::new();
        data.visit(|piece| seen.extend_from_slice(piece)).unwrap();
        assert!(seen == expected && *data.copied().unwrap() == *expected);
        data.release();
        assert!(*data == *expected);
        std::fs::File::options().write(true).open(&path).unwrap().set_len(50).unwrap();
        assert_eq!(data.read(0..10).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
