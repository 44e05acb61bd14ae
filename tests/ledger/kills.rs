//! Hub, gateways and database server as real processes, killed with SIGKILL at any moment while meters rise.
//!
//! After every round: what `kvasir ledger check` looks at holds, every meter lies between its newest receipt and the
//! verdicts that were sent, and the wallet has what all meters are worth, exactly.
//!
//! The soak: `KVASIR_KILL_ROUNDS=200 cargo test --release --test kvasir ledger::kills -- --ignored --nocapture`.

mod puppet;

use std::path::Path;
use std::time::{Duration, Instant};

use kvasir::ledger::Ledger;
use kvasir::types::SessionId;
use tokio::net::TcpListener;
use tokio::time::sleep;

use self::puppet::Puppet;
use super::{Place, RATE};
use crate::fleet::dice::Dice;
use crate::hub::world::HOST;
use crate::support::postgres::Server;
use crate::support::process::{Process, ended};

/// Longest wait until gateways have credited all that was metered; their polls are a second apart.
const PATIENCE: Duration = Duration::from_secs(60);

/// Rounds for each one asked for, at most.
const ROUNDS_MAX: u64 = 4;

/// The processes of one ledger.
struct Roles<'a> {
    dir: &'a Path,
    ledger: String,
    hub_args: Vec<String>,
    hub: Process,
    gateways: [Process; 2],
    server: Option<Server>,
}

fn start_hub(dir: &Path, args: &[String]) -> Process {
    let mut hub = Process::start(dir, &args.iter().map(String::as_str).collect::<Vec<_>>());
    hub.after("listening for gateways on ");
    hub
}

fn start_gateway(dir: &Path, ledger: &str, hub: &str, state: &str) -> Process {
    let args = ["--headless", "gateway", "--listen", "127.0.0.1:0", "--hub", hub, "--tls-trial"];
    let mut gateway = Process::start(dir, &[&args[..], &["--state", state, "--ledger", ledger]].concat());
    gateway.after("listening on https://");
    gateway
}

impl Roles<'_> {
    fn hub_address(&self) -> &str {
        // `--listen` is followed by the address.
        &self.hub_args[3]
    }

    /// Kills some of the processes, at least one, in any order and with pauses; gives what was killed.
    fn kill(&mut self, dice: &mut Dice) -> Vec<usize> {
        let all = 3 + usize::from(self.server.is_some());
        let mut victims: Vec<usize> = (0..all).filter(|_| dice.happens(500)).collect();
        if victims.is_empty() {
            victims.push(dice.below(all));
        }
        let first = dice.below(victims.len());
        victims.rotate_left(first);
        for victim in &victims {
            std::thread::sleep(dice.millis(0, 30));
            match victim {
                0 => self.hub.kill(),
                1 | 2 => self.gateways[victim - 1].kill(),
                _ => self.server.iter_mut().for_each(Server::kill),
            }
        }
        victims
    }

    /// Starts again what was killed, the database first.
    fn restart(&mut self, victims: &[usize]) {
        if victims.contains(&3) {
            self.server.iter_mut().for_each(Server::run);
        }
        if victims.contains(&0) {
            self.hub = start_hub(self.dir, &self.hub_args);
        }
        for gateway in [1, 2] {
            if victims.contains(&gateway) {
                let (state, hub) = (format!("gateway-{gateway}"), self.hub_address().to_owned());
                self.gateways[gateway - 1] = start_gateway(self.dir, &self.ledger, &hub, &state);
            }
        }
    }
}

