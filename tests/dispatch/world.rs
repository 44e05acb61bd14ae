//! A real dispatch listener, with puppets in place of hub and worker, or with a real hub and real workers.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kvasir::dispatch::{
    DeadlineRule, Dispatch as _, LocalDispatch, Mode, ModelExperts, MoeStep, RemoteConfig, RemoteDispatch, Route,
    RowSum,
};
use kvasir::hub::{self, HubConfig, HubTiming, ReceiptTiming};
use kvasir::kernel::{CpuKernel, CpuPath, ExpertCompute};
use kvasir::ledger::Ledger;
use kvasir::model::{self, Model};
use kvasir::net::Io;
use kvasir::net::framed::{self, FramedReader, FramedWriter};
use kvasir::shutdown::{self, ShutdownTrigger};
use kvasir::types::{Hex, PublicKey};
use kvasir::wallet::Wallet;
use kvasir::wire::control::{BackboneHello, Control, Decline, Lease, Offer, SessionOpen, SliceReady, Verdict};
use kvasir::wire::handshake::HubIdentity;
use kvasir::wire::signature::KeyPair;
use kvasir::wire::work::Dispatch;
use kvasir::wire::{Frame, Header, Kind};
use kvasir::worker::{self, Hardware, Source, WorkerConfig, WorkerError, WorkerStatus};
use tokio::io::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Longer than anything here takes; a test that reaches it has failed.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(PATIENCE, what).await.expect("nothing here takes this long")
}

/// The embedded model: four layers of sixteen experts in Q4_K and Q6_K.
pub fn exact_model() -> Arc<Model> {
    open("assets/kvasir-tiny.gguf")
}

/// Experts stored in bf16.
pub fn float_model() -> Arc<Model> {
    open("../tests/data/q35moe-tiny")
}

fn open(path: &str) -> Arc<Model> {
    Arc::new(model::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect("a model"))
}

pub fn kernel() -> Arc<dyn ExpertCompute> {
    Arc::new(CpuKernel::new(CpuPath::detect().expect("a CPU path"), 1).expect("a kernel"))
}

/// Rows of mixed values, each with its own experts and gate weights; the same for the same `seed`.
pub fn step(model: &Model, layer: u16, rows: usize, seed: u64) -> MoeStep {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 24) as f32
    };
    let hyper = &model.hyper;
    let hidden: Vec<f32> = (0..rows * hyper.hidden_size).map(|_| 4.0 * random() - 2.0).collect();
    let mut routes = Vec::new();
    for _ in 0..rows {
        let first = (random() * hyper.experts as f32) as usize;
        let chosen = (0..hyper.experts_per_token).map(|k| (first + 3 * k) % hyper.experts);
        routes.extend(chosen.map(|expert| Route { expert: expert as u16, weight: 0.05 + random() }));
    }
    MoeStep { layer, rows, hidden, rms: vec![1.0; rows], routes }
}

/// What the step's sums are when nobody else is asked.
pub async fn local_sums(model: &Arc<Model>, step: &MoeStep) -> Vec<RowSum> {
    let local = LocalDispatch::new(Arc::clone(model), kernel(), Mode::Exact);
    local.begin(step.clone()).await.expect("sums").rows
}

/// A backbone's dispatch and its listener.
pub struct Backbone {
    pub model: Arc<Model>,
    pub remote: RemoteDispatch,
    pub addr: SocketAddr,
    stop: ShutdownTrigger,
    serving: JoinHandle<()>,
}

impl Backbone {
    /// With deadlines that a busy machine does not miss.
    pub async fn start(model: Arc<Model>, layers: Vec<u16>) -> Self {
        Self::start_with(model, layers, Duration::from_secs(10)).await
    }

    pub async fn start_with(model: Arc<Model>, layers: Vec<u16>, floor: Duration) -> Self {
        let deadlines = DeadlineRule { floor, ceiling: floor, ..DeadlineRule::default() };
        let config = RemoteConfig { deadlines, ..RemoteConfig::new(layers) };
        let remote = RemoteDispatch::new(Arc::clone(&model), kernel(), config).expect("a manifest");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let addr = listener.local_addr().expect("an address");
        let (stop, shutdown) = shutdown::channel();
        let server = remote.clone();
        let serving = tokio::spawn(async move { server.serve(listener, shutdown).await });
        Self { model, remote, addr, stop, serving }
    }

    pub async fn ready(&self, workers: usize) {
        self.remote.wait_ready(workers, PATIENCE).await.expect("workers");
    }

    /// Runs a step and checks its sums against the local ones.
    pub async fn check(&self, step: MoeStep) {
        let expected = local_sums(&self.model, &step).await;
        let got = soon(self.remote.begin(step)).await.expect("sums").rows;
        assert!(got == expected, "sums differ from the local ones");
    }

    pub async fn stop(self) {
        self.stop.fire();
        soon(self.serving).await.expect("no panic");
    }
}

