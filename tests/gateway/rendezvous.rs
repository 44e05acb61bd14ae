//! A hub that nobody can dial: it keeps connections at the gateway, and everything else is as with one that is dialled.

use std::net::SocketAddr;
use std::time::Duration;

use kvasir::hub::{HubLimits, HubTiming};
use kvasir::ledger::Ledger;
use kvasir::net::dial::{Outbound, Way};
use kvasir::net::peer::PeerSecurity;
use kvasir::wire::signature::KeyPair;
use tokio::net::TcpListener;

use super::harness::{PATIENCE, TestGateway};
use crate::hub::world::{World, address, quick};
use crate::support::fault_proxy::FaultProxy;
use crate::support::forward_proxy::{ForwardProxy, Rules};

fn keys(seed: u8) -> KeyPair {
    KeyPair::from_seed(&[seed; 32])
}

/// What the gateway and the hub show each other.
fn peers() -> (PeerSecurity, PeerSecurity) {
    let (gateway, hub) = (keys(20), keys(21));
    let pinned = |own: &KeyPair, other: &KeyPair| PeerSecurity::pinned(own, &[other.public()]).unwrap();
    (pinned(&gateway, &hub), pinned(&hub, &gateway))
}

async fn port() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

async fn gateway(listener: TcpListener, ledger: &Ledger) -> TestGateway {
    TestGateway::start_on(listener, Vec::new(), ledger, |config| {
        config.hub_peer = peers().0;
        config.deadlines.parked_ping = Duration::from_millis(100);
        config.deadlines.parked_answer = Duration::from_millis(500);
    })
    .await
}

/// A hub that keeps three connections at `rendezvous`.
async fn world(rendezvous: SocketAddr) -> World {
    let timing = HubTiming { parked_silence: Duration::from_millis(700), ..quick() };
    let mut world = World::start_with(timing, HubLimits { parked: 3, ..HubLimits::default() }).await;
    world.stop_hub();
    world.stopped().await.unwrap();
    world.config.gateway_peer = peers().1;
    world.config.rendezvous = vec![rendezvous.to_string()];
    world.start_hub().await;
    world
}

fn through(world: &mut World, gateway: &TestGateway) {
    let url = format!("wss://localhost:{}/v1/worker", gateway.addr.port());
    world.gateway = Some((url, gateway.client.clone()));
}

async fn parked(gateway: &TestGateway, count: u64) {
    gateway.get_until("/status", |status| status["hubs"][0]["parked"] == count).await;
}

#[tokio::test]
async fn workers_work_and_are_paid_through_connections_that_their_hub_has_dialled() {
    let (listener, addr) = port().await;
    let ledger = Ledger::open("sqlite::memory:").await.unwrap();
    let gateway = gateway(listener, &ledger).await;
    let mut world = world(addr).await;
    through(&mut world, &gateway);
    parked(&gateway, 3).await;
    // The hub is asked for its backbone, which is the test's.
    let knows = gateway.get_until("/status", |status| status["hubs"][0]["backbone_reachable"] == true);
    tokio::join!(knows, world.accept_backbone());
    let mut sessions = Vec::new();
    for worker in 1..=5 {
        sessions.push(world.session(7, worker).await);
    }
    for (worker, backbone) in &mut sessions {
        backbone.round(worker, 1, 3).await;
        backbone.verdict(1, 0, 3).await;
    }
    // Each that was used has been replaced, and none is left over.
    parked(&gateway, 3).await;
    let wallet = format!("/v1/wallets/{}", address(7));
    let body = gateway.get_until(&wallet, |body| body["work_bytes"] == 5 * 3 * 4 * 256).await;
    assert_eq!(body["pending_nano_kvr"], 5 * 3 * 4 * 256 * 7);
    let status = gateway.get("/status").await.1;
    assert_eq!(status["hubs"][0]["hub"], world.hub_key.to_string());
    assert_eq!(status["hubs"][0]["splices_open"], 5);

    // The gateway stops: the hub tells the workers over the links that they have.
    gateway.trigger.fire();
    for (worker, _) in &mut sessions {
        assert_eq!(worker.closed().await, (1012, "drained".into()));
    }
    drop(sessions);
    gateway.stop().await;
    assert!(ledger.check().await.unwrap().is_sound());
    world.stop_hub();
    world.stopped().await.unwrap();
}

