//! A cheap, clonable view of a model's bytes: mapped from a file, compiled into the binary, or owned.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// Bytes of a tensor or a file.
#[derive(Clone)]
pub struct Data {
    owner: Owner,
    start: usize,
    end: usize,
}

#[derive(Clone)]
enum Owner {
    Mapped(Arc<memmap2::Mmap>),
    Static(&'static [u8]),
    // A `Vec`, since turning it into `Arc<[u8]>` would copy what may be gigabytes.
    Owned(Arc<Vec<u8>>),
}

impl Data {
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
            Owner::Mapped(map) => Some((Arc::as_ptr(map) as usize, self.start..self.end)),
            Owner::Static(_) | Owner::Owned(_) => None,
        }
    }

    /// Bytes `range` of the whole map that these are part of; `None` outside of it or when they are no map.
    pub(super) fn of_same_map(&self, range: Range<usize>) -> Option<Self> {
        let Owner::Mapped(map) = &self.owner else { return None };
        let whole = Self { owner: self.owner.clone(), start: 0, end: map.len() };
        whole.slice(range)
    }

    /// Tells the system that these bytes will be read soon. Without a map, or on a system that takes no advice, nothing
    /// happens.
    pub(super) fn will_need(&self) {
        #[cfg(unix)]
        if let Owner::Mapped(map) = &self.owner {
            // Only advice: bytes that are not read ahead are read when they are met.
            let _ = map.advise_range(memmap2::Advice::WillNeed, self.start, self.len());
        }
    }

    /// Gives back the memory that a map's bytes take in this process; they are read from the file again when they are
    /// met again.
    pub(super) fn release(&self) {
        #[cfg(unix)]
        if let Owner::Mapped(map) = &self.owner {
            // SAFETY: the map is a read-only one of a file, so that a dropped page comes back with the same bytes.
            #[expect(unsafe_code, reason = "the advice would lose what is written to a private map; this one is not")]
            let given_back =
                unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, self.start, self.len()) };
            // Only advice: memory that is not given back now is taken when somebody else needs it.
            let _ = given_back;
        }
    }
}

impl From<memmap2::Mmap> for Data {
    fn from(map: memmap2::Mmap) -> Self {
        let end = map.len();
        Self { owner: Owner::Mapped(Arc::new(map)), start: 0, end }
    }
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
            Owner::Mapped(map) => map,
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
