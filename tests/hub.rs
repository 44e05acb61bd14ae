//! The hub between a worker and a backbone: what passes, what is paid, and whom an end touches.

mod bans;
mod crowd;
pub mod world;

use std::time::Duration;

use kvasir::hub::{HubError, HubLimits, HubTiming};
use kvasir::net::ws::{Ping, WsConfig, WsError};
use kvasir::wire::control::{
    Control, Decline, ExpertGet, GoAway, Lease, Offer, Pause, Quarantine, Receipt, ReceiptAck, Resume, SessionClosed,
};
use kvasir::wire::frame::{Frame, Header, Kind, MESSAGE_BYTES_MAX};
use kvasir::wire::receipt;
use world::{HIDDEN, MANIFEST, World, address, dispatch, partials, quick, sealed_bytes, soon};

const EACH: u64 = 4 * HIDDEN as u64;

#[tokio::test]
async fn work_passes_both_ways_unchanged_and_its_verdict_becomes_a_meter() {
    let world = World::start().await;
    let (mut worker, mut backbone) = world.session(7, 1).await;
    assert_eq!((worker.session.manifest, worker.session.hub_epoch), (MANIFEST, 1));
    let open = backbone.open.clone().expect("an open session");
    assert_eq!((open.session_id, open.wallet), (worker.session.session_id, address(7)));

    let offer = Offer { device: "test".into(), memory_bytes: 1, assignments_per_s: 1.0, wants: vec![] };
    let offer = offer.frame().expect("a frame");
    worker.send(&offer).await;
    assert_eq!(backbone.recv().await, Some(offer.clone()));
    let lease = Lease { lease: 1, manifest: MANIFEST, experts: [(3, vec![(0, 7)])].into(), expires_ms: 60_000 };
    let lease = lease.frame().expect("a frame");
    backbone.send(&lease).await;
    assert_eq!(worker.work().await, lease);

    let asked = dispatch(9, 2, 5);
    backbone.send(&asked).await;
    assert_eq!(worker.work().await, asked);
    let answer = partials(&asked.header);
    worker.send(&answer).await;
    assert_eq!(backbone.recv().await, Some(answer.clone()));
    backbone.verdict(9, 0, 5).await;
    worker.ws.close(1000, "").await;
    assert_eq!(backbone.closed().await, "left");
    drop(backbone);

    let meter = world.meter_until(open.session_id, |m| m.r#final).await;
    assert_eq!((meter.session, meter.wallet, meter.epoch), (open.session_id, address(7), 1));
    assert_eq!((meter.assignments, meter.work_bytes, meter.voided_bytes), (5, 5 * EACH, 0));
    let least: u64 = [&offer, &lease, &asked, &answer].map(sealed_bytes).iter().sum();
    assert!(meter.raw_bytes >= least, "{} of at least {least} bytes", meter.raw_bytes);
}

#[tokio::test]
async fn a_verdict_that_comes_twice_or_says_too_much_never_credits_more_than_was_served() {
    let world = World::start().await;
    let (mut worker, mut backbone) = world.session(7, 1).await;
    for request in [1, 2] {
        backbone.round(&mut worker, request, 5).await;
    }
    backbone.send(&dispatch(3, 1, 5)).await;
    let unanswered = worker.work().await;
    for (request, accepted) in [(1, 5), (1, 5), (3, 5), (4, 5), (2, 4000)] {
        backbone.verdict(request, 0, accepted).await;
    }
    world.meter_until(backbone.session(), |m| m.work_bytes >= 10 * EACH).await;
    // A late answer is no breach, but its verdict was given already.
    worker.answer(&unanswered).await;
    assert_eq!(backbone.recv().await.map(|f| f.header.request), Some(3));
    backbone.verdict(3, 0, 5).await;
    backbone.round(&mut worker, 5, 1).await;
    backbone.verdict(5, 0, 1).await;
    world.meter_until(backbone.session(), |m| m.work_bytes >= 11 * EACH).await;
    backbone.round(&mut worker, 6, 1).await;
    assert_eq!(world.work_bytes(backbone.session()).await, 11 * EACH);
}

#[tokio::test]
async fn a_bad_answer_ends_its_own_session_with_a_name_and_no_other() {
    let world = World::start().await;
    let (mut other, mut other_backbone) = world.session(8, 1).await;
    type Forge = fn(&Header) -> Frame;
    let cases: [(&str, Forge); 4] = [
        ("answer_unknown", |asked| partials(&Header { request: 99, ..*asked })),
        ("answer_unknown", |asked| partials(&Header { part: 1, parts: 2, ..*asked })),
        ("answer_shape", |asked| partials(&Header { rows: 1, ..*asked })),
        ("answer_shape", |asked| partials(&Header { assignments: 6, ..*asked })),
    ];
    for (code, forge) in cases {
        let (mut worker, mut backbone) = world.session(7, 1).await;
        backbone.send(&dispatch(1, 2, 5)).await;
        let asked = worker.work().await;
        worker.send(&forge(&asked.header)).await;
        assert_eq!(backbone.closed().await, code);
        assert_eq!(worker.closed().await, (1008, code.into()));
        assert_eq!(world.work_bytes(backbone.session()).await, 0);
    }
    other_backbone.round(&mut other, 1, 1).await;
}

#[tokio::test]
async fn kinds_that_are_not_a_workers_to_say_end_its_session() {
    let world = World::start().await;
    for kind in
        [Kind::SessionOpen, Kind::Verdict, Kind::Quarantine, Kind::BackboneHello, Kind::WorkerAuth, Kind::Dispatch]
    {
        let (mut worker, mut backbone) = world.session(7, 1).await;
        worker.send(&Frame::new(Header::control(kind), Vec::new()).expect("a frame")).await;
        assert_eq!(backbone.closed().await, "kind", "{kind:?}");
        assert_eq!(worker.closed().await, (1008, "kind".into()), "{kind:?}");
    }
}

#[tokio::test]
async fn the_newest_session_of_an_installation_replaces_the_old_one() {
    let world = World::start().await;
    let (mut old, mut old_backbone) = world.session(7, 1).await;
    let (mut new, mut new_backbone) = world.session(7, 1).await;
    assert_eq!(old.closed().await, (4001, "replaced".into()));
    assert_eq!(old_backbone.closed().await, "replaced");
    new_backbone.round(&mut new, 1, 1).await;
    let status = world.status().await;
    assert_eq!((&status["sessions"], &status["wallets"]), (&1.into(), &1.into()));
    assert_eq!(status["outcomes"], serde_json::json!({ "ended": { "replaced": 1 } }));
}

#[tokio::test]
async fn a_wallet_has_a_limit_and_other_wallets_are_not_touched() {
    let limits = HubLimits { sessions_per_wallet: 2, ..HubLimits::default() };
    let world = World::start_with(quick(), limits).await;
    let _one = world.session(7, 1).await;
    let two = world.session(7, 2).await;
    let (third, _) = tokio::join!(world.join(7, 3), world.accept_backbone());
    assert_eq!(third.err().map(|r| r.reason), Some("limit".into()));
    let _other = world.session(8, 3).await;
    let _again = world.session(7, 2).await;
    drop(two);
}

#[tokio::test]
async fn who_proves_nothing_hears_one_word_and_who_cannot_be_served_hears_when_to_return() {
    let limits = HubLimits { sessions: 1, ..HubLimits::default() };
    let mut world = World::start_with(quick(), limits).await;
    let (lured, _) = tokio::join!(world.join_as(7, 1, "elsewhere.test", WsConfig::worker()), world.accept_backbone());
    assert_eq!(lured.err().map(|r| (r.reason, r.retry_after_ms)), Some(("unauthorised".into(), None)));
    let _full = world.session(7, 1).await;
    let busy = world.join(7, 2).await.err().expect("a refusal");
    assert_eq!((busy.reason.as_str(), busy.retry_after_ms.is_some()), ("busy", true));

    world.stop_hub();
    world.stopped().await.expect("a clean stop");
    world.config.backbone = "127.0.0.1:1".into();
    world.start_hub().await;
    assert_eq!(world.join(7, 1).await.err().map(|r| r.reason), Some("busy".into()), "no backbone");
    let (_, status) = world.get("/status").await;
    assert_eq!(status["backbone_reachable"], false);
}

#[tokio::test]
async fn a_worker_that_does_not_read_ends_and_holds_up_no_other() {
    let world =
        World::start_with(HubTiming { stall: Duration::from_millis(300), ..quick() }, HubLimits::default()).await;
    let (mut other, mut other_backbone) = world.session(8, 1).await;
    let (_worker, mut backbone) = world.session(7, 1).await;
    let reader = &mut backbone.reader;
    let closed = async {
        loop {
            let frame = reader.recv().await.expect("a link").expect("SessionClosed before the end");
            if frame.header.kind == Kind::SessionClosed {
                return SessionClosed::read(&frame).expect("SessionClosed").reason;
            }
        }
    };
    let writer = &mut backbone.writer;
    let flood = async {
        for request in 0.. {
            let header = Header { request, rows: 1, assignments: 1, ..Header::control(Kind::Dispatch) };
            let frame = Frame::new(header, vec![0; 1 << 20]).expect("a frame");
            if writer.send(&frame).await.is_err() {
                break;
            }
            if request % 8 == 0 {
                other_backbone.round(&mut other, request, 1).await;
            }
        }
        "the backbone's connection ended first".to_owned()
    };
    let reason = soon(async {
        tokio::select! { reason = closed => reason, reason = flood => reason }
    })
    .await;
    assert_eq!(reason, "slow");
    other_backbone.round(&mut other, u64::MAX, 1).await;
}

#[tokio::test]
async fn a_worker_that_falls_silent_is_given_up_after_three_pings() {
    let ping = Ping { every: Duration::from_millis(300), ..Ping::hub() };
    let world = World::start_with(HubTiming { ping, ..quick() }, HubLimits::default()).await;
    // A worker that is not polled sends nothing, not even a pong.
    let (_worker, mut backbone) = world.session(7, 1).await;
    assert_eq!(backbone.closed().await, "silent");
}

#[tokio::test]
async fn a_tampered_frame_ends_the_session_without_reaching_the_backbone() {
    let world = World::start().await;
    let (mut worker, mut backbone) = world.session(7, 1).await;
    let mut message = worker.session.seal.seal(&Resume {}.frame().expect("a frame"));
    if let Some(byte) = message.last_mut() {
        *byte ^= 1;
    }
    worker.ws.send(message).await.expect("a link");
    assert_eq!(backbone.recv().await.map(|f| f.header.kind), Some(Kind::SessionClosed));
    assert_eq!(worker.closed().await, (1008, "tag".into()));
}

#[tokio::test]
async fn a_message_over_the_limit_is_answered_with_1009_and_both_sizes() {
    let world = World::start().await;
    let roomy = WsConfig { message_bytes_max: 2 * MESSAGE_BYTES_MAX, ..WsConfig::worker() };
    let (mut worker, mut backbone) = world.session_with(7, 1, roomy).await;
    worker.ws.send(vec![0; MESSAGE_BYTES_MAX + 1]).await.expect("a link");
    match worker.ws.recv().await {
        Err(WsError::Closed { code: 1009, reason }) => {
            for size in [MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX + 1] {
                assert!(reason.contains(&size.to_string()), "{reason}");
            }
        }
        other => panic!("expected a close with 1009, got {other:?}"),
    }
    assert_eq!(backbone.closed().await, "oversize");
}

#[tokio::test]
async fn receipts_follow_the_ledger_and_only_the_session_key_acknowledges_them() {
    let world = World::start().await;
    let (mut worker, mut backbone) = world.session(7, 1).await;
    let mut receipts: Vec<Receipt> = Vec::new();
    for request in 1..=3 {
        backbone.round(&mut worker, request, 2).await;
        backbone.verdict(request, 0, 2).await;
        let frame = worker.recv().await.expect("a receipt");
        let receipt = Receipt::read(&frame).expect("a receipt");
        receipt::verify(&receipt, &world.hub_key).expect("the hub's signature");
        assert_eq!((receipt.sequence, receipt.work_bytes), (request, 2 * request * EACH));
        assert!(world.written().await[0].work_bytes >= receipt.work_bytes);
        if let Some(last) = receipts.last() {
            receipt::follows(last, &receipt).expect("a later receipt");
        }
        let ack = receipt::ack(&worker.session.session_signer, &receipt);
        worker.send(&ack.frame().expect("a frame")).await;
        receipts.push(receipt);
    }
    let old = receipt::ack(&worker.session.session_signer, &receipts[0]);
    worker.send(&ReceiptAck { ..old }.frame().expect("a frame")).await;
    assert_eq!(backbone.closed().await, "receipt");
}

#[tokio::test]
async fn a_caught_wallet_loses_its_credit_its_sessions_and_its_way_back() {
    let mut world = World::start().await;
    let (mut worker, mut backbone) = world.session(7, 1).await;
    let (mut second, _second_backbone) = world.session(7, 2).await;
    for request in 1..=4 {
        backbone.round(&mut worker, request, 1).await;
        backbone.verdict(request, 0, 1).await;
    }
    let session_id = backbone.session();
    let reason = "audit".to_owned();
    let caught = Quarantine { wallet: address(7), session_id, void_from_request: 3, device: None, reason };
    backbone.send(&caught.frame().expect("a frame")).await;
    assert_eq!(worker.closed().await, (1008, "quarantined".into()));
    assert_eq!(second.closed().await, (1008, "quarantined".into()));
    assert_eq!(backbone.closed().await, "quarantined");
    let page = world.meters().await;
    let meter = page.meters.iter().find(|m| m.session == session_id).expect("its meter");
    assert_eq!((meter.work_bytes, meter.voided_bytes), (4 * EACH, 4 * EACH));
    drop(backbone);

    for _restart in 0..2 {
        let (again, _) = tokio::join!(world.join(7, 3), world.accept_backbone());
        assert_eq!(again.err().map(|r| r.reason), Some("quarantined".into()));
        world.stop_hub();
        world.stopped().await.expect("a clean stop");
        world.start_hub().await;
    }
}

#[tokio::test]
async fn a_drain_lets_outstanding_work_finish_and_writes_the_last_receipt() {
    let mut world =
        World::start_with(HubTiming { receipts: HubTiming::default().receipts, ..quick() }, HubLimits::default()).await;
    let (mut worker, mut backbone) = world.session(7, 1).await;
    let session = backbone.session();
    backbone.send(&dispatch(1, 1, 3)).await;
    let asked = worker.work().await;
    world.stop_hub();
    let pause = backbone.recv().await.expect("a pause");
    assert_eq!(Pause::read(&pause).map(|p| p.reason), Ok("draining".into()));
    let bye = GoAway::read(&worker.work().await).expect("GoAway");
    assert!(bye.reconnect_after_ms <= 5_000);
    let refused = world.join(8, 1).await.err().expect("a refusal");
    assert_eq!((refused.reason.as_str(), refused.retry_after_ms.is_some()), ("draining", true));
    assert_eq!(world.get("/healthz").await.0, 503);

    worker.answer(&asked).await;
    assert_eq!(backbone.recv().await.map(|f| f.header.kind), Some(Kind::Partials));
    backbone.verdict(1, 0, 3).await;
    let last = Receipt::read(&worker.recv().await.expect("a receipt")).expect("a receipt");
    assert_eq!((last.work_bytes, last.r#final), (3 * EACH, true));
    assert_eq!(worker.recv().await, Err(WsError::Closed { code: 1012, reason: "drained".into() }));
    assert_eq!(backbone.closed().await, "drained");
    drop(backbone);
    world.stopped().await.expect("a clean stop");
    let meters = world.written().await;
    assert_eq!((meters[0].session, meters[0].work_bytes, meters[0].r#final), (session, 3 * EACH, true));
}

#[tokio::test]
async fn a_restarted_hub_counts_in_a_higher_epoch() {
    let mut world = World::start().await;
    for epoch in 1..=3 {
        let (worker, backbone) = world.session(7, 1).await;
        assert_eq!(worker.session.hub_epoch, epoch);
        assert_eq!(world.status().await["hub_epoch"], epoch);
        drop((worker, backbone));
        world.stop_hub();
        world.stopped().await.expect("a clean stop");
        world.start_hub().await;
    }
}

#[tokio::test]
async fn a_hub_whose_key_serves_elsewhere_is_fenced_and_stops() {
    let mut world = World::start().await;
    let (mut worker, mut backbone) = world.session(7, 1).await;
    world.ledger.next_epoch(world.hub_key).await.expect("a ledger");
    backbone.round(&mut worker, 1, 1).await;
    backbone.verdict(1, 0, 1).await;
    let stopped = world.stopped().await;
    assert!(matches!(stopped, Err(HubError::Fenced(_))), "{stopped:?}");
    assert!(world.written().await.is_empty());
}

#[tokio::test]
async fn a_backbone_that_goes_away_sends_its_worker_away_in_peace() {
    let world = World::start().await;
    let (mut worker, backbone) = world.session(7, 1).await;
    drop(backbone);
    assert_eq!(worker.work().await.header.kind, Kind::GoAway);
    assert_eq!(worker.closed().await, (1013, "backbone".into()));
}

#[tokio::test]
async fn late_verdicts_count_after_the_worker_has_left() {
    let world =
        World::start_with(HubTiming { afterwards: Duration::from_secs(20), ..quick() }, HubLimits::default()).await;
    let (mut worker, mut backbone) = world.session(7, 1).await;
    backbone.round(&mut worker, 1, 4).await;
    drop(worker);
    assert_eq!(backbone.closed().await, "left");
    backbone.verdict(1, 0, 4).await;
    let session = backbone.session();
    world.meter_until(session, |m| m.work_bytes == 4 * EACH).await;
    drop(backbone);
    world.meter_until(session, |m| m.r#final).await;
}

#[tokio::test]
async fn a_worker_that_asks_for_too_many_expert_bytes_or_declines_the_unknown_ends_its_session() {
    let world = World::start().await;
    let (mut worker, mut backbone) = world.session(7, 1).await;
    let get = ExpertGet { layer: 0, expert: 0, offset: 0, length: 1 }.frame().expect("a frame");
    for _ in 0..=HubLimits::default().open_expert_gets {
        worker.send(&get).await;
    }
    assert_eq!(backbone.closed().await, "bulk_window");
    let (mut worker, mut backbone) = world.session(7, 1).await;
    worker.send(&Decline { reason: "lease".into() }.reply(5).expect("a frame")).await;
    assert_eq!(backbone.closed().await, "answer_unknown");
}

#[tokio::test]
async fn only_known_paths_and_well_formed_questions_are_answered() {
    let world = World::start().await;
    for (path, status) in [
        ("/healthz", 200),
        ("/", 404),
        ("/v1/worker", 400),
        ("/v1/meters?after=x", 400),
        ("/v1/meters?limit=1001", 400),
    ] {
        let (got, body) = world.get(path).await;
        assert_eq!((got, body["error"]["code"].is_string()), (status, status != 200), "{path}: {body}");
    }
    assert_eq!(world.status().await["backbone_reachable"], true);
}
