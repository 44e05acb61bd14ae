//! A thousand workers at once, through a real gateway and a real hub: what they cost while nobody asks them anything.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ed25519_dalek::{Signer, SigningKey};
use kvasir::net::dial::Connector;
use kvasir::net::tls;
use kvasir::net::ws::{WsConfig, WsStream};
use kvasir::types::{Hex, PublicKey};
use kvasir::wire::Frame;
use kvasir::wire::frame::Kind;
use kvasir::wire::handshake::{AuthMessage, AuthSigner, WorkerHandshake, WorkerRandom, WorkerSession};

use crate::support::fleet::fleet_with;
use crate::support::process::Process;

const WORKERS: usize = 1000;
/// At once; one address may have no more unproven connections at the hub.
const JOINING: usize = 8;
/// How long they are idle.
const IDLE: Duration = Duration::from_secs(4);
/// Clock ticks of a second in /proc.
const TICKS: u64 = 100;

/// One wallet of many.
struct Wallet(SigningKey);

impl Wallet {
    fn numbered(n: usize) -> Self {
        let mut seed = [1; 32];
        seed[..8].copy_from_slice(&(n as u64).to_le_bytes());
        Self(SigningKey::from_bytes(&seed))
    }
}

impl AuthSigner for Wallet {
    fn address(&self) -> PublicKey {
        PublicKey(self.0.verifying_key().to_bytes())
    }

    fn sign_auth(&self, message: &AuthMessage) -> [u8; 64] {
        self.0.sign(message.as_bytes()).to_bytes()
    }
}

/// Resident bytes and clock ticks of a process.
fn used(process: &Process) -> (u64, u64) {
    let read = |file: &str| {
        std::fs::read_to_string(Path::new("/proc").join(process.id().to_string()).join(file)).expect("a process")
    };
    let status = read("status");
    let resident = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).expect("a size");
    let kib: u64 = resident.trim().trim_end_matches(" kB").parse().expect("a number");
    let stat = read("stat");
    let after_name = stat.rsplit_once(')').expect("a name").1;
    let times = after_name.split_whitespace().skip(11).take(2);
    (kib * 1024, times.map(|t| t.parse::<u64>().expect("a number")).sum())
}

async fn join(public: &str, tls: Arc<rustls::ClientConfig>, operator: &str, n: usize) -> (WsStream, WorkerSession) {
    let url = format!("wss://{public}/v1/worker");
    let mut socket = WsStream::connect(&url, &Connector::direct(tls), WsConfig::worker()).await.expect("an upgrade");
    let hello = Frame::decode(socket.recv().await.expect("a link").expect("a frame")).expect("a frame");
    let (id, random) = (Hex((n as u128).to_le_bytes()), WorkerRandom::draw().expect("randomness"));
    let mut shake = WorkerHandshake::new(vec![operator.parse().expect("a key")], "localhost", id, "crowd/1", random);
    let now_s = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock").as_secs();
    let auth = shake.answer(&hello, &Wallet::numbered(n), now_s).expect("a good hello");
    socket.send(auth.encode()).await.expect("a link");
    let welcome = Frame::decode(socket.recv().await.expect("a link").expect("a frame")).expect("a frame");
    assert_eq!(welcome.header.kind, Kind::Welcome, "{:?}", String::from_utf8_lossy(&welcome.body));
    let session = shake.welcomed(&welcome).expect("a good welcome");
    (socket, session)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_idle_workers_cost_next_to_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let fleet = fleet_with(dir.path(), "[gateway]\nconnections_per_address = 1100\n", &[]);
    let pem = std::fs::read_to_string(dir.path().join("kvasir-state/gateway/trial-ca.pem")).expect("an authority");
    let tls = tls::client_config_from_pem(&pem).expect("a TLS configuration");
    // Pages that the first connections touch are nobody's in particular.
    let first = join(&fleet.public, Arc::clone(&tls), &fleet.operator, WORKERS).await;
    let before = (used(&fleet.gateway), used(&fleet.hub));

    let (start, room) = (Instant::now(), Arc::new(tokio::sync::Semaphore::new(JOINING)));
    let joining = (0..WORKERS - 1).map(|n| {
        let (tls, public, operator) = (Arc::clone(&tls), fleet.public.clone(), fleet.operator.clone());
        let room = Arc::clone(&room);
        tokio::spawn(async move {
            let _permit = room.acquire_owned().await.expect("open");
            join(&public, tls, &operator, n).await
        })
    });
    let mut sockets = vec![first];
    for joined in joining.collect::<Vec<_>>() {
        sockets.push(joined.await.expect("a session"));
    }
    let took = start.elapsed();
    assert_eq!(fleet.sessions().await, WORKERS as u64);

    let busy = (used(&fleet.gateway), used(&fleet.hub));
    tokio::time::sleep(IDLE).await;
    let after = (used(&fleet.gateway), used(&fleet.hub));
    let each = |before: (u64, u64), after: (u64, u64)| after.0.saturating_sub(before.0) / (WORKERS as u64 - 1);
    let (gateway, hub) = (each(before.0, after.0), each(before.1, after.1));
    let ticks = (after.0.1 - busy.0.1, after.1.1 - busy.1.1);
    println!("{WORKERS} workers joined in {took:?}; bytes each: gateway {gateway}, hub {hub}; idle ticks {ticks:?}");
    assert!(gateway < 32 * 1024, "the gateway takes {gateway} bytes for a worker");
    assert!(hub < 128 * 1024, "the hub takes {hub} bytes for a worker");
    // One in a hundred of a core, and the polls of accounts that go on.
    let most = IDLE.as_secs() * TICKS / 100 + 4;
    assert!(ticks.0 <= most && ticks.1 <= most, "idle, they used {ticks:?} ticks of at most {most}");
    drop(sockets);
}
