//! Several hubs behind one gateway: who gets a worker, who loses one, and how workers are told that a gateway leaves.

use kvasir::ledger::Ledger;
use kvasir::types::{GatewayRun, PublicKey};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::harness::{PATIENCE, SWITCHING, TestGateway, TestHub, Tls, UPGRADE, WALLET, pair, spliced};

/// Two hubs, the first of them with more workers to come, and their gateway.
async fn two_hubs() -> ([TestHub; 2], TestGateway) {
    let hubs = [TestHub::start().await, TestHub::start().await];
    let ledger = Ledger::open("sqlite::memory:").await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gateway = TestGateway::start_on(listener, hubs.iter().map(|hub| hub.addr).collect(), &ledger, |_| ()).await;
    (hubs, gateway)
}

/// Brings a worker through and tells which hub got it.
async fn arrive(hubs: &mut [TestHub; 2], gateway: &TestGateway) -> (usize, Tls, TcpStream) {
    let mut worker = gateway.dial().await;
    worker.write_all(format!("{UPGRADE}\r\n").as_bytes()).await.unwrap();
    let [first, second] = hubs;
    let (index, (_, mut stream)) = timeout(PATIENCE, async {
        tokio::select! {
            Some(upgrade) = first.upgrades.recv() => (0, upgrade),
            Some(upgrade) = second.upgrades.recv() => (1, upgrade),
        }
    })
    .await
    .unwrap();
    stream.write_all(SWITCHING.as_bytes()).await.unwrap();
    let mut answer = vec![0; SWITCHING.len()];
    worker.read_exact(&mut answer).await.unwrap();
    (index, worker, stream)
}

async fn open_splices(gateway: &TestGateway, counts: [u64; 2]) {
    let of = |hub: usize| move |status: &serde_json::Value| status["hubs"][hub]["splices_open"].as_u64().unwrap();
    gateway.get_until("/status", |status| [of(0)(status), of(1)(status)] == counts).await;
}

#[tokio::test]
async fn workers_spread_over_the_hubs_and_one_that_returns_stays() {
    let (mut hubs, gateway) = two_hubs().await;
    let mut workers = Vec::new();
    for _ in 0..6 {
        workers.push(arrive(&mut hubs, &gateway).await);
    }
    open_splices(&gateway, [3, 3]).await;
    // One after the other leaves its hub the less busy one and comes back to it all the same.
    for _ in 0..4 {
        let (home, worker, stream) = workers.remove(0);
        drop((worker, stream));
        open_splices(&gateway, if home == 0 { [2, 3] } else { [3, 2] }).await;
        workers.push(arrive(&mut hubs, &gateway).await);
        assert_eq!(workers.last().map(|worker| worker.0), Some(home));
    }
    let (home, worker, stream) = workers.remove(0);
    let (other, ..) = workers.iter().find(|worker| worker.0 != home).unwrap();
    let other = *other;
    // Another one of the same hub leaves too; two come back, to where they were.
    let at = workers.iter().position(|worker| worker.0 == other).unwrap();
    drop((worker, stream));
    open_splices(&gateway, if home == 0 { [2, 3] } else { [3, 2] }).await;
    drop(workers.remove(at));
    open_splices(&gateway, [2, 2]).await;
    let back = [arrive(&mut hubs, &gateway).await, arrive(&mut hubs, &gateway).await];
    assert_eq!([back[0].0, back[1].0], [other, home], "whoever left last is thought to come first");
    drop((back, workers));
    gateway.stop().await;
}

#[tokio::test]
async fn a_hub_that_drains_or_dies_loses_its_workers_to_the_other_within_one_connection() {
    let ([mut first, mut second], gateway) = two_hubs().await;
    let request = format!("{UPGRADE}\r\n");
    let (status, ()) = tokio::join!(gateway.exchange(&request), async {
        for hub in [&mut first, &mut second] {
            let busy = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";
            hub.upgrade().await.1.write_all(busy.as_bytes()).await.unwrap();
        }
    });
    assert_eq!(status.0, 503, "both were asked");
    let (mut hubs, gateway_of_two) = two_hubs().await;
    let (victim, worker, stream) = arrive(&mut hubs, &gateway_of_two).await;
    // A dead hub's socket breaks, and nobody listens any more.
    let [one, two] = hubs;
    let (dying, mut survivor) = if victim == 0 { (one, two) } else { (two, one) };
    dying.stop().await;
    drop((worker, stream));
    drop(spliced(&mut survivor, &gateway_of_two).await);
    let trouble = |status: &serde_json::Value| status["hubs"][victim]["takes_workers"] == false;
    let status = gateway_of_two.get_until("/status", trouble).await;
    assert_eq!(status["hubs"][1 - victim]["takes_workers"], true);
    gateway_of_two.stop().await;
    gateway.stop().await;
}

#[tokio::test]
async fn a_gateway_that_stops_has_its_workers_sent_away_and_ends_with_the_last_of_them() {
    let (mut hub, gateway, _) = pair(|_| ()).await;
    let mut worker = gateway.dial().await;
    worker.write_all(format!("{UPGRADE}\r\n").as_bytes()).await.unwrap();
    let (head, mut stream) = hub.upgrade().await;
    let run: GatewayRun = head.trim_end().rsplit_once("x-kvasir-gateway: ").unwrap().1.parse().unwrap();
    stream.write_all(SWITCHING.as_bytes()).await.unwrap();
    let mut answer = vec![0; SWITCHING.len()];
    worker.read_exact(&mut answer).await.unwrap();

    gateway.trigger.fire();
    for _ in 0..2 {
        // Asked again as long as there is somebody.
        let (head, mut asked) = hub.upgrade().await;
        assert!(head.starts_with(&format!("POST /v1/leave?gateway={run} HTTP/1.1\r\n")), "{head}");
        let body = json!({ "sessions": 1 }).to_string();
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        asked.write_all(answer.as_bytes()).await.unwrap();
    }
    assert!(!gateway.task.is_finished());
    drop((worker, stream));
    gateway.stop().await;
}

/// Each gateway's machine may have a hub of its own at the same address; here they follow each other.
#[tokio::test]
async fn hubs_at_one_address_have_a_position_each() {
    let ledger = Ledger::open("sqlite::memory:").await.unwrap();
    let wallet = format!("/v1/wallets/{WALLET}");
    let hub = TestHub::start().await;
    hub.put(12_288).await;
    let gateway = TestGateway::start(hub.addr, &ledger, |_| ()).await;
    gateway.get_until(&wallet, |body| body["work_bytes"] == 12_288).await;
    gateway.stop().await;
    let addr = hub.addr;
    hub.stop().await;

    let other = TestHub::start_on(TcpListener::bind(addr).await.unwrap(), PublicKey([8; 32])).await;
    for session in [2, 3] {
        other.put_of(session, 64).await;
    }
    let gateway = TestGateway::start(addr, &ledger, |_| ()).await;
    gateway.get_until(&wallet, |body| body["work_bytes"] == 12_288 + 2 * 64).await;
    gateway.stop().await;
}
