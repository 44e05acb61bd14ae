//! Links that look alive and are not, that idle, break and damage what they carry.

use std::time::Duration;

use kvasir::demo::Death;
use kvasir::demo::network::Waits;
use kvasir::hub::HubTiming;
use kvasir::net::ws::Ping;

use super::world::{BUSY, Stream, allowing, hardware, patient, soon, until};
use crate::support::fault_proxy::{FaultProxy, Faults};

/// Waits with a hub that pings this often when nothing comes, and gives up after so many pings.
fn pinging(every: Duration, strikes: u32) -> Waits {
    let hub = HubTiming { ping: Ping { every, strikes, ..Ping::hub() }, ..HubTiming::default() };
    Waits { hub, ..allowing(Duration::from_secs(1)) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_open_worker_costs_one_deadline_and_is_evicted_after_three_pings_without_a_trace() {
    let mut stream = Stream::start(vec![hardware()], pinging(Duration::from_millis(500), 3)).await;
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let line = FaultProxy::before(stream.network.gateway()).await;
    let worker = stream.network.add_worker(hardware(), line.addr).await.expect("a worker");
    until(|| stream.sessions() == 2).await;
    stream.ready(2).await;
    stream.steps(5).await;

    line.go_black();
    let mut slowest = Duration::ZERO;
    for _ in 0..8 {
        slowest = slowest.max(stream.step().await);
    }
    let counts = stream.network.dispatch.counts();
    assert!(counts.late + counts.lost <= 1, "one deadline for the whole stream: {counts:?}");
    let deadline = Duration::from_micros(counts.late_us_max);
    assert!(slowest < deadline + BUSY, "{slowest:?} for a deadline of {deadline:?}");

    until(|| stream.sessions() == 1).await;
    stream.network.kill(worker, Death::Closed);
    drop(line);
    until(|| tokio::runtime::Handle::current().metrics().num_alive_tasks() <= tasks).await;
    stream.steps(2).await;
    stream.settle().await;
}

/// Lets a worker idle behind a proxy that cuts idle links, for `lasts`; gives the links that it needed.
async fn idle(ping: Duration, limit: Duration, lasts: Duration) -> usize {
    let mut stream = Stream::start(vec![], pinging(ping, 100)).await;
    let line =
        FaultProxy::with(stream.network.gateway(), Faults { idle_limit: Some(limit), ..Faults::default() }).await;
    stream.network.add_worker(hardware(), line.addr).await.expect("a worker");
    stream.ready(1).await;
    let id = stream.network.dispatch.workers()[0].worker_id;
    let end = tokio::time::Instant::now() + lasts;
    while tokio::time::Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let workers = stream.network.dispatch.workers();
        let mut ids: Vec<_> = workers.iter().map(|worker| worker.worker_id).collect();
        ids.dedup();
        assert!(ids.iter().all(|seen| *seen == id) && ids.len() <= 1, "one installation, however often it comes");
    }
    let links = line.accepted();
    soon(async {
        while stream.network.dispatch.counts().assignments_remote == 0 {
            stream.step().await;
        }
    })
    .await;
    stream.settle().await;
    links
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pings_keep_a_link_behind_a_proxy_that_cuts_idle_ones_and_without_them_it_is_made_again() {
    let limit = Duration::from_millis(1500);
    let (with, without) = tokio::join!(
        idle(Duration::from_millis(200), limit, Duration::from_secs(4)),
        idle(Duration::from_secs(30), limit, Duration::from_secs(4)),
    );
    assert_eq!(with, 1, "no reconnect");
    // Each link lives for the limit at least, so there is no more than one per kill.
    assert!((2..=4).contains(&without), "{without} links");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_and_a_damaged_byte_cost_a_link_and_no_token() {
    let mut stream = Stream::start(vec![hardware()], patient()).await;
    let line = FaultProxy::before(stream.network.gateway()).await;
    stream.network.add_worker(hardware(), line.addr).await.expect("a worker");
    until(|| stream.sessions() == 2).await;
    stream.ready(2).await;
    for fault in [FaultProxy::reset, FaultProxy::flip_a_byte] {
        let links = line.accepted();
        fault(&line);
        soon(async {
            while line.accepted() == links {
                stream.step().await;
            }
        })
        .await;
        until(|| stream.sessions() == 2).await;
        stream.ready(2).await;
    }
    assert_eq!(stream.network.dispatch.counts().late, 0);
    stream.settle().await;
}
