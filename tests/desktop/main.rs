//! The desktop app as its users meet it: the real program on a bare X server, with session buses of the tests' own.
//! `tests/desktop/run` sets the stage and runs them.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where it stopped")]

mod cards;
#[path = "../support/fleet.rs"]
mod fleet;
mod habits;
mod keeping;
mod looks;
mod menu;
mod page;
#[path = "../support/process.rs"]
mod process;
mod screen;
mod session;
#[path = "../support/site.rs"]
mod site;
mod states;
mod stories;
mod troubles;
mod updates;

use std::path::Path;
use std::time::{Duration, Instant};

use fleet::Fleet;

/// Longest wait for anything; generous, since machines are busy.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A client for plain HTTP on loopback.
pub fn http() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().unwrap()
}

/// Waits until `look` gives something.
pub async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The fleet's join code, as its operator prints it.
pub fn join_code(dir: &Path, fleet: &Fleet) -> String {
    let gateway = format!("wss://{}", fleet.public);
    let ca = "kvasir-state/gateway/trial-ca.pem";
    let args = ["hub", "invite", "--gateway", &gateway, "--ca", ca, "--file", "invitation.txt"];
    let (code, invitation, why) = process::ended(dir, &args);
    assert_eq!(code, Some(0), "{why}");
    invitation
}
