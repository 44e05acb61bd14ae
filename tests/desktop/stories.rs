//! What a contributor does, from the first start to Quit.

use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fleet::{Fleet, client, fleet};
use crate::menu::Menu;
use crate::page::Page;
use crate::session::{Session, resident_bytes, used_ticks};
use crate::{http, join_code, until};

pub async fn generate(fleet: &Fleet, tokens: u32) {
    let body = json!({"prompt": "Once upon a time", "max_tokens": tokens, "temperature": 0}).to_string();
    let answer = http().post(format!("{}/v1/completions", fleet.api)).body(body).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    answer.text().await.unwrap();
}

/// The gateway's account, once nothing is added to it any more.
pub async fn statement(fleet: &Fleet, dir: &std::path::Path, wallet: &str) -> Value {
    let client = client(&dir.join("kvasir-state/gateway/trial-ca.pem"));
    let mut last = Value::Null;
    until("a settled account", async || {
        let url = format!("https://{}/v1/wallets/{wallet}", fleet.public);
        let answer = client.get(url).send().await.unwrap().text().await.unwrap();
        let now: Value = serde_json::from_str(&answer).unwrap();
        tokio::time::sleep(Duration::from_secs(2)).await;
        let settled = now["pending_nano_kvr"].as_u64() > Some(0) && now == last;
        last = now.clone();
        settled.then_some(now)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the stage that tests/desktop/run sets"]
async fn first_start_join_contribute_get_paid_pause_quit() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = fleet(dir.path());
    let code = join_code(dir.path(), &fleet);
    let mut session = Session::usual().await;

    // First start: a wallet in the keyring, and nothing to contribute to yet.
    let start = Instant::now();
    let page = Page::open(&mut session, &[]).await;
    eprintln!("page with its status after {:?}, the driver's start included", start.elapsed());
    page.until_state("paused").await;
    let wallet = page.wallet().await;
    until("the wallet's record", async || std::fs::read_to_string(session.state().join("wallet")).ok()).await;
    let kept = keyring_entry(&session, &wallet);
    assert_eq!(kept.len(), 32, "what the phrase stands for is in the keyring");
    assert!(!page.can("contribute").await);
    page.until_data("body", "why", "no_network").await;

    page.join(&code).await;
    page.until_text("pending", |text| text == "0.00000").await;

    // Contribute by the tray; a generation is served.
    let (connection, watcher) = session.host();
    let menu = Menu::of(connection, watcher).await;
    until("Contribute", async || menu.line("Contribute").await.enabled.then_some(())).await;
    let device = menu.line("Device: ").await.label;
    assert!(device.to_lowercase().contains("cpu"), "the only one here: {device}");
    menu.click("Contribute").await;
    page.until_state("working").await;
    page.until_data("slice", "kind", "held").await;
    assert_eq!(fleet.sessions().await, 1);
    generate(&fleet, 24).await;

    // What tray and window show is the gateway's account.
    let account = statement(&fleet, dir.path(), &wallet).await;
    let nano = account["pending_nano_kvr"].as_u64().unwrap().to_string();
    until("the account in the window", async || page.data("pending", "nano").await.filter(|shown| *shown == nano))
        .await;
    let kvr = account["pending_kvr"].as_str().unwrap();
    assert_eq!(page.text("pending").await.as_deref(), Some(kvr));
    assert_eq!(menu.line("Pending: ").await.label, format!("Pending: {kvr} KVR"));
    page.until_text("credit", |text| text.starts_with("Last credit")).await;

    // Pause by the tray: the worker is gone from the hub; resumed in the window, and stopped there.
    menu.click("For 1 hour").await;
    page.until_state("paused").await;
    page.until_text("why", |text| text.starts_with("Not earning: paused until ")).await;
    until("an empty hub", async || (fleet.sessions().await == 0).then_some(())).await;
    assert!(menu.line("Resume").await.enabled && !menu.line("Pause").await.enabled);
    page.click("contribute").await;
    page.until_state("working").await;
    page.click("contribute").await;
    page.until_data("body", "state", "paused").await;
    assert!(menu.line("Contribute").await.enabled);
    menu.click("Contribute").await;
    page.until_state("working").await;
    menu.click("Quit").await;
    assert_eq!(session.end().await, 0);
    until("an empty hub", async || (fleet.sessions().await == 0).then_some(())).await;
}

/// What the Secret Service keeps for a wallet, asked as any other program would.
pub fn keyring_entry(session: &Session, wallet: &str) -> String {
    let mut tool = session.command("secret-tool");
    let output = tool.args(["lookup", "service", "net.kvasir.app", "username", wallet]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the stage that tests/desktop/run sets"]
async fn a_second_start_shows_the_first_ones_window_with_the_invitation_of_its_link() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = fleet(dir.path());
    let code = join_code(dir.path(), &fleet);
    let mut session = Session::usual().await;
    let page = Page::open(&mut session, &[]).await;
    let again = |args: &[&str]| {
        let mut second = session.command(env!("CARGO_BIN_EXE_kvasir"));
        let ended = second.args(args).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
        assert_eq!(ended.code(), Some(0));
    };
    again(&["--open", &code]);
    let operator = page.until_text("offer-operator", |text| !text.is_empty()).await;
    assert_eq!(operator, fleet.operator);
    page.click("decline").await;
    until("no invitation", async || (!page.sees("offer").await).then_some(())).await;
    // The same from a file, and a link that is none.
    again(&["--join", &dir.path().join("invitation.txt").display().to_string()]);
    page.until_text("offer-operator", |text| !text.is_empty()).await;
    again(&["--open", &code[..code.len() - 9]]);
    until("the refusal", async || page.data("problem", "code").await.filter(|code| code.starts_with("invite_"))).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the stage that tests/desktop/run sets"]
async fn sigterm_and_the_end_of_a_session_drain_the_worker() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = fleet(dir.path());
    let code = join_code(dir.path(), &fleet);
    for signal in ["-TERM", "-HUP"] {
        let mut session = Session::usual().await;
        let page = Page::open(&mut session, &["--open", &code]).await;
        page.click("accept").await;
        until("Contribute", async || page.can("contribute").await.then_some(())).await;
        page.click("contribute").await;
        page.until_state("working").await;
        let pid = session.noted("pid").unwrap().to_string();
        assert!(std::process::Command::new("kill").args([signal, &pid]).status().unwrap().success());
        assert_eq!(session.end().await, 0, "{signal}");
        until("an empty hub", async || (fleet.sessions().await == 0).then_some(())).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the stage that tests/desktop/run sets"]
async fn a_closed_window_leaves_a_small_quiet_app_in_the_tray() {
    let mut session = Session::usual().await;
    // Its first close is no longer one that must be explained.
    std::fs::create_dir_all(session.state()).unwrap();
    std::fs::write(session.state().join("close-explained"), "").unwrap();
    let app = session.app();
    let mut hidden = session.command(&app);
    session.invite(hidden.arg("--hidden"));
    let menu = first_menu(&session).await;
    menu.line("Device: ").await;
    small_and_quiet("never opened", session.noted("pid").unwrap()).await;
    menu.click("Quit").await;
    assert_eq!(session.end().await, 0);

    session.host().1.forget();
    let start = Instant::now();
    let mut command = session.command(&app);
    session.invite(&mut command);
    until("the window", async || has_window(&session).then_some(())).await;
    eprintln!("window visible after {:?}", start.elapsed());
    let menu = first_menu(&session).await;
    menu.line("Quit").await;
    close_window(&session);
    until("no window", async || (!has_window(&session)).then_some(())).await;
    small_and_quiet("closed", session.noted("pid").unwrap()).await;
    menu.click("Open").await;
    until("the window again", async || has_window(&session).then_some(())).await;
    menu.click("Quit").await;
    assert_eq!(session.end().await, 0);
}

async fn first_menu(session: &Session) -> Menu {
    let (connection, watcher) = session.host();
    Menu::of(connection, watcher).await
}

/// What the app and all that it started take, files that it has mapped included, and what it does meanwhile.
async fn small_and_quiet(window: &str, pid: i32) {
    tokio::time::sleep(Duration::from_secs(3)).await;
    let before = used_ticks(pid);
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (ticks, [own, all]) = (used_ticks(pid) - before, resident_bytes(pid));
    let (own_mb, all_mb, percent) = (own as f64 / 1e6, all as f64 / 1e6, ticks as f64 / 5.0);
    eprintln!("window {window}: {own_mb:.1} MB of its own, {all_mb:.1} MB with files; {percent:.1} % of a core");
    assert!(own < 150_000_000, "{own} bytes of its own with the window {window}");
    assert!(ticks <= 5, "{ticks} hundredths of a second in 5 s of rest");
}

pub fn has_window(session: &Session) -> bool {
    let listed = session.command("wmctrl").arg("-l").output().unwrap();
    String::from_utf8_lossy(&listed.stdout).lines().any(|line| line.ends_with("Kvasir"))
}

/// Asks for the window to be closed, as its button does.
pub fn close_window(session: &Session) {
    assert!(session.command("wmctrl").args(["-c", "Kvasir"]).status().unwrap().success());
}
