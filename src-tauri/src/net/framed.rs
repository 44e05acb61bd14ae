//! Frames over a byte stream, `u32 length | frame`, for the leg between hub and backbone.

use std::io;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::time::timeout;

use super::Io;
use crate::wire::frame::{Frame, FrameError, HEADER_BYTES, MESSAGE_BYTES_MAX};

const LENGTH_BYTES: usize = 4;
/// Most that is read at once beyond what the frame under way needs.
const READ_AHEAD_BYTES: usize = 64 * 1024;
/// How long a peer may take to make room for one frame.
pub const WRITE_DEADLINE: Duration = Duration::from_secs(10);

/// Why a framed stream ends.
#[derive(Debug, thiserror::Error)]
pub enum FramedError {
    /// A length outside the bounds of a frame.
    #[error("frame of {got} bytes: expected {min}..={max}")]
    Length {
        /// What the peer says.
        got: usize,
        /// Least.
        min: usize,
        /// Most.
        max: usize,
    },
    /// Bytes that are no frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The stream ended within a frame.
    #[error("stream ended {missing} bytes before the end of a frame")]
    Cut {
        /// Bytes that did not come.
        missing: usize,
    },
    /// The peer takes no bytes.
    #[error("peer took no frame within {deadline_ms} ms")]
    Stuck {
        /// The bound.
        deadline_ms: u128,
    },
    /// The connection broke.
    #[error("connection lost: {0}")]
    Lost(#[from] io::Error),
}

/// Reads frames.
pub struct FramedReader<R> {
    stream: R,
    buffer: BytesMut,
}

/// Writes frames.
pub struct FramedWriter<W> {
    stream: W,
    deadline: Duration,
}

/// Both directions of `stream`, for two tasks.
#[must_use]
pub fn split(stream: Io) -> (FramedReader<ReadHalf<Io>>, FramedWriter<WriteHalf<Io>>) {
    let (reader, writer) = tokio::io::split(stream);
    (FramedReader::new(reader), FramedWriter::new(writer))
}

impl<R: AsyncRead + Unpin> FramedReader<R> {
    /// A reader at the start of a frame.
    pub fn new(stream: R) -> Self {
        Self { stream, buffer: BytesMut::new() }
    }

    /// The next frame; `None` at the end of the stream. A call that is dropped loses nothing.
    ///
    /// # Errors
    /// [`FramedError`]; the stream is then of no use.
    pub async fn recv(&mut self) -> Result<Option<Frame>, FramedError> {
        loop {
            let needed = match self.buffer.first_chunk::<LENGTH_BYTES>() {
                None => LENGTH_BYTES,
                Some(length) => LENGTH_BYTES + check(u32::from_le_bytes(*length) as usize)?,
            };
            if needed > LENGTH_BYTES && self.buffer.len() >= needed {
                self.buffer.advance(LENGTH_BYTES);
                return Ok(Some(Frame::decode(self.buffer.split_to(needed - LENGTH_BYTES).freeze())?));
            }
            let missing = needed - self.buffer.len();
            self.buffer.reserve(missing.max(READ_AHEAD_BYTES));
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return if self.buffer.is_empty() { Ok(None) } else { Err(FramedError::Cut { missing }) };
            }
        }
    }
}

fn check(length: usize) -> Result<usize, FramedError> {
    if (HEADER_BYTES..=MESSAGE_BYTES_MAX).contains(&length) {
        return Ok(length);
    }
    Err(FramedError::Length { got: length, min: HEADER_BYTES, max: MESSAGE_BYTES_MAX })
}

impl<W: AsyncWrite + Unpin> FramedWriter<W> {
    /// A writer at the start of a frame; a peer that takes longer than [`WRITE_DEADLINE`] is given up.
    pub fn new(stream: W) -> Self {
        Self { stream, deadline: WRITE_DEADLINE }
    }

    /// Another deadline.
    #[must_use]
    pub fn with_deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// Sends a frame in one write. A call that is dropped may leave half a frame: do not go on after that.
    ///
    /// # Errors
    /// [`FramedError::Stuck`] or [`FramedError::Lost`].
    pub async fn send(&mut self, frame: &Frame) -> Result<(), FramedError> {
        let length = HEADER_BYTES + frame.body.len();
        let mut out = Vec::with_capacity(LENGTH_BYTES + length);
        out.extend_from_slice(&(length as u32).to_le_bytes());
        out.extend_from_slice(&frame.header.encode());
        out.extend_from_slice(&frame.body);
        let write = async {
            self.stream.write_all(&out).await?;
            self.stream.flush().await
        };
        match timeout(self.deadline, write).await {
            Err(_) => Err(FramedError::Stuck { deadline_ms: self.deadline.as_millis() }),
            Ok(done) => Ok(done?),
        }
    }

    /// Says that nothing follows.
    ///
    /// # Errors
    /// [`FramedError::Stuck`] or [`FramedError::Lost`].
    pub async fn finish(&mut self) -> Result<(), FramedError> {
        match timeout(self.deadline, self.stream.shutdown()).await {
            Err(_) => Err(FramedError::Stuck { deadline_ms: self.deadline.as_millis() }),
            Ok(done) => Ok(done?),
        }
    }
}
