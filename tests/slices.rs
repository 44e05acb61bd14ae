//! Slices over the link: how they come, what a broken line costs, and that work passes beside them.

mod processes;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvasir::dispatch::{Dispatch as _, MoeStep, Route};
use kvasir::model::{self, BlockType, Data, Model};
use kvasir::worker::{CacheConfig, Hardware, Phase, Source, WorkerConfig};

use crate::dispatch::world::{Backbone, Hub, PATIENCE, Worker, exact_model, kernel, local_sums, soon, step};
use crate::support::line::{Line, Nature, Trouble};
use crate::support::one_layer::OneLayer;

/// Twelve experts of 836 KB each in one layer.
fn wide_model() -> Arc<Model> {
    let sizes =
        OneLayer { hidden: 1024, intermediate: 256, experts: 12, experts_per_token: 2, experts_type: BlockType::Q8_0 };
    Arc::new(model::from_gguf("wide", Data::from(sizes.gguf())).expect("a model"))
}

const WIDE_BYTES: u64 = 12 * 3 * 1024 * 256 / 32 * 34;

/// A home's line of `mbit`, ten milliseconds long.
fn home(mbit: f64) -> Nature {
    Nature { bits_per_s: mbit * 1e6, delay: Duration::from_millis(10) }
}

/// A backbone that lends all layers of `model`, its hub, and a line between hub and workers.
struct Net {
    backbone: Arc<Backbone>,
    hub: Hub,
    line: Line,
    dir: tempfile::TempDir,
}

impl Net {
    async fn start(model: Arc<Model>, nature: Nature) -> Self {
        let layers = (0..model.weights.layers.len() as u16).collect();
        let backbone = Arc::new(Backbone::start(model, layers).await);
        let hub = Hub::start(&backbone).await;
        let line = Line::to(hub.addr, nature).await;
        Self { backbone, hub, line, dir: tempfile::tempdir().expect("a directory") }
    }

    fn cache(&self) -> CacheConfig {
        CacheConfig { floor_bytes: 0, ..CacheConfig::new(self.dir.path().join("cache"), None) }
    }

    /// A worker behind the line that is quick to come back.
    fn worker(&self, name: &str, change: impl FnOnce(&mut WorkerConfig)) -> Worker {
        self.hub.worker_as(name, Source::Fetch, Hardware::from(kernel()).fixed(), |config| {
            config.gateways = vec![format!("ws://{}", self.line.addr)];
            config.cache = Some(self.cache());
            config.timers.backoff_max = Duration::from_millis(20);
            config.timers.chunk = Duration::from_millis(500);
            change(config);
        })
    }

