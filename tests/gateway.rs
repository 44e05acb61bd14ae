//! The gateway between a TLS client and a small hub of raw TCP: what passes, what is refused, what is credited.

pub(crate) mod harness;
mod hubs;
mod public;
mod rendezvous;

use std::sync::Arc;
use std::time::Duration;

use kvasir::gateway::HubEndpoint;
use kvasir::ledger::{Ledger, Position};
use kvasir::net::tls::wrap_client;
use kvasir::types::{Hex, PublicKey};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use harness::{HUB, PATIENCE, SWITCHING, TestGateway, TestHub, UPGRADE, WALLET, pair, spliced};

#[tokio::test]
async fn the_smuggling_list_is_refused_and_no_byte_of_it_reaches_the_hub() {
    let (mut hub, gateway, _) = pair(|config| config.public_hosts = vec!["localhost".into()]).await;
    let with = |line: &str| format!("{UPGRADE}{line}\r\n\r\n");
    let swap = |from: &str, to: &str| format!("{}\r\n", UPGRADE.replace(from, to));
    for (request, status) in [
        (swap("GET", "POST"), 405),
        (swap("HTTP/1.1", "HTTP/1.0"), 505),
        (swap("/v1/worker", "/v1/worker?a=b"), 404),
        (swap("/v1/worker", "/v1/worker/"), 404),
        (swap("/v1/worker", "http://localhost/v1/worker"), 400),
        (swap("Version: 13", "Version: 777"), 426),
        (swap("Upgrade: websocket\r\n", ""), 400),
        (swap("ZSBub25jZQ==", ""), 400),
        (swap("Host: localhost", "Host: elsewhere"), 421),
        (with("Host: localhost"), 400),
        (with("Upgrade: websocket"), 400),
        (with("Connection: Upgrade"), 400),
        (with("Content-Length: 5"), 400),
        (with("Content-Length: 0\r\nContent-Length: 5"), 400),
        (with("Transfer-Encoding: chunked"), 400),
        (with("Transfer-Encoding : chunked"), 400),
        (with("TE: trailers"), 400),
        (with("Trailer: X"), 400),
        (with("Expect: 100-continue"), 400),
        (with("X: a\r\n b"), 400),
        (with("X: a\nContent-Length: 5"), 400),
        (with(&format!("X: {}", "a".repeat(9_000))), 431),
        (with("X: 1").replace("X: 1", &"X: 1\r\n".repeat(70)), 431),
        (format!("{UPGRADE}\r\nGET /v1/meters HTTP/1.1\r\n\r\n"), 400),
    ] {
        let (got, body) = gateway.exchange(&request).await;
        assert_eq!(got, status, "{:?}: {body}", &request[..request.len().min(300)]);
        let body: Value = serde_json::from_str(&body).unwrap();
        assert!(body["error"]["code"].is_string() && body["error"]["message"].is_string(), "{body}");
    }
    assert!(hub.upgrades.try_recv().is_err(), "the hub saw a refused request");
    gateway.stop().await;
}

#[tokio::test]
async fn the_hub_gets_a_rebuilt_head_without_the_clients_extras() {
    let (mut hub, gateway, _) = pair(|_| ()).await;
    let mut worker = gateway.dial().await;
    let extras = "X-Forwarded-For: 6.6.6.6\r\nX-Kvasir-Peer: 6.6.6.6\r\nX-Kvasir-Admin: yes\r\nCookie: a=b\r\n\
                  Sec-WebSocket-Extensions: permessage-deflate\r\nSec-WebSocket-Protocol: chat\r\nContent-Length: 0\r\n";
    worker.write_all(format!("{UPGRADE}{extras}\r\n").as_bytes()).await.unwrap();
    let (head, _stream) = hub.upgrade().await;
    let (before, run) = head.split_once("x-kvasir-gateway: ").unwrap();
    assert_eq!(before, format!("{UPGRADE}x-kvasir-peer: 127.0.0.1\r\n"));
    assert!(run.strip_suffix("\r\n\r\n").unwrap().parse::<Hex<16>>().is_ok(), "{run:?} names the gateway's run");
    drop((worker, _stream));
    gateway.stop().await;
}

