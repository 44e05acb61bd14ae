//! A real hub on loopback between a test worker and a test backbone.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ed25519_dalek::{Signer, SigningKey};
use kvasir::hub::{self, HubConfig, HubError, HubLimits, HubTiming, ReceiptTiming};
use kvasir::ledger::{Ledger, Meter, MeterPage};
use kvasir::net::dial::{Connector, Outbound};
use kvasir::net::framed::{self, FramedReader, FramedWriter};
use kvasir::net::ws::{WsConfig, WsError, WsStream};
use kvasir::net::{Io, tcp};
use kvasir::shutdown::{self, ShutdownTrigger};
use kvasir::types::{Digest, Hex, PublicKey, SessionId, WorkerId};
use kvasir::wire::control::{BackboneHello, Control, Refuse, SessionClosed, SessionOpen, Verdict};
use kvasir::wire::frame::{Frame, HEADER_BYTES, Header, Kind};
use kvasir::wire::handshake::{AuthMessage, AuthSigner, HubIdentity, WorkerHandshake, WorkerRandom, WorkerSession};
use kvasir::wire::signature::KeyPair;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Elements of a hidden row in these tests.
pub const HIDDEN: u32 = 256;
pub const MANIFEST: Digest = Hex([0x5a; 32]);
pub const HOST: &str = "hub.test";
/// Longer than anything here takes; a test that reaches it has failed.
const PATIENCE: Duration = Duration::from_secs(20);

pub async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(PATIENCE, what).await.expect("nothing here takes this long")
}

pub struct World {
    pub hub: SocketAddr,
    pub hub_key: PublicKey,
    pub ledger: Ledger,
    pub backbone: TcpListener,
    pub config: HubConfig,
    /// The gateway's URL and what to trust, for workers that come through one.
    pub gateway: Option<(String, Arc<rustls::ClientConfig>)>,
    operator: KeyPair,
    stop: Option<ShutdownTrigger>,
    serving: Option<JoinHandle<Result<(), HubError>>>,
    dir: tempfile::TempDir,
}

/// Timers that make tests quick; nothing waits for them to be exact.
pub fn quick() -> HubTiming {
    HubTiming {
        receipts: ReceiptTiming { interval: Duration::from_millis(20), acknowledge: PATIENCE },
        flush: Duration::from_millis(20),
        afterwards: Duration::from_millis(200),
        ..HubTiming::default()
    }
}

impl World {
    pub async fn start() -> Self {
        Self::start_with(quick(), HubLimits::default()).await
    }

