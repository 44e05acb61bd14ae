//! What placement promises, on small fleets by hand and on drawn ones by property.

use super::*;
use crate::types::ExpertId;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// One holder an expert.
const ALONE: Rules = Rules { holders_max: 1, levelled_bytes_max: u64::MAX };
/// Two holders an expert.
const PAIRS: Rules = Rules { holders_max: 2, levelled_bytes_max: u64::MAX };

fn layers(count: u16, experts: u16, expert_bytes: u64) -> Vec<LayerSize> {
    (0..count).map(|layer| LayerSize { layer, experts, expert_bytes }).collect()
}

fn worker(memory_bytes: u64) -> Capacity {
    Capacity {
        memory_bytes,
        wants: vec![],
        barred: vec![],
        assignments_per_s: 1e4,
        round_trip: Duration::from_millis(20),
        is_proven: true,
        own: Slice::default(),
        held: Slice::default(),
    }
}

fn workers(memory: &[u64]) -> Vec<Capacity> {
    memory.iter().map(|memory| worker(*memory)).collect()
}

fn own(shares: &[Share]) -> Vec<String> {
    shares.iter().map(|share| share.own.to_string()).collect()
}

fn replicas(shares: &[Share]) -> Vec<String> {
    shares.iter().map(|share| share.replicas.to_string()).collect()
}

/// The share is held now, as placement wanted it.
fn settle(workers: &mut [Capacity], shares: &[Share]) {
    for (worker, share) in workers.iter_mut().zip(shares) {
        worker.own = share.own.clone();
        worker.held = share.own.iter().chain(share.replicas.iter()).collect();
    }
}

fn owned(shares: &[Share]) -> usize {
    shares.iter().map(|share| share.own.len()).sum()
}

/// Experts that somebody has to fetch.
fn fetched(workers: &[Capacity], shares: &[Share]) -> usize {
    let missing = |(worker, share): (&Capacity, &Share)| {
        share.own.without(&worker.held).len() + share.replicas.without(&worker.held).len()
    };
    workers.iter().zip(shares).map(missing).sum()
}

#[test]
fn whole_layers_come_first() {
    let shares = place(&layers(4, 16, 10), &[], &workers(&[1000, 1000]), &ALONE);
    assert_eq!(own(&shares), ["0:0-15,2:0-15", "1:0-15,3:0-15"]);
    assert_eq!(replicas(&shares), ["", ""]);
}

#[test]
fn a_layer_is_split_when_there_are_more_workers_than_layers() {
    let shares = place(&layers(1, 16, 10), &[], &workers(&[1000, 1000, 1000]), &ALONE);
    assert_eq!(own(&shares), ["0:0-5", "0:6-10", "0:11-15"]);
}

#[test]
fn a_layer_that_fits_nowhere_is_split_and_the_rest_stays_local() {
    let shares = place(&layers(2, 16, 10), &[], &workers(&[100, 90]), &PAIRS);
    assert_eq!(own(&shares), ["0:0-9", "0:10-15,1:0-2"]);
    assert_eq!(replicas(&shares), ["", ""], "no memory is spare");
}

#[test]
fn a_wish_is_followed_where_memory_allows() {
    let mut two = workers(&[1000, 1000]);
    two[0].wants = vec![1];
    assert_eq!(own(&place(&layers(2, 4, 10), &[], &two, &ALONE)), ["1:0-3", "0:0-3"]);
}

#[test]
fn more_workers_than_experts_own_one_each_as_far_as_they_go() {
    let shares = place(&layers(1, 8, 10), &[], &workers(&[1000; 20]), &PAIRS);
    assert_eq!(shares.iter().map(|share| share.own.len()).max(), Some(1));
    assert_eq!(owned(&shares), 8);
}