/// How a puppet treats requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Conduct {
    Honest,
    Silent,
    Declines,
    Vanishes,
    CutsShort,
    Lies,
    AnswersTwice,
    AnswersLate(Duration),
}

/// Stands for a hub and its worker at the end of a plain connection.
pub struct Puppet {
    pub verdicts: watch::Receiver<Vec<Verdict>>,
    task: JoinHandle<()>,
}

struct Strings {
    reader: FramedReader<ReadHalf<Io>>,
    writer: FramedWriter<WriteHalf<Io>>,
    experts: ModelExperts,
    kernel: Arc<dyn ExpertCompute>,
    conduct: Conduct,
    verdicts: watch::Sender<Vec<Verdict>>,
}

impl Puppet {
    /// Opens a session and says nothing more.
    pub async fn open(backbone: &Backbone, n: u8) -> (FramedReader<ReadHalf<Io>>, FramedWriter<WriteHalf<Io>>) {
        let stream = TcpStream::connect(backbone.addr).await.expect("a connection");
        let (mut reader, mut writer) = framed::split(Box::new(stream));
        let hello = reader.recv().await.expect("a frame").expect("a frame");
        assert_eq!(
            BackboneHello::read(&hello).expect("a hello").hidden_size as usize,
            backbone.model.hyper.hidden_size
        );
        let open = SessionOpen {
            session_id: Hex([n; 16]),
            wallet: PublicKey([n; 32]),
            worker_id: Hex([n; 16]),
            peer_ip_hash: Hex([0; 16]),
            round_trip_us: 1_000,
        };
        writer.send(&open.frame().expect("a frame")).await.expect("sent");
        (reader, writer)
    }

    /// Connects, offers and from then on does as it is told.
    pub async fn join(backbone: &Backbone, n: u8, conduct: Conduct) -> Self {
        let (reader, mut writer) = Self::open(backbone, n).await;
        let offer = Offer { device: "puppet".into(), memory_bytes: 1 << 30, assignments_per_s: 1e4, wants: vec![] };
        writer.send(&offer.frame().expect("a frame")).await.expect("sent");
        let (verdicts, seen) = watch::channel(Vec::new());
        let experts = ModelExperts::new(Arc::clone(&backbone.model));
        let strings = Strings { reader, writer, experts, kernel: kernel(), conduct, verdicts };
        Self { verdicts: seen, task: tokio::spawn(strings.dance()) }
    }

    /// The first `n` verdicts, in the order of requests and parts.
    pub async fn verdicts(&mut self, n: usize) -> Vec<Verdict> {
        let mut seen = soon(self.verdicts.wait_for(|v| v.len() >= n)).await.expect("a puppet").clone();
        seen.sort_by_key(|v| (v.request, v.part));
        seen
    }
}

impl Drop for Puppet {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Strings {
    async fn dance(mut self) {
        while let Ok(Some(frame)) = self.reader.recv().await {
            match frame.header.kind {
                Kind::Lease => {
                    let ready = SliceReady {
                        lease: Lease::read(&frame).expect("a lease").lease,
                        bytes: 1,
                        experts: BTreeMap::new(),
                    };
                    self.send(&ready.frame().expect("a frame")).await;
                }
                Kind::Verdict => {
                    let verdict = Verdict::read(&frame).expect("a verdict");
                    self.verdicts.send_modify(|seen| seen.push(verdict));
                }
                Kind::Dispatch if self.conduct == Conduct::Vanishes => return,
                Kind::Dispatch => self.respond(&frame).await,
                other => panic!("a worker never gets {other:?}"),
            }
        }
    }

    async fn respond(&mut self, frame: &Frame) {
        let answer = self.compute(frame);
        match self.conduct {
            Conduct::Silent | Conduct::Vanishes => {}
            Conduct::Honest => self.send(&answer).await,
            Conduct::Declines => {
                let decline = Decline { reason: "paused".into() };
                self.send(&decline.reply(frame.header.request).expect("a frame")).await;
            }
            Conduct::CutsShort => {
                let short = answer.body.slice(..answer.body.len() - 1);
                self.send(&Frame::new(answer.header, short).expect("a frame")).await;
            }
            Conduct::Lies => {
                // A value that no sum of legal outputs reaches.
                let mut body = answer.body.to_vec();
                body[1..5].copy_from_slice(&i32::MAX.to_le_bytes());
                self.send(&Frame::new(answer.header, body).expect("a frame")).await;
            }
            Conduct::AnswersTwice => {
                self.send(&answer).await;
                self.send(&answer).await;
            }
            Conduct::AnswersLate(pause) => {
                tokio::time::sleep(pause).await;
                self.send(&answer).await;
            }
        }
    }

    fn compute(&self, frame: &Frame) -> Frame {
        let hidden = self.experts.model().hyper.hidden_size;
        let request = Dispatch::decode(&frame.header, &frame.body, hidden).expect("a request");
        let partials = self.kernel.compute(&self.experts, frame.header.layer, &[request]).expect("partials");
        Frame::new(Header { kind: Kind::Partials, ..frame.header }, partials[0].encode(hidden)).expect("a frame")
    }

