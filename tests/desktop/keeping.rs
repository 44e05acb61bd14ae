//! What a contributor does with what was earned, and with what lies on the disk.

use std::path::Path;

use serde_json::{Value, json};

use crate::fleet::{Fleet, client, fleet};
use crate::page::Page;
use crate::session::Session;
use crate::stories::{generate, statement};
use crate::{join_code, until};

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
    page.open_details("receipts").await;
    let sum = "arguments[0](String([...document.querySelectorAll('#receipts-table [data-nano]')]
        .reduce((sum, cell) => sum + BigInt(cell.dataset.nano), 0n)))";
    until("receipts of what was credited", async || {
        page.click("receipts-again").await;
        (page.run(sum, json!([])).await == credited.to_string()).then_some(())
    })
    .await;
}

/// Claims everything; a second claim is refused in words that say why.
async fn claim_once(page: &Page, fleet: &Fleet, dir: &Path, wallet: &str, owed: u64) {
    let exact = owed
        .to_string()
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|part| std::str::from_utf8(part).unwrap())
        .collect::<Vec<_>>()
        .join(",");
    page.go("wallet").await;
    page.click("claim-now").await;
    page.until_text("claim-exact", |text| text.contains(&format!("{exact} nano-KVR"))).await;
    page.click("claim-confirm-no").await;
    let claimable = format!("/v1/wallets/{wallet}/claim");
    assert_eq!(gateway(fleet, dir, &claimable).await["open_nano_kvr"], Value::Null, "nothing was signed");
    page.click("claim-now").await;
    page.click("claim-confirm-yes").await;
    let signed =
        format!("Kvasir claim v1 | operator {} | wallet {wallet} | lifetime {owed} nano-KVR | ", fleet.operator);
    page.until_text("claim-text", |text| text.starts_with(&signed)).await;
    assert_eq!(gateway(fleet, dir, &claimable).await["open_nano_kvr"], owed, "the gateway has it");

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
async fn what_was_earned_is_claimed_and_listed_and_slices_are_deleted_when_asked() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = fleet(dir.path());
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
    page.press("quit").await;
    assert_eq!(session.end().await, 0);
}
