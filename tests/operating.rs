//! What operators are given says what the program does: commands parse, metrics exist, all of them are documented.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser;
use kvasir::cli::Cli;
use serde_json::Value;

const README: &str = include_str!("../README.md");
const OPERATING: &str = include_str!("../src-tauri/docs/operating.md");
const ALERTS: &str = include_str!("../src-tauri/operate/alerts.yml");
const DASHBOARD: &str = include_str!("../src-tauri/operate/grafana.json");
/// Stands for every key that a reader must fill in.
const KEY: &str = "HAgk14JpMQLgt6rVgv7cBQFJWFto5Dqxi472uT3DKpqk";

/// Names of metrics in a text.
fn metrics(text: &str) -> BTreeSet<&str> {
    let of_a_name = |c: char| c.is_ascii_lowercase() || c == '_';
    let names = text.match_indices("kvasir_").map(|(at, _)| {
        let rest = &text[at..];
        &rest[..rest.find(|c| !of_a_name(c)).unwrap_or(rest.len())]
    });
    names.collect()
}

/// What the code's pages of metrics are made of.
fn in_the_code() -> BTreeSet<String> {
    fn walk(dir: &Path, out: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() { walk(&path, out) } else { out.push(path) }
        }
    }
    let mut files = Vec::new();
    walk(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    let texts = files.iter().filter(|path| path.extension().is_some_and(|e| e == "rs")).map(fs::read_to_string);
    let all: String = texts.map(|text| text.expect("UTF-8")).collect();
    let quoted = all.split("\"kvasir_").skip(1).filter_map(|rest| rest.split(['"', '{']).next().map(str::to_owned));
    quoted
        .filter(|name| name.bytes().all(|c| c.is_ascii_lowercase() || c == b'_'))
        .map(|name| format!("kvasir_{name}"))
        .collect()
}

#[test]
fn every_metric_that_is_watched_exists_and_every_one_that_exists_is_documented() {
    let known = in_the_code();
    assert!(known.len() > 40, "{known:?}");
    for (text, whose) in [(ALERTS, "alerts.yml"), (DASHBOARD, "grafana.json"), (OPERATING, "operating.md")] {
        let unknown: Vec<_> = metrics(text).into_iter().filter(|name| !known.contains(*name)).collect();
        assert!(unknown.is_empty(), "{whose} names metrics that nothing writes: {unknown:?}");
    }
    let silent: Vec<_> = known.iter().filter(|name| !README.contains(&format!("`{name}`"))).collect();
    assert!(silent.is_empty(), "README says nothing of {silent:?}");
    let watched = metrics(ALERTS).union(&metrics(DASHBOARD)).count();
    assert!(watched * 3 > known.len() * 2, "{watched} of {} metrics are watched", known.len());
}

#[test]
fn the_dashboard_is_one_that_grafana_takes() {
    let board: Value = serde_json::from_str(DASHBOARD).expect("JSON");
    let panels = board["panels"].as_array().expect("panels");
    let mut ids = BTreeSet::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().expect("a number")), "two panels with id {}", panel["id"]);
        let place = |side: &str| panel["gridPos"][side].as_u64().expect("a place");
        assert!(place("x") + place("w") <= 24, "{}", panel["title"]);
        if panel["type"] != "row" {
            for target in panel["targets"].as_array().expect("targets") {
                assert!(target["expr"].as_str().is_some_and(|expr| expr.contains("kvasir_")), "{}", panel["title"]);
            }
        }
    }
}

#[test]
fn every_alert_says_what_happened_and_what_to_do() {
    let rules: Vec<&str> = ALERTS.split("- alert: ").skip(1).collect();
    assert!(rules.len() >= 10);
    for rule in rules {
        let name = rule.lines().next().unwrap();
        for part in ["expr: ", "severity: ", "summary: ", "action: "] {
            assert!(rule.contains(part), "{name} lacks {part}");
        }
        let open = rule.matches('(').count();
        assert_eq!(open, rule.matches(')').count(), "{name}");
    }
}

/// Commands of the program in a text's shell blocks, lines that go on joined.
fn commands(text: &str) -> Vec<Vec<String>> {
    let blocks =
        text.split("```sh\n").skip(1).map(|rest| rest.split("```").next().expect("its end").replace("\\\n", " "));
    let lines: Vec<String> = blocks.flat_map(|block| block.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
    let ours =
        lines.iter().map(|line| line.split(" #").next().expect("a line")).filter(|line| line.starts_with("kvasir "));
    ours.map(|line| {
        let mut words = Vec::new();
        let mut quoted = false;
        for word in line.split_whitespace() {
            let piece = word.trim_matches(['\'', '"']);
            match words.last_mut() {
                Some(last) if quoted => *last = format!("{last} {piece}"),
                _ => words.push(piece.to_owned()),
            }
            quoted ^= word.matches(['\'', '"']).count() % 2 == 1;
        }
        let fill = |word: String| if is_to_be_filled_in(&word) { KEY.to_owned() } else { word };
        words.into_iter().map(fill).collect()
    })
    .collect()
}

fn is_to_be_filled_in(word: &str) -> bool {
    word.ends_with("_KEY") || matches!(word, "WALLET" | "ADDRESS")
}

#[test]
fn every_command_that_operators_are_told_is_understood() {
    let (readme, operating) = (commands(README), commands(OPERATING));
    assert!(readme.len() > 20 && operating.len() > 8, "{} and {}", readme.len(), operating.len());
    for command in readme.into_iter().chain(operating) {
        if let Err(error) = Cli::try_parse_from(&command) {
            panic!("{command:?}: {error}");
        }
    }
}

#[test]
fn the_container_copies_all_that_the_build_reads() {
    let file = include_str!("../src-tauri/operate/Containerfile");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let copied: Vec<&str> =
        file.lines().filter_map(|line| line.strip_prefix("COPY ")).filter(|rest| !rest.starts_with("--")).collect();
    for line in &copied {
        let words: Vec<&str> = line.split(' ').collect();
        for source in &words[..words.len() - 1] {
            assert!(root.join(source).exists(), "{source} is not there");
        }
    }
    for needed in ["Cargo.toml", "Cargo.lock", "shaders", "src-tauri"] {
        assert!(copied.iter().any(|line| line.split(' ').any(|word| word == needed)), "{needed} is not copied");
    }
    let version = include_str!("../Cargo.toml").split_once("rust-version = \"").unwrap().1.split('"').next().unwrap();
    assert!(file.contains(&format!("FROM rust:{version}-")), "expected rust {version}");
}
