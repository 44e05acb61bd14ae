//! A worker's connection written by hand: from any address of this machine, with any bytes as its WebSocket frames.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use kvasir::net::tls::wrap_client;
use kvasir::wire::Frame;
use kvasir::wire::control::{Control, Refuse};
use kvasir::wire::frame::Kind;
use kvasir::wire::handshake::{AuthSigner, WorkerSession};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::gateway::harness::{TestGateway, Tls, UPGRADE};
use crate::hub::world::{HOST, World, soon};

/// A TCP connection to `to` from `from`, which may be any address of 127.0.0.0/8.
pub async fn tcp_from(from: Ipv4Addr, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(IpAddr::V4(from), 0)).unwrap();
    socket.connect(to).await.unwrap()
}

/// A link that was upgraded by hand.
pub struct Raw {
    pub tls: Tls,
}

impl Raw {
    /// Dials the gateway from `from` and upgrades.
    pub async fn dial(gateway: &TestGateway, from: Ipv4Addr) -> Self {
        let tcp = tcp_from(from, gateway.addr).await;
        let mut tls = wrap_client(Arc::clone(&gateway.client), "localhost", tcp).await.unwrap();
        tls.write_all(format!("{UPGRADE}\r\n").as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(soon(tls.read_u8()).await.unwrap());
        }
        assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
        Self { tls }
    }

    /// Sends one WebSocket frame: its first byte, then `payload` under a mask of zeros.
    pub async fn send(&mut self, first: u8, payload: &[u8]) {
        let mut bytes = vec![first];
        match payload.len() {
            short @ 0..=125 => bytes.push(0x80 | short as u8),
            middle @ 126..=0xffff => {
                bytes.push(0x80 | 126);
                bytes.extend((middle as u16).to_be_bytes());
            }
            long => {
                bytes.push(0x80 | 127);
                bytes.extend((long as u64).to_be_bytes());
            }
        }
        bytes.extend([0; 4]);
        bytes.extend(payload);
        self.tls.write_all(&bytes).await.unwrap();
        self.tls.flush().await.unwrap();
    }

    /// Sends a binary message in so many fragments, a ping after each.
    pub async fn send_in(&mut self, message: &[u8], fragments: usize) {
        let each = message.len().div_ceil(fragments).max(1);
        let last = message.chunks(each).count() - 1;
        for (n, piece) in message.chunks(each).enumerate() {
            let opcode = if n == 0 { 2 } else { 0 };
            self.send(opcode | if n == last { 0x80 } else { 0 }, piece).await;
            self.send(0x89, b"still here").await;
        }
    }

    /// The next frame: opcode and payload; `None` at the end of the stream or when it was reset.
    pub async fn next(&mut self) -> Option<(u8, Vec<u8>)> {
        soon(async {
            let first = self.tls.read_u8().await.ok()?;
            let length = match self.tls.read_u8().await.ok()? {
                126 => self.tls.read_u16().await.ok()?.into(),
                127 => self.tls.read_u64().await.ok()? as usize,
                short => usize::from(short),
            };
            let mut payload = vec![0; length];
            self.tls.read_exact(&mut payload).await.ok()?;
            Some((first & 15, payload))
        })
        .await
    }

    /// The next binary message.
    pub async fn message(&mut self) -> Option<Vec<u8>> {
        loop {
            match self.next().await? {
                (2, payload) => return Some(payload),
                (8, _) => return None,
                _ => {}
            }
        }
    }

    /// Reads to the end: the code of the close that came, if one did.
    pub async fn closed(&mut self) -> Option<u16> {
        let mut code = None;
        while let Some((opcode, payload)) = self.next().await {
            if opcode == 8 {
                code = payload.first_chunk().map(|bytes| u16::from_be_bytes(*bytes));
            }
        }
        code
    }

    /// The hub's hello.
    pub async fn hello(&mut self) -> Frame {
        Frame::decode(self.message().await.expect("a hello").into()).expect("a frame")
    }

    /// Why the hub refuses.
    pub async fn refused(&mut self) -> String {
        let frame = Frame::decode(self.message().await.expect("a refusal").into()).expect("a frame");
        Refuse::read(&frame).expect("a refusal").reason
    }

    /// Joins as `wallet`, the answer in so many fragments.
    pub async fn join(&mut self, world: &World, wallet: &dyn AuthSigner, fragments: usize) -> WorkerSession {
        let mut shake = world.shake(1, HOST);
        let auth = shake.answer(&self.hello().await, wallet, 0).expect("a good hello");
        self.send_in(&auth.encode(), fragments).await;
        let welcome = Frame::decode(self.message().await.expect("a welcome").into()).expect("a frame");
        assert_eq!(welcome.header.kind, Kind::Welcome);
        shake.welcomed(&welcome).expect("a good welcome")
    }
}
