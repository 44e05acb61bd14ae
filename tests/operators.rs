//! What an operator does to a running hub: who is connected, who leaves, who stays out, and who may come at all.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::Value;

use crate::support::completion::{local_text, stream};
use crate::support::fleet::{client, fleet, fleet_with};
use crate::support::joined::worker;
use crate::support::process::{Process, ended};

const TOKENS: usize = 120;

/// `kvasir hub …`, which must succeed; what it printed.
fn hub(dir: &Path, args: &[&str]) -> String {
    let (code, out, why) = ended(dir, &[&["hub"], args].concat());
    assert_eq!(code, Some(0), "kvasir hub {args:?}: {why}");
    out
}

fn workers(dir: &Path) -> Value {
    serde_json::from_str(&hub(dir, &["workers", "--json"])).expect("one JSON document")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ban_in_the_middle_of_a_completion_changes_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let expected = local_text(dir.path(), TOKENS);
    let fleet = fleet(dir.path());
    let (mut banned, wallet) = worker(&fleet, dir.path(), "worker-a");
    let (mut other, _) = worker(&fleet, dir.path(), "worker-b");
    banned.after("serving ");
    other.after("serving ");
    let view = workers(dir.path());
    assert_eq!(view["sessions"].as_array().map(Vec::len), Some(2), "{view}");
    assert!(view["sessions"].as_array().unwrap().iter().any(|s| s["wallet"] == wallet), "{view}");

    let client = client(&dir.path().join("kvasir-state/gateway/trial-ca.pem"));
    let text = stream(&client, &fleet.api, TOKENS, |events| {
        if events == TOKENS / 3 {
            let said = hub(dir.path(), &["ban", &wallet, "--reason", "does not belong here"]);
            assert!(said.starts_with("1 sessions ended"), "{said}");
        }
    })
    .await;
    assert_eq!(text, expected);
    banned.after("banned");

    let view = workers(dir.path());
    assert_eq!(view["sessions"].as_array().map(Vec::len), Some(1), "{view}");
    let ban = &view["banned"][0];
    assert_eq!((&ban["wallet"], &ban["by"]), (&Value::from(wallet.as_str()), &Value::from("operator")));
    assert_eq!(ban["reason"], "does not belong here");
    assert!(hub(dir.path(), &["workers"]).contains("does not belong here"));

    hub(dir.path(), &["unban", &wallet]);
    drop(banned);
    let (mut back, same) = worker(&fleet, dir.path(), "worker-a");
    assert_eq!(same, wallet);
    back.after("serving ");
    let (code, _, why) = ended(dir.path(), &["hub", "unban", &wallet]);
    assert_eq!(code, Some(1));
    assert!(why.contains("expected a banned wallet"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_drained_finishes_and_stays_away_and_who_is_kicked_comes_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let expected = local_text(dir.path(), TOKENS);
    let fleet = fleet(dir.path());
    let (mut drained, wallet) = worker(&fleet, dir.path(), "worker-a");
    let (mut kicked, other) = worker(&fleet, dir.path(), "worker-b");
    drained.after("serving ");
    kicked.after("serving ");
    let session = |view: &Value, wallet: &str| {
        let sessions = view["sessions"].as_array().expect("a list").clone();
        sessions.iter().find(|s| s["wallet"] == wallet).map(|s| s["session_id"].as_str().unwrap().to_owned())
    };
    let before = session(&workers(dir.path()), &other);

    let client = client(&dir.path().join("kvasir-state/gateway/trial-ca.pem"));
    let text = stream(&client, &fleet.api, TOKENS, |events| match events {
        20 => assert!(hub(dir.path(), &["drain", &wallet, "--for", "5m"]).starts_with("1 sessions")),
        60 => assert!(hub(dir.path(), &["kick", &other]).starts_with("1 sessions")),
        _ => {}
    })
    .await;
    assert_eq!(text, expected);
    drained.after("drained");
    let start = std::time::Instant::now();
    let view = loop {
        let view = workers(dir.path());
        if session(&view, &other).is_some_and(|now| Some(now) != before) {
            break view;
        }
        assert!(start.elapsed().as_secs() < 30, "the kicked worker did not come back: {view}");
    };
    assert_eq!(session(&view, &wallet), None, "{view}");
    assert_eq!(view["banned"].as_array().map(Vec::len), Some(0));
}

#[test]
fn a_worker_that_is_too_old_learns_that_it_has_to_be_updated() {
    let dir = tempfile::tempdir().expect("a directory");
    let fleet = fleet_with(dir.path(), "oldest_worker = \"65535.0.0\"\n", &[]);
    let (mut old, _) = worker(&fleet, dir.path(), "worker-a");
    let said = old.after("not connected: update kvasir/");
    assert!(said.contains("refused: update_required"), "{said}");
    assert_eq!(old.terminate().code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hub_that_its_operator_closes_sends_its_workers_away_and_takes_them_when_it_is_opened() {
    let dir = tempfile::tempdir().expect("a directory");
    let fleet = fleet(dir.path());
    let (mut sent_away, _) = worker(&fleet, dir.path(), "worker-a");
    sent_away.after("serving ");
    assert!(hub(dir.path(), &["drain", "--all", "--for", "1h"]).starts_with("1 sessions"));
    sent_away.after("the hub is going away");
    sent_away.after("HTTP 503");
    assert_eq!(fleet.sessions().await, 0);
    hub(dir.path(), &["resume"]);
    drop(sent_away);
    let (mut back, _) = worker(&fleet, dir.path(), "worker-a");
    back.after("serving ");
    for wrong in [&["drain"][..], &["drain", "--all", "HAgk14JpMQLgt6rVgv7cBQFJWFto5Dqxi472uT3DKpqk"]] {
        let (code, _, why) = ended(dir.path(), &[&["hub"], wrong].concat());
        assert_eq!(code, Some(2), "{why}");
    }
}

#[test]
fn a_hub_that_takes_the_invited_takes_no_one_else() {
    let dir = tempfile::tempdir().expect("a directory");
    let fleet = fleet_with(dir.path(), "admission = \"invite\"\n", &[]);
    let (mut stranger, wallet) = worker(&fleet, dir.path(), "worker-a");
    stranger.after("not_invited");
    drop(stranger);
    let gateway = format!("wss://{}", fleet.public);
    let ca = "kvasir-state/gateway/trial-ca.pem";
    let code = hub(dir.path(), &["invite", "--gateway", &gateway, "--ca", ca]);
    let mut invited = Process::start(dir.path(), &["--headless", "worker", "--state", "worker-a", "--join", &code]);
    invited.after("serving ");
    drop(invited);
    // Known from now on, without any code.
    std::fs::remove_file(dir.path().join("worker-a/network")).expect("the kept code");
    let (mut member, same) = worker(&fleet, dir.path(), "worker-a");
    member.after("serving ");
    assert_eq!(same, wallet);
    let members = std::fs::read_to_string(dir.path().join("kvasir-state/hub/members")).expect("the list of members");
    assert_eq!(members.trim(), wallet);
}

#[test]
fn a_hub_with_a_list_takes_the_wallets_on_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let (code, out, why) = ended(dir.path(), &["wallet", "create", "--state", "worker-a"]);
    assert_eq!(code, Some(0), "{why}");
    let listed = out.split_whitespace().last().expect("an address").to_owned();
    let fleet = fleet_with(dir.path(), &format!("admission = \"list\"\nallow = [\"{listed}\"]\n"), &[]);
    let (mut stranger, _) = worker(&fleet, dir.path(), "worker-b");
    stranger.after("not_invited");
    let (mut member, wallet) = worker(&fleet, dir.path(), "worker-a");
    assert_eq!(wallet, listed);
    member.after("serving ");
}

#[test]
fn the_admin_socket_is_its_owners_and_answers_nonsense_with_a_refusal() {
    let dir = tempfile::tempdir().expect("a directory");
    let (code, _, why) = ended(dir.path(), &["hub", "workers"]);
    assert_eq!(code, Some(1));
    assert!(why.contains("no hub answers") && why.contains("--state"), "{why}");

    let fleet = fleet(dir.path());
    let path = dir.path().join("kvasir-state/hub/admin.sock");
    assert_eq!(std::fs::metadata(&path).expect("a socket").permissions().mode() & 0o777, 0o600);
    for nonsense in [b"\n".to_vec(), b"{\"do\":\"stop\"}\n".to_vec(), vec![b'x'; 4096], b"\xff\xfe\n".to_vec()] {
        let mut socket = UnixStream::connect(&path).expect("a connection");
        socket.write_all(&nonsense).expect("it reads");
        socket.shutdown(std::net::Shutdown::Write).expect("half closed");
        let mut answer = String::new();
        // What is no UTF-8 is not even answered.
        socket.read_to_string(&mut answer).expect("it ends");
        assert!(answer.is_empty() || answer.contains("\"refused\""), "{answer}");
    }
    let (code, _, why) = ended(dir.path(), &["hub", "drain", &fleet.operator, "--for", "3d"]);
    assert_eq!(code, Some(1));
    assert!(why.contains("expected at most 86400 seconds"), "{why}");

    let second = ["--headless", "hub", "--listen", "127.0.0.1:0", "--backbone", "127.0.0.1:9"];
    let (code, _, why) = ended(dir.path(), &second);
    assert_eq!(code, Some(1));
    assert!(why.contains("another hub runs in this state directory"), "{why}");
    assert_eq!(fleet.hub.terminate().code(), Some(0));
    assert!(!path.exists(), "the socket goes with its hub");
}
