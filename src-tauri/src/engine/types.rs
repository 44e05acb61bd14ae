//! The window's copy of the status types, `ui/src/ipc.ts`, is written by this test.

use std::path::Path;

use ts_rs::{Config, TS};

use super::claim::ClaimRoom;
use super::facts::*;
use super::release::NewRelease;
use super::settings::{Language, Settings};
use super::status::*;
use crate::worker::courtesy::{Hours, Reason};

#[test]
fn the_windows_types_are_written_from_these() {
    let config = Config::default();
    let types = [
        State::decl(&config),
        Problem::decl(&config),
        WalletState::decl(&config),
        Stored::decl(&config),
        Needs::decl(&config),
        WalletStatus::decl(&config),
        DeviceState::decl(&config),
        DeviceKind::decl(&config),
        Device::decl(&config),
        Network::decl(&config),
        Link::decl(&config),
        Leg::decl(&config),
        Legs::decl(&config),
        Slice::decl(&config),
        Download::decl(&config),
        ConfirmDownload::decl(&config),
        PauseKind::decl(&config),
        Pause::decl(&config),
        Reason::decl(&config),
        StandingBy::decl(&config),
        WhyCode::decl(&config),
        Why::decl(&config),
        DayEarned::decl(&config),
        Account::decl(&config),
        ReceiptLine::decl(&config),
        ClaimRoom::decl(&config),
        Hours::decl(&config),
        Language::decl(&config),
        Settings::decl(&config),
        Status::decl(&config),
        Tray::decl(&config),
        NewRelease::decl(&config),
        View::decl(&config),
    ];
    let head = "// Written from src-tauri/src/engine/ by its test; KVASIR_WRITE_TYPES=1 writes it anew.\n";
    let types: String = types.iter().map(|decl| format!("\nexport {decl}\n")).collect();
    // A line for a word of explanation, not three.
    let types = types.replace("\n/**\n * ", "\n/** ").replace("\n */\n", " */ ");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ui/src/ipc.ts");
    let text = format!("{head}{types}");
    if std::env::var_os("KVASIR_WRITE_TYPES").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap(), text, "KVASIR_WRITE_TYPES=1 cargo t writes it anew");
}
