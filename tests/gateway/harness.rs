//! A small hub of raw TCP, a gateway in front of it, and a TLS client.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use kvasir::gateway::{GatewayConfig, HubEndpoint, Listeners, serve};
use kvasir::ledger::{Ledger, Meter};
use kvasir::net::tls::{TrialCertificates, client_config_from_pem, server_config_from_pem, wrap_client};
use kvasir::shutdown::{self, ShutdownTrigger};
use kvasir::types::{Hex, PublicKey};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

pub(crate) type Tls = tokio_rustls::client::TlsStream<TcpStream>;

pub(crate) const HUB: PublicKey = PublicKey([9; 32]);
pub(crate) const WALLET: PublicKey = PublicKey([7; 32]);
pub(crate) const UPGRADE: &str = "GET /v1/worker HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                       Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n";
pub(crate) const SWITCHING: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                         Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
/// Long enough for a busy machine, short enough to fail a test rather than hang it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A hub: answers polls from a ledger of its own and hands every upgrade to the test.
pub(crate) struct TestHub {
    pub(crate) addr: SocketAddr,
    key: PublicKey,
    pub(crate) meters: Ledger,
    pub(crate) upgrades: mpsc::Receiver<(String, TcpStream)>,
    serving: JoinHandle<()>,
}

impl TestHub {
    pub(crate) async fn start() -> Self {
        Self::start_on(TcpListener::bind("127.0.0.1:0").await.unwrap(), HUB).await
    }

    /// The hub of a key on a listener of the test's.
    pub(crate) async fn start_on(listener: TcpListener, key: PublicKey) -> Self {
        let addr = listener.local_addr().unwrap();
        let meters = Ledger::open("sqlite::memory:").await.unwrap();
        let (sender, upgrades) = mpsc::channel(16);
        let book = meters.clone();
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(Self::answer(stream, key, book.clone(), sender.clone()));
            }
        });
        Self { addr, key, meters, upgrades, serving }
    }

    /// Nobody listens any more.
    pub(crate) async fn stop(self) {
        self.serving.abort();
        let _ = self.serving.await;
    }

    async fn answer(mut stream: TcpStream, key: PublicKey, book: Ledger, sender: mpsc::Sender<(String, TcpStream)>) {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            match stream.read_u8().await {
                Ok(byte) => head.push(char::from(byte)),
                Err(_) => return,
            }
        }
        let target = head.split(' ').nth(1).unwrap().to_owned();
        let body = if let Some(query) = target.strip_prefix("/v1/meters?after=") {
            let (after, limit) = query.split_once("&limit=").unwrap();
            let page = book.meter_page(key, after.parse().unwrap(), None, limit.parse().unwrap()).await.unwrap();
            serde_json::to_string(&page).unwrap()
        } else if target == "/status" {
            json!({ "backbone_reachable": true, "sessions": 1 }).to_string()
        } else {
            return sender.send((head, stream)).await.unwrap();
        };
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
        stream.write_all((head + &body).as_bytes()).await.unwrap();
    }

    /// The next upgrade that reaches the hub.
    pub(crate) async fn upgrade(&mut self) -> (String, TcpStream) {
        timeout(PATIENCE, self.upgrades.recv()).await.unwrap().unwrap()
    }

    pub(crate) async fn put(&self, work_bytes: u64) {
        self.put_of(1, work_bytes).await;
    }

    /// A session of that number has come to so much.
    pub(crate) async fn put_of(&self, session: u8, work_bytes: u64) {
        let meter = Meter {
            hub: self.key,
            session: Hex([session; 16]),
            wallet: WALLET,
            epoch: 1,
            assignments: work_bytes / 12_288,
            work_bytes,
            voided_bytes: 0,
            raw_bytes: 0,
            change_seq: 0,
            r#final: false,
        };
        assert_eq!(self.meters.put_meters(&[meter]).await.unwrap().refused, []);
    }
}

pub(crate) struct TestGateway {
    pub(crate) addr: SocketAddr,
    /// The operator's listener.
    pub(crate) admin: SocketAddr,
    pub(crate) client: Arc<rustls::ClientConfig>,
    pub(crate) ca_pem: String,
    pub(crate) trigger: ShutdownTrigger,
    pub(crate) task: JoinHandle<()>,
}