    pub async fn start_with(timing: HubTiming, limits: HubLimits) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let backbone = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let port = backbone.local_addr().expect("an address").port();
        let ledger = Ledger::open(&format!("sqlite:{}", dir.path().join("ledger").display())).await.expect("a ledger");
        let backbone_address = format!("127.0.0.1:{port}");
        let config = HubConfig {
            limits,
            timing,
            ..HubConfig::new(backbone_address, vec![HOST.into()], dir.path().join("quarantine"))
        };
        let mut world = Self {
            hub: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0),
            hub_key: KeyPair::from_seed(&[2; 32]).public(),
            ledger,
            backbone,
            config,
            gateway: None,
            operator: KeyPair::from_seed(&[1; 32]),
            stop: None,
            serving: None,
            dir,
        };
        world.start_hub().await;
        world
    }

    /// Starts the hub (again), on a new port.
    pub async fn start_hub(&mut self) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        self.hub = listener.local_addr().expect("an address");
        let identity = HubIdentity::issued_by(&self.operator, KeyPair::from_seed(&[2; 32]), u64::MAX);
        let (stop, shutdown) = shutdown::channel();
        let hub = hub::serve(listener, self.config.clone(), identity, self.ledger.clone(), shutdown);
        (self.stop, self.serving) = (Some(stop), Some(tokio::spawn(hub)));
    }

    /// Closes the ledger of a hub that has stopped: what a backup of it would hold.
    pub async fn closed_ledger(&self) -> Vec<u8> {
        self.ledger.close().await;
        std::fs::read(self.dir.path().join("ledger")).expect("a file")
    }

    /// Opens the ledger again, restored from a backup if there is one, and starts the hub on it.
    pub async fn reopen(&mut self, backup: Option<&[u8]>) {
        let path = self.dir.path().join("ledger");
        if let Some(backup) = backup {
            std::fs::write(&path, backup).expect("a file");
        }
        self.ledger = Ledger::open(&format!("sqlite:{}", path.display())).await.expect("a ledger");
        self.start_hub().await;
    }

    /// Asks the hub to stop; it drains.
    pub fn stop_hub(&self) {
        self.stop.as_ref().expect("a running hub").fire();
    }

    /// Waits until the hub has returned.
    pub async fn stopped(&mut self) -> Result<(), HubError> {
        soon(self.serving.take().expect("a running hub")).await.expect("no panic")
    }

    /// Dials the gateway, or the hub as a gateway's splice would.
    async fn dial(&self, config: WsConfig) -> WsStream {
        let (url, connector) = match self.gateway.clone() {
            Some((url, tls)) => (url, Connector::direct(tls)),
            None => {
                let connector = Connector::new(&Outbound::default()).expect("a connector");
                (format!("ws://{}/v1/worker", self.hub), connector)
            }
        };
        soon(WsStream::connect(&url, &connector, config)).await.expect("an upgrade")
    }

    /// Both ends of a session: worker `worker_id` of `wallet`, and its backbone connection.
    pub async fn session(&self, wallet: u8, worker_id: u8) -> (Worker, BackboneEnd) {
        self.session_with(wallet, worker_id, WsConfig::worker()).await
    }

    pub async fn session_with(&self, wallet: u8, worker_id: u8, config: WsConfig) -> (Worker, BackboneEnd) {
        let joining = async { self.join_as(wallet, worker_id, HOST, config).await.expect("a session") };
        let (worker, backbone) = tokio::join!(joining, self.accept_backbone());
        (worker, backbone.opened().await)
    }

    /// The worker's side of a handshake; the backbone must answer meanwhile.
    pub async fn join(&self, wallet: u8, worker_id: u8) -> Result<Worker, Refuse> {
        self.join_as(wallet, worker_id, HOST, WsConfig::worker()).await
    }

    pub async fn join_as(&self, wallet: u8, worker_id: u8, host: &str, config: WsConfig) -> Result<Worker, Refuse> {
        self.join_on(self.dial(config).await, wallet, worker_id, host).await
    }

    /// The same on a link that was dialled elsewhere.
    pub async fn join_on(&self, mut ws: WsStream, wallet: u8, worker_id: u8, host: &str) -> Result<Worker, Refuse> {
        let hello = frame(&mut ws).await;
        if hello.header.kind == Kind::Refuse {
            return Err(Refuse::read(&hello).expect("a refusal"));
        }
        let mut shake = self.shake(worker_id, host);
        let auth = shake.answer(&hello, &Wallet::new(wallet), 0).expect("a good hello");
        ws.send(auth.encode()).await.expect("a link");
        let welcome = frame(&mut ws).await;
        if welcome.header.kind == Kind::Refuse {
            return Err(Refuse::read(&welcome).expect("a refusal"));
        }
        let session = shake.welcomed(&welcome).expect("a good welcome");
        Ok(Worker { ws, session })
    }

    /// Answers whoever dials the backbone, for as long as it is polled: a hub that is asked for its status looks whether
    /// the backbone is there.
    pub async fn answer_probes(&self) {
        loop {
            let (stream, _) = self.backbone.accept().await.expect("a connection");
            drop(Self::greet(stream).await);
        }
    }

    /// A worker's side of a handshake that has not begun.
    pub fn shake(&self, worker_id: u8, host: &str) -> WorkerHandshake {
        let random = WorkerRandom::draw().expect("randomness");
        let id: WorkerId = Hex([worker_id; 16]);
        WorkerHandshake::new(vec![self.operator.public()], host, id, "test/1", random)
    }

    /// The next backbone connection, after its hello.
    pub async fn accept_backbone(&self) -> BackboneEnd {
        let (stream, _) = soon(self.backbone.accept()).await.expect("a connection");
        Self::greet(stream).await
    }

    /// Says hello on a connection of the hub, as the backbone.
    pub async fn greet(stream: TcpStream) -> BackboneEnd {
        tcp::tune(&stream);
        let (reader, mut writer) = framed::split(Box::new(stream));
        let hello = BackboneHello { manifest: MANIFEST, hidden_size: HIDDEN };
        writer.send(&hello.frame().expect("a frame")).await.expect("a link");
        BackboneEnd { reader, writer, open: None }
    }

    /// `GET path`: status and body.
    pub async fn get(&self, path: &str) -> (u16, serde_json::Value) {
        let mut stream = TcpStream::connect(self.hub).await.expect("a hub");
        let request = format!("GET {path} HTTP/1.1\r\nHost: hub\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("a link");
        let mut answer = String::new();
        soon(stream.read_to_string(&mut answer)).await.expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status");
        (status, serde_json::from_str(body).expect("JSON"))
    }

    /// `GET /status`, with a backbone that answers the probe.
    pub async fn status(&self) -> serde_json::Value {
        let (answer, _probed) = tokio::join!(self.get("/status"), self.accept_backbone());
        assert_eq!(answer.0, 200);
        answer.1
    }

    pub async fn meters(&self) -> MeterPage {
        let (status, body) = self.get("/v1/meters?after=0&limit=1000").await;
        assert_eq!(status, 200);
        serde_json::from_value(body).expect("a page")
    }

    /// What the ledger has of the hub's meters.
    pub async fn written(&self) -> Vec<Meter> {
        self.ledger.meters_after(self.hub_key, 0, 10).await.expect("a ledger")
    }

    /// Polls until the session's meter is as wanted.
    pub async fn meter_until(&self, session: SessionId, wanted: impl Fn(&Meter) -> bool) -> Meter {
        soon(async {
            loop {
                let page = self.meters().await;
                assert_eq!(page.hub, self.hub_key);
                if let Some(meter) = page.meters.into_iter().find(|m| m.session == session && wanted(m)) {
                    return meter;
                }
            }
        })
        .await
    }

    /// Work bytes of a session as a gateway sees them.
    pub async fn work_bytes(&self, session: SessionId) -> u64 {
        self.meters().await.meters.iter().filter(|m| m.session == session).map(|m| m.work_bytes).sum()
    }
}

