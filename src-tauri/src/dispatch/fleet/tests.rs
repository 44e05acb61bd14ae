//! Leases and routes as workers come, get ready, shrink and go.

use super::*;
use crate::dispatch::session::tests::opened;
use crate::types::{ExpertId, Hex};
use crate::wire::chunk::{CHUNK_BYTES_MAX, MANIFEST_EXPERT};
use crate::wire::control::{Control, Lease};
use crate::wire::{Frame, Kind};
use tokio::sync::mpsc;

mod replicas;

struct Worker {
    session: Arc<Session>,
    frames: mpsc::Receiver<Frame>,
    ended: Shutdown,
}

fn offer(wants: Vec<u16>) -> Offer {
    Offer { device: "test".into(), memory_bytes: 1 << 20, assignments_per_s: 1e3, wants }
}

impl Worker {
    fn join(fleet: &Fleet, n: u8) -> Self {
        let (session, frames, ended) = Session::new(opened(n));
        let session = Arc::new(session);
        session.proof.granted();
        fleet.join(Arc::clone(&session));
        let offer = offer(vec![]);
        fleet.offer(&session, offer).unwrap();
        Self { session, frames, ended }
    }

    fn lease(&mut self) -> Option<(u32, String)> {
        let frame = self.frames.try_recv().ok()?;
        assert_eq!(frame.header.kind, Kind::Lease);
        let lease = Lease::read(&frame).unwrap();
        Some((lease.lease, Slice::from_ranges(&lease.experts).unwrap().to_string()))
    }
}

/// A worker holds all of a lease.
fn ready(fleet: &Fleet, session: &Session, lease: u32) {
    fleet.ready(session, &SliceReady { lease, bytes: 0, experts: BTreeMap::new() }).unwrap();
}

/// One holder an expert.
fn fleet() -> Fleet {
    fleet_of(1)
}

fn fleet_of(holders_max: usize) -> Fleet {
    let layers = (0..2).map(|layer| LayerSize { layer, experts: 4, expert_bytes: 8 }).collect();
    let goods = Goods { layers, model_layers: 3, manifest: Hex([7; 32]), manifest_bytes: 100 };
    Fleet::new(goods, Rules { holders_max, ..Rules::default() })
}

/// Who is asked for a layer's first expert, with nothing left to gather.
fn holder(fleet: &Fleet, layer: u16) -> Option<(SessionId, u32)> {
    fleet.catch_up(Instant::now());
    routed(fleet, layer)
}

/// Who is asked for a layer's first expert at this moment.
fn routed(fleet: &Fleet, layer: u16) -> Option<(SessionId, u32)> {
    let routes = fleet.routes();
    let holder = &routes.holders[*routes.holders_of(ExpertId { layer, expert: 0 }).first()?];
    Some((holder.session.opened.session_id, holder.lease))
}

#[test]
fn the_old_slice_serves_until_the_new_one_is_confirmed() {
    let fleet = fleet();
    let mut one = Worker::join(&fleet, 1);
    fleet.catch_up(Instant::now());
    assert_eq!(one.lease(), Some((1, "0:0-3,1:0-3".into())));
    assert_eq!(holder(&fleet, 0), None);
    ready(&fleet, &one.session, 1);
    assert_eq!(holder(&fleet, 1), Some((Hex([1; 16]), 1)));

    let mut two = Worker::join(&fleet, 2);
    fleet.catch_up(Instant::now());
    assert_eq!(two.lease(), Some((1, "1:0-3".into())));
    assert_eq!(one.lease(), None, "shrinking waits for the newcomer");
    assert_eq!(holder(&fleet, 1), Some((Hex([1; 16]), 1)));

    ready(&fleet, &two.session, 1);
    assert_eq!(holder(&fleet, 1), Some((Hex([2; 16]), 1)));
    assert_eq!(one.lease(), Some((2, "0:0-3".into())));
    assert_eq!(holder(&fleet, 0), Some((Hex([1; 16]), 1)));
    ready(&fleet, &one.session, 2);
    assert_eq!(holder(&fleet, 0), Some((Hex([1; 16]), 2)));
    assert_eq!(fleet.settled(), Some(2));
}

