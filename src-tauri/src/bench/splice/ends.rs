//! The two ends of what `bench splice` measures: a WebSocket client over TLS, and a hub that answers on a thread of its own.
//!
//! After a proper upgrade both speak whole WebSocket frames that were made beforehand, so that a figure is of what lies
//! between them and not of masking. The client's first frame is an order: how the hub is to behave on this connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustls::{ClientConfig, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::client::TlsStream;

use super::SpliceBenchError;
use crate::net::head::{Upgrade, read_head, read_response};
use crate::net::{Io, tcp, tls};
use crate::shutdown::{self, Shutdown, ShutdownTrigger};
use crate::wire::WORKER_PATH;

/// The name in the certificates.
pub const HOST: &str = "localhost";
/// For a connection and its upgrade, and for any one message.
const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes read or written at once by either end.
const CHUNK_BYTES: usize = 256 * 1024;
/// Most messages that an order may ask for.
const MESSAGES_MAX: u32 = 1 << 20;
/// Largest message that an order may name.
const MESSAGE_BYTES_MAX: u32 = 4 << 20;
/// FIN and "binary"; FIN and "ping"; FIN and "pong".
const BINARY: u8 = 0x82;
const PING: u8 = 0x89;
const PONG: u8 = 0x8a;
/// An order: a masked binary frame of nine bytes under a mask of zeros.
const ORDER_HEAD: [u8; 6] = [BINARY, 0x80 | 9, 0, 0, 0, 0];

/// What a hub does on a connection, for messages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Answers each message with one of the same size.
    Echo,
    /// Takes all of them, then answers with an empty one.
    Take,
    /// Sends all of them.
    Give,
}

/// A frame of zeros as a client (masked, with a mask of zeros) or a server sends it.
fn frame(payload_bytes: usize, masked: bool) -> Vec<u8> {
    let mask_bit = if masked { 0x80 } else { 0 };
    let mut frame = vec![BINARY];
    match (u8::try_from(payload_bytes), u16::try_from(payload_bytes)) {
        (Ok(short @ 0..=125), _) => frame.push(mask_bit | short),
        (_, Ok(middle)) => {
            frame.push(mask_bit | 126);
            frame.extend(middle.to_be_bytes());
        }
        _ => {
            frame.push(mask_bit | 127);
            frame.extend((payload_bytes as u64).to_be_bytes());
        }
    }
    let head = frame.len() + if masked { 4 } else { 0 };
    frame.resize(head + payload_bytes, 0);
    frame
}

/// Reads `left` bytes and drops them.
async fn drain(stream: &mut (impl AsyncReadExt + Unpin), mut left: usize, buffer: &mut [u8]) -> std::io::Result<()> {
    while left > 0 {
        let most = left.min(buffer.len());
        match stream.read(buffer.get_mut(..most).unwrap_or_default()).await? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            got => left -= got,
        }
    }
    Ok(())
}

/// A running hub; it stops when dropped.
pub struct Hub {
    /// Where proxies reach it, in the clear.
    pub plain: SocketAddr,
    /// Where it is reached without a proxy, over TLS.
    pub secure: SocketAddr,
    stop: Option<ShutdownTrigger>,
    thread: Option<JoinHandle<()>>,
}

