//! The contributor's engine: one wallet, one network, one worker, and a status to watch. It knows no window.
//!
//! [`Engine::start`] opens the wallet and the device and reads which network was joined; orders come through the
//! handle, one after another, and [`Engine::updates`] tells what changed.
//! **Promises:** no order waits for a person or a gateway – a keyring may ask for its password meanwhile; a wallet whose
//! key is gone is shown as such and never replaced; an invitation changes nothing before it is accepted; pausing ends
//! the worker within [`PAUSE_MAX`] and gives its hardware back; what its owner wants outlives restarts; a watcher hears
//! of at most four changes a second.

mod account;
pub mod claim;
mod devices;
mod download;
mod earned;
mod errands;
mod error;
mod facts;
mod intent;
mod kept;
mod purse;
mod receipts;
pub mod release;
mod remove;
mod settings;
mod status;
mod task;
#[cfg(test)]
mod types;
mod updates;
mod why;
mod wishes;
mod work;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use zeroize::Zeroizing;

use crate::clock::{Clock, SystemClock};
use crate::net::dial::Outbound;
use crate::wallet::{KeyStore, Phrase, Wallet};
use crate::wire::invite::Invite;
use crate::worker::courtesy::{LOOK_EVERY, Sources};

pub use account::Intervals;
pub use claim::ClaimRoom;
pub use devices::{FindHardware, Found, Search, Searching};
pub use error::{AccountProblem, EngineError};
pub use facts::{
    ConfirmDownload, DayEarned, Device, DeviceKind, Download, Leg, Legs, Needs, Pause, PauseKind, ReceiptLine,
    StandingBy, Stored, WalletStatus, Why, WhyCode,
};
pub use kept::KeptError;
use purse::Errand;
pub use release::NewRelease;
pub use settings::{Language, Settings, SettingsError};
pub use status::{Account, DeviceState, Link, Network, Problem, Slice, State, Status, Tray, View, WalletState};
pub use updates::Updates;

/// Shortest time between two updates of a watcher.
pub const UPDATE_EVERY: Duration = Duration::from_millis(250);
/// Longest wait for a worker that was told to stop and for its hardware.
pub const PAUSE_MAX: Duration = Duration::from_millis(900);
const GONE: EngineError = EngineError::Gone("the engine");
/// A first download that is larger is asked about, unless told otherwise.
const LARGE_DOWNLOAD_BYTES: u64 = 1 << 30;
/// Orders that wait while one is done; a person has two hands.
const ORDERS_MAX: usize = 16;

/// What an engine is told.
pub struct EngineConfig {
    /// Which wallet and network this installation belongs to, worker id, receipts.
    pub state_dir: PathBuf,
    /// Where the wallet's key is.
    pub store: Arc<dyn KeyStore>,
    /// What computes.
    pub hardware: FindHardware,
    /// Bytes that experts may take; when absent, what the hardware has room for.
    pub memory_bytes: Option<u64>,
    /// A first download of more is asked about.
    pub large_download_bytes: u64,
    /// How gateways are reached; the network's own certificate authority comes with its join code.
    pub outbound: Outbound,
    /// How often the account is asked for.
    pub intervals: Intervals,
    /// Wall time.
    pub clock: Arc<dyn Clock>,
    /// Where courtesy looks.
    pub sources: Sources,
    /// How often it does.
    pub look_every: Duration,
}

impl EngineConfig {
    /// An engine with the usual intervals and this machine's clock.
    #[must_use]
    pub fn new(state_dir: PathBuf, store: Arc<dyn KeyStore>, hardware: FindHardware) -> Self {
        let (intervals, clock) = (Intervals::default(), Arc::new(SystemClock::default()));
        let (sources, look_every, large_download_bytes) = (Sources::default(), LOOK_EVERY, LARGE_DOWNLOAD_BYTES);
        Self {
            state_dir,
            store,
            hardware,
            memory_bytes: None,
            large_download_bytes,
            outbound: Outbound::default(),
            intervals,
            clock,
            sources,
            look_every,
        }
    }
}

