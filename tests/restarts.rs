//! The gateway is replaced, and then killed, under four streams and fifty workers: the streams are the local one, the
//! workers come back apart from each other, and no account ever falls.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kvasir::ledger::Ledger;
use kvasir::net::dial::Outbound;
use kvasir::shutdown::{self, ShutdownTrigger};
use kvasir::types::PublicKey;
use kvasir::wallet::Wallet;
use kvasir::worker::{self, Phase, WorkerConfig, WorkerStatus};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::support::completion::{local_text, stream};
use crate::support::fleet::{Inner, inner};
use crate::support::process::Process;

const TOKENS: usize = 120;
const STREAMS: usize = 4;
const WORKERS: usize = 50;
/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A gateway's program in a file of its own, as an operator installs it, and its port.
struct Site {
    dir: PathBuf,
    program: PathBuf,
    port: u16,
}

impl Site {
    fn install(dir: &Path) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
        let site = Self { dir: dir.to_owned(), program: dir.join("kvasir-gateway"), port };
        site.replace();
        site
    }

    /// Puts a new file where the program is, also under one that runs.
    fn replace(&self) {
        let new = self.dir.join("kvasir-gateway.new");
        std::fs::copy(env!("CARGO_BIN_EXE_kvasir"), &new).expect("a copy");
        std::fs::rename(&new, &self.program).expect("one file in the place of the other");
    }

    fn start(&self, hub: &str) -> Process {
        let listen = format!("127.0.0.1:{}", self.port);
        let args = ["--headless", "gateway", "--listen", &listen, "--hub", hub, "--tls-trial"];
        let mut gateway = Process::start_program(&self.program, &self.dir, &args);
        gateway.after("listening on https://");
        gateway
    }
}

struct Worker {
    wallet: PublicKey,
    status: watch::Receiver<WorkerStatus>,
    /// How long it waits for its next attempt, each time.
    pauses: Arc<Mutex<Vec<u64>>>,
    stop: ShutdownTrigger,
    task: JoinHandle<()>,
}

fn worker(site: &Site, operator: &str, index: usize, kernel: &Arc<dyn kvasir::kernel::ExpertCompute>) -> Worker {
    let wallet = Arc::new(Wallet::generate().expect("a wallet"));
    let gateways = vec![format!("wss://localhost:{}", site.port)];
    let state = site.dir.join(format!("worker-{index}"));
    let config = WorkerConfig {
        outbound: Outbound {
            extra_ca: vec![site.dir.join("kvasir-state/gateway/trial-ca.pem")],
            ..Outbound::default()
        },
        assignments_per_s: Some(10_000.0),
        ..WorkerConfig::new(gateways, vec![operator.parse().expect("a key")], state, 64 << 20)
    };
    let (sender, status) = watch::channel(WorkerStatus::default());
    let (stop, shutdown) = shutdown::channel();
    let (address, hardware) = (wallet.address(), worker::Hardware::from(Arc::clone(kernel)).fixed());
    let task = tokio::spawn(async move {
        worker::run(config, wallet, hardware, sender, shutdown).await.expect("a worker that can try");
    });
    let mut seen = status.clone();
    let pauses: Arc<Mutex<Vec<u64>>> = Arc::default();
    let notes = Arc::clone(&pauses);
    tokio::spawn(async move {
        while seen.changed().await.is_ok() {
            if let Phase::Waiting { retry_ms, .. } = seen.borrow_and_update().phase {
                notes.lock().expect("no panic").push(retry_ms);
            }
        }
    });
    Worker { wallet: address, status, pauses, stop, task }
}

impl Worker {
    fn is_in(&self) -> bool {
        matches!(self.status.borrow().phase, Phase::Offered | Phase::Fetching { .. } | Phase::Serving)
    }

    /// The first pause after `noted` ones; a very short one may have gone unnoticed.
    fn pause_after(&self, noted: usize) -> Option<u64> {
        self.pauses.lock().expect("no panic").get(noted).copied()
    }
}

async fn all_in(workers: &[Worker]) {
    until("a worker did not come back", || workers.iter().all(Worker::is_in)).await;
    until("nobody serves", || workers.iter().any(|worker| worker.status.borrow().phase == Phase::Serving)).await;
}

/// Completions one after the other, each compared with the local one, until told to stop.
async fn stream_on(api: String, expected: String, begun: Arc<AtomicUsize>, over: Arc<AtomicBool>) -> usize {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    let mut done = 0;
    while !over.load(SeqCst) {
        let text = stream(&client, &api, TOKENS, |_| {
            begun.fetch_add(1, SeqCst);
        })
        .await;
        assert_eq!(text, expected, "stream {done}");
        done += 1;
    }
    done
}

