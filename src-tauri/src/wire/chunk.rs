//! Body of `ExpertChunk`: `offset u64 | bytes`, a piece of an expert's weights or of the manifest.

use bytes::Bytes;

use super::frame::{Frame, FrameError, Header, Kind};

/// Most bytes of weights in one chunk: small enough that work frames never wait long behind one.
pub const CHUNK_BYTES_MAX: usize = 256 * 1024;
/// The expert id in an `ExpertGet` that asks for the manifest.
pub const MANIFEST_EXPERT: u16 = u16::MAX;

const OFFSET_BYTES: usize = 8;

/// A piece of what an `ExpertGet` asked for; the frame repeats its request id and layer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExpertChunk {
    /// First byte.
    pub offset: u64,
    /// At most [`CHUNK_BYTES_MAX`].
    pub bytes: Bytes,
}

impl ExpertChunk {
    /// The frame that answers `request`.
    ///
    /// # Errors
    /// A chunk that is too large.
    pub fn reply(&self, request: u64, layer: u16) -> Result<Frame, FrameError> {
        check(self.bytes.len())?;
        let mut body = Vec::with_capacity(OFFSET_BYTES + self.bytes.len());
        body.extend_from_slice(&self.offset.to_le_bytes());
        body.extend_from_slice(&self.bytes);
        Frame::new(Header { request, layer, ..Header::control(Kind::ExpertChunk) }, body)
    }

    /// Reads the body of an `ExpertChunk` frame.
    ///
    /// # Errors
    /// Another kind, a body without an offset, or too many bytes.
    pub fn read(frame: &Frame) -> Result<Self, FrameError> {
        if frame.header.kind != Kind::ExpertChunk {
            return Err(FrameError::Body {
                what: "frame kind",
                expected: format!("{:?}", Kind::ExpertChunk),
                got: format!("{:?}", frame.header.kind),
            });
        }
        let Some(offset) = frame.body.first_chunk::<OFFSET_BYTES>() else {
            return Err(FrameError::Truncated { expected: OFFSET_BYTES, got: frame.body.len() });
        };
        check(frame.body.len() - OFFSET_BYTES)?;
        Ok(Self { offset: u64::from_le_bytes(*offset), bytes: frame.body.slice(OFFSET_BYTES..) })
    }
}

fn check(bytes: usize) -> Result<(), FrameError> {
    if bytes > CHUNK_BYTES_MAX {
        return Err(FrameError::Over { what: "chunk bytes", got: bytes as u64, max: CHUNK_BYTES_MAX as u64 });
    }
    Ok(())
}
