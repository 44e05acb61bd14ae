//! The public face: cheap reads of a wallet, news of it, what the operator sees, and certificates that are renewed.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kvasir::gateway::Subscribers;
use kvasir::ledger::{ClaimTerms, Ledger};
use kvasir::net::certificate::CertificateFiles;
use kvasir::net::tls::{TrialCertificates, client_config_from_pem, wrap_client};
use kvasir::wire::speed::{SPEED_PATH, content};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::harness::{HUB, PATIENCE, TestGateway, TestHub, Tls, UPGRADE, WALLET, pair, spliced};
#[cfg(unix)]
use crate::support::postgres;

fn asks(target: &str, more: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n")
}

/// The whole answer to a request.
async fn answer(gateway: &TestGateway, request: &str) -> String {
    let mut stream = gateway.dial().await;
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
    answer
}

fn header<'a>(answer: &'a str, name: &str) -> &'a str {
    let line = answer.lines().find_map(|line| line.split_once(':').filter(|(n, _)| n.eq_ignore_ascii_case(name)));
    line.unwrap_or_else(|| panic!("no {name} in {answer:?}")).1.trim()
}

#[tokio::test]
async fn a_wallet_that_did_not_change_costs_no_second_answer() {
    let (hub, gateway, _) = pair(|_| ()).await;
    let wallet = format!("/v1/wallets/{WALLET}");
    let first = answer(&gateway, &asks(&wallet, "")).await;
    let tag = header(&first, "etag").to_owned();
    let known = asks(&wallet, &format!("If-None-Match: \"other\", W/{tag}\r\n"));
    let again = answer(&gateway, &known).await;
    assert!(again.starts_with("HTTP/1.1 304 ") && again.ends_with("\r\n\r\n"), "{again}");
    assert_eq!(header(&again, "etag"), tag);
    hub.put(12_288).await;
    gateway.get_until(&wallet, |body| body["sequence"] == 1).await;
    let changed = answer(&gateway, &known).await;
    assert!(changed.starts_with("HTTP/1.1 200 ") && header(&changed, "etag") != tag, "{changed}");
    gateway.stop().await;
}

/// A subscription's stream of lines, after its head.
async fn listen(gateway: &TestGateway) -> (String, BufReader<Tls>) {
    let mut stream = gateway.dial().await;
    stream.write_all(asks(&format!("/v1/wallets/{WALLET}/events"), "").as_bytes()).await.unwrap();
    let mut lines = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(timeout(PATIENCE, lines.read_line(&mut head)).await.unwrap().unwrap() > 0, "{head}");
    }
    (head, lines)
}

/// The next line that begins with `mark`; `None` at the end of the stream.
async fn line(lines: &mut BufReader<Tls>, mark: &str) -> Option<String> {
    loop {
        let mut line = String::new();
        if timeout(PATIENCE, lines.read_line(&mut line)).await.unwrap().unwrap() == 0 {
            return None;
        }
        if let Some(rest) = line.strip_prefix(mark) {
            return Some(rest.trim().to_owned());
        }
    }
}

async fn statement(lines: &mut BufReader<Tls>) -> Value {
    serde_json::from_str(&line(lines, "data:").await.expect("an event")).unwrap()
}

#[tokio::test]
async fn a_subscription_tells_each_credit_shows_life_and_ends_with_the_drain() {
    let (hub, gateway, ledger) = pair(|config| {
        // A second gateway's credit is found by the look at all, our own at once.
        config.deadlines.heartbeat = Duration::from_millis(50);
        config.deadlines.public = Duration::from_millis(500);
        config.deadlines.refresh = Duration::from_secs(3600);
    })
    .await;
    let (head, mut lines) = listen(&gateway).await;
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("text/event-stream"), "{head}");
    assert_eq!(statement(&mut lines).await["sequence"], 0);
    // Longer than an ordinary answer may take.
    for _ in 0..12 {
        line(&mut lines, ":").await.expect("a sign of life");
    }
    for (work_bytes, sequence) in [(12_288, 1), (24_576, 2)] {
        hub.put(work_bytes).await;
        let told = statement(&mut lines).await;
        assert_eq!((&told["work_bytes"], &told["sequence"]), (&work_bytes.into(), &sequence.into()));
        assert_eq!(told, serde_json::to_value(ledger.wallet(WALLET).await.unwrap()).unwrap());
    }
    assert_eq!(gateway.get("/status").await.1["subscriptions_open"], 1);
    gateway.trigger.fire();
    assert_eq!(line(&mut lines, "data:").await, None);
    gateway.stop().await;
}

