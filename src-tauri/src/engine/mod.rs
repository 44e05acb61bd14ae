//! The contributor's engine: one wallet, one network, one worker, and a status to watch. It knows no window.
//!
//! [`Engine::start`] opens the wallet and the device and reads which network was joined; orders come through the
//! handle, one after another, and [`Engine::updates`] tells what changed.
//! **Promises:** no order waits for a person – a keyring may ask for its password meanwhile; a wallet whose key is gone
//! is shown as such and never replaced; an invitation changes nothing before it is accepted; pausing ends the worker
//! within [`PAUSE_MAX`]; a watcher hears of at most four changes a second.

mod account;
mod error;
mod facts;
mod settings;
mod status;
mod task;
#[cfg(test)]
mod types;
mod why;

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::clock::{Clock, SystemClock};
use crate::net::dial::Outbound;
use crate::wallet::KeyStore;
use crate::worker::Hardware;

pub use account::Intervals;
pub use error::{AccountProblem, EngineError};
pub use facts::{
    ConfirmDownload, DayEarned, Device, DeviceKind, Download, Leg, Legs, Needs, Pause, PauseKind, ReceiptLine,
    StandingBy, Stored, WalletStatus, Why, WhyCode,
};
pub use settings::{Language, Settings};
pub use status::{Account, DeviceState, Link, Network, Problem, Slice, State, Status, Tray, View, WalletState};

/// Shortest time between two updates of a watcher.
pub const UPDATE_EVERY: Duration = Duration::from_millis(250);
/// Longest wait for a worker that was told to stop; its own drain takes about one second.
pub const PAUSE_MAX: Duration = Duration::from_secs(3);
/// Orders that wait while one is done; a person has two hands.
const ORDERS_MAX: usize = 16;

/// Finds what computes, which may take long and may change later. An error is in words for people.
pub type FindHardware = Pin<Box<dyn Future<Output = Result<watch::Receiver<Hardware>, String>> + Send>>;

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
    /// How gateways are reached; the network's own certificate authority comes with its join code.
    pub outbound: Outbound,
    /// How often the account is asked for.
    pub intervals: Intervals,
    /// Wall time.
    pub clock: Arc<dyn Clock>,
}

impl EngineConfig {
    /// An engine with the usual intervals and this machine's clock.
    #[must_use]
    pub fn new(state_dir: PathBuf, store: Arc<dyn KeyStore>, hardware: FindHardware) -> Self {
        let (intervals, clock) = (Intervals::default(), Arc::new(SystemClock::default()));
        Self { state_dir, store, hardware, memory_bytes: None, outbound: Outbound::default(), intervals, clock }
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
    Stop,
}

type Asked = (Order, oneshot::Sender<Result<(), EngineError>>);

/// A handle to a running engine; when the last one is dropped, the engine stops.
#[derive(Clone)]
pub struct Engine {
    orders: mpsc::Sender<Asked>,
    status: watch::Receiver<Status>,
}

impl Engine {
    /// Starts the engine on the current runtime. The task ends after [`Engine::stop`].
    #[must_use]
    pub fn start(config: EngineConfig) -> (Self, JoinHandle<()>) {
        let (orders, inbox) = mpsc::channel(ORDERS_MAX);
        let (board, status) = watch::channel(Status::default());
        let task = tokio::spawn(task::Core::new(config, board).run(inbox));
        (Self { orders, status }, task)
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
        let _ = kind;
        Err(EngineError::NotYet("pause"))
    }

    /// Ends a pause and contributes.
    ///
    /// # Errors
    /// As [`Engine::contribute`].
    pub async fn resume(&self) -> Result<(), EngineError> {
        Err(EngineError::NotYet("resume"))
    }

    /// Lets a device compute, or not.
    ///
    /// # Errors
    /// No such device, or what keeps it from being remembered.
    pub async fn switch_device(&self, id: String, on: bool) -> Result<(), EngineError> {
        let _ = (id, on);
        Err(EngineError::NotYet("switch_device"))
    }

    /// Keeps the settings and goes by them from now on.
    ///
    /// # Errors
    /// Values that make no sense, or what keeps them from being written.
    pub async fn save_settings(&self, settings: Settings) -> Result<(), EngineError> {
        let _ = settings;
        Err(EngineError::NotYet("save_settings"))
    }

    /// Answers the question that [`Status::confirm_download`] shows; a no pauses until resumed.
    ///
    /// # Errors
    /// Nothing waits for an answer.
    pub async fn confirm_download(&self, yes: bool) -> Result<(), EngineError> {
        let _ = yes;
        Err(EngineError::NotYet("confirm_download"))
    }

    /// Stops contributing and deletes every expert from the disk.
    ///
    /// # Errors
    /// What cannot be deleted.
    pub async fn delete_slices(&self) -> Result<(), EngineError> {
        Err(EngineError::NotYet("delete_slices"))
    }