/// What can be asked of the engine.
enum Order {
    Offer(String),
    Accept,
    Decline,
    Leave,
    Contribute(bool),
    OpenWallet,
    /// Opens, makes, restores or removes a wallet; other orders go on meanwhile.
    Wallet(Errand),
    ShowPhrase(oneshot::Sender<Zeroizing<Vec<String>>>),
    VerifyPhrase(Vec<(usize, Zeroizing<String>)>),
    Pause(PauseKind),
    SwitchDevice(String, bool),
    SaveSettings(Box<Settings>),
    ConfirmDownload(bool),
    DeleteSlices,
    Context(oneshot::Sender<Context>),
    Stop,
}

/// What errands at the gateway need, so that no order waits for one.
struct Context {
    wallet: Option<Arc<Wallet>>,
    network: Option<Invite>,
    rate: Option<u64>,
}

type Asked = (Order, oneshot::Sender<Result<(), EngineError>>);

/// A handle to a running engine; when the last one is dropped, the engine stops.
#[derive(Clone)]
pub struct Engine {
    orders: mpsc::Sender<Asked>,
    status: watch::Receiver<Status>,
    state_dir: Arc<Path>,
    clock: Arc<dyn Clock>,
    outbound: Outbound,
}

impl Engine {
    /// Starts the engine on the current runtime. The task ends after [`Engine::stop`].
    #[must_use]
    pub fn start(config: EngineConfig) -> (Self, JoinHandle<()>) {
        let (orders, inbox) = mpsc::channel(ORDERS_MAX);
        let (board, status) = watch::channel(Status::default());
        let (state_dir, clock) = (Arc::from(config.state_dir.as_path()), Arc::clone(&config.clock));
        let outbound = config.outbound.clone();
        let task = tokio::spawn(task::Core::new(config, board).run(inbox));
        (Self { orders, status, state_dir, clock, outbound }, task)
    }

    /// The status now.
    #[must_use]
    pub fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// What changes from now on, the present included.
    #[must_use]
    pub fn updates(&self) -> Updates {
        let mut status = self.status.clone();
        status.mark_changed();
        Updates { status, last: None }
    }

    /// Shows the invitation of a join code, which waits for [`Engine::accept`].
    ///
    /// # Errors
    /// A code that is malformed, unsigned or expired, or of another operator than the joined network's.
    pub async fn offer(&self, code: String) -> Result<(), EngineError> {
        self.ask(Order::Offer(code)).await
    }

    /// Joins the network of the invitation that waits, in place of an older one of the same operator.
    ///
    /// # Errors
    /// None waits, it expired meanwhile, or it cannot be kept.
    pub async fn accept(&self) -> Result<(), EngineError> {
        self.ask(Order::Accept).await
    }

    /// Forgets the invitation that waits.
    ///
    /// # Errors
    /// An engine that has stopped.
    pub async fn decline(&self) -> Result<(), EngineError> {
        self.ask(Order::Decline).await
    }

    /// Stops contributing and forgets the network; the wallet stays.
    ///
    /// # Errors
    /// What keeps the network's file from being removed.
    pub async fn leave(&self) -> Result<(), EngineError> {
        self.ask(Order::Leave).await
    }

    /// Starts or ends contributing; returns once it has begun or is over.
    ///
    /// # Errors
    /// What is missing before anything can be contributed.
    pub async fn contribute(&self, on: bool) -> Result<(), EngineError> {
        self.ask(Order::Contribute(on)).await
    }

    /// Asks the keyring for the wallet again.
    ///
    /// # Errors
    /// An engine that has stopped.
    pub async fn open_wallet(&self) -> Result<(), EngineError> {
        self.ask(Order::OpenWallet).await
    }

    /// Stops contributing for an hour, or until [`Engine::resume`]; restarts included.
    ///
    /// # Errors
    /// What keeps it from being remembered.
    pub async fn pause(&self, kind: PauseKind) -> Result<(), EngineError> {
        self.ask(Order::Pause(kind)).await
    }

    /// Ends a pause and contributes.
    ///
    /// # Errors
    /// As [`Engine::contribute`].
    pub async fn resume(&self) -> Result<(), EngineError> {
        self.contribute(true).await
    }

