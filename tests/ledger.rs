//! Exactly-once credit: whatever is duplicated, reordered, cut short or raced, credits are work bytes × rate.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::path::Path;
use std::pin::pin;
use std::task::Poll;

use kvasir::ledger::settle::{Cursor, settle};
use kvasir::ledger::{Ledger, Meter, Rate, Refusal, TransferKind};
use kvasir::types::{Hex, NanoKvr, PublicKey, SessionId, units};
use proptest::prelude::*;

const HUB: PublicKey = PublicKey([9; 32]);
const RATE: Rate = Rate(7);

fn session(n: u8) -> SessionId {
    Hex([n; 16])
}

/// Sessions 0 and 2 work for wallet 0, sessions 1 and 3 for wallet 1.
fn wallet(n: u8) -> PublicKey {
    PublicKey([n % 2; 32])
}

fn meter(n: u8, work_bytes: u64, voided_bytes: u64, change_seq: u64) -> Meter {
    Meter {
        hub: HUB,
        session: session(n),
        wallet: wallet(n),
        epoch: 1,
        assignments: work_bytes / 64,
        work_bytes,
        voided_bytes,
        raw_bytes: work_bytes / 4,
        change_seq,
        r#final: false,
    }
}

async fn open(dir: &Path) -> Ledger {
    Ledger::open(&format!("sqlite:{}", dir.join("ledger.db").display())).await.unwrap()
}

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

