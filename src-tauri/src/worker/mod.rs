//! A worker: holds a slice of the model's experts and computes them for pay, over one outbound link.
//!
//! [`run`] dials a gateway, proves the wallet to the hub behind it, offers memory, receives a lease, fetches and
//! verifies the experts, serves, and starts again when the link breaks or the hardware is lost, until it is told to stop.
//! **Promises:** no expert is used before its digest was checked; no data from a peer is ever a path, a URL or code;
//! a request is answered once or declined, never left; stopping takes less than a second.

mod budget;
mod cache;
mod consent;
pub mod courtesy;
mod ended;
mod equipment;
mod fetch;
mod gather;
mod guest;
mod hardware;
mod home;
mod join;
mod link;
mod load;
mod local;
pub mod network;
mod outgoing;
mod pace;
mod pipe;
mod receipts;
mod serve;
mod session;
mod slept;
mod slices;
mod status;
mod window;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::clock::{Clock, SystemClock};
use crate::model::Model;
use crate::net::dial::{Connector, Outbound};
use crate::net::tls::TlsError;
use crate::net::ws::Ping;
use crate::shutdown::Shutdown;
use crate::types::PublicKey;
use crate::wire::agent::AGENT;
use crate::wire::handshake::AuthSigner;
use crate::wire::invite::Invite;
use cache::Cache;

pub use budget::Budget;
pub use cache::CacheConfig;
pub use consent::Consent;
pub use guest::run_while_welcome;
pub use hardware::Hardware;
pub(crate) use home::replace as replace_file;
pub use home::{HomeError, Occupied, kept_receipts, occupy};
pub(crate) use join::with_path;
pub use receipts::OnDisk;
pub(crate) use slept::slept;
pub use status::{Phase, Trouble, WorkerStatus};

/// Where the experts come from.
#[derive(Clone, Debug)]
pub enum Source {
    /// Over the link, from the backbone.
    Fetch,
    /// From this model, every expert of it that has the digest that is served; the others as [`Source::Fetch`].
    LocalModel(Arc<Model>),
}

/// All waits of a worker.
#[derive(Clone, Copy, Debug)]
pub struct Timers {
    /// Hub's hello, our answer and its welcome together.
    pub handshake: Duration,
    /// Upper end of the first pause after a lost link; it doubles with every loss.
    pub backoff_first: Duration,
    /// Longest pause.
    pub backoff_max: Duration,
    /// A link that lived this long was a good one: the pauses start over.
    pub healthy: Duration,
    /// Between two looks at the clocks and the routes, for whether the machine slept or its network is another one.
    pub look: Duration,
    /// Between two looks at how much of the hardware's memory others want.
    pub memory: Duration,
    /// How a silent hub is noticed, and proxies are kept from cutting.
    pub ping: Ping,
    /// Longest wait for one piece of an expert.
    pub chunk: Duration,
    /// How long requests under way are still answered when the worker stops.
    pub drain: Duration,
    /// The same when the hub goes away and the worker has time.
    pub moving: Duration,
}

impl Default for Timers {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(10),
            backoff_first: Duration::from_millis(250),
            backoff_max: Duration::from_secs(30),
            healthy: Duration::from_secs(10),
            look: Duration::from_secs(1),
            memory: Duration::from_secs(5),
            ping: Ping::worker(),
            chunk: Duration::from_secs(30),
            drain: Duration::from_millis(500),
            moving: Duration::from_secs(10),
        }
    }
}