#[test]
fn nobody_holds_a_layer_that_is_barred_to_it() {
    let mut three = workers(&[1000, 1000, 1000]);
    (three[1].barred, three[2].barred) = (vec![0], vec![0, 1]);
    for layers in [layers(2, 4, 10), layers(3, 4, 10)] {
        let shares = place(&layers, &[], &three, &PAIRS);
        let all = |share: &Share| share.own.iter().chain(share.replicas.iter()).collect::<Vec<_>>();
        assert_eq!(owned(&shares), layers.len() * 4);
        for (share, worker) in shares.iter().zip(&three) {
            assert!(all(share).iter().all(|id| !worker.barred.contains(&id.layer)));
        }
    }
}

#[test]
fn nobody_and_nothing_are_fine() {
    assert!(place(&layers(2, 4, 10), &[], &[], &PAIRS).is_empty());
    assert_eq!(own(&place(&[], &[], &workers(&[10]), &PAIRS)), [""]);
}

#[test]
fn spare_memory_holds_second_copies_and_no_more_than_asked_for() {
    let shares = place(&layers(2, 4, 10), &[], &workers(&[1000, 1000, 1000]), &PAIRS);
    assert_eq!(owned(&shares), 8);
    assert_eq!(shares.iter().map(|share| share.replicas.len()).sum::<usize>(), 8);
    let three = Rules { holders_max: 3, ..PAIRS };
    let shares = place(&layers(2, 4, 10), &[], &workers(&[1000, 1000, 1000]), &three);
    assert!(shares.iter().all(|share| share.own.len() + share.replicas.len() == 8));
}

#[test]
fn what_unproven_workers_own_is_replicated_first_and_then_what_is_hot() {
    let mut three = workers(&[40, 40, 80]);
    three[1].is_proven = false;
    // Room for one of the two other layers.
    let shares = place(&layers(3, 4, 10), &[], &three, &PAIRS);
    assert_eq!(
        (own(&shares), replicas(&shares)[2].as_str()),
        (vec!["0:0-3".into(), "1:0-3".into(), "2:0-3".into()], "1:0-3")
    );
    three[1].is_proven = true;
    three[2].memory_bytes = 60;
    let heat = [vec![1, 9, 1, 8], vec![1; 4], vec![2; 4]];
    let shares = place(&layers(3, 4, 10), &heat, &three, &PAIRS);
    let copied: Vec<ExpertId> = shares.iter().flat_map(|share| share.replicas.iter()).collect();
    assert_eq!(copied, [ExpertId { layer: 0, expert: 1 }, ExpertId { layer: 0, expert: 3 }]);
}

#[test]
fn a_share_follows_the_pace_and_a_slow_worker_gets_nothing_or_the_cold_rest() {
    let mut three = workers(&[1000, 1000, 1000]);
    three[0].round_trip = Duration::from_millis(60);
    three[2].round_trip = Duration::from_millis(400);
    let shares = place(&layers(4, 16, 10), &[], &three, &ALONE);
    assert_eq!(own(&shares), ["2:0-15", "0:0-15,1:0-15,3:0-15", ""]);

    (three[0].memory_bytes, three[1].memory_bytes) = (160, 320);
    let heat = [vec![1; 16], vec![3; 16], vec![1; 16], vec![2; 16]];
    let shares = place(&layers(4, 16, 10), &heat, &three, &ALONE);
    assert_eq!(own(&shares)[2], "2:0-15", "the coldest layer, which nobody else has room for");
}

#[test]
fn a_newcomer_takes_over_from_whoever_has_the_most_and_nothing_else_moves() {
    let layers = layers(4, 16, 10);
    let mut fleet = workers(&[1000]);
    let shares = place(&layers, &[], &fleet, &ALONE);
    settle(&mut fleet, &shares);
    fleet.push(worker(1000));
    let shares = place(&layers, &[], &fleet, &ALONE);
    assert_eq!(own(&shares), ["0:0-15,1:0-15", "2:0-15,3:0-15"]);
    settle(&mut fleet, &shares);
    fleet.push(worker(1000));
    let shares = place(&layers, &[], &fleet, &ALONE);
    assert_eq!((fetched(&fleet, &shares), shares[2].own.len()), (16, 16));
}

