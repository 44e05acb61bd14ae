//! The 16-byte tag behind every frame of a session, so that nobody in the middle can change one.
//!
//! `keyed BLAKE3(counter u64 ‖ header ‖ body)`, one key and one counter per direction.
//! **Promise:** a frame that was altered, dropped, repeated or reordered ends the session and is never read.

use bytes::Bytes;
use zeroize::Zeroizing;

use crate::wire::frame::{Frame, FrameError, HEADER_BYTES};

/// Bytes of a tag.
pub const TAG_BYTES: usize = 16;

/// Why a sealed frame is refused. The session must end; it is no strike against the worker.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum OpenError {
    /// The tag does not fit: somebody between the two ends changed, dropped or repeated a frame.
    #[error("bad tag on frame {counter} of the session")]
    BadTag {
        /// Frames opened before it.
        counter: u64,
    },
    /// The tag holds, but what is under it is no frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// Key and counter of one direction.
struct Direction {
    key: Zeroizing<[u8; 32]>,
    counter: u64,
}

/// Tags outgoing frames.
pub struct Seal(Direction);

/// Checks incoming frames.
pub struct Open {
    direction: Direction,
    broken: bool,
}

impl Direction {
    fn tag(&self, frame: &[u8]) -> [u8; TAG_BYTES] {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&self.counter.to_le_bytes());
        hasher.update(frame);
        let mut tag = [0u8; TAG_BYTES];
        tag.copy_from_slice(&hasher.finalize().as_bytes()[..TAG_BYTES]);
        tag
    }
}

/// Compares without telling by its duration where two tags differ, as `blake3::Hash` does for 32 bytes.
fn equal(a: [u8; TAG_BYTES], b: [u8; TAG_BYTES]) -> bool {
    let widen = |tag: [u8; TAG_BYTES]| {
        let mut wide = [0u8; 32];
        wide[..TAG_BYTES].copy_from_slice(&tag);
        blake3::Hash::from_bytes(wide)
    };
    widen(a) == widen(b)
}

impl Seal {
    pub(super) fn new(key: Zeroizing<[u8; 32]>) -> Self {
        Self(Direction { key, counter: 0 })
    }

    /// `header | body | tag` as one buffer, so that it leaves in one write. Frames must leave in the order of these calls.
    #[must_use]
    pub fn seal(&mut self, frame: &Frame) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES + frame.body.len() + TAG_BYTES);
        out.extend_from_slice(&frame.header.encode());
        out.extend_from_slice(&frame.body);
        let tag = self.0.tag(&out);
        out.extend_from_slice(&tag);
        self.0.counter += 1;
        out
    }
}

impl Open {
    pub(super) fn new(key: Zeroizing<[u8; 32]>) -> Self {
        Self { direction: Direction { key, counter: 0 }, broken: false }
    }

    /// The frame of a sealed message; the tag is checked before anything else is read.
    ///
    /// # Errors
    /// [`OpenError`]; after one, every later call fails too.
    pub fn open(&mut self, message: Bytes) -> Result<Frame, OpenError> {
        let opened = self.check(message);
        self.broken |= opened.is_err();
        opened
    }

    fn check(&mut self, message: Bytes) -> Result<Frame, OpenError> {
        let bad = OpenError::BadTag { counter: self.direction.counter };
        let Some((frame, tag)) = message.split_last_chunk::<TAG_BYTES>() else {
            return Err(bad);
        };
        if self.broken || !equal(self.direction.tag(frame), *tag) {
            return Err(bad);
        }
        self.direction.counter += 1;
        Ok(Frame::decode(message.slice(..message.len() - TAG_BYTES))?)
    }
}
