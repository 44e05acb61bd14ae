//! Which holder is asked for which expert: predicted times in, one worker per expert out.
//!
//! Whatever it is asked for, a worker costs a round trip and the bytes of the rows, so a step goes to few workers:
//! another one joins only where it is clearly sooner. Replicas that are about equally fast take turns, and one that was
//! not asked for long is tried again, so that its measured speed stays true.
//! **Promises:** pure and deterministic; every expert that a candidate holds goes to exactly one of its holders.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::estimate::{Estimate, Load, Queued};
use super::exact::Shape;

/// How much sooner a worker must be to join a step that others serve already.
const JOINING: f64 = 1.25;
/// Replicas whose times differ by less than this share take turns.
const ABOUT_EQUAL: f64 = 0.25;
/// What the time of a worker counts that was not asked for long.
const STALE: f64 = 0.25;
/// What the time of a benched worker counts, where nobody else can be asked.
const BENCHED: f64 = 100.0;

/// How a worker stands in the choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// It was asked lately.
    Busy,
    /// It was not asked for long, or never.
    Stale,
    /// It is asked only if nobody else can be.
    Benched,
}

/// A worker that may be asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub estimate: Estimate,
    /// What it owes.
    pub queued: Queued,
    pub standing: Standing,
}

/// What a worker is going to be asked for.
#[derive(Clone, Debug, Default)]
pub(super) struct Share {
    pub experts: BTreeSet<u16>,
    rows: BTreeSet<usize>,
    assignments: usize,
}

impl Share {
    /// The load with the experts' rows on top.
    fn load_with(&self, rows: &[usize], shape: Shape, queued: Queued) -> Load {
        let more = rows.iter().filter(|row| !self.rows.contains(row)).count();
        let assignments = self.assignments + rows.len();
        Load { bytes: shape.bytes(self.rows.len() + more, assignments), queued, assignments }
    }

    fn take(&mut self, expert: u16, rows: &[usize]) {
        self.experts.insert(expert);
        self.rows.extend(rows);
        self.assignments += rows.len();
    }

    /// The load of it.
    pub fn load(&self, shape: Shape, queued: Queued) -> Load {
        self.load_with(&[], shape, queued)
    }
}

