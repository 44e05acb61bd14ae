//! Work that nobody waits for any more is not finished, and one stream's trouble is not the others'.

use kvasir::backbone::scheduler::StreamError;
use kvasir::dispatch::{DispatchError, RemoteConfig};
use tokio::sync::mpsc::error::TryRecvError;

use super::lanes::{far_by, until};
use super::*;
use crate::dispatch::puppet::{Conduct, Puppet};
use crate::dispatch::world;

/// Half of a round trip that is long beside everything else: of four layers, only the first was asked for so far.
const FAR: Duration = Duration::from_millis(400);
const ONE_STREAM: SchedulerConfig =
    SchedulerConfig { state_bytes: u64::MAX, streams: 1, waiting: 4, speculation: kvasir::backbone::Speculation::OFF };

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_whose_client_has_gone_asks_workers_for_nothing_more() {
    let (network, backbone) = far_by(1, FAR).await;
    let (scheduler, _stop) = start(&backbone, ONE_STREAM);
    let asked = || network.dispatch.counts().requests;
    let gone = submit(&scheduler, order(300, 5, 1));
    until(|| asked() > 0).await;
    drop(gone);
    until(|| scheduler.counters().gauges.running.load(Relaxed) == 0).await;
    assert_eq!((asked(), scheduler.counters().prompt_tokens.load(Relaxed)), (1, 0));
    network.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn at_a_stop_whoever_waits_is_told_at_once_and_a_prompt_is_given_up() {
    let (network, backbone) = far_by(1, FAR).await;
    let (scheduler, stop) = start(&backbone, ONE_STREAM);
    let asked = || network.dispatch.counts().requests;
    let mut reads = submit(&scheduler, order(300, 5, 1));
    until(|| asked() > 0).await;
    let mut waits = submit(&scheduler, order(3, 5, 2));
    assert!(matches!(waits.try_recv(), Err(TryRecvError::Empty)));
    stop.fire();
    for events in [&mut waits, &mut reads] {
        let told = timeout(PATIENCE, events.recv()).await.unwrap();
        assert!(matches!(told, Some(Event::End(Err(StreamError::Stopping)))), "{told:?}");
    }
    assert_eq!(asked(), 1);
    network.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_whose_experts_nobody_may_compute_ends_alone() {
    let config = RemoteConfig { local_experts: false, ..RemoteConfig::new(vec![1]) };
    let world = world::Backbone::start_as(world::exact_model(), config).await;
    let _stranger = Puppet::join(&world, 1, Conduct::Honest).await;
    world.ready(1).await;
    let remote = Arc::new(Backbone::new(world.model.clone(), Arc::new(world.remote.clone())).unwrap());
    assert_eq!([Reach::Any, Reach::Trusted, Reach::Local].map(|reach| remote.can_keep(reach)), [true, true, false]);

    let near = Backbone::new(world.model.clone(), Arc::new(local(&world.model, Mode::Exact))).unwrap();
    let expected = near.forward(&mut near.sequence(), &[5, 6, 7], Want::Last).await.unwrap();
    let (mut open, mut kept) = (remote.sequence(), remote.sequence());
    let mut shares = [
        Share { sequence: &mut kept, tokens: &[8, 9], want: Want::Last, reach: Reach::Trusted },
        Share { sequence: &mut open, tokens: &[5, 6, 7], want: Want::Last, reach: Reach::Any },
    ];
    let output = remote.step_in_parts(&mut shares, 1, None).await.unwrap();
    assert!(matches!(output.lost[0].as_deref(), Some(DispatchError::NoHolder { layer: 1, .. })), "{:?}", output.lost);
    assert!(output.lost[1].is_none() && output.logits[1] == expected);
    // Whoever does not look for lost shares gets none.
    let (mut open, mut kept) = (remote.sequence(), remote.sequence());
    let mut shares = [
        Share { sequence: &mut kept, tokens: &[8, 9], want: Want::Last, reach: Reach::Trusted },
        Share { sequence: &mut open, tokens: &[5, 6, 7], want: Want::Last, reach: Reach::Any },
    ];
    assert!(remote.step(&mut shares).await.is_err_and(|error| error.has_no_holder()));

    let near = Arc::new(near);
    let (expecting, _stop) = start(&near, SchedulerConfig::default());
    let (scheduler, _stop) = start(&remote, SchedulerConfig::default());
    let orders = || (0..8).map(|seed| order(30, 12, seed));
    let streams: Vec<_> = orders().map(|order| submit(&scheduler, order)).collect();
    let mut kept = submit(&scheduler, Order { reach: Reach::Trusted, ..order(30, 12, 9) });
    let told = timeout(PATIENCE, kept.recv()).await.unwrap();
    let Some(Event::End(Err(StreamError::Step(error)))) = told else { panic!("expected a failure, got {told:?}") };
    assert!(error.has_no_holder(), "{error}");
    for (order, stream) in orders().zip(streams) {
        assert!(outcome(stream).await == outcome(submit(&expecting, order)).await);
    }
}
