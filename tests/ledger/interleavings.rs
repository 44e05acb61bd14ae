//! Any order of work, writes, polls, crashes and races ends in the same sums.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use kvasir::ledger::settle::{Cursor, settle};
use kvasir::ledger::{Ledger, Meter, Position, Rate};
use proptest::prelude::*;

use super::{HUB, Place, RATE, assert_sound, assert_worth, meter, wallet};

/// Polls a future some times, about once per answer of the store, and then drops it, as a crash would.
async fn crash<T>(mut polls: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending if polls == 0 => Poll::Ready(None),
        Poll::Pending => {
            polls -= 1;
            Poll::Pending
        }
    })
    .await
}

#[derive(Debug, Clone)]
enum Op {
    /// The hub accepts work, and voids some of it.
    Work { session: u8, bytes: u64, void_percent: u64 },
    /// A wallet is caught: all that it earned so far is void, in sessions that are over too.
    Void { wallet: u8 },
    /// The hub writes its counters.
    Flush,
    /// The hub writes its counters and stops half way.
    FlushCrash(usize),
    /// A gateway polls some rows from its position, or from before it.
    Poll { gateway: bool, rewind: u64, limit: u32 },
    /// As Poll, but the gateway stops half way.
    PollCrash { gateway: bool, polls: usize },
    /// Old rows arrive again, backwards.
    Replay { gateway: bool },
    /// Both gateways apply the same rows at once.
    Race,
    /// A gateway starts again.
    Restart { gateway: bool },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0u8..4, 1u64..1_000_000, 0u64..40).prop_map(|(session, bytes, void_percent)| Op::Work { session, bytes, void_percent }),
        1 => (0u8..2).prop_map(|wallet| Op::Void { wallet }),
        3 => Just(Op::Flush),
        1 => (0usize..60).prop_map(Op::FlushCrash),
        3 => (any::<bool>(), 0u64..6, 1u32..4).prop_map(|(gateway, rewind, limit)| Op::Poll { gateway, rewind, limit }),
        2 => (any::<bool>(), 0usize..80).prop_map(|(gateway, polls)| Op::PollCrash { gateway, polls }),
        1 => any::<bool>().prop_map(|gateway| Op::Replay { gateway }),
        2 => Just(Op::Race),
        1 => any::<bool>().prop_map(|gateway| Op::Restart { gateway }),
    ]
}

/// A hub and two gateways; `apart` with connections of their own, else they share one, as a ledger in memory must. Such
/// a one does not outlive a call that is cut short: there a crash comes after the commit, before the position is kept.
async fn run(ops: Vec<Op>, place: &Place, apart: bool) {
    let cut = |polls| if apart { polls } else { usize::MAX };
    let hub = place.open().await;
    let another = || async { if apart { place.open().await } else { hub.clone() } };
    let mut gateways = [another().await, another().await];
    let mut totals: BTreeMap<u8, (u64, u64)> = BTreeMap::new();
    let mut seen: Vec<Meter> = Vec::new();
    let rows = |totals: &BTreeMap<u8, (u64, u64)>| -> Vec<Meter> {
        totals.iter().map(|(n, (work, voided))| meter(*n, *work, *voided, 0)).collect()
    };
    for op in ops {
        match op {
            Op::Work { session, bytes, void_percent } => {
                let (work, voided) = totals.entry(session).or_default();
                *work += bytes;
                *voided += bytes * void_percent / 100;
            }
            Op::Void { wallet: n } => {
                totals.iter_mut().filter(|(s, _)| *s % 2 == n).for_each(|(_, (work, voided))| *voided = *work);
                hub.void_meters(HUB, wallet(n), 1).await.unwrap();
            }
            Op::Flush => assert_eq!(hub.put_meters(&rows(&totals)).await.unwrap().refused, []),
            Op::FlushCrash(polls) => drop(crash(cut(polls), hub.put_meters(&rows(&totals))).await),
            Op::Poll { gateway, rewind, limit } => {
                let gateway = &gateways[usize::from(gateway)];
                let after = gateway.poll_position("hub").await.unwrap().change_seq.saturating_sub(rewind);
                let rows = gateway.meters_after(HUB, after, limit).await.unwrap();
                assert_eq!(gateway.apply(&rows, RATE).await.unwrap().refused, []);
                if let Some(last) = rows.last() {
                    let position = Position { change_seq: last.change_seq, run: None };
                    gateway.set_poll_position("hub", position).await.unwrap();
                }
                seen.extend(rows);
            }
            Op::PollCrash { gateway, polls } => {
                let gateway = &gateways[usize::from(gateway)];
                let rows = gateway.meters_after(HUB, 0, 1000).await.unwrap();
                drop(crash(cut(polls), gateway.apply(&rows, RATE)).await);
            }
            Op::Replay { gateway } => {
                let old: Vec<Meter> = seen.iter().rev().cloned().collect();
                assert_eq!(gateways[usize::from(gateway)].apply(&old, RATE).await.unwrap().refused, []);
            }
            Op::Race => race(&hub, &gateways).await,
            Op::Restart { gateway } => gateways[usize::from(gateway)] = another().await,
        }
    }
    hub.put_meters(&rows(&totals)).await.unwrap();
    race(&hub, &gateways).await;

    for n in 0..2u8 {
        let of_wallet = || totals.iter().filter(|(s, _)| *s % 2 == n).map(|(_, totals)| *totals);
        let (work, voided): (u64, u64) = (of_wallet().map(|t| t.0).sum(), of_wallet().map(|t| t.1).sum());
        assert_worth(&hub, wallet(n), work, voided).await;
    }
    assert_sound(&hub).await;
    for ledger in gateways.iter().chain([&hub]) {
        ledger.close().await;
    }
}

