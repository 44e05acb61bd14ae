//! What `kvasir doctor` says, whole, in every trouble that it must tell apart: snapshots in `data/doctor`, written anew with
//! `KVASIR_WRITE_SNAPSHOTS=1`. The troubles are real: processes, sockets, namespaces, a disk that is full.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvasir::clock::{Clock, SystemClock};
use kvasir::doctor::{Options, Verdict, examine};
use kvasir::net::dial::Outbound;
use serde_json::Value;

use crate::support::data;
use crate::support::fleet::{Fleet, fleet};
use crate::support::process::{ended, kvasir};

/// A verdict must be there by then.
const VERDICT: Duration = Duration::from_secs(10);
/// Nobody's driver: the machine shows no GPU.
const NO_DRIVER: [(&str, &str); 2] = [("VK_DRIVER_FILES", "/nowhere"), ("VK_ICD_FILENAMES", "/nowhere")];
/// The number that says something; all others but TLS's version differ from run to run.
const TELLING: &str = "127.0.0.1";

/// The snapshot that shows what to do for a machine without a GPU.
const NO_GPU: &str = "no_gpu";

/// What an examination printed.
struct Said {
    code: Option<i32>,
    text: String,
}

fn examined(mut command: Command) -> Said {
    let start = Instant::now();
    let output = command.output().expect("it runs");
    assert!(start.elapsed() < VERDICT, "a verdict after {:?}", start.elapsed());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    eprintln!("{} ms", start.elapsed().as_millis());
    Said { code: output.status.code(), text: text(&output.stdout) }
}

/// The examination by a user without proxies and without a GPU, whose home is `dir`.
fn doctor(dir: &Path, args: &[&str]) -> Command {
    let mut command = kvasir(dir, &[&["doctor"], args].concat());
    for name in ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"] {
        command.env_remove(name);
    }
    command.envs(NO_DRIVER).env("HOME", dir);
    command
}

/// The text without what differs from run to run and from machine to machine.
fn plain(text: &str, dir: &Path) -> String {
    // `localhost` has one address or two.
    let text = text.replace(&dir.display().to_string(), "DIR").replace("::1, 127.0.0.1", TELLING);
    let text = text.replace("127.0.0.1, ::1", TELLING);
    let mut out = String::new();
    for line in text.lines() {
        let mut words = line.split("  ").filter(|word| !word.is_empty()).map(str::trim);
        match (words.next(), words.next()) {
            // It is a trial of its own: see `a_desktop_without_a_keyring`.
            (_, Some("Keyring")) if line.contains("owner-only") || line.contains("answers") => continue,
            (Some("ok"), Some("GPU")) => out.push_str("ok    GPU  NAME, DRIVER, MEMORY\n"),
            (Some("ok"), Some("Wallet")) => out.push_str("ok    Wallet  ADDRESS\n"),
            _ => out.push_str(&(without_numbers(line) + "\n")),
        }
    }
    out
}

fn without_numbers(line: &str) -> String {
    let is_of_a_number = |c: char| c.is_ascii_digit() || c == '.';
    let mut out = String::new();
    for piece in line.split_inclusive(|c| !is_of_a_number(c)) {
        let number = piece.trim_end_matches(|c| !is_of_a_number(c));
        let bare = number.trim_end_matches('.');
        let is_variable = bare.bytes().any(|c| c.is_ascii_digit()) && bare != TELLING && !out.ends_with("TLS ");
        let after_letter = out.ends_with(|c: char| c.is_ascii_alphabetic());
        if is_variable && !after_letter {
            out.push('N');
            out.push_str(&piece[bare.len()..]);
        } else {
            out.push_str(piece);
        }
    }
    out
}

/// What to do about a GPU depends on the machine: the text without it.
fn without_advice(text: &str) -> String {
    let mut is_about_the_gpu = false;
    let mut out = String::new();
    for line in text.lines() {
        match line.split_once('→') {
            Some((before, _)) if is_about_the_gpu => out.push_str(&format!("{before}→ ADVICE\n")),
            _ => out.push_str(&format!("{line}\n")),
        }
        is_about_the_gpu = line.starts_with("warn  GPU");
    }
    out
}

