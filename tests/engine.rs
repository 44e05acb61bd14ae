//! The contributor's engine against a real network on loopback: from the join code to the last nano-KVR, and what it
//! says when something is missing.

mod claims;
mod driver;
mod guest;
mod keys;
mod release;
#[cfg(feature = "gpu")]
mod stop;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kvasir::backbone::Backbone;
use kvasir::demo::decode::Decode;
use kvasir::demo::network::{Network, NetworkOptions};
use kvasir::dispatch::TrustConfig;
use kvasir::engine::{
    DeviceKind, DeviceState, Engine, EngineConfig, FindHardware, Found, Intervals, Link, Search, Slice, State, Status,
    WalletState,
};
use kvasir::kernel::{CpuKernel, CpuPath, ExpertCompute};
use kvasir::model;
use kvasir::types::PublicKey;
use kvasir::wallet::{FileKeyStore, KeyStore, KeyStoreError, Wallet};
use kvasir::worker::Hardware;
use kvasir::worker::courtesy::Sources;
use tokio::task::JoinHandle;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(30);
const MEMORY: u64 = 1 << 30;

fn kernel() -> Arc<dyn ExpertCompute> {
    Arc::new(CpuKernel::new(CpuPath::detect().unwrap(), 1).unwrap())
}

/// A network without workers.
async fn network() -> Network {
    let options = NetworkOptions {
        model: Arc::new(model::embedded().unwrap()),
        compute: kernel(),
        workers: Vec::new(),
        remote_layers: vec![0, 1, 2, 3],
        one_way: Duration::ZERO,
        bits_per_s: None,
        gateway: None,
        trust: TrustConfig::default(),
        cuttable: false,
    };
    Network::start(options).await.unwrap()
}

/// Two processors that can be switched off.
fn search(off: &BTreeSet<String>) -> Search {
    let found = |id: &str| Found {
        id: id.into(),
        name: format!("the {id}"),
        kind: DeviceKind::Cpu,
        memory_bytes: 0,
        unusable: None,
    };
    let hardware = || Hardware { kernel: kernel(), why: "it was asked for".into() }.fixed();
    let best = if off.contains("cpu") { Err("switched off".to_owned()) } else { Ok(hardware()) };
    Search { found: vec![found("cpu"), found("other")], best }
}

struct Desk {
    engine: Engine,
    task: JoinHandle<()>,
}

impl Desk {
    fn with_store(dir: &Path, store: Arc<dyn KeyStore>) -> Self {
        Self::with(dir, |config| config.store = store)
    }

    /// An engine that is told what else `set` says. Courtesy looks at directories beside the state: `sys` and `proc`.
    fn with(dir: &Path, set: impl FnOnce(&mut EngineConfig)) -> Self {
        let hardware: FindHardware = Box::new(|off| Box::pin(async move { search(&off) }));
        let often = Duration::from_millis(50);
        let mut config = EngineConfig {
            intervals: Intervals { working: often, resting: often },
            memory_bytes: Some(MEMORY),
            sources: Sources { sys: dir.join("sys"), proc: dir.join("proc"), services: false },
            look_every: often,
            ..EngineConfig::new(dir.to_owned(), Arc::new(FileKeyStore::new(dir)), hardware)
        };
        set(&mut config);
        let (engine, task) = Engine::start(config);
        Self { engine, task }
    }

    fn start(dir: &Path) -> Self {
        Self::with(dir, |_| ())
    }

    /// The status once it is as wished.
    async fn until(&self, what: &str, wish: impl Fn(&Status) -> bool) -> Status {
        let mut updates = self.engine.updates();
        let wait = async {
            loop {
                let status = updates.next().await.unwrap();
                if wish(&status) {
                    return status;
                }
            }
        };
        match timeout(PATIENCE, wait).await {
            Ok(status) => status,
            Err(_) => panic!("expected {what}, got {:?}", self.engine.status()),
        }
    }

    async fn ready(&self) -> Status {
        let is_ready =
            |s: &Status| matches!((&s.wallet.state, &s.device), (WalletState::Ready { .. }, DeviceState::Ready { .. }));
        self.until("a wallet and a device", is_ready).await
    }

    async fn join(&self, code: &str) {
        self.engine.offer(code.to_owned()).await.unwrap();
        self.engine.accept().await.unwrap();
    }

    async fn stop(self) {
        self.engine.stop().await;
        timeout(PATIENCE, self.task).await.unwrap().unwrap();
    }
}

