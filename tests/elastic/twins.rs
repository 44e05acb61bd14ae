//! An installation that connects again, and workers of different keys that hold the same experts.

use std::time::Duration;

use kvasir::demo::Death;

use super::world::{Stream, allowing, hardware, patient, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_installation_that_connects_again_replaces_its_silent_self_and_leaves_no_ghost() {
    let mut stream = Stream::start(vec![hardware(), hardware()], allowing(Duration::from_secs(1))).await;
    stream.steps(3).await;
    let sessions = |stream: &Stream| {
        let workers = stream.network.dispatch.workers();
        workers.iter().map(|worker| worker.session_id).collect::<Vec<_>>()
    };
    let before = sessions(&stream);
    // The link stays open on the hub's side, whose first ping is half a minute away.
    stream.network.kill(0, Death::Dark);
    stream.steps(2).await;
    assert_eq!(sessions(&stream), before);
    stream.network.restart(0).await.expect("a port");
    until(|| sessions(&stream).len() == 2 && sessions(&stream).iter().filter(|id| before.contains(id)).count() == 1)
        .await;
    stream.ready(2).await;
    stream.steps(3).await;
    assert!(stream.network.dispatch.counts().late <= 1);
    stream.settle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_keys_on_one_slice_either_may_die() {
    let mut stream = Stream::start(vec![hardware(), hardware()], patient()).await;
    for victim in [0, 1] {
        stream.steps(2).await;
        stream.network.kill(victim, Death::Closed);
        stream.steps(3).await;
        until(|| stream.sessions() == 1).await;
        stream.network.restart(victim).await.expect("a port");
        until(|| stream.sessions() == 2).await;
        stream.ready(2).await;
    }
    assert_eq!(stream.network.dispatch.counts().late, 0);
    stream.settle().await;
}