/// So many rounds over a ledger; `server` is the database's, when it has one.
async fn rounds(count: u64, ledger: String, server: Option<Server>, seed: u64) {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    let backbone = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    // A free port, which the hub keeps through its restarts; nobody here asks for one twice.
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    let args = ["--headless", "hub", "--listen", &free.to_string(), "--public-host", HOST, "--ledger", &ledger];
    let behind = backbone.local_addr().expect("an address").to_string();
    let hub_args: Vec<String> = [&args[..], &["--backbone", &behind]].concat().into_iter().map(str::to_owned).collect();
    let mut hub = start_hub(dir, &hub_args);
    let operator = hub.after("operator key ").parse().expect("a key");
    let gateways = ["gateway-1", "gateway-2"].map(|state| start_gateway(dir, &ledger, &free.to_string(), state));
    let mut roles = Roles { dir, ledger: ledger.clone(), hub_args, hub, gateways, server };

    let puppet = Puppet::new(free, operator, backbone);
    let mut dice = Dice::new(seed);
    let (mut before, mut rose, mut round) = (0, 0, 0);
    // On a busy machine some rounds end before anything is metered: they are played, and more of them.
    while round < count || rose * 2 < count && round < ROUNDS_MAX * count {
        let life = dice.millis(50, 900);
        // Killed while the puppet is at work, on a thread of their own.
        let kill = async {
            sleep(life).await;
            tokio::task::block_in_place(|| roles.kill(&mut dice))
        };
        let victims = tokio::select! {
            victims = kill => victims,
            () = puppet.work() => unreachable!("a puppet works for ever"),
        };
        tokio::task::block_in_place(|| roles.restart(&victims));
        let credited = settled(&puppet, &ledger).await;
        assert!(credited >= before, "round {round} of seed {seed}: {credited} after {before}");
        rose += u64::from(credited > before);
        before = credited;
        let (code, report, why) = ended(dir, &["ledger", "check", "--ledger", &ledger]);
        assert_eq!(code, Some(0), "round {round} of seed {seed}, {victims:?} killed: {report} {why}");
        eprintln!("round {round}: {victims:?} killed after {life:?}, {credited} work bytes credited");
        round += 1;
    }
    assert!(rose * 2 >= count, "meters rose in {rose} of {round} rounds: too few to prove anything");
}

/// Waits until all that is metered is credited, and compares it with what the puppet was shown; the work bytes.
async fn settled(puppet: &Puppet, url: &str) -> u64 {
    let start = Instant::now();
    let ledger = Ledger::open_existing(url).await.expect("a ledger");
    let (metered, statement) = loop {
        let mut meters = Vec::new();
        for hub in ledger.hubs().await.expect("a ledger") {
            let mut after = 0;
            loop {
                let page = ledger.meters_after(hub, after, 1000).await.expect("a ledger");
                let Some(last) = page.last() else { break };
                after = last.change_seq;
                meters.extend(page);
            }
        }
        let metered: u64 = meters.iter().map(|meter| meter.work_bytes).sum();
        let statement = ledger.wallet(puppet.wallet).await.expect("a ledger");
        {
            let shown = puppet.shown();
            let of = |session| shown.get(session).copied().unwrap_or_default();
            for meter in &meters {
                let (least, most) = (of(&meter.session).proven, of(&meter.session).accepted);
                assert!((least..=most).contains(&meter.work_bytes), "{least} to {most}: {meter:?}");
            }
            let is_there = |session: &SessionId| meters.iter().any(|meter| meter.session == *session);
            assert!(
                shown.iter().all(|(session, shown)| shown.proven == 0 || is_there(session)),
                "a proven session is gone"
            );
        }
        let is_final = meters.iter().all(|meter| meter.r#final);
        if is_final && statement.work_bytes == metered {
            break (metered, statement);
        }
        assert!(start.elapsed() < PATIENCE, "{metered} metered, {statement:?}");
        sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(statement.pending_nano_kvr.0, metered * RATE.0);
    ledger.close().await;
    metered
}

async fn on_sqlite(count: u64, seed: u64) {
    let place = Place::file();
    rounds(count, place.url.clone(), None, seed).await;
}

async fn on_postgres(count: u64, seed: u64) {
    let Some(server) = Server::start(&[], false) else { return };
    let ledger = server.database().await;
    rounds(count, ledger, Some(server), seed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_rounds_of_kills_lose_and_double_nothing_on_sqlite() {
    on_sqlite(10, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_rounds_of_kills_lose_and_double_nothing_on_postgres() {
    on_postgres(10, 2).await;
}

/// `KVASIR_KILL_ROUNDS` rounds of each store, with another seed each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a soak: see the module"]
async fn soak() {
    let count = std::env::var("KVASIR_KILL_ROUNDS").map_or(200, |count| count.parse().expect("a number of rounds"));
    let seed = getrandom::u64().expect("randomness");
    eprintln!("seed {seed}");
    on_sqlite(count, seed).await;
    on_postgres(count, seed).await;
}
