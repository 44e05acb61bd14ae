//! The worker's side of the engine: when it works, with what, and how it is told to windows.
//!
//! One rule decides: it works while its owner wants it, nothing holds it back, and everything that it needs is there.
//! **Promise:** who rests gives the hardware back: no work on a graphics card, and none of its memory.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{Instant, timeout_at};
use tracing::{info, warn};

use super::account::{Asking, Known};
use super::facts::{ConfirmDownload, Download, Legs, StandingBy};
use super::status::{Link, Slice, State};
use super::task::{Account, Core};
use super::why::{self, Beside};
use super::{AccountProblem, EngineError, PAUSE_MAX, devices};
use crate::model::room::disk_free;
use crate::net::dial::Outbound;
use crate::shutdown::{self, ShutdownTrigger};
use crate::wire::invite::Invite;
use crate::worker::courtesy::Welcome;
use crate::worker::{self, CacheConfig, Consent, Hardware, WorkerConfig, WorkerError, WorkerStatus};

/// Part of [`PAUSE_MAX`] that the driver has to itself; the worker's own drain takes 700 ms at most.
const GIVE_BACK: Duration = Duration::from_millis(150);

/// Fetched experts are kept in this directory of the state.
pub(super) const EXPERTS_DIR: &str = "experts";

/// A worker under way.
pub(super) struct Running {
    stop: ShutdownTrigger,
    task: JoinHandle<Result<(), WorkerError>>,
    pub status: watch::Receiver<WorkerStatus>,
    /// Lets a download of so many bytes begin.
    pub agreed: watch::Sender<u64>,
    hardware: watch::Receiver<Hardware>,
    /// Tells the worker of hardware that was chosen later.
    newest: watch::Sender<Hardware>,
}

impl Running {
    /// Moves the worker to `hardware`, if it is not there already.
    pub fn use_hardware(&self, hardware: &Hardware) {
        if !Arc::ptr_eq(&self.hardware.borrow().kernel, &hardware.kernel) {
            self.newest.send_replace(hardware.clone());
        }
    }
}

type Ended = Result<Result<(), WorkerError>, JoinError>;

/// A change of the worker's status, or how the worker ended; for ever nothing without a worker.
pub(super) async fn event_of(running: Option<&mut Running>) -> Option<Ended> {
    let Some(running) = running else { return std::future::pending().await };
    tokio::select! {
        biased;
        ended = &mut running.task => Some(ended),
        Ok(()) = running.status.changed() => None,
    }
}

/// Bytes that slices may still be written of; 0 when the system does not say.
pub(super) fn free_disk(dir: &Path) -> u64 {
    disk_free(dir).unwrap_or(0)
}

impl Core {
    /// What is missing before anything can be contributed.
    pub fn can_contribute(&self) -> Result<(), EngineError> {
        self.network.as_ref().ok_or(EngineError::NoNetwork)?;
        self.purse.wallet().ok_or(EngineError::NoWallet)?;
        self.hardware.as_ref().map(drop).ok_or(EngineError::NoDevice)
    }

    /// Whether its owner wants it to work now, and nothing holds it back.
    pub fn is_wished(&self) -> bool {
        self.intent.contributing && self.intent.pause.is_none() && *self.welcome.borrow() == Welcome::Yes
    }

    /// Works if it should, rests if it should not.
    pub async fn reconcile(&mut self) {
        let is_wanted = self.is_wished() && self.alone.is_ok() && self.can_contribute().is_ok();
        match (is_wanted, &self.running) {
            // Whoever ended by itself waits for its owner.
            (true, None) if self.status.worker_problem.is_none() => self.start(),
            (false, Some(_)) => self.rest().await,
            _ => {}
        }
    }

    /// The network with the gateways that its owner chose.
    pub fn effective_network(&self) -> Option<Invite> {
        let mut network = self.network.clone()?;
        if !self.settings.gateways.is_empty() {
            network.gateways.clone_from(&self.settings.gateways);
        }
        Some(network)
    }

    fn start(&mut self) {
        let (Some(invite), Some(wallet)) = (self.effective_network(), self.purse.wallet()) else { return };
        let Some(chosen) = self.hardware.as_ref().map(|hardware| hardware.borrow().clone()) else { return };
        let gateways = invite.gateways.clone();
        let agreed_bytes = self.intent.agreed_bytes(&invite.operator);
        let (agreed, consent) = Consent::asked_above(self.config.large_download_bytes, agreed_bytes);
        let cache = CacheConfig::new(self.config.state_dir.join(EXPERTS_DIR), Some(self.settings.disk_cap_bytes));
        let outbound = Outbound { network_ca_pem: invite.ca_pem.clone(), ..self.config.outbound.clone() };
        let config = WorkerConfig {
            gateways,
            outbound,
            clock: Arc::clone(&self.config.clock),
            cache: Some(cache),
            budget: self.budget.1.clone(),
            duty: self.duty.clone(),
            consent,
            ..WorkerConfig::invited(invite, self.config.state_dir.clone(), None)
        };
        let (sender, status) = watch::channel(WorkerStatus::default());
        let (stop, shutdown) = shutdown::channel();
        let (newest, hardware) = watch::channel(chosen);
        let task = tokio::spawn(worker::run(config, Arc::clone(wallet) as _, hardware.clone(), sender, shutdown));
        self.running = Some(Running { stop, task, status, agreed, hardware, newest });
    }

