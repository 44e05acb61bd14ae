//! A worker before a hub that follows a script: what it accepts of a hub, and how it leaves.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kvasir::kernel::{CpuKernel, CpuPath, ExpertCompute};
use kvasir::net::head::{Upgrade, read_head};
use kvasir::net::ws::{WsConfig, WsStream};
use kvasir::shutdown::{self, ShutdownTrigger};
use kvasir::types::{Digest, Hex};
use kvasir::wallet::Wallet;
use kvasir::wire::control::{Control, Decline, GoAway, Lease, Refuse};
use kvasir::wire::handshake::{HubHandshake, HubIdentity, HubRandom, HubSession, HubTerms, Limits};
use kvasir::wire::signature::KeyPair;
use kvasir::wire::{Frame, Header, Kind};
use kvasir::worker::{self, Hardware, Phase, WorkerConfig, WorkerStatus};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

const PATIENCE: Duration = Duration::from_secs(10);
const MANIFEST: Digest = Hex([5; 32]);

struct Hub {
    listener: TcpListener,
    operator: KeyPair,
}

struct Session {
    socket: WsStream,
    keys: HubSession,
}

impl Hub {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self { listener, operator: KeyPair::from_seed(&[1; 32]) }
    }

    fn worker(&self) -> Worker {
        let home = tempfile::tempdir().unwrap();
        let gateway = format!("ws://{}", self.listener.local_addr().unwrap());
        let operators = vec![self.operator.public()];
        let mut config = WorkerConfig::new(vec![gateway], operators, home.path().to_owned(), 1 << 20);
        config.assignments_per_s = Some(1e4);
        let (sender, status) = watch::channel(WorkerStatus::default());
        let (stop, shutdown) = shutdown::channel();
        let kernel: Arc<dyn ExpertCompute> = Arc::new(CpuKernel::new(CpuPath::detect().unwrap(), 1).unwrap());
        let hardware = Hardware::from(kernel).fixed();
        let wallet = Arc::new(Wallet::generate().unwrap());
        let running = tokio::spawn(worker::run(config, wallet, hardware, sender, shutdown));
        Worker { status, stop, running, _home: home }
    }

    /// The worker's next attempt, up to its answer.
    async fn dialled(&self) -> (WsStream, HubHandshake, Frame) {
        let (stream, _) = timeout(PATIENCE, self.listener.accept()).await.unwrap().unwrap();
        let mut stream: kvasir::net::Io = Box::new(stream);
        let head = read_head(&mut stream, Instant::now() + PATIENCE).await.unwrap();
        let upgrade = Upgrade::check(&head, kvasir::wire::WORKER_PATH).unwrap();
        let mut socket = WsStream::accept(stream, &upgrade.key, head.rest().to_vec(), WsConfig::hub()).await.unwrap();
        let identity = HubIdentity::issued_by(&self.operator, KeyPair::from_seed(&[2; 32]), u64::MAX);
        let terms = HubTerms { hub_epoch: 1, manifest: MANIFEST, limits: Limits::default(), invite_only: false };
        let (shake, hello) =
            HubHandshake::hello(&identity, &terms, HubRandom::draw().unwrap(), Duration::ZERO).unwrap();
        socket.send(hello.encode()).await.unwrap();
        let answer = Frame::decode(socket.recv().await.unwrap().unwrap()).unwrap();
        (socket, shake, answer)
    }

    /// A session, up to the worker's offer.
    async fn session(&self) -> Session {
        let (socket, shake, answer) = self.dialled().await;
        let (welcome, keys) = shake.accept(&answer, &["127.0.0.1".into()], Duration::ZERO).unwrap();
        socket.send(welcome.encode()).await.unwrap();
        let mut session = Session { socket, keys };
        assert_eq!(session.next().await.unwrap().header.kind, Kind::Offer);
        session
    }
}

impl Session {
    async fn send(&mut self, frame: Frame) {
        self.socket.send(self.keys.seal.seal(&frame)).await.unwrap();
    }

