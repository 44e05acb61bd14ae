//! The receiving half, and the count of inbound bytes that tells life from silence.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::StreamExt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep, sleep};
use tokio_tungstenite::tungstenite::error::CapacityError;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::liveness::{Liveness, Look};
use super::writer::Out;
use super::{Io, Shared, WsError};
use crate::wire::text::plain;

/// A stream that counts what it receives, parts of messages included.
pub(super) struct Counted {
    stream: Io,
    inbound: Arc<AtomicU64>,
}

impl Counted {
    pub(super) fn new(stream: Io) -> Self {
        Self { stream, inbound: Arc::default() }
    }

    pub(super) fn inbound(&self) -> Arc<AtomicU64> {
        self.inbound.clone()
    }
}

impl AsyncRead for Counted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.inbound.fetch_add((buf.filled().len() - before) as u64, Ordering::Relaxed);
        polled
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The receiving half. Liveness is watched while [`WsReceiver::recv`] is awaited.
pub struct WsReceiver {
    shared: Arc<Shared>,
    control: mpsc::Sender<Out>,
    inbound: Arc<AtomicU64>,
    liveness: Liveness,
    heard_at: Instant,
    timer: Pin<Box<Sleep>>,
}

impl WsReceiver {
    pub(super) fn new(shared: Arc<Shared>, control: mpsc::Sender<Out>, inbound: Arc<AtomicU64>) -> Self {
        let mut seed = [0u8; 8];
        // Without randomness all links look in step, which is a pity and no fault.
        let _ = getrandom::fill(&mut seed);
        let mut liveness = Liveness::new(shared.config.ping, u64::from_le_bytes(seed));
        let timer = Box::pin(sleep(liveness.next_in()));
        Self { shared, control, inbound, liveness, heard_at: Instant::now(), timer }
    }

    /// The next binary message; `None` once the peer has closed in peace (1000, 1001 or no code), or after our own
    /// close. A call that is dropped loses nothing.
    ///
    /// # Errors
    /// [`WsError`]; the link is then over.
    pub async fn recv(&mut self) -> Result<Option<Bytes>, WsError> {
        loop {
            let shared = &self.shared;
            tokio::select! {
                biased;
                message = poll_fn(|cx| shared.lock().poll_next_unpin(cx)) => {
                    self.heard_at = Instant::now();
                    match message {
                        None => return Ok(None),
                        Some(Ok(Message::Binary(bytes))) => return Ok(Some(bytes)),
                        Some(Ok(Message::Close(frame))) => return closed(frame.map(|f| (f.code.into(), f.reason.to_string()))),
                        Some(Ok(Message::Text(_))) => return Err(self.refuse(WsError::Text, 1003)),
                        Some(Ok(_)) => {}
                        Some(Err(error)) => return Err(self.fail(&error)),
                    }
                }
                () = self.control.closed() => {
                    return match shared.write_error.get() {
                        Some(error) => Err(error.clone()),
                        None => Ok(None),
                    };
                }
                () = &mut self.timer => self.look()?,
            }
        }
    }

    fn look(&mut self) -> Result<(), WsError> {
        match self.liveness.look(self.inbound.load(Ordering::Relaxed)) {
            Look::Rest => {}
            // A full control queue means that a ping already waits.
            Look::Ping => drop(self.control.try_send(Out::Ping)),
            Look::GiveUp { strikes } => {
                let silent_ms = u64::try_from(self.heard_at.elapsed().as_millis()).unwrap_or(u64::MAX);
                return Err(WsError::Silent { silent_ms, strikes });
            }
        }
        let next = Instant::now() + self.liveness.next_in();
        self.timer.as_mut().reset(next);
        Ok(())
    }

    /// Tells the peer why before the link ends.
    fn refuse(&self, error: WsError, code: u16) -> WsError {
        let _ = self.control.try_send(Out::Close { code, reason: error.to_string(), abrupt: true });
        error
    }

    fn fail(&self, error: &Error) -> WsError {
        match error {
            Error::Capacity(CapacityError::MessageTooLong { size, max_size }) => {
                self.refuse(WsError::TooLarge { got: *size, max: *max_size }, 1009)
            }
            Error::Protocol(what) => self.refuse(WsError::Lost { reason: what.to_string() }, 1002),
            other => WsError::Lost { reason: other.to_string() },
        }
    }
}

fn closed(frame: Option<(u16, String)>) -> Result<Option<Bytes>, WsError> {
    match frame {
        None | Some((1000 | 1001, _)) => Ok(None),
        Some((code, reason)) => Err(WsError::Closed { code, reason: plain(&reason) }),
    }
}
