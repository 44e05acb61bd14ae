//! Leases and routes as workers come, get ready, shrink and go.

use super::*;
use crate::dispatch::session::tests::opened;
use crate::types::Hex;
use crate::wire::{Frame, Kind};
use tokio::sync::mpsc;

struct Worker {
    session: Arc<Session>,
    frames: mpsc::Receiver<Frame>,
    _ended: Shutdown,
}

impl Worker {
    fn join(fleet: &Fleet, n: u8) -> Self {
        let (session, frames, ended) = Session::new(opened(n));
        let session = Arc::new(session);
        fleet.join(Arc::clone(&session));
        let offer = Offer { device: "test".into(), memory_bytes: 1 << 20, assignments_per_s: 1e3, wants: vec![] };
        fleet.offer(&session, offer);
        Self { session, frames, _ended: ended }
    }

    fn lease(&mut self) -> Option<(u32, String)> {
        let frame = self.frames.try_recv().ok()?;
        assert_eq!(frame.header.kind, Kind::Lease);
        let lease = Lease::read(&frame).unwrap();
        Some((lease.lease, Slice::from_ranges(&lease.experts).unwrap().to_string()))
    }
}

fn fleet() -> Fleet {
    let layers = (0..2).map(|layer| LayerSize { layer, experts: 4, expert_bytes: 8 }).collect();
    Fleet::new(layers, Hex([7; 32]))
}

fn holder(fleet: &Fleet, layer: u16) -> Option<(SessionId, u32)> {
    let routes = fleet.routes();
    let holder = &routes.holders[routes.holder(ExpertId { layer, expert: 0 })?];
    Some((holder.session.opened.session_id, holder.lease))
}

#[test]
fn the_old_slice_serves_until_the_new_one_is_confirmed() {
    let fleet = fleet();
    let mut one = Worker::join(&fleet, 1);
    fleet.place();
    assert_eq!(one.lease(), Some((1, "0:0-3,1:0-3".into())));
    assert_eq!(holder(&fleet, 0), None);
    fleet.ready(&one.session, 1);
    assert_eq!(holder(&fleet, 1), Some((Hex([1; 16]), 1)));

    let mut two = Worker::join(&fleet, 2);
    fleet.place();
    assert_eq!(two.lease(), Some((1, "1:0-3".into())));
    assert_eq!(one.lease(), None, "shrinking waits for the newcomer");
    assert_eq!(holder(&fleet, 1), Some((Hex([1; 16]), 1)));

    fleet.ready(&two.session, 1);
    assert_eq!(holder(&fleet, 1), Some((Hex([2; 16]), 1)));
    assert_eq!(one.lease(), Some((2, "0:0-3".into())));
    assert_eq!(holder(&fleet, 0), Some((Hex([1; 16]), 1)));
    fleet.ready(&one.session, 2);
    assert_eq!(holder(&fleet, 0), Some((Hex([1; 16]), 2)));
    assert_eq!(fleet.settled(), Some(2));
}

#[test]
fn whoever_leaves_pauses_or_releases_gets_no_more_requests() {
    let fleet = fleet();
    let mut one = Worker::join(&fleet, 1);
    fleet.place();
    assert!(one.lease().is_some());
    fleet.ready(&one.session, 1);
    fleet.pause(&one.session, true);
    assert_eq!(holder(&fleet, 0), None);
    fleet.pause(&one.session, false);
    assert!(holder(&fleet, 0).is_some());

    fleet.release(&one.session, &Release { lease: 1, experts: BTreeMap::from([(0, vec![(0, 3)])]) }).unwrap();
    assert_eq!(holder(&fleet, 0), None);
    assert!(holder(&fleet, 1).is_some());
    fleet.release(&one.session, &Release { lease: 1, experts: BTreeMap::new() }).unwrap();
    assert_eq!(holder(&fleet, 1), None);
    fleet.leave(&one.session);
    fleet.place();
    assert_eq!(fleet.settled(), Some(0));
}

#[test]
fn a_stale_confirmation_changes_nothing() {
    let fleet = fleet();
    let mut one = Worker::join(&fleet, 1);
    let mut two = Worker::join(&fleet, 2);
    fleet.place();
    assert!(one.lease().is_some() && two.lease().is_some());
    fleet.ready(&two.session, 1);
    fleet.leave(&two.session);
    fleet.place();
    assert_eq!(one.lease(), Some((2, "0:0-3,1:0-3".into())));
    fleet.ready(&one.session, 1);
    assert_eq!(holder(&fleet, 0), None);
    fleet.ready(&one.session, 2);
    assert_eq!(holder(&fleet, 1), Some((Hex([1; 16]), 2)));
}

#[tokio::test]
async fn waiting_for_workers_ends_with_what_is_missing() {
    let fleet = fleet();
    let error = fleet.wait_ready(1, Duration::from_millis(5)).await.unwrap_err();
    assert_eq!(error, NotReady { expected: 1, ready: 0, experts: 8, held: 0, waited_ms: 5 });
    let one = Worker::join(&fleet, 1);
    fleet.place();
    let confirm = async { fleet.ready(&one.session, 1) };
    let (ready, ()) = tokio::join!(fleet.wait_ready(1, Duration::from_secs(1)), confirm);
    assert_eq!(ready, Ok(()));
}