impl Hub {
    /// Starts a hub on a thread of its own.
    ///
    /// # Errors
    /// No port or no thread.
    pub fn start(server: Arc<ServerConfig>) -> Result<Self, SpliceBenchError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let bind = || TcpListener::bind("127.0.0.1:0");
        let (open, closed) = runtime.block_on(async { Ok::<_, std::io::Error>((bind().await?, bind().await?)) })?;
        let (plain, secure) = (open.local_addr()?, closed.local_addr()?);
        let (stop, shutdown) = shutdown::channel();
        let acceptor = TlsAcceptor::from(server);
        let serve = move || runtime.block_on(hub(open, closed, acceptor, shutdown));
        let thread = std::thread::Builder::new().name("bench-hub".into()).spawn(serve)?;
        Ok(Self { plain, secure, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

async fn hub(open: TcpListener, closed: TcpListener, acceptor: TlsAcceptor, shutdown: Shutdown) {
    let mut connections = JoinSet::new();
    loop {
        let (tcp, secure) = tokio::select! {
            () = shutdown.wait() => return,
            Some(_ended) = connections.join_next() => continue,
            Ok((tcp, _)) = open.accept() => (tcp, false),
            Ok((tcp, _)) = closed.accept() => (tcp, true),
        };
        tcp::tune(&tcp);
        let acceptor = acceptor.clone();
        connections.spawn(async move {
            let stream: Io = if secure { Box::new(acceptor.accept(tcp).await?) } else { Box::new(tcp) };
            answer(stream).await
        });
    }
}

/// One connection: anything but an upgrade is closed, as a gateway's polls are.
async fn answer(mut stream: Io) -> std::io::Result<()> {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let Ok(received) = read_head(&mut stream, deadline).await else { return Ok(()) };
    let Ok(upgrade) = Upgrade::check(&received, WORKER_PATH) else { return Ok(()) };
    let accept = upgrade.accept_key();
    let head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n";
    stream.write_all(format!("{head}Sec-WebSocket-Accept: {accept}\r\n\r\n").as_bytes()).await?;
    stream.flush().await?;
    loop {
        let mut head = ORDER_HEAD;
        stream.read_exact(&mut head).await?;
        if head[0] == PING {
            stream.write_all(&[PONG, 0]).await?;
            stream.flush().await?;
            continue;
        }
        let (mode, size, count) = (stream.read_u8().await?, stream.read_u32().await?, stream.read_u32().await?);
        if size > MESSAGE_BYTES_MAX || count > MESSAGES_MAX {
            return Err(std::io::ErrorKind::InvalidData.into());
        }
        obey(&mut stream, mode, size as usize, count as usize).await?;
    }
}

async fn obey(stream: &mut Io, mode: u8, size: usize, count: usize) -> std::io::Result<()> {
    let (theirs, ours) = (frame(size, true).len(), frame(size, false));
    let mut buffer = vec![0; CHUNK_BYTES];
    if mode == Order::Take as u8 {
        drain(stream, theirs * count, &mut buffer).await?;
        stream.write_all(&frame(0, false)).await?;
        return stream.flush().await;
    }
    for _ in 0..count {
        if mode == Order::Echo as u8 {
            drain(stream, theirs, &mut buffer).await?;
        }
        stream.write_all(&ours).await?;
        stream.flush().await?;
    }
    Ok(())
}

/// An upgraded connection.
pub struct Client {
    stream: TlsStream<TcpStream>,
    buffer: Vec<u8>,
}

impl Client {
    /// Connects to `addr`, checks its certificate, and upgrades.
    ///
    /// # Errors
    /// Whatever stands between it and the hub.
    pub async fn connect(addr: SocketAddr, trust: Arc<ClientConfig>) -> Result<Self, SpliceBenchError> {
        let connecting = async {
            let tcp = TcpStream::connect(addr).await?;
            tcp::tune(&tcp);
            let mut stream = tls::wrap_client(trust, HOST, tcp).await?;
            let key = "dGhlIHNhbXBsZSBub25jZQ==";
            let request = format!(
                "GET {WORKER_PATH} HTTP/1.1\r\nHost: {HOST}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                 Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
            );
            stream.write_all(request.as_bytes()).await?;
            stream.flush().await?;
            let answer = read_response(&mut stream, tokio::time::Instant::now() + PATIENCE).await?;
            match answer.head.status {
                101 => Ok(Self { stream, buffer: Vec::new() }),
                got => Err(SpliceBenchError::Status { got }),
            }
        };
        timeout(PATIENCE, connecting).await.map_err(|_| SpliceBenchError::Late("an upgrade"))?
    }

    async fn order(&mut self, order: Order, size: u32, count: u32) -> std::io::Result<()> {
        let mut message = ORDER_HEAD.to_vec();
        message.push(order as u8);
        message.extend(size.to_be_bytes());
        message.extend(count.to_be_bytes());
        self.stream.write_all(&message).await?;
        self.stream.flush().await
    }

    /// The time of each of `count` round trips of one message.
    ///
    /// # Errors
    /// A connection that breaks, or stands still for long.
    pub async fn pings(&mut self, size: u32, count: u32) -> Result<Vec<Duration>, SpliceBenchError> {
        self.buffer.resize(CHUNK_BYTES, 0);
        self.order(Order::Echo, size, count).await?;
        let (ours, theirs) = (frame(size as usize, true), frame(size as usize, false).len());
        let mut times = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let start = Instant::now();
            let trip = async {
                self.stream.write_all(&ours).await?;
                self.stream.flush().await?;
                drain(&mut self.stream, theirs, &mut self.buffer).await
            };
            timeout(PATIENCE, trip).await.map_err(|_| SpliceBenchError::Late("a message"))??;
            times.push(start.elapsed());
        }
        Ok(times)
    }

    /// Bytes of payload a second, to the hub (`Take`) or from it (`Give`).
    ///
    /// # Errors
    /// As [`Client::pings`].
    pub async fn bytes_per_s(&mut self, order: Order, size: u32, count: u32) -> Result<f64, SpliceBenchError> {
        self.buffer.resize(CHUNK_BYTES, 0);
        self.order(order, size, count).await?;
        let start = Instant::now();
        let moved = async {
            if order == Order::Take {
                let ours = frame(size as usize, true);
                for _ in 0..count {
                    self.stream.write_all(&ours).await?;
                }
                self.stream.flush().await?;
                drain(&mut self.stream, frame(0, false).len(), &mut self.buffer).await
            } else {
                let all = frame(size as usize, false).len() * count as usize;
                drain(&mut self.stream, all, &mut self.buffer).await
            }
        };
        timeout(PATIENCE * 3, moved).await.map_err(|_| SpliceBenchError::Late("a transfer"))??;
        Ok(f64::from(size) * f64::from(count) / start.elapsed().as_secs_f64())
    }

    /// One WebSocket ping and its pong.
    ///
    /// # Errors
    /// As [`Client::pings`].
    pub async fn ping(&mut self) -> Result<(), SpliceBenchError> {
        let exchange = async {
            self.stream.write_all(&[PING, 0x80, 0, 0, 0, 0]).await?;
            self.stream.flush().await?;
            self.stream.read_exact(&mut [0; 2]).await
        };
        timeout(PATIENCE, exchange).await.map_err(|_| SpliceBenchError::Late("a pong"))??;
        Ok(())
    }
}
