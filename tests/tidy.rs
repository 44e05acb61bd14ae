//! The house rules that matter, as tests: who may import whom, crate walls, file sizes, headers, orphan shaders.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Rooms that everybody may import.
const GROUND: &[&str] = &["types", "clock", "shutdown", "telemetry", "wire", "net", "model"];

/// What a room may import beside the ground and itself. `None` = everything (it composes).
fn allowed(room: &str) -> Option<&'static [&'static str]> {
    match room {
        "backbone" => Some(&["dispatch", "kernel"]),
        "dispatch" => Some(&["kernel"]),
        "hub" | "gateway" => Some(&["ledger"]),
        "worker" => Some(&["kernel", "wallet"]),
        "engine" => Some(&["doctor", "kernel", "wallet", "worker"]),
        "doctor" => Some(&["kernel", "wallet", "worker"]),
        "ledger" => Some(&["wallet"]),
        "config" => Some(&["cli"]),
        "run" | "demo" | "bench" | "desktop" | "main" | "lib" => None,
        _ => Some(&[]),
    }
}

/// A crate and the only places whose code may name it.
const WALLS: &[(&str, &[&str])] = &[
    ("wgpu::", &["kernel/gpu"]),
    ("naga::", &["kernel/gpu"]),
    ("tauri::", &["desktop/"]),
    ("tokio_tungstenite::", &["net/"]),
    ("clap::", &["cli", "main.rs"]),
    ("sqlx::", &["ledger/store"]),
    ("tokenizers::", &["model/"]),
    ("minijinja", &["model/"]),
    ("keyring_core::", &["wallet/"]),
    ("std::arch", &["kernel/cpu"]),
    ("zbus::", &["desktop/", "worker/courtesy"]),
    ("x11rb::", &["worker/courtesy"]),
    ("jiff::", &["worker/courtesy"]),
    ("chacha20poly1305::", &["wallet/"]),
    ("anyhow::", &["run/", "main.rs"]),
];

/// Calls that have a better home.
const BANNED: &[(&str, &[&str], &str)] = &[
    ("SystemTime::now", &["clock.rs"], "take a Clock"),
    ("process::exit", &["main.rs"], "return an error or an ExitCode"),
    ("todo!(", &[], "finish it"),
    ("unimplemented!(", &[], "finish it"),
    ("copy_bidirectional", &[], "a splice needs a half-close reaper and an idle limit"),
];

/// Files over the habit of 400 lines, with the reason why one file is still the better reading.
const LONG_FILES: &[(&str, &str)] = &[];
const LINES_MAX: usize = 400;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace root").to_path_buf()
}

fn files(dir: &Path, ending: &str, out: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries {
        let path = entry.expect("a readable directory").path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "node_modules") {
            files(&path, ending, out);
        } else if path.extension().is_some_and(|e| e == ending) {
            out.push(path);
        }
    }
}

/// Every source file: path below `src`, and its text.
fn sources() -> Vec<(String, String)> {
    let src = repository().join("src-tauri/src");
    let mut paths = Vec::new();
    files(&src, "rs", &mut paths);
    paths.sort();
    let read = |p: PathBuf| {
        let name = p.strip_prefix(&src).expect("below src").to_string_lossy().replace('\\', "/");
        (name, fs::read_to_string(&p).expect("UTF-8 source"))
    };
    paths.into_iter().map(read).collect()
}

/// Unit tests in a file of their own may look around as freely as those below their code.
fn is_unit_test(file: &str) -> bool {
    file.ends_with("/tests.rs") || file.contains("/tests/")
}

/// The code of a file without comments and without its unit tests, which may look around freely.
fn code(text: &str) -> String {
    let end = text.find("#[cfg(test)]\nmod ").unwrap_or(text.len());
    text[..end].lines().map(|l| l.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n")
}

fn room(file: &str) -> &str {
    file.split('/').next().unwrap_or(file).trim_end_matches(".rs")
}

/// Rooms named as `crate::room` in `code`, `use crate::{a, b}` included.
fn imports(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        if code[..at].ends_with('$') {
            continue;
        }
        let rest = &code[at + "crate::".len()..];
        let word = |s: &str| s.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
        if let Some(group) = rest.strip_prefix('{') {
            let (mut depth, mut start, mut names) = (0i32, true, Vec::new());
            for (i, c) in group.char_indices() {
                match c {
                    '}' if depth == 0 => break,
                    '{' => depth += 1,
                    '}' => depth -= 1,
                    ',' if depth == 0 => start = true,
                    c if depth == 0 && start && (c.is_alphabetic() || c == '_') => {
                        names.push(word(&group[i..]));
                        start = false;
                    }
                    _ => {}
                }
            }
            found.extend(names);
        } else {
            found.insert(word(rest));
        }
    }
    found
}

