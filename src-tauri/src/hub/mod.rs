//! Owns the workers' sessions: proves who they are, bridges each to the backbone, and meters what they served.
//!
//! Before: a gateway spliced the worker's bytes here, over a connection that it dialled or that the hub keeps there
//! (`rendezvous`). After: the backbone's dispatch listener, one connection a session.
//! The hub stands between strangers and the backbone: it lets through what a worker may say, in the shape that was
//! asked for, and counts what the backbone judged. It reads headers, never hidden state.
//!
//! **Invariants:** a session is credited at most what was sent to it, once; meters only grow and carry the hub's epoch;
//! every queue, table and wait has a bound; one session's end touches no other.
//! Why a process of its own: the hub may restart and drain without the model, and the model never faces a stranger.

#[cfg(unix)]
mod admin;
mod admission;
mod backbone_leg;
mod config;
mod connections;
mod devices;
mod ending;
mod http;
mod lines;
mod live;
mod members;
mod meters;
mod outstanding;
mod quarantine;
mod receipts;
mod registry;
mod rendezvous;
mod returns;
mod session;
mod tally;
mod worker_leg;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

#[cfg(unix)]
pub use admin::AdminError;
pub use config::{AdmissionPolicy, HubConfig, HubLimits, HubTiming};
pub use devices::DevicesError;
pub use members::MembersError;
pub use meters::FlushError;
pub use outstanding::{Judgement, Outstanding, OutstandingError};
pub use quarantine::QuarantineError;
pub use receipts::ReceiptTiming;
pub use tally::{Tally, Totals};

use crate::ledger::{Ledger, LedgerError};
use crate::net::backoff::jitter;
use crate::shutdown::Shutdown;
use crate::types::PublicKey;
use crate::wire::control::{GoAway, Quarantine};
use crate::wire::handshake::HubIdentity;
use admission::Admission;
use devices::{Caught, DeviceList};
use members::Members;
use meters::Meters;
use quarantine::{By, Entry, QuarantineList};
use registry::{Notice, Registry};

/// Workers' connections beside the sessions: refusals under way.
const REFUSALS: usize = 64;
/// How long the answer of a backbone probe is good for.
const PROBE_KEPT: Duration = Duration::from_secs(1);