/// Looks at every account again and again: none may fall.
async fn watch_accounts(ledger: Ledger, wallets: Vec<PublicKey>, over: Arc<AtomicBool>) -> u64 {
    let mut last: BTreeMap<PublicKey, u64> = BTreeMap::new();
    loop {
        let is_last = over.load(SeqCst);
        for wallet in &wallets {
            let pending = ledger.wallet(*wallet).await.expect("an account").pending_nano_kvr.0;
            let before = last.insert(*wallet, pending).unwrap_or(0);
            assert!(pending >= before, "{wallet} fell from {before} to {pending}");
        }
        if is_last {
            return last.values().sum();
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_replaced_and_killed_under_four_streams_changes_no_token_and_no_account_falls() {
    let dir = tempfile::tempdir().expect("a directory");
    let expected = local_text(dir.path(), TOKENS);
    let Inner { backbone, hub, api, hub_address, operator } = inner(dir.path(), "", &[]);
    let site = Site::install(dir.path());
    let gateway = site.start(&hub_address);
    let kernel = crate::support::compute();
    let workers: Vec<Worker> = (0..WORKERS).map(|index| worker(&site, &operator, index, &kernel)).collect();
    all_in(&workers).await;

    let (begun, over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let next = || stream_on(api.clone(), expected.clone(), Arc::clone(&begun), Arc::clone(&over));
    let streams: Vec<_> = (0..STREAMS).map(|_| tokio::spawn(next())).collect();
    let url = format!("sqlite:{}", dir.path().join("kvasir-state/gateway/ledger.db").display());
    let ledger = Ledger::open(&url).await.expect("the gateway's books");
    let wallets = workers.iter().map(|worker| worker.wallet).collect();
    let accounts = tokio::spawn(watch_accounts(ledger.clone(), wallets, Arc::clone(&over)));
    let more_tokens = async || {
        let so_far = begun.load(SeqCst);
        until("the streams stand still", || begun.load(SeqCst) >= so_far + STREAMS * TOKENS / 2).await;
    };
    more_tokens().await;

    let noted = || -> Vec<usize> { workers.iter().map(|w| w.pauses.lock().expect("no panic").len()).collect() };
    let pauses_after = |noted: &[usize]| -> Vec<u64> {
        workers.iter().zip(noted).filter_map(|(worker, noted)| worker.pause_after(*noted)).collect()
    };
    let before = noted();
    // The program is replaced by another file and its process by a new one.
    site.replace();
    let start = Instant::now();
    let status = tokio::task::spawn_blocking(move || gateway.terminate()).await.expect("no panic");
    assert_eq!(status.code(), Some(0));
    let drained = start.elapsed();
    assert!(drained < Duration::from_secs(15), "workers that are told to go do not keep the gateway: {drained:?}");
    let mut gateway = site.start(&hub_address);
    more_tokens().await;
    all_in(&workers).await;
    more_tokens().await;
    let returned = start.elapsed();
    let told = pauses_after(&before);
    assert!(told.len() >= WORKERS * 4 / 5 && !is_crowded(&told, 1_000), "pauses after the goodbye: {told:?}");

    let before = noted();
    gateway.kill();
    more_tokens().await;
    let gateway = site.start(&hub_address);
    all_in(&workers).await;
    more_tokens().await;

    let after_kill = pauses_after(&before);
    assert!(
        after_kill.len() >= WORKERS * 4 / 5 && !is_crowded(&after_kill, 50),
        "pauses after the kill: {after_kill:?}"
    );
    over.store(true, SeqCst);
    let mut completions = 0;
    for stream in streams {
        completions += stream.await.expect("every stream is the local one");
    }
    workers.iter().for_each(|worker| worker.stop.fire());
    for worker in workers {
        worker.task.await.expect("a clean stop");
    }
    let status = tokio::task::spawn_blocking(move || gateway.terminate()).await.expect("no panic");
    assert_eq!(status.code(), Some(0));
    let credited = accounts.await.expect("no account fell");
    assert!(credited > 0 && ledger.check().await.expect("a check").is_sound());
    eprintln!(
        "{completions} completions; the gateway drained in {drained:?}, all were back {returned:?} after SIGTERM"
    );
    drop((backbone, hub));
}

/// Whether more than half of the pauses end within some `window_ms`: for one drawn evenly from more than twice that,
/// fifty never do.
fn is_crowded(pauses: &[u64], window_ms: u64) -> bool {
    let within = |from: u64| pauses.iter().filter(|pause| (from..from + window_ms).contains(*pause)).count();
    pauses.iter().any(|pause| within(*pause) > pauses.len() / 2)
}
