//! A hub's ledger that was restored from a backup, and a wallet that has the receipts of what it lost.

use kvasir::ledger::ClaimTerms;
use kvasir::types::PublicKey;
use kvasir::wallet::{Wallet, keyfile};
use kvasir::wire::control::{Control, Receipt};
use kvasir::wire::receipt::{self, KeptReceipt, ReturnedReceipt};
use serde_json::{Value, json};

use super::{Place, assert_sound, meter};
use crate::gateway::harness::{TestGateway, TestHub};
use crate::hub::world::{HIDDEN, Worker, World};
use crate::support::process::ended;

const EACH: u64 = 4 * HIDDEN as u64;

fn wallet() -> Wallet {
    Wallet::from_seed(&[7; 32])
}

/// A session of the wallet that earns this many assignments and ends; its receipt.
async fn work(world: &World, assignments: u32) -> KeptReceipt {
    let (mut worker, mut backbone) = world.session(7, 1).await;
    backbone.round(&mut worker, 1, assignments).await;
    backbone.verdict(1, 0, assignments).await;
    let kept = keep(&mut worker).await;
    worker.ws.close(1000, "").await;
    assert_eq!(backbone.closed().await, "left");
    drop(backbone);
    world.meter_until(kept.receipt.session_id, |meter| meter.r#final).await;
    kept
}

async fn keep(worker: &mut Worker) -> KeptReceipt {
    let receipt = Receipt::read(&worker.recv().await.expect("a receipt")).expect("a receipt");
    let ack = receipt::ack(&worker.session.session_signer, &receipt);
    worker.send(&ack.frame().expect("a frame")).await;
    KeptReceipt { receipt, session_key: worker.session.session_signer.public(), ack }
}

async fn hand_in(gateway: &TestGateway, returned: &ReturnedReceipt) -> (u16, Value) {
    let body = serde_json::to_string(returned).expect("JSON");
    let head = format!("POST /v1/receipts HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len());
    let (status, answer) = gateway.exchange(&(head + &body)).await;
    (status, serde_json::from_str(&answer).expect("JSON"))
}

async fn credited(gateway: &TestGateway, work_bytes: u64) {
    let target = format!("/v1/wallets/{}", wallet().address());
    let statement = gateway.get_until(&target, |body| body["work_bytes"] == work_bytes).await;
    assert_eq!(statement["pending_nano_kvr"], work_bytes * 7);
}

/// A gateway at the world's hub, for as long as `story` takes.
async fn with_gateway(world: &World, story: impl AsyncFnOnce(&TestGateway)) {
    let run = async {
        let gateway = TestGateway::start(world.hub, &world.ledger, |_| ()).await;
        story(&gateway).await;
        gateway.stop().await;
    };
    tokio::select! {
        () = run => {}
        () = world.answer_probes() => unreachable!("probes are answered for ever"),
    }
}

/// Stops the hub; what its ledger holds then.
async fn stopped(world: &mut World) -> Vec<u8> {
    world.stop_hub();
    world.stopped().await.expect("a clean stop");
    world.closed_ledger().await
}

/// One ledger for hub and gateway, as operators of one machine have it.
#[tokio::test(flavor = "multi_thread")]
async fn receipts_bring_back_what_a_ledger_lost_with_its_last_hours() {
    let mut world = World::start().await;
    let before = work(&world, 5).await;
    with_gateway(&world, async |gateway| credited(gateway, 5 * EACH).await).await;
    let backup = stopped(&mut world).await;

    world.reopen(None).await;
    let lost = work(&world, 3).await;
    with_gateway(&world, async |gateway| credited(gateway, 8 * EACH).await).await;
    stopped(&mut world).await;

    world.reopen(Some(&backup)).await;
    let returned = wallet().return_receipt(lost.clone());
    let more = Receipt { work_bytes: 9 * EACH, ..lost.receipt.clone() };
    let forged = [
        Wallet::from_seed(&[8; 32]).return_receipt(lost.clone()),
        wallet().return_receipt(KeptReceipt { receipt: more, ..lost.clone() }),
        wallet().return_receipt(KeptReceipt { session_key: PublicKey([1; 32]), ..lost.clone() }),
        ReturnedReceipt { kept: before.clone(), ..returned.clone() },
    ];
    with_gateway(&world, async |gateway| {
        credited(gateway, 5 * EACH).await;
        gateway.get_until("/status", |status| status["hubs"][0]["hub"] == world.hub_key.to_string()).await;
        for forged in &forged {
            assert_eq!(hand_in(gateway, forged).await.0, 400);
        }
        assert_eq!(hand_in(gateway, &returned).await, (200, json!({ "raised": true })));
        credited(gateway, 8 * EACH).await;
        for known in [&returned, &wallet().return_receipt(before)] {
            assert_eq!(hand_in(gateway, known).await, (200, json!({ "raised": false })));
        }
    })
    .await;
    // Work goes on beside what came back.
    work(&world, 2).await;
    with_gateway(&world, async |gateway| credited(gateway, 10 * EACH).await).await;
    assert_sound(&world.ledger).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wallet_claims_an_operator_settles_and_everybody_can_check() {
    let (dir, place, hub) = (tempfile::tempdir().expect("a directory"), Place::file(), TestHub::start().await);
    let run = |args: &[&str]| tokio::task::block_in_place(|| ended(dir.path(), args));
    let (code, address, why) = run(&["wallet", "create", "--state", "w"]);
    assert_eq!(code, Some(0), "{why}");
    let address: PublicKey = address.parse().expect("an address");
    let ledger = place.open().await;
    let row = kvasir::ledger::Meter { wallet: address, ..meter(0, 1_277_952, 0, 1) };
    assert_eq!(ledger.apply(&[row], super::RATE).await.expect("a ledger").refused, []);
    let operator = keyfile::load_or_create(&dir.path().join("operator.key")).expect("a key").public();
    let terms = ClaimTerms { operator, hold: std::time::Duration::ZERO };
    let gateway = TestGateway::start(hub.addr, &ledger, |config| config.claims = Some(terms)).await;
    std::fs::write(dir.path().join("ca.pem"), &gateway.ca_pem).expect("a file");

    let at = format!("wss://localhost:{}", gateway.addr.port());
    let (operator, stranger) = (operator.to_string(), PublicKey([3; 32]).to_string());
    let claim = |operator: &str| {
        run(&["wallet", "claim", "--state", "w", "--gateway", &at, "--operator", operator, "--ca", "ca.pem"])
    };
    let (code, _, why) = claim(&stranger);
    assert!(code == Some(1) && why.contains("expected a gateway of operator"), "{why}");
    let (code, words, why) = claim(&operator);
    assert_eq!(code, Some(0), "{why}");
    assert!(words.contains("lifetime 8945664 nano-KVR | sequence 1 | expires "), "{words}");

    let url = ["--ledger", place.url.as_str()];
    let ledger_says = |args: &[&str]| run(&[&["ledger"], args, &url].concat());
    let (code, settled, why) = ledger_says(&["settle", "--operator-key", "operator.key"]);
    assert_eq!(code, Some(0), "{why}");
    let settled: Value = serde_json::from_str(settled.lines().next().expect("a line")).expect("JSON");
    assert_eq!((&settled["paid"], &settled["paid_nano_kvr"]), (&1.into(), &8_945_664.into()));
    let (_, exported, _) = ledger_says(&["export"]);
    let (batch, leaf) = exported.split_once('\n').expect("two lines");
    let batch: kvasir::ledger::Batch = serde_json::from_str(batch).expect("a batch");
    batch.verify().expect("the operator's signature");
    let leaf: kvasir::ledger::merkle::Leaf = serde_json::from_str(leaf).expect("a leaf");
    let address = address.to_string();
    let (_, proven, _) = ledger_says(&["export", "--wallet", &address]);
    let proven: Value = serde_json::from_str(&proven).expect("JSON");
    let proof: Vec<kvasir::ledger::merkle::Node> = serde_json::from_value(proven["proof"].clone()).expect("a proof");
    assert!(leaf.is_proven(&proof, &batch.root) && leaf.lifetime_nano_kvr.0 == 8_945_664);

    let (code, _, why) = claim(&operator);
    assert!(code == Some(1) && why.contains("nothing to claim yet"), "{why}");
    let (code, report, _) = ledger_says(&["check"]);
    let report: Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!((code, &report["settled_nano"]), (Some(0), &8_945_664.into()), "{report}");
    let (_, statement) = gateway.get(&format!("/v1/wallets/{address}")).await;
    assert_eq!((&statement["pending_nano_kvr"], &statement["settled_nano_kvr"]), (&0.into(), &8_945_664.into()));
    gateway.stop().await;
}