    /// Lets a device compute, or not.
    ///
    /// # Errors
    /// No such device, or what keeps it from being remembered.
    pub async fn switch_device(&self, id: String, on: bool) -> Result<(), EngineError> {
        self.ask(Order::SwitchDevice(id, on)).await
    }

    /// Keeps the settings and goes by them from now on.
    ///
    /// # Errors
    /// Values that make no sense, or what keeps them from being written.
    pub async fn save_settings(&self, settings: Settings) -> Result<(), EngineError> {
        self.ask(Order::SaveSettings(Box::new(settings))).await
    }

    /// Answers the question that [`Status::confirm_download`] shows; a no pauses until resumed.
    ///
    /// # Errors
    /// Nothing waits for an answer.
    pub async fn confirm_download(&self, yes: bool) -> Result<(), EngineError> {
        self.ask(Order::ConfirmDownload(yes)).await
    }

    /// Stops contributing and deletes every expert from the disk.
    ///
    /// # Errors
    /// What cannot be deleted.
    pub async fn delete_slices(&self) -> Result<(), EngineError> {
        self.ask(Order::DeleteSlices).await
    }

    /// Stops and removes everything of this installation, the wallet's key included. Without a verified backup only
    /// when told that this is known.
    ///
    /// # Errors
    /// No backup was verified and nothing confirmed, or what cannot be removed.
    pub async fn remove_everything(&self, confirmed_without_backup: bool) -> Result<(), EngineError> {
        self.ask(Order::Wallet(Errand::Remove { confirmed: confirmed_without_backup })).await
    }

    /// The wallet's backup phrase: 12 words, for its owner's eyes.
    ///
    /// # Errors
    /// No open wallet, or one of before phrases.
    pub async fn show_phrase(&self) -> Result<Zeroizing<Vec<String>>, EngineError> {
        let (words, shown) = oneshot::channel();
        self.ask(Order::ShowPhrase(words)).await?;
        shown.await.map_err(|_| GONE)
    }

    /// Remembers that the wallet is backed up, when these words stand at these positions (1–12) of its phrase.
    ///
    /// # Errors
    /// Too few words, or a wrong one.
    pub async fn verify_phrase(&self, answers: Vec<(usize, Zeroizing<String>)>) -> Result<(), EngineError> {
        self.ask(Order::VerifyPhrase(answers)).await
    }

    /// Opens the wallet of a phrase in place of the one that is here, which stays where it is kept.
    ///
    /// # Errors
    /// No phrase, or a key that cannot be kept.
    pub async fn restore_wallet(&self, phrase: Zeroizing<String>) -> Result<(), EngineError> {
        self.ask(Order::Wallet(Errand::Restore(Phrase::parse(&phrase)?))).await
    }

    /// Makes a new wallet in place of the one that is here, which stays where it is kept.
    ///
    /// # Errors
    /// A key that cannot be kept.
    pub async fn new_wallet(&self) -> Result<(), EngineError> {
        self.ask(Order::Wallet(Errand::New)).await
    }

    /// Keeps the wallet's key in a file that this password opens, in place of the keyring.
    ///
    /// # Errors
    /// A password that is too short, or a file that cannot be written.
    pub async fn set_password(&self, password: Zeroizing<String>) -> Result<(), EngineError> {
        self.ask(Order::Wallet(Errand::SetPassword(password))).await
    }

    /// Opens the wallet's file with its password.
    ///
    /// # Errors
    /// Another password, or a damaged file.
    pub async fn unlock(&self, password: Zeroizing<String>) -> Result<(), EngineError> {
        self.ask(Order::Wallet(Errand::Unlock(password))).await
    }

    /// Ends the worker and then the engine.
    pub async fn stop(&self) {
        // An engine that is gone has stopped.
        let _ = self.ask(Order::Stop).await;
    }

    async fn ask(&self, order: Order) -> Result<(), EngineError> {
        let (answer, answered) = oneshot::channel();
        self.orders.send((order, answer)).await.map_err(|_| GONE)?;
        answered.await.map_err(|_| GONE)?
    }
}