    /// Stops and removes everything of this installation, the wallet's key included. Without a verified backup only
    /// when told that this is known.
    ///
    /// # Errors
    /// No backup was verified and nothing confirmed, or what cannot be removed.
    pub async fn remove_everything(&self, confirmed_without_backup: bool) -> Result<(), EngineError> {
        let _ = confirmed_without_backup;
        Err(EngineError::NotYet("remove_everything"))
    }

    /// The wallet's backup phrase: 12 words, for its owner's eyes.
    ///
    /// # Errors
    /// No open wallet, or one of before phrases.
    pub async fn show_phrase(&self) -> Result<Zeroizing<Vec<String>>, EngineError> {
        Err(EngineError::NotYet("show_phrase"))
    }

    /// Remembers that the wallet is backed up, when these words stand at these positions (1–12) of its phrase.
    ///
    /// # Errors
    /// Too few words, or a wrong one.
    pub async fn verify_phrase(&self, answers: Vec<(usize, Zeroizing<String>)>) -> Result<(), EngineError> {
        drop(answers);
        Err(EngineError::NotYet("verify_phrase"))
    }

    /// Opens the wallet of a phrase in place of the one that is here, which stays where it is kept.
    ///
    /// # Errors
    /// No phrase, or a key that cannot be kept.
    pub async fn restore_wallet(&self, phrase: Zeroizing<String>) -> Result<(), EngineError> {
        drop(phrase);
        Err(EngineError::NotYet("restore_wallet"))
    }

    /// Makes a new wallet in place of the one that is here, which stays where it is kept.
    ///
    /// # Errors
    /// A key that cannot be kept.
    pub async fn new_wallet(&self) -> Result<(), EngineError> {
        Err(EngineError::NotYet("new_wallet"))
    }

    /// Keeps the wallet's key in a file that this password opens, in place of the keyring.
    ///
    /// # Errors
    /// A password that is too short, or a file that cannot be written.
    pub async fn set_password(&self, password: Zeroizing<String>) -> Result<(), EngineError> {
        drop(password);
        Err(EngineError::NotYet("set_password"))
    }

    /// Opens the wallet's file with its password.
    ///
    /// # Errors
    /// Another password, or a damaged file.
    pub async fn unlock(&self, password: Zeroizing<String>) -> Result<(), EngineError> {
        drop(password);
        Err(EngineError::NotYet("unlock"))
    }

    /// Claims to be paid so many nano-KVR of what is pending, all of it when `None`; gives the signed claim's words.
    ///
    /// # Errors
    /// No wallet or network, an amount that cannot be claimed, or a gateway that refuses.
    pub async fn claim(&self, nano: Option<String>) -> Result<String, EngineError> {
        let _ = nano;
        Err(EngineError::NotYet("claim"))
    }

    /// The receipts that the worker kept, newest first.
    ///
    /// # Errors
    /// A directory that cannot be read.
    pub async fn receipts(&self) -> Result<Vec<ReceiptLine>, EngineError> {
        Err(EngineError::NotYet("receipts"))
    }

    /// Ends the worker and then the engine.
    pub async fn stop(&self) {
        // An engine that is gone has stopped.
        let _ = self.ask(Order::Stop).await;
    }

    async fn ask(&self, order: Order) -> Result<(), EngineError> {
        const GONE: EngineError = EngineError::Gone("the engine");
        let (answer, answered) = oneshot::channel();
        self.orders.send((order, answer)).await.map_err(|_| GONE)?;
        answered.await.map_err(|_| GONE)?
    }
}

/// The changes of an engine, at most one every [`UPDATE_EVERY`]; what happens in between shows in the next.
pub struct Updates {
    status: watch::Receiver<Status>,
    last: Option<Instant>,
}

impl Updates {
    /// The next change; `None` once the engine has stopped.
    pub async fn next(&mut self) -> Option<Status> {
        self.status.changed().await.ok()?;
        if let Some(last) = self.last {
            tokio::time::sleep_until(last + UPDATE_EVERY).await;
        }
        self.last = Some(Instant::now());
        Some(self.status.borrow_and_update().clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_watcher_hears_of_at_most_four_changes_a_second_and_of_the_last_one() {
        let (board, status) = watch::channel(Status::default());
        let mut watched = status.clone();
        watched.mark_changed();
        let mut updates = Updates { status: watched, last: None };
        let writer = tokio::spawn(async move {
            for assignments in 1..=200u64 {
                board.send_modify(|s| s.assignments = assignments);
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
        });
        let (start, mut heard, mut last) = (Instant::now(), 0, 0);
        while let Some(status) = updates.next().await {
            (heard, last) = (heard + 1, status.assignments);
        }
        writer.await.unwrap();
        assert!(heard <= start.elapsed().as_millis() / UPDATE_EVERY.as_millis() + 1, "{heard}");
        assert_eq!(last, 200);
    }
}