    /// The next frame; `None` once the worker has closed.
    async fn next(&mut self) -> Option<Frame> {
        let message = timeout(PATIENCE, self.socket.recv()).await.unwrap().ok()??;
        Some(self.keys.open.open(message).unwrap())
    }
}

struct Worker {
    status: watch::Receiver<WorkerStatus>,
    stop: ShutdownTrigger,
    running: JoinHandle<Result<(), worker::WorkerError>>,
    _home: tempfile::TempDir,
}

impl Worker {
    /// Why it waits.
    async fn waits(&mut self) -> (String, u64) {
        let is_waiting = |s: &WorkerStatus| matches!(s.phase, Phase::Waiting { .. });
        let seen = timeout(PATIENCE, self.status.wait_for(is_waiting)).await.unwrap().unwrap().phase.clone();
        let Phase::Waiting { reason, retry_ms } = seen else { panic!("it waits") };
        (reason, retry_ms)
    }

    async fn stop(self) {
        self.stop.fire();
        timeout(PATIENCE, self.running).await.unwrap().unwrap().unwrap();
    }
}

fn dispatch(request: u64, part: u16, parts: u16) -> Frame {
    Frame::new(Header { request, part, parts, ..Header::control(Kind::Dispatch) }, vec![0; 8]).unwrap()
}

#[tokio::test]
async fn a_lease_of_another_model_than_the_hub_said_hello_with_ends_the_session() {
    let hub = Hub::start().await;
    let mut worker = hub.worker();
    let mut session = hub.session().await;
    let lease = Lease { lease: 1, manifest: Hex([6; 32]), experts: BTreeMap::new(), expires_ms: 60_000 };
    session.send(lease.frame().unwrap()).await;
    assert!(session.next().await.is_none(), "it asks for nothing");
    let (reason, _) = worker.waits().await;
    assert!(reason.contains("lease for the model with manifest"), "{reason}");
    worker.stop().await;
}

#[tokio::test]
async fn a_refused_request_of_several_parts_is_declined_once_with_its_last() {
    let hub = Hub::start().await;
    let worker = hub.worker();
    let mut session = hub.session().await;
    // The second part is missing; then a whole request without any time.
    for frame in [dispatch(1, 0, 4), dispatch(1, 2, 4), dispatch(1, 3, 4), dispatch(2, 0, 1)] {
        session.send(frame).await;
    }
    for (request, reason) in [(1, "shape"), (2, "deadline")] {
        let frame = session.next().await.unwrap();
        assert_eq!((frame.header.request, Decline::read(&frame).unwrap().reason.as_str()), (request, reason));
    }
    worker.stop().await;
}

#[tokio::test]
async fn a_worker_that_moves_answers_what_is_still_coming_in_and_stops_at_once_when_told() {
    let hub = Hub::start().await;
    let worker = hub.worker();
    let mut session = hub.session().await;
    session.send(dispatch(1, 0, 2)).await;
    session.send(GoAway { reconnect_after_ms: 0 }.frame().unwrap()).await;
    tokio::time::sleep(Duration::from_millis(600)).await;
    session.send(dispatch(1, 1, 2)).await;
    assert_eq!(session.next().await.unwrap().header.kind, Kind::Decline);
    assert!(session.next().await.is_none());

    let mut session = hub.session().await;
    session.send(dispatch(1, 0, 2)).await;
    session.send(GoAway { reconnect_after_ms: 0 }.frame().unwrap()).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let started = Instant::now();
    tokio::join!(worker.stop(), session.next());
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_refusal_is_shown_without_its_control_characters_and_waited_out_within_reason() {
    let hub = Hub::start().await;
    let mut worker = hub.worker();
    let (socket, _, _) = hub.dialled().await;
    let refuse = Refuse { reason: "\u{1b}[2Jbusy".into(), retry_after_ms: Some(u64::MAX) };
    socket.send(refuse.frame().unwrap().encode()).await.unwrap();
    let (reason, retry_ms) = worker.waits().await;
    assert_eq!(reason, "refused: [2Jbusy");
    assert!((300_000..=330_000).contains(&retry_ms), "{retry_ms}");
    worker.stop().await;
}
