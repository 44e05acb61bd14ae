//! What a contributor is told when something is missing, and what the page cannot do.

use kvasir::clock::{Clock, SystemClock};
use kvasir::wire::invite::Invite;
use kvasir::wire::signature::KeyPair;
use serde_json::{Value, json};

use crate::fleet::fleet;
use crate::page::Page;
use crate::process;
use crate::session::Session;
use crate::stories::{close_window, has_window};
use crate::until;

/// An address whose key nobody has here.
const ADDRESS: &str = "FVen3X669xLzsi6N2V91DoiyzHzg1uAgqiT8jZ9nS96Z";

async fn problem(page: &Page, code: &str) {
    until(&format!("the problem {code}"), async || {
        page.data("problem", "code").await.filter(|seen| seen == code).map(drop)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the stage that tests/desktop/run sets"]
async fn without_a_secret_service_the_window_says_so_and_a_later_one_is_found() {
    let mut session = Session::bare();
    session.tray_host().await;
    let page = Page::open(&mut session, &[]).await;
    problem(&page, "keyring_unavailable").await;
    page.until_state("error").await;
    assert!(!page.can("contribute").await);
    assert!(!session.state().join("wallet").exists(), "no wallet was made");
    session.keyring(true);
    page.click("retry").await;
    page.until_data("body", "wallet", "ready").await;
    page.until_state("paused").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the stage that tests/desktop/run sets"]
async fn without_a_secret_service_a_password_keeps_the_wallet_over_a_restart() {
    const PASSWORD: &str = "a long enough password";
    let mut session = Session::bare();
    session.tray_host().await;
    let page = Page::open(&mut session, &[]).await;
    problem(&page, "keyring_unavailable").await;
    page.go("wallet").await;
    page.paste("new-password", PASSWORD).await;
    page.paste("repeat-password", PASSWORD).await;
    page.click("set-password").await;
    let address = page.wallet().await;
    page.press("quit").await;
    assert_eq!(session.end().await, 0);

    let page = Page::open(&mut session, &[]).await;
    page.go("wallet").await;
    until("the question", async || page.sees("unlock").await.then_some(())).await;
    page.paste("password", "another password").await;
    page.click("unlock-now").await;
    problem(&page, "wallet_password").await;
    page.paste("password", PASSWORD).await;
    page.click("unlock-now").await;
    assert_eq!(page.wallet().await, address);
    // And another password, now that it is open.
    page.go("wallet").await;
    page.open_details("password-more").await;
    page.paste("new-password", "another long password").await;
    page.paste("repeat-password", "another long password").await;
    page.click("set-password").await;
    page.until_text("password-said", |text| text.contains("with your password")).await;
    page.press("quit").await;
    assert_eq!(session.end().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the stage that tests/desktop/run sets"]
async fn a_locked_keyring_is_told_from_a_missing_key() {
    let mut session = Session::usual().await;
    std::fs::create_dir_all(session.state()).unwrap();
    std::fs::write(session.state().join("wallet"), format!("{ADDRESS}\n")).unwrap();
    // The login keyring exists from now on; the next daemon does not get its password.
    session.end_keyring();
    session.keyring(false);
    let page = Page::open(&mut session, &[]).await;
    problem(&page, "keyring_unavailable").await;
    page.until_data("recovery", "kind", "failed").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the stage that tests/desktop/run sets"]
async fn a_wallet_whose_key_is_missing_is_shown_for_recovery_and_not_replaced() {
    let mut session = Session::usual().await;
    std::fs::create_dir_all(session.state()).unwrap();
    let record = session.state().join("wallet");
    std::fs::write(&record, format!("{ADDRESS}\n")).unwrap();
    let page = Page::open(&mut session, &[]).await;
    page.until_text("lost", |text| text == ADDRESS).await;
    page.until_state("error").await;
    assert!(page.sees("recovery").await && !page.can("contribute").await);
    page.click("retry").await;
    page.until_text("lost", |text| text == ADDRESS).await;
    assert_eq!(std::fs::read_to_string(record).unwrap().trim(), ADDRESS);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the stage that tests/desktop/run sets"]
async fn without_a_tray_the_window_stays_and_says_why() {
    let mut session = Session::bare();
    session.keyring(true);
    let page = Page::open(&mut session, &[]).await;
    until("the notice", async || page.sees("tray").await.then_some(())).await;
    page.until_text("tray", |text| text.contains("no tray icons")).await;
    close_window(&session);
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    assert!(has_window(&session), "there would be no way back");
    // Somebody who shows icons comes; the window may go.
    session.tray_host().await;
    until("no notice", async || (!page.sees("tray").await).then_some(())).await;
    page.press("quit").await;
    assert_eq!(session.end().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the stage that tests/desktop/run sets"]
async fn without_the_trays_library_the_window_stays_and_says_which() {
    let mut session = Session::usual().await;
    for name in ["libayatana-appindicator3", "libappindicator3"] {
        session.without_library(&format!("{name}.so.1"));
        session.without_library(&format!("{name}.so"));
    }
    let page = Page::open(&mut session, &[]).await;
    page.until_text("tray", |text| text.contains("libayatana-appindicator3")).await;
    close_window(&session);
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    assert!(has_window(&session), "there would be no way back");
    page.press("quit").await;
    assert_eq!(session.end().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the stage that tests/desktop/run sets"]
async fn a_gateway_that_is_away_is_named() {
    let mut session = Session::usual().await;
    let operator = KeyPair::from_seed(&[1; 32]);
    let expires_unix_s = SystemClock::default().unix_ms() / 1000 + 3600;
    let gateways = vec!["wss://127.0.0.1:9".to_owned()];
    let invite = Invite { operator: operator.public(), gateways, ca_pem: None, expires_unix_s };
    let page = Page::open(&mut session, &[]).await;
    page.until_data("body", "wallet", "ready").await;
    page.join(&invite.sign(&operator).unwrap()).await;
    page.click("contribute").await;
    page.until_state("offline").await;
    page.until_text("link", |text| text.starts_with("Offline: ")).await;
    page.until_data("body", "why", "offline").await;
    page.until_text("credit", |text| text.contains("gateway does not answer")).await;
    page.click("contribute").await;
    page.until_state("paused").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the stage that tests/desktop/run sets"]
async fn a_gateway_with_a_certificate_of_nobody_known_is_not_trusted() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = fleet(dir.path());
    let gateway = format!("wss://{}", fleet.public);
    // Without --ca the invitation trusts the usual authorities only, and this gateway made its own.
    let (code, invitation, why) = process::ended(dir.path(), &["hub", "invite", "--gateway", &gateway]);
    assert_eq!(code, Some(0), "{why}");
    let mut session = Session::usual().await;
    let page = Page::open(&mut session, &[]).await;
    page.until_data("body", "wallet", "ready").await;
    page.join(&invitation).await;
    page.click("contribute").await;
    page.until_state("offline").await;
    page.until_text("link", |text| text.contains("certificate")).await;
    assert_eq!(fleet.sessions().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the stage that tests/desktop/run sets"]
async fn a_full_disk_is_named_and_no_wallet_is_lost_on_it() {
    let mut session = Session::usual().await;
    session.fill_disk();
    let page = Page::open(&mut session, &[]).await;
    until("the problem", async || page.sees("problem").await.then_some(())).await;
    let said = page.text("problem").await.unwrap();
    assert!(said.contains("No space left"), "{said}");
    let advice = page.text("recovery").await.unwrap();
    assert!(advice.contains("said above") && !advice.contains("keyring"), "the keyring is not to blame: {advice}");
    page.until_state("error").await;
    assert!(!page.can("contribute").await);
}

#[test]
#[ignore = "needs the page that the desktop build makes"]
fn the_page_is_small_and_has_no_code_or_style_in_its_markup() {
    let dist = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../ui/dist");
    let files = [dist.clone(), dist.join("assets")].map(|dir| std::fs::read_dir(dir).unwrap().map(Result::unwrap));
    let sizes = files.into_iter().flatten().map(|file| file.metadata().unwrap()).filter(std::fs::Metadata::is_file);
    let bytes: u64 = sizes.map(|file| file.len()).sum();
    eprintln!("the page has {bytes} bytes");
    assert!(bytes < 150_000, "{bytes} bytes");
    let markup = std::fs::read_to_string(dist.join("index.html")).unwrap();
    assert!(!markup.contains("<style") && !markup.contains("style="), "{markup}");
    assert!(
        markup.matches("<script").count() == markup.matches("<script type=\"module\" crossorigin src=\"./").count(),
        "{markup}"
    );
    assert!(!markup.contains("http:") && !markup.contains("https:"), "{markup}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the stage that tests/desktop/run sets"]
async fn the_page_can_call_the_apps_own_commands_and_nothing_else() {
    let mut session = Session::usual().await;
    let page = Page::open(&mut session, &[]).await;
    let call = "const [command, args, done] = arguments;
        window.__TAURI_INTERNALS__.invoke(command, args).then((v) => done('did: ' + v), (e) => done(JSON.stringify(e)))";
    let answer = page.run(call, json!(["contribute", {"on": true}])).await;
    assert!(answer.as_str().unwrap().contains("no_network"), "its own command answers: {answer}");
    for (command, args) in [
        ("plugin:window|hide", json!({"label": "main"})),
        ("plugin:event|listen", json!({"event": "x", "target": {"kind": "Any"}, "handler": 0})),
        ("plugin:webview|create_webview_window", json!({"options": {"label": "x", "url": "https://example.com"}})),
        ("plugin:app|version", json!({})),
        ("plugin:path|resolve_directory", json!({"directory": 1})),
        ("no_such_command", json!({})),
    ] {
        let answer = page.run(call, json!([command, args])).await;
        let said = answer.as_str().unwrap_or_default();
        assert!(said.contains("not allowed") || said.contains("not found"), "{command}: {said}");
    }
    let reach = "const [url, done] = arguments; fetch(url).then(() => done('reached'), () => done('refused'))";
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    assert_eq!(page.run(reach, json!([url])).await, "refused");
    let load = "const [url, done] = arguments; const image = new Image();
        image.onload = () => done('loaded'); image.onerror = () => done('refused'); image.src = url";
    assert_eq!(page.run(load, json!([url])).await, "refused");
    let leave = "const [url, done] = arguments; location.href = url; setTimeout(() => done(location.protocol), 500)";
    assert_eq!(page.run(leave, json!([url])).await, Value::from("tauri:"));
    assert!(listener.accept().is_err(), "nobody knocked");
    let known = "arguments[0](typeof window.__TAURI__)";
    assert_eq!(page.run(known, json!([])).await, "undefined");
}
