//! Ledgers that were restored from a backup: the sums become exact again, or the repair is named.

use kvasir::ledger::{Ledger, Meter, MeterPage, Position};

use super::{HUB, Place, RATE, assert_sound, assert_worth, meter, on_both_stores, wallet};

on_both_stores!(a_position_of_a_lost_history_is_set_back_to_where_the_histories_parted);

/// Polls as a gateway does, until nothing is new.
async fn poll(hub: &Ledger, accounts: &Ledger) -> Vec<MeterPage> {
    let mut pages = Vec::new();
    loop {
        let position = accounts.poll_position("hub").await.unwrap();
        let page = hub.meter_page(HUB, position.change_seq, position.run, 1000).await.unwrap();
        let applied = accounts.apply(&page.meters, RATE).await.unwrap();
        assert_eq!(applied.refused, []);
        let Some(last) = page.meters.last() else {
            return pages;
        };
        accounts.set_poll_position("hub", Position { change_seq: last.change_seq, run: page.run }).await.unwrap();
        pages.push(page);
    }
}

/// The path of a SQLite ledger.
fn path(place: &Place) -> &std::path::Path {
    std::path::Path::new(place.url.strip_prefix("sqlite:").expect("a file"))
}

/// A hub whose own ledger was restored from a backup, while the accounts went on.
async fn a_position_of_a_lost_history_is_set_back_to_where_the_histories_parted(accounts: Place) {
    let (place, accounts) = (Place::file(), accounts.open().await);
    let hub = place.open().await;
    hub.next_epoch(HUB).await.unwrap();
    hub.put_meters(&[meter(0, 640, 0, 0)]).await.unwrap();
    poll(&hub, &accounts).await;
    hub.close().await;
    let backup = std::fs::read(path(&place)).unwrap();
    let hub = place.open().await;
    hub.put_meters(&[meter(0, 6400, 0, 0), meter(1, 960, 0, 0)]).await.unwrap();
    poll(&hub, &accounts).await;
    hub.close().await;

    std::fs::write(path(&place), backup).unwrap();
    let hub = place.open().await;
    assert_eq!(hub.next_epoch(HUB).await.unwrap(), 2);
    // As many changes as were lost, and more: by the number alone, the gateway's position looks like one of this history.
    for work in [64, 128, 192] {
        hub.put_meters(&[Meter { epoch: 2, ..meter(2, work, 0, 0) }]).await.unwrap();
    }
    let pages = poll(&hub, &accounts).await;
    assert_eq!((pages[0].from, pages[0].last_change_seq), (Some(1), 5));
    assert_worth(&accounts, wallet(0), 6400 + 192, 0).await;
    assert_worth(&accounts, wallet(1), 960, 0).await;

    // The credit stands. A void is of the meter's own work, so the meter is repaired first.
    let repaired = hub.repair_meters(&accounts).await.unwrap();
    assert_eq!((repaired.written, repaired.refused.len()), (2, 1), "the open session is its hub's: {repaired:?}");
    assert_eq!(hub.void_meters(HUB, wallet(0), 2).await.unwrap(), 2);
    poll(&hub, &accounts).await;
    assert_worth(&accounts, wallet(0), 6592, 6592).await;
    assert_worth(&accounts, wallet(1), 960, 0).await;
    assert_sound(&accounts).await;
    assert_sound(&hub).await;
}