#[tokio::test]
async fn what_another_gateway_credited_is_told_and_subscriptions_have_a_limit() {
    let (hub, gateway, ledger) = pair(|config| {
        config.poll_interval = Duration::from_secs(3600);
        config.deadlines.refresh = Duration::from_millis(20);
        config.limits.subscriptions = Subscribers { all: 9, per_peer: 9, per_wallet: 1 };
    })
    .await;
    gateway.get_until("/status", |status| status["hubs"][0]["reachable"] == true).await;
    let (_, mut lines) = listen(&gateway).await;
    assert_eq!(statement(&mut lines).await["sequence"], 0);
    let (status, body) = gateway.get(&format!("/v1/wallets/{WALLET}/events")).await;
    assert_eq!((status, &body["error"]["code"]), (503, &"subscriptions".into()));
    let beside = TestGateway::start(hub.addr, &ledger, |_| ()).await;
    hub.put(12_288).await;
    assert_eq!(statement(&mut lines).await["sequence"], 1);
    drop(lines);
    gateway.get_until("/status", |status| status["subscriptions_open"] == 0).await;
    gateway.stop().await;
    beside.stop().await;
}

#[tokio::test]
async fn the_operator_sees_each_leg_and_counters_and_the_public_neither_addresses_nor_metrics() {
    let dir = tempfile::tempdir().unwrap();
    let (mut hub, gateway, _) = pair(|config| {
        config.limits.fresh_per_peer = 1;
        config.kept_in = Some(dir.path().to_owned());
    })
    .await;
    let held = spliced(&mut hub, &gateway).await;
    let public = gateway.get_until("/status", |status| status["hubs"][0]["sessions"] == 1).await;
    assert_eq!(gateway.get("/metrics").await.0, 404);
    assert!(!public.to_string().contains("127.0.0.1"), "{public}");
    let (status, body) = gateway.admin("/status").await;
    let told: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &told["hubs"][0]["address"]), (200, &hub.addr.to_string().into()));
    assert_eq!(told["hubs"][0]["backbone_reachable"], true);
    let vitals = &told["vitals"];
    assert!(vitals["unix_ms"].as_u64() > Some(0) && vitals["disk_free_bytes"].is_u64(), "{told}");
    assert!(public["vitals"].is_null(), "{public}");

    // One connection that says nothing, one too many beside it.
    let silent = TcpStream::connect(gateway.addr).await.unwrap();
    let mut second = TcpStream::connect(gateway.addr).await.unwrap();
    let _ = timeout(PATIENCE, second.read(&mut [0; 1])).await.unwrap();
    let (status, page) = gateway.admin("/metrics").await;
    assert_eq!(status, 200);
    let leg = format!("{{hub=\"{HUB}\",address=\"{}\"}}", hub.addr);
    for wanted in [
        "kvasir_gateway_splices_open 1".to_owned(),
        "kvasir_gateway_refused_total{why=\"without_request_of_address\"} 1".to_owned(),
        format!("kvasir_gateway_hub_up{leg} 1"),
        format!("kvasir_gateway_backbone_up{leg} 1"),
        format!("kvasir_gateway_hub_sessions{leg} 1"),
    ] {
        assert!(page.lines().any(|line| line == wanted), "no {wanted} in\n{page}");
    }
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        assert!(page.contains(&format!("# TYPE {name} ")), "{line}");
    }
    assert_eq!(gateway.admin("/v1/wallets").await.0, 404);
    // It still answers while the gateway drains.
    gateway.trigger.fire();
    timeout(PATIENCE, async { while gateway.admin("/healthz").await.0 != 503 {} }).await.unwrap();
    drop((held, silent));
    gateway.stop().await;
}

#[tokio::test]
async fn accounts_that_fail_are_not_blamed_on_the_hub() {
    let (_hub, gateway, ledger) = pair(|_| ()).await;
    gateway.get_until("/status", |status| status["hubs"][0]["backbone_reachable"] == true).await;
    ledger.close().await;
    let told = async {
        loop {
            let (_, body) = gateway.admin("/status").await;
            if body.contains("the gateway's accounts") {
                return serde_json::from_str::<Value>(&body).unwrap();
            }
        }
    };
    let leg = &timeout(PATIENCE, told).await.unwrap()["hubs"][0];
    assert_eq!((&leg["reachable"], &leg["takes_workers"]), (&true.into(), &true.into()), "{leg}");
    gateway.stop().await;
}

/// A store of eight connections, and a table that whoever reads a day of credits has to wait for.
#[cfg(unix)]
#[tokio::test]
async fn a_crowd_that_asks_what_it_may_claim_leaves_the_accounts_to_others() {
    let Some(server) = postgres::shared() else { return };
    let url = server.database().await;
    let (hub, ledger) = (TestHub::start().await, Ledger::open(&url).await.unwrap());
    let terms = ClaimTerms { operator: HUB, hold: Duration::ZERO };
    let gateway = TestGateway::start(hub.addr, &ledger, |config| config.claims = Some(terms)).await;
    let pool = sqlx::AnyPool::connect(&url).await.unwrap();
    let mut held = pool.begin().await.unwrap();
    sqlx::query("LOCK TABLE transfer IN ACCESS EXCLUSIVE MODE").execute(&mut *held).await.unwrap();
    let claimable = format!("/v1/wallets/{WALLET}/claim");
    let crowd = futures_util::future::join_all((0..20).map(|_| gateway.get(&claimable)));
    let meanwhile = async {
        counted(&gateway, "kvasir_gateway_requests_total 20\n").await;
        let wallet = format!("/v1/wallets/{WALLET}");
        let (status, _) = timeout(Duration::from_secs(3), gateway.get(&wallet)).await.expect("room for others");
        assert_eq!(status, 200);
        held.rollback().await.unwrap();
    };
    let (answers, ()) = tokio::join!(crowd, meanwhile);
    assert!(answers.iter().all(|(status, _)| *status == 200), "{answers:?}");
    gateway.stop().await;
}

