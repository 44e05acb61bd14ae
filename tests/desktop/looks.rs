//! What each state of the window looks like: what can be read, in light and dark, narrow and wide, in every language.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::page::Page;
use crate::session::Session;
use crate::states::{Shown, all};

/// The narrowest window that must do, and the one that opens.
const WIDTHS: [i64; 2] = [320, 460];
const HEIGHT: i64 = 900;
const LANGUAGES: [&str; 5] = ["en", "es", "fr", "ja", "ko"];
const AUDIT: &str = include_str!("audit.js");

fn catalogue(language: &str) -> BTreeMap<String, String> {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../ui/src/messages/{language}.json"));
    serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

/// Sentences that the state lacks, and whatever the audit found.
async fn faults(page: &Page, shown: &Shown, language: &str) -> Vec<String> {
    let read = page.run("arguments[arguments.length - 1](document.body.innerText)", json!([])).await;
    let (read, words) = (read.as_str().unwrap_or_default().to_owned(), catalogue(language));
    let sentences = shown.says.iter().map(|key| words[*key].clone());
    let others = shown.reads.iter().filter(|_| language == "en").map(|text| (*text).to_owned());
    let missing = sentences.chain(others).filter(|text| !read.contains(text.as_str()));
    let mut faults: Vec<String> = missing.map(|text| format!("does not say {text:?}")).collect();
    let audited = page.run(AUDIT, json!([])).await;
    let Value::Array(found) = audited else { panic!("no audit: {audited}") };
    faults.extend(found.iter().map(|fault| fault.as_str().unwrap_or_default().to_owned()));
    faults
}

async fn every_state_is_fine(theme: &str) {
    let mut session = Session::usual_in(theme).await;
    let page = Page::open(&mut session, &[]).await;
    let mut wrong = Vec::new();
    for width in WIDTHS {
        page.resize(width, HEIGHT).await;
        for language in LANGUAGES {
            // Colours are the same in all languages, and wide windows have room for all of them.
            if language != "en" && (theme == "dark" || width != WIDTHS[0]) && language != "ja" {
                continue;
            }
            for shown in all() {
                let mut view = serde_json::to_value(&shown.view).unwrap();
                view["language"] = language.into();
                page.feed(shown.route, &view).await;
                let name = format!("{}-{theme}-{width}-{language}", shown.name);
                page.shot(&name).await;
                wrong.extend(faults(&page, &shown, language).await.into_iter().map(|fault| format!("{name}: {fault}")));
            }
        }
    }
    assert!(wrong.is_empty(), "{} faults:\n{}", wrong.len(), wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the stage that tests/desktop/run sets"]
async fn every_state_says_what_it_must_and_fits_and_can_be_read_in_the_light() {
    every_state_is_fine("light").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the stage that tests/desktop/run sets"]
async fn every_state_says_what_it_must_and_fits_and_can_be_read_in_the_dark() {
    every_state_is_fine("dark").await;
}