/// Compares with the snapshot, or writes it.
fn matches_snapshot(name: &str, text: &str, dir: &Path) {
    let path: PathBuf = data("doctor").join(format!("{name}.txt"));
    let text = plain(text, dir);
    let text = if name == NO_GPU { text } else { without_advice(&text) };
    if std::env::var_os("KVASIR_WRITE_SNAPSHOTS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        return std::fs::write(&path, text).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    assert_eq!(text, kept, "{}: if it should be so, run with KVASIR_WRITE_SNAPSHOTS=1", path.display());
}

/// A gateway with all that is behind it, and an invitation to it.
fn invited(dir: &Path) -> Fleet {
    let fleet = fleet(dir);
    let gateway = format!("wss://{}", fleet.public);
    let ca = "kvasir-state/gateway/trial-ca.pem";
    let (code, _, why) = ended(dir, &["hub", "invite", "--gateway", &gateway, "--ca", ca, "--file", "invitation"]);
    assert_eq!(code, Some(0), "{why}");
    fleet
}

fn is_possible_in_a_namespace(flags: &str) -> bool {
    let possible = Command::new("unshare").args([flags, "true"]).output().is_ok_and(|output| output.status.success());
    if !possible {
        eprintln!("skipped: a namespace of its own needs root");
    }
    possible
}

/// The same command in namespaces of its own, after some words of shell.
fn within(flags: &str, shell: &str, inner: &Command) -> Command {
    let mut command = Command::new("unshare");
    command.args([flags, "sh", "-c", &format!("{shell}; exec \"$@\"",), "sh"]);
    command.arg(inner.get_program()).args(inner.get_args()).current_dir(inner.get_current_dir().expect("a directory"));
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

/// The machine's time, an hour ahead.
struct Ahead(SystemClock);

impl Clock for Ahead {
    fn mono(&self) -> Duration {
        self.0.mono()
    }

    fn unix_ms(&self) -> u64 {
        self.0.unix_ms() + 3_600_000
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_that_works_and_what_can_be_wrong_at_this_end_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path();
    let fleet = invited(here);
    let join = ["--state", "worker", "--join", "invitation"];

    // Before there is a wallet, on a machine without a GPU.
    let said = examined(doctor(here, &join));
    assert_eq!(said.code, Some(0), "{}", said.text);
    if ["/dev/dri", "/dev/nvidia0", "/dev/dxg"].iter().any(|node| Path::new(node).exists()) {
        println!("this machine has a GPU's device, so the advice is another:\n{}", said.text);
    } else {
        matches_snapshot(NO_GPU, &said.text, here);
    }

    assert_eq!(ended(here, &["wallet", "create", "--state", "worker"]).0, Some(0));
    let mut command = doctor(here, &[&join[..], &["--allow-software"]].concat());
    for (name, _) in NO_DRIVER {
        command.env_remove(name);
    }
    let said = examined(command);
    if said.text.contains("driver") && (!cfg!(feature = "os-keyring") || said.text.contains("keyring answers")) {
        assert_eq!(said.code, Some(0), "{}", said.text);
        matches_snapshot("all_well", &said.text, here);
    } else {
        println!("no GPU or no keyring here, so not all is well:\n{}", said.text);
    }
    let start = Instant::now();
    while fleet.sessions().await > 0 {
        assert!(start.elapsed() < VERDICT, "a session is left behind at the hub");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    // The authority of this network is not told.
    let gateway = format!("wss://{}", fleet.public);
    let said = examined(doctor(here, &["--state", "worker", "--gateway", &gateway, "--operator", &fleet.operator]));
    assert_eq!(said.code, Some(1));
    matches_snapshot("wrong_ca", &said.text, here);

    if is_possible_in_a_namespace("--mount") {
        let full = "mkdir disk && mount -t tmpfs -o size=64k tmpfs disk && cat /dev/zero >disk/all 2>/dev/null";
        let inner = doctor(here, &["--state", "disk", "--join", "invitation"]);
        let said = examined(within("--mount", full, &inner));
        assert_eq!(said.code, Some(1));
        matches_snapshot("disk_full", &said.text, here);
    }

    let options = Options {
        gateways: vec![gateway],
        operators: vec![fleet.operator.parse().unwrap()],
        outbound: Outbound { extra_ca: vec![here.join("kvasir-state/gateway/trial-ca.pem")], ..Outbound::default() },
        clock: Arc::new(Ahead(SystemClock::default())),
        ..Options::new(here.join("worker"))
    };
    let report = examine(options).await;
    assert_eq!(report.verdict, Verdict::Fail);
    let clock = report.checks.iter().find(|check| check.id == "clock").unwrap();
    assert!(clock.found.starts_with("60 minutes ahead"), "{}", clock.found);
    matches_snapshot("clock_an_hour_off", &format!("{} {}\n→ {}", clock.verdict, clock.found, clock.remedy), here);
    assert!(report.checks.iter().all(|check| check.id == "clock" || check.verdict != Verdict::Fail), "{report}");
}

#[test]
fn a_machine_without_a_network() {
    if !is_possible_in_a_namespace("--net") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let said = examined(within("--net", "true", &doctor(dir.path(), &["--gateway", "wss://gateway.example"])));
    assert_eq!(said.code, Some(1));
    matches_snapshot("no_network", &said.text, dir.path());
}

#[test]
fn a_gateway_that_is_down_and_none_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let said = examined(doctor(dir.path(), &["--gateway", &format!("wss://{closed}")]));
    assert_eq!(said.code, Some(1));
    matches_snapshot("gateway_down", &said.text, dir.path());

    let said = examined(doctor(dir.path(), &[]));
    assert_eq!(said.code, Some(1));
    matches_snapshot("no_gateway", &said.text, dir.path());
}

/// Answers one connection after another that a password is wanted.
fn wants_a_password(listener: &TcpListener) {
    let answer = |stream: TcpStream| -> std::io::Result<()> {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        while reader.read_line(&mut line)? > 2 {
            line.clear();
        }
        let said = "HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=\"x\"\r\n\
                    Content-Length: 0\r\nConnection: close\r\n\r\n";
        reader.into_inner().write_all(said.as_bytes())
    };
    for stream in listener.incoming() {
        // A client that went away is no matter of the next one.
        let _ = stream.and_then(answer);
    }
}

#[test]
fn a_proxy_that_wants_another_password_which_no_report_shows() {
    let dir = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = format!("http://ada:s3cret@{}", listener.local_addr().unwrap());
    std::thread::spawn(move || wants_a_password(&listener));
    std::fs::write(dir.path().join("log"), format!("dialled by {proxy} from 192.0.2.7\n")).unwrap();

    let mut command = doctor(dir.path(), &["--gateway", "wss://gateway.example"]);
    let said = examined({
        command.env("HTTPS_PROXY", &proxy);
        command
    });
    assert_eq!(said.code, Some(1));
    assert!(!said.text.contains("s3cret"));
    matches_snapshot("proxy_password", &said.text, dir.path());

    let args = ["--gateway", "wss://gateway.example", "--json", "--report", "report.txt", "--log", "log"];
    let output = doctor(dir.path(), &args).env("HTTPS_PROXY", &proxy).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    assert_eq!(report["verdict"], "fail");
    let proxy = report["checks"].as_array().unwrap().iter().find(|check| check["id"] == "proxy").unwrap();
    assert!(["title", "verdict", "found", "remedy"].iter().all(|key| proxy[key].is_string()), "{proxy}");
    let text = std::fs::read_to_string(dir.path().join("report.txt")).unwrap();
    assert!(text.contains("wants a password") && text.contains("dialled by http://[secret]@127.0.0.1:"), "{text}");
    let home = dir.path().display().to_string();
    for secret in ["s3cret", "192.0.2.7", &home] {
        assert!(!text.contains(secret), "{text}");
    }
}

#[cfg(feature = "os-keyring")]
#[test]
fn a_desktop_without_a_keyring() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = doctor(dir.path(), &[]);
    command.env("DBUS_SESSION_BUS_ADDRESS", "unix:path=/nowhere").env_remove("DISPLAY").env_remove("XDG_RUNTIME_DIR");
    let said = examined(command);
    let keyring: Vec<&str> = said.text.lines().skip_while(|line| !line.contains("Keyring")).take(2).collect();
    let text = keyring.join("\n");
    // What the system's own libraries say of a bus that is not there differs between them.
    let (before, rest) = text.split_once("not available: ").expect("a reason");
    let (_, after) = rest.split_once(". Unlock").expect("its end");
    matches_snapshot("no_keyring", &format!("{before}not available: REASON. Unlock{after}"), dir.path());
}