/// What a worker is told.
#[derive(Clone)]
pub struct WorkerConfig {
    /// Gateways, `wss://host[:port]`, tried in turn; without a path, [`crate::wire::WORKER_PATH`] is meant.
    pub gateways: Vec<String>,
    /// Operators whose hubs are trusted.
    pub operators: Vec<PublicKey>,
    /// The operator's join code, shown to hubs that take only those who have one.
    pub invite: Option<String>,
    /// How the gateways are reached: proxies and certificate authorities.
    pub outbound: Outbound,
    /// Worker id and receipts.
    pub state_dir: PathBuf,
    /// Memory that the slice may take, also while it serves.
    pub budget: Budget,
    /// How much of the time may be computed, also while it serves.
    pub duty: courtesy::Duty,
    /// Whether large downloads may begin.
    pub consent: Consent,
    /// Where experts come from.
    pub source: Source,
    /// Where experts that were fetched are kept for the next time; nowhere when absent.
    pub cache: Option<CacheConfig>,
    /// Name and version for the hub's log.
    pub agent: String,
    /// Assignments per second to offer; measured at the start when absent.
    pub assignments_per_s: Option<f64>,
    /// All waits.
    pub timers: Timers,
    /// Wall time for certificates.
    pub clock: Arc<dyn Clock>,
}

impl WorkerConfig {
    /// A worker with this much memory that fetches its experts, with default timers.
    #[must_use]
    pub fn new(gateways: Vec<String>, operators: Vec<PublicKey>, state_dir: PathBuf, memory_bytes: u64) -> Self {
        Self {
            gateways,
            operators,
            invite: None,
            outbound: Outbound::default(),
            state_dir,
            budget: Some(memory_bytes).into(),
            duty: courtesy::Duty::default(),
            consent: Consent::default(),
            source: Source::Fetch,
            cache: None,
            agent: AGENT.to_owned(),
            assignments_per_s: None,
            timers: Timers::default(),
            clock: Arc::new(SystemClock::default()),
        }
    }

    /// A worker of the network that a join code invites to, else as [`WorkerConfig::new`]; the code itself is the one
    /// that is kept in `state_dir`.
    #[must_use]
    pub fn invited(invite: Invite, state_dir: PathBuf, memory_bytes: Option<u64>) -> Self {
        let Invite { operator, gateways, ca_pem, .. } = invite;
        let code = network::code(&state_dir);
        let joined = Self::new(gateways, vec![operator], state_dir, 0);
        let outbound = Outbound { network_ca_pem: ca_pem, ..Outbound::default() };
        Self { outbound, invite: code, budget: memory_bytes.into(), ..joined }
    }
}

/// Why a worker cannot even try.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The state directory.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// The certificate authorities.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Nobody to dial.
    #[error("expected at least one gateway URL, got none")]
    NoGateway,
}

/// What every session of this worker uses.
struct Worker {
    config: WorkerConfig,
    wallet: Arc<dyn AuthSigner>,
    home: home::Home,
    connector: Connector,
    library: Arc<slices::Library>,
    status: Arc<status::Board>,
}

/// Works until `shutdown` on the newest of `hardware`; what it does shows in `status`.
///
/// # Errors
/// Only what no amount of trying would mend: see [`WorkerError`].
pub async fn run(
    config: WorkerConfig,
    wallet: Arc<dyn AuthSigner>,
    hardware: watch::Receiver<Hardware>,
    status: watch::Sender<WorkerStatus>,
    shutdown: Shutdown,
) -> Result<(), WorkerError> {
    if config.gateways.is_empty() {
        return Err(WorkerError::NoGateway);
    }
    let home = home::Home::open(&config.state_dir)?;
    let connector = Connector::new(&config.outbound)?;
    let status = Arc::new(status::Board::new(status));
    let cache = config.cache.clone().and_then(|place| {
        match Cache::open(place, Arc::clone(&config.clock), Arc::clone(&status)) {
            Ok(cache) => Some(Arc::new(cache)),
            Err(error) => {
                tracing::warn!(%error, "experts are not kept on disk");
                status.disk_trouble(Some(error.to_string()));
                None
            }
        }
    });
    let library = Arc::new(slices::Library::new(&config.source, cache));
    let worker = Worker { config, wallet, home, connector, library, status };
    link::keep(&worker, hardware, &shutdown).await;
    worker.status.phase(Phase::Stopped);
    Ok(())
}