async fn race(hub: &Ledger, gateways: &[Ledger; 2]) {
    let rows = hub.meters_after(HUB, 0, 1000).await.unwrap();
    let (a, b) = tokio::join!(gateways[0].apply(&rows, RATE), gateways[1].apply(&rows, RATE));
    assert_eq!((a.unwrap().refused, b.unwrap().refused), (vec![], vec![]));
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn credits_are_work_bytes_times_rate_over_lost_polls_and_races(ops in proptest::collection::vec(op(), 1..25)) {
        let place = Place { url: "sqlite::memory:".to_owned(), _dir: None };
        runtime().block_on(run(ops, &place, false));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn credits_are_work_bytes_times_rate_over_files_crashes_and_races(ops in proptest::collection::vec(op(), 1..25)) {
        runtime().block_on(run(ops, &Place::file(), true));
    }
}

#[cfg(unix)]
proptest! {
    #![proptest_config(ProptestConfig { cases: 10, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn credits_are_work_bytes_times_rate_over_a_server_that_all_share(ops in proptest::collection::vec(op(), 1..25)) {
        runtime().block_on(async {
            if let Some(place) = Place::server().await {
                run(ops, &place, true).await;
            }
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_session_earns_its_highest_total_in_any_order_of_arrival(
        growth in proptest::collection::vec((0u64..1 << 40, 0u64..100), 1..12),
        order in proptest::collection::vec(any::<prop::sample::Index>(), 0..40),
        rate in 0u64..1000,
    ) {
        let mut rows = vec![meter(0, 0, 0, 1)];
        for (seq, (bytes, void_percent)) in (2..).zip(growth) {
            let last = rows.last().unwrap();
            let voided = last.voided_bytes + bytes * void_percent / 100;
            rows.push(meter(0, last.work_bytes + bytes, voided, seq));
        }
        let last = rows.last().unwrap().clone();
        let arrivals = order.iter().map(|index| index.get(&rows)).chain([&last]);
        let (mut cursor, mut pending) = (Cursor::start(&last), 0);
        for row in arrivals {
            let step = settle(&cursor, row, Rate(rate), pending).unwrap();
            pending += step.credit.map_or(0, |m| m.amount);
            pending -= step.void.map_or(0, |m| m.amount);
            cursor = step.cursor;
        }
        prop_assert_eq!(cursor.credited_nano, last.work_bytes * rate);
        prop_assert_eq!(pending, (last.work_bytes - last.voided_bytes) * rate);
    }
}
