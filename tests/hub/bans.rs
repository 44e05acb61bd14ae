//! What a hub does with those who were caught: which sessions end, which credit is void, who may come again.

use kvasir::ledger::{Ledger, Rate};
use kvasir::types::Hex;
use kvasir::wire::control::{Control, DeviceName, Offer, Quarantine};
use kvasir::wire::frame::Kind;

use super::world::{HIDDEN, World, address};

const EACH: u64 = 4 * HIDDEN as u64;

fn offer(device: &str) -> Offer {
    Offer { device: device.into(), memory_bytes: 1, assignments_per_s: 1.0, wants: vec![] }
}

#[tokio::test]
async fn a_void_takes_what_the_wallet_earned_in_sessions_that_are_over_too() {
    let mut world = World::start().await;
    for (wallet, requests) in [(7, 2), (8, 3), (7, 4)] {
        let (mut worker, mut backbone) = world.session(wallet, 1).await;
        for request in 1..=requests {
            backbone.round(&mut worker, request, 1).await;
            backbone.verdict(request, 0, 1).await;
        }
        worker.ws.close(1000, "").await;
        assert_eq!(backbone.closed().await, "left");
        let session = backbone.session();
        drop(backbone);
        world.meter_until(session, |m| m.r#final).await;
        // Those of an earlier start of the hub count as well.
        world.stop_hub();
        world.stopped().await.expect("a clean stop");
        world.start_hub().await;
    }
    let accounts = Ledger::open("sqlite::memory:").await.expect("accounts");
    accounts.apply(&world.meters().await.meters, Rate(7)).await.expect("accounts");
    assert_eq!(accounts.wallet(address(7)).await.expect("accounts").pending_nano_kvr.0, 6 * EACH * 7);

    let (mut worker, mut backbone) = world.session(7, 2).await;
    backbone.round(&mut worker, 1, 1).await;
    backbone.verdict(1, 0, 1).await;
    let (session_id, reason) = (backbone.session(), "audit".to_owned());
    let caught = Quarantine { wallet: address(7), session_id, void_from_request: 1, device: None, reason };
    backbone.send(&caught.frame().expect("a frame")).await;
    assert_eq!(worker.closed().await, (1008, "quarantined".into()));
    assert_eq!(backbone.closed().await, "quarantined");
    drop(backbone);
    world.meter_until(session_id, |m| m.r#final).await;
    let meters = world.meters().await.meters;
    for meter in &meters {
        let void = if meter.wallet == address(7) { meter.work_bytes } else { 0 };
        assert_eq!(meter.voided_bytes, void);
    }
    for _again in 0..2 {
        accounts.apply(&meters, Rate(7)).await.expect("accounts");
        assert_eq!(accounts.wallet(address(7)).await.expect("accounts").pending_nano_kvr.0, 0);
        assert_eq!(accounts.wallet(address(8)).await.expect("accounts").pending_nano_kvr.0, 3 * EACH * 7);
        assert!(accounts.check().await.expect("accounts").is_sound());
    }
}

#[tokio::test]
async fn a_void_is_carried_out_also_when_its_session_ends_on_the_way() {
    let world = World::start().await;
    for wallet in 20..30 {
        let (mut worker, mut backbone) = world.session(wallet, 1).await;
        backbone.round(&mut worker, 1, 1).await;
        backbone.verdict(1, 0, 1).await;
        let (session_id, reason) = (backbone.session(), "audit".to_owned());
        let caught = Quarantine { wallet: address(wallet), session_id, void_from_request: 1, device: None, reason };
        backbone.send(&caught.frame().expect("a frame")).await;
        // The worker goes at the same moment.
        worker.ws.close(1000, "").await;
        drop((worker, backbone));
        world.meter_until(session_id, |m| m.r#final && m.work_bytes > 0 && m.voided_bytes == m.work_bytes).await;
    }
}

#[tokio::test]
async fn a_device_that_computes_wrongly_may_not_come_again_but_its_wallet_may() {
    let world = World::start().await;
    let (mut worker, mut backbone) = world.session(7, 1).await;
    let (mut second, mut second_backbone) = world.session(7, 2).await;
    backbone.round(&mut worker, 1, 1).await;
    backbone.verdict(1, 0, 1).await;
    let (session_id, reason) = (backbone.session(), "challenge on layer 1".to_owned());
    let device = Some(DeviceName { worker_id: Hex([1; 16]), name: "gpu (broken)".into() });
    let caught = Quarantine { wallet: address(7), session_id, void_from_request: 0, device, reason };
    backbone.send(&caught.frame().expect("a frame")).await;
    assert_eq!(worker.closed().await, (1008, "quarantined".into()));
    assert_eq!(backbone.closed().await, "quarantined");
    drop(backbone);
    let meter = world.meter_until(session_id, |m| m.r#final).await;
    assert_eq!((meter.work_bytes, meter.voided_bytes), (EACH, 0));
    second_backbone.round(&mut second, 1, 1).await;

    // The same name on another machine is another device.
    for (worker_id, device, is_taken) in [(3, "gpu (broken)", true), (1, "cpu", true), (1, "gpu (broken)", false)] {
        let (mut worker, mut backbone) = world.session(7, worker_id).await;
        worker.send(&offer(device).frame().expect("a frame")).await;
        if is_taken {
            assert_eq!(backbone.recv().await.map(|f| f.header.kind), Some(Kind::Offer));
        } else {
            assert_eq!(backbone.closed().await, "quarantined");
            assert_eq!(worker.closed().await, (1008, "quarantined".into()));
        }
    }
}
