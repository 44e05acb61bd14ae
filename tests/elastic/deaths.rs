//! Workers that die in the middle of a request, one at a time and all of them.

use std::time::Duration;

use kvasir::demo::Death;
use kvasir::demo::network::Network;

use super::world::{BUSY, Stream, Trap, allowing, hardware, patient, soon, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_killed_mid_request_at_every_layer_in_turn_changes_no_bit_and_is_not_paid_for_it() {
    let (trap, workers, mut caught) = Trap::new(2);
    let mut stream = Stream::start(workers, patient()).await;
    stream.steps(2).await;
    for layer in 0..4 {
        trap.set(layer);
        let before = stream.network.dispatch.counts();
        let kill = async |network: &mut Network| {
            // The request was read and is not answered: this is the moment to die.
            let victim = caught.recv().await.expect("a request");
            network.kill(victim, Death::Closed);
            victim
        };
        let (took, victim) = stream.step_beside(kill).await;
        let after = stream.network.dispatch.counts();
        assert_eq!((after.lost, after.late), (before.lost + 1, before.late), "layer {layer}");
        assert!(after.recomputed + after.hedged > before.recomputed + before.hedged, "layer {layer}");
        assert!(took < BUSY, "a death that is seen costs no deadline: {took:?}");
        stream.network.restart(victim).await.expect("a port");
        until(|| stream.sessions() == 2).await;
        stream.ready(2).await;
        stream.steps(1).await;
    }
    trap.open();
    stream.settle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_goes_dark_mid_request_costs_one_deadline_and_no_bit() {
    let (trap, workers, mut caught) = Trap::new(2);
    let mut stream = Stream::start(workers, allowing(Duration::from_secs(1))).await;
    stream.steps(2).await;
    trap.set(1);
    let darken = async |network: &mut Network| {
        let victim = caught.recv().await.expect("a request");
        network.kill(victim, Death::Dark);
    };
    let (took, ()) = stream.step_beside(darken).await;
    let counts = stream.network.dispatch.counts();
    let deadline = Duration::from_micros(counts.late_us_max);
    assert_eq!((counts.late, counts.lost), (1, 0));
    assert!(took >= deadline && took < deadline + BUSY, "{took:?} for a deadline of {deadline:?}");
    // It is not asked again while it owes that answer.
    stream.steps(8).await;
    assert_eq!(stream.network.dispatch.counts().late, 1);
    trap.open();
    stream.settle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_last_holder_dies_the_backbone_goes_on_alone_until_somebody_comes_back() {
    let mut stream = Stream::start(vec![hardware()], patient()).await;
    stream.steps(2).await;
    assert_eq!(stream.network.dispatch.counts().assignments_local, 0);
    stream.network.kill(0, Death::Closed);
    until(|| stream.sessions() == 0).await;
    let served = stream.network.dispatch.counts().assignments_remote;
    stream.steps(3).await;
    let alone = stream.network.dispatch.counts();
    assert_eq!(alone.assignments_remote, served);
    assert!(alone.assignments_local > 0);

    stream.network.restart(0).await.expect("a port");
    stream.ready(1).await;
    soon(async {
        while stream.network.dispatch.counts().assignments_remote == served {
            stream.step().await;
        }
    })
    .await;
    stream.settle().await;
}
