//! Lying workers on the whole road: whatever they send, the stream is the local one, and they are not paid for it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use kvasir::backbone::Backbone;
use kvasir::demo::decode::{Comparison, Decode};
use kvasir::demo::network::{Network, NetworkOptions};
use kvasir::dispatch::{LocalDispatch, Mode, TrustConfig};
use kvasir::kernel::ExpertCompute;
use kvasir::model::{self, Model};
use kvasir::worker::{Hardware, Phase};
use tokio::time::timeout;

use crate::support::compute;
use crate::support::faults::{Fault, Faulty};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// Tokens of every decode, and of one that waits for liars to be asked.
const TOKENS_MIN: usize = 4;
const TOKENS_MAX: usize = 64;

/// A network with one worker for each fault, after a decode that was compared with a local one bit by bit and in which
/// so many liars were caught.
async fn decoded(model: Arc<Model>, prompt: &[u32], faults: Vec<Fault>, liars: u64) -> Network {
    let armed = Arc::new(AtomicBool::new(false));
    let worker = |fault| -> Hardware {
        Hardware::from(Arc::new(Faulty::once(&armed, compute(), fault, &model)) as Arc<dyn ExpertCompute>)
    };
    let workers: Vec<Hardware> = faults.into_iter().map(worker).collect();
    let count = workers.len();
    let network = Network::start(NetworkOptions {
        model: Arc::clone(&model),
        compute: compute(),
        workers,
        remote_layers: (0..model.hyper.layers as u16).collect(),
        one_way: Duration::ZERO,
        bits_per_s: None,
        gateway: None,
        trust: TrustConfig::default(),
        cuttable: false,
    })
    .await
    .unwrap();
    network.dispatch.wait_ready(count, PATIENCE).await.unwrap();
    armed.store(true, SeqCst);
    let local = LocalDispatch::new(Arc::clone(&model), compute(), Mode::Exact);
    let mut local = Decode::new(Backbone::new(Arc::clone(&model), Arc::new(local)).unwrap());
    let mut remote = Decode::new(Backbone::new(model, Arc::new(network.dispatch.clone())).unwrap());
    let (mut comparison, mut input) = (Comparison::default(), prompt.to_vec());
    let is_over = |tokens: usize| tokens >= TOKENS_MIN && network.dispatch.counts().quarantined_wallets >= liars;
    while !is_over(local.tokens.len()) && local.tokens.len() < TOKENS_MAX {
        comparison.add(&local.step(&input).await.unwrap(), &remote.step(&input).await.unwrap());
        input = vec![*local.tokens.last().unwrap()];
    }
    assert!(comparison.bit_identical && local.tokens == remote.tokens);
    network
}

/// Waits until `is_so` for every worker's number.
async fn everybody(network: &Network, what: &str, is_so: impl AsyncFn(usize) -> bool) {
    for index in 0..network.wallets().len() {
        let one = async {
            while !is_so(index).await {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let found = timeout(PATIENCE, one).await;
        let (counts, status) = (network.dispatch.counts(), network.status(index));
        found.unwrap_or_else(|_| panic!("worker {index} is not {what}: {status:?}, {counts:?}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_workers_lie_about_the_stream_is_the_local_one_and_they_lose_their_place_and_pay() {
    let model = Arc::new(model::embedded().unwrap());
    let faults = vec![Fault::Scaled, Fault::Zeroes, Fault::Previous(Default::default()), Fault::OneOff(0)];
    let network = decoded(model, &[5, 6, 7, 8], faults, 4).await;
    let counts = network.dispatch.counts();
    assert_eq!((counts.quarantined_wallets, counts.quarantined_devices), (4, 0));
    assert!(counts.audit_mismatches >= 4 && counts.generations_affected == 0, "nothing false was used: {counts:?}");
    everybody(&network, "kept out", async |index| {
        matches!(network.status(index).phase, Phase::Waiting { reason, .. } if reason.contains("quarantined"))
    })
    .await;
    let (meters, accounts) = network.ledgers();
    everybody(&network, "void", async |index| {
        let wallet = network.wallets()[index];
        let rows = meters.meters_after(network.hub(), 0, 1000).await.unwrap();
        let void = rows.iter().filter(|row| row.wallet == wallet).all(|row| row.voided_bytes == row.work_bytes);
        void && network.statement(wallet).await.unwrap().pending_nano_kvr.0 == 0
    })
    .await;
    let report = accounts.check().await.unwrap();
    assert!(report.is_sound(), "{report:?}");
    network.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_of_the_wrong_length_or_without_a_number_are_refused_at_once() {
    let exact = Arc::new(model::embedded().unwrap());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/q35moe-tiny");
    let float = Arc::new(model::open(&path).unwrap());
    for (model, fault) in [(exact, Fault::Short), (float, Fault::NotANumber)] {
        let network = decoded(model, &[5, 6, 7], vec![fault], 0).await;
        let counts = network.dispatch.counts();
        assert_eq!((counts.assignments_remote, counts.work_bytes), (0, 0));
        assert!(counts.lost + counts.refused > 0, "{counts:?}");
        network.stop().await.unwrap();
    }
}
