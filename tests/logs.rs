//! What the roles tell at the level `debug`: no secret, no prompt, and never who is at which address.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha512;

use crate::support::fault_proxy::{FaultProxy, Faults};
use crate::support::fleet::client;
use crate::support::process::{Process, ended, kvasir};

/// Where the worker seems to be: an address that nothing else here has.
const HOME: [u8; 4] = [127, 0, 0, 77];
const PROMPT: &str = "Once upon a marzipan time";

fn role(dir: &Path, name: &str, args: &[&str]) -> Process {
    let mut command = kvasir(dir, &[&["--headless", name], args].concat());
    command.env("KVASIR_LOG", "debug").stderr(File::create(dir.join(format!("{name}.log"))).expect("a log"));
    Process::of(command)
}

/// Every file below `dir` that only its owner may read.
fn private_files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path()) {
        let meta = fs::symlink_metadata(&entry).expect("a file");
        if meta.is_dir() {
            private_files(&entry, found);
        } else if meta.is_file() && meta.permissions().mode() & 0o77 == 0 {
            found.push(entry);
        }
    }
}

/// The ways in which a secret line could be written: as it is, and a seed in base58 and as bytes.
fn disguises(line: &str) -> Vec<String> {
    let bytes: Option<Vec<u8>> =
        line.as_bytes().chunks(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok()).collect();
    let seed = bytes.filter(|bytes| bytes.len() == 32 || bytes.len() == 16);
    let also = seed.map(|seed| {
        [bs58::encode(&seed).into_string(), format!("{:?}", &seed[..8]).trim_matches(['[', ']']).to_owned()]
    });
    also.into_iter().flatten().chain([line.to_owned()]).collect()
}

/// What a phrase must not be seen as: any three of its words in a row, its seed, and the key that it gives, by SLIP-0010.
fn phrase_secrets(phrase: &str) -> Vec<String> {
    let words: Vec<&str> = phrase.split(' ').collect();
    assert_eq!(words.len(), 12, "a phrase");
    let hash = |key: &[u8], parts: &[&[u8]]| {
        let mut mac = <Hmac<Sha512> as KeyInit>::new_from_slice(key).expect("any length");
        parts.iter().for_each(|part| mac.update(part));
        mac.finalize().into_bytes()
    };
    // PBKDF2 of BIP39, one block of it.
    let mut round = hash(phrase.as_bytes(), &[b"mnemonic", &[0, 0, 0, 1]]);
    let mut seed = round;
    for _ in 1..2048 {
        round = hash(phrase.as_bytes(), &[&round]);
        seed.iter_mut().zip(&round).for_each(|(sum, byte)| *sum ^= byte);
    }
    let master = hash(b"ed25519 seed", &[&seed]);
    let node = [44u32, 501, 0, 0]
        .iter()
        .fold(master, |node, step| hash(&node[32..], &[&[0], &node[..32], &(step | 1 << 31).to_be_bytes()]));
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let windows = words.windows(3).map(|three| three.join(" "));
    let listed = words.windows(3).map(|three| three.join("\", \""));
    let keys = [hex(&seed[..32]), hex(&node[..32])];
    windows.chain(listed).chain(keys.iter().flat_map(|key| disguises(key))).collect()
}

fn has_address(line: &str) -> bool {
    let is_v4 = |word: &str| word.split('.').count() == 4 && word.split('.').all(|part| part.parse::<u8>().is_ok());
    line.split(|c: char| !c.is_ascii_digit() && c != '.').any(|word| is_v4(word.trim_matches('.')))
}