#[tokio::test]
async fn nothing_is_forwarded_before_the_hub_says_101_and_its_first_bytes_follow_the_answer() {
    let (mut hub, gateway, _) = pair(|_| ()).await;
    let mut worker = gateway.dial().await;
    worker.write_all(format!("{UPGRADE}\r\n").as_bytes()).await.unwrap();
    let (_, mut stream) = hub.upgrade().await;
    worker.write_all(b"too early").await.unwrap();
    let mut got = [0; 9];
    let early = timeout(Duration::from_millis(100), stream.read(&mut got)).await;
    assert!(early.is_err(), "the hub got {early:?} before it said 101");
    stream.write_all(format!("{SWITCHING}hello").as_bytes()).await.unwrap();
    let mut answer = vec![0; SWITCHING.len() + 5];
    worker.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, format!("{SWITCHING}hello").as_bytes());
    stream.read_exact(&mut got).await.unwrap();
    assert_eq!(&got, b"too early");
    drop((worker, stream));
    gateway.stop().await;
}

#[tokio::test]
async fn an_answer_that_is_not_101_ends_both_connections() {
    let (mut hub, gateway, _) = pair(|_| ()).await;
    for (answer, status) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 502),
        ("HTTP/1.1 404 Not Found\r\n\r\n", 502),
        ("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", 503),
        ("HTTP/1.1 100 Continue\r\n\r\n", 502),
        ("HTTP/1.0 101 Switching Protocols\r\n\r\n", 502),
        (&SWITCHING.replace("s3pP", "s3pQ"), 502),
        (&SWITCHING.replace("Upgrade: websocket\r\n", ""), 502),
        ("nonsense\r\n\r\n", 502),
        ("", 502),
    ] {
        let request = format!("{UPGRADE}\r\n");
        let exchange = gateway.exchange(&request);
        let hub_side = async {
            let (_, mut stream) = hub.upgrade().await;
            stream.write_all(answer.as_bytes()).await.unwrap();
            if answer.is_empty() {
                return;
            }
            // The gateway closes without having sent one more byte.
            let mut more = Vec::new();
            let _ = timeout(PATIENCE, stream.read_to_end(&mut more)).await.unwrap();
            assert_eq!(more, b"");
        };
        let ((got, body), ()) = tokio::join!(exchange, hub_side);
        assert_eq!(got, status, "{answer:?}: {body}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_hub_that_cannot_be_reached_is_passed_over_or_named() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let (mut hub, gateway, _) = pair(|config| config.hubs.insert(0, HubEndpoint { addr: closed })).await;
    for _ in 0..2 {
        drop(spliced(&mut hub, &gateway).await);
    }
    gateway.stop().await;

    let ledger = Ledger::open("sqlite::memory:").await.unwrap();
    let gateway = TestGateway::start(closed, &ledger, |_| ()).await;
    let (status, body) = gateway.exchange(&format!("{UPGRADE}\r\n")).await;
    assert!(status == 502 && body.contains("hub_unreachable"), "{status} {body}");
    let status = gateway.get("/status").await.1;
    assert_eq!(status["hubs"][0]["reachable"], false);
    gateway.stop().await;
}

#[tokio::test]
async fn a_splice_is_transparent_in_both_directions_and_after_a_half_close() {
    let (mut hub, gateway, _) = pair(|_| ()).await;
    let (mut worker, mut stream) = spliced(&mut hub, &gateway).await;
    let mut seed = 0x2545_f491_4f6c_dd1du64;
    let mut random = |bytes: usize| -> Vec<u8> {
        (0..bytes)
            .map(|_| {
                seed ^= seed << 13;
                seed ^= seed >> 7;
                seed ^= seed << 17;
                seed.to_le_bytes()[3]
            })
            .collect()
    };
    let (up, down) = (random(3_000_001), random(2_000_003));
    let (mut got_up, mut got_down) = (Vec::new(), vec![0; down.len()]);
    let worker_side = async {
        let (mut read, mut write) = tokio::io::split(&mut worker);
        let send = async {
            for piece in up.chunks(12_321) {
                write.write_all(piece).await.unwrap();
            }
            write.shutdown().await.unwrap();
        };
        tokio::join!(send, async { read.read_exact(&mut got_down).await.unwrap() });
    };
    let hub_side = async {
        let (mut read, mut write) = stream.split();
        let send = async { write.write_all(&down).await.unwrap() };
        tokio::join!(send, async { read.read_to_end(&mut got_up).await.unwrap() });
    };
    timeout(PATIENCE, async { tokio::join!(worker_side, hub_side) }).await.unwrap();
    assert!(got_up == up && got_down == down);
    // The worker ended its side; what the hub still says arrives, then its end.
    stream.write_all(b"goodbye").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut rest = Vec::new();
    worker.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"goodbye");
    let status = gateway.get_until("/status", |status| status["splices_open"] == 0).await;
    assert_eq!((&status["bytes_up"], &status["splices"]), (&3_000_001.into(), &1.into()));
    gateway.stop().await;
}