    /// Ends the worker, if there is one, and gives its hardware back. The status says so before it is over.
    pub async fn rest(&mut self) {
        self.status.worker_problem = None;
        let Some(mut running) = self.running.take() else { return };
        self.publish();
        running.stop.fire();
        let until = Instant::now() + PAUSE_MAX;
        if timeout_at(until - GIVE_BACK, &mut running.task).await.is_err() {
            warn!("the worker did not stop in {:?}", PAUSE_MAX - GIVE_BACK);
            running.task.abort();
        }
        give_back(running.hardware, until).await;
    }

    pub async fn worker_ended(&mut self, ended: Ended) {
        let Some(running) = self.running.take() else { return };
        give_back(running.hardware, Instant::now() + PAUSE_MAX).await;
        let error = match ended {
            // It was not told to.
            Ok(Ok(())) | Err(_) => EngineError::Gone("the worker"),
            Ok(Err(error)) => error.into(),
        };
        warn!(%error, "the worker ended");
        self.status.worker_problem = Some((&error).into());
    }

    /// Asks the present network for the present wallet's account, anew.
    pub fn ask_for_account(&mut self) {
        self.account = None;
        let (Some(invite), Some(wallet)) = (self.effective_network(), self.purse.wallet()) else { return };
        let (address, clock) = (wallet.address(), Arc::clone(&self.config.clock));
        let (state_dir, outbound) = (self.config.state_dir.clone(), self.config.outbound.clone());
        match Asking::new(&invite, address, state_dir, clock, outbound) {
            Ok(asking) => {
                let (sender, known) = watch::channel(Known::default());
                let working = self.working.subscribe();
                let task = tokio::spawn(asking.run(sender, working, self.config.intervals));
                self.account = Some(Account { known, task });
            }
            Err(error) => self.status.network_problem = Some((&EngineError::from(error)).into()),
        }
    }

    pub fn publish(&mut self) {
        let network = self.network.as_ref().map(Into::into);
        let offer = self.offered().map(Into::into);
        let pause = self.pause_left();
        let hold = self.welcome.borrow().hold().filter(|_| self.intent.contributing && pause.is_none()).cloned();
        let in_use = self.hardware.as_ref().map(|hardware| hardware.borrow().clone());
        let devices = devices::shown(&self.found, &self.intent.off, in_use.as_ref());
        let status = &mut self.status;
        status.contributing = self.intent.contributing;
        status.pause = pause;
        status.standing_by =
            hold.map(|hold| StandingBy { reason: hold.reason, detail: hold.detail, until_unix_s: hold.until_unix_s });
        (status.network, status.offer, status.devices) = (network, offer, devices);
        if status.settings != self.settings {
            status.settings.clone_from(&self.settings);
        }
        let (mut gateway_rtt_ms, mut backbone_rtt_ms, mut asks, mut trouble) = (None, None, None, None);
        match &mut self.running {
            Some(running) => {
                let worker = running.status.borrow_and_update();
                status.see(&worker);
                (gateway_rtt_ms, backbone_rtt_ms) = (worker.gateway_rtt_ms, worker.hub_rtt_ms);
                (asks, trouble) = (worker.asks_bytes, worker.trouble);
            }
            None => (status.link, status.slice) = (Link::Off, Slice::Nothing),
        }
        let (free_disk_bytes, cap_bytes) = (self.free_disk_bytes, self.settings.disk_cap_bytes);
        status.download = match &status.slice {
            Slice::Fetching { done_bytes, total_bytes } => {
                let (bytes_per_s, eta_s) = self.meter.see(self.config.clock.mono(), *done_bytes, *total_bytes);
                let (needed_bytes, done_bytes) = (*total_bytes, *done_bytes);
                Some(Download { needed_bytes, done_bytes, free_disk_bytes, cap_bytes, bytes_per_s, eta_s })
            }
            _ => None,
        };
        status.confirm_download = asks.map(|needed_bytes| ConfirmDownload {
            needed_bytes,
            free_disk_bytes,
            cap_bytes,
            eta_s: self.meter.seconds(needed_bytes),
        });
        let known = self.account.as_mut().map(|account| account.known.borrow_and_update().clone());
        let Known { account, error, .. } = known.unwrap_or_default();
        status.account = account;
        status.account_problem = error.map(|error| (&EngineError::from(AccountProblem::from(error))).into());
        status.state = status.summed_up();
        status.legs = Legs { gateway_rtt_ms, backbone_rtt_ms, ..status.legs_now() };
        let now = self.config.clock.mono();
        let credited = self.credits.see(status.account.as_ref(), now, self.config.clock.unix_ms());
        if self.answered.0 != status.assignments {
            self.answered = (status.assignments, (status.assignments > self.answered.0).then_some(now));
        }
        status.why_not_earning = why::why(status, Beside { now, answered: self.answered.1, credited, trouble });
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
}

/// Gives back whatever hardware a worker had; the next one opens it anew. A driver that takes longer than `until` does
/// it a little later.
pub(super) async fn give_back(hardware: watch::Receiver<Hardware>, until: Instant) {
    let hardware = hardware.borrow().clone();
    if timeout_at(until, hardware.give_back()).await.is_err() {
        info!("the driver takes its time to give the hardware back");
    }
}