async fn frame(ws: &mut WsStream) -> Frame {
    Frame::decode(soon(ws.recv()).await.expect("a link").expect("a message")).expect("a frame")
}

pub struct Wallet(SigningKey);

impl Wallet {
    pub fn new(seed: u8) -> Self {
        Self(SigningKey::from_bytes(&[seed; 32]))
    }
}

pub fn address(seed: u8) -> PublicKey {
    Wallet::new(seed).address()
}

impl AuthSigner for Wallet {
    fn address(&self) -> PublicKey {
        PublicKey(self.0.verifying_key().to_bytes())
    }

    fn sign_auth(&self, message: &AuthMessage) -> [u8; 64] {
        self.0.sign(message.as_bytes()).to_bytes()
    }
}

pub struct Worker {
    pub ws: WsStream,
    pub session: WorkerSession,
}

impl Worker {
    pub async fn send(&mut self, frame: &Frame) {
        let message = self.session.seal.seal(frame);
        self.ws.send(message).await.expect("a link");
    }

    /// The next frame; answers no receipts by itself.
    pub async fn recv(&mut self) -> Result<Frame, WsError> {
        let message = soon(self.ws.recv()).await?.ok_or(WsError::Closed { code: 1000, reason: String::new() })?;
        Ok(self.session.open.open(message).expect("a tagged frame"))
    }

    /// The next frame that is no receipt.
    pub async fn work(&mut self) -> Frame {
        loop {
            let frame = self.recv().await.expect("a link");
            if frame.header.kind != Kind::Receipt {
                return frame;
            }
        }
    }

    /// Answers a `Dispatch` with zeros of the right shape.
    pub async fn answer(&mut self, dispatch: &Frame) {
        self.send(&partials(&dispatch.header)).await;
    }

    /// Reads until the hub closes: (code, reason).
    pub async fn closed(&mut self) -> (u16, String) {
        loop {
            match self.recv().await {
                Ok(_) => {}
                Err(WsError::Closed { code, reason }) => return (code, reason),
                Err(other) => panic!("expected a close, got {other}"),
            }
        }
    }
}

pub struct BackboneEnd {
    pub reader: FramedReader<ReadHalf<Io>>,
    pub writer: FramedWriter<WriteHalf<Io>>,
    pub open: Option<SessionOpen>,
}

impl BackboneEnd {
    pub async fn opened(mut self) -> Self {
        let frame = self.recv().await.expect("SessionOpen");
        self.open = Some(SessionOpen::read(&frame).expect("SessionOpen"));
        self
    }

    pub fn session(&self) -> SessionId {
        self.open.as_ref().expect("an open session").session_id
    }

    pub async fn send(&mut self, frame: &Frame) {
        self.writer.send(frame).await.expect("a link");
    }

    pub async fn recv(&mut self) -> Option<Frame> {
        soon(self.reader.recv()).await.expect("a link")
    }

    pub async fn verdict(&mut self, request: u64, part: u16, accepted: u32) {
        let verdict = Verdict { request, part, accepted, refused: 0, reason: "ok".into() };
        self.send(&verdict.frame().expect("a frame")).await;
    }

    /// Sends a dispatch, lets the worker answer, and takes the answer.
    pub async fn round(&mut self, worker: &mut Worker, request: u64, assignments: u32) {
        self.send(&dispatch(request, 1, assignments)).await;
        let sent = worker.work().await;
        worker.answer(&sent).await;
        assert_eq!(self.recv().await.expect("partials").header.kind, Kind::Partials);
    }

    /// Waits until the hub says that the session is over: the reason.
    pub async fn closed(&mut self) -> String {
        loop {
            let frame = self.recv().await.expect("SessionClosed before the end");
            if frame.header.kind == Kind::SessionClosed {
                return SessionClosed::read(&frame).expect("SessionClosed").reason;
            }
        }
    }
}

/// A work frame; the hub reads its header only.
pub fn dispatch(request: u64, rows: u32, assignments: u32) -> Frame {
    let header = Header { request, rows, assignments, layer: 3, ..Header::control(Kind::Dispatch) };
    Frame::new(header, vec![0; 64]).expect("a frame")
}

/// Zeros in the shape of the answer to `asked`.
pub fn partials(asked: &Header) -> Frame {
    let body = vec![0; asked.rows as usize * (1 + 4 * HIDDEN as usize)];
    Frame::new(Header { kind: Kind::Partials, ..*asked }, body).expect("a frame")
}

/// The bytes of a frame and its tag between worker and hub.
pub fn sealed_bytes(frame: &Frame) -> u64 {
    (HEADER_BYTES + frame.body.len() + 16) as u64
}
