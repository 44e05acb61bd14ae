//! The desk before kernels that fail and links that are gone.

use std::collections::HashMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use tokio::sync::watch;

use super::*;
use crate::kernel::KernelError;
use crate::types::GateWeight;
use crate::wire::work::{Activations, Assignment, PartialValues, RowHead, RowStatus, SUPER_BLOCK_BYTES};
use crate::worker::load::LOAD_BYTES_MAX;
use crate::worker::outgoing::tests::{narrow, read};
use crate::worker::slices::Held;

const HIDDEN: usize = 32;

/// Panics at its first request, forgets all parts of the second, answers the others.
#[derive(Default)]
struct Moody(AtomicUsize);

impl ExpertCompute for Moody {
    fn compute(&self, _: &dyn ExpertSource, _: u16, parts: &[Dispatch]) -> Result<Vec<Partials>, KernelError> {
        match self.0.fetch_add(1, SeqCst) {
            0 => panic!("a kernel that fails"),
            1 => Ok(Vec::new()),
            _ => Ok(answers(parts)),
        }
    }

    fn device(&self) -> String {
        "moody".into()
    }
}

fn desk(compute: Arc<dyn ExpertCompute>, link: &Arc<Link>) -> Desk {
    let holdings = Holdings::default();
    let slice = [ExpertId { layer: 0, expert: 0 }].into_iter().collect();
    holdings.take_over(Arc::new(Held { lease: 1, slice, whole: true, hidden: HIDDEN, experts: HashMap::new() }));
    let (board, link) = (Arc::new(Board::new(watch::channel(Default::default()).0)), Arc::downgrade(link));
    let tools = Tools {
        compute,
        holdings: Arc::new(holdings),
        board,
        link,
        duty: Duty::default(),
        lost: watch::channel(None).0,
    };
    Desk::open(tools, 4).unwrap()
}

fn part(request: u64, part: u16, parts: u16) -> Frame {
    let mut block = vec![0; SUPER_BLOCK_BYTES];
    block[0] = 0x80;
    let gate = GateWeight { mantissa: 1 << 15, exponent: -18 };
    let dispatch = Dispatch {
        lease: 1,
        deadline_ms: 60_000,
        hidden: HIDDEN,
        rows: vec![RowHead { grid: 0, count: 1, first: 0 }],
        activations: Activations::Exact(block.into()),
        assignments: vec![Assignment { expert: 0, gate }],
    };
    let header = Header { request, rows: 1, assignments: 1, part, parts, ..Header::control(Kind::Dispatch) };
    Frame::new(header, dispatch.encode()).unwrap()
}

fn job(desk: &Desk, frames: impl IntoIterator<Item = Frame>) -> Job {
    let mut job = Job::new(desk.load().enter());
    frames.into_iter().for_each(|frame| job.add(frame));
    job
}

async fn clear(desk: &Desk) {
    let clear = async {
        while !desk.load().is_clear() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), clear).await.expect("every request ends");
}

#[tokio::test]
async fn a_kernel_that_panics_or_forgets_parts_declines_once_and_goes_on() {
    let (link, mut peer, mut open) = narrow().await;
    let desk = desk(Arc::<Moody>::default(), &link);
    for request in 1..=3 {
        desk.put(job(&desk, [part(request, 0, 2), part(request, 1, 2)])).unwrap();
    }
    for request in [1, 2] {
        let frame = read(&mut peer, &mut open).await;
        assert_eq!((frame.header.kind, frame.header.request), (Kind::Decline, request));
        assert_eq!(Decline::read(&frame).unwrap().reason, reason::INTERNAL);
    }
    for part in [0, 1] {
        let header = read(&mut peer, &mut open).await.header;
        assert_eq!((header.kind, header.request, header.part), (Kind::Partials, 3, part));
    }
    clear(&desk).await;
}

