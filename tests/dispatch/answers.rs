//! Answers of the wrong form and of another request, false claims, and who is asked for what they do not bring.

use std::time::Duration;

use kvasir::dispatch::{DeadlineRule, Dispatch as _, DispatchError, PlacementRules, RemoteConfig};

use super::SHORT;
use super::puppet::{Conduct, Puppet};
use super::world::{Backbone, exact_model, float_model, grown_up, local_sums, soon, step};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_float_that_is_no_number_is_refused_when_it_comes() {
    let backbone = Backbone::start(float_model(), vec![1]).await;
    let mut puppet = Puppet::join(&backbone, 1, Conduct::NotANumber).await;
    backbone.ready(1).await;
    backbone.check(step(&backbone.model, 1, 2, 3)).await;
    let counts = backbone.remote.counts();
    assert_eq!((counts.refused, counts.assignments_remote), (1, 0));
    assert_eq!(puppet.verdicts(1).await[0].reason, "shape");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_answer_to_the_step_before_is_nobodys_and_is_not_used() {
    let backbone = Backbone::start_with(exact_model(), vec![1], SHORT).await;
    let mut puppet = Puppet::join(&backbone, 1, Conduct::RepeatsTheFirst).await;
    backbone.ready(1).await;
    let work = step(&backbone.model, 1, 2, 3);
    backbone.check(work.clone()).await;
    // The same step again: even the right values are refused under the wrong name.
    backbone.check(work).await;
    let verdicts = puppet.verdicts(2).await;
    assert_eq!((verdicts[0].reason.as_str(), verdicts[1].reason.as_str()), ("ok", "late"));
    assert_eq!(backbone.remote.counts().refused, 1);
}

/// Room for half of a layer.
fn half_a_layer(backbone: &Backbone) -> u64 {
    let expert = &backbone.model.weights.layers[1].experts[0];
    8 * (expert.gate.data.len() + expert.up.data.len() + expert.down.data.len()) as u64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_false_claim_does_not_cost_the_other_holders_of_the_row_their_pay() {
    for conduct in [Conduct::ClaimsRange, Conduct::ClaimsPoison] {
        let backbone = Backbone::start(exact_model(), vec![1]).await;
        let room = half_a_layer(&backbone);
        let mut honest = Puppet::join_with(&backbone, 1, Conduct::Honest, room).await;
        let mut claiming = Puppet::join_with(&backbone, 2, conduct, room).await;
        backbone.ready(2).await;
        backbone.check(step(&backbone.model, 1, 4, 7)).await;
        let (paid, refused) = (honest.verdicts(1).await, claiming.verdicts(1).await);
        assert!(paid[0].accepted > 0 && paid[0].refused == 0, "{conduct:?}: {paid:?}");
        assert_eq!((refused[0].accepted, refused[0].reason.as_str()), (0, "claim"), "{conduct:?}");
        assert_eq!(backbone.remote.counts().requests, 2, "{conduct:?}: no round was made for the claim");
        backbone.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_worker_does_not_bring_a_replica_does_and_only_it_is_paid() {
    for (conduct, reason) in [
        (Conduct::Vanishes, None),
        (Conduct::Declines, Some("declined")),
        (Conduct::CutsShort, Some("shape")),
        (Conduct::Silent, Some("late")),
    ] {
        let floor = if conduct == Conduct::Silent { SHORT } else { Duration::from_secs(10) };
        let deadlines = DeadlineRule { floor, ceiling: floor, ..DeadlineRule::default() };
        let config = RemoteConfig { deadlines, trust: grown_up(), ..RemoteConfig::new(vec![1]) };
        let backbone = Backbone::start_slow(exact_model(), config).await;
        let mut bad = Puppet::join(&backbone, 1, conduct).await;
        let mut good = Puppet::join(&backbone, 2, Conduct::Honest).await;
        backbone.ready(2).await;
        let mut seed = 0;
        while backbone.remote.counts().hedged == 0 {
            backbone.check(step(&backbone.model, 1, 3, seed)).await;
            seed += 1;
            assert!(seed < 50, "{conduct:?}: {:?}", backbone.remote.counts());
        }
        let counts = backbone.remote.counts();
        assert_eq!((counts.assignments_local, counts.recomputed), (0, 0), "{conduct:?}");
        let paid: u32 = good.verdicts(1).await.iter().map(|verdict| verdict.accepted).sum();
        assert!(u64::from(paid) <= counts.assignments_remote, "{conduct:?}");
        if let Some(reason) = reason {
            let verdict = &bad.verdicts(1).await[0];
            assert_eq!((verdict.accepted, verdict.reason.as_str()), (0, reason), "{conduct:?}");
        }
        backbone.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_two_workers_did_not_survive_goes_to_no_third_one() {
    let placement = PlacementRules { holders_max: 4, ..PlacementRules::default() };
    let config = RemoteConfig { placement, ..RemoteConfig::new(vec![1]) };
    let backbone = Backbone::start_slow(exact_model(), config).await;
    let mut puppets = Vec::new();
    for n in 1..=4 {
        puppets.push(Puppet::join(&backbone, n, Conduct::Vanishes).await);
    }
    backbone.ready(4).await;
    backbone.check(step(&backbone.model, 1, 1, 7)).await;
    let (counts, k) = (backbone.remote.counts(), backbone.model.hyper.experts_per_token as u64);
    // The row's experts may be with two owners at first; what both owner and replica died of stays here.
    assert!(counts.poisonous >= 1 && counts.requests <= 4, "{counts:?}");
    assert_eq!((counts.lost, counts.recomputed), (counts.requests, k));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backbone_that_may_not_compute_experts_lives_on_replicas_and_says_when_there_are_none() {
    let config = RemoteConfig { local_experts: false, ..RemoteConfig::new(vec![1]) };
    let backbone = Backbone::start_as(exact_model(), config).await;
    let work = step(&backbone.model, 1, 2, 7);
    let refused = soon(backbone.remote.begin(work.clone())).await;
    assert!(matches!(refused, Err(DispatchError::NoHolder { layer: 1, .. })), "{refused:?}");

    let _gone = Puppet::join(&backbone, 1, Conduct::Vanishes).await;
    let honest = Puppet::join(&backbone, 2, Conduct::Honest).await;
    backbone.ready(2).await;
    for seed in 0..20 {
        backbone.check(step(&backbone.model, 1, 2, seed)).await;
    }
    let counts = backbone.remote.counts();
    assert_eq!((counts.assignments_local, counts.lost), (0, 1));
    drop(honest);
    soon(async {
        while !backbone.remote.workers().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert!(matches!(soon(backbone.remote.begin(work.clone())).await, Err(DispatchError::NoHolder { .. })));
    let _back = Puppet::join(&backbone, 3, Conduct::Honest).await;
    backbone.ready(1).await;
    let sums = soon(backbone.remote.begin(work.clone())).await.expect("sums without a restart").rows;
    assert!(sums == local_sums(&backbone.model, &work).await);
}