fn address(status: &Status) -> PublicKey {
    let WalletState::Ready { address } = &status.wallet.state else { panic!("no wallet: {status:?}") };
    address.parse().unwrap()
}

async fn generate(network: &Network, tokens: usize) {
    let backbone = Backbone::new(Arc::new(model::embedded().unwrap()), Arc::new(network.dispatch.clone())).unwrap();
    let mut decode = Decode::new(backbone);
    let mut input = vec![1, 2, 3];
    for done in 0..tokens {
        decode.step(&input).await.unwrap();
        input = decode.tokens[done..].to_vec();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn from_the_join_code_to_the_last_nano() {
    let (network, dir) = (network().await, tempfile::tempdir().unwrap());
    let desk = Desk::start(dir.path());
    let status = desk.ready().await;
    let wallet = address(&status);
    assert_eq!((status.state, &status.link, &status.network), (State::Paused, &Link::Off, &None));
    assert_eq!(desk.engine.contribute(true).await.unwrap_err().code(), "no_network");

    desk.engine.offer(network.join_code().unwrap()).await.unwrap();
    let status = desk.engine.status();
    assert!(status.offer.is_some() && status.network.is_none(), "an invitation changes nothing by itself");
    desk.engine.accept().await.unwrap();
    let status = desk.engine.status();
    assert_eq!(status.offer, None);
    assert_eq!(status.network.unwrap().operator, network.invite().operator.to_string());

    desk.engine.contribute(true).await.unwrap();
    let serving = desk.until("a slice", |s| matches!(s.slice, Slice::Held { .. })).await;
    assert_eq!((serving.state, serving.link, serving.contributing), (State::Working, Link::Online, true));
    generate(&network, 8).await;
    let served = network.dispatch.counts();
    assert!(served.assignments_remote > 0, "{served:?}");

    // What is shown is what the gateway says, to the nano.
    let nano = (served.work_bytes * 7).to_string();
    let paid = desk.until("the whole credit", |s| s.account.as_ref().is_some_and(|a| a.pending_nano_kvr == nano)).await;
    let statement = network.statement(wallet).await.unwrap();
    let account = paid.account.unwrap();
    assert_eq!(account.pending_nano_kvr, statement.pending_nano_kvr.0.to_string());
    assert_eq!(account.pending_kvr, statement.pending_kvr);
    assert_eq!(account.last_credit_unix_ms, Some(statement.last_credit_unix_ms));
    assert!(paid.assignments >= served.assignments_remote, "late ones were answered too");

    desk.engine.contribute(false).await.unwrap();
    let status = desk.engine.status();
    assert_eq!((status.state, status.link, status.contributing), (State::Paused, Link::Off, false));
    assert!(network.dispatch.workers().is_empty(), "the worker is gone from the network");
    assert!(status.account.is_some(), "what is owed stays in sight");
    desk.engine.contribute(true).await.unwrap();
    desk.until("a slice again", |s| matches!(s.slice, Slice::Held { .. })).await;
    desk.stop().await;
    assert!(network.dispatch.workers().is_empty());

    // The next start knows wallet and network, and goes on.
    let desk = Desk::start(dir.path());
    let status = desk.ready().await;
    assert_eq!(address(&status), wallet);
    assert!(status.network.is_some() && status.contributing);
    desk.until("a slice after the restart", |s| matches!(s.slice, Slice::Held { .. })).await;
    desk.stop().await;
    network.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_is_away_is_named_and_the_last_account_stays() {
    let (network, dir) = (network().await, tempfile::tempdir().unwrap());
    let desk = Desk::start(dir.path());
    desk.ready().await;
    desk.join(&network.join_code().unwrap()).await;
    let known = desk.until("an account", |s| s.account.is_some()).await;
    assert_eq!(known.account.unwrap().pending_nano_kvr, "0");
    desk.engine.contribute(true).await.unwrap();
    desk.until("a link", |s| s.link == Link::Online).await;
    drop(network);
    let status = desk.until("a lost gateway", |s| s.account_problem.is_some() && s.state == State::Offline).await;
    assert_eq!(status.account_problem.unwrap().code, "gateway_unreachable");
    assert_eq!(status.account.unwrap().pending_nano_kvr, "0");
    let Link::Waiting { reason, .. } = status.link else { panic!("{:?}", status.link) };
    assert!(!reason.is_empty());
    desk.engine.contribute(false).await.unwrap();
    assert_eq!(desk.engine.status().state, State::Paused);
    desk.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn codes_are_refused_by_name_and_another_operator_only_after_leaving() {
    let (first, second) = (network().await, network().await);
    let dir = tempfile::tempdir().unwrap();
    let desk = Desk::start(dir.path());
    desk.ready().await;
    assert_eq!(desk.engine.accept().await.unwrap_err().code(), "no_offer");
    assert_eq!(desk.engine.offer("hello".into()).await.unwrap_err().code(), "invite_malformed");
    desk.join(&first.join_code().unwrap()).await;
    let refused = desk.engine.offer(second.join_code().unwrap()).await.unwrap_err();
    assert_eq!(refused.code(), "invite_other_operator");
    assert_eq!(desk.engine.status().offer, None);
    desk.engine.leave().await.unwrap();
    assert_eq!(desk.engine.status().network, None);
    desk.engine.offer(second.join_code().unwrap()).await.unwrap();
    // Nobody reads one invitation and joins another one that came in between.
    assert_eq!(desk.engine.offer(first.join_code().unwrap()).await.unwrap_err().code(), "offer_waiting");
    let waiting = desk.engine.status().offer.unwrap().operator;
    desk.engine.offer(second.join_code().unwrap()).await.unwrap();
    assert_eq!(desk.engine.status().offer.unwrap().operator, waiting);
    desk.engine.decline().await.unwrap();
    assert_eq!(desk.engine.status().offer, None);
    desk.join(&second.join_code().unwrap()).await;
    assert_eq!(desk.engine.status().network.unwrap().operator, second.invite().operator.to_string());
    desk.stop().await;
    first.stop().await.unwrap();
    second.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wallet_whose_key_is_gone_is_shown_and_never_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let desk = Desk::start(dir.path());
    let wallet = address(&desk.ready().await);
    desk.stop().await;
    let key = dir.path().join(format!("{wallet}.wallet"));
    let kept = std::fs::read(&key).unwrap();
    std::fs::remove_file(&key).unwrap();

    let desk = Desk::start(dir.path());
    let lost = desk.until("a missing key", |s| matches!(s.wallet.state, WalletState::KeyMissing { .. })).await;
    let WalletState::KeyMissing { address, problem } = lost.wallet.state else { panic!("{:?}", lost.wallet.state) };
    assert_eq!((address, problem.code.as_str()), (wallet.to_string(), "wallet_key_missing"));
    assert_eq!(lost.state, State::Error);
    assert_eq!(
        std::fs::read_dir(dir.path())
            .unwrap()
            .filter(|e| { e.as_ref().unwrap().file_name().to_string_lossy().ends_with(".wallet") })
            .count(),
        0,
        "no new wallet was made"
    );
    // The backup is back.
    write_private(&key, &kept);
    desk.engine.open_wallet().await.unwrap();
    let found = desk.until("the wallet", |s| matches!(s.wallet.state, WalletState::Ready { .. })).await;
    assert_eq!(self::address(&found), wallet);
    desk.stop().await;
}

fn write_private(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
    #[cfg(unix)]
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
}

/// A keyring that does not answer.
struct NoKeyring;

impl KeyStore for NoKeyring {
    fn load(&self, _: &PublicKey) -> Result<Wallet, KeyStoreError> {
        Err(KeyStoreError::Unavailable { reason: "nobody there".into() })
    }

    fn store(&self, _: &Wallet) -> Result<(), KeyStoreError> {
        Err(KeyStoreError::Unavailable { reason: "nobody there".into() })
    }

    fn remove(&self, _: &PublicKey) -> Result<(), KeyStoreError> {
        Err(KeyStoreError::Unavailable { reason: "nobody there".into() })
    }

    fn list(&self) -> Result<Vec<PublicKey>, KeyStoreError> {
        Err(KeyStoreError::Unavailable { reason: "nobody there".into() })
    }

    fn name(&self) -> String {
        "no keyring".into()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_keyring_nothing_is_contributed_and_the_reason_is_shown() {
    let (network, dir) = (network().await, tempfile::tempdir().unwrap());
    let desk = Desk::with_store(dir.path(), Arc::new(NoKeyring));
    let status = desk.until("a failed wallet", |s| matches!(s.wallet.state, WalletState::Failed { .. })).await;
    let WalletState::Failed { problem } = status.wallet.state else { panic!("{:?}", status.wallet.state) };
    assert_eq!(problem.code, "keyring_unavailable");
    desk.join(&network.join_code().unwrap()).await;
    assert_eq!(desk.engine.contribute(true).await.unwrap_err().code(), "no_wallet");
    desk.stop().await;
    network.stop().await.unwrap();
}