impl TestGateway {
    pub(crate) async fn start(hub: SocketAddr, ledger: &Ledger, change: impl FnOnce(&mut GatewayConfig)) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::start_on(listener, vec![hub], ledger, change).await
    }

    /// A gateway of some hubs on a listener of the test's.
    pub(crate) async fn start_on(
        listener: TcpListener,
        hubs: Vec<SocketAddr>,
        ledger: &Ledger,
        change: impl FnOnce(&mut GatewayConfig),
    ) -> Self {
        let certificates = TrialCertificates::generate(&["localhost"]).unwrap();
        let client = client_config_from_pem(&certificates.ca_pem).unwrap();
        let tls = server_config_from_pem(&certificates.cert_pem, &certificates.key_pem).unwrap();
        let mut config = GatewayConfig::new(tls, hubs.into_iter().map(|addr| HubEndpoint { addr }).collect());
        config.poll_interval = Duration::from_millis(20);
        // Tests ask again without a pause.
        config.limits.handshakes_per_peer_minute = 1_000_000;
        change(&mut config);
        let addr = listener.local_addr().unwrap();
        let operators = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let admin = operators.local_addr().unwrap();
        let (trigger, shutdown) = shutdown::channel();
        let listeners = Listeners { public: listener, admin: Some(operators) };
        let task = tokio::spawn(serve(listeners, config, ledger.clone(), shutdown));
        Self { addr, admin, client, ca_pem: certificates.ca_pem, trigger, task }
    }

    pub(crate) async fn dial(&self) -> Tls {
        let tcp = TcpStream::connect(self.addr).await.unwrap();
        wrap_client(Arc::clone(&self.client), "localhost", tcp).await.unwrap()
    }

    /// Sends bytes and reads the answer's status and body until the end of the connection.
    pub(crate) async fn exchange(&self, request: &str) -> (u16, String) {
        let mut stream = self.dial().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let read = timeout(PATIENCE, stream.read_to_end(&mut answer)).await.unwrap();
        read.unwrap_or_else(|error| panic!("{request:?}: {error}"));
        let answer = String::from_utf8(answer).unwrap();
        parse(&answer).unwrap_or_else(|| panic!("no answer to {request:?}"))
    }

    /// What the operator is told.
    pub(crate) async fn admin(&self, target: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.admin).await.unwrap();
        stream.write_all(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        timeout(PATIENCE, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
        parse(&answer).unwrap()
    }

    pub(crate) async fn get(&self, target: &str) -> (u16, Value) {
        let (status, body) = self.exchange(&format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n")).await;
        (status, serde_json::from_str(&body).unwrap())
    }

    /// Asks for a target until its answer fits.
    pub(crate) async fn get_until(&self, target: &str, fits: impl Fn(&Value) -> bool) -> Value {
        let wait = async {
            loop {
                let (_, body) = self.get(target).await;
                if fits(&body) {
                    return body;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("{target} never fitted"))
    }

    pub(crate) async fn stop(self) {
        self.trigger.fire();
        timeout(PATIENCE, self.task).await.unwrap().unwrap();
    }
}

/// An answer's status and body.
fn parse(answer: &str) -> Option<(u16, String)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

/// A gateway with a hub that lives as long as the test.
pub(crate) async fn pair(change: impl FnOnce(&mut GatewayConfig)) -> (TestHub, TestGateway, Ledger) {
    let hub = TestHub::start().await;
    let ledger = Ledger::open("sqlite::memory:").await.unwrap();
    let gateway = TestGateway::start(hub.addr, &ledger, change).await;
    (hub, gateway, ledger)
}

/// A worker's and a hub's end of a splice.
pub(crate) async fn spliced(hub: &mut TestHub, gateway: &TestGateway) -> (Tls, TcpStream) {
    let mut worker = gateway.dial().await;
    worker.write_all(format!("{UPGRADE}\r\n").as_bytes()).await.unwrap();
    let (_, mut stream) = hub.upgrade().await;
    stream.write_all(SWITCHING.as_bytes()).await.unwrap();
    let mut answer = vec![0; SWITCHING.len()];
    worker.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, SWITCHING.as_bytes());
    (worker, stream)
}
