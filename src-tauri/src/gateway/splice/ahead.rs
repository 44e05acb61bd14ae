//! A socket that is read in large pieces for the TLS layer above it, which asks for 4 KiB at a time.
//!
//! A buffer is held only while it has bytes that TLS did not ask for yet.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

use super::{Buffer, Pool};
use crate::net::in_hand::{Hand, InHand, give};

/// Reads ahead.
pub type Ahead<S> = InHand<Piece, S>;

/// What was read ahead.
#[derive(Debug)]
pub struct Piece {
    pool: Pool,
    buffer: Option<Buffer>,
    start: usize,
    end: usize,
}

impl<S> Ahead<S> {
    /// Nothing is read yet.
    #[must_use]
    pub fn new(stream: S, pool: Pool) -> Self {
        Self { hand: Piece { pool, buffer: None, start: 0, end: 0 }, stream }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.pool.give(buffer);
        }
    }
}

impl Hand for Piece {
    fn poll_read<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.buffer.is_none() {
            let mut buffer = self.pool.take();
            let mut room = ReadBuf::new(&mut buffer);
            let read = Pin::new(stream).poll_read(cx, &mut room);
            let got = room.filled().len();
            if got == 0 {
                self.pool.give(buffer);
                return read;
            }
            ready!(read)?;
            (self.buffer, self.start, self.end) = (Some(buffer), 0, got);
        }
        let left = self.buffer.as_ref().and_then(|buffer| buffer.get(self.start..self.end)).unwrap_or_default();
        self.start += give(left, buf);
        // Back to the pool once it is empty.
        if let Some(buffer) = self.buffer.take_if(|_| self.start == self.end) {
            self.pool.give(buffer);
        }
        Poll::Ready(Ok(()))
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
        assert!(ahead.hand.buffer.is_none() && pool.0.lock().unwrap().len() == 1);
    }
}
