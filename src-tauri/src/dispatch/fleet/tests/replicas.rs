//! Replicas, workers that take their memory back, and shares that are made even again.

use super::*;
use crate::dispatch::estimate::{Load, Queued};

#[test]
fn replicas_are_leased_once_everything_is_held_and_asked_after_the_owner() {
    let fleet = fleet_of(2);
    let (mut one, mut two) = (Worker::join(&fleet, 1), Worker::join(&fleet, 2));
    fleet.catch_up(Instant::now());
    assert_eq!((one.lease(), two.lease()), (Some((1, "0:0-3".into())), Some((1, "1:0-3".into()))));
    ready(&fleet, &one.session, 1);
    fleet.catch_up(Instant::now());
    assert_eq!((one.lease(), fleet.coverage()), (None, (8, 4)), "the other layer comes first");
    ready(&fleet, &two.session, 1);
    fleet.catch_up(Instant::now());
    let both = || Some((2, "0:0-3,1:0-3".to_owned()));
    assert_eq!((one.lease(), two.lease(), fleet.settled()), (both(), both(), None));
    ready(&fleet, &one.session, 2);
    ready(&fleet, &two.session, 2);
    fleet.catch_up(Instant::now());
    let routes = fleet.routes();
    for (layer, owner) in [(0, 1), (1, 2)] {
        let holders = routes.holders_of(ExpertId { layer, expert: 2 });
        let sessions: Vec<SessionId> = holders.iter().map(|h| routes.holders[*h].session.opened.session_id).collect();
        assert_eq!(sessions, [Hex([owner; 16]), Hex([3 - owner; 16])]);
    }
    assert_eq!(fleet.settled(), Some(2));

    fleet.leave(&one.session);
    assert_eq!(routed(&fleet, 0), Some((Hex([2; 16]), 2)), "the replica serves at once");
    fleet.catch_up(Instant::now());
    assert_eq!((two.lease(), fleet.settled()), (None, Some(1)), "nothing has to move");
}

#[test]
fn a_worker_with_less_room_than_it_holds_is_asked_no_more_for_what_has_to_go() {
    let fleet = fleet_of(2);
    let mut one = Worker::join(&fleet, 1);
    fleet.catch_up(Instant::now());
    assert!(one.lease().is_some());
    ready(&fleet, &one.session, 1);
    let mut two = Worker::join(&fleet, 2);
    fleet.catch_up(Instant::now());
    assert_eq!(two.lease(), Some((1, "0:0-3,1:0-3".into())), "what is covered is replicated at once");
    // It takes back its memory before the other one is ready: that costs coverage, and nobody an answer.
    fleet.offer(&one.session, Offer { memory_bytes: 3 * 8, ..offer(vec![]) }).unwrap();
    fleet.catch_up(Instant::now());
    let (lease, slice) = one.lease().expect("a smaller lease, at once");
    assert_eq!((lease, fleet.coverage()), (2, (8, 3)));
    ready(&fleet, &two.session, 1);
    ready(&fleet, &one.session, 2);
    fleet.catch_up(Instant::now());
    assert_eq!(fleet.coverage(), (8, 8));
    let held = fleet.views(0)[0].slice.clone();
    assert_eq!(held, slice);
}

#[test]
fn shares_are_made_even_again_from_time_to_time_and_not_in_between() {
    let fleet = fleet();
    let (mut one, mut two) = (Worker::join(&fleet, 1), Worker::join(&fleet, 2));
    let start = Instant::now();
    fleet.catch_up(start);
    assert!(one.lease().is_some() && two.lease().is_some());
    [&one, &two].iter().for_each(|worker| ready(&fleet, &worker.session, 1));
    let load = Load { bytes: 0, queued: Queued::default(), assignments: 1 };
    (0..200).for_each(|_| two.session.on_time(load, Duration::from_millis(150)));
    fleet.catch_up(start + LEVEL_EVERY - Duration::from_secs(1));
    assert_eq!((one.lease(), two.lease()), (None, None));
    fleet.catch_up(start + LEVEL_EVERY);
    assert_eq!(one.lease(), Some((2, "0:0-3,1:0-3".into())), "the slow one is to give its layer away");
    ready(&fleet, &one.session, 2);
    fleet.catch_up(start + LEVEL_EVERY);
    assert_eq!(two.lease(), Some((2, String::new())));
}
