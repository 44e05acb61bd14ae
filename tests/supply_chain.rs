//! What `cargo deny check licenses bans sources` would say, from `cargo metadata` and the rules in `.deny.toml`: the tool
//! itself takes minutes to build. Advisories need a database from the network: `cargo deny check advisories`.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Whether a licence expression can be met with the allowed licences: `OR`, `AND`, `WITH`, brackets, and `/` for `OR`.
struct Expression<'a> {
    words: std::iter::Peekable<std::vec::IntoIter<String>>,
    allowed: &'a BTreeSet<String>,
}

impl<'a> Expression<'a> {
    fn holds(text: &str, allowed: &'a BTreeSet<String>) -> bool {
        let spaced = text.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
        let words: Vec<String> = spaced.split_whitespace().map(str::to_owned).collect();
        let mut expression = Self { words: words.into_iter().peekable(), allowed };
        let holds = expression.any();
        assert!(expression.words.next().is_none(), "a licence expression that is not understood: {text}");
        holds
    }

    fn any(&mut self) -> bool {
        let mut holds = self.all();
        while self.words.next_if(|word| word == "OR").is_some() {
            holds |= self.all();
        }
        holds
    }

    fn all(&mut self) -> bool {
        let mut holds = self.one();
        while self.words.next_if(|word| word == "AND").is_some() {
            holds &= self.one();
        }
        holds
    }

    fn one(&mut self) -> bool {
        let mut name = self.words.next().expect("a licence");
        if name == "(" {
            let holds = self.any();
            assert_eq!(self.words.next().as_deref(), Some(")"));
            return holds;
        }
        if self.words.next_if(|word| word == "WITH").is_some() {
            name = format!("{name} WITH {}", self.words.next().expect("an exception"));
        }
        self.allowed.contains(&name)
    }
}

fn texts(value: &toml::Value) -> BTreeSet<String> {
    let text =
        |value: &toml::Value| value.as_str().or_else(|| value.get("crate")?.as_str()).expect("a text").to_owned();
    value.as_array().expect("a list").iter().map(text).collect()
}

#[test]
fn every_crate_has_an_allowed_licence_comes_from_the_registry_and_none_is_banned() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace root");
    let rules: toml::Table = std::fs::read_to_string(root.join(".deny.toml")).expect("rules").parse().expect("TOML");
    let allowed = texts(&rules["licenses"]["allow"]);
    let banned = texts(&rules["bans"]["deny"]);
    assert_eq!(rules["sources"]["unknown-registry"].as_str(), Some("deny"));

    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let arguments = ["metadata", "--locked", "--all-features", "--format-version", "1"];
    let output = Command::new(cargo).args(arguments).current_dir(root).output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    assert!(packages.len() > 100, "{} packages", packages.len());
    let mut wrong = Vec::new();
    for package in packages {
        let (name, version) = (package["name"].as_str().expect("a name"), &package["version"]);
        let licence = package["license"].as_str().unwrap_or_default();
        if licence.is_empty() || !Expression::holds(licence, &allowed) {
            wrong.push(format!("{name} {version}: licence {licence:?}"));
        }
        let source = package["source"].as_str();
        let is_ours = source.is_none() && name == "kvasir";
        if !is_ours && source != Some("registry+https://github.com/rust-lang/crates.io-index") {
            wrong.push(format!("{name} {version}: from {source:?}"));
        }
        if banned.contains(name) {
            wrong.push(format!("{name} {version}: banned"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn licence_expressions_are_read_as_they_are_meant() {
    let allowed = ["MIT", "Zlib", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned).into();
    for (text, holds) in [
        ("MIT", true),
        ("MIT/GPL-3.0", true),
        ("GPL-3.0 OR MIT AND Zlib", true),
        ("(GPL-3.0 OR MIT) AND Zlib", true),
        ("GPL-3.0 AND MIT", false),
        ("Apache-2.0", false),
        ("Apache-2.0 WITH LLVM-exception OR GPL-3.0", true),
    ] {
        assert_eq!(Expression::holds(text, &allowed), holds, "{text}");
    }
}
