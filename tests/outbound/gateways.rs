//! Workers and their gateways: several of them, some down, links that are cut, names that move.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use kvasir::net::dial::{Leg, Outbound};
use kvasir::worker::{Hardware, Source};
use tokio::net::TcpListener;

use crate::dispatch::world::{Backbone, Hub, exact_model, kernel, soon};
use crate::support::fault_proxy::FaultProxy;
use crate::support::names::Names;

async fn until(mut holds: impl FnMut() -> bool) {
    soon(async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// Somebody who hangs up on everybody, and how often.
async fn hangs_up() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            count.fetch_add(1, SeqCst);
            drop(stream);
        }
    });
    (url, calls)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_stays_down_is_left_alone_and_a_cut_link_is_back_within_three_seconds() {
    let backbone = Backbone::start(exact_model(), vec![1]).await;
    let hub = Hub::start(&backbone).await;
    let (down, calls) = hangs_up().await;
    let line = FaultProxy::before(hub.addr).await;
    let gateways = vec![down, format!("ws://{}", line.addr)];
    let worker = hub.worker_as("several", Source::Fetch, Hardware::from(kernel()).fixed(), |config| {
        config.gateways = gateways;
        // So that every link counts as a good one.
        config.timers.healthy = Duration::ZERO;
    });
    backbone.ready(1).await;
    let calls_before = calls.load(SeqCst);
    assert!(calls_before >= 1);
    let mut slowest = Duration::ZERO;
    for cut in 1..=5 {
        let (links, start) = (line.accepted(), Instant::now());
        line.reset();
        until(|| line.accepted() > links).await;
        until(|| worker.status.borrow().sessions == cut + 1).await;
        slowest = slowest.max(start.elapsed());
        assert_eq!(worker.status.borrow().cuts, cut);
    }
    eprintln!("a cut link is back within {slowest:?}");
    assert!(slowest < Duration::from_secs(3), "{slowest:?}");
    assert_eq!(calls.load(SeqCst), calls_before, "the one that is down is not tried while another works");
    backbone.ready(1).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_starts_before_its_gateways_name_exists_joins_when_it_does() {
    let backbone = Backbone::start(exact_model(), vec![1]).await;
    let hub = Hub::start(&backbone).await;
    let names = Arc::new(Names::default());
    let outbound = Outbound { resolver: Arc::clone(&names) as _, ..Outbound::default() };
    let gateways = vec![format!("ws://gateway.test:{}", hub.addr.port())];
    let worker = hub.worker_as("early", Source::Fetch, Hardware::from(kernel()).fixed(), |config| {
        (config.gateways, config.outbound) = (gateways, outbound);
        config.timers.backoff_max = Duration::from_millis(250);
    });
    let trouble = || worker.status.borrow().trouble.map(|trouble| (trouble.leg, trouble.code));
    until(|| trouble() == Some((Leg::Dns, "dns"))).await;
    names.move_to(&["127.0.0.9"]);
    until(|| trouble() == Some((Leg::Tcp, "gateway_down"))).await;
    names.move_to(&["127.0.0.1"]);
    backbone.ready(1).await;
    assert_eq!(trouble(), None);
    assert!(worker.status.borrow().gateway_rtt_ms.is_some());
    worker.stop().await;
}
