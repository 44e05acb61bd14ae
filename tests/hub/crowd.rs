//! The hub among many and over time: what one address may hold, what polls may rely on, what a leaving worker is owed.

use std::sync::Arc;
use std::time::Duration;

use kvasir::hub::{HubLimits, HubTiming};
use kvasir::net::head::PEER_HEADER;
use kvasir::net::ws::WsError;
use kvasir::wire::control::{Control, GoAway, Receipt};
use kvasir::wire::frame::Kind;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::world::{HIDDEN, World, quick, soon};
use crate::support::clock::JumpingClock;

/// A worker's connection as a gateway hands it on for `peer`; it says nothing of its own accord.
async fn silent(world: &World, peer: &str) -> TcpStream {
    let mut stream = TcpStream::connect(world.hub).await.expect("a hub");
    let request = format!(
        "GET /v1/worker HTTP/1.1\r\nHost: hub.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{PEER_HEADER}: {peer}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.expect("a link");
    stream
}

/// Reads until `wanted` was said.
async fn hears(stream: &mut TcpStream, wanted: &str) {
    let mut heard = Vec::new();
    while !String::from_utf8_lossy(&heard).contains(wanted) {
        let read = soon(stream.read_buf(&mut heard)).await.expect("a link");
        assert!(read > 0, "expected {wanted}, got {:?}", String::from_utf8_lossy(&heard));
    }
}

#[tokio::test]
async fn one_address_cannot_take_every_handshake() {
    let limits = HubLimits { handshakes: 4, handshakes_per_peer: 2, ..HubLimits::default() };
    let world = World::start_with(quick(), limits).await;
    let mut held = Vec::new();
    for _ in 0..2 {
        held.push((silent(&world, "192.0.2.1").await, world.accept_backbone().await));
    }
    hears(&mut silent(&world, "192.0.2.1").await, "busy").await;
    let _other = world.session(7, 1).await;
}

#[tokio::test]
async fn polls_come_through_whatever_workers_do() {
    let timing = HubTiming { handshake: Duration::from_secs(60), backbone: Duration::from_secs(60), ..quick() };
    let world = World::start_with(timing, HubLimits { sessions: 16, ..HubLimits::default() }).await;
    // More than there is room for; the backbone says nothing, so that none of them gets on.
    let mut crowd = Vec::new();
    for peer in 0..200 {
        crowd.push(silent(&world, &format!("192.0.2.{peer}")).await);
    }
    for path in ["/v1/meters?after=0&limit=10", "/healthz"] {
        let answer = timeout(Duration::from_secs(5), world.get(path)).await;
        assert_eq!(answer.expect("an answer at once").0, 200, "{path}");
    }
}

#[tokio::test]
async fn the_last_receipt_waits_for_the_last_verdict() {
    let receipts = HubTiming::default().receipts;
    let timing = HubTiming { receipts, afterwards: Duration::from_secs(20), ..quick() };
    let world = World::start_with(timing, HubLimits::default()).await;
    let (mut old, mut old_backbone) = world.session(7, 1).await;
    old_backbone.round(&mut old, 1, 3).await;
    let _new = world.session(7, 1).await;
    assert_eq!(old_backbone.closed().await, "replaced");
    old_backbone.verdict(1, 0, 3).await;
    let frame = old.recv().await.expect("a receipt");
    assert_eq!(frame.header.kind, Kind::Receipt);
    let last = Receipt::read(&frame).expect("a receipt");
    assert_eq!((last.work_bytes, last.r#final), (3 * 4 * u64::from(HIDDEN), true));
    assert_eq!(old.recv().await, Err(WsError::Closed { code: 4001, reason: "replaced".into() }));
}

#[tokio::test]
async fn a_wall_clock_that_jumps_evicts_nobody_and_moves_no_epoch() {
    let mut world = World::start().await;
    world.stop_hub();
    world.stopped().await.expect("a clean stop");
    let clock = Arc::new(JumpingClock::default());
    world.config.clock = Arc::clone(&clock) as _;
    world.start_hub().await;
    let (mut worker, mut backbone) = world.session(7, 1).await;
    for (request, hours) in [(1, 1), (2, -2), (3, 1)] {
        clock.jump(0, hours * 3_600_000);
        backbone.round(&mut worker, request, 1).await;
        backbone.verdict(request, 0, 1).await;
        let meter = world.meter_until(backbone.session(), |meter| meter.assignments == request).await;
        assert_eq!((meter.epoch, meter.r#final), (2, false));
    }
}

#[tokio::test]
async fn a_worker_without_work_is_told_when_to_come_back_too() {
    let mut world = World::start().await;
    let (mut worker, mut backbone) = world.session(7, 1).await;
    world.stop_hub();
    let bye = GoAway::read(&worker.work().await).expect("GoAway");
    assert!(bye.reconnect_after_ms <= 5_000);
    assert_eq!(worker.closed().await, (1012, "drained".into()));
    assert_eq!(backbone.closed().await, "drained");
    drop(backbone);
    world.stopped().await.expect("a clean stop");
}
