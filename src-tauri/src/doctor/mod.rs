//! Says what is wrong, for whoever cannot join or earns nothing: the road to the gateway leg by leg, and the machine.
//!
//! [`examine`] looks at everything at once and gives a [`Report`]: each check ok, warn or fail, with what was found and
//! what to do. `legs` walks the road of one gateway, `machine` looks at hardware, keys, disk and limits; `redact` makes a
//! report fit for strangers. It uses the connector that workers use, so that both meet the same road.
//!
//! **Promises:** a verdict within [`WITHIN`], whatever hangs; nothing is changed, no wallet made, no session replaced;
//! what lies behind a failed leg is named as not reached instead of failing too.

mod courtesy;
mod exchange;
mod greet;
mod legs;
mod machine;
mod redact;
mod report;
mod report_file;
mod speed;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};

use crate::clock::{Clock, SystemClock};
use crate::net::dial::{Connector, Outbound};
use crate::types::{PublicKey, Rules};
use crate::wallet::Wallet;
use crate::worker::courtesy::Sources;

pub use redact::redact;
pub use report::{Check, Report, Verdict};
pub use report_file::save_report;

/// Longest examination. People wait ten seconds; the rest is for starting and printing.
pub const WITHIN: Duration = Duration::from_secs(8);
/// What always stays free of a disk on which experts are kept.
const DISK_FLOOR_BYTES: u64 = 1 << 30;
/// Most gateways that are looked at.
const GATEWAYS_MAX: usize = 8;

/// What to examine, and with what.
#[derive(Clone)]
pub struct Options {
    /// Gateways to reach, e.g. `wss://gateway.example`.
    pub gateways: Vec<String>,
    /// Operators whose hubs are trusted; without any the hub's name is shown and not judged.
    pub operators: Vec<PublicKey>,
    /// Join code, for a hub that asks for one.
    pub invite: Option<String>,
    /// How to get out: proxies, and whom to trust.
    pub outbound: Outbound,
    /// Where keys and receipts are.
    pub state_dir: PathBuf,
    /// Where experts are kept.
    pub cache_dir: Option<PathBuf>,
    /// Bytes that must be free in both, if that is more than what always stays free.
    pub disk_needed_bytes: u64,
    /// Who is paid here.
    pub wallet: WalletFound,
    /// What the machine's owner wishes of a worker.
    pub rules: Rules,
    /// Where courtesy looks.
    pub sources: Sources,
    /// Which GPU.
    #[cfg(feature = "gpu")]
    pub gpu: crate::kernel::gpu::GpuOptions,
    /// Wall time.
    pub clock: Arc<dyn Clock>,
}

/// The wallet of this machine.
#[derive(Clone)]
pub enum WalletFound {
    /// It can be used.
    Here(Arc<Wallet>),
    /// There is none yet.
    None,
    /// It cannot be used, and why.
    Trouble(String),
}

impl Options {
    /// No gateway, nobody trusted beyond the usual authorities, the state directory, this machine's clock.
    #[must_use]
    pub fn new(state_dir: PathBuf) -> Self {
        Self {
            gateways: Vec::new(),
            operators: Vec::new(),
            invite: None,
            outbound: Outbound::default(),
            state_dir,
            cache_dir: None,
            disk_needed_bytes: 0,
            wallet: WalletFound::None,
            rules: Rules::default(),
            sources: Sources::default(),
            #[cfg(feature = "gpu")]
            gpu: crate::kernel::gpu::GpuOptions::default(),
            clock: Arc::new(SystemClock::default()),
        }
    }
}

/// Looks at everything, all at once. What blocks is left behind when its time is over.
pub async fn examine(options: Options) -> Report {
    let start = Instant::now();
    let until = start + WITHIN;
    let options = Arc::new(options);
    let (roads, gpu, keyring, disk, courtesy) = tokio::join!(
        roads(&options, until),
        blocking(machine::GPU, until, &options, machine::gpu),
        blocking(machine::KEYRING, until, &options, |_| machine::keyring()),
        blocking(machine::DISK, until, &options, machine::disk),
        blocking(courtesy::COURTESY, until, &options, courtesy::courtesy),
    );
    let (mut checks, not_reached) = roads;
    checks.extend([gpu, machine::wallet(&options.wallet), keyring, disk, machine::files(), courtesy]);
    Report::of(checks, not_reached, u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX))
}

/// Every gateway's road. One that works makes the others' failures something to look at, no more.
async fn roads(options: &Options, until: Instant) -> (Vec<Check>, Vec<String>) {
    if options.gateways.is_empty() {
        let remedy = "name one with --gateway, or join with the operator's code (--join)";
        return (vec![Check::fail("gateway", "Gateway", "no network was joined here", remedy)], Vec::new());
    }
    let connector = match Connector::new(&options.outbound) {
        Ok(connector) => Arc::new(connector),
        Err(error) => {
            let remedy = "name a readable PEM file with --ca, or leave it away";
            return (vec![Check::fail("tls", "TLS", error.to_string(), remedy)], Vec::new());
        }
    };
    let gateways = options.gateways.iter().take(GATEWAYS_MAX);
    let mut roads = join_all(gateways.map(|url| legs::walk(options, &connector, url, until))).await;
    if let [road] = &mut roads[..] {
        return (std::mem::take(&mut road.checks), std::mem::take(&mut road.not_reached));
    }
    let one_works = roads.iter().any(legs::Road::works);
    let (mut checks, mut not_reached) = (Vec::new(), Vec::new());
    for road in roads {
        let host = &road.host;
        checks.extend(road.checks.into_iter().map(|check| Check {
            id: format!("{}@{host}", check.id),
            title: format!("{} ({host})", check.title),
            verdict: if one_works { check.verdict.min(Verdict::Warn) } else { check.verdict },
            ..check
        }));
        not_reached.extend(road.not_reached.into_iter().map(|title| format!("{title} ({host})")));
    }
    (checks, not_reached)
}

/// A check that may block, on a thread of its own.
async fn blocking(
    (id, title): (&str, &str),
    until: Instant,
    options: &Arc<Options>,
    check: impl FnOnce(&Options) -> Check + Send + 'static,
) -> Check {
    let options = Arc::clone(options);
    match timeout_at(until, spawn_blocking(move || check(&options))).await {
        Ok(Ok(check)) => check,
        Ok(Err(error)) => {
            Check::fail(id, title, format!("looking failed: {error}"), "report this: it is a mistake here")
        }
        Err(_) => {
            let found = format!("no answer within {} s", WITHIN.as_secs());
            Check::fail(id, title, found, "restart what should answer, or the machine")
        }
    }
}
