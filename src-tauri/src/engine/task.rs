//! The engine's one task: takes an order or an event, does it, and publishes what came of it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::timeout;
use tracing::{info, warn};

use super::account::{Asking, Known};
use super::status::{DeviceState, Link, Problem, Slice, State, Status, WalletState};
use super::why::{self, Times};
use super::{AccountProblem, Asked, EngineConfig, EngineError, Order, PAUSE_MAX};
use crate::net::dial::Outbound;
use crate::net::tls;
use crate::shutdown::{self, ShutdownTrigger};
use crate::wallet::{self, KeyStoreError, Wallet};
use crate::wire::invite::Invite;
use crate::worker::{self, CacheConfig, Hardware, WorkerConfig, WorkerError, WorkerStatus, network};

/// The file that remembers which wallet belongs to this installation.
const WALLET_RECORD: &str = "wallet";
/// Fetched experts are kept in this directory of the state.
const EXPERTS_DIR: &str = "experts";

/// A worker under way.
struct Running {
    stop: ShutdownTrigger,
    task: JoinHandle<Result<(), WorkerError>>,
    status: watch::Receiver<WorkerStatus>,
}

/// Asking for the account; aborted when dropped.
struct Account {
    known: watch::Receiver<Known>,
    task: JoinHandle<()>,
}