    /// Steps of layer 0, all checked, until one is served by workers alone; how long that took.
    async fn served(&self) -> Duration {
        let start = Instant::now();
        for seed in 0.. {
            let before = self.backbone.remote.counts();
            self.backbone.check(step(&self.backbone.model, 0, 1, seed)).await;
            let after = self.backbone.remote.counts();
            if after.assignments_local == before.assignments_local {
                break;
            }
            assert!(start.elapsed() < PATIENCE, "nobody serves");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        start.elapsed()
    }
}

fn files(dir: &Path, ending: &str) -> usize {
    let entries = std::fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path());
    entries.filter(|path| path.extension().is_some_and(|e| e == ending)).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_download_goes_on_where_ten_cuts_and_stalls_left_it() {
    let seed = 0x5eed_0001_u64;
    println!("seed {seed:#x}");
    let net = Net::start(wide_model(), home(200.0)).await;
    let mut random = seed;
    let mut random = move |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let kind = |n: usize| if n % 5 == 3 { Trouble::Stall } else { Trouble::Cut };
    net.line.trouble_after(30_000 + random(1_000_000), kind(0));
    let worker = net.worker("worker", |_| {});
    let mut progress = 0;
    for n in 1..=10 {
        soon(net.line.troubled(n)).await;
        if n < 10 {
            net.line.trouble_after(30_000 + random(1_200_000), kind(n));
        }
        let mut status = worker.status.clone();
        // Verified bytes never fall within a lease; a new link's lease begins with what was verified before.
        let fetching = |phase: &Phase| match phase {
            Phase::Fetching { done, total } => Some((*done, *total)),
            _ => None,
        };
        if let Some((done, total)) = fetching(&status.borrow_and_update().phase) {
            assert!((progress..=WIDE_BYTES).contains(&done) && total == WIDE_BYTES, "{done} of {total}");
            progress = done;
        }
    }
    net.backbone.ready(1).await;
    net.backbone.check(step(&net.backbone.model, 0, 3, 1)).await;
    assert!(net.backbone.remote.counts().assignments_remote > 0);
    let fetched = net.line.bytes();
    // What is lost with a link is what was on its way, as far as it had left the hub.
    let lost = 10 * 256 * 1024;
    assert!(fetched < WIDE_BYTES + WIDE_BYTES / 20 + lost, "{fetched} bytes for {WIDE_BYTES} of experts");
    let cache = net.cache().dir;
    assert_eq!((files(&cache, "expert"), files(&cache, "part")), (12 + 1, 0), "and the manifest");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_with_its_experts_on_disk_serves_at_once_and_after_a_cut_too() {
    let net = Net::start(exact_model(), home(100.0)).await;
    net.worker("worker", |_| {}).stop_when_serving(&net).await;
    let before = net.line.bytes();
    let worker = net.worker("worker", |_| {});
    let joined = net.served().await;
    assert!(joined < Duration::from_secs(3), "{joined:?}");
    assert!(net.line.bytes() - before < 40_000, "{} bytes", net.line.bytes() - before);

    net.backbone.ready(1).await;
    net.line.trouble_after(1, Trouble::Cut);
    let local = net.backbone.remote.counts().assignments_local;
    while net.backbone.remote.counts().assignments_local == local {
        net.backbone.check(step(&net.backbone.model, 0, 1, 7)).await;
    }
    let resumed = net.served().await;
    assert!(resumed < Duration::from_secs(3), "{resumed:?}");
    worker.stop().await;

    // Files that somebody deletes or damages are fetched again, and no others.
    let cache = net.cache().dir;
    let mut paths: Vec<_> =
        std::fs::read_dir(&cache).expect("a directory").map(|e| e.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|e| e == "expert"));
    paths.sort_by_key(|path| path.metadata().expect("a file").len());
    // The smallest is the manifest.
    for path in &paths[..2] {
        std::fs::remove_file(path).expect("deleted");
    }
    std::fs::write(&paths[2], b"nonsense").expect("damaged");
    let sizes: u64 = exact_model().weights.layers[0].experts[0].to_bytes().len() as u64;
    let before = net.line.bytes();
    let worker = net.worker("worker", |_| {});
    net.backbone.ready(1).await;
    net.backbone.check(step(&net.backbone.model, 1, 3, 1)).await;
    let fetched = net.line.bytes() - before;
    assert!(fetched < 3 * sizes + 60_000, "{fetched} bytes for two experts of about {sizes}");
    worker.stop().await;
}

impl Worker {
    async fn stop_when_serving(self, net: &Net) {
        net.backbone.ready(1).await;
        self.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_workers_on_one_directory_fetch_each_expert_once() {
    let net = Net::start(exact_model(), home(50.0)).await;
    let (one, two) = (net.worker("one", |_| {}), net.worker("two", |_| {}));
    net.backbone.ready(2).await;
    for layer in 0..4 {
        net.backbone.check(step(&net.backbone.model, layer, 3, layer.into())).await;
    }
    let all: usize =
        net.backbone.model.weights.layers.iter().flat_map(|l| &l.experts).map(|e| e.to_bytes().len()).sum();
    let fetched = net.line.bytes();
    assert!(fetched < all as u64 * 11 / 10 + 400_000, "{fetched} bytes for {all} of experts");
    soon(async {
        while files(&net.cache().dir, "part") > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    for worker in [one, two] {
        worker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cache_without_room_keeps_what_fits_and_serves_everything() {
    let net = Net::start(exact_model(), home(1000.0)).await;
    let worker = net.worker("worker", |config| {
        config.cache = Some(CacheConfig { bytes_max: Some(500_000), ..net.cache() });
    });
    net.backbone.ready(1).await;
    for layer in 0..4 {
        net.backbone.check(step(&net.backbone.model, layer, 3, layer.into())).await;
    }
    assert_eq!(net.backbone.remote.counts().assignments_local, 0);
    let trouble = worker.status.borrow().disk_trouble.clone();
    assert!(trouble.is_some_and(|why| why.contains("--cache-size")));
    let kept = files(&net.cache().dir, "expert");
    assert!((1..17).contains(&kept), "{kept}");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn experts_of_local_weights_are_not_fetched_wherever_they_stand_in_them() {
    let net = Net::start(exact_model(), home(1000.0)).await;
    // The same file with two layers changed in place: half of the experts that are served, under another manifest.
    let mut other = Model { name: "other".into(), ..model::embedded().expect("a model") };
    other.weights.layers.swap(0, 1);
    for layer in &mut other.weights.layers[2..] {
        layer.experts.rotate_left(1);
        layer.experts.truncate(8);
    }
    let worker = net.worker("worker", |config| {
        config.source = Source::LocalModel(Arc::new(other));
        config.cache = None;
    });
    net.backbone.ready(1).await;
    for layer in 0..4 {
        net.backbone.check(step(&net.backbone.model, layer, 3, layer.into())).await;
    }
    assert_eq!(net.backbone.remote.counts().assignments_local, 0);
    let missing: usize = net.backbone.model.weights.layers[2..]
        .iter()
        .flat_map(|layer| layer.experts[9..].iter().chain(&layer.experts[..1]))
        .map(|e| e.to_bytes().len())
        .sum();
    let fetched = net.line.bytes();
    assert!(fetched < missing as u64 + 120_000, "{fetched} bytes for {missing} of experts");
    worker.stop().await;
}

/// Half of the samples are shorter.
fn median(mut samples: Vec<Duration>) -> Duration {
    samples.sort();
    samples[samples.len() / 2]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_assignment_is_served_early_in_a_download_that_hardly_delays_work() {
    let net = Net::start(wide_model(), home(20.0)).await;
    let start = Instant::now();
    let worker = net.worker("worker", |_| {});
    let rows = 16;
    let model = &net.backbone.model;
    let work = MoeStep {
        routes: (0..2 * rows).map(|i| Route { expert: i as u16 % 2, weight: 0.5 }).collect(),
        ..step(model, 0, rows, 1)
    };
    let expected = local_sums(model, &work).await;
    let (mut during, mut after) = (Vec::new(), Vec::new());
    let mut first = None;
    while after.len() < 15 {
        let is_fetching = matches!(worker.status.borrow().phase, Phase::Fetching { .. });
        let (before, asked) = (net.backbone.remote.counts().assignments_local, Instant::now());
        let got = soon(net.backbone.remote.begin(work.clone())).await.expect("sums");
        let took = asked.elapsed();
        assert!(got.rows == expected);
        if net.backbone.remote.counts().assignments_local > before {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        }
        first.get_or_insert_with(|| start.elapsed());
        let is_still = matches!(worker.status.borrow().phase, Phase::Fetching { .. });
        match (is_fetching, is_still) {
            (true, true) => during.push(took),
            (false, false) => after.push(took),
            _ => {}
        }
        assert!(start.elapsed() < PATIENCE, "{} during, {} after", during.len(), after.len());
    }
    let first = first.expect("served");
    println!("first after {first:?}, whole after {:?}", start.elapsed());
    assert!(first < Duration::from_secs(10) && during.len() > 10, "{first:?}, {} samples", during.len());
    let (during, after) = (median(during), median(after));
    println!("work takes {during:?} during the download and {after:?} after it");
    assert!(during <= after.mul_f64(1.5), "{during:?} during the download, {after:?} after it");
    worker.stop().await;
}
