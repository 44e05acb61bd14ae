//! Senders of one link that wait for room, and a peer that reads when it is told to.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;
use zeroize::Zeroizing;

use super::*;
use crate::net::ws::{WsConfig, WsStream};
use crate::types::{Hex, PublicKey, WorkerId};
use crate::wire::Kind;
use crate::wire::frame::Header;
use crate::wire::handshake::{
    AuthMessage, AuthSigner, HubHandshake, HubIdentity, HubRandom, HubTerms, Limits, Open, WorkerHandshake,
    WorkerRandom,
};
use crate::wire::signature::KeyPair;

const WITHIN: Duration = Duration::from_secs(5);

struct Wallet(ed25519_dalek::SigningKey);

impl AuthSigner for Wallet {
    fn address(&self) -> PublicKey {
        PublicKey(self.0.verifying_key().to_bytes())
    }

    fn sign_auth(&self, message: &AuthMessage) -> [u8; 64] {
        ed25519_dalek::Signer::sign(&self.0, message.as_bytes()).to_bytes()
    }
}

/// A worker's seal and the hub's open of one handshake.
fn keys() -> (Seal, Open) {
    let operator = KeyPair::from_seed(&[1; 32]);
    let identity = HubIdentity::issued_by(&operator, KeyPair::from_seed(&[2; 32]), u64::MAX);
    let terms = HubTerms { hub_epoch: 1, manifest: Hex([3; 32]), limits: Limits::default(), invite_only: false };
    let random = HubRandom { session_id: [4; 16], nonce: [5; 32], x25519: Zeroizing::new([6; 32]) };
    let (hub, hello) = HubHandshake::hello(&identity, &terms, random, Duration::ZERO).unwrap();
    let random = WorkerRandom { nonce: [7; 32], x25519: Zeroizing::new([8; 32]), session_seed: [9; 32].into() };
    let id: WorkerId = Hex([10; 16]);
    let mut worker = WorkerHandshake::new(vec![operator.public()], "hub.example", id, "test", random);
    let wallet = Wallet(ed25519_dalek::SigningKey::from_bytes(&[11; 32]));
    let answer = worker.answer(&hello, &wallet, 0).unwrap();
    let (welcome, at_hub) = hub.accept(&answer, &["hub.example".into()], Duration::ZERO).unwrap();
    (worker.welcomed(&welcome).unwrap().seal, at_hub.open)
}

pub type Peer = WebSocketStream<tokio::io::DuplexStream>;

/// A link with room for two messages, and its peer, which reads when it is told to.
pub async fn narrow() -> (Arc<Link>, Peer, Open) {
    let (near, mut far) = tokio::io::duplex(1024);
    let config = WsConfig { queue: 2, ..WsConfig::worker() };
    let socket = WsStream::accept(Box::new(near), "a key", Vec::new(), config).await.unwrap();
    // The answer to an upgrade that nobody sent.
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(tokio::io::AsyncReadExt::read_u8(&mut far).await.unwrap());
    }
    let peer = WebSocketStream::from_raw_socket(far, Role::Client, None).await;
    let (seal, open) = keys();
    let (sender, receiver) = socket.split();
    // The receiving half stays, or the link would be over.
    tokio::spawn(async move {
        let _receiver = receiver;
        std::future::pending::<()>().await;
    });
    (Arc::new(Link::new(seal, sender)), peer, open)
}

/// The next frame at the peer; its tag must hold.
pub async fn read(peer: &mut Peer, open: &mut Open) -> Frame {
    match timeout(WITHIN, peer.next()).await.unwrap().unwrap().unwrap() {
        Message::Binary(bytes) => open.open(bytes).unwrap(),
        other => panic!("expected a frame, got {other:?}"),
    }
}

fn frame(request: u64) -> Frame {
    Frame::new(Header { request, ..Header::control(Kind::Decline) }, vec![0; 2048]).unwrap()
}

#[tokio::test]
async fn a_sender_that_is_dropped_or_not_polled_holds_nobody_up() {
    let (link, mut peer, mut open) = narrow().await;
    let mut queued = 0;
    while timeout(Duration::from_millis(50), link.send(&frame(queued))).await.is_ok() {
        queued += 1;
    }
    let (lost, left, own) = (frame(100), frame(101), frame(102));
    let mut lost = Box::pin(link.send(&lost));
    let mut left = Box::pin(link.send(&left));
    assert!(lost.as_mut().now_or_never().is_none() && left.as_mut().now_or_never().is_none());
    drop(lost);
    let sending = timeout(WITHIN, link.send(&own));
    let reading = async {
        for request in 0..queued {
            assert_eq!(read(&mut peer, &mut open).await.header.request, request);
        }
    };
    let (sent, ()) = tokio::join!(sending, reading);
    sent.expect("a sender that nobody polls does not keep the others from sending").unwrap();
    assert_eq!(read(&mut peer, &mut open).await.header.request, 102);
    left.await.unwrap();
    assert_eq!(read(&mut peer, &mut open).await.header.request, 101);
}
