//! The four roles as four processes, exactly as README runs them.

use serde_json::Value;

use crate::support::completion::{local_text, stream};
use crate::support::fleet::{client, fleet};
use crate::support::joined::worker;
#[cfg(target_os = "linux")]
use crate::support::joined::worker_args;
use crate::support::process::{Process, ended};

const TOKENS: usize = 120;

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_in_the_middle_of_a_completion_changes_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let expected = local_text(dir.path(), TOKENS);
    let fleet = fleet(dir.path());
    let (mut victim, _) = worker(&fleet, dir.path(), "worker-a");
    let (mut survivor, wallet) = worker(&fleet, dir.path(), "worker-b");
    victim.after("serving ");
    survivor.after("serving ");
    let client = client(&dir.path().join("kvasir-state/gateway/trial-ca.pem"));
    assert_eq!(fleet.sessions().await, 2);

    let text = stream(&client, &fleet.api, TOKENS, |events| {
        if events == TOKENS / 3 {
            victim.kill();
        }
    })
    .await;
    assert_eq!(text, expected);

    // The survivor is paid for what it served, once; the poll may still be under way.
    let url = format!("https://{}/v1/wallets/{wallet}", fleet.public);
    let start = std::time::Instant::now();
    let statement = loop {
        let answer = client.get(&url).send().await.expect("an answer").text().await.expect("a body");
        let statement: Value = serde_json::from_str(&answer).expect("JSON");
        if statement["work_bytes"].as_u64() > Some(0) {
            break statement;
        }
        assert!(start.elapsed().as_secs() < 30, "no credit: {statement}");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    };
    let bytes = statement["work_bytes"].as_u64().expect("a number");
    assert_eq!(statement["pending_nano_kvr"].as_u64(), Some(bytes * 7));

    for process in [survivor, fleet.gateway, fleet.hub, fleet.backbone] {
        let status = process.terminate();
        assert_eq!(status.code(), Some(0), "a role that drains exits 0");
    }
}