/// Waits until the metrics say so.
async fn counted(gateway: &TestGateway, wanted: &str) {
    let wait = async { while !gateway.admin("/metrics").await.1.contains(wanted) {} };
    timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("never {wanted}"));
}

#[tokio::test]
async fn a_renewed_certificate_reaches_new_connections_and_open_splices_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| dir.path().join(name));
    let [old, new] = [(); 2].map(|()| TrialCertificates::generate(&["localhost"]).unwrap());
    std::fs::write(&cert, &old.cert_pem).unwrap();
    std::fs::write(&key, &old.key_pem).unwrap();
    let files = Arc::new(CertificateFiles::open(&cert, &key).unwrap());
    let (mut hub, mut gateway, _) = pair(|config| {
        config.tls = files.server_config().unwrap();
        config.certificate = Some(files);
        config.deadlines.certificate = Duration::from_millis(10);
    })
    .await;
    gateway.client = client_config_from_pem(&old.ca_pem).unwrap();
    let (_, shown) = gateway.get("/status").await;
    assert_eq!(shown["certificate_issuer"], "Kvasir trial authority");
    assert!(shown["certificate_ends_unix_s"].as_u64() > Some(0), "{shown}");
    let (mut worker, mut stream) = spliced(&mut hub, &gateway).await;

    let replace = |path: &Path, text: &str| {
        let beside = path.with_extension("new");
        std::fs::write(&beside, text).unwrap();
        std::fs::rename(&beside, path).unwrap();
    };
    replace(&cert, &new.cert_pem);
    counted(&gateway, "certificates_total{end=\"kept_old\"} 1\n").await;
    assert_eq!(gateway.get("/healthz").await.0, 200, "the old one is still shown");
    replace(&key, &new.key_pem);
    counted(&gateway, "certificates_total{end=\"taken\"} 1\n").await;
    // Somebody who trusts the old authority only, and never came before: who did may resume without looking again.
    let stranger = client_config_from_pem(&old.ca_pem).unwrap();
    let tcp = TcpStream::connect(gateway.addr).await.unwrap();
    assert!(wrap_client(stranger, "localhost", tcp).await.is_err(), "the new one is shown");
    gateway.client = client_config_from_pem(&new.ca_pem).unwrap();
    assert_eq!(gateway.get("/healthz").await.0, 200);

    worker.write_all(b"still here").await.unwrap();
    let mut got = [0; 10];
    stream.read_exact(&mut got).await.unwrap();
    drop((worker, stream));
    gateway.stop().await;
}

#[tokio::test]
async fn an_address_that_begins_too_many_handshakes_is_closed_without_one() {
    let (_hub, gateway, _) = pair(|config| config.limits.handshakes_per_peer_minute = 4).await;
    let upgrade = format!("{UPGRADE}X: y\n\r\n");
    for _ in 0..4 {
        assert_eq!(gateway.exchange(&upgrade).await.0, 400);
    }
    let tcp = TcpStream::connect(gateway.addr).await.unwrap();
    assert!(wrap_client(Arc::clone(&gateway.client), "localhost", tcp).await.is_err());
    let page = gateway.admin("/metrics").await.1;
    assert!(page.contains("refused_total{why=\"handshakes_of_address\"} 1\n"), "{page}");
    gateway.stop().await;
}

#[tokio::test]
async fn a_lines_speed_is_measured_in_small_pieces_and_not_too_often() {
    let (_hub, gateway, _) = pair(|_| ()).await;
    for query in ["", "?bytes=0", "?bytes=262145", "?bytes=many"] {
        assert_eq!(gateway.exchange(&asks(&format!("{SPEED_PATH}{query}"), "")).await.0, 400, "{query}");
    }
    let post = |body: &str| {
        let length = body.len();
        format!("POST {SPEED_PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}")
    };
    for _ in 0..5 {
        assert_eq!(gateway.exchange(&post("0123456789")).await, (200, "{\"bytes\":10}".to_owned()));
    }
    let mut stream = gateway.dial().await;
    stream.write_all(asks(&format!("{SPEED_PATH}?bytes=1000"), "").as_bytes()).await.unwrap();
    let mut got = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut got)).await.unwrap().unwrap();
    assert!(got.ends_with(&content()[..1000]));
    let (status, body) = gateway.exchange(&post("one too many")).await;
    assert!(status == 429 && body.contains("transfers a minute"), "{body}");
    gateway.stop().await;
}