/// A number in 0..1 that is another one for every turn and worker.
fn lot(turn: u64, worker: usize) -> f64 {
    let mut z = turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (worker as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

/// Shares the experts of `wanted`, each with its rows, among the candidates that hold them. Experts without a candidate
/// are in nobody's share. `turn` is another number for every step.
pub(super) fn choose<'a>(
    wanted: &BTreeMap<u16, Vec<usize>>,
    shape: Shape,
    candidates: &BTreeMap<usize, Candidate>,
    holders_of: impl Fn(u16) -> &'a [usize],
    turn: u64,
) -> BTreeMap<usize, Share> {
    let options = |expert| holders_of(expert).iter().filter(|holder| candidates.contains_key(holder));
    let mut order: Vec<(u16, &Vec<usize>)> = wanted.iter().map(|(expert, rows)| (*expert, rows)).collect();
    // Those without a choice first, then the largest, which are the hardest to fit in.
    order.sort_by_cached_key(|(expert, rows)| (options(*expert).nth(1).is_some(), Reverse(rows.len())));
    let mut shares: BTreeMap<usize, Share> = BTreeMap::new();
    let nothing = Share::default();
    for (expert, rows) in order {
        let cost = |holder: &usize| {
            let Candidate { estimate, queued, standing } = &candidates[holder];
            let share = shares.get(holder);
            let joins = if share.is_some() || shares.is_empty() { 1.0 } else { JOINING };
            let stands = match standing {
                Standing::Busy => 1.0,
                Standing::Stale => STALE,
                Standing::Benched => BENCHED,
            };
            // Lots are drawn for who is asked at all; afterwards they would only tear a token apart.
            let turns = if shares.is_empty() { 1.0 + ABOUT_EQUAL * lot(turn, *holder) } else { 1.0 };
            let load = share.unwrap_or(&nothing).load_with(rows, shape, *queued);
            estimate.predict(load).as_secs_f64() * joins * stands * turns
        };
        if let Some(holder) = options(expert).min_by(|a, b| cost(a).total_cmp(&cost(b))) {
            shares.entry(*holder).or_default().take(expert, rows);
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const SHAPE: Shape = Shape { hidden: 3072, exact: true };

    fn candidate(round_trip_ms: u64, assignments_per_s: f64) -> Candidate {
        let mut estimate = Estimate::new(Duration::from_millis(round_trip_ms));
        estimate.offered(assignments_per_s);
        Candidate { estimate, queued: Queued::default(), standing: Standing::Busy }
    }

    fn all(candidates: &[Candidate]) -> BTreeMap<usize, Candidate> {
        candidates.iter().copied().enumerate().collect()
    }

    /// A step of `rows` rows, each with eight of 64 experts.
    fn wanted(rows: usize) -> BTreeMap<u16, Vec<usize>> {
        let mut wanted = BTreeMap::<u16, Vec<usize>>::new();
        for row in 0..rows {
            (0..8).for_each(|k| wanted.entry(((row * 7 + k * 8) % 64) as u16).or_default().push(row));
        }
        wanted
    }

    fn sizes(shares: &BTreeMap<usize, Share>) -> Vec<(usize, usize)> {
        shares.iter().map(|(holder, share)| (*holder, share.assignments)).collect()
    }

    #[test]
    fn one_token_goes_to_one_worker_and_it_is_the_nearest() {
        let candidates = all(&[candidate(60, 2e4), candidate(20, 2e4), candidate(40, 2e4)]);
        for turn in 0..50 {
            assert_eq!(sizes(&choose(&wanted(1), SHAPE, &candidates, |_| &[0, 1, 2], turn)), [(1, 8)]);
        }
    }

    #[test]
    fn replicas_that_are_about_equal_take_turns() {
        let candidates = all(&[candidate(20, 2e4), candidate(21, 2e4)]);
        let mut served = [0; 2];
        for turn in 0..1000 {
            let shares = choose(&wanted(1), SHAPE, &candidates, |_| &[0, 1], turn);
            assert_eq!(shares.len(), 1, "a token is not split");
            shares.keys().for_each(|holder| served[*holder] += 1);
        }
        assert!(served.iter().all(|n| (250..750).contains(n)), "{served:?}");
    }

    #[test]
    fn a_large_step_spreads_by_speed() {
        let candidates = all(&[candidate(20, 4e4), candidate(20, 1e4)]);
        let mut slow = candidates.clone();
        slow.insert(1, Candidate { queued: Queued { bytes: 0, assignments: 100_000 }, ..candidate(20, 1e4) });
        let shares = choose(&wanted(512), SHAPE, &candidates, |_| &[0, 1], 1);
        let share = |shares: &BTreeMap<usize, Share>, n: usize| shares.get(&n).map_or(0, |s| s.assignments);
        assert_eq!(share(&shares, 0) + share(&shares, 1), 8 * 512);
        assert!(share(&shares, 0) >= share(&shares, 1) && share(&shares, 1) > 0, "{:?}", sizes(&shares));
        assert_eq!(share(&choose(&wanted(512), SHAPE, &slow, |_| &[0, 1], 1), 1), 0, "busy with other work");
    }

    #[test]
    fn who_has_to_be_asked_anyway_gets_the_rest_too() {
        // Expert 0 is only at the farther worker; it might as well do the others.
        let candidates = all(&[candidate(20, 2e4), candidate(21, 2e4)]);
        let holders = |expert| if expert == 0 { &[1][..] } else { &[0, 1] };
        for turn in 0..50 {
            assert_eq!(sizes(&choose(&wanted(1), SHAPE, &candidates, holders, turn)), [(1, 8)], "turn {turn}");
        }
    }

    #[test]
    fn a_worker_that_was_not_asked_for_long_is_tried_again_and_a_benched_one_comes_last() {
        let standing = |standing, round_trip| Candidate { standing, ..candidate(round_trip, 2e4) };
        let stale = all(&[candidate(20, 2e4), standing(Standing::Stale, 40)]);
        assert_eq!(sizes(&choose(&wanted(1), SHAPE, &stale, |_| &[0, 1], 1)), [(1, 8)]);
        let benched = all(&[candidate(100, 2e4), standing(Standing::Benched, 2)]);
        assert_eq!(sizes(&choose(&wanted(1), SHAPE, &benched, |_| &[0, 1], 1)), [(0, 8)]);
        assert_eq!(sizes(&choose(&wanted(1), SHAPE, &benched, |_| &[1], 1)), [(1, 8)]);
    }

    #[test]
    fn experts_that_nobody_holds_are_in_no_share() {
        let candidates = all(&[candidate(20, 2e4)]);
        let holders = |expert| if expert < 32 { &[0][..] } else { &[7] };
        let shares = choose(&wanted(1), SHAPE, &candidates, holders, 1);
        assert_eq!(shares[&0].experts, BTreeSet::from([0, 8, 16, 24]));
        assert!(choose(&wanted(1), SHAPE, &BTreeMap::new(), holders, 1).is_empty());
    }
}