#[test]
fn one_code_is_all_that_a_worker_needs() {
    let dir = tempfile::tempdir().expect("a directory");
    let refused = |args: &[&str]| ended(dir.path(), &[&["--headless", "worker", "--state", "w"], args].concat());
    let (code, _, why) = refused(&[]);
    assert_eq!(code, Some(2));
    assert!(why.contains("worker needs --join"), "{why}");

    let fleet = fleet(dir.path());
    let gateway = format!("wss://{}", fleet.public);
    let ca = "kvasir-state/gateway/trial-ca.pem";
    let invite = ["hub", "invite", "--gateway", &gateway, "--ca", ca, "--file", "invitation"];
    let (code, invitation, why) = ended(dir.path(), &invite);
    assert_eq!(code, Some(0), "{why}");
    assert!(invitation.starts_with("kvasir://join#") && !invitation.contains('\n'), "{invitation}");

    let (code, _, why) =
        refused(&["--join", "invitation", "--operator", "HAgk14JpMQLgt6rVgv7cBQFJWFto5Dqxi472uT3DKpqk"]);
    assert_eq!(code, Some(1));
    assert!(why.contains(&fleet.operator), "the operator who invites is named: {why}");
    let (_, _, why) = refused(&["--join", &invitation[..invitation.len() - 8]]);
    assert!(why.contains("join code"), "{why}");

    let args = ["--headless", "worker", "--state", "w", "--join", "invitation"];
    let mut worker = Process::start(dir.path(), &args);
    worker.after("serving ");
    assert_eq!(worker.terminate().code(), Some(0));
    // The network is remembered.
    let mut worker = Process::start(dir.path(), &args[..4]);
    worker.after("serving ");
    for process in [worker, fleet.gateway, fleet.hub, fleet.backbone] {
        assert_eq!(process.terminate().code(), Some(0));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_worker_stands_by_while_a_program_of_its_owner_runs() {
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    let dir = tempfile::tempdir().expect("a directory");
    let fleet = fleet(dir.path());
    let mut game = Command::new("sh");
    game.arg0("kvasir-game").args(["-c", "read line"]).stdin(Stdio::piped());
    let mut game = game.spawn().expect("a program that runs");
    let gateway = format!("wss://{}", fleet.public);
    let wishes = ["--pause-for-app", "kvasir-game", "--duty-percent", "50"];
    let mut worker = Process::start(dir.path(), &[&worker_args(&fleet, &gateway, "w")[..], &wishes].concat());
    assert_eq!(worker.after("standing by: "), "kvasir-game runs");
    let examined = ended(dir.path(), &[&["doctor", "--state", "w"], &wishes[..]].concat()).1;
    assert!(examined.contains("stands by: kvasir-game runs") && examined.contains("50 % of the time"), "{examined}");
    drop(game.stdin.take());
    game.wait().expect("it ends");
    worker.after("serving ");
    assert_eq!(worker.terminate().code(), Some(0));

    // One that never works ends when it is told to, and has dialled nobody.
    let never = [&worker_args(&fleet, "wss://127.0.0.1:9", "v")[..], &["--duty-percent", "0"]].concat();
    let mut never = Process::start(dir.path(), &never);
    assert_eq!(never.after("standing by: "), "its duty cycle is 0 %");
    for process in [never, fleet.gateway, fleet.hub, fleet.backbone] {
        assert_eq!(process.terminate().code(), Some(0));
    }
}

#[test]
fn who_has_no_operator_key_invites_nobody() {
    let dir = tempfile::tempdir().expect("a directory");
    let (code, out, why) = ended(dir.path(), &["hub", "invite", "--gateway", "wss://gateway.example"]);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(why.contains("operator.key") && why.contains("first starts"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_sigterm_does_not_wait_for_the_drain() {
    let dir = tempfile::tempdir().expect("a directory");
    let args = ["--headless", "gateway", "--listen", "127.0.0.1:0", "--hub", "127.0.0.1:1", "--tls-trial"];
    let mut gateway = Process::start(dir.path(), &args);
    let port: u16 = gateway.after("listening on https://").rsplit_once(':').expect("a port").1.parse().expect("a port");
    // Somebody who says nothing is waited for; who asks after them shows that they were let in.
    let _silent = std::net::TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    let client = client(&dir.path().join("kvasir-state/gateway/trial-ca.pem"));
    client.get(format!("https://localhost:{port}/healthz")).send().await.expect("an answer");
    let start = std::time::Instant::now();
    let status = gateway.terminate_twice();
    assert_eq!(status.code(), Some(1), "a drain that was cut short is no success");
    assert!(start.elapsed().as_secs() < 8, "it waited {:?}", start.elapsed());
}

#[test]
fn a_restarted_gateway_keeps_its_trial_authority() {
    let dir = tempfile::tempdir().expect("a directory");
    let authority = || {
        let args = ["--headless", "gateway", "--listen", "127.0.0.1:0", "--hub", "127.0.0.1:9", "--tls-trial"];
        let mut gateway = Process::start(dir.path(), &args);
        gateway.after("listening on ");
        assert_eq!(gateway.terminate().code(), Some(0));
        std::fs::read(dir.path().join("kvasir-state/gateway/trial-ca.pem")).expect("the authority's file")
    };
    assert_eq!(authority(), authority());
}

#[test]
fn a_worker_that_wants_a_gpu_looks_for_it_on_no_other_hardware_and_stops_when_told() {
    let dir = tempfile::tempdir().expect("a directory");
    let operator = "HAgk14JpMQLgt6rVgv7cBQFJWFto5Dqxi472uT3DKpqk";
    let args = ["--headless", "worker", "--gateway", "wss://127.0.0.1:9", "--operator", operator, "--state", "worker"];
    let mut worker =
        Process::start(dir.path(), &[&args[..], &["--device", "gpu", "--gpu", "no such adapter"]].concat());
    worker.after("wallet ");
    assert_eq!(worker.terminate().code(), Some(0));

    let mut worker =
        Process::start(dir.path(), &[&args[..], &["--device", "auto", "--gpu", "no such adapter"]].concat());
    assert!(worker.after("device cpu ").contains(" because "));
    worker.after("not connected");
    assert_eq!(worker.terminate().code(), Some(0));
}
