//! WebSocket: one binary message is one frame of ours, at both ends of the public leg.
//!
//! [`WsStream::connect`] dials, [`WsStream::accept`] answers a request head that was already read. [`WsStream::split`]
//! gives two halves for two tasks; a small writer task sits behind the bounded queue of the sending half, so that
//! pings and closes never wait for more than one message.
//! **Promises:** a message over the limit is never held in memory and is answered with close 1009 and both sizes;
//! any received byte counts as life; a peer that takes or sends nothing for too long is given up.

mod connect;
mod inbound;
mod liveness;
mod writer;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use super::Io;
use crate::wire::frame::MESSAGE_BYTES_MAX;
use inbound::Counted;

pub use inbound::WsReceiver;
pub use liveness::Ping;
pub use writer::{WsPlace, WsSender};

/// Limits and timers of a WebSocket.
#[derive(Clone, Copy, Debug)]
pub struct WsConfig {
    /// Largest message in either direction.
    pub message_bytes_max: usize,
    /// Messages that may wait for the writer.
    pub queue: usize,
    /// How long the peer may take to accept one message, and a sender may wait for room in the queue.
    pub write_deadline: Duration,
    /// How a silent peer is noticed.
    pub ping: Ping,
}

impl WsConfig {
    /// As the worker's link uses it: pings every 20 s ± 20 %.
    #[must_use]
    pub fn worker() -> Self {
        Self {
            message_bytes_max: MESSAGE_BYTES_MAX,
            queue: 32,
            write_deadline: Duration::from_secs(10),
            ping: Ping::worker(),
        }
    }

    /// As the hub uses it: pings after 30 s without bytes.
    #[must_use]
    pub fn hub() -> Self {
        Self { ping: Ping::hub(), ..Self::worker() }
    }
}

/// Why a WebSocket is over.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum WsError {
    /// The peer closed with a code that means trouble.
    #[error("peer closed with {code}: {reason}")]
    Closed {
        /// RFC 6455 code, or one of ours from 4000.
        code: u16,
        /// The peer's words, made plain.
        reason: String,
    },
    /// A message over the limit; the peer was told with close 1009.
    #[error("{}", too_large(*got, *max))]
    TooLarge {
        /// Its size, or what had come of it.
        got: usize,
        /// The bound.
        max: usize,
    },
    /// A text message.
    #[error("expected a binary message, got text")]
    Text,
    /// Nothing came for too long, pings notwithstanding.
    #[error("no byte from the peer for {silent_ms} ms ({strikes} pings)")]
    Silent {
        /// Since the last byte, at least.
        silent_ms: u64,
        /// Pings without an answer.
        strikes: u32,
    },
    /// The peer takes no bytes.
    #[error("peer took no message within {deadline_ms} ms")]
    Stuck {
        /// The bound.
        deadline_ms: u64,
    },
    /// No room in the queue.
    #[error("send queue of {max} messages is full")]
    Full {
        /// Its size.
        max: usize,
    },
    /// Bytes that are no WebSocket, or a connection that broke.
    #[error("connection lost: {reason}")]
    Lost {
        /// Why.
        reason: String,
    },
}

/// The words of both ends about a message that is too large.
fn too_large(got: usize, max: usize) -> String {
    format!("message of {got} bytes is over the limit of {max}")
}

/// A WebSocket, either end.
pub struct WsStream {
    sender: WsSender,
    receiver: WsReceiver,
}

/// What the two halves and the writer task share.
struct Shared {
    /// Locked for the length of one poll, never across an await.
    socket: Mutex<WebSocketStream<Counted>>,
    config: WsConfig,
    /// Why the writer gave up, if it did; set before its queue closes.
    write_error: Arc<OnceLock<WsError>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, WebSocketStream<Counted>> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WsStream {
    /// Answers an upgrade request whose head was read and checked: `key` is its `Sec-WebSocket-Key`, `beyond` what
    /// was read behind the head.
    ///
    /// # Errors
    /// [`WsError::Stuck`] or [`WsError::Lost`] when the answer cannot be written.
    pub async fn accept(mut stream: Io, key: &str, beyond: Vec<u8>, config: WsConfig) -> Result<Self, WsError> {
        let answer = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {}\r\n\r\n",
            derive_accept_key(key.as_bytes())
        );
        let write = async {
            stream.write_all(answer.as_bytes()).await?;
            stream.flush().await
        };
        match timeout(config.write_deadline, write).await {
            Err(_) => return Err(stuck(&config)),
            Ok(Err(error)) => return Err(WsError::Lost { reason: error.to_string() }),
            Ok(Ok(())) => {}
        }
        let counted = Counted::new(stream);
        let socket =
            WebSocketStream::from_partially_read(counted, beyond, Role::Server, Some(socket_config(&config))).await;
        Ok(Self::start(socket, config))
    }

    fn start(socket: WebSocketStream<Counted>, config: WsConfig) -> Self {
        let inbound = socket.get_ref().inbound();
        let write_error = Arc::new(OnceLock::new());
        let shared = Arc::new(Shared { socket: Mutex::new(socket), config, write_error: write_error.clone() });
        let (data, data_rx) = mpsc::channel(config.queue.max(1));
        let (control, control_rx) = mpsc::channel(4);
        tokio::spawn(writer::run(shared.clone(), data_rx, control_rx));
        let sender = WsSender::new(data, &config, write_error);
        let receiver = WsReceiver::new(shared, control, inbound);
        Self { sender, receiver }
    }

    /// The two halves.
    #[must_use]
    pub fn split(self) -> (WsSender, WsReceiver) {
        (self.sender, self.receiver)
    }

    /// See [`WsReceiver::recv`].
    ///
    /// # Errors
    /// [`WsError`].
    pub async fn recv(&mut self) -> Result<Option<Bytes>, WsError> {
        self.receiver.recv().await
    }

    /// See [`WsSender::send`].
    ///
    /// # Errors
    /// [`WsError`].
    pub async fn send(&self, message: impl Into<Bytes>) -> Result<(), WsError> {
        self.sender.send(message).await
    }

    /// See [`WsSender::close`].
    pub async fn close(&self, code: u16, reason: &str) {
        self.sender.close(code, reason).await;
    }
}

/// Bounds for the WebSocket crate; a small read buffer, because a hub holds many sessions.
fn socket_config(config: &WsConfig) -> WebSocketConfig {
    WebSocketConfig::default()
        .max_message_size(Some(config.message_bytes_max))
        .max_frame_size(Some(config.message_bytes_max))
        .read_buffer_size(16 * 1024)
        .max_write_buffer_size(2 * config.message_bytes_max + 128 * 1024 + 1)
}

fn stuck(config: &WsConfig) -> WsError {
    WsError::Stuck { deadline_ms: u64::try_from(config.write_deadline.as_millis()).unwrap_or(u64::MAX) }
}
