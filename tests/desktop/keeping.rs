//! What a contributor does with what was earned, what outlives a restart, and how everything is taken away again.

use std::path::Path;

use serde_json::{Value, json};

use crate::fleet::{Fleet, behind_gateway, client, inner};
use crate::page::Page;
use crate::screen::Fullscreen;
use crate::session::Session;
use crate::stories::{generate, keyring_entry, statement};
use crate::{join_code, until};

/// What no report may say.
const SECRET: &str = "open-sesame-open";

/// One document of the gateway.
async fn gateway(fleet: &Fleet, dir: &Path, path: &str) -> Value {
    let client = client(&dir.join("kvasir-state/gateway/trial-ca.pem"));
    let answer = client.get(format!("https://{}{path}", fleet.public)).send().await.unwrap();
    serde_json::from_str(&answer.text().await.unwrap()).unwrap()
}

/// Joins by a link and works until a generation was paid; gives the wallet and what it is owed.
async fn earn(page: &Page, fleet: &Fleet, dir: &Path) -> (String, u64) {
    page.click("accept").await;
    until("Contribute", async || page.can("contribute").await.then_some(())).await;
    page.click("contribute").await;
    page.until_data("slice", "kind", "held").await;
    generate(fleet, 12).await;
    let wallet = page.wallet().await;
    let owed = statement(fleet, dir, &wallet).await["pending_nano_kvr"].as_u64().unwrap();
    page.until_data("pending", "nano", &owed.to_string()).await;
    (wallet, owed)
}

/// The receipts in the window are worth what the gateway has credited.
async fn receipts_are_the_gateways(page: &Page, fleet: &Fleet, dir: &Path, wallet: &str) {
    let credits = gateway(fleet, dir, &format!("/v1/wallets/{wallet}/credits?after=0")).await;
    let credited: u64 =
        credits["credits"].as_array().unwrap().iter().map(|c| c["amount_nano_kvr"].as_u64().unwrap()).sum();
    let credited = credited.to_string();
    page.open_details("receipts").await;
    let sum = "arguments[0](String([...document.querySelectorAll('#receipts-table [data-nano]')]
        .reduce((sum, cell) => sum + BigInt(cell.dataset.nano), 0n)))";
    until("receipts of what was credited", async || {
        page.click("receipts-again").await;
        (page.run(sum, json!([])).await == credited).then_some(())
    })
    .await;
}

/// A number as English writes it.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let parts = digits.as_bytes().rchunks(3).rev().map(|part| std::str::from_utf8(part).unwrap());
    parts.collect::<Vec<_>>().join(",")
}

/// Claims everything; a second claim is refused in words that say why.
async fn claim_once(page: &Page, fleet: &Fleet, dir: &Path, wallet: &str, owed: u64) {
    page.go("wallet").await;
    page.click("claim-now").await;
    page.until_text("claim-exact", |text| text.contains(&format!("{} nano-KVR", grouped(owed)))).await;
    page.click("claim-confirm-no").await;
    let claimable = format!("/v1/wallets/{wallet}/claim");
    assert_eq!(gateway(fleet, dir, &claimable).await["open_nano_kvr"], Value::Null, "nothing was signed");
    page.click("claim-now").await;
    page.click("claim-confirm-yes").await;
    let signed =
        format!("Kvasir claim v1 | operator {} | wallet {wallet} | lifetime {owed} nano-KVR | ", fleet.operator);
    page.until_text("claim-text", |text| text.starts_with(&signed)).await;
    assert_eq!(gateway(fleet, dir, &claimable).await["open_nano_kvr"], owed, "the gateway has it");

    // What is typed comes on top of what waits, which a smaller claim would take away.
    page.paste("claim-amount", "0.000000001").await;
    page.click("claim-now").await;
    page.until_text("claim-exact", |text| text.contains(&format!("{} nano-KVR", grouped(owed + 1)))).await;
    page.click("claim-confirm-no").await;
    page.paste("claim-amount", "").await;

    page.click("claim-now").await;
    page.click("claim-confirm-yes").await;
    page.until_data("problem", "code", "claim_often").await;
    let said = page.text("problem").await.unwrap();
    assert!(said.starts_with("The last claim is not paid yet") && said.contains("try again in"), "{said}");
}

/// Names the room that slices take, and gives it back.
async fn delete_slices(page: &Page, session: &Session) {
    let experts = session.state().join("experts");
    let files = || std::fs::read_dir(&experts).into_iter().flatten().map(|entry| entry.unwrap().metadata().unwrap());
    let bytes: u64 = files().filter(std::fs::Metadata::is_file).map(|file| file.len()).sum();
    assert!(bytes > 1_000_000, "{bytes}");
    page.go("settings").await;
    page.click("delete-slices-ask").await;
    let named = page.until_text("delete-slices-size", |text| !text.is_empty()).await;
    assert!(named.contains(&format!("{:.1} MB", bytes as f64 / 1e6)), "{bytes}: {named}");
    page.click("delete-slices-no").await;
    assert!(experts.exists());
    page.click("delete-slices-ask").await;
    page.click("delete-slices-yes").await;
    page.until_text("deleted", |text| text.contains("MB")).await;
    assert!(!experts.exists(), "the disk is free again");
    page.until_state("paused").await;
    page.click("delete-slices-ask").await;
    page.until_text("deleted", |text| text.starts_with("No slices")).await;
}