#[test]
fn whoever_leaves_pauses_or_releases_gets_no_more_requests() {
    let fleet = fleet();
    let mut one = Worker::join(&fleet, 1);
    fleet.catch_up(Instant::now());
    assert!(one.lease().is_some());
    ready(&fleet, &one.session, 1);
    assert!(holder(&fleet, 0).is_some());
    fleet.pause(&one.session, true);
    assert_eq!(routed(&fleet, 0), None);
    fleet.pause(&one.session, false);
    assert!(holder(&fleet, 0).is_some());

    fleet.release(&one.session, &Release { lease: 1, experts: BTreeMap::from([(0, vec![(0, 3)])]) }).unwrap();
    assert_eq!(routed(&fleet, 0), None);
    assert!(routed(&fleet, 1).is_some());
    fleet.release(&one.session, &Release { lease: 1, experts: BTreeMap::new() }).unwrap();
    assert_eq!(routed(&fleet, 1), None);
    fleet.leave(&one.session);
    fleet.catch_up(Instant::now());
    assert_eq!(fleet.settled(), Some(0));
}

#[test]
fn a_stale_confirmation_changes_nothing() {
    let fleet = fleet();
    let mut one = Worker::join(&fleet, 1);
    let mut two = Worker::join(&fleet, 2);
    fleet.catch_up(Instant::now());
    assert!(one.lease().is_some() && two.lease().is_some());
    ready(&fleet, &two.session, 1);
    fleet.leave(&two.session);
    fleet.catch_up(Instant::now());
    assert_eq!(one.lease(), Some((2, "0:0-3,1:0-3".into())));
    ready(&fleet, &one.session, 1);
    assert_eq!(holder(&fleet, 0), None);
    ready(&fleet, &one.session, 2);
    assert_eq!(holder(&fleet, 1), Some((Hex([1; 16]), 2)));
}

#[tokio::test]
async fn waiting_for_workers_ends_with_what_is_missing() {
    let fleet = fleet();
    let error = fleet.wait_ready(1, Duration::from_millis(5)).await.unwrap_err();
    assert_eq!(error, NotReady { expected: 1, ready: 0, experts: 8, held: 0, waited_ms: 5 });
    let one = Worker::join(&fleet, 1);
    fleet.catch_up(Instant::now());
    let confirm = async {
        ready(&fleet, &one.session, 1);
        fleet.catch_up(Instant::now());
    };
    let (ready, ()) = tokio::join!(fleet.wait_ready(1, Duration::from_secs(1)), confirm);
    assert_eq!(ready, Ok(()));
}

#[test]
fn what_a_worker_gives_back_is_not_asked_whatever_lease_it_names() {
    let fleet = fleet();
    let one = Worker::join(&fleet, 1);
    fleet.catch_up(Instant::now());
    ready(&fleet, &one.session, 1);
    let _two = Worker::join(&fleet, 2);
    assert!(holder(&fleet, 1).is_some());
    let expert = |expert| ExpertId { layer: 1, expert };
    fleet.release(&one.session, &Release { lease: 9, experts: BTreeMap::from([(1, vec![(0, 1)])]) }).unwrap();
    assert_eq!(routed(&fleet, 1), None);
    let routes = fleet.routes();
    let holders = routes.holders_of(expert(2));
    assert_eq!(holders.len(), 1, "it still holds this one");
    assert_eq!(routes.holders[holders[0]].lease, 1, "under the lease that it confirmed");
}

#[test]
fn a_lease_that_nobody_confirms_goes_to_others_and_its_session_ends() {
    let fleet = fleet();
    let mut one = Worker::join(&fleet, 1);
    let mut two = Worker::join(&fleet, 2);
    fleet.catch_up(Instant::now());
    assert!(one.lease().is_some() && two.lease().is_some());
    ready(&fleet, &two.session, 1);
    let soon = Instant::now() + Duration::from_secs(89);
    fleet.catch_up(soon);
    assert!(!one.ended.is_requested());
    fleet.catch_up(soon + Duration::from_secs(2));
    assert!(one.ended.is_requested() && !two.ended.is_requested());
    assert_eq!(two.lease(), Some((2, "0:0-3,1:0-3".into())));
}

