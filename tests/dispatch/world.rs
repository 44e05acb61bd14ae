//! A real dispatch listener, with puppets in place of hub and worker, or with a real hub and real workers.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kvasir::dispatch::{
    AuditPolicy, DeadlineRule, Dispatch as _, LocalDispatch, Mode, MoeStep, RemoteConfig, RemoteDispatch, Route,
    RowSum, TrustConfig,
};
use kvasir::hub::{self, HubConfig, HubTiming, ReceiptTiming};
use kvasir::kernel::{CpuKernel, CpuPath, ExpertCompute, ExpertSource, KernelError};
use kvasir::ledger::Ledger;
use kvasir::model::{self, Model};
use kvasir::shutdown::{self, ShutdownTrigger};
use kvasir::types::{GenerationId, PublicKey};
use kvasir::wallet::Wallet;
use kvasir::wire::handshake::HubIdentity;
use kvasir::wire::signature::KeyPair;
use kvasir::wire::work::{Dispatch, Partials};
use kvasir::worker::{self, Budget, Hardware, Source, WorkerConfig, WorkerStatus};
use tokio::net::TcpListener;
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
    let (rms, generations) = (vec![1.0; rows], vec![GenerationId(seed); rows]);
    MoeStep { layer, rows, hidden, rms, routes, generations, trusted_only: false }
}

/// What the step's sums are when nobody else is asked.
pub async fn local_sums(model: &Arc<Model>, step: &MoeStep) -> Vec<RowSum> {
    let local = LocalDispatch::new(Arc::clone(model), kernel(), Mode::Exact);
    local.begin(step.clone()).await.expect("sums").rows
}

/// A backbone's dispatch and its listener.
/// Whose workers have nothing to prove any more.
pub fn grown_up() -> TrustConfig {
    let audit = AuditPolicy { first_assignments: 0, young_assignments: 0, rate: 0.0, ..AuditPolicy::default() };
    TrustConfig { audit, ..TrustConfig::default() }
}

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

    /// With workers that have nothing to prove any more, so that what they do is seen and not what audits do about it.
    pub async fn start_with(model: Arc<Model>, layers: Vec<u16>, floor: Duration) -> Self {
        Self::start_trusting(model, layers, floor, grown_up()).await
    }

    pub async fn start_trusting(model: Arc<Model>, layers: Vec<u16>, floor: Duration, trust: TrustConfig) -> Self {
        let deadlines = DeadlineRule { floor, ceiling: floor, ..DeadlineRule::default() };
        Self::start_as(model, RemoteConfig { deadlines, trust, ..RemoteConfig::new(layers) }).await
    }

    pub async fn start_as(model: Arc<Model>, config: RemoteConfig) -> Self {
        Self::start_on(kernel(), model, config).await
    }

    /// On a machine of its own that computes experts slowly, so that replicas are worth asking.
    pub async fn start_slow(model: Arc<Model>, config: RemoteConfig) -> Self {
        Self::start_on(Arc::new(Slow(kernel())), model, config).await
    }

    async fn start_on(compute: Arc<dyn ExpertCompute>, model: Arc<Model>, config: RemoteConfig) -> Self {
        let remote = RemoteDispatch::new(Arc::clone(&model), compute, config).expect("a manifest");
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
        assert!(got == expected, "{}", self.difference(&expected, &got));
    }

    /// What differs, and what happened on the way: a difference that is seen once in many runs must say enough.
    fn difference(&self, expected: &[RowSum], got: &[RowSum]) -> String {
        let rows = expected.iter().zip(got).enumerate().filter(|(_, (expected, got))| expected != got);
        let rows: Vec<String> = rows.map(|(row, pair)| format!("row {row}: {pair:?}")).collect();
        let (counts, workers) = (self.remote.counts(), self.remote.workers());
        format!("sums differ from the local ones: {counts:?} {workers:?}\n{}", rows.join("\n"))
    }

    /// Stored bytes of one expert.
    pub fn expert_bytes(&self) -> u64 {
        let experts = self.model.weights.moe_layers().flat_map(|layer| &layer.experts);
        let bytes = experts.map(|e| [&e.gate, &e.up, &e.down].iter().map(|m| m.data.len() as u64).sum());
        bytes.max().expect("experts")
    }

    pub async fn stop(self) {
        self.stop.fire();
        soon(self.serving).await.expect("no panic");
    }
}

/// A kernel that takes its time.
struct Slow(Arc<dyn ExpertCompute>);

impl ExpertCompute for Slow {
    fn compute(
        &self,
        experts: &dyn ExpertSource,
        layer: u16,
        parts: &[Dispatch],
    ) -> Result<Vec<Partials>, KernelError> {
        std::thread::sleep(Duration::from_millis(300));
        self.0.compute(experts, layer, parts)
    }

    fn device(&self) -> String {
        "slow".into()
    }
}

pub use super::worker::Worker;

/// A real hub in front of a backbone.
pub struct Hub {
    pub addr: SocketAddr,
    pub ledger: Ledger,
    /// Signs its receipts.
    pub key: PublicKey,
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
            ..HubConfig::new(
                backbone.to_string(),
                vec!["127.0.0.1".into(), "gateway.test".into()],
                dir.path().join("quarantine"),
            )
        };
        let operator = KeyPair::from_seed(&[1; 32]);
        let identity = HubIdentity::issued_by(&operator, KeyPair::from_seed(&[2; 32]), u64::MAX);
        let key = identity.key().public();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let addr = listener.local_addr().expect("an address");
        let (stop, shutdown) = shutdown::channel();
        tokio::spawn(hub::serve(listener, config, identity, ledger.clone(), shutdown));
        Self { addr, ledger, key, operator, dir, _stop: stop }
    }

    /// Starts a worker that computes with `compute`.
    pub fn worker(&self, name: &str, source: Source, compute: Arc<dyn ExpertCompute>) -> Worker {
        self.worker_on(name, source, Hardware::from(compute).fixed())
    }

    /// Starts a worker on hardware that may change.
    pub fn worker_on(&self, name: &str, source: Source, hardware: watch::Receiver<Hardware>) -> Worker {
        self.worker_as(name, source, hardware, |_| ())
    }

    /// The same, told what else `set` says.
    pub fn worker_as(
        &self,
        name: &str,
        source: Source,
        hardware: watch::Receiver<Hardware>,
        set: impl FnOnce(&mut WorkerConfig),
    ) -> Worker {
        let gateways = vec![format!("ws://{}", self.addr)];
        let home = self.dir.path().join(name);
        let mut config = WorkerConfig::new(gateways, vec![self.operator.public()], home.clone(), 1 << 30);
        config.source = source;
        config.assignments_per_s = Some(1e4);
        let (room, budget) = Budget::changeable(Some(1 << 30));
        config.budget = budget;
        set(&mut config);
        let wallet = Arc::new(Wallet::generate().expect("a wallet"));
        let address = wallet.address();
        let (status, seen) = watch::channel(WorkerStatus::default());
        let (stop, shutdown) = shutdown::channel();
        let running = tokio::spawn(worker::run(config, wallet, hardware, status, shutdown));
        Worker { address, status: seen, home, room, stop, running }
    }
}
