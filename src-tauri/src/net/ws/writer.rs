//! The sending half and the task behind its queue.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;

use super::{Shared, WsConfig, WsError, stuck};

/// How long the end of a link may take: the close must arrive, but nobody is waited for.
const LINGER: Duration = Duration::from_secs(2);
/// Most bytes that are thrown away while a close is on its way.
const DISCARD_BYTES_MAX: usize = 64 << 20;
/// Longest close reason (RFC 6455 leaves 123 bytes).
const REASON_BYTES_MAX: usize = 123;

/// What the writer task sends.
pub(super) enum Out {
    Data(Bytes),
    Ping,
    /// `abrupt`: what the peer still sends can no longer be read as messages.
    Close {
        code: u16,
        reason: String,
        abrupt: bool,
    },
}

/// The sending half. Clones share one queue; messages leave in the order in which they entered it.
#[derive(Clone)]
pub struct WsSender {
    queue: mpsc::Sender<Out>,
    config: WsConfig,
    write_error: Arc<OnceLock<WsError>>,
}

impl WsSender {
    pub(super) fn new(queue: mpsc::Sender<Out>, config: &WsConfig, write_error: Arc<OnceLock<WsError>>) -> Self {
        Self { queue, config: *config, write_error }
    }

    /// Queues a binary message, waiting for room if need be. A write error shows at the receiving half and at the
    /// next send.
    ///
    /// # Errors
    /// [`WsError::TooLarge`] without sending; [`WsError::Stuck`] when the peer takes nothing in time;
    /// [`WsError::Lost`] when the link is over.
    pub async fn send(&self, message: impl Into<Bytes>) -> Result<(), WsError> {
        let message = self.check(message.into())?;
        self.reserve().await?.put(message);
        Ok(())
    }

    /// Waits for room for one message, which enters the queue with [`WsPlace::send`]. A call that is dropped holds
    /// no room, so that what must not be lost half-way can be made after the wait.
    ///
    /// # Errors
    /// [`WsError::Stuck`] when the peer takes nothing in time; [`WsError::Lost`] when the link is over.
    pub async fn reserve(&self) -> Result<WsPlace<'_>, WsError> {
        match timeout(self.config.write_deadline, self.queue.reserve()).await {
            Err(_) => Err(stuck(&self.config)),
            Ok(Err(_)) => Err(self.over()),
            Ok(Ok(place)) => Ok(WsPlace { sender: self, place }),
        }
    }

    /// Queues a binary message if there is room now.
    ///
    /// # Errors
    /// [`WsError::TooLarge`] or [`WsError::Full`] without sending; [`WsError::Lost`] when the link is over.
    pub fn try_send(&self, message: impl Into<Bytes>) -> Result<(), WsError> {
        let message = self.check(message.into())?;
        self.queue.try_send(Out::Data(message)).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => WsError::Full { max: self.queue.max_capacity() },
            mpsc::error::TrySendError::Closed(_) => self.over(),
        })
    }

    /// Sends a ping behind what is queued.
    ///
    /// # Errors
    /// [`WsError::Stuck`] or [`WsError::Lost`].
    pub async fn ping(&self) -> Result<(), WsError> {
        match timeout(self.config.write_deadline, self.queue.send(Out::Ping)).await {
            Err(_) => Err(stuck(&self.config)),
            Ok(Err(_)) => Err(self.over()),
            Ok(Ok(())) => Ok(()),
        }
    }

    /// Sends what is queued, then a close; returns when the link is over, at the latest after the write deadline
    /// and two seconds. Codes from 4000 are ours.
    pub async fn close(&self, code: u16, reason: &str) {
        let close = Out::Close { code, reason: reason.to_owned(), abrupt: false };
        let ended = async {
            if self.queue.send(close).await.is_ok() {
                self.queue.closed().await;
            }
        };
        let _ = timeout(self.config.write_deadline + LINGER, ended).await;
    }

    /// Why nothing can be sent any more.
    fn over(&self) -> WsError {
        self.write_error.get().cloned().unwrap_or_else(|| WsError::Lost { reason: "the link is over".into() })
    }

    fn check(&self, message: Bytes) -> Result<Bytes, WsError> {
        let (got, max) = (message.len(), self.config.message_bytes_max);
        if got > max { Err(WsError::TooLarge { got, max }) } else { Ok(message) }
    }
}

