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
    Owned(Arc<[u8]>),
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
        Self { owner: Owner::Owned(bytes.into()), start: 0, end }
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