#[tokio::test]
async fn nothing_is_computed_for_a_link_that_is_gone() {
    let (link, _peer, _open) = narrow().await;
    let kernel = Arc::<Moody>::default();
    let desk = desk(kernel.clone(), &link);
    drop(link);
    let put = desk.put(job(&desk, [part(1, 0, 1)]));
    assert!(matches!(put, Ok(()) | Err(reason::INTERNAL)));
    clear(&desk).await;
    assert_eq!(kernel.0.load(SeqCst), 0);
}

#[tokio::test]
async fn a_request_that_cannot_be_taken_holds_nothing() {
    let (link, _peer, _open) = narrow().await;
    let desk = desk(Arc::<Moody>::default(), &link);
    let refused = job(&desk, [part(1, 0, 3), part(1, 2, 3)]);
    assert_eq!((refused.refused(), refused.parts.len()), (Some(reason::SHAPE), 0));
    let mut others = desk.load().enter();
    assert!(others.hold(LOAD_BYTES_MAX));
    assert_eq!(job(&desk, [part(2, 0, 1)]).refused(), Some(reason::BUSY));
    drop(others);
    assert_eq!(job(&desk, [part(3, 0, 1)]).refused(), None);
}

fn answers(parts: &[Dispatch]) -> Vec<Partials> {
    parts
        .iter()
        .map(|_| Partials { status: vec![RowStatus::Ok], values: PartialValues::Exact(vec![7; HIDDEN]) })
        .collect()
}

/// Wants two requests at once, and finishes none of them alone.
struct Paired(Barrier);

impl ExpertCompute for Paired {
    fn compute(&self, _: &dyn ExpertSource, _: u16, parts: &[Dispatch]) -> Result<Vec<Partials>, KernelError> {
        self.0.wait();
        Ok(answers(parts))
    }

    fn device(&self) -> String {
        "paired".into()
    }

    fn depth(&self) -> usize {
        2
    }
}

#[tokio::test]
async fn a_kernel_that_takes_two_requests_gets_two_and_each_is_answered_whole() {
    let (link, mut peer, mut open) = narrow().await;
    let desk = desk(Arc::new(Paired(Barrier::new(2))), &link);
    for request in 1..=4 {
        desk.put(job(&desk, [part(request, 0, 2), part(request, 1, 2)])).unwrap();
    }
    let mut parts = HashMap::<u64, Vec<u16>>::new();
    for _ in 0..8 {
        let header = read(&mut peer, &mut open).await.header;
        assert_eq!(header.kind, Kind::Partials);
        parts.entry(header.request).or_default().push(header.part);
    }
    assert!(parts.len() == 4 && parts.values().all(|parts| *parts == [0, 1]), "{parts:?}");
    clear(&desk).await;
}

/// Lost at its second request.
#[derive(Default)]
struct Breaking(AtomicUsize);

impl ExpertCompute for Breaking {
    fn compute(&self, _: &dyn ExpertSource, _: u16, parts: &[Dispatch]) -> Result<Vec<Partials>, KernelError> {
        match self.0.fetch_add(1, SeqCst) {
            0 => Ok(answers(parts)),
            1 => Err(KernelError::Lost { device: self.device(), reason: "a test".into() }),
            _ => panic!("nothing is asked of lost hardware"),
        }
    }

    fn device(&self) -> String {
        "breaking".into()
    }
}

#[tokio::test]
async fn what_is_under_way_when_the_hardware_is_lost_is_declined_at_once() {
    let (link, mut peer, mut open) = narrow().await;
    let desk = desk(Arc::<Breaking>::default(), &link);
    for request in 1..=4 {
        desk.put(job(&desk, [part(request, 0, 1)])).unwrap();
    }
    assert_eq!(read(&mut peer, &mut open).await.header.kind, Kind::Partials);
    for request in 2..=4 {
        let frame = read(&mut peer, &mut open).await;
        assert_eq!((frame.header.kind, frame.header.request), (Kind::Decline, request));
        assert_eq!(Decline::read(&frame).unwrap().reason, reason::LOST);
    }
    clear(&desk).await;
}