#[tokio::test(flavor = "multi_thread")]
async fn no_log_tells_a_secret_a_prompt_or_who_is_at_which_address() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    let (code, made, why) = ended(dir, &["keys", "create", "--name", "ada", "--json"]);
    assert_eq!(code, Some(0), "{why}");
    let made: Value = serde_json::from_str(&made).expect("JSON");
    let api_key = made["key"].as_str().expect("a key").to_owned();

    let mut backbone =
        role(dir, "backbone", &["--listen", "127.0.0.1:0", "--api", "127.0.0.1:0", "--audit", "before_use"]);
    let (dispatch, api) = (backbone.after("listening for hubs on "), backbone.after("completions on "));
    let mut hub = role(dir, "hub", &["--listen", "127.0.0.1:0", "--backbone", &dispatch]);
    let (operator, hub_address) = (hub.after("operator key "), hub.after("listening for gateways on "));
    let mut gateway = role(dir, "gateway", &["--listen", "127.0.0.1:0", "--hub", &hub_address, "--tls-trial"]);
    let public = gateway.after("listening on https://").parse().expect("an address");
    let line = FaultProxy::with(public, Faults { source: Some(HOME.into()), ..Faults::default() }).await;
    let url = format!("wss://localhost:{}", line.addr.port());
    let ca = dir.join("kvasir-state/gateway/trial-ca.pem");
    let ca_text = ca.to_str().expect("a path");
    let args = ["--gateway", &url, "--ca", ca_text, "--operator", &operator, "--device", "cpu"];
    let mut worker = role(dir, "worker", &args);
    let wallet = worker.after("wallet ");
    worker.after("serving ");

    // Work, a read of the wallet, a refused key, a head that is none, and a link that breaks.
    let client = client(&ca);
    let ask = async |key: &str| {
        let body = json!({"prompt": PROMPT, "max_tokens": 8}).to_string();
        let url = format!("{api}/v1/completions");
        client.post(url).bearer_auth(key).body(body).send().await.expect("an answer").status().as_u16()
    };
    assert_eq!((ask(&api_key).await, ask("kvk-wrong").await), (200, 401));
    let home = format!("https://localhost:{}", line.addr.port());
    let read = client.get(format!("{home}/v1/wallets/{wallet}")).send().await.expect("an answer");
    assert_eq!(read.status(), 200);
    let upgrade = client.get(format!("{home}/v1/worker")).send().await.expect("an answer");
    assert_eq!(upgrade.status(), 400);
    line.reset();
    worker.after("not connected");
    for process in [worker, gateway, hub, backbone] {
        assert_eq!(process.terminate().code(), Some(0));
    }

    let mut files = Vec::new();
    private_files(&dir.join("kvasir-state"), &mut files);
    let (code, phrase, why) = ended(dir, &["wallet", "phrase"]);
    assert_eq!(code, Some(0), "{why}");
    let mut secrets = vec![api_key, PROMPT.to_owned(), "marzipan".to_owned()];
    secrets.extend(phrase_secrets(phrase.trim()));
    let mut keys = 0;
    for file in files {
        let is_key =
            file.extension().is_some_and(|e| e == "key" || e == "pem") || file.to_string_lossy().contains("wallet");
        // What else only its owner may read is lists and ledgers.
        let Some(text) = is_key.then(|| fs::read_to_string(&file).ok()).flatten() else { continue };
        let lines = text.lines().filter(|line| line.len() >= 32 && !line.starts_with('-') && *line != wallet);
        let before = secrets.len();
        secrets.extend(lines.flat_map(disguises));
        keys += usize::from(secrets.len() > before);
    }
    assert!(keys >= 4, "expected the keys of operator, hub, wallet and certificate, got {keys}");
    let home = std::net::Ipv4Addr::from(HOME).to_string();
    for name in ["backbone", "hub", "gateway", "worker"] {
        let log = fs::read_to_string(dir.join(format!("{name}.log"))).expect("a log");
        for secret in &secrets {
            assert!(!log.contains(secret.as_str()), "{name} tells a secret");
        }
        // A worker's log stays on its owner's machine.
        if name == "worker" {
            continue;
        }
        assert!(log.contains("DEBUG"), "{name} says too little for this test:\n{log}");
        assert!(!log.contains(&home), "{name} tells where somebody is:\n{log}");
        for line in log.lines().filter(|line| line.contains(&wallet) || line.contains(&wallet[..8])) {
            assert!(!has_address(line), "{name}: {line}");
        }
    }
}
