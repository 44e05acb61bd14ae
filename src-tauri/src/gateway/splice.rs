//! Carries bytes both ways between a worker and its hub, untouched, until both directions have ended.
//!
//! A direction that ends closes the other side's writing half and leaves the opposite direction alone; ending both at the
//! first end of stream would cut what is still on its way. Against peers that then never close there is a shorter idle
//! limit, and an idle limit holds for the whole splice. A buffer is taken from the pool only while bytes are in hand, so
//! that thousands of idle workers cost no memory.

mod ahead;

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, sleep_until};

pub use ahead::Ahead;

use super::metrics::Counter;

/// Bytes carried at once: at 64 KiB a splice is as fast as at 256 KiB, at 8 KiB it is a third slower.
const BUFFER_BYTES: usize = 64 * 1024;
/// Buffers kept for later: 16 MiB.
const POOL_BUFFERS_MAX: usize = 256;

type Buffer = Box<[u8]>;

/// Buffers that no splice holds now. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Pool(Arc<Mutex<Vec<Buffer>>>);

impl Pool {
    fn take(&self) -> Buffer {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        kept.unwrap_or_else(|| vec![0; BUFFER_BYTES].into_boxed_slice())
    }

    fn give(&self, buffer: Buffer) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < POOL_BUFFERS_MAX {
            kept.push(buffer);
        }
    }
}

/// How long a splice may be silent.
#[derive(Debug, Clone, Copy)]
pub struct Silence {
    /// While both directions are open.
    pub idle: Duration,
    /// After one has ended.
    pub half_closed: Duration,
}

/// How a splice ended.
#[derive(Debug)]
pub enum Ended {
    /// Both directions came to their end.
    Closed,
    /// Nothing moved for the idle limit.
    Idle,
    /// One direction ended and nothing moved in the other.
    HalfClosed,
    /// A side failed.
    Failed(io::Error),
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("both sides closed"),
            Self::Idle => f.write_str("idle"),
            Self::HalfClosed => f.write_str("one side closed, the other idle"),
            Self::Failed(error) => write!(f, "failed: {error}"),
        }
    }
}

/// One direction: what is in hand and how far it came.
#[derive(Default)]
struct Way {
    hand: Option<Buffer>,
    start: usize,
    end: usize,
    read_ended: bool,
    /// Why nothing more can be read; what was read before is still handed over.
    fault: Option<io::Error>,
    closed: bool,
    unflushed: bool,
}

impl Way {
    /// Moves what can be moved; ready once the end of the stream was handed over.
    fn poll<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        (reader, writer): (&mut R, &mut W),
        (pool, bytes): (&Pool, &Counter),
        moved: &mut bool,
    ) -> Poll<io::Result<()>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        if self.closed {
            return Poll::Ready(Ok(()));
        }
        let mut nothing_more = false;
        loop {
            if let Some(buffer) = &self.hand {
                let left = buffer.get(self.start..self.end).unwrap_or_default();
                let written = ready!(Pin::new(&mut *writer).poll_write(cx, left))?;
                if written == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                bytes.add(written as u64);
                self.start += written;
                (self.unflushed, *moved) = (true, true);
                if let Some(buffer) = self.hand.take_if(|_| self.start == self.end) {
                    pool.give(buffer);
                }
                continue;
            }
            if self.read_ended {
                ready!(Pin::new(&mut *writer).poll_shutdown(cx))?;
                self.closed = true;
                return Poll::Ready(Ok(()));
            }
            if self.fault.is_some() {
                ready!(Pin::new(&mut *writer).poll_flush(cx))?;
                return Poll::Ready(self.fault.take().map_or(Ok(()), Err));
            }
            if nothing_more {
                // A flush per lull, not per write: TLS then fills its records.
                if self.unflushed {
                    ready!(Pin::new(&mut *writer).poll_flush(cx))?;
                    self.unflushed = false;
                }
                return Poll::Pending;
            }
            nothing_more = self.fill(cx, reader, pool);
            *moved |= self.hand.is_some() || self.read_ended;
        }
    }

    /// Reads until the buffer is full, the stream has ended or failed, or it has nothing more now, which is answered: TLS
    /// gives a record at a time, and the other side should get more than that in one write.
    fn fill<R: AsyncRead + Unpin>(&mut self, cx: &mut Context<'_>, reader: &mut R, pool: &Pool) -> bool {
        let (mut buffer, mut filled, mut nothing_more) = (pool.take(), 0, false);
        while filled < buffer.len() && !self.read_ended && self.fault.is_none() && !nothing_more {
            let mut room = ReadBuf::new(buffer.get_mut(filled..).unwrap_or_default());
            match Pin::new(&mut *reader).poll_read(cx, &mut room) {
                Poll::Ready(Ok(())) => match room.filled().len() {
                    0 => self.read_ended = true,
                    got => filled += got,
                },
                Poll::Ready(Err(error)) => self.fault = Some(error),
                Poll::Pending => nothing_more = true,
            }
        }
        if filled > 0 {
            (self.hand, self.start, self.end) = (Some(buffer), 0, filled);
        } else {
            pool.give(buffer);
        }
        nothing_more
    }
}

/// Splices `worker` and `hub` until both directions end, one fails, or silence lasts too long; then drops both.
///
/// `up` counts bytes to the hub, `down` bytes to the worker.
pub async fn splice<A, B>(
    mut worker: A,
    mut hub: B,
    pool: &Pool,
    silence: Silence,
    up: &Counter,
    down: &Counter,
) -> Ended
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let (mut to_hub, mut to_worker) = (Way::default(), Way::default());
    let mut last = Instant::now();
    let mut timer = pin!(sleep_until(last + silence.idle));
    let mut half_closed = false;
    poll_fn(|cx| {
        let mut moved = false;
        let a = to_hub.poll(cx, (&mut worker, &mut hub), (pool, up), &mut moved);
        let b = to_worker.poll(cx, (&mut hub, &mut worker), (pool, down), &mut moved);
        match (a, b) {
            (Poll::Ready(Err(error)), _) | (_, Poll::Ready(Err(error))) => return Poll::Ready(Ended::Failed(error)),
            (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => return Poll::Ready(Ended::Closed),
            _ => {}
        }
        if moved {
            last = Instant::now();
        }
        if !half_closed && (to_hub.read_ended || to_worker.read_ended) {
            half_closed = true;
            timer.as_mut().reset(last + silence.half_closed);
        }
        let limit = if half_closed { silence.half_closed } else { silence.idle };
        // Bytes do not touch the timer: it is set anew only when it fires too early.
        while timer.as_mut().poll(cx).is_ready() {
            let due = last + limit;
            if due <= Instant::now() {
                return Poll::Ready(if half_closed { Ended::HalfClosed } else { Ended::Idle });
            }
            timer.as_mut().reset(due);
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests;
