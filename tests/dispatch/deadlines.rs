//! Deadlines follow from what a session is known to need, at one row and at 512, and bound what a dead worker costs.

use std::time::{Duration, Instant};

use kvasir::dispatch::estimate::{Estimate, Load, Queued};
use kvasir::dispatch::exact::Shape;
use kvasir::dispatch::{DeadlineRule, Dispatch as _, RemoteConfig};

use super::puppet::{Conduct, Puppet};
use super::world::{Backbone, exact_model, local_sums, soon, step};

/// What a busy machine may add.
const BUSY: Duration = Duration::from_secs(5);

/// What dispatch knows of a puppet before its first answer.
fn first_estimate() -> Estimate {
    let mut estimate = Estimate::new(Duration::from_millis(1));
    estimate.offered(1e4);
    estimate
}

fn load(backbone: &Backbone, rows: usize) -> Load {
    let hyper = &backbone.model.hyper;
    let assignments = rows * hyper.experts_per_token;
    Load {
        bytes: Shape { hidden: hyper.hidden_size, exact: true }.bytes(rows, assignments),
        queued: Queued::default(),
        assignments,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_worker_costs_a_step_its_deadline_at_one_row_and_at_512() {
    let rule = DeadlineRule::default();
    for rows in [1, 512] {
        let backbone = Backbone::start_as(exact_model(), RemoteConfig::new(vec![1])).await;
        let puppet = Puppet::join(&backbone, 1, Conduct::Silent).await;
        backbone.ready(1).await;
        let allowed = rule.deadline(first_estimate().predict(load(&backbone, rows)));
        let work = step(&backbone.model, 1, rows, 7);
        let start = Instant::now();
        let sums = soon(backbone.remote.begin(work.clone())).await.expect("sums").rows;
        let took = start.elapsed();
        assert!(took >= allowed && took < allowed + BUSY, "{rows} rows: {took:?} for a deadline of {allowed:?}");
        assert!(sums == local_sums(&backbone.model, &work).await);
        let (told, counts) = (puppet.deadlines_ms.borrow().clone(), backbone.remote.counts());
        assert!(told.iter().all(|ms| u128::from(*ms) == allowed.as_millis()), "{told:?} for {allowed:?}");
        assert_eq!((counts.late, u128::from(counts.late_us_max)), (1, allowed.as_micros()));
        backbone.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deadlines_shrink_to_what_a_quick_worker_needs() {
    let backbone = Backbone::start_as(exact_model(), RemoteConfig::new(vec![1])).await;
    let puppet = Puppet::join(&backbone, 1, Conduct::Honest).await;
    backbone.ready(1).await;
    for seed in 0..6 {
        backbone.check(step(&backbone.model, 1, 256, seed)).await;
    }
    let told = puppet.deadlines_ms.borrow().clone();
    let first = DeadlineRule::default().deadline(first_estimate().predict(load(&backbone, 256)));
    assert_eq!(u128::from(told[0]), first.as_millis());
    assert!(told[told.len() - 1] <= told[0] && backbone.remote.counts().late == 0, "{told:?}");
}