/// The doctor in the window, and its report as a file; gives the file's text.
async fn report(page: &Page, session: &Session) -> String {
    page.go("diagnostics").await;
    page.click("examine").await;
    page.click("save-report").await;
    let file = session.home.path().join("kvasir-report.txt");
    let text = until("the report", async || std::fs::read_to_string(&file).ok()).await;
    std::fs::remove_file(file).unwrap();
    text
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the stage that tests/desktop/run sets"]
async fn what_was_earned_is_claimed_wishes_outlive_restarts_and_everything_can_be_taken_away() {
    let dir = tempfile::tempdir().unwrap();
    let servers = inner(dir.path(), "", &[]);
    // What was credited can be claimed at once.
    let operator = servers.operator.clone();
    let fleet = behind_gateway(dir.path(), servers, &["--operator", &operator, "--claim-after", "1s"]);
    let code = join_code(dir.path(), &fleet);
    let mut session = Session::usual().await;

    let page = Page::open(&mut session, &["--open", &code]).await;
    let (wallet, owed) = earn(&page, &fleet, dir.path()).await;
    receipts_are_the_gateways(&page, &fleet, dir.path(), &wallet).await;
    claim_once(&page, &fleet, dir.path(), &wallet, owed).await;
    let well = report(&page, &session).await;
    assert!(well.contains("Handshake") && well.contains("Wallet"), "{well}");
    for private in [wallet.as_str(), &code, &fleet.operator, session.home.path().to_str().unwrap()] {
        assert!(!well.contains(private), "{private} in {well}");
    }
    delete_slices(&page, &session).await;
    page.go("home").await;
    page.click("contribute").await;
    page.until_data("slice", "kind", "held").await;
    page.click("pause-until-resumed").await;
    page.until_state("paused").await;
    // Settings of every kind, among them another language.
    page.go("settings").await;
    page.choose("disk-cap", "7.5").await;
    page.choose("gateways", "wss://gateway.example").await;
    page.click("notifications").await;
    page.choose("language", "es").await;
    page.click("save").await;
    page.until_text("to-settings", |text| text == "Ajustes").await;
    page.press("quit").await;
    assert_eq!(session.end().await, 0);

    // What was wished is wished still; the way out is another one now, with a password in it.
    let proxy = format!("http://ann:{SECRET}@127.0.0.1:9");
    let page = Page::open(&mut session, &["--proxy", &proxy]).await;
    page.until_text("why", |text| text.contains("en pausa hasta que la reanudes")).await;
    page.until_state("paused").await;
    page.go("settings").await;
    assert_eq!(page.field("disk-cap").await.as_deref(), Some("7.5"));
    assert_eq!(page.field("gateways").await.as_deref(), Some("wss://gateway.example"));
    assert_eq!(page.field("language").await.as_deref(), Some("es"));
    assert!(!page.is_on("notifications").await);
    let ill = report(&page, &session).await;
    assert!(ill.contains("Proxy") && ill.contains("127.0.0.1:9"), "the way out is the one that was chosen: {ill}");
    assert!(!ill.contains(SECRET), "{ill}");

    // Work makes way for what fills the screen, and an hour's pause outlives a restart too.
    page.go("settings").await;
    page.choose("language", "en").await;
    page.click("pause-for-fullscreen").await;
    page.click("save").await;
    page.until_text("to-settings", |text| text == "Settings").await;
    page.go("home").await;
    page.click("contribute").await;
    page.until_state("offline").await;
    let film = Fullscreen::open();
    page.until_text("why", |text| text == "Not earning: a program fills the screen.").await;
    assert!(film.is_there());
    drop(film);
    page.until_state("offline").await;
    page.click("pause-hour").await;
    page.until_state("paused").await;
    page.go("settings").await;
    page.click("start-at-login").await;
    page.press("quit").await;
    assert_eq!(session.end().await, 0);

    let page = Page::open(&mut session, &[]).await;
    page.until_text("why", |text| text.starts_with("Not earning: paused until ")).await;
    remove_everything(&page, &session, &wallet).await;
}

/// Nothing but an empty lock is left, and whoever has no backup was warned.
async fn remove_everything(page: &Page, session: &Session, wallet: &str) {
    let autostart = session.home.path().join("config/autostart/net.kvasir.app.desktop");
    assert!(autostart.exists() && keyring_entry(session, wallet).len() == 32);
    page.go("settings").await;
    page.click("remove-ask").await;
    page.until_text("remove-warning", |text| text.contains("never verified")).await;
    page.press("remove-yes").await;
    assert_eq!(session.end().await, 0, "it ends by itself");
    assert!(!autostart.exists());
    assert_eq!(keyring_entry(session, wallet), "", "the key is gone");
    let left = std::fs::read_dir(session.state()).into_iter().flatten().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| name != "lock").collect();
    assert!(left.is_empty(), "{left:?}");
}