/// Room for one message; dropped, it is free again.
pub struct WsPlace<'a> {
    sender: &'a WsSender,
    place: mpsc::Permit<'a, Out>,
}

impl WsPlace<'_> {
    /// Queues a binary message at once.
    ///
    /// # Errors
    /// [`WsError::TooLarge`] without sending.
    pub fn send(self, message: impl Into<Bytes>) -> Result<(), WsError> {
        let message = self.sender.check(message.into())?;
        self.put(message);
        Ok(())
    }

    fn put(self, message: Bytes) {
        self.place.send(Out::Data(message));
    }
}

/// Writes what the queues hold, control first, until a close, an error, or until both halves are gone.
pub(super) async fn run(shared: Arc<Shared>, mut data: mpsc::Receiver<Out>, mut control: mpsc::Receiver<Out>) {
    let (mut data_open, mut control_open) = (true, true);
    loop {
        let out = tokio::select! {
            biased;
            out = control.recv(), if control_open => { control_open = out.is_some(); out }
            out = data.recv(), if data_open => { data_open = out.is_some(); out }
            else => break,
        };
        let sent = match out {
            None => Ok(()),
            Some(Out::Data(bytes)) => shared.write(Message::Binary(bytes)).await,
            Some(Out::Ping) => shared.write(Message::Ping(Bytes::new())).await,
            Some(Out::Close { code, reason, abrupt }) => {
                shared.close(code, reason, abrupt).await;
                return;
            }
        };
        if let Err(error) = sent {
            let _ = shared.write_error.set(error);
            return;
        }
    }
    // Both halves are gone: nobody reads any more.
    shared.close(1001, String::new(), true).await;
}

impl Shared {
    /// Hands a message to the socket and waits until the kernel has it.
    async fn write(&self, message: Message) -> Result<(), WsError> {
        let write = async {
            poll_fn(|cx| self.lock().poll_ready_unpin(cx)).await?;
            self.lock().start_send_unpin(message)?;
            poll_fn(|cx| self.lock().poll_flush_unpin(cx)).await
        };
        match timeout(self.config.write_deadline, write).await {
            Err(_) => Err(stuck(&self.config)),
            Ok(Err(error)) => Err(WsError::Lost { reason: error.to_string() }),
            Ok(Ok(())) => Ok(()),
        }
    }

    /// Sends a close and sees to it that it arrives: a socket dropped with unread bytes resets the connection, and
    /// the peer would lose what was said last.
    async fn close(&self, code: u16, mut reason: String, abrupt: bool) {
        while reason.len() > REASON_BYTES_MAX {
            reason.pop();
        }
        let frame = CloseFrame { code: code.into(), reason: reason.into() };
        // The peer may have closed first: then this fails, and the flush sends the answer that is due.
        if let Err(WsError::Stuck { .. }) = self.write(Message::Close(Some(frame))).await {
            return;
        }
        let end = async {
            if !abrupt {
                poll_fn(|cx| match self.lock().poll_next_unpin(cx) {
                    Poll::Ready(Some(Ok(_))) => {
                        cx.waker().wake_by_ref();
                        Poll::Pending
                    }
                    Poll::Ready(_) => Poll::Ready(()),
                    Poll::Pending => Poll::Pending,
                })
                .await;
            }
            let _ = poll_fn(|cx| Pin::new(self.lock().get_mut()).poll_shutdown(cx)).await;
            if abrupt {
                self.discard().await;
            }
        };
        let _ = timeout(LINGER, end).await;
    }

    async fn discard(&self) {
        let mut scratch = vec![0u8; 16 * 1024];
        let mut discarded = 0;
        while discarded < DISCARD_BYTES_MAX {
            let read = poll_fn(|cx| {
                let mut buffer = ReadBuf::new(&mut scratch);
                Pin::new(self.lock().get_mut())
                    .poll_read(cx, &mut buffer)
                    .map(|done| done.map(|()| buffer.filled().len()).unwrap_or(0))
            })
            .await;
            if read == 0 {
                return;
            }
            discarded += read;
        }
    }
}
