//! Owns the workers' sessions: proves who they are, bridges each to the backbone, and meters what they served.
//!
//! Before: a gateway spliced the worker's bytes here. After: the backbone's dispatch listener, one connection a session.
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
mod returns;
mod session;
mod tally;
mod worker_leg;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout, timeout_at};

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
use crate::net::Io;
use crate::net::head::{PEER_HEADER, Upgrade, read_head};
use crate::net::ws::{WsConfig, WsStream};
use crate::shutdown::Shutdown;
use crate::types::PublicKey;
use crate::wire::WORKER_PATH;
use crate::wire::control::{GoAway, Quarantine};
use crate::wire::handshake::HubIdentity;
use admission::{Admission, Refusal};
use devices::{Caught, DeviceList};
use http::Answer;
use members::Members;
use meters::Meters;
use quarantine::{By, Entry, QuarantineList};
use registry::{Notice, Registry};

/// Workers' connections beside the sessions: refusals under way.
const REFUSALS: usize = 64;
/// Connections that are no worker's: polls, probes, heads that are still being read. Workers never take their room, so
/// that the gateways' polls for credit always come through.
const OTHER_CONNECTIONS: usize = 64;
/// Pause after a failed accept, which is mostly a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
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
    let stopped = accept_until_drained(&hub, &listener).await;
    #[cfg(unix)]
    drop(door);
    let flushed = hub.meters.flush().await;
    tracing::info!(epoch, "hub stopped");
    stopped.and(flushed.map_err(HubError::LastFlush))
}

async fn accept_until_drained(hub: &Arc<Hub>, listener: &TcpListener) -> Result<(), HubError> {
    let room = Arc::new(Semaphore::new(hub.config.limits.sessions + REFUSALS + OTHER_CONNECTIONS));
    let mut connections = JoinSet::new();
    let mut fenced = pin!(flush_regularly(hub));
    let mut drained = pin!(drained(hub));
    let stopped = loop {
        tokio::select! {
            error = &mut fenced => break Err(HubError::Fenced(error)),
            () = &mut drained => break Ok(()),
            (permit, stream, from) = accept(listener, &room) => {
                let hub = Arc::clone(hub);
                connections.spawn(async move {
                    let _permit = permit;
                    connection(&hub, stream, from).await;
                });
            }
            Some(done) = connections.join_next() => {
                if let Err(error) = done {
                    tracing::error!(%error, "a connection's task failed");
                }
            }
        }
    };
    connections.shutdown().await;
    stopped
}

/// The next connection, once there is room for it.
async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> (Option<OwnedSemaphorePermit>, TcpStream, SocketAddr) {
    // The semaphore is never closed; without a permit a connection would still be bounded by its sessions.
    let permit = Arc::clone(room).acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok((stream, from)) => return (permit, stream, from),
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
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

/// One connection of a gateway: secured, read up to its head, then a session or one answer.
async fn connection(hub: &Arc<Hub>, stream: TcpStream, from: SocketAddr) {
    let timing = &hub.config.timing;
    let deadline = Instant::now() + timing.handshake;
    let mut io = match timeout_at(deadline, hub.config.gateway_peer.accept(stream)).await {
        Ok(Ok((io, _gateway))) => io,
        Ok(Err(error)) => return tracing::warn!(%from, %error, "connection refused"),
        Err(_) => return tracing::warn!(%from, "connection secured too late"),
    };
    let answer = match read_head(&mut io, deadline).await {
        Ok(request) if request.head.path == WORKER_PATH => match Upgrade::check(&request, WORKER_PATH) {
            Ok(upgrade) => match hub.workers.try_acquire() {
                Ok(_room) => {
                    let peer = request.head.headers.only(PEER_HEADER).and_then(|text| text.parse().ok());
                    return upgraded(hub, io, &upgrade.key, peer.unwrap_or(from.ip()), deadline).await;
                }
                Err(_) => {
                    hub.outcomes.count("refused", Refusal::Busy.code());
                    Answer::refused(503, Refusal::Busy.code(), "the hub is full")
                }
            },
            Err(error) => Answer::refused(error.status(), error.code(), error),
        },
        Ok(request) => http::answer(hub, &request).await,
        Err(error) => Answer::refused(error.status(), error.code(), error),
    };
    if !matches!(timeout(timing.stall, answer.send(&mut io)).await, Ok(Ok(()))) {
        tracing::debug!(%from, "an answer was not taken");
    }
}

async fn upgraded(hub: &Arc<Hub>, io: Io, key: &str, peer: IpAddr, deadline: Instant) {
    let timing = &hub.config.timing;
    // One message waits behind the one on its way: the session's own queues decide what goes next.
    let config = WsConfig { queue: 1, write_deadline: timing.stall, ping: timing.ping, ..WsConfig::hub() };
    match WsStream::accept(io, key, Vec::new(), config).await {
        Ok(ws) => session::run(hub, ws, hub.admission.peer_hash(peer), deadline).await,
        Err(error) => tracing::debug!(%error, "upgrade was not taken"),
    }
}

impl Hub {
    /// A goodbye with a random pause, so that workers do not return all at once.
    fn go_away(&self) -> GoAway {
        let mut noise = [0; 8];
        // Without randomness all come back together, which admission bounds.
        let _ = getrandom::fill(&mut noise);
        let most = u64::try_from(self.config.timing.reconnect_within.as_millis()).unwrap_or(u64::MAX);
        GoAway { reconnect_after_ms: u64::from_le_bytes(noise) % most.saturating_add(1).max(1) }
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