#[test]
fn rooms_import_only_what_the_architecture_allows() {
    let mut wrong = Vec::new();
    for (file, text) in sources().into_iter().filter(|(file, _)| !is_unit_test(file)) {
        let here = room(&file);
        let Some(extra) = allowed(here) else { continue };
        for there in imports(&code(&text)) {
            if there != here && !GROUND.contains(&there.as_str()) && !extra.contains(&there.as_str()) {
                wrong.push(format!("{file} imports crate::{there}"));
            }
        }
    }
    assert!(wrong.is_empty(), "the import rule is broken:\n{}", wrong.join("\n"));
}

#[test]
fn the_ground_imports_only_the_ground() {
    let rank = |room: &str| GROUND.iter().position(|g| *g == room);
    for (file, text) in sources().into_iter().filter(|(file, _)| !is_unit_test(file)) {
        let here = room(&file);
        if rank(here).is_none() {
            continue;
        }
        let above: Vec<String> = imports(&code(&text)).into_iter().filter(|t| t != here && rank(t).is_none()).collect();
        assert!(above.is_empty(), "{file} is ground but imports {above:?}");
    }
}

#[test]
fn crates_stay_behind_their_walls() {
    let mut wrong = Vec::new();
    for (file, text) in sources().into_iter().filter(|(file, _)| !is_unit_test(file)) {
        let code = code(&text);
        for (name, homes) in WALLS {
            if code.contains(name) && !homes.iter().any(|h| file.starts_with(h)) {
                wrong.push(format!("{file} names {name} which belongs to {homes:?}"));
            }
        }
        for (call, homes, instead) in BANNED {
            if code.contains(call) && !homes.iter().any(|h| file.starts_with(h)) {
                wrong.push(format!("{file} uses {call}: {instead}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn files_are_one_room_each() {
    let mut paths = Vec::new();
    for dir in ["src-tauri/src", "src-tauri/benches", "tests", "ui", "shaders"] {
        for ending in ["rs", "ts", "wgsl"] {
            files(&repository().join(dir), ending, &mut paths);
        }
    }
    let mut wrong = Vec::new();
    for path in paths {
        let name = path.strip_prefix(repository()).expect("inside").to_string_lossy().replace('\\', "/");
        let lines = fs::read_to_string(&path).expect("UTF-8 source").lines().count();
        let excused = LONG_FILES.iter().any(|(file, _)| *file == name);
        if lines > LINES_MAX && !excused {
            wrong.push(format!("{name} has {lines} lines, more than {LINES_MAX}: split it or give a reason"));
        }
        if lines <= LINES_MAX && excused {
            wrong.push(format!("{name} has {lines} lines and needs no exception any more"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_file_says_what_it_is_for() {
    for (file, text) in sources() {
        assert!(text.starts_with("//! "), "{file} does not start with a //! line that says what it does");
    }
}

#[test]
fn the_program_starts_in_a_short_main() {
    let main = fs::read_to_string(repository().join("src-tauri/src/main.rs")).expect("main.rs");
    assert!(main.lines().count() <= 40, "main.rs only parses, picks the mode and turns the result into a code");
}

#[test]
fn every_shader_is_used_and_named_after_its_op_and_type() {
    let mut shaders = Vec::new();
    files(&repository().join("shaders"), "wgsl", &mut shaders);
    let all: String = sources().into_iter().map(|(_, text)| text).collect();
    for shader in shaders {
        let name = shader.file_name().expect("a file").to_string_lossy().into_owned();
        assert!(all.contains(&name), "shaders/{name} is read by nobody");
        assert_eq!(name.split('.').count(), 3, "expected <op>.<weight type>.wgsl, got {name}");
    }
}

#[test]
fn the_rules_see_a_planted_offence() {
    assert!(imports("use crate::{backbone::Backbone, types::Hex};").contains("backbone"));
    assert!(imports("let x = crate::gateway::serve();").contains("gateway"));
    assert!(allowed("worker").is_some_and(|extra| !extra.contains(&"ledger")));
    assert!(!code("// sqlx::query\nfn f() {}\n#[cfg(test)]\nmod tests { use sqlx::x; }").contains("sqlx"));
}
