//! The world of a simulated fleet: a real backbone's dispatch, generations that use it, and workers around it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use kvasir::dispatch::{Dispatch as _, LocalDispatch, Mode, ModelExperts, RemoteConfig, RemoteDispatch, RowSum};
use kvasir::kernel::ExpertCompute;
use kvasir::ledger::Rate;
use kvasir::model::{self, BlockType, Model};
use kvasir::net::Io;
use kvasir::shutdown::{self, Shutdown};
use kvasir::types::{ExpertId, PublicKey};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, advance, sleep, timeout};

use super::books::Books;
use super::dice::Dice;
use super::worker::{Character, live};
use crate::dispatch::world::{exact_model, kernel, step};
use crate::support::one_layer::OneLayer;

/// How large a fleet is and what it has to do.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub workers: usize,
    pub generations: usize,
    /// Steps of each generation while workers come and go.
    pub steps: usize,
    /// Largest number of rows in a step.
    pub rows_max: usize,
    /// Whether the model has one layer of many experts instead of a few small ones.
    pub is_wide: bool,
    /// Whether the machines sleep now and then, so that all clocks jump.
    pub naps: bool,
}

/// What everybody shares.
pub struct World {
    pub streams: mpsc::Sender<Io>,
    pub over: Shutdown,
    pub books: Books,
    pub kernel: Arc<dyn ExpertCompute>,
    pub experts: Arc<ModelExperts>,
    /// Answers that were wrong on purpose.
    pub lies: AtomicUsize,
    liars: BTreeSet<PublicKey>,
    /// Those of them that were caught.
    caught: Mutex<BTreeSet<PublicKey>>,
    /// Requests for experts that a worker had given back.
    pub unheld: AtomicUsize,
    stage: Arc<Stage>,
    is_calm: AtomicBool,
}

/// A model and what it gives without anybody's help; made once for all worlds.
struct Stage {
    model: Arc<Model>,
    local: LocalDispatch,
    digests: BTreeMap<ExpertId, blake3::Hash>,
    expert_bytes: u64,
}

impl Stage {
    fn of(model: Arc<Model>) -> Arc<Self> {
        let local = LocalDispatch::new(Arc::clone(&model), kernel(), Mode::Exact);
        let mut digests = BTreeMap::new();
        let mut expert_bytes = 0;
        for (layer, weights) in model.weights.moe_layers().enumerate() {
            for (expert, weights) in weights.experts.iter().enumerate() {
                let pieces = [&weights.gate.data, &weights.up.data, &weights.down.data];
                let mut hasher = blake3::Hasher::new();
                for piece in pieces {
                    hasher.update(piece);
                }
                expert_bytes = expert_bytes.max(pieces.iter().map(|piece| piece.len() as u64).sum());
                digests.insert(ExpertId { layer: layer as u16, expert: expert as u16 }, hasher.finalize());
            }
        }
        Arc::new(Self { model, local, digests, expert_bytes })
    }

    /// The embedded model.
    fn small() -> Arc<Self> {
        static STAGE: OnceLock<Arc<Stage>> = OnceLock::new();
        Arc::clone(STAGE.get_or_init(|| Self::of(exact_model())))
    }

    /// One layer with so many experts that every worker of a large fleet holds some.
    fn wide() -> Arc<Self> {
        static STAGE: OnceLock<Arc<Stage>> = OnceLock::new();
        let stage = || {
            let layer = OneLayer {
                hidden: 64,
                intermediate: 64,
                experts: 512,
                experts_per_token: 8,
                experts_type: BlockType::Q8_0,
            };
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("wide.gguf");
            std::fs::write(&path, layer.gguf()).unwrap();
            Self::of(Arc::new(model::open(&path).unwrap()))
        };
        Arc::clone(STAGE.get_or_init(stage))
    }
}

impl World {
    pub fn is_over(&self) -> bool {
        self.over.is_requested()
    }

    /// Whether workers keep to their work.
    pub fn is_calm(&self) -> bool {
        self.is_calm.load(Relaxed)
    }

