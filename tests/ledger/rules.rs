//! What a ledger takes, refuses and says, on both stores.

use std::time::Duration;

use kvasir::ledger::{ClaimTerms, Ledger, LedgerError, Meter, Rate, Refusal};
use kvasir::types::{Hex, NanoKvr, units};
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use super::{HUB, Place, RATE, assert_sound, meter, on_both_stores, session, wallet};

on_both_stores!(
    the_reference_amount_is_exact_from_meter_to_screen,
    an_unknown_wallet_has_zeros,
    a_void_takes_back_at_most_what_its_session_earned,
    the_gateway_refuses_bad_rows_by_name_and_applies_the_rest,
    the_hubs_meters_never_fall_and_an_old_epoch_is_fenced,
    a_session_that_comes_twice_in_a_write_is_judged_twice_and_written_once,
    a_meter_that_is_void_stays_void_when_it_is_raised,
    a_page_of_meters_has_a_limit_and_an_order,
    hubs_and_gateways_of_one_store_do_not_see_each_others_changes,
    a_mistyped_url_makes_no_ledger,
);

async fn the_reference_amount_is_exact_from_meter_to_screen(place: Place) {
    let ledger = place.open().await;
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

async fn an_unknown_wallet_has_zeros(place: Place) {
    let ledger = place.open().await;
    let statement = ledger.wallet(wallet(1)).await.unwrap();
    assert_eq!((statement.pending_nano_kvr, statement.sequence, statement.last_credit_unix_ms), (NanoKvr(0), 0, 0));
    assert_eq!(statement.pending_kvr, "0.00000");
    assert_eq!(ledger.credits(wallet(1), 0).await.unwrap(), []);
}

async fn a_void_takes_back_at_most_what_its_session_earned(place: Place) {
    let ledger = place.open().await;
    let applied = ledger.apply(&[meter(0, 1000, 0, 1), meter(2, 500, 500, 2)], RATE).await.unwrap();
    assert_eq!((applied.credited.0, applied.voided.0), (10_500, 3_500));
    assert_eq!(ledger.wallet(wallet(0)).await.unwrap().pending_nano_kvr, NanoKvr(7_000));
    // The price rose: the session's 1000 bytes were credited at 7, so no more than that can be lost.
    let applied = ledger.apply(&[meter(0, 1000, 1000, 3)], Rate(9)).await.unwrap();
    assert_eq!(applied.voided.0, 7_000);
    assert_eq!(ledger.wallet(wallet(0)).await.unwrap().pending_nano_kvr, NanoKvr(0));
    assert!(ledger.check().await.unwrap().is_sound());
}

async fn the_gateway_refuses_bad_rows_by_name_and_applies_the_rest(place: Place) {
    let ledger = place.open().await;
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

async fn the_hubs_meters_never_fall_and_an_old_epoch_is_fenced(place: Place) {
    let ledger = place.open().await;
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
    let rows = ledger.meters_after(HUB, 0, 1000).await.unwrap();
    let summary: Vec<_> = rows.iter().map(|m| (m.work_bytes, m.r#final, m.change_seq)).collect();
    assert_eq!(summary, [(100, true, 4), (60, true, 5)]);
    // An audit may void work of a session that is over; it stays over.
    let late = Meter { epoch: 2, ..meter(0, 100, 40, 0) };
    assert_eq!(ledger.put_meters(&[late]).await.unwrap().written, 1);
    let page = ledger.meter_page(HUB, 5, None, 1000).await.unwrap();
    assert_eq!((page.last_change_seq, page.meters.len(), page.meters[0].r#final), (6, 1, true));
    assert_eq!(page.meters[0].voided_bytes, 40);
}

async fn a_session_that_comes_twice_in_a_write_is_judged_twice_and_written_once(place: Place) {
    let ledger = place.open().await;
    ledger.next_epoch(HUB).await.unwrap();
    let rows = [meter(0, 64, 0, 0), meter(1, 64, 0, 0), meter(0, 128, 0, 0), meter(0, 100, 0, 0), meter(1, 64, 0, 0)];
    let put = ledger.put_meters(&rows).await.unwrap();
    assert_eq!(put.written, 3);
    let refused: Vec<_> = put.refused.into_iter().map(|refused| refused.refusal).collect();
    assert_eq!(refused, [Refusal::Decreased { what: "assignments", expected: 2, got: 1 }]);
    let page = ledger.meter_page(HUB, 0, None, 9).await.unwrap();
    let written: Vec<_> = page.meters.iter().map(|m| (m.session, m.work_bytes, m.change_seq)).collect();
    assert_eq!((written, page.last_change_seq), (vec![(session(0), 128, 1), (session(1), 64, 2)], 2));
}

/// A hub's meters were restored from a backup, and the wallet was caught before they were repaired.
async fn a_meter_that_is_void_stays_void_when_it_is_raised(place: Place) {
    let ledger = place.open().await;
    ledger.next_epoch(HUB).await.unwrap();
    ledger.put_meters(&[meter(0, 640, 0, 0), meter(1, 640, 0, 0)]).await.unwrap();
    ledger.next_epoch(HUB).await.unwrap();
    assert_eq!(ledger.void_meters(HUB, wallet(0), 2).await.unwrap(), 1);
    let proven = [meter(0, 6400, 0, 0), meter(1, 6400, 0, 0)];
    assert_eq!(ledger.raise_meters(&proven).await.unwrap().written, 2);
    let rows = ledger.meters_after(HUB, 0, 9).await.unwrap();
    let sums: Vec<_> = rows.iter().map(|m| (m.session, m.work_bytes, m.voided_bytes)).collect();
    assert_eq!(sums, [(session(0), 6400, 6400), (session(1), 6400, 0)]);
}

fn is_late<T>(read: Result<Result<T, LedgerError>, Elapsed>) -> bool {
    matches!(read, Ok(Err(LedgerError::Late)))
}

/// Everything that a server reads waits for a table that somebody else holds; then only the clock goes on.
#[cfg(unix)]
#[tokio::test]
async fn no_read_waits_for_ever_for_a_store_that_stands_still() {
    let Some(place) = Place::server().await else { return };
    let ledger = place.open().await;
    let pool = sqlx::AnyPool::connect(&place.url).await.unwrap();
    let mut held = pool.begin().await.unwrap();
    let lock = "LOCK TABLE account, transfer, meter, poll_position IN ACCESS EXCLUSIVE MODE";
    sqlx::query(lock).execute(&mut *held).await.unwrap();
    let terms = ClaimTerms { operator: HUB, hold: Duration::ZERO };
    let reads = tokio::spawn(async move {
        let (wallet, hour) = (wallet(0), Duration::from_secs(3600));
        let reads = tokio::join!(
            timeout(hour, ledger.wallet(wallet)),
            timeout(hour, ledger.credits(wallet, 0)),
            timeout(hour, ledger.poll_position("hub")),
            timeout(hour, ledger.meters_after(HUB, 0, 1)),
            timeout(hour, ledger.meter_page(HUB, 0, None, 1)),
            timeout(hour, ledger.claimable(wallet, terms)),
        );
        [is_late(reads.0), is_late(reads.1), is_late(reads.2), is_late(reads.3), is_late(reads.4), is_late(reads.5)]
    });
    let waiting = "SELECT COUNT(*) AS waiting FROM pg_stat_activity \
                   WHERE datname = current_database() AND wait_event_type = 'Lock'";
    while sqlx::query_scalar::<_, i64>(waiting).fetch_one(&pool).await.unwrap() < 6 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::pause();
    assert_eq!(reads.await.unwrap(), [true; 6], "each ends by its own deadline");
    tokio::time::resume();
    held.rollback().await.unwrap();
}

async fn a_page_of_meters_has_a_limit_and_an_order(place: Place) {
    let ledger = place.open().await;
    let rows: Vec<Meter> = (0..1100u32)
        .map(|n| {
            let mut id = [0; 16];
            id[..4].copy_from_slice(&n.to_le_bytes());
            Meter { session: Hex(id), ..meter(0, 64, 0, 0) }
        })
        .collect();
    assert_eq!(ledger.put_meters(&rows).await.unwrap().written, 1100);
    let page = ledger.meters_after(HUB, 0, u32::MAX).await.unwrap();
    assert_eq!(page.len(), 1000);
    assert!(page.iter().zip(1..).all(|(row, seq)| row.change_seq == seq));
    assert_eq!(ledger.meters_after(HUB, 1000, 1000).await.unwrap().len(), 100);
    assert_eq!(ledger.apply(&page, RATE).await.unwrap().transfers, 1000);
}

/// Two hubs and two gateways in one store: each hub has its own changes, and all is credited once.
async fn hubs_and_gateways_of_one_store_do_not_see_each_others_changes(place: Place) {
    let other_hub = kvasir::types::PublicKey([8; 32]);
    let (a, b) = (place.open().await, place.open().await);
    for hub in [HUB, other_hub] {
        assert_eq!(a.next_epoch(hub).await.unwrap(), 1);
    }
    let of_other = Meter { hub: other_hub, ..meter(1, 6400, 0, 0) };
    let (mine, other) = ([meter(0, 640, 0, 0), meter(2, 64, 0, 0)], [of_other]);
    let (first, second) = tokio::join!(a.put_meters(&mine), b.put_meters(&other));
    assert_eq!((first.unwrap().written, second.unwrap().written), (2, 1));
    let (first, second) =
        (a.meter_page(HUB, 0, None, 9).await.unwrap(), b.meter_page(other_hub, 0, None, 9).await.unwrap());
    let numbers = |page: &kvasir::ledger::MeterPage| page.meters.iter().map(|m| m.change_seq).collect::<Vec<_>>();
    assert_eq!((numbers(&first), first.last_change_seq), (vec![1, 2], 2));
    assert_eq!((numbers(&second), second.last_change_seq), (vec![1], 1));
    for gateway in [&a, &b] {
        for page in [&first, &second] {
            assert_eq!(gateway.apply(&page.meters, RATE).await.unwrap().refused, []);
        }
    }
    assert_eq!(a.wallet(wallet(1)).await.unwrap().pending_nano_kvr, NanoKvr(6400 * 7));
    assert_sound(&b).await;
}

async fn a_mistyped_url_makes_no_ledger(place: Place) {
    let error = Ledger::open_existing(&place.url).await.unwrap_err();
    assert!(matches!(error, LedgerError::Absent), "{error}");
    if let Some(path) = place.url.strip_prefix("sqlite:") {
        assert!(!std::path::Path::new(path).exists(), "no empty file either");
    }
    place.open().await.close().await;
    assert_sound(&Ledger::open_existing(&place.url).await.unwrap()).await;
}
