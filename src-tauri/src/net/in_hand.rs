//! A stream of which the next bytes may be in hand already: they are read first, and writes go straight through.
//!
//! Whoever looked at a connection before its server does keeps what it read in hand: a head ([`head`](super::head)), or a
//! piece of the socket that is larger than TLS asks for. What is in hand, and when, is the [`Hand`]'s to know.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What stands between a stream and whoever reads it.
pub trait Hand: Unpin {
    /// Gives what is in hand, as much as fits, or else what the stream gives.
    ///
    /// # Errors
    /// The stream's own.
    fn poll_read<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>>;
}

/// A stream and what is in hand of it.
#[derive(Debug)]
pub struct InHand<H, S> {
    /// What is read first.
    pub hand: H,
    /// What comes after it.
    pub stream: S,
}

/// Gives as much of `bytes` as fits; how much that was.
pub fn give(bytes: &[u8], buf: &mut ReadBuf<'_>) -> usize {
    let now = bytes.len().min(buf.remaining());
    buf.put_slice(bytes.get(..now).unwrap_or_default());
    now
}

impl<H: Hand, S: AsyncRead + Unpin> AsyncRead for InHand<H, S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        this.hand.poll_read(&mut this.stream, cx, buf)
    }
}

impl<H: Hand, S: AsyncWrite + Unpin> AsyncWrite for InHand<H, S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
