//! What needs an adapter: skipped without one, unless `KVASIR_REQUIRE_GPU=1`.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use super::adapters::{Found, detect, survey};
use super::device::Device;
use super::scratch::Scratch;
use super::{GpuOptions, report};

/// An adapter for a test, software ones too; `None` = skip the test, whose reason is printed.
pub(super) fn adapter_for_tests() -> Option<Found> {
    let options = GpuOptions { allow_software: true, ..GpuOptions::default() };
    match detect(&options, Duration::ZERO) {
        Ok(found) => Some(found),
        Err(error) => {
            assert!(std::env::var_os("KVASIR_REQUIRE_GPU").is_none_or(|v| v != "1"), "a GPU is required: {error}");
            eprintln!("skipped: {error}");
            None
        }
    }
}

/// The same, opened for single launches.
pub(super) fn scratch_for_tests() -> Option<(Scratch, Found)> {
    let found = adapter_for_tests()?;
    let device = Device::open(&found.adapter, true).expect("a device");
    Some((Scratch::new(Arc::new(device)), found))
}

#[test]
fn an_adapter_is_found_by_its_identity_and_tells_its_memory() {
    let Some(found) = adapter_for_tests() else { return };
    let options =
        GpuOptions { adapter: Some(found.identity.to_string()), allow_software: true, ..GpuOptions::default() };
    let again = detect(&options, Duration::ZERO).expect("the same adapter");
    assert_eq!(again.identity, found.identity);
    let offer = found.budget.offer_bytes(None);
    assert!(offer > 0 && offer <= found.budget.heap_bytes.unwrap_or(u64::MAX), "{:?}", found.budget);
}

#[test]
fn an_adapter_that_is_not_there_is_asked_for_in_vain_and_the_error_names_those_that_are() {
    let Some(found) = adapter_for_tests() else { return };
    let options = GpuOptions { adapter: Some("voodoo".into()), allow_software: true, ..GpuOptions::default() };
    let error = detect(&options, Duration::ZERO).expect_err("nobody has one").to_string();
    assert!(error.contains("\"voodoo\"") && error.contains(&found.info.name), "{error}");
}

/// The child of the test below: a look round with whatever drivers the environment leaves.
#[test]
#[ignore = "run by a_machine_without_drivers_is_told_so in an environment of its own"]
fn look_round() {
    let found = survey(&GpuOptions::default());
    assert!(found.usable.is_empty() && found.passed_over.is_empty());
    println!("{}", found.no_adapter(&GpuOptions::default()));
    println!("{}", serde_json::to_string(&report(&GpuOptions::default())).expect("JSON"));
}

#[test]
#[cfg(target_os = "linux")]
fn a_machine_without_drivers_is_told_so() {
    let output = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "kernel::gpu::tests::look_round", "--include-ignored", "--nocapture"])
        .env("VK_ICD_FILENAMES", "/nonexistent.json")
        .env("VK_DRIVER_FILES", "/nonexistent.json")
        .output()
        .expect("a child");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("expected a GPU, got none: "), "{text}");
    assert!(text.contains(r#"{"adapters":[],"why":"expected a GPU"#), "{text}");
}