#[tokio::test]
async fn parked_connections_that_only_look_alive_are_replaced_and_a_gateway_that_comes_back_is_found() {
    let (listener, addr) = port().await;
    let ledger = Ledger::open("sqlite::memory:").await.unwrap();
    let first = gateway(listener, &ledger).await;
    let line = FaultProxy::before(addr).await;
    let mut world = world(line.addr).await;
    parked(&first, 3).await;
    let knows = first.get_until("/status", |status| status["hubs"][0]["backbone_reachable"] == true);
    tokio::join!(knows, world.accept_backbone());
    line.go_black();
    parked(&first, 0).await;
    drop(line);
    first.stop().await;

    // A line that works, a gateway that is not there yet: it is asked, but not often.
    let (reserved, addr) = port().await;
    drop(reserved);
    let line = FaultProxy::before(addr).await;
    world.stop_hub();
    world.stopped().await.unwrap();
    world.config.rendezvous = vec![line.addr.to_string()];
    world.start_hub().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let attempts = line.accepted();
    assert!((1..=20).contains(&attempts), "{attempts} attempts in a second");

    let second = gateway(TcpListener::bind(addr).await.unwrap(), &ledger).await;
    through(&mut world, &second);
    parked(&second, 3).await;
    let knows = second.get_until("/status", |status| status["hubs"][0]["backbone_reachable"] == true);
    tokio::join!(knows, world.accept_backbone());
    let (_worker, _backbone) = world.session(7, 1).await;
    parked(&second, 3).await;
    line.reset();
    parked(&second, 3).await;
    let (_again, _its_backbone) = world.session(8, 1).await;
    drop((_worker, _backbone, _again, _its_backbone));
    second.stop().await;
}

#[tokio::test]
async fn a_gateway_keeps_nothing_for_a_hub_whose_key_is_not_pinned() {
    let (listener, addr) = port().await;
    let ledger = Ledger::open("sqlite::memory:").await.unwrap();
    let gateway = gateway(listener, &ledger).await;
    let way = Way::new(&Outbound::default());
    let stranger = PeerSecurity::pinned(&keys(22), &[keys(20).public()]).unwrap();
    let dialled = stranger.connect_as_hub(&addr.to_string(), &way).await;
    // TLS 1.3 lets a client believe that it is in until it reads.
    if let Ok(mut io) = dialled {
        let read = tokio::time::timeout(PATIENCE, tokio::io::AsyncReadExt::read_u8(&mut io)).await.unwrap();
        assert!(read.is_err(), "a stranger was heard");
    }
    let lured = PeerSecurity::pinned(&keys(21), &[keys(22).public()]).unwrap();
    assert!(lured.connect_as_hub(&addr.to_string(), &way).await.is_err(), "the hub knows its gateway");
    assert!(
        PeerSecurity::Loopback.connect_as_hub(&addr.to_string(), &way).await.is_err(),
        "there is no way without keys"
    );
    assert_eq!(gateway.get("/status").await.1["hubs"], serde_json::json!([]));
    gateway.stop().await;
}

#[tokio::test]
async fn a_hubs_way_to_its_gateway_may_lead_through_a_proxy() {
    let (listener, addr) = port().await;
    let ledger = Ledger::open("sqlite::memory:").await.unwrap();
    let gateway = gateway(listener, &ledger).await;
    let proxy = ForwardProxy::start(Rules { target: Some(addr), ..Rules::default() }).await;
    let through = format!("http://{}", proxy.addr).parse().unwrap();
    let way = Way::new(&Outbound { proxy: through, ..Outbound::default() });
    let (_, hub) = peers();
    let place = format!("gateway.test:{}", addr.port());
    // What the gateway asks of whom it takes in.
    let mut io = hub.connect_as_hub(&place, &way).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut io, b"GET /elsewhere HTTP/1.1\r\n\r\n").await.unwrap();
    let mut answer = [0; 12];
    tokio::io::AsyncReadExt::read_exact(&mut io, &mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 404");
    assert_eq!(proxy.seen(), [format!("CONNECT {place}"), "a TLS handshake".to_owned()]);
    gateway.stop().await;
}
