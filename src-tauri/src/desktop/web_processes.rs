//! Gives back what the web view leaves behind: WebKit keeps a process for the network, which a page that loads from the
//! program alone never needs, long after its last window was closed.
//!
//! WebKit starts such a process again for the next window, as it does when one crashes.

use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tauri::{AppHandle, Manager};

/// Name of the process, as far as the system keeps names.
const NETWORK: &str = "WebKitNetworkPr";
/// The page's own process ends within this time after its window; it would miss the other one.
const LATER: Duration = Duration::from_secs(1);

/// Ends the process unless a window was opened again meanwhile.
pub(super) async fn end(app: AppHandle) {
    tokio::time::sleep(LATER).await;
    if !app.webview_windows().is_empty() {
        return;
    }
    end_now();
}

/// Ends the process at once.
pub(super) fn end_now() {
    for pid in children().filter(|pid| name_of(*pid).is_some_and(|name| name == NETWORK)) {
        if let Err(error) = kill_process(pid, Signal::TERM) {
            tracing::debug!(%error, "WebKit's network process stays");
        }
    }
}

/// Processes that this one started.
fn children() -> impl Iterator<Item = Pid> {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let listed = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let pids: Vec<Pid> = listed
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>())
        .filter_map(Pid::from_raw)
        .collect();
    pids.into_iter()
}

fn name_of(pid: Pid) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero())).ok()?;
    Some(name.trim_end().to_owned())
}