/// Why a hub does not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The ledger did not give an epoch.
    #[error("starting the hub's epoch: {0}")]
    Epoch(#[from] LedgerError),
    /// The quarantine list cannot be read.
    #[error(transparent)]
    Quarantine(#[from] QuarantineError),
    /// The list of devices cannot be read.
    #[error(transparent)]
    Devices(#[from] DevicesError),
    /// The list of members cannot be read.
    #[error(transparent)]
    Members(#[from] MembersError),
    /// The operator's door cannot be opened.
    #[cfg(unix)]
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// No randomness.
    #[error("drawing the key that hides addresses: {0}")]
    Random(getrandom::Error),
    /// The last meters could not be written.
    #[error("last {0}")]
    LastFlush(FlushError),
    /// The ledger refuses this hub's meters: a newer process with its key has taken over.
    #[error("fenced: {0}")]
    Fenced(FlushError),
}

/// What became of workers: `refused` or `ended` → stable code → how often.
type Counts = BTreeMap<&'static str, BTreeMap<&'static str, u64>>;

#[derive(Default)]
struct Outcomes(Mutex<Counts>);

impl Outcomes {
    fn count(&self, outcome: &'static str, code: &'static str) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry(outcome).or_default().entry(code).or_default() += 1;
    }

    fn counts(&self) -> Counts {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What all connections share.
struct Hub {
    config: HubConfig,
    identity: HubIdentity,
    epoch: u64,
    admission: Admission,
    /// Room for workers' connections, before and after their handshake.
    workers: Semaphore,
    registry: Arc<Registry>,
    meters: Meters,
    quarantined: QuarantineList,
    members: Members,
    devices: DeviceList,
    shutdown: Shutdown,
    /// Until when the operator has closed the hub.
    closed_until: Mutex<Option<Instant>>,
    outcomes: Outcomes,
    probe: tokio::sync::Mutex<Option<(Instant, Option<String>)>>,
}

/// Serves gateways on `listener` until `shutdown`, then drains: workers are sent away, outstanding work is judged, the
/// meters become final.
///
/// # Errors
/// [`HubError`]: a start that fails, a ledger that fenced the hub, or last meters that could not be written.
pub async fn serve(
    listener: TcpListener,
    config: HubConfig,
    identity: HubIdentity,
    ledger: Ledger,
    shutdown: Shutdown,
) -> Result<(), HubError> {
    let hub_key = identity.key().public();
    let quarantined = QuarantineList::open(&config.quarantine_list)?;
    let devices = DeviceList::open(&config.devices_list, &hub_key)?;
    let clock = Arc::clone(&config.clock);
    let members = Members::open(config.admission.clone(), &config.allowed, &config.members_list, clock)?;
    #[cfg(unix)]
    let door = match &config.admin {
        Some(state_dir) => Some(admin::AdminSocket::bind(state_dir).await?),
        None => None,
    };
    let epoch = ledger.next_epoch(hub_key).await?;
    let mut peer_key = [0; 32];
    getrandom::fill(&mut peer_key).map_err(HubError::Random)?;
    let limits = config.limits;
    let hub = Arc::new(Hub {
        admission: Admission::new(limits.sessions, limits.handshakes, limits.handshakes_per_peer, peer_key),
        workers: Semaphore::new(limits.sessions + REFUSALS),
        registry: Arc::new(Registry::new(limits.sessions_per_wallet)),
        meters: Meters::new(ledger, hub_key, epoch),
        outcomes: Outcomes::default(),
        closed_until: Mutex::default(),
        probe: tokio::sync::Mutex::default(),
        config,
        identity,
        epoch,
        quarantined,
        members,
        devices,
        shutdown,
    });
    // A stop between a catch and its void must not leave the credit standing; what is void already stays as it is.
    hub.quarantined.caught().into_iter().for_each(|wallet| hub.meters.void(wallet));
    #[cfg(unix)]
    let door = door.map(|door| door.serve(Arc::clone(&hub)));
    tracing::info!(hub = %hub_key, epoch, "hub serves");
    let stopped = connections::accept_until_drained(&hub, &listener).await;
    #[cfg(unix)]
    drop(door);
    let flushed = hub.meters.flush().await;
    tracing::info!(epoch, "hub stopped");
    stopped.and(flushed.map_err(HubError::LastFlush))
}

/// Completes when the hub was asked to stop and no session is left, or its time is over.
async fn drained(hub: &Hub) {
    hub.shutdown.wait().await;
    let timing = &hub.config.timing;
    let longest = timing.handshake + timing.drain + timing.afterwards + timing.stall;
    if timeout(longest, hub.admission.until_empty()).await.is_err() {
        tracing::warn!("sessions are left after the drain");
    }
}

/// Writes the meters every so often; returns only when the ledger refuses them for good.
async fn flush_regularly(hub: &Hub) -> FlushError {
    let mut ticks = interval(hub.config.timing.flush);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        match hub.meters.flush().await {
            Ok(()) => {}
            Err(error @ FlushError::Refused { .. }) => return error,
            Err(error) => tracing::error!(%error, "meters wait for the next flush"),
        }
    }
}

impl Hub {
    /// A goodbye with a random pause, so that workers do not return all at once.
    fn go_away(&self) -> GoAway {
        let pause = jitter(self.config.timing.reconnect_within);
        GoAway { reconnect_after_ms: u64::try_from(pause.as_millis()).unwrap_or(u64::MAX) }
    }

    /// Whether no worker is taken: the hub stops, or its operator closed it for a while.
    fn is_draining(&self) -> bool {
        self.shutdown.is_requested() || self.closed_until().is_some_and(|until| Instant::now() < until)
    }

    /// Sends every worker away, takes none for `pause` from now on, and serves on; zero opens the hub again. How many
    /// sessions there are to end.
    fn close_for(&self, pause: Duration) -> usize {
        *self.closed_until() = (!pause.is_zero()).then(|| Instant::now() + pause);
        if pause.is_zero() { 0 } else { self.registry.notify_all(Notice::Drained) }
    }

    fn closed_until(&self) -> MutexGuard<'_, Option<Instant>> {
        self.closed_until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The backbone caught a wallet: all its unsettled credit is void, its sessions end, and it may not come back. Of a
    /// device that computes wrongly, only the session ends, and only that device may not come back.
    async fn quarantine(self: &Arc<Self>, caught: Quarantine) {
        let Quarantine { wallet, session_id, void_from_request, device, reason } = caught;
        let since_unix_ms = self.config.clock.unix_ms();
        let caught =
            Caught { wallet, session: session_id, device, since_unix_ms, reason: reason.clone(), signature: None };
        let caught = caught.signed(self.identity.key());
        tracing::warn!(void_from_request, record = caught.line(), "caught by the backbone");
        if caught.device.is_none() {
            // Kept out first: a session that is seated meanwhile would else have a meter that is not void.
            if let Err(error) = self.keep_out(wallet, By::Backbone, reason).await {
                tracing::error!(%wallet, error, "quarantine is not on disk");
            }
            self.meters.void(wallet);
            self.registry.notify(&wallet, Notice::Quarantined);
            if let Err(error) = self.meters.flush().await {
                tracing::error!(%wallet, %error, "the void waits for the next flush");
            }
            return;
        }
        let hub = Arc::clone(self);
        match tokio::task::spawn_blocking(move || hub.devices.add(caught)).await {
            Ok(Ok(())) => {}
            Ok(Err(DevicesError::Full)) => {
                let reason = "too many of its devices compute wrongly".to_owned();
                if let Err(error) = self.keep_out(wallet, By::Backbone, reason).await {
                    tracing::error!(%wallet, error, "quarantine is not on disk");
                }
                self.registry.notify(&wallet, Notice::Quarantined);
                return;
            }
            Ok(Err(error)) => tracing::error!(%wallet, %error, "the device's record is not on disk"),
            Err(error) => tracing::error!(%wallet, %error, "the device's record was not written"),
        }
        self.registry.notify_one(&wallet, session_id, Notice::Quarantined);
    }

    /// Takes a wallet and its devices off the lists of those who are kept out, once what it lost is in the ledger;
    /// whether it was on one.
    ///
    /// # Errors
    /// A void that cannot be written, or what kept the lists from the disk.
    async fn let_in(self: &Arc<Self>, wallet: PublicKey) -> Result<bool, String> {
        if self.meters.is_void_due(&wallet) {
            let not_yet = |error| format!("expected its void in the ledger first, try again: {error}");
            self.meters.flush().await.map_err(not_yet)?;
        }
        let hub = Arc::clone(self);
        let remove = move || {
            let wallets = hub.quarantined.remove(&wallet).map_err(|error| error.to_string())?;
            let devices = hub.devices.remove(&wallet).map_err(|error| error.to_string())?;
            Ok(wallets || devices)
        };
        tokio::task::spawn_blocking(remove).await.map_err(|error| error.to_string())?
    }

    /// Puts a wallet on the list of those who are kept out; in memory at once, whatever becomes of the file.
    ///
    /// # Errors
    /// What kept it from the disk.
    async fn keep_out(self: &Arc<Self>, wallet: PublicKey, by: By, reason: String) -> Result<(), String> {
        let (hub, since_unix_ms) = (Arc::clone(self), self.config.clock.unix_ms());
        let write = move || hub.quarantined.add(wallet, Entry { since_unix_ms, by, reason });
        let written = tokio::task::spawn_blocking(write).await;
        written.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
    }

    /// Why the backbone cannot be used, if it cannot; asked anew at most once a second.
    async fn probe_backbone(&self) -> Option<String> {
        let mut last = self.probe.lock().await;
        if let Some((at, answer)) = &*last
            && at.elapsed() < PROBE_KEPT
        {
            return answer.clone();
        }
        let dialled = backbone_leg::dial(&self.config).await;
        let answer = dialled.err().map(|error| error.to_string());
        *last = Some((Instant::now(), answer.clone()));
        answer
    }
}