    async fn send(&mut self, frame: &Frame) {
        // The listener may have ended the session meanwhile; the test sees that elsewhere.
        let _ = self.writer.send(frame).await;
    }
}

/// A real hub in front of a backbone.
pub struct Hub {
    pub addr: SocketAddr,
    operator: KeyPair,
    dir: tempfile::TempDir,
    _stop: ShutdownTrigger,
}

impl Hub {
    pub async fn start(backbone: &Backbone) -> Self {
        Self::start_at(backbone.addr).await
    }

    /// With a backbone, or what stands before it, at `backbone`.
    pub async fn start_at(backbone: SocketAddr) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let ledger = Ledger::open(&format!("sqlite:{}", dir.path().join("ledger").display())).await.expect("a ledger");
        let config = HubConfig {
            timing: HubTiming {
                receipts: ReceiptTiming { interval: Duration::from_millis(20), acknowledge: PATIENCE },
                ..HubTiming::default()
            },
            ..HubConfig::new(backbone.to_string(), vec!["127.0.0.1".into()], dir.path().join("quarantine"))
        };
        let operator = KeyPair::from_seed(&[1; 32]);
        let identity = HubIdentity::issued_by(&operator, KeyPair::from_seed(&[2; 32]), u64::MAX);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let addr = listener.local_addr().expect("an address");
        let (stop, shutdown) = shutdown::channel();
        tokio::spawn(hub::serve(listener, config, identity, ledger, shutdown));
        Self { addr, operator, dir, _stop: stop }
    }

    /// Starts a worker that computes with `compute`.
    pub fn worker(&self, name: &str, source: Source, compute: Arc<dyn ExpertCompute>) -> Worker {
        self.worker_on(name, source, Hardware::from(compute).fixed())
    }

    /// Starts a worker on hardware that may change.
    pub fn worker_on(&self, name: &str, source: Source, hardware: watch::Receiver<Hardware>) -> Worker {
        self.worker_as(name, hardware, |config| config.source = source)
    }

    /// Starts a worker that differs from the others in what `change` says.
    pub fn worker_as(
        &self,
        name: &str,
        hardware: watch::Receiver<Hardware>,
        change: impl FnOnce(&mut WorkerConfig),
    ) -> Worker {
        let gateways = vec![format!("ws://{}", self.addr)];
        let home = self.dir.path().join(name);
        let mut config = WorkerConfig::new(gateways, vec![self.operator.public()], home.clone(), 1 << 30);
        config.assignments_per_s = Some(1e4);
        change(&mut config);
        let wallet = Arc::new(Wallet::generate().expect("a wallet"));
        let (status, seen) = watch::channel(WorkerStatus::default());
        let (stop, shutdown) = shutdown::channel();
        let running = tokio::spawn(worker::run(config, wallet, hardware, status, shutdown));
        Worker { status: seen, home, stop, running }
    }
}

pub struct Worker {
    pub status: watch::Receiver<WorkerStatus>,
    pub home: std::path::PathBuf,
    stop: ShutdownTrigger,
    running: JoinHandle<Result<(), WorkerError>>,
}

impl Worker {
    /// Pulls the plug.
    pub fn kill(&self) {
        self.running.abort();
    }

    /// Asks it to stop and waits until it has.
    pub async fn stop(self) -> WorkerStatus {
        self.stop.fire();
        soon(self.running).await.expect("no panic").expect("a worker that could start");
        self.status.borrow().clone()
    }
}

/// A kernel that tells when it is asked and answers only when it may.
pub struct Gate {
    kernel: Arc<dyn ExpertCompute>,
    asked: tokio::sync::mpsc::UnboundedSender<()>,
    open: Mutex<std::sync::mpsc::Receiver<()>>,
}

impl Gate {
    /// The kernel, the sign that it was asked, and what opens it: one message per answer, or its end for all.
    pub fn closed() -> (Arc<Self>, tokio::sync::mpsc::UnboundedReceiver<()>, std::sync::mpsc::Sender<()>) {
        let (asked, was_asked) = tokio::sync::mpsc::unbounded_channel();
        let (opener, open) = std::sync::mpsc::channel();
        (Arc::new(Self { kernel: kernel(), asked, open: Mutex::new(open) }), was_asked, opener)
    }
}

impl ExpertCompute for Gate {
    fn compute(
        &self,
        experts: &dyn kvasir::kernel::ExpertSource,
        layer: u16,
        parts: &[Dispatch],
    ) -> Result<Vec<kvasir::wire::work::Partials>, kvasir::kernel::KernelError> {
        let _ = self.asked.send(());
        let _ = self.open.lock().expect("no panic").recv();
        self.kernel.compute(experts, layer, parts)
    }

    fn device(&self) -> String {
        "gate".into()
    }
}
