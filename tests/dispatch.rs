//! Remote dispatch gives the local bits, whoever answers, fails, lies or leaves.

mod answers;
mod damage;
mod deadlines;
mod gate;
#[cfg(feature = "gpu")]
mod gpu;
mod hardware;
pub mod puppet;
mod trust;
mod worker;
pub mod world;

use std::sync::Arc;
use std::time::Duration;

use damage::Damage;
use gate::Gate;
use kvasir::dispatch::Dispatch as _;
use kvasir::wire::control::{Control, ExpertGet};
use kvasir::worker::{Phase, Source};
use puppet::{Conduct, Puppet};
use world::{Backbone, Hub, exact_model, float_model, kernel, local_sums, soon, step};

/// A deadline that a test can afford to miss.
const SHORT: Duration = Duration::from_millis(100);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_behind_a_hub_give_the_local_bits() {
    let backbone = Backbone::start(exact_model(), vec![0, 1, 3]).await;
    let hub = Hub::start(&backbone).await;
    let fetching = hub.worker("fetching", Source::Fetch, kernel());
    let owning = hub.worker("owning", Source::LocalModel(Arc::clone(&backbone.model)), kernel());
    backbone.ready(2).await;
    for (layer, rows) in [(0, 1), (1, 1), (3, 9), (2, 1), (0, 70)] {
        backbone.check(step(&backbone.model, layer, rows, u64::from(layer) + rows as u64)).await;
    }
    let (counts, k) = (backbone.remote.counts(), backbone.model.hyper.experts_per_token as u64);
    assert_eq!((counts.assignments_remote, counts.assignments_local), (81 * k, 0));
    assert_eq!(counts.work_bytes, 81 * k * 4 * backbone.model.hyper.hidden_size as u64);
    // Large steps are shared between those who hold an expert.
    assert!((4..=8).contains(&counts.requests) && counts.layer_steps == 4, "{counts:?}");
    let workers = backbone.remote.workers();
    assert_eq!(workers.iter().map(|w| w.assignments).sum::<u64>(), 81 * k);
    let mut slices: Vec<&str> = workers.iter().map(|w| w.slice.as_str()).collect();
    slices.sort_unstable();
    assert_eq!(slices, ["0:0-15,1:0-15,3:0-15"; 2], "each owns some layers and holds replicas of the others");

    for worker in [&fetching, &owning] {
        // What the hub signed for is what was accepted, and the signed paper lies on disk.
        let mut status = worker.status.clone();
        soon(status.wait_for(|s| s.work_bytes > 0 && s.receipted_work_bytes == s.work_bytes)).await.expect("a receipt");
        // The status is told first, the file is written behind it.
        let receipts = worker.home.join("receipts");
        soon(async {
            while std::fs::read_dir(&receipts).expect("a directory").next().is_none() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
    let before = fetching.status.borrow().clone();
    assert_eq!((&before.phase, before.slice.is_empty()), (&Phase::Serving, false));
    let after = owning.stop().await;
    assert_eq!((after.phase, after.assignments + before.assignments), (Phase::Stopped, 81 * k));
    fetching.stop().await;
    backbone.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn float_weight_experts_travel_too() {
    let backbone = Backbone::start(float_model(), vec![0, 1]).await;
    let hub = Hub::start(&backbone).await;
    let worker = hub.worker("worker", Source::Fetch, kernel());
    backbone.ready(1).await;
    for rows in [1, 5] {
        backbone.check(step(&backbone.model, 1, rows, 3)).await;
    }
    let counts = backbone.remote.counts();
    assert_eq!(
        (counts.assignments_remote, counts.assignments_local),
        (6 * backbone.model.hyper.experts_per_token as u64, 0)
    );
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_expert_is_fetched_again_and_no_other() {
    let backbone = Backbone::start(exact_model(), vec![0]).await;
    let damage = Damage::before(backbone.addr, 2).await;
    let hub = Hub::start_at(damage.addr).await;
    let worker = hub.worker("worker", Source::Fetch, kernel());
    backbone.ready(1).await;
    let gets = damage.gets.lock().expect("no panic").clone();
    let experts: Vec<u16> = gets[1..].iter().filter(|get| get.offset == 0).map(|get| get.expert).collect();
    let expected: Vec<u16> = (0..16).chain([0, 1]).collect();
    assert_eq!((gets[0].expert, experts), (u16::MAX, expected));
    backbone.check(step(&backbone.model, 0, 2, 9)).await;
    assert_eq!(backbone.remote.counts().assignments_local, 0);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_worker_does_the_sums_are_the_local_ones() {
    let k = exact_model().hyper.experts_per_token as u32;
    for (conduct, accepted, reason) in [
        (Conduct::Honest, 3 * k, "ok"),
        (Conduct::AnswersTwice, 3 * k, "ok"),
        (Conduct::Silent, 0, "late"),
        (Conduct::AnswersLate(SHORT * 4), 0, "late"),
        (Conduct::Declines, 0, "declined"),
        (Conduct::CutsShort, 0, "shape"),
        (Conduct::Lies, 0, "shape"),
        (Conduct::NamesAnother, 0, "late"),
        (Conduct::ClaimsRange, 0, "claim"),
        (Conduct::ClaimsPoison, 0, "claim"),
    ] {
        let honest = accepted > 0;
        let floor = if reason == "late" { SHORT } else { Duration::from_secs(10) };
        let backbone = Backbone::start_with(exact_model(), vec![1], floor).await;
        let mut puppet = Puppet::join(&backbone, 1, conduct).await;
        backbone.ready(1).await;
        backbone.check(step(&backbone.model, 1, 3, 7)).await;
        let verdicts = puppet.verdicts(1).await;
        let verdict = &verdicts[0];
        assert_eq!((verdict.accepted, verdict.refused), (accepted, 3 * k - accepted), "{conduct:?}");
        assert_eq!((verdict.reason.as_str(), verdicts.len()), (reason, 1), "{conduct:?}");
        let counts = backbone.remote.counts();
        let recomputed = u64::from(3 * k - accepted);
        assert_eq!((counts.assignments_remote, counts.recomputed), (u64::from(accepted), recomputed), "{conduct:?}");
        assert_eq!(counts.late, u64::from(reason == "late"), "{conduct:?}");
        assert_eq!(counts.declined, u64::from(reason == "declined"), "{conduct:?}");
        assert_eq!(counts.work_bytes > 0, honest, "{conduct:?}");
        if conduct == Conduct::AnswersTwice {
            // The next answer comes behind the duplicate, so by then it was seen.
            backbone.check(step(&backbone.model, 1, 3, 8)).await;
            assert!(backbone.remote.counts().refused >= 1);
        }
        backbone.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_ends_under_a_request_costs_no_deadline() {
    let backbone = Backbone::start_with(exact_model(), vec![1], Duration::from_secs(3600)).await;
    let _puppet = Puppet::join(&backbone, 1, Conduct::Vanishes).await;
    backbone.ready(1).await;
    backbone.check(step(&backbone.model, 1, 2, 7)).await;
    let counts = backbone.remote.counts();
    assert_eq!((counts.lost, counts.late, counts.assignments_remote), (1, 0, 0));
    assert!(counts.recomputed > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_never_answers_is_soon_left_alone() {
    let backbone = Backbone::start_with(exact_model(), vec![1], Duration::from_millis(20)).await;
    let _puppet = Puppet::join(&backbone, 1, Conduct::Silent).await;
    backbone.ready(1).await;
    for seed in 0..12 {
        backbone.check(step(&backbone.model, 1, 1, seed)).await;
    }
    let counts = backbone.remote.counts();
    assert_eq!((counts.late, counts.requests, counts.assignments_remote), (3, 3, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_whose_answers_are_of_no_use_is_soon_left_alone_too() {
    // Whoever makes a false claim is not asked again at all.
    for (conduct, asked) in
        [(Conduct::Declines, 3), (Conduct::CutsShort, 3), (Conduct::Lies, 3), (Conduct::ClaimsPoison, 1)]
    {
        let backbone = Backbone::start(exact_model(), vec![1]).await;
        let _puppet = Puppet::join(&backbone, 1, conduct).await;
        backbone.ready(1).await;
        for seed in 0..8 {
            backbone.check(step(&backbone.model, 1, 1, seed)).await;
        }
        let counts = backbone.remote.counts();
        assert_eq!((counts.requests, counts.assignments_remote), (asked, 0), "{conduct:?}");
        backbone.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_fetches_what_it_was_not_leased_loses_its_session() {
    let backbone = Backbone::start(exact_model(), vec![1]).await;
    let (mut reader, mut writer) = Puppet::open(&backbone, 1).await;
    for (request, expert, served) in [(1, u16::MAX, true), (2, 3, false)] {
        let get = ExpertGet { layer: 1, expert, offset: 0, length: 64 };
        writer.send(&get.reply(request).expect("a frame")).await.expect("sent");
        let chunk = soon(reader.recv()).await.ok().flatten();
        assert_eq!(chunk.map(|chunk| chunk.header.request), served.then_some(request));
    }
    assert!(backbone.remote.workers().is_empty());
    backbone.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_killed_under_a_request_changes_no_bit() {
    let backbone = Backbone::start_with(exact_model(), vec![2], Duration::from_secs(3600)).await;
    let hub = Hub::start(&backbone).await;
    let (gate, mut asked, _opener) = Gate::new();
    let worker = hub.worker("worker", Source::Fetch, gate.clone());
    backbone.ready(1).await;
    gate.close();
    let work = step(&backbone.model, 2, 4, 11);
    let pending = tokio::spawn(backbone.remote.begin(work.clone()));
    soon(asked.recv()).await.expect("a request");
    worker.kill();
    let sums = soon(pending).await.expect("no panic").expect("sums");
    assert!(sums.rows == local_sums(&backbone.model, &work).await);
    let counts = backbone.remote.counts();
    assert_eq!((counts.lost, counts.assignments_remote), (1, 0));
    assert_eq!(counts.recomputed, 4 * backbone.model.hyper.experts_per_token as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_that_come_and_go_lose_no_request() {
    let backbone = Arc::new(Backbone::start(exact_model(), vec![0, 1]).await);
    let hub = Hub::start(&backbone).await;
    let first = hub.worker("first", Source::Fetch, kernel());
    backbone.ready(1).await;
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let steps = tokio::spawn({
        let backbone = Arc::clone(&backbone);
        async move {
            let mut seed = 0;
            while !*stopped.borrow() {
                backbone.check(step(&backbone.model, (seed % 2) as u16, 2, seed)).await;
                seed += 1;
            }
            seed
        }
    });
    let second = hub.worker("second", Source::Fetch, kernel());
    backbone.ready(2).await;
    assert_eq!(backbone.remote.workers().len(), 2);
    first.stop().await;
    backbone.ready(1).await;
    stop.send_replace(true);
    assert!(soon(steps).await.expect("all sums equal") > 0);
    let counts = backbone.remote.counts();
    assert_eq!((counts.recomputed, counts.late, counts.lost, counts.declined), (0, 0, 0, 0));
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_gives_its_memory_back_loses_no_request() {
    let backbone = Arc::new(Backbone::start(exact_model(), vec![0, 1]).await);
    let hub = Hub::start(&backbone).await;
    let workers = [hub.worker("first", Source::Fetch, kernel()), hub.worker("second", Source::Fetch, kernel())];
    backbone.ready(2).await;
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let steps = tokio::spawn({
        let backbone = Arc::clone(&backbone);
        async move {
            for seed in 0.. {
                if *stopped.borrow() {
                    return seed;
                }
                backbone.check(step(&backbone.model, (seed % 2) as u16, 2, seed)).await;
            }
            0
        }
    });
    let mut status = workers[0].status.clone();
    let whole = status.borrow().slice.clone();
    // Room for a few of its experts, then for none, then for all again.
    let expert_bytes = backbone.expert_bytes();
    for (experts, expected) in [(5, None), (0, Some(String::new())), (64, Some(whole))] {
        workers[0].room.send_replace(Some(experts * expert_bytes));
        let is_there =
            |slice: &str| expected.as_ref().map_or(slice.len() > 2 && slice != "0:0-15,1:0-15", |e| e == slice);
        soon(status.wait_for(|status| is_there(&status.slice) && status.phase == Phase::Serving))
            .await
            .expect("a slice");
    }
    backbone.ready(2).await;
    stop.send_replace(true);
    assert!(soon(steps).await.expect("all sums equal") > 0);
    let counts = backbone.remote.counts();
    assert_eq!((counts.recomputed, counts.late, counts.lost, counts.declined), (0, 0, 0, 0));
    assert_eq!(counts.assignments_local, 0, "the other one holds replicas of everything");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_leave_their_grid_end_as_they_do_locally_and_are_not_paid_twice() {
    let backbone = Backbone::start(exact_model(), vec![0]).await;
    let mut puppet = Puppet::join(&backbone, 1, Conduct::Honest).await;
    backbone.ready(1).await;
    let mut work = step(&backbone.model, 0, 4, 5);
    work.rms[1] = 2.0f32.powi(-24);
    work.rms[2] = f32::MIN_POSITIVE;
    work.hidden[3 * backbone.model.hyper.hidden_size] = f32::NAN;
    let width = backbone.model.hyper.hidden_size;
    let expected = local_sums(&backbone.model, &work).await;
    let got = soon(backbone.remote.begin(work)).await.expect("sums").rows;
    // The row with a NaN has no bits to compare: NaN is not equal to itself.
    assert!(got[..3] == expected[..3]);
    let counts = backbone.remote.counts();
    assert!(counts.requests > 1, "a coarser grid was asked for");
    let verdicts = puppet.verdicts(counts.requests as usize).await;
    let paid: u32 = verdicts.iter().map(|v| v.accepted).sum();
    assert_eq!(u64::from(paid), counts.assignments_remote);
    assert!(paid <= 2 * backbone.model.hyper.experts_per_token as u32, "{paid}");
    assert_eq!(counts.work_bytes, u64::from(paid) * 4 * width as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_is_dropped_still_gets_its_verdicts() {
    let backbone = Backbone::start(exact_model(), vec![0]).await;
    let mut puppet = Puppet::join(&backbone, 1, Conduct::Silent).await;
    backbone.ready(1).await;
    drop(backbone.remote.begin(step(&backbone.model, 0, 2, 1)));
    let verdicts = puppet.verdicts(1).await;
    assert_eq!((verdicts[0].accepted, verdicts[0].reason.as_str()), (0, "unused"));
}
