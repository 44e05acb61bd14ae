//! Many streams over far workers: steps overlap their waits, and all that a stream notices is the pace.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use kvasir::demo::Death;
use kvasir::demo::network::{Network, NetworkOptions};
use serde_json::Value;

use super::*;
use crate::dispatch::world::{exact_model, grown_up, kernel};
use crate::support::process::ended;

/// Half of a round trip.
const ONE_WAY: Duration = Duration::from_millis(5);

/// All four layers on far workers.
pub(super) async fn far(workers: usize) -> (Network, Arc<Backbone>) {
    far_by(workers, ONE_WAY).await
}

/// The same, half a round trip away.
pub(super) async fn far_by(workers: usize, one_way: Duration) -> (Network, Arc<Backbone>) {
    let model = exact_model();
    let options = NetworkOptions {
        model: model.clone(),
        compute: kernel(),
        workers: (0..workers).map(|_| kernel().into()).collect(),
        remote_layers: vec![0, 1, 2, 3],
        one_way,
        bits_per_s: None,
        gateway: None,
        trust: grown_up(),
        cuttable: true,
    };
    let network = Network::start(options).await.unwrap();
    network.dispatch.wait_ready(workers, PATIENCE).await.unwrap();
    let backbone = Backbone::new(model, Arc::new(network.dispatch.clone())).unwrap();
    (network, Arc::new(backbone))
}

/// Waits until `holds`.
pub(super) async fn until(holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, waiting).await.expect("nothing here takes this long");
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_in_lanes_are_those_of_a_local_run_and_come_together_when_the_last_worker_dies() {
    const STREAMS: u64 = 48;
    let orders = || (0..STREAMS).map(|seed| order(1 + seed as usize % 40, 60, seed));
    let (near, _stop) = start(&backbone(), SchedulerConfig::default());
    let expected: Vec<_> = orders().map(|order| submit(&near, order)).collect();
    let (mut network, backbone) = far(2).await;
    let (scheduler, _stop) = start(&backbone, SchedulerConfig::default());
    let streams: Vec<_> = orders().map(|order| submit(&scheduler, order)).collect();
    let ends: Vec<_> = streams.into_iter().map(|events| tokio::spawn(outcome(events))).collect();

    let counters = scheduler.counters();
    let lanes = || counters.gauges.lanes.load(Relaxed);
    let tokens = |each: u64| counters.new_tokens.load(Relaxed) >= each * STREAMS;
    until(|| tokens(5) && lanes() > 1).await;
    network.kill(0, Death::Closed);
    until(|| tokens(10)).await;
    network.kill(1, Death::Closed);
    until(|| tokens(45)).await;
    let most = std::cell::Cell::new(0);
    until(|| {
        most.set(most.get().max(lanes()));
        tokens(60)
    })
    .await;
    assert_eq!(most.get(), 1, "everything is local");
    for (seed, (expected, end)) in expected.into_iter().zip(ends).enumerate() {
        assert!(outcome(expected).await == end.await.unwrap(), "stream {seed} differs from the local run");
    }
    assert!(counters.assignments_remote.load(Relaxed) > 0 && counters.assignments_local.load(Relaxed) > 0);
    assert!(counters.idle_us.load(Relaxed) > 0);
    network.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_prompt_holds_streams_in_lanes_up_for_one_chunk_at_most_and_none_falls_behind() {
    const NEW: usize = 120;
    let (network, backbone) = far(1).await;
    let (scheduler, _stop) = start(&backbone, SchedulerConfig::default());
    let given: Arc<Vec<AtomicUsize>> = Arc::new((0..32).map(|_| AtomicUsize::new(0)).collect());
    let read = |n: usize| {
        let (mut events, given) = (submit(&scheduler, order(9, NEW, n as u64)), given.clone());
        tokio::spawn(async move {
            while let Some(event) = timeout(PATIENCE, events.recv()).await.unwrap() {
                given[n].fetch_add(usize::from(matches!(event, Event::Token(..))), SeqCst);
            }
        })
    };
    let readers: Vec<_> = (0..given.len()).map(read).collect();
    let counts = || given.iter().map(|n| n.load(SeqCst)).collect::<Vec<_>>();
    until(|| counts().iter().all(|n| *n >= 5)).await;

    let before = counts();
    let mut long = submit(&scheduler, order(1900, 1, 1));
    assert!(matches!(timeout(PATIENCE, long.recv()).await.unwrap(), Some(Event::Prefilled(_))));
    // At most 256 prompt tokens under way, so at least seven laps between, each with a token of every stream.
    let meanwhile = counts().iter().zip(&before).map(|(now, before)| now - before).min();
    assert!(meanwhile >= Some(7), "{meanwhile:?} tokens of a stream while the prompt was read");

    until(|| counts().contains(&NEW)).await;
    let counts = counts();
    assert!(counts.iter().all(|n| *n >= NEW * 3 / 4), "one is done, others are far behind: {counts:?}");
    for reader in readers {
        reader.await.unwrap();
    }
    network.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_alone_travels_in_parts_and_gives_the_text_of_a_local_run() {
    const NEW: u64 = 4;
    let prompt = || order(1800, NEW as usize, 3);
    let (near, _stop) = start(&backbone(), SchedulerConfig::default());
    let expected = outcome(submit(&near, prompt())).await;
    let (network, backbone) = far_by(1, Duration::from_millis(25)).await;
    let (scheduler, _stop) = start(&backbone, SchedulerConfig::default());
    let steps = || scheduler.counters().steps.load(Relaxed);
    assert!(outcome(submit(&scheduler, prompt())).await == expected, "it differs from the local run");
    // It was read in chunks of 512; from now on it is known how many more fill the wait for one.
    let (before, requests) = (steps(), network.dispatch.counts().requests);
    assert!(outcome(submit(&scheduler, prompt())).await == expected, "it differs in parts");
    let steps = steps() - before - (NEW - 1);
    let requests = (network.dispatch.counts().requests - requests) / 4 - (NEW - 1);
    assert!(steps < 4 && requests >= 4, "{requests} requests of a layer in {steps} steps for the prompt");
    assert_eq!(network.dispatch.counts().assignments_local, 0);
    network.stop().await.unwrap();
}

#[test]
fn the_bench_of_many_streams_finds_the_tokens_of_the_local_run() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["bench", "decode", "--streams", "2,8", "--rtt", "4", "--tokens", "12", "--rounds", "2", "--json"];
    let (code, said, complained) = ended(dir.path(), &args);
    assert_eq!(code, Some(0), "{complained}");
    let found: Value = serde_json::from_str(&said).expect("one JSON document on stdout and nothing else");
    assert_eq!((&found["rtt_ms"], &found["remote_layers"]), (&4.0.into(), &4.into()));
    for (size, streams) in found["sizes"].as_array().unwrap().iter().zip([2, 8]) {
        assert_eq!((&size["streams"], &size["streams_identical"]), (&streams.into(), &streams.into()));
        let figure = |name: &str| size[name].as_f64().unwrap();
        assert!(figure("remote_tok_per_s") > 0.0 && figure("lanes") > 0.5 && figure("idle_share") <= 1.0, "{size}");
        assert!(figure("wire_bytes_per_token") > 0.0 && size["of_local"].as_array().unwrap().len() == 2, "{size}");
        assert!(figure("gap_p50_ms") >= 4.0 * 4.0, "a token needs four round trips: {size}");
    }
}