#[test]
fn saying_the_same_again_builds_no_routes() {
    let fleet = fleet();
    let mut one = Worker::join(&fleet, 1);
    fleet.catch_up(Instant::now());
    ready(&fleet, &one.session, 1);
    assert!(one.lease().is_some() && holder(&fleet, 0).is_some());
    let before = fleet.routes();
    for _ in 0..3 {
        fleet.pause(&one.session, false);
        fleet.offer(&one.session, offer(vec![])).unwrap();
        fleet.release(&one.session, &Release { lease: 1, experts: BTreeMap::from([(7, vec![(0, 3)])]) }).unwrap();
        fleet.catch_up(Instant::now());
    }
    assert!(Arc::ptr_eq(&before, &fleet.routes()) && one.lease().is_none());

    fleet.pause(&one.session, true);
    let paused = fleet.routes();
    assert!(!Arc::ptr_eq(&before, &paused));
    for _ in 0..3 {
        fleet.pause(&one.session, false);
        fleet.pause(&one.session, true);
    }
    assert!(Arc::ptr_eq(&paused, &fleet.routes()), "until the changes are gathered");
}

#[test]
fn an_offer_wishes_for_no_more_layers_than_there_are() {
    let fleet = fleet();
    let one = Worker::join(&fleet, 1);
    fleet.offer(&one.session, offer(vec![0, 1, 2])).unwrap();
    let error = fleet.offer(&one.session, offer(vec![0; 4])).unwrap_err();
    assert_eq!(error.to_string(), "wanted layers 4 is over the limit of 3");
}

#[test]
fn a_worker_fetches_what_it_was_leased_and_a_few_times_only() {
    let fleet = fleet();
    let one = Worker::join(&fleet, 1);
    let get = |layer, expert, length| fleet.fetch(&one.session, &ExpertGet { layer, expert, offset: 0, length });
    assert_eq!(get(0, MANIFEST_EXPERT, 100), Ok(()));
    assert_eq!(get(1, 0, 8), Err(FetchRefused::NotLeased { layer: 1, expert: 0 }));
    fleet.catch_up(Instant::now());
    assert_eq!((get(1, 0, 8), get(0, 3, 8)), (Ok(()), Ok(())));
    assert_eq!(get(0, 4, 8), Err(FetchRefused::NotLeased { layer: 0, expert: 4 }));

    // The lease shrinks while its pieces are on their way; they are no fault.
    let _two = Worker::join(&fleet, 2);
    fleet.catch_up(Instant::now());
    assert_eq!(get(1, 0, 8), Ok(()));
    ready(&fleet, &one.session, 2);
    assert_eq!((get(0, 0, 8), get(1, 0, 8)), (Ok(()), Err(FetchRefused::NotLeased { layer: 1, expert: 0 })));

    let whole = std::iter::repeat_with(|| get(0, 0, CHUNK_BYTES_MAX as u32)).take(20);
    let given = whole.take_while(Result::is_ok).count();
    assert!((8..16).contains(&given), "{given}");
    assert_eq!(get(0, MANIFEST_EXPERT, CHUNK_BYTES_MAX as u32), Err(FetchRefused::TooMuch));
}

#[test]
fn a_newly_confirmed_lease_is_named_at_once_where_another_was_asked_before() {
    let fleet = fleet();
    let one = Worker::join(&fleet, 1);
    fleet.catch_up(Instant::now());
    ready(&fleet, &one.session, 1);
    assert_eq!(routed(&fleet, 0), None, "a newcomer's routes are gathered");
    assert_eq!(holder(&fleet, 0), Some((Hex([1; 16]), 1)));
    let two = Worker::join(&fleet, 2);
    fleet.catch_up(Instant::now());
    ready(&fleet, &two.session, 1);
    ready(&fleet, &one.session, 2);
    assert_eq!(routed(&fleet, 0), Some((Hex([1; 16]), 2)));
}

#[test]
fn a_smaller_offer_replaces_a_lease_that_does_not_fit_and_others_get_the_rest() {
    let fleet = fleet();
    let mut one = Worker::join(&fleet, 1);
    fleet.catch_up(Instant::now());
    assert_eq!(one.lease(), Some((1, "0:0-3,1:0-3".into())));
    for _ in 0..3 {
        // Room for five of the eight, said as often as it likes.
        fleet.offer(&one.session, Offer { memory_bytes: 5 * 8, ..offer(vec![]) }).unwrap();
        fleet.catch_up(Instant::now());
    }
    assert_eq!((one.lease(), one.lease()), (Some((2, "0:0-3,1:0-0".into())), None));
    ready(&fleet, &one.session, 1);
    assert_eq!(holder(&fleet, 0), None, "it does not hold the first lease");
    ready(&fleet, &one.session, 2);
    assert_eq!(holder(&fleet, 1), Some((Hex([1; 16]), 2)));
    let mut two = Worker::join(&fleet, 2);
    fleet.catch_up(Instant::now());
    assert_eq!(two.lease(), Some((1, "1:0-3".into())));
    ready(&fleet, &two.session, 1);
    fleet.catch_up(Instant::now());
    assert_eq!(one.lease(), Some((3, "0:0-3".into())));
    ready(&fleet, &one.session, 3);
    fleet.catch_up(Instant::now());
    assert_eq!((fleet.settled(), fleet.coverage()), (Some(2), (8, 8)));
}

