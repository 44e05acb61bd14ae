//! Devices prove themselves before they are asked, newcomers' work is compared before it is used, and who is caught is out.

use std::sync::Arc;
use std::time::Duration;

use kvasir::dispatch::{AuditPolicy, Dispatch as _, Draws, MoeStep, Seniority, TrustConfig};
use kvasir::ledger::{Ledger, Meter, Rate, TransferKind};
use kvasir::types::{GenerationId, Hex, PublicKey};
use kvasir::wire::control::DeviceName;
use kvasir::worker::{Phase, Source, WorkerStatus};

use crate::support::faults::{Fault, Faulty, questions};

use super::puppet::{Conduct, Puppet, offer};
use super::world::{Backbone, Hub, exact_model, kernel, local_sums, soon, step};

const FLOOR: Duration = Duration::from_secs(10);

async fn start(layers: Vec<u16>, trust: TrustConfig) -> Backbone {
    Backbone::start_trusting(exact_model(), layers, FLOOR, trust).await
}

/// Assignments of a step that workers served; its sums are checked.
async fn remote(backbone: &Backbone, rows: usize, seed: u64) -> u64 {
    let before = backbone.remote.counts().assignments_remote;
    backbone.check(step(&backbone.model, 1, rows, seed)).await;
    backbone.remote.counts().assignments_remote - before
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_fails_its_challenge_is_never_asked_and_its_hub_hears_why() {
    for honest_rows in [0, 1] {
        let backbone = start(vec![1], TrustConfig::default()).await;
        let mut puppet = Puppet::join(&backbone, 1, Conduct::FailsChallenges(honest_rows)).await;
        let caught = soon(puppet.quarantines.wait_for(|caught| !caught.is_empty())).await.expect("a puppet")[0].clone();
        assert_eq!((caught.wallet, caught.session_id), (PublicKey([1; 32]), Hex([1; 16])));
        assert_eq!(caught.device, Some(DeviceName { worker_id: Hex([1; 16]), name: "puppet".into() }));
        assert!(caught.reason.starts_with("challenge on layer 1 ("), "{}", caught.reason);
        assert_eq!(remote(&backbone, 2, 1).await, 0);
        let counts = backbone.remote.counts();
        assert_eq!((counts.requests, counts.quarantined_devices, counts.quarantined_wallets), (0, 1, 0));
        assert!(counts.challenges_failed >= 1 && backbone.remote.workers().is_empty());
        backbone.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_leaves_its_challenge_unanswered_is_not_asked_and_loses_nothing_else() {
    let trust = TrustConfig { challenge_patience: Duration::from_millis(50), ..TrustConfig::default() };
    let backbone = start(vec![1], trust).await;
    let mut puppet = Puppet::join(&backbone, 1, Conduct::MutesChallenges).await;
    let asked = questions(&backbone.model, &[1]);
    soon(puppet.challenges.wait_for(|rows| rows.len() == asked)).await.expect("a puppet");
    soon(async {
        while backbone.remote.counts().challenges_late == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    assert_eq!(remote(&backbone, 2, 1).await, 0);
    let workers = backbone.remote.workers();
    assert_eq!((workers.len(), workers[0].ready), (1, false));
    assert!(puppet.quarantines.borrow().is_empty());
    backbone.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_device_proves_itself_anew_and_every_device_now_and_then() {
    let backbone = start(vec![1], TrustConfig::default()).await;
    let mut puppet = Puppet::join(&backbone, 1, Conduct::Honest).await;
    backbone.ready(1).await;
    let asked = questions(&backbone.model, &[1]);
    assert_eq!(*puppet.challenges.borrow(), [1, 17]);
    assert!(remote(&backbone, 2, 1).await > 0);
    puppet.offers.send(offer("another")).expect("a puppet");
    soon(puppet.challenges.wait_for(|rows| rows.len() == 2 * asked)).await.expect("a puppet");
    backbone.ready(1).await;
    assert!(remote(&backbone, 2, 2).await > 0);
    backbone.stop().await;

    let trust = TrustConfig { challenge_every: Duration::from_millis(20), ..TrustConfig::default() };
    let backbone = start(vec![1], trust).await;
    let mut puppet = Puppet::join(&backbone, 1, Conduct::Honest).await;
    soon(puppet.challenges.wait_for(|rows| rows.len() >= 3 * asked)).await.expect("a puppet");
    assert!(remote(&backbone, 2, 3).await > 0, "it is asked all the while");
    backbone.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_work_is_audited_once_in_a_wallets_life() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("seniority");
    let audit = AuditPolicy { first_assignments: 100, ..AuditPolicy::default() };
    for start_again in [false, true] {
        let seniority = Arc::new(Seniority::open(&path).expect("a memory"));
        let backbone = start(vec![1], TrustConfig { audit, seniority, ..TrustConfig::default() }).await;
        for new_session in [false, true] {
            let puppet = Puppet::join(&backbone, 7, Conduct::Honest).await;
            backbone.ready(1).await;
            let before = backbone.remote.counts().audits_before_use;
            assert!(remote(&backbone, 40, 1).await >= 100);
            assert!(remote(&backbone, 1, 2).await > 0);
            let audited = backbone.remote.counts().audits_before_use - before;
            assert_eq!(audited > 0, !start_again && !new_session, "{audited} audits");
            drop(puppet);
            soon(async {
                while !backbone.remote.workers().is_empty() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            })
            .await;
        }
        backbone.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn layers_for_trusted_wallets_go_to_nobody_else() {
    let (trusted_layers, trusted_wallets) = (vec![1], vec![PublicKey([2; 32])]);
    let backbone = start(vec![1, 2], TrustConfig { trusted_layers, trusted_wallets, ..TrustConfig::default() }).await;
    let _stranger = Puppet::join(&backbone, 1, Conduct::Honest).await;
    soon(async {
        while !backbone.remote.workers().first().is_some_and(|w| w.ready) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_eq!(backbone.remote.workers()[0].slice, "2:0-15");
    assert_eq!(remote(&backbone, 2, 1).await, 0, "layer 1 stays here");
    let _trusted = Puppet::join(&backbone, 2, Conduct::Honest).await;
    backbone.ready(2).await;
    let slices: Vec<String> = backbone.remote.workers().into_iter().map(|worker| worker.slice).collect();
    assert_eq!(slices, ["2:0-15", "1:0-15,2:0-15"], "the trusted one has replicas of what the stranger owns");
    assert!(remote(&backbone, 2, 2).await > 0);
    for layer in [1, 2] {
        let before = backbone.remote.workers();
        backbone.check(MoeStep { trusted_only: true, ..step(&backbone.model, layer, 2, 3) }).await;
        let after = backbone.remote.workers();
        assert_eq!(after[0].assignments, before[0].assignments, "layer {layer}: the stranger is not asked");
        assert!(after[1].assignments > before[1].assignments, "layer {layer}");
    }
    backbone.stop().await;
}

/// Waits until the hub's meters have all of a wallet's work void; the work bytes.
async fn voided(hub: &Hub, wallet: PublicKey) -> u64 {
    soon(async {
        loop {
            let meters = hub.ledger.meters_after(hub.key, 0, 1000).await.expect("a ledger");
            let own: Vec<_> = meters.iter().filter(|meter| meter.wallet == wallet).collect();
            let sum = |of: fn(&Meter) -> u64| own.iter().map(|meter| of(meter)).sum::<u64>();
            if sum(|m| m.work_bytes) > 0 && sum(|m| m.voided_bytes) == sum(|m| m.work_bytes) {
                return sum(|m| m.work_bytes);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
}

/// Takes over what the hub has metered, as a gateway does, and checks the books.
async fn poll(accounts: &Ledger, hub: &Hub, wallet: PublicKey) -> u64 {
    let meters = hub.ledger.meters_after(hub.key, 0, 1000).await.expect("a ledger");
    assert_eq!(accounts.apply(&meters, Rate::default()).await.expect("accounts").refused, []);
    let report = accounts.check().await.expect("accounts");
    assert!(report.is_sound(), "{report:?}");
    accounts.wallet(wallet).await.expect("accounts").pending_nano_kvr.0
}

/// Requests of this many rows each make 1,000 rows.
const ROWS: usize = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_lie_in_a_thousand_rows_is_caught_by_one_audit_in_a_hundred() {
    // The first of these fixed seeds with which a frame in this range is looked at.
    let look = |n: u8| (20..=105u64).find(|i| Draws::new(Some([n; 32])).draw(*i) < 0.01);
    let (seed, caught_at) = (1..=u8::MAX).find_map(|n| Some(([n; 32], look(n)?))).expect("a seed that looks");
    let audit = AuditPolicy { first_assignments: 0, young_assignments: 0, rate: 0.01, ..AuditPolicy::default() };
    let backbone = start(vec![1], TrustConfig { audit, seed: Some(seed), ..TrustConfig::default() }).await;
    let hub = Hub::start(&backbone).await;
    let row = (caught_at as usize - 1) * ROWS + 3;
    let liar = Faulty::new(kernel(), Fault::OneOff(row), &backbone.model, &[1]);
    let worker = hub.worker("liar", Source::Fetch, Arc::new(liar));
    backbone.ready(1).await;
    let accounts = Ledger::open("sqlite::memory:").await.expect("accounts");

    let mut paid = 0;
    let generation = |i: u64| GenerationId(i / 10);
    for i in 1..=125 {
        let work = step(&backbone.model, 1, ROWS, i);
        let work = MoeStep { generations: vec![generation(i); ROWS], ..work };
        let expected = local_sums(&backbone.model, &work).await;
        let got = soon(backbone.remote.begin(work)).await.expect("sums").rows;
        assert_eq!(got == expected, i != caught_at, "request {i} of which {caught_at} is the lie");
        if i == caught_at - 1 {
            // The meters are written every second.
            soon(async {
                while paid == 0 {
                    paid = poll(&accounts, &hub, worker.address).await;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            })
            .await;
        }
        if i == caught_at {
            soon(async {
                while backbone.remote.counts().generations_affected == 0 {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            })
            .await;
        }
    }
    let counts = backbone.remote.counts();
    assert_eq!((counts.audit_mismatches, counts.quarantined_wallets, counts.generations_affected), (1, 1, 1));
    assert!(counts.audits_after_use >= 1 && counts.audits_before_use == 0 && counts.audits_again > 0);
    let k = backbone.model.hyper.experts_per_token as u64;
    assert_eq!(counts.assignments_remote, caught_at * ROWS as u64 * k, "nothing after it was asked of the liar");

    let mut status = worker.status.clone();
    let waits = |s: &WorkerStatus| matches!(&s.phase, Phase::Waiting { reason, .. } if reason.contains("quarantined"));
    soon(status.wait_for(waits)).await.expect("a worker");
    let hidden_bytes = 4 * backbone.model.hyper.hidden_size as u64;
    assert_eq!(voided(&hub, worker.address).await, counts.assignments_remote * hidden_bytes);
    assert!(paid > 0);
    for _ in 0..2 {
        assert_eq!(poll(&accounts, &hub, worker.address).await, 0);
    }
    let kinds: Vec<_> = accounts.credits(worker.address, 0).await.expect("accounts").iter().map(|t| t.kind).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == TransferKind::Void).count(), 1, "{kinds:?}");
    worker.stop().await;
}