#[test]
fn what_a_leaver_owned_goes_to_the_holders_of_its_replicas() {
    let layers = layers(4, 16, 10);
    let mut fleet = workers(&[330, 330, 330, 330, 330]);
    let shares = place(&layers, &[], &fleet, &PAIRS);
    assert_eq!(owned(&shares), 64);
    settle(&mut fleet, &shares);
    let left = fleet.remove(1);
    let orphans = left.own.clone();
    let shares = place(&layers, &[], &fleet, &Rules { levelled_bytes_max: 0, ..PAIRS });
    for (worker, share) in fleet.iter().zip(&shares) {
        let taken = share.own.without(&worker.own);
        assert!(taken.is_within(&worker.held), "{taken} is held already");
    }
    assert_eq!(owned(&shares), 64);
    assert!(fetched(&fleet, &shares) <= left.held.len(), "new replicas, and nothing else");
    assert!(!orphans.is_empty());
}

#[test]
fn small_changes_of_pace_move_nothing_and_a_great_one_moves_a_bounded_amount() {
    let layers = layers(2, 64, 10);
    let mut fleet = workers(&[4000; 8]);
    let shares = place(&layers, &[], &fleet, &ALONE);
    settle(&mut fleet, &shares);
    for (n, worker) in fleet.iter_mut().enumerate() {
        worker.round_trip = Duration::from_millis(15 + 2 * n as u64);
    }
    assert_eq!(place(&layers, &[], &fleet, &ALONE), shares);
    fleet[3].round_trip = Duration::from_millis(400);
    let few = Rules { levelled_bytes_max: 50, ..ALONE };
    let first = place(&layers, &[], &fleet, &few);
    assert_eq!((first[3].own.len(), fetched(&fleet, &first)), (shares[3].own.len() - 5, 5));
    let all = place(&layers, &[], &fleet, &ALONE);
    assert_eq!((all[3].own.len(), owned(&all)), (0, 128));
}

#[test]
fn less_memory_keeps_what_fits_and_asks_for_nothing_else() {
    let layers = layers(2, 8, 10);
    let mut fleet = workers(&[160, 160]);
    let shares = place(&layers, &[], &fleet, &PAIRS);
    settle(&mut fleet, &shares);
    fleet[0].memory_bytes = 50;
    let shares = place(&layers, &[], &fleet, &PAIRS);
    let kept = shares[0].own.iter().chain(shares[0].replicas.iter()).collect::<Slice>();
    assert!(kept.is_within(&fleet[0].held) && kept.len() == 5, "{kept}");
    assert_eq!((owned(&shares), fetched(&fleet, &shares)), (16, 0));
}

/// A fleet of the size that the issue names.
fn large(workers: usize) -> (Vec<LayerSize>, Vec<Capacity>) {
    let layers = layers(49, 256, 5 << 20);
    let fleet = (0..workers).map(|n| {
        let round_trip = Duration::from_millis(10 + (n as u64 * 7) % 60);
        Capacity { round_trip, is_proven: n % 3 > 0, ..worker((100 + n as u64 % 300) << 20) }
    });
    (layers, fleet.collect())
}

/// The result and the shortest of a few times: others may be at work on the machine.
fn timed<T>(what: impl Fn() -> T) -> (T, Duration) {
    let once = || {
        let start = std::time::Instant::now();
        (what(), start.elapsed())
    };
    let mut best = once();
    for _ in 0..7 {
        best.1 = best.1.min(once().1);
    }
    best
}

#[test]
fn a_thousand_workers_are_placed_at_once_and_a_change_costs_next_to_nothing() {
    let (layers, mut fleet) = large(1000);
    let rules = Rules::default();
    let (shares, first) = timed(|| place(&layers, &[], &fleet, &rules));
    assert_eq!(owned(&shares), 12_544);
    settle(&mut fleet, &shares);
    let left = fleet.remove(400);
    let (shares, leave) = timed(|| place(&layers, &[], &fleet, &rules));
    assert_eq!(owned(&shares), 12_544);
    assert!(fetched(&fleet, &shares) <= 2 * left.held.len());
    settle(&mut fleet, &shares);
    fleet.push(worker(200 << 20));
    let (shares, join) = timed(|| place(&layers, &[], &fleet, &rules));
    assert_eq!(owned(&shares), 12_544);
    assert!(!shares[999].own.is_empty() && fetched(&fleet, &shares) <= 40);
    eprintln!("1,000 workers, 12,544 experts: placed in {first:?}, a leave in {leave:?}, a join in {join:?}");
    // Ten times what they must take on a machine of their own.
    assert!(first < Duration::from_millis(500) && leave.max(join) < Duration::from_millis(50));
}

