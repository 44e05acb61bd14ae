//! A stream that first gives back bytes that were already read from it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf};

use crate::net::in_hand::{Hand, InHand, give};

/// Reads the bytes that were given first and the stream after them.
///
/// For the servers that look at a head before they know which protocol server the connection belongs to.
pub type Rewind<S> = InHand<Returned, S>;

/// Bytes that were read and not yet used.
#[derive(Debug)]
pub struct Returned {
    bytes: Vec<u8>,
    given: usize,
}

impl<S> Rewind<S> {
    /// `bytes` are what was read from `stream` and not yet used.
    #[must_use]
    pub fn new(bytes: Vec<u8>, stream: S) -> Self {
        Self { hand: Returned { bytes, given: 0 }, stream }
    }
}

impl Hand for Returned {
    fn poll_read<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let left = self.bytes.get(self.given..).unwrap_or_default();
        if left.is_empty() {
            return Pin::new(stream).poll_read(cx, buf);
        }
        self.given += give(left, buf);
        if self.given == self.bytes.len() {
            *self = Self { bytes: Vec::new(), given: 0 };
        }
        Poll::Ready(Ok(()))
    }
}