/// Runs an interleaving against real files and checks the sums at its end.
async fn run(ops: Vec<Op>) {
    let dir = tempfile::tempdir().unwrap();
    let hub = open(dir.path()).await;
    let mut gateways = [open(dir.path()).await, open(dir.path()).await];
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
            Op::FlushCrash(polls) => drop(crash(polls, hub.put_meters(&rows(&totals))).await),
            Op::Poll { gateway, rewind, limit } => {
                let gateway = &gateways[usize::from(gateway)];
                let after = gateway.poll_position("hub").await.unwrap().saturating_sub(rewind);
                let rows = gateway.meters_after(after, limit).await.unwrap();
                assert_eq!(gateway.apply(&rows, RATE).await.unwrap().refused, []);
                if let Some(last) = rows.last() {
                    gateway.set_poll_position("hub", last.change_seq).await.unwrap();
                }
                seen.extend(rows);
            }
            Op::PollCrash { gateway, polls } => {
                let gateway = &gateways[usize::from(gateway)];
                let rows = gateway.meters_after(0, 1000).await.unwrap();
                drop(crash(polls, gateway.apply(&rows, RATE)).await);
            }
            Op::Replay { gateway } => {
                let old: Vec<Meter> = seen.iter().rev().cloned().collect();
                assert_eq!(gateways[usize::from(gateway)].apply(&old, RATE).await.unwrap().refused, []);
            }
            Op::Race => {
                let rows = hub.meters_after(0, 1000).await.unwrap();
                let (a, b) = tokio::join!(gateways[0].apply(&rows, RATE), gateways[1].apply(&rows, RATE));
                assert_eq!((a.unwrap().refused, b.unwrap().refused), (vec![], vec![]));
            }
            Op::Restart { gateway } => gateways[usize::from(gateway)] = open(dir.path()).await,
        }
    }
    hub.put_meters(&rows(&totals)).await.unwrap();
    let all = hub.meters_after(0, 1000).await.unwrap();
    let (a, b) = tokio::join!(gateways[0].apply(&all, RATE), gateways[1].apply(&all, RATE));
    assert_eq!((a.unwrap().refused, b.unwrap().refused), (vec![], vec![]));

    for n in 0..2u8 {
        let of_wallet = || totals.iter().filter(|(s, _)| *s % 2 == n).map(|(_, totals)| *totals);
        let (work, voided): (u64, u64) = (of_wallet().map(|t| t.0).sum(), of_wallet().map(|t| t.1).sum());
        let statement = hub.wallet(wallet(n)).await.unwrap();
        assert_eq!(statement.work_bytes, work);
        assert_eq!(statement.pending_nano_kvr, NanoKvr((work - voided) * RATE.0));
        let mut transfers = Vec::new();
        loop {
            let page = hub.credits(wallet(n), transfers.len() as u64).await.unwrap();
            if page.is_empty() {
                break;
            }
            transfers.extend(page);
        }
        let credited = transfers.iter().filter(|t| t.kind == TransferKind::Credit).map(|t| t.amount_nano_kvr.0);
        assert_eq!(credited.sum::<u64>(), work * RATE.0);
        assert_eq!(statement.sequence, transfers.len() as u64);
    }
    let report = hub.check().await.unwrap();
    assert!(report.is_sound(), "{report:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn credits_are_work_bytes_times_rate_over_files_crashes_and_races(ops in proptest::collection::vec(op(), 1..25)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(ops));
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

#[tokio::test]
async fn the_reference_amount_is_exact_from_meter_to_screen() {
    let ledger = Ledger::open("sqlite::memory:").await.unwrap();
    // 13 positions × top-8 × hidden 3072 × 4 bytes.
    let work_bytes = 13 * 8 * 3072 * 4;
    assert_eq!((work_bytes, units(work_bytes).as_str()), (1_277_952, "1.277952"));
    let applied = ledger.apply(&[meter(0, work_bytes, 0, 1)], Rate::default()).await.unwrap();
    assert_eq!(applied.credited, NanoKvr(8_945_664));
    let json = serde_json::to_value(ledger.wallet(wallet(0)).await.unwrap()).unwrap();
    assert_eq!(json["pending_nano_kvr"], 8_945_664);
    assert_eq!(json["pending_kvr"], "0.00895");
    assert_eq!((&json["work_bytes"], &json["sequence"]), (&1_277_952.into(), &1.into()));
    assert!(json["last_credit_unix_ms"].as_u64().unwrap() > 1_600_000_000_000);
    let transfer = ledger.credits(wallet(0), 0).await.unwrap().remove(0);
    assert_eq!(transfer.id, format!("{}:0", session(0)));
    assert_eq!((transfer.debit.as_str(), transfer.rate), ("issuance", Rate(7)));
}

#[tokio::test]
async fn an_unknown_wallet_has_zeros() {
    let ledger = Ledger::open("sqlite::memory:").await.unwrap();
    let statement = ledger.wallet(wallet(1)).await.unwrap();
    assert_eq!((statement.pending_nano_kvr, statement.sequence, statement.last_credit_unix_ms), (NanoKvr(0), 0, 0));
    assert_eq!(statement.pending_kvr, "0.00000");
    assert_eq!(ledger.credits(wallet(1), 0).await.unwrap(), []);
}

#[tokio::test]
async fn a_void_takes_back_at_most_what_its_session_earned() {
    let ledger = Ledger::open("sqlite::memory:").await.unwrap();
    let applied = ledger.apply(&[meter(0, 1000, 0, 1), meter(2, 500, 500, 2)], RATE).await.unwrap();
    assert_eq!((applied.credited.0, applied.voided.0), (10_500, 3_500));
    assert_eq!(ledger.wallet(wallet(0)).await.unwrap().pending_nano_kvr, NanoKvr(7_000));
    // The price rose: the session's 1000 bytes were credited at 7, so no more than that can be lost.
    let applied = ledger.apply(&[meter(0, 1000, 1000, 3)], Rate(9)).await.unwrap();
    assert_eq!(applied.voided.0, 7_000);
    assert_eq!(ledger.wallet(wallet(0)).await.unwrap().pending_nano_kvr, NanoKvr(0));
    assert!(ledger.check().await.unwrap().is_sound());
}

#[tokio::test]
async fn the_gateway_refuses_bad_rows_by_name_and_applies_the_rest() {
    let ledger = Ledger::open("sqlite::memory:").await.unwrap();
    ledger.apply(&[meter(0, 1000, 10, 5)], RATE).await.unwrap();
    let too_large = u64::MAX;
    let cases = [
        (meter(0, 999, 10, 6), "expected work_bytes of at least 1000, got 999"),
        (meter(0, 1000, 9, 6), "expected voided_bytes of at least 10, got 9"),
        (meter(1, 10, 11, 6), "expected at most 10 voided bytes, got 11"),
        (meter(1, too_large, 0, 6), "expected work_bytes of at most 9223372036854775807, got 18446744073709551615"),
        (meter(1, 1 << 62, 0, 6), "expected bytes × rate to fit 9223372036854775807, got an overflow"),
        (Meter { wallet: wallet(1), ..meter(0, 2000, 10, 6) }, "expected the session's wallet 111"),
        (Meter { hub: wallet(1), ..meter(0, 2000, 10, 6) }, "expected the session's hub "),
    ];
    let mut rows: Vec<Meter> = cases.iter().map(|(row, _)| row.clone()).collect();
    rows.push(meter(3, 64, 0, 7));
    let applied = ledger.apply(&rows, RATE).await.unwrap();
    assert_eq!((applied.transfers, applied.credited.0, applied.refused.len()), (1, 448, cases.len()));
    for (refused, (_, why)) in applied.refused.iter().zip(&cases) {
        assert!(refused.refusal.to_string().starts_with(why), "{}", refused.refusal);
    }
    assert!(ledger.check().await.unwrap().is_sound());
}

#[test]
fn a_negative_or_unknown_counter_is_not_a_meter() {
    let good = serde_json::to_value(meter(0, 1, 0, 0)).unwrap();
    assert!(serde_json::from_value::<Meter>(good.clone()).is_ok());
    for (field, value) in [("work_bytes", serde_json::json!(-1)), ("voided_bytes", serde_json::json!(0.5))] {
        let mut bad = good.clone();
        bad[field] = value;
        assert!(serde_json::from_value::<Meter>(bad).is_err(), "{field}");
    }
    let mut bad = good;
    bad["bonus"] = 1.into();
    assert!(serde_json::from_value::<Meter>(bad).is_err());
}

#[tokio::test]
async fn the_hubs_meters_never_fall_and_an_old_epoch_is_fenced() {
    let ledger = Ledger::open("sqlite::memory:").await.unwrap();
    assert_eq!(ledger.next_epoch(HUB).await.unwrap(), 1);
    let put = ledger.put_meters(&[meter(0, 100, 0, 0), meter(1, 50, 0, 0)]).await.unwrap();
    assert_eq!((put.written, put.refused.len()), (2, 0));
    assert_eq!(ledger.put_meters(&[meter(0, 100, 0, 0)]).await.unwrap().written, 0);
    let put = ledger.put_meters(&[meter(0, 99, 0, 0), meter(1, 60, 0, 0)]).await.unwrap();
    assert_eq!(put.written, 1);
    assert_eq!(put.refused[0].refusal, Refusal::Decreased { what: "work_bytes", expected: 100, got: 99 });

    assert_eq!(ledger.next_epoch(HUB).await.unwrap(), 2);
    let put = ledger.put_meters(&[meter(0, 200, 0, 0)]).await.unwrap();
    assert_eq!(put.refused[0].refusal, Refusal::StaleEpoch { expected: 2, got: 1 });
    let rows = ledger.meters_after(0, 1000).await.unwrap();
    let summary: Vec<_> = rows.iter().map(|m| (m.work_bytes, m.r#final, m.change_seq)).collect();
    assert_eq!(summary, [(100, true, 4), (60, true, 5)]);
    // An audit may void work of a session that is over; it stays over.
    let late = Meter { epoch: 2, ..meter(0, 100, 40, 0) };
    assert_eq!(ledger.put_meters(&[late]).await.unwrap().written, 1);
    let page = ledger.meter_page(HUB, 5, 1000).await.unwrap();
    assert_eq!((page.last_change_seq, page.meters.len(), page.meters[0].r#final), (6, 1, true));
    assert_eq!(page.meters[0].voided_bytes, 40);
}

#[tokio::test]
async fn a_page_of_meters_has_a_limit_and_an_order() {
    let ledger = Ledger::open("sqlite::memory:").await.unwrap();
    let rows: Vec<Meter> = (0..1100u32)
        .map(|n| {
            let mut id = [0; 16];
            id[..4].copy_from_slice(&n.to_le_bytes());
            Meter { session: Hex(id), ..meter(0, 64, 0, 0) }
        })
        .collect();
    assert_eq!(ledger.put_meters(&rows).await.unwrap().written, 1100);
    let page = ledger.meters_after(0, u32::MAX).await.unwrap();
    assert_eq!(page.len(), 1000);
    assert!(page.iter().zip(1..).all(|(row, seq)| row.change_seq == seq));
    assert_eq!(ledger.meters_after(1000, 1000).await.unwrap().len(), 100);
    assert_eq!(ledger.apply(&page, RATE).await.unwrap().transfers, 1000);
}
