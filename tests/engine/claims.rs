//! Being paid: a claim that the engine signs and a real gateway takes; and a gateway that is not the network's own.

use kvasir::engine::{EngineError, Settings, WhyCode};
use kvasir::types::NanoKvr;
use kvasir::wallet::Claim;

use super::guest::holds_slice;
use super::*;

async fn claims(desk: &Desk, nano: Option<u64>) -> Result<String, &'static str> {
    desk.engine.claim(nano.map(|nano| nano.to_string())).await.map_err(|error: EngineError| error.code())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_pending_is_claimed_signed_and_paid_to_the_nano() {
    let (network, dir) = (network().await, tempfile::tempdir().unwrap());
    let desk = Desk::start(dir.path());
    let wallet = address(&desk.ready().await);
    assert_eq!(claims(&desk, None).await, Err("no_network"));
    desk.join(&network.join_code().unwrap()).await;
    assert_eq!(claims(&desk, None).await, Err("claim_nothing"));
    desk.engine.contribute(true).await.unwrap();
    desk.until("a slice", holds_slice).await;
    generate(&network, 4).await;
    let whole = network.dispatch.counts().work_bytes * 7;
    let owed = |s: &Status| s.account.as_ref().map(|account| account.pending_nano_kvr.parse::<u64>().unwrap());
    desk.until("the whole credit", |s| owed(s) == Some(whole)).await;
    desk.engine.contribute(false).await.unwrap();

    for wrong in [0, whole + 1, u64::MAX] {
        assert_eq!(claims(&desk, Some(wrong)).await, Err("claim_amount"), "{wrong}");
    }
    assert_eq!(desk.engine.claim(Some("1.5".into())).await.unwrap_err().code(), "claim_amount");
    let part = whole / 3;
    let claim = Claim::parse(&claims(&desk, Some(part)).await.unwrap()).unwrap();
    let said = (claim.operator, claim.wallet, claim.lifetime, claim.sequence);
    assert_eq!(said, (network.operator().public(), wallet, NanoKvr(part), 1));
    assert_eq!(claims(&desk, None).await, Err("claim_often"), "one claim at a time");

    // The operator pays what was claimed, once, and the window shows the rest.
    let accounts = network.ledgers().1;
    for paid in [part, 0] {
        assert_eq!(accounts.settle(network.operator()).await.unwrap().paid_nano_kvr.0, paid);
    }
    desk.until("the rest", |s| owed(s) == Some(whole - part)).await;
    let rest = Claim::parse(&claims(&desk, None).await.unwrap()).unwrap();
    assert_eq!((rest.lifetime, rest.sequence), (NanoKvr(whole), 2));
    assert_eq!(accounts.settle(network.operator()).await.unwrap().paid_nano_kvr.0, whole - part);
    desk.until("nothing more", |s| owed(s) == Some(0)).await;
    assert_eq!(claims(&desk, None).await, Err("claim_nothing"));
    assert!(accounts.check().await.unwrap().is_sound());
    desk.stop().await;
    network.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_of_another_authority_is_told_nothing_and_named() {
    let (own, other) = (network().await, network().await);
    let dir = tempfile::tempdir().unwrap();
    let desk = Desk::start(dir.path());
    desk.ready().await;
    desk.join(&own.join_code().unwrap()).await;
    let gateways = vec![format!("wss://localhost:{}", other.gateway().port())];
    desk.engine.save_settings(Settings { gateways, ..Settings::default() }).await.unwrap();
    desk.engine.contribute(true).await.unwrap();
    let lost = desk.until("no link", |s| s.account_problem.is_some() && matches!(s.link, Link::Waiting { .. })).await;
    assert_eq!((lost.state, lost.why_not_earning.code), (State::Offline, WhyCode::Offline));
    assert_eq!(lost.why_not_earning.args["code"], "untrusted_issuer");
    assert_eq!(lost.account_problem.unwrap().code, "gateway_unreachable");
    assert_eq!(claims(&desk, None).await, Err("gateway_unreachable"));
    assert!(other.dispatch.workers().is_empty());
    // The network's own gateway again, and work goes on without another word.
    desk.engine.save_settings(Settings::default()).await.unwrap();
    desk.until("a slice", |s| holds_slice(s) && s.account_problem.is_none()).await;
    desk.stop().await;
    own.stop().await.unwrap();
    other.stop().await.unwrap();
}