    /// Somebody was caught.
    pub fn catch(&self, wallet: PublicKey) {
        assert!(self.liars.contains(&wallet), "{wallet} is honest and was caught");
        self.caught.lock().expect("no panic").insert(wallet);
    }

    pub fn is_caught(&self, wallet: &PublicKey) -> bool {
        self.caught.lock().expect("no panic").contains(wallet)
    }

    pub fn hidden(&self) -> u32 {
        self.stage.model.hyper.hidden_size as u32
    }

    pub fn expert_bytes(&self) -> u64 {
        self.stage.expert_bytes
    }

    pub fn digest(&self, id: ExpertId) -> blake3::Hash {
        self.stage.digests[&id]
    }
}

/// What a run of the world came to.
pub struct Outcome {
    pub steps: u64,
    /// Assignments whose partials came from workers and were used.
    pub remote: u64,
    /// Assignments computed here.
    pub local: u64,
    /// Assignments that were paid.
    pub paid: u64,
    pub lies: usize,
    /// Liars that were caught.
    pub caught: usize,
    /// Simulated time.
    pub lasted: Duration,
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { steps, remote, local, paid, lies, caught, lasted } = self;
        write!(
            f,
            "{steps} steps in {lasted:.0?}, {remote} assignments remote ({paid} paid), {local} local, {lies} lies, {caught} caught"
        )
    }
}

/// Runs a fleet from its first join to its last leave and checks what must hold; panics where something does not.
pub async fn run(seed: u64, size: Size) -> Outcome {
    let started = Instant::now();
    let mut dice = Dice::new(seed);
    let stage = if size.is_wide { Stage::wide() } else { Stage::small() };
    let layers = (0..stage.model.weights.moe_layers().count() as u16).collect();
    let config = RemoteConfig { sessions_max: size.workers + 50, ..RemoteConfig::new(layers) };
    let remote = RemoteDispatch::new(Arc::clone(&stage.model), kernel(), config).unwrap();
    let (streams, arriving) = mpsc::channel(16);
    let (end, over) = shutdown::channel();
    let (stop, stopped) = shutdown::channel();
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let serving = tokio::spawn({
        let remote = remote.clone();
        async move { remote.serve_streams(arriving, stopped).await }
    });
    let folk: Vec<(Character, Dice)> =
        (0..size.workers).map(|n| (character(&mut dice, n, size), dice.fork(n as u64))).collect();
    let liars = folk.iter().filter(|(one, _)| one.lies > 0).map(|(one, _)| one.wallet).collect();
    let world = Arc::new(World {
        streams,
        over,
        books: Books::default(),
        kernel: kernel(),
        experts: Arc::clone(remote.experts()),
        lies: AtomicUsize::new(0),
        liars,
        caught: Mutex::default(),
        unheld: AtomicUsize::new(0),
        stage,
        is_calm: AtomicBool::new(false),
    });

    let mut workers = JoinSet::new();
    for (character, dice) in folk {
        let world = Arc::clone(&world);
        let late = dice.clone().millis(0, 5_000);
        workers.spawn(async move {
            sleep(late).await;
            live(world, character, dice).await;
        });
    }
    let steps = Arc::new(AtomicU64::new(0));
    let mut generations = JoinSet::new();
    for n in 0..size.generations {
        let (world, remote, steps) = (Arc::clone(&world), remote.clone(), Arc::clone(&steps));
        let dice = dice.fork(u64::MAX - n as u64);
        generations.spawn(async move { generate(&world, &remote, size, size.steps, dice, &steps).await });
    }
    let sleeps = dice.fork(u64::MAX / 2);
    let naps = size.naps.then(|| tokio::spawn(oversleep(sleeps)));
    while let Some(done) = generations.join_next().await {
        done.unwrap();
    }
    if let Some(naps) = naps {
        naps.abort();
        let _ = naps.await;
    }

    // Once everybody keeps to their work, all is covered again, and served.
    world.is_calm.store(true, Relaxed);
    if let Err(late) = remote.wait_ready(1, Duration::from_secs(3600)).await {
        let unready: Vec<_> = remote.workers().into_iter().filter(|worker| !worker.ready).collect();
        panic!("{late}; not ready: {unready:?}; {:?}", remote.counts());
    }
    let before = remote.counts();
    generate(&world, &remote, size, 30, dice.fork(7), &steps).await;
    let after = remote.counts();
    assert!(after.assignments_remote > before.assignments_remote, "nobody is asked any more: {after:?}");

    end.fire();
    while let Some(done) = workers.join_next().await {
        done.unwrap();
    }
    // Links that were cut at the very end are noticed by then.
    sleep(Duration::from_secs(60)).await;
    assert!(remote.workers().is_empty(), "sessions of workers that are gone");
    stop.fire();
    timeout(Duration::from_secs(60), serving).await.expect("the listener ends with its sessions").unwrap();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), tasks, "tasks that nobody waits for");
    let unheld = world.unheld.load(Relaxed);
    assert!(size.naps || unheld == 0, "{unheld} requests for what was given back in time");
    let counts = remote.counts();
    let paid = world.books.settle(Rate(7));
    assert!(paid <= counts.assignments_remote, "{paid} paid, {counts:?}");
    Outcome {
        steps: steps.load(Relaxed),
        remote: counts.assignments_remote,
        local: counts.assignments_local,
        paid,
        lies: world.lies.load(Relaxed),
        caught: world.caught.lock().expect("no panic").len(),
        lasted: started.elapsed(),
    }
}

