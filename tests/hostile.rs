//! Strangers who mean harm, against a real gateway and a real hub over TLS. Whatever they do ends their own connection;
//! nobody else notices, and nothing of theirs is left behind. What hostile heads get is among the gateway's tests.

mod flood;
mod frames;
mod proofs;
mod raw;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use kvasir::hub::{HubLimits, HubTiming};
use kvasir::ledger::Ledger;
use kvasir::net::dial::Connector;
use kvasir::net::ws::{WsConfig, WsStream};
use kvasir::wire::control::{Control, SessionOpen};
use kvasir::wire::handshake::WorkerSession;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Mutex, mpsc};

use crate::gateway::harness::{TestGateway, UPGRADE};
use crate::hub::world::{BackboneEnd, HOST, Wallet, Worker, World, quick, soon};
use raw::{Raw, tcp_from};

/// Where the strangers of a test come from, one after the other.
fn stranger(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 1, n)
}

/// Greets the hub whenever it dials, and hands on the connections that become sessions.
async fn backbone(world: Arc<World>, sessions: mpsc::Sender<BackboneEnd>) {
    while let Ok((stream, _)) = world.backbone.accept().await {
        let sessions = sessions.clone();
        tokio::spawn(async move {
            let mut end = World::greet(stream).await;
            if let Ok(Some(frame)) = end.reader.recv().await {
                end.open = Some(SessionOpen::read(&frame).expect("SessionOpen"));
                let _ = sessions.send(end).await;
            }
        });
    }
}

/// A hub with its backbone, and a gateway before it.
pub(crate) struct Public {
    pub world: Arc<World>,
    pub gateway: TestGateway,
    /// Ends of sessions that were opened; the hub's other connections to its backbone are hellos without a session.
    opened: Mutex<mpsc::Receiver<BackboneEnd>>,
}

impl Public {
    pub async fn start() -> Self {
        Self::start_with(quick()).await
    }

    pub async fn start_with(timing: HubTiming) -> Self {
        let world = Arc::new(World::start_with(timing, HubLimits::default()).await);
        let (sender, opened) = mpsc::channel(8);
        tokio::spawn(backbone(Arc::clone(&world), sender));
        let ledger = Ledger::open("sqlite::memory:").await.unwrap();
        let gateway = TestGateway::start(world.hub, &ledger, |config| {
            config.deadlines.half_closed = Duration::from_millis(200);
        })
        .await;
        Self { world, gateway, opened: Mutex::new(opened) }
    }

    /// The backbone's end of the next session.
    pub async fn opened(&self) -> BackboneEnd {
        soon(async { self.opened.lock().await.recv().await.expect("a session") }).await
    }

    /// An honest session through the gateway.
    pub async fn session(&self, wallet: u8) -> (Worker, BackboneEnd) {
        let url = format!("wss://localhost:{}/v1/worker", self.gateway.addr.port());
        let joining = async {
            let ws = WsStream::connect(&url, &Connector::direct(self.gateway.client.clone()), WsConfig::worker())
                .await
                .unwrap();
            self.world.join_on(ws, wallet, 1, HOST).await.expect("a session")
        };
        (joining.await, self.opened().await)
    }

    /// A hand-made session from `from`.
    async fn raw_session(&self, from: Ipv4Addr, wallet: u8, fragments: usize) -> (Raw, WorkerSession, BackboneEnd) {
        let mut raw = Raw::dial(&self.gateway, from).await;
        let session = raw.join(&self.world, &Wallet::new(wallet), fragments).await;
        (raw, session, self.opened().await)
    }

    /// Waits until the gateway splices so many.
    async fn splices(&self, wanted: u64) {
        self.gateway.get_until("/status", |status| status["splices_open"] == wanted).await;
    }
}

#[tokio::test]
async fn peers_that_close_one_half_leave_nothing_behind() {
    let public = Public::start().await;
    let (mut honest, mut backbone) = public.session(8).await;
    // In the middle of a head.
    let mut early = public.gateway.dial().await;
    early.write_all(UPGRADE.as_bytes()).await.unwrap();
    early.shutdown().await.unwrap();
    let mut rest = Vec::new();
    let _ = soon(early.read_to_end(&mut rest)).await;
    assert_eq!(rest, b"", "half a head has no answer");
    // After the upgrade, before the hello is answered.
    let mut fresh = Raw::dial(&public.gateway, stranger(1)).await;
    fresh.hello().await;
    fresh.tls.shutdown().await.unwrap();
    fresh.closed().await;
    // In a session, and never to close the other half.
    let (mut raw, _session, mut gone) = public.raw_session(stranger(2), 7, 1).await;
    raw.tls.shutdown().await.unwrap();
    gone.closed().await;
    public.splices(1).await;
    backbone.round(&mut honest, 1, 1).await;
    drop(raw);
}

#[tokio::test]
async fn who_upgrades_and_then_drips_is_ended_by_the_hubs_one_deadline() {
    let public = Public::start_with(HubTiming { handshake: Duration::from_millis(400), ..quick() }).await;
    let mut raw = Raw::dial(&public.gateway, stranger(1)).await;
    let hello = raw.hello().await;
    let auth = public.world.shake(1, HOST).answer(&hello, &Wallet::new(7), 0).expect("a good hello");
    // Byte by byte in fragments of a message that is never whole in time; each of them is a sign of life.
    for (n, byte) in auth.encode().iter().enumerate().take(20) {
        raw.send(if n == 0 { 2 } else { 0 }, &[*byte]).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(raw.refused().await, "unauthorised");
    public.splices(0).await;
}

#[tokio::test]
async fn requests_hidden_behind_a_public_one_are_not_served() {
    let public = Public::start().await;
    let head = "/healthz HTTP/1.1\r\nHost: localhost\r\n";
    let hidden = "GET /v1/meters?after=0&limit=1 HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for request in [
        format!("GET {head}\r\n{hidden}"),
        format!("GET {head}Content-Length: {}\r\n\r\n{hidden}", hidden.len()),
        format!("GET {head}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"),
        format!("GET {head}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"),
        format!("POST {head}Content-Length: 1\r\nContent-Length: 0\r\n\r\nx{hidden}"),
        format!("GET {head}Connection: keep-alive, Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n\r\n{hidden}"),
    ] {
        let mut stream = public.gateway.dial().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let _ = soon(stream.read_to_end(&mut answer)).await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.matches("HTTP/1.1 ").count() <= 1, "{request:?}: {answer}");
        assert!(!answer.contains("meters") && !answer.contains("last_change_seq"), "{request:?}: {answer}");
    }
}

#[tokio::test]
async fn an_address_without_patience_for_tls_is_no_burden() {
    let public = Public::start().await;
    // Neither TLS, nor whole, nor for us.
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0x16, 3, 1, 0xff, 0xff], &[0x16, 3, 1, 0, 0], &[0; 4096]] {
        let mut tcp = tcp_from(stranger(3), public.gateway.addr).await;
        tcp.write_all(bytes).await.unwrap();
        tcp.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let _ = soon(tcp.read_to_end(&mut answer)).await;
        assert!(answer.len() < 16, "an alert at most: {answer:?}");
    }
    let (mut honest, mut backbone) = public.session(8).await;
    backbone.round(&mut honest, 1, 1).await;
}