#[test]
fn verified_experts_serve_before_their_lease_is_whole_and_beside_the_slice_of_before() {
    let fleet = fleet();
    let mut one = Worker::join(&fleet, 1);
    let some = |lease, experts: &[(u16, Vec<(u16, u16)>)]| {
        let experts = experts.iter().cloned().collect();
        fleet.ready(&one.session, &SliceReady { lease, bytes: 8, experts }).unwrap();
    };
    fleet.catch_up(Instant::now());
    some(1, &[(0, vec![(0, 1)]), (7, vec![(0, 9)])]);
    assert_eq!(holder(&fleet, 0), Some((Hex([1; 16]), 1)));
    assert_eq!((fleet.coverage(), fleet.settled()), ((8, 2), None), "only what was leased, and the lease goes on");
    let before = fleet.routes();
    some(1, &[(0, vec![(0, 1)])]);
    some(9, &[(0, vec![(0, 3)])]);
    fleet.catch_up(Instant::now());
    assert!(Arc::ptr_eq(&before, &fleet.routes()), "no news, and another lease");
    fleet.release(&one.session, &Release { lease: 1, experts: BTreeMap::from([(0, vec![(0, 0)])]) }).unwrap();
    assert_eq!(routed(&fleet, 0), None);

    fleet.offer(&one.session, Offer { memory_bytes: 4 * 8, ..offer(vec![]) }).unwrap();
    fleet.catch_up(Instant::now());
    ready(&fleet, &one.session, 2);
    fleet.offer(&one.session, offer(vec![])).unwrap();
    fleet.catch_up(Instant::now());
    some(3, &[(0, vec![(0, 3)]), (1, vec![(0, 1)])]);
    assert_eq!(holder(&fleet, 0), Some((Hex([1; 16]), 2)), "under the lease that is whole");
    assert_eq!((holder(&fleet, 1), fleet.coverage().1), (Some((Hex([1; 16]), 3)), 6));
    ready(&fleet, &one.session, 3);
    assert_eq!((holder(&fleet, 0), fleet.settled()), (Some((Hex([1; 16]), 3)), Some(1)));
    assert!(one.lease().is_some());
}

#[test]
fn a_slow_line_keeps_its_lease_as_long_as_it_gets_on() {
    let fleet = fleet();
    let mut one = Worker::join(&fleet, 1);
    fleet.catch_up(Instant::now());
    assert!(one.lease().is_some());
    let some = |last| {
        let ready = SliceReady { lease: 1, bytes: 8, experts: BTreeMap::from([(0, vec![(0, last)])]) };
        fleet.ready(&one.session, &ready).unwrap();
        fleet.members().by_key.values().next().unwrap().leased.as_ref().unwrap().until
    };
    let long = Instant::now() + Duration::from_millis(90_000);
    fleet.members().by_key.values_mut().for_each(|member| member.leased.as_mut().unwrap().until = Instant::now());
    assert!(some(1) >= long);
    let longer = some(2);
    assert_eq!((some(2), some(0)), (longer, longer), "only more than before counts");
}

#[test]
fn a_worker_that_changes_its_offer_over_and_over_loses_its_session() {
    let fleet = fleet();
    let worker = Worker::join(&fleet, 1);
    let changed = |n: u64| fleet.offer(&worker.session, Offer { memory_bytes: n, ..offer(vec![]) });
    let refused = (0..100).find_map(|n| changed(n).err());
    assert!(matches!(refused, Some(FrameError::Over { what: "changes of an offer", .. })), "{refused:?}");
    // The same offer again is no change.
    fleet.offer(&worker.session, Offer { memory_bytes: 14, ..offer(vec![]) }).unwrap();
}
