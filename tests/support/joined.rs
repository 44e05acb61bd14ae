//! Headless workers as real processes that join a [`Fleet`].

use std::path::Path;

use super::fleet::Fleet;
use super::process::Process;

/// What a worker is told that joins by `gateway` (a `wss://` address) and keeps its state in `state`.
pub fn worker_args<'a>(fleet: &'a Fleet, gateway: &'a str, state: &'a str) -> Vec<&'a str> {
    let args = [
        ["--headless", "worker"],
        ["--gateway", gateway],
        ["--ca", "kvasir-state/gateway/trial-ca.pem"],
        ["--operator", &fleet.operator],
        ["--state", state],
        ["--device", "cpu"],
    ];
    args.concat()
}

/// Starts a worker that keeps its state in `state`; it and its wallet, once it has shown that.
pub fn worker(fleet: &Fleet, dir: &Path, state: &str) -> (Process, String) {
    let gateway = format!("wss://{}", fleet.public);
    let mut worker = Process::start(dir, &worker_args(fleet, &gateway, state));
    let wallet = worker.after("wallet ");
    (worker, wallet)
}