fn check(layers: &[LayerSize], fleet: &[Capacity], shares: &[Share], rules: &Rules) -> Result<(), TestCaseError> {
    let mut owned = BTreeSet::new();
    let mut holders = std::collections::BTreeMap::<ExpertId, usize>::new();
    for (share, worker) in shares.iter().zip(fleet) {
        let all: Vec<ExpertId> = share.own.iter().chain(share.replicas.iter()).collect();
        let bytes: u64 = all.iter().map(|id| layers[id.layer as usize].expert_bytes).sum();
        prop_assert!(bytes <= worker.memory_bytes);
        for id in share.own.iter() {
            prop_assert!(id.expert < layers[id.layer as usize].experts && owned.insert(id));
        }
        all.iter().for_each(|id| *holders.entry(*id).or_default() += 1);
        prop_assert_eq!(all.len(), all.iter().collect::<BTreeSet<_>>().len(), "twice on one worker");
    }
    prop_assert!(holders.iter().all(|(id, count)| *count <= rules.holders_max && owned.contains(id)));
    Ok(())
}

fn drawn() -> impl Strategy<Value = Capacity> {
    (0u64..3000, 1u64..400, any::<bool>(), prop::collection::vec(0u16..6, 0..2)).prop_map(
        |(memory, round_trip_ms, is_proven, wants)| Capacity {
            round_trip: Duration::from_millis(round_trip_ms),
            is_proven,
            wants,
            ..worker(memory)
        },
    )
}

proptest! {
    #[test]
    fn memory_is_respected_nothing_is_owned_twice_and_the_fleet_comes_to_rest(
        sizes in prop::collection::vec((0u16..40, 0u64..50), 0..6),
        mut fleet in prop::collection::vec(drawn(), 0..12),
        newcomer in drawn(),
        holders_max in 1usize..4,
    ) {
        let layers: Vec<LayerSize> = sizes
            .iter()
            .enumerate()
            .map(|(i, (experts, expert_bytes))| LayerSize { layer: i as u16, experts: *experts, expert_bytes: *expert_bytes })
            .collect();
        let rules = Rules { holders_max, levelled_bytes_max: 500 };
        let mut shares = place(&layers, &[], &fleet, &rules);
        prop_assert_eq!(&shares, &place(&layers, &[], &fleet, &rules));
        for change in 0..3 {
            check(&layers, &fleet, &shares, &rules)?;
            let mut rounds = 0;
            loop {
                settle(&mut fleet, &shares);
                let next = place(&layers, &[], &fleet, &rules);
                check(&layers, &fleet, &next, &rules)?;
                if next == shares {
                    break;
                }
                shares = next;
                rounds += 1;
                prop_assert!(rounds < 60, "never at rest");
            }
            match change {
                0 => fleet.push(newcomer.clone()),
                1 => { fleet.remove(0); }
                _ => {}
            }
            shares = place(&layers, &[], &fleet, &rules);
        }
    }

    #[test]
    fn every_expert_is_owned_when_memory_allows(
        count in 0u16..6,
        experts in 1u16..40,
        expert_bytes in 1u64..50,
        memory in prop::collection::vec(0u64..4000, 1..9),
    ) {
        let shares = place(&layers(count, experts, expert_bytes), &[], &workers(&memory), &PAIRS);
        let room: u64 = memory.iter().map(|m| m / expert_bytes).sum();
        prop_assert_eq!(owned(&shares) as u64, room.min(u64::from(count) * u64::from(experts)));
    }
}
