//! What the app does for whoever keeps it: closing, starting at login, languages, the wallet's words.

use serde_json::json;

use crate::menu::Menu;
use crate::page::Page;
use crate::session::Session;
use crate::stories::{close_window, has_window};
use crate::until;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the stage that tests/desktop/run sets"]
async fn the_first_close_is_explained_and_the_next_one_is_not() {
    let mut session = Session::usual().await;
    let page = Page::open(&mut session, &[]).await;
    let (connection, watcher) = session.host();
    let menu = Menu::of(connection, watcher).await;
    page.until_data("body", "wallet", "ready").await;
    close_window(&session);
    page.until_text("closing-title", |text| text.contains("stays in the tray")).await;
    assert!(has_window(&session));
    page.press("closing-yes").await;
    until("no window", async || (!has_window(&session)).then_some(())).await;
    menu.click("Open").await;
    until("the window again", async || has_window(&session).then_some(())).await;
    close_window(&session);
    until("no window", async || (!has_window(&session)).then_some(())).await;
    menu.click("Quit").await;
    assert_eq!(session.end().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the stage that tests/desktop/run sets"]
async fn starting_at_login_is_off_until_it_is_asked_for() {
    let mut session = Session::usual().await;
    let page = Page::open(&mut session, &[]).await;
    let (connection, watcher) = session.host();
    let menu = Menu::of(connection, watcher).await;
    let entry = session.home.path().join("config/autostart/net.kvasir.app.desktop");
    assert!(!menu.line("Start at login").await.checked && !entry.exists());
    menu.click("Start at login").await;
    let written = until("the entry", async || std::fs::read_to_string(&entry).ok()).await;
    assert!(written.contains(&format!("Exec=\"{}\" --hidden\n", env!("CARGO_BIN_EXE_kvasir"))), "{written}");
    until("the mark", async || menu.line("Start at login").await.checked.then_some(())).await;
    page.go("settings").await;
    page.click("start-at-login").await;
    until("no entry", async || (!entry.exists()).then_some(())).await;
    until("no mark", async || (!menu.line("Start at login").await.checked).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the stage that tests/desktop/run sets"]
async fn another_language_is_spoken_at_once_in_window_and_menu() {
    let mut session = Session::usual().await;
    let page = Page::open(&mut session, &[]).await;
    let (connection, watcher) = session.host();
    let menu = Menu::of(connection, watcher).await;
    page.resize(460, 760).await;
    page.go("settings").await;
    a_refusal_is_seen_where_the_user_is(&page).await;
    page.choose("language", "ja").await;
    page.click("save").await;
    page.until_text("to-home", |text| text == "概要").await;
    assert!(menu.line("Kvasir を開く").await.enabled);
    let lang = page.run("arguments[0](document.documentElement.lang)", json!([])).await;
    assert_eq!(lang, "ja");

    // Whoever closes twice has answered.
    close_window(&session);
    page.until_text("closing-title", |text| !text.is_empty()).await;
    close_window(&session);
    until("no window", async || (!has_window(&session)).then_some(())).await;
    assert!(session.state().join("close-explained").exists());
}

/// Saves what cannot be kept, far down the settings, and goes away again.
async fn a_refusal_is_seen_where_the_user_is(page: &Page) {
    page.choose("gateways", "http://nobody.example").await;
    page.click("save").await;
    until("the refusal", async || page.sees("problem").await.then_some(())).await;
    let place = "const box = document.getElementById('problem').getBoundingClientRect();
        arguments[0](scrollY > 200 && box.top >= 0 && box.bottom <= innerHeight)";
    page.run("document.getElementById('gateways').scrollIntoView(); arguments[0](true)", json!([])).await;
    assert_eq!(page.run(place, json!([])).await, true, "it is in the window, far down the page");
    page.go("home").await;
    until("no refusal", async || (!page.sees("problem").await).then_some(())).await;
    page.go("settings").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the stage that tests/desktop/run sets"]
async fn a_wallets_words_are_shown_and_verified_and_bring_it_back_elsewhere() {
    let mut session = Session::usual().await;
    let page = Page::open(&mut session, &[]).await;
    let wallet = page.wallet().await;
    let (connection, watcher) = session.host();
    let menu = Menu::of(connection, watcher).await;
    menu.click("Back up your wallet").await;
    page.click("show-phrase").await;
    let words = page.until_text("words", |text| !text.is_empty()).await;
    let words: Vec<String> = {
        let script = "arguments[0]([...document.querySelectorAll('#words li')].map((li) => li.textContent))";
        serde_json::from_value(page.run(script, json!([])).await).unwrap_or_else(|_| panic!("no list: {words}"))
    };
    assert_eq!(words.len(), 12);
    page.click("phrase-written").await;
    // A wrong word is no proof.
    answer(&page, &vec!["zoo".to_owned(); 12]).await;
    page.click("verify").await;
    until("the refusal", async || page.sees("problem").await.then_some(())).await;
    answer(&page, &words).await;
    page.click("verify").await;
    page.until_data("backed-up", "safe", "true").await;
    until("no line", async || menu.lines().await.iter().all(|line| !line.label.starts_with("Back up")).then_some(()))
        .await;
    page.press("quit").await;
    assert_eq!(session.end().await, 0);

    let mut elsewhere = Session::usual().await;
    let page = Page::open(&mut elsewhere, &[]).await;
    assert_ne!(page.wallet().await, wallet);
    page.go("wallet").await;
    page.click("show-phrase").await;
    page.until_text("words", |text| !text.is_empty()).await;
    page.open_details("restore").await;
    page.paste("restore-phrase", &words.join(" ")).await;
    page.click("restore-now").await;
    page.click("replace-yes").await;
    page.until_text("wallet", |text| text == wallet).await;
    assert_eq!(page.text("words").await, None, "the words of the wallet before are gone");
}

/// Fills in the words that are asked for.
async fn answer(page: &Page, words: &[String]) {
    let script = "const [words, done] = arguments;
        for (const box of document.querySelectorAll('#verify-phrase input')) box.value = words[box.dataset.position - 1];
        done(true)";
    assert_eq!(page.run(script, json!([words])).await, true);
}
