//! A graphics card that crashes its driver, goes away under work, and comes back.
//!
//! The card is Mesa's Vulkan driver behind a switch (`card.c`), so that the app loses it as it would lose a real one:
//! the driver says so when work is handed in, and the card no longer shows.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::fleet::{Fleet, fleet};
use crate::page::Page;
use crate::session::Session;
use crate::stories::generate;
use crate::{join_code, until};

/// See the module.
struct Card(PathBuf);

impl Card {
    /// Puts the card into `session`, in place of every other; it is "there", "gone" or "broken".
    fn insert(session: &mut Session, state: &str) -> Self {
        let home = session.home.path().to_owned();
        let (library, manifest, switch) = (home.join("card.so"), home.join("card.json"), home.join("card"));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/desktop/card.c");
        let built = Command::new("cc").args(["-O1", "-shared", "-fPIC", "-o"]).arg(&library).arg(source).status();
        assert!(built.unwrap().success());
        let driver = json!({"file_format_version": "1.0.0", "ICD": {"library_path": library, "api_version": "1.1.0"}});
        std::fs::write(&manifest, driver.to_string()).unwrap();
        let driver = PathBuf::from("libvulkan_lvp.so");
        // The loader's older name for the same.
        let names =
            [("VK_DRIVER_FILES", &manifest), ("VK_ICD_FILENAMES", &manifest), ("CARD", &switch), ("DRIVER", &driver)];
        session.environment = names.map(|(name, value)| (name, value.clone())).to_vec();
        let card = Self(switch);
        card.turn(state);
        card
    }

    fn turn(&self, state: &str) {
        // Whole or not at all: the driver may be reading.
        let fresh = self.0.with_extension("new");
        std::fs::write(&fresh, state).unwrap();
        std::fs::rename(fresh, &self.0).unwrap();
    }
}

/// Takes the card away; it is missed when there is work for it, and who has just come back gets little at first.
async fn lose(card: &Card, page: &Page, fleet: &Fleet) {
    card.turn("gone");
    until("the loss", async || {
        generate(fleet, 4).await;
        page.data("link", "kind").await.filter(|kind| kind == "no_hardware")
    })
    .await;
}

/// The switch of the first device whose name contains `name`.
async fn switch(page: &Page, name: &str) -> String {
    let script = "const [name, done] = arguments, rows = [...document.querySelectorAll('#devices li')];
        done(rows.find((row) => row.textContent.includes(name))?.querySelector('input').id ?? null)";
    until(name, async || page.run(script, json!([name])).await.as_str().map(str::to_owned)).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the stage that tests/desktop/run sets"]
async fn a_card_that_is_lost_is_named_comes_back_or_gives_way_to_the_cpu() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = fleet(dir.path());
    let code = join_code(dir.path(), &fleet);
    let mut session = Session::usual().await;
    let card = Card::insert(&mut session, "broken");
    let page = Page::open(&mut session, &["--allow-software", "--open", &code]).await;

    // The driver crashes in a process of its own; the app goes on, and says so.
    page.until_text("devices", |text| text.contains("expected the graphics drivers to show their GPUs")).await;
    page.click("accept").await;
    until("Contribute", async || page.can("contribute").await.then_some(())).await;
    card.turn("there");
    // Whoever switches a device looks at all of them.
    page.click("device-cpu").await;
    let gpu = switch(&page, "llvmpipe").await;
    page.until_text(&format!("{gpu}-use"), |text| text.contains("computes")).await;
    page.click("device-cpu").await;
    page.click("contribute").await;
    page.until_data("slice", "kind", "held").await;
    generate(&fleet, 4).await;

    lose(&card, &page, &fleet).await;
    page.until_state("offline").await;
    page.until_text("why", |text| text.contains("llvmpipe") && text.contains("does not answer any more")).await;
    page.until_text(&format!("{gpu}-use"), |text| text.contains("lost")).await;
    card.turn("there");
    page.until_data("slice", "kind", "held").await;
    page.until_data("body", "state", "working").await;

    lose(&card, &page, &fleet).await;
    page.click(&gpu).await;
    page.until_data("slice", "kind", "held").await;
    page.until_text("devices", |text| text.contains("computes") && !text.contains("llvmpipe")).await;
    page.press("quit").await;
    assert_eq!(session.end().await, 0);
}