impl Drop for Account {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// See the module.
pub(super) struct Core {
    config: EngineConfig,
    board: watch::Sender<Status>,
    status: Status,
    opening_wallet: Option<JoinHandle<Result<Wallet, KeyStoreError>>>,
    finding_hardware: Option<JoinHandle<Result<watch::Receiver<Hardware>, String>>>,
    wallet: Option<Arc<Wallet>>,
    hardware: Option<watch::Receiver<Hardware>>,
    network: Option<Invite>,
    /// An invitation that waits, and its code.
    offer: Option<(Invite, String)>,
    running: Option<Running>,
    account: Option<Account>,
    working: watch::Sender<bool>,
    /// Answers so far, and when the last of them was seen, in milliseconds since 1970.
    answered: (u64, Option<u64>),
}

/// What a task gives, if there is one; its place is empty then.
async fn end_of<T>(task: &mut Option<JoinHandle<T>>) -> Result<T, JoinError> {
    let Some(running) = task else { return std::future::pending().await };
    let ended = running.await;
    *task = None;
    ended
}

/// A change of `watched`, if there is anything to watch; what nobody writes any more does not change.
async fn change_of<T>(watched: Option<&mut watch::Receiver<T>>) {
    if let Some(watched) = watched
        && watched.changed().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

type Ended = Result<Result<(), WorkerError>, JoinError>;

/// A change of the worker's status, or how the worker ended; for ever nothing without a worker.
async fn event_of(running: Option<&mut Running>) -> Option<Ended> {
    let Some(running) = running else { return std::future::pending().await };
    tokio::select! {
        biased;
        ended = &mut running.task => Some(ended),
        Ok(()) = running.status.changed() => None,
    }
}

impl Core {
    pub fn new(mut config: EngineConfig, board: watch::Sender<Status>) -> Self {
        let hardware = std::mem::replace(&mut config.hardware, Box::pin(std::future::pending()));
        let mut core = Self {
            config,
            board,
            status: Status::default(),
            opening_wallet: None,
            finding_hardware: Some(tokio::spawn(hardware)),
            wallet: None,
            hardware: None,
            network: None,
            offer: None,
            running: None,
            account: None,
            working: watch::Sender::new(false),
            answered: (0, None),
        };
        core.open_wallet();
        match network::join(&core.config.state_dir, None, &[], core.now_unix_s()) {
            Ok(invite) => core.belong_to(invite),
            Err(error) => core.status.network_problem = Some((&EngineError::from(error)).into()),
        }
        core.publish();
        core
    }

    pub async fn run(mut self, mut orders: mpsc::Receiver<Asked>) {
        loop {
            tokio::select! {
                asked = orders.recv() => {
                    let Some((order, answer)) = asked else { break };
                    if matches!(order, Order::Stop) {
                        self.pause().await;
                        // Whoever asked may be gone.
                        let _ = answer.send(Ok(()));
                        return;
                    }
                    let done = self.obey(order).await;
                    if let Err(error) = &done {
                        info!(code = error.code(), %error, "refused");
                    }
                    self.publish();
                    let _ = answer.send(done);
                }
                opened = end_of(&mut self.opening_wallet) => self.wallet_opened(opened),
                found = end_of(&mut self.finding_hardware) => self.hardware_found(found),
                () = change_of(self.hardware.as_mut()) => self.show_hardware(),
                event = event_of(self.running.as_mut()) => if let Some(ended) = event { self.worker_ended(ended) },
                () = change_of(self.account.as_mut().map(|account| &mut account.known)) => {}
            }
            self.publish();
        }
        self.pause().await;
    }

    async fn obey(&mut self, order: Order) -> Result<(), EngineError> {
        match order {
            Order::Offer(code) => {
                // The build's own network is left by joining another; one that was joined is left first.
                let joined = network::is_joined(&self.config.state_dir);
                let pinned: Vec<_> = self.network.iter().filter(|_| joined).map(|network| network.operator).collect();
                let invite = Invite::read(&code)?.accept(&pinned, self.now_unix_s())?;
                if self.offer.as_ref().is_some_and(|(waiting, _)| waiting.operator != invite.operator) {
                    return Err(EngineError::OfferWaiting);
                }
                if let Some(pem) = &invite.ca_pem {
                    tls::client_config_from_pem(pem)?;
                }
                self.offer = Some((invite, code));
            }
            Order::Accept => {
                let (invite, code) = self.offer.take().ok_or(EngineError::NoOffer)?;
                let invite = invite.accept(&[], self.now_unix_s())?;
                network::keep(&self.config.state_dir, &code)?;
                let contributing = self.running.is_some();
                self.pause().await;
                self.belong_to(Some(invite));
                if contributing {
                    self.contribute()?;
                }
            }
            Order::Decline => self.offer = None,
            Order::Leave => {
                self.pause().await;
                network::leave(&self.config.state_dir)?;
                self.belong_to(None);
                // The build's own network, if it has one, is what remains.
                let rest = network::join(&self.config.state_dir, None, &[], self.now_unix_s())?;
                self.belong_to(rest);
            }
            Order::Contribute(true) => self.contribute()?,
            Order::Contribute(false) => self.pause().await,
            Order::OpenWallet => self.open_wallet(),
            Order::Stop => {}
        }
        Ok(())
    }

    fn open_wallet(&mut self) {
        if self.wallet.is_some() || self.opening_wallet.is_some() {
            return;
        }
        let (store, record) = (Arc::clone(&self.config.store), self.config.state_dir.join(WALLET_RECORD));
        self.status.wallet.state = WalletState::Opening;
        self.opening_wallet = Some(tokio::task::spawn_blocking(move || wallet::open(&*store, &record)));
    }

    fn wallet_opened(&mut self, opened: Result<Result<Wallet, KeyStoreError>, JoinError>) {
        let error = match opened {
            Ok(Ok(wallet)) => {
                self.status.wallet.state = WalletState::Ready { address: wallet.address().to_string() };
                self.wallet = Some(Arc::new(wallet));
                self.ask_for_account();
                return;
            }
            Ok(Err(error)) => EngineError::Wallet(error),
            Err(_) => EngineError::Gone("the wallet's thread"),
        };
        warn!(code = error.code(), %error, "no wallet");
        let problem = Problem::from(&error);
        self.status.wallet.state = match error {
            EngineError::Wallet(KeyStoreError::Missing { address, .. }) => {
                WalletState::KeyMissing { address: address.to_string(), problem }
            }
            _ => WalletState::Failed { problem },
        };
    }

    fn hardware_found(&mut self, found: Result<Result<watch::Receiver<Hardware>, String>, JoinError>) {
        let reason = match found {
            Ok(Ok(hardware)) => {
                self.hardware = Some(hardware);
                return self.show_hardware();
            }
            Ok(Err(reason)) => reason,
            Err(_) => "the driver took its thread with it".to_owned(),
        };
        self.status.device = DeviceState::Failed { problem: (&EngineError::Device(reason)).into() };
    }

    fn show_hardware(&mut self) {
        let Some(newest) = &mut self.hardware else { return };
        let hardware = newest.borrow_and_update();
        self.status.device = DeviceState::Ready { name: hardware.kernel.device(), why: hardware.why.clone() };
    }

    /// Works for this network from now on; the worker, if any, was stopped before.
    fn belong_to(&mut self, invite: Option<Invite>) {
        self.status.network_problem = None;
        self.network = invite;
        self.ask_for_account();
    }

    /// Asks the present network for the present wallet's account, anew.
    fn ask_for_account(&mut self) {
        self.account = None;
        let (Some(invite), Some(wallet)) = (&self.network, &self.wallet) else { return };
        let clock = Arc::clone(&self.config.clock);
        match Asking::new(invite, wallet.address(), clock, self.config.outbound.clone()) {
            Ok(asking) => {
                let (sender, known) = watch::channel(Known::default());
                let working = self.working.subscribe();
                let task = tokio::spawn(asking.run(sender, working, self.config.intervals));
                self.account = Some(Account { known, task });
            }
            Err(error) => self.status.network_problem = Some((&EngineError::from(error)).into()),
        }
    }

    fn contribute(&mut self) -> Result<(), EngineError> {
        if self.running.is_some() {
            return Ok(());
        }
        let invite = self.network.clone().ok_or(EngineError::NoNetwork)?;
        let wallet = Arc::clone(self.wallet.as_ref().ok_or(EngineError::NoWallet)?);
        let hardware = self.hardware.clone().ok_or(EngineError::NoDevice)?;
        let outbound = Outbound { network_ca_pem: invite.ca_pem.clone(), ..self.config.outbound.clone() };
        let config = WorkerConfig {
            outbound,
            clock: Arc::clone(&self.config.clock),
            cache: Some(CacheConfig::new(self.config.state_dir.join(EXPERTS_DIR), None)),
            ..WorkerConfig::invited(invite, self.config.state_dir.clone(), self.config.memory_bytes)
        };
        let (sender, status) = watch::channel(WorkerStatus::default());
        let (stop, shutdown) = shutdown::channel();
        let task = tokio::spawn(worker::run(config, wallet, hardware, sender, shutdown));
        self.status.worker_problem = None;
        self.running = Some(Running { stop, task, status });
        Ok(())
    }

    /// Ends the worker, if there is one. The status says so before it is over.
    async fn pause(&mut self) {
        self.status.worker_problem = None;
        let Some(mut running) = self.running.take() else { return };
        self.publish();
        running.stop.fire();
        if timeout(PAUSE_MAX, &mut running.task).await.is_err() {
            warn!("the worker did not stop in {PAUSE_MAX:?}");
            running.task.abort();
        }
    }

    fn worker_ended(&mut self, ended: Ended) {
        self.running = None;
        let error = match ended {
            // It was not told to.
            Ok(Ok(())) | Err(_) => EngineError::Gone("the worker"),
            Ok(Err(error)) => error.into(),
        };
        warn!(%error, "the worker ended");
        self.status.worker_problem = Some((&error).into());
    }

    fn publish(&mut self) {
        let status = &mut self.status;
        status.contributing = self.running.is_some();
        status.network = self.network.as_ref().map(Into::into);
        status.offer = self.offer.as_ref().map(|(invite, _)| invite.into());
        match &mut self.running {
            Some(running) => status.see(&running.status.borrow_and_update()),
            None => (status.link, status.slice) = (Link::Off, Slice::Nothing),
        }
        let known = self.account.as_mut().map(|account| account.known.borrow_and_update().clone());
        let Known { account, error } = known.unwrap_or_default();
        status.account = account;
        status.account_problem = error.map(|error| (&EngineError::from(AccountProblem::from(error))).into());
        status.state = status.summed_up();
        status.legs = status.legs_now();
        let now = self.config.clock.unix_ms();
        if self.answered.0 != status.assignments {
            self.answered = (status.assignments, (status.assignments > self.answered.0).then_some(now));
        }
        status.why_not_earning = why::why(status, Times { now, answered: self.answered.1 });
        let working = status.state == State::Working;
        self.working.send_if_modified(|before| std::mem::replace(before, working) != working);
        self.board.send_if_modified(|shown| {
            let is_new = *shown != *status;
            if is_new {
                shown.clone_from(status);
            }
            is_new
        });
    }

    fn now_unix_s(&self) -> u64 {
        Duration::from_millis(self.config.clock.unix_ms()).as_secs()
    }
}
