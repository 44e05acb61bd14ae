//! A socket that is read in large pieces for the TLS layer above it, which asks for 4 KiB at a time.
//!
//! A buffer is held only while it has bytes that TLS did not ask for yet.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{Buffer, Pool};

/// Reads ahead; writes go straight through.
#[derive(Debug)]
pub struct Ahead<S> {
    stream: S,
    pool: Pool,
    hand: Option<Buffer>,
    start: usize,
    end: usize,
}

impl<S> Ahead<S> {
    /// Nothing is read yet.
    #[must_use]
    pub fn new(stream: S, pool: Pool) -> Self {
        Self { stream, pool, hand: None, start: 0, end: 0 }
    }

    /// Gives what is in hand, as much as fits, and the buffer back once it is empty.
    fn give(&mut self, buf: &mut ReadBuf<'_>) {
        let left = self.hand.as_ref().and_then(|buffer| buffer.get(self.start..self.end)).unwrap_or_default();
        let now = left.len().min(buf.remaining());
        buf.put_slice(left.get(..now).unwrap_or_default());
        self.start += now;
        if let Some(buffer) = self.hand.take_if(|_| self.start == self.end) {
            self.pool.give(buffer);
        }
    }
}

impl<S> Drop for Ahead<S> {
    fn drop(&mut self) {
        if let Some(buffer) = self.hand.take() {
            self.pool.give(buffer);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Ahead<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.hand.is_none() {
            let mut buffer = this.pool.take();
            let mut room = ReadBuf::new(&mut buffer);
            let read = Pin::new(&mut this.stream).poll_read(cx, &mut room);
            let got = room.filled().len();
            if got == 0 {
                this.pool.give(buffer);
                return read;
            }
            ready!(read)?;
            (this.hand, this.start, this.end) = (Some(buffer), 0, got);
        }
        this.give(buf);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Ahead<S> {
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn small_reads_get_all_bytes_in_order_and_leave_no_buffer_in_hand() {
        let pool = Pool::default();
        let sent: Vec<u8> = (0..300_000u32).map(|n| (n % 251) as u8).collect();
        let (mut far, near) = duplex(100_000);
        let bytes = sent.clone();
        let sender = tokio::spawn(async move { far.write_all(&bytes).await.unwrap() });
        let (mut ahead, mut got) = (Ahead::new(near, pool.clone()), Vec::new());
        for size in (1..).map(|n| n % 5_000 + 1) {
            let mut piece = vec![0; size];
            match ahead.read(&mut piece).await.unwrap() {
                0 => break,
                read => got.extend_from_slice(&piece[..read]),
            }
        }
        sender.await.unwrap();
        assert!(got == sent);
        assert!(ahead.hand.is_none() && pool.0.lock().unwrap().len() == 1);
    }
}