#[tokio::test]
async fn a_slow_client_is_cut_by_one_deadline_over_tls_and_head() {
    let (mut hub, gateway, _) = pair(|config| config.deadlines.head = Duration::from_millis(300)).await;
    // One says nothing at all, one sends its head byte by byte without end.
    let mut silent = TcpStream::connect(gateway.addr).await.unwrap();
    let mut slow = gateway.dial().await;
    let drip = async {
        let head = UPGRADE.bytes().chain(std::iter::repeat_n(b'a', 4_000));
        for byte in head {
            if slow.write_all(&[byte]).await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
            let mut answer = [0; 12];
            if let Ok(Ok(got)) = timeout(Duration::from_millis(1), slow.read(&mut answer)).await {
                return String::from_utf8_lossy(&answer[..got]).into_owned();
            }
        }
        String::new()
    };
    assert_eq!(timeout(PATIENCE, drip).await.unwrap(), "HTTP/1.1 408");
    let mut nothing = Vec::new();
    let _ = timeout(PATIENCE, silent.read_to_end(&mut nothing)).await.unwrap();
    assert!(hub.upgrades.try_recv().is_err());
    drop(slow);
    gateway.stop().await;
}

#[tokio::test]
async fn a_peer_over_its_limit_is_closed_at_once_and_counted() {
    let (mut hub, gateway, _) = pair(|config| config.limits.connections_per_peer = 1).await;
    let (worker, stream) = spliced(&mut hub, &gateway).await;
    let mut second = TcpStream::connect(gateway.addr).await.unwrap();
    let mut nothing = Vec::new();
    let _ = timeout(PATIENCE, second.read_to_end(&mut nothing)).await.unwrap();
    assert_eq!(nothing, b"");
    drop((worker, stream));
    let reopened = async {
        loop {
            let tcp = TcpStream::connect(gateway.addr).await.unwrap();
            if let Ok(stream) = wrap_client(Arc::clone(&gateway.client), "localhost", tcp).await {
                return stream;
            }
        }
    };
    drop(timeout(PATIENCE, reopened).await.unwrap());
    gateway.stop().await;
}

#[tokio::test]
async fn credits_are_given_once_across_repeated_polls_restarts_and_two_gateways() {
    let hub = TestHub::start().await;
    let dir = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(&format!("sqlite:{}", dir.path().join("ledger.db").display())).await.unwrap();
    let wallet = format!("/v1/wallets/{WALLET}");
    hub.put(1_277_952).await;
    let first = TestGateway::start(hub.addr, &ledger, |_| ()).await;
    let body = first.get_until(&wallet, |body| body["sequence"] == 1).await;
    assert_eq!(body["pending_nano_kvr"], 8_945_664);
    assert_eq!(body["pending_kvr"], "0.00895");
    assert_eq!((&body["settled_nano_kvr"], &body["work_bytes"]), (&0.into(), &1_277_952.into()));
    assert_eq!(body["address"], WALLET.to_string());
    assert!(body["last_credit_unix_ms"].as_u64().unwrap() > 1_600_000_000_000);

    // The position is lost, the gateway starts again beside a second one, and more work comes.
    first.stop().await;
    ledger.set_poll_position(&HUB.to_string(), Position::default()).await.unwrap();
    let again = TestGateway::start(hub.addr, &ledger, |_| ()).await;
    let beside = TestGateway::start(hub.addr, &ledger, |_| ()).await;
    hub.put_of(2, 0).await;
    hub.put(2_000_000).await;
    let body = beside.get_until(&wallet, |body| body["work_bytes"] == 2_000_000).await;
    assert_eq!((&body["pending_nano_kvr"], &body["sequence"]), (&14_000_000.into(), &2.into()));

    // The hub comes back with an older ledger: its counters are behind, nothing is paid twice, and new work is paid.
    let addr = hub.addr;
    hub.stop().await;
    let hub = TestHub::start_on(TcpListener::bind(addr).await.unwrap(), HUB).await;
    hub.put(1_000).await;
    hub.put_of(3, 64).await;
    for gateway in [again, beside] {
        gateway.get_until(&wallet, |body| body["work_bytes"] == 2_000_064).await;
        let status = gateway.get("/status").await.1;
        let leg = &status["hubs"][0];
        assert_eq!((&leg["hub"], &leg["meters_refused"]), (&HUB.to_string().into(), &0.into()));
        gateway.stop().await;
    }
    assert_eq!(ledger.wallet(WALLET).await.unwrap().pending_nano_kvr.0, 14_000_448);
    assert!(ledger.check().await.unwrap().is_sound());
}