fn character(dice: &mut Dice, n: usize, size: Size) -> Character {
    let mut wallet = [0; 32];
    wallet[..8].copy_from_slice(&(n as u64 + 1).to_le_bytes());
    // The first one is a rock: it has room for everything, so that coverage can return whatever the others are.
    let is_rock = n == 0;
    let room_max = if size.is_wide { 4 } else { 24 };
    Character {
        wallet: PublicKey(wallet),
        round_trip: dice.millis(1, if dice.clone().happens(100) { 400 } else { 60 }),
        stragglers: if is_rock { 0 } else { dice.below(30) },
        lies: if !is_rock && dice.happens(200) { 300 } else { 0 },
        room: if is_rock { 4096 } else { 1 + dice.below(room_max) },
        is_stocked: size.workers > 100 || dice.happens(700),
        whims: if is_rock { Duration::from_secs(3600) } else { dice.millis(5_000, 120_000) },
    }
}

/// A machine that sleeps: all clocks jump at once.
async fn oversleep(mut dice: Dice) {
    loop {
        sleep(dice.millis(10_000, 60_000)).await;
        advance(dice.millis(100, 20_000)).await;
        if dice.happens(200) {
            advance(Duration::from_secs(3 * 3600)).await;
        }
    }
}

/// Steps one after the other, each with the sums that nobody's help gives.
async fn generate(world: &World, remote: &RemoteDispatch, size: Size, count: usize, mut dice: Dice, steps: &AtomicU64) {
    let layers = world.stage.model.weights.moe_layers().count();
    for n in 0..count {
        let rows = if dice.happens(100) { 1 + dice.below(size.rows_max) } else { 1 };
        let work = step(&world.stage.model, (n % layers) as u16, rows, dice.next());
        let expected: Vec<RowSum> = world.stage.local.begin(work.clone()).await.unwrap().rows;
        let pending = remote.begin(work);
        if dice.happens(30) {
            // Somebody closes the stream.
            let _ = timeout(dice.millis(0, 50), pending).await;
        } else {
            let sums = timeout(Duration::from_secs(6 * 3600), pending).await.expect("a step that ends").unwrap();
            assert!(sums.rows == expected, "the sums of step {n} differ from the local ones");
            steps.fetch_add(1, Relaxed);
        }
        sleep(dice.millis(1, 2_000)).await;
    }
}
