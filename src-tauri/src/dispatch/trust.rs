//! What a backbone demands of machines that it cannot see, and what it knows of their honesty.
//!
//! A worker proves its device before it is asked for anything ([`super::challenge`]); its work is compared with the
//! backbone's own ([`super::audit`]); whoever was caught is not asked again ([`super::quarantine`]).

use std::path::Path;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};

use super::audit::{AuditPolicy, Draws, Job, Record, Seniority};
use super::caught::Caught;
use crate::shutdown::Shutdown;
use crate::types::{PublicKey, SessionId};

/// Answers to challenges that may be judged or wait for it at once.
const JUDGES_MAX: usize = 64;
/// Audits that may wait for their turn.
const AUDITS_QUEUED: usize = 1024;
/// KiB of requests and answers that they may hold.
const AUDITS_KIB: usize = 64 << 10;
/// Between two writes of what wallets have behind them.
const SAVE_EVERY: Duration = Duration::from_secs(5);

/// What a backbone demands of strangers.
#[derive(Clone)]
pub struct TrustConfig {
    /// Which work is recomputed.
    pub audit: AuditPolicy,
    /// Key of all draws; the system's randomness when absent, as it must be outside of tests.
    pub seed: Option<[u8; 32]>,
    /// What wallets have behind them.
    pub seniority: Arc<Seniority>,
    /// Mean time between two challenges of a device.
    pub challenge_every: Duration,
    /// How long a worker may leave one unanswered and still be asked for work.
    pub challenge_patience: Duration,
    /// Layers that only trusted wallets may hold.
    pub trusted_layers: Vec<u16>,
    /// The wallets that the operator trusts.
    pub trusted_wallets: Vec<PublicKey>,
}

impl Default for TrustConfig {
    fn default() -> Self {
        Self {
            audit: AuditPolicy::default(),
            seed: None,
            seniority: Arc::default(),
            challenge_every: Duration::from_secs(30 * 60),
            challenge_patience: Duration::from_secs(60),
            trusted_layers: Vec::new(),
            trusted_wallets: Vec::new(),
        }
    }
}

impl TrustConfig {
    /// The defaults, with what wallets have behind them kept at `path`.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn remembered(path: &Path) -> std::io::Result<Self> {
        Ok(Self { seniority: Arc::new(Seniority::open(path)?), ..Self::default() })
    }

    /// Whether the operator trusts a wallet.
    #[must_use]
    pub fn trusts(&self, wallet: &PublicKey) -> bool {
        self.trusted_wallets.contains(wallet)
    }

    /// What placement and dispatch have to know of a wallet.
    #[must_use]
    pub fn bounds(&self, wallet: &PublicKey) -> Bounds {
        let (is_trusted, layers) = (self.trusts(wallet), self.trusted_layers.clone());
        let (barred, preferred) = if is_trusted { (Vec::new(), layers) } else { (layers, Vec::new()) };
        Bounds { is_trusted, barred, preferred }
    }
}

/// What a wallet may be given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Whether the operator trusts it.
    pub is_trusted: bool,
    /// It never gets these layers.
    pub barred: Vec<u16>,
    /// It gets these first, since few may hold them.
    pub preferred: Vec<u16>,
}

/// What is known of a session's honesty; outlives the session while somebody looks into it.
pub(super) struct Dossier {
    pub session_id: SessionId,
    pub wallet: PublicKey,
    /// What its work went into.
    pub record: Record,
    caught: AtomicU8,
}

/// How far a session was caught: nothing of it is used any more, only its device is out, or its wallet is.
const DEVICE_CAUGHT: u8 = 1;
const WALLET_CAUGHT: u8 = 2;

impl Dossier {
    pub fn new(session_id: SessionId, wallet: PublicKey) -> Self {
        Self { session_id, wallet, record: Record::default(), caught: AtomicU8::new(0) }
    }

    /// Whether nothing of this session may be used any more.
    pub fn is_caught(&self) -> bool {
        self.caught.load(Relaxed) > 0
    }

    /// Notes that the session's wallet was caught; whether it was news. That its device was is no excuse: a liar who
    /// fails a challenge on purpose is caught all the same.
    pub fn catch(&self) -> bool {
        self.caught.fetch_max(WALLET_CAUGHT, Relaxed) < WALLET_CAUGHT
    }

    /// Notes that the session's device was caught; whether it was the first thing that was.
    pub fn catch_device(&self) -> bool {
        self.caught.fetch_max(DEVICE_CAUGHT, Relaxed) == 0
    }
}

/// The state behind [`TrustConfig`].
pub(super) struct Trust {
    pub config: TrustConfig,
    pub draws: Draws,
    /// Challenges drawn so far.
    pub challenges: AtomicU64,
    /// Frames accepted so far.
    pub frames: AtomicU64,
    /// One recomputation outside of steps at a time.
    pub turn: Semaphore,
    /// Answers to challenges that may be judged or wait for it at once.
    pub judges: Arc<Semaphore>,
    /// KiB that audits may still take.
    pub room: Arc<Semaphore>,
    pub jobs: mpsc::Sender<Job>,
    pub waiting_jobs: Mutex<Option<mpsc::Receiver<Job>>>,
    /// The wallets that were caught.
    pub caught: Caught,
}

impl Trust {
    pub fn new(config: TrustConfig) -> Self {
        let (jobs, waiting_jobs) = mpsc::channel(AUDITS_QUEUED);
        Self {
            draws: Draws::new(config.seed),
            config,
            challenges: AtomicU64::new(0),
            frames: AtomicU64::new(0),
            turn: Semaphore::new(1),
            judges: Arc::new(Semaphore::new(JUDGES_MAX)),
            room: Arc::new(Semaphore::new(AUDITS_KIB)),
            jobs,
            waiting_jobs: Mutex::new(Some(waiting_jobs)),
            caught: Caught::default(),
        }
    }

    /// Writes what wallets have behind them every so often, and once more at the end.
    pub async fn keep_saving(&self, shutdown: &Shutdown) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(SAVE_EVERY) => {}
                () = shutdown.wait() => break,
            }
            self.save().await;
        }
    }

    /// Writes what wallets have behind them, if it changed.
    pub async fn save(&self) {
        let seniority = Arc::clone(&self.config.seniority);
        match tokio::task::spawn_blocking(move || seniority.save()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "what wallets have behind them is not on disk"),
            Err(error) => tracing::error!(%error, "what wallets have behind them was not written"),
        }
    }
}