#[tokio::test]
async fn the_public_side_answers_in_json_and_only_reads() {
    let (hub, gateway, ledger) = pair(|_| ()).await;
    hub.put(12_288).await;
    let wallet = format!("/v1/wallets/{WALLET}");
    gateway.get_until(&wallet, |body| body["sequence"] == 1).await;
    let (status, body) = gateway.get(&format!("{wallet}/credits?after=0")).await;
    assert_eq!(status, 200);
    assert_eq!(body["credits"][0]["amount_nano_kvr"], 86_016);
    assert_eq!(body["credits"][0]["kind"], "credit");
    assert_eq!(gateway.get(&format!("{wallet}/credits?after=1")).await.1["credits"], json!([]));
    assert_eq!(gateway.get("/healthz").await, (200, json!({ "ok": true })));
    let (_, stranger) = gateway.get(&format!("/v1/wallets/{}", PublicKey([8; 32]))).await;
    assert_eq!((&stranger["pending_nano_kvr"], &stranger["pending_kvr"]), (&0.into(), &"0.00000".into()));
    let (status, body) = gateway.get("/status").await;
    assert_eq!((status, &body["draining"], &body["hubs"][0]["reachable"]), (200, &false.into(), &true.into()));

    for (target, status, code) in [
        ("/v1/wallets/not-an-address", 400, "address"),
        ("/v1/wallets/11111111111111111111111111111111111111111111111111111111111111111111", 400, "address"),
        (&format!("{wallet}/credits?after=-1"), 400, "query"),
        (&format!("{wallet}/credits?limit=5"), 400, "query"),
        ("/v1/meters?after=0", 404, "path"),
        ("/", 404, "path"),
    ] {
        let (got, body) = gateway.get(target).await;
        assert_eq!((got, &body["error"]["code"]), (status, &code.into()), "{target}: {body}");
    }
    let request = format!("DELETE {wallet} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(gateway.exchange(&request).await.0, 405);
    ledger.close().await;
    let (status, body) = gateway.get(&wallet).await;
    assert_eq!((status, &body["error"]["code"]), (503, &"ledger".into()));
    gateway.stop().await;
}

#[tokio::test]
async fn a_drain_lets_splices_end_and_credits_what_they_earned() {
    let (mut hub, gateway, ledger) = pair(|config| config.poll_interval = Duration::from_secs(3600)).await;
    let (mut worker, mut stream) = spliced(&mut hub, &gateway).await;
    gateway.get_until("/status", |status| status["hubs"][0]["reachable"] == true).await;
    gateway.trigger.fire();
    let refused = async { while TcpStream::connect(gateway.addr).await.is_ok() {} };
    timeout(PATIENCE, refused).await.unwrap();
    worker.write_all(b"still here").await.unwrap();
    let mut got = [0; 10];
    stream.read_exact(&mut got).await.unwrap();
    assert_eq!(&got, b"still here");
    hub.put(12_288).await;
    drop((worker, stream));
    gateway.stop().await;
    assert_eq!(ledger.wallet(WALLET).await.unwrap().pending_nano_kvr.0, 86_016);
}

#[tokio::test]
async fn a_drain_has_an_end() {
    let (mut hub, gateway, _) = pair(|config| config.deadlines.drain = Duration::from_millis(50)).await;
    let (mut worker, stream) = spliced(&mut hub, &gateway).await;
    gateway.stop().await;
    let mut nothing = Vec::new();
    let _ = timeout(PATIENCE, worker.read_to_end(&mut nothing)).await.unwrap();
    assert_eq!(nothing, b"");
    drop(stream);
}
