//! How flags, file and defaults come together.

use super::*;
use clap::Parser;

fn flags(args: &[&str]) -> RoleFlags {
    crate::cli::Cli::try_parse_from([&["kvasir"], args].concat()).unwrap().flags
}

fn file(text: &str) -> Result<File, ConfigError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kvasir.toml");
    std::fs::write(&path, text).unwrap();
    File::read(Some(&path))
}

const OPERATOR: &str = "HAgk14JpMQLgt6rVgv7cBQFJWFto5Dqxi472uT3DKpqk";

#[test]
fn a_flag_beats_the_file_and_the_file_beats_the_default() {
    let text = "[hub]\nlisten = \"127.0.0.1:1\"\nbackbone = \"127.0.0.1:2\"\n";
    let hub = Hub::new(&flags(&["--listen", "127.0.0.1:9"]), file(text).unwrap()).unwrap();
    assert_eq!(hub.listen.port(), 9);
    assert_eq!(hub.backbone.port(), 2);
    assert_eq!(hub.public_hosts, [PUBLIC_HOST]);
    assert_eq!(hub.ledger, "sqlite:kvasir-state/hub/ledger.db");
}

#[test]
fn unknown_keys_and_tables_are_refused_by_name() {
    for (text, word) in [("[hub]\nlissten = 1", "lissten"), ("[hubb]\n", "hubb"), ("[worker]\ndevice = \"tpu\"", "tpu")]
    {
        let error = file(text).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn what_a_role_cannot_do_without_is_named() {
    let missing = |r: Result<(), ConfigError>| r.unwrap_err().to_string();
    let worker = |args: &[&str]| Worker::new(&flags(args), File::default()).map(drop);
    assert!(missing(worker(&[])).contains("--gateway"));
    assert!(missing(worker(&["--gateway", "wss://localhost"])).contains("--operator"));
    assert!(missing(Gateway::new(&flags(&[]), File::default()).map(drop)).contains("--tls-cert"));
    assert!(missing(Hub::new(&flags(&["--peer", OPERATOR]), File::default()).map(drop)).contains("--peer-key"));
    let full = ["--gateway", "wss://localhost", "--operator", OPERATOR, "--memory", "3GiB"];
    assert_eq!(Worker::new(&flags(&full), File::default()).unwrap().memory_bytes, 3 << 30);
}

#[test]
fn sizes_read_as_people_write_them() {
    let size = |t| parse_bytes("--memory", t).ok();
    assert_eq!(size("4GiB"), Some(4 << 30));
    assert_eq!(size("4g"), Some(4 << 30));
    assert_eq!(size("500MB"), Some(500_000_000));
    assert_eq!(size("12"), Some(12));
    for wrong in ["", "GiB", "4XB", "-1", "99999999999T"] {
        assert_eq!(size(wrong), None, "{wrong:?}");
    }
}
