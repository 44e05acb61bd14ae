//! A whole fleet in one thread: the real dispatch, the real frames and kernel, simulated machines, links and time.
//!
//! Everything follows from a seed: who joins when, how far away it is, when it pauses, lies, shrinks or is cut, and when
//! the clocks jump. In every world the sums are the local ones, nobody is paid for anything but right answers that were
//! used, coverage comes back once workers keep to their work, and nothing is left over at the end.
//!
//! A longer soak: `KVASIR_FLEET_SEEDS=1..2000 cargo test --release --test kvasir fleet:: -- --ignored --nocapture`.

mod books;
pub mod dice;
mod lies;
mod requests;
mod worker;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use world::{Outcome, Size, run};

/// A size for every seed: mostly small, some of two hundred workers, a few of a thousand.
fn size(seed: u64) -> Size {
    let naps = seed.is_multiple_of(2);
    let small = Size { workers: 50, generations: 4, steps: 60, rows_max: 40, is_wide: false, naps };
    match seed % 10 {
        0 => Size { workers: 1000, generations: 8, steps: 25, rows_max: 200, is_wide: true, ..small },
        4 | 9 => Size { workers: 200, generations: 6, steps: 40, rows_max: 100, is_wide: true, ..small },
        _ => small,
    }
}

/// Runs the world of a seed; a failure says how to see it again.
fn world_of(seed: u64) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let outcome = catch_unwind(AssertUnwindSafe(|| runtime.block_on(run(seed, size(seed)))));
    outcome.unwrap_or_else(|panic| {
        eprintln!(
            "the fleet of seed {seed} failed; again with:\n\
             KVASIR_FLEET_SEEDS={seed} cargo test --release --test kvasir fleet:: -- --ignored --nocapture"
        );
        resume_unwind(panic)
    })
}

fn worlds(seeds: impl IntoIterator<Item = u64>) {
    let (mut remote, mut lies, mut caught) = (0, 0, 0);
    for seed in seeds {
        let start = std::time::Instant::now();
        let outcome = world_of(seed);
        eprintln!("seed {seed}, {} workers, {:.1?}: {outcome}", size(seed).workers, start.elapsed());
        assert!(outcome.steps > 0);
        remote += outcome.remote;
        lies += outcome.lies;
        caught += outcome.caught;
    }
    assert!(remote > 0 && lies > 0 && caught > 0, "worlds without work, lies or liars that are caught prove little");
}

#[test]
fn fifty_workers_come_go_and_lie_and_every_sum_is_right() {
    worlds([1, 2, 3, 5, 6, 7, 8]);
}

#[test]
fn fifty_other_workers_do_the_same() {
    worlds([11, 12, 13, 15, 16, 17, 18]);
}

#[test]
fn two_hundred_workers_come_go_and_lie_and_every_sum_is_right() {
    worlds([4, 9, 14, 19]);
}

#[test]
fn a_thousand_workers_come_go_and_lie_and_every_sum_is_right() {
    worlds([10, 20]);
}

/// The soak: seeds from `KVASIR_FLEET_SEEDS`, one or `first..last`.
#[test]
#[ignore = "runs as long as it is told to"]
fn soak() {
    let seeds = std::env::var("KVASIR_FLEET_SEEDS").unwrap_or_else(|_| "1..100".into());
    let (first, last) = seeds.split_once("..").unwrap_or((&seeds, &seeds));
    let number = |text: &str| text.trim_start_matches('=').parse::<u64>().expect("KVASIR_FLEET_SEEDS=7 or 1..2000");
    for seed in number(first)..=number(last) {
        let outcome = world_of(seed);
        eprintln!("seed {seed}, {} workers: {outcome}", size(seed).workers);
    }
}
