//! What packages and their workflow are made of is there: scripts, pins, and YAML that says what it seems to.

use std::path::Path;

const RELEASE: &str = include_str!("../.github/workflows/release.yml");
const CI: &str = include_str!("../.github/workflows/ci.yml");

/// Commands that stand behind `run:` on one line.
fn commands(workflow: &str) -> Vec<&str> {
    workflow.lines().filter_map(|line| line.trim_start().trim_start_matches("- ").strip_prefix("run: ")).collect()
}

#[test]
fn a_workflow_runs_scripts_that_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let all: Vec<_> = commands(RELEASE).into_iter().chain(commands(CI)).collect();
    assert!(all.len() > 8, "{all:?}");
    let words = all.iter().flat_map(|command| command.split([' ', '"']));
    let scripts: Vec<_> = words.filter(|word| word.starts_with("./") || word.starts_with(".ci/")).collect();
    assert!(scripts.len() > 4, "{scripts:?}");
    for script in scripts {
        let file = std::fs::metadata(root.join(script)).unwrap_or_else(|error| panic!("{script}: {error}"));
        #[cfg(unix)]
        assert!(std::os::unix::fs::PermissionsExt::mode(&file.permissions()) & 0o111 != 0, "{script} is no program");
        #[cfg(not(unix))]
        assert!(file.is_file(), "{script} is no program");
    }
}

#[test]
fn a_command_with_a_colon_is_quoted_or_yaml_takes_it_for_a_map() {
    for command in commands(RELEASE).into_iter().chain(commands(CI)) {
        let is_quoted = command.starts_with(['"', '\'', '|', '>']);
        assert!(is_quoted || !(command.contains(": ") || command.ends_with(':')), "{command}");
    }
}

#[test]
fn what_signs_releases_uses_actions_of_known_commits() {
    let uses: Vec<_> = RELEASE.lines().filter_map(|line| line.trim_start().strip_prefix("- uses: ")).collect();
    assert!(uses.len() > 5, "{uses:?}");
    for used in uses {
        let commit = used.split(['@', ' ']).nth(1).unwrap_or_default();
        assert!(commit.len() == 40 && commit.bytes().all(|c| c.is_ascii_hexdigit()), "{used}");
    }
}
