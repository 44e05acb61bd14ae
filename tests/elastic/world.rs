//! A network with all its listeners, and a decode through it that is compared with a local one at every token.

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use kvasir::backbone::Backbone;
use kvasir::demo::decode::Decode;
use kvasir::demo::network::{Network, NetworkOptions, Waits};
use kvasir::dispatch::{DeadlineRule, LocalDispatch, Mode, TrustConfig};
use kvasir::kernel::{CpuKernel, CpuPath, ExpertCompute, ExpertSource, KernelError};
use kvasir::model::{self, Model};
use kvasir::wire::work::{Dispatch, Partials};
use kvasir::worker::Hardware;
use tokio::sync::mpsc;

/// Longer than anything here takes; a test that reaches it has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// What a busy machine may add to a step.
pub const BUSY: Duration = Duration::from_secs(3);

pub async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("nothing here takes this long")
}

/// Waits until `holds`.
pub async fn until(mut holds: impl FnMut() -> bool) {
    soon(async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// Waits in which no worker is given less time than `floor`.
pub fn allowing(floor: Duration) -> Waits {
    Waits { deadlines: DeadlineRule { floor, ..DeadlineRule::default() }, ..Waits::default() }
}

/// Waits in which only a dead worker is late, however busy the machine is.
pub fn patient() -> Waits {
    allowing(Duration::from_secs(20))
}

pub fn kernel() -> Arc<dyn ExpertCompute> {
    Arc::new(CpuKernel::new(CpuPath::detect().expect("a CPU path"), 1).expect("a kernel"))
}

pub fn hardware() -> Hardware {
    kernel().into()
}

/// A decode through workers beside a local one.
pub struct Stream {
    pub network: Network,
    local: Decode,
    remote: Decode,
    input: Vec<u32>,
}

impl Stream {
    /// A network of these workers, all ready; more may be added.
    pub async fn start(workers: Vec<Hardware>, waits: Waits) -> Self {
        let model: Arc<Model> = Arc::new(model::embedded().expect("a model"));
        let count = workers.len();
        let options = NetworkOptions {
            model: Arc::clone(&model),
            compute: kernel(),
            workers,
            remote_layers: vec![0, 1, 2, 3],
            one_way: Duration::ZERO,
            bits_per_s: None,
            gateway: None,
            cuttable: true,
            trust: TrustConfig::default(),
        };
        let network = Network::start_with(options, waits).await.expect("a network");
        let stream = Self::over(model, network);
        if count > 0 {
            stream.ready(count).await;
        }
        stream
    }

    fn over(model: Arc<Model>, network: Network) -> Self {
        let local = LocalDispatch::new(Arc::clone(&model), kernel(), Mode::Exact);
        let local = Decode::new(Backbone::new(Arc::clone(&model), Arc::new(local)).expect("a backbone"));
        let dispatch = Arc::new(network.dispatch.clone());
        let remote = Decode::new(Backbone::new(Arc::clone(&model), dispatch).expect("a backbone"));
        let input = model.tokenizer.as_ref().expect("a tokenizer").encode("The wolf said to the").expect("ids");
        Self { network, local, remote, input }
    }

    pub async fn ready(&self, workers: usize) {
        self.network.dispatch.wait_ready(workers, PATIENCE).await.expect("workers");
    }

    /// Decodes one token both ways, compares the logits' bits, and gives the time that it took through the workers.
    pub async fn step(&mut self) -> Duration {
        self.step_beside(async |_: &mut Network| ()).await.0
    }

    /// The same while something is done to the network.
    pub async fn step_beside<T>(&mut self, deed: impl AsyncFnOnce(&mut Network) -> T) -> (Duration, T) {
        let Self { network, local, remote, input } = self;
        let expected = local.step(input).await.expect("a local step");
        let start = Instant::now();
        let step = async {
            let logits = remote.step(input).await.expect("no failure of a worker is one of the stream");
            (logits, start.elapsed())
        };
        let ((got, took), done) = soon(async { tokio::join!(step, deed(network)) }).await;
        let same = |(a, b): (&[f32], &[f32])| a.iter().zip(b).all(|(x, y)| x.to_bits() == y.to_bits());
        let token = local.tokens.len();
        assert!(expected.iter().zip(got.iter()).all(same), "the logits of token {token} differ from the local ones");
        *input = local.tokens[token - 1..].to_vec();
        (took, done)
    }

    pub async fn steps(&mut self, n: usize) {
        for _ in 0..n {
            self.step().await;
        }
    }

    /// Wallets that have a session.
    pub fn sessions(&self) -> usize {
        self.network.dispatch.workers().len()
    }

    /// Checks that the accounts hold what was used, to the byte, and stops.
    pub async fn settle(self) {
        let used = self.network.dispatch.counts().work_bytes;
        soon(async {
            loop {
                let mut credited = 0;
                for wallet in self.network.wallets() {
                    credited += self.network.statement(wallet).await.expect("an account").work_bytes;
                }
                assert!(credited <= used, "{credited} bytes were credited for {used}");
                if credited == used {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await;
        self.network.stop().await.expect("a clean stop");
    }
}

/// Kernels of several workers of which the next one that is asked for a chosen layer says so and never answers.
pub struct Trap {
    layer: Mutex<Option<u16>>,
    sprung: mpsc::UnboundedSender<usize>,
    open: (Mutex<bool>, Condvar),
}

struct Trapped {
    worker: usize,
    kernel: Arc<dyn ExpertCompute>,
    trap: Arc<Trap>,
}

impl Trap {
    /// The trap, the hardware of `workers` workers in it, and the index of each worker that got caught.
    pub fn new(workers: usize) -> (Arc<Self>, Vec<Hardware>, mpsc::UnboundedReceiver<usize>) {
        let (sprung, caught) = mpsc::unbounded_channel();
        let trap = Arc::new(Self { layer: Mutex::default(), sprung, open: Default::default() });
        let hardware = |worker| {
            let trapped = Trapped { worker, kernel: kernel(), trap: Arc::clone(&trap) };
            Hardware::from(Arc::new(trapped) as Arc<dyn ExpertCompute>)
        };
        let workers = (0..workers).map(hardware).collect();
        (trap, workers, caught)
    }

    /// Lets everybody go who was caught.
    pub fn open(&self) {
        *self.open.0.lock().expect("no panic") = true;
        self.open.1.notify_all();
    }

    /// Catches the next worker that is asked for `layer`.
    pub fn set(&self, layer: u16) {
        *self.layer.lock().expect("no panic") = Some(layer);
    }
}

impl ExpertCompute for Trapped {
    fn compute(
        &self,
        experts: &dyn ExpertSource,
        layer: u16,
        parts: &[Dispatch],
    ) -> Result<Vec<Partials>, KernelError> {
        // The self-test has another width.
        let is_served = parts.iter().any(|part| part.hidden == 256);
        let is_caught = is_served && self.trap.layer.lock().expect("no panic").take_if(|set| *set == layer).is_some();
        if is_caught {
            let _ = self.trap.sprung.send(self.worker);
            let open = self.trap.open.0.lock().expect("no panic");
            drop(self.trap.open.1.wait_while(open, |open| !*open).expect("no panic"));
        }
        self.kernel.compute(experts, layer, parts)
    }

    fn device(&self) -> String {
        self.kernel.device()
    }
}
