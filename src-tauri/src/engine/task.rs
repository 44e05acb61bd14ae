//! The engine's one task: takes an order or an event, does it, and publishes what came of it.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::MissedTickBehavior;
use tracing::{info, warn};

use super::account::Known;
use super::devices::{Found, Search};
use super::download::Meter;
use super::facts::PauseKind;
use super::intent::{Agreed, INTENT, Intent, pause_from};
use super::purse::Purse;
use super::settings::{SETTINGS, Settings};
use super::status::{DeviceState, Status};
use super::why::Credits;
use super::work::Running;
use super::{Asked, EngineConfig, EngineError, Order};
use crate::net::tls;
use crate::wire::invite::Invite;
use crate::worker::courtesy::{self, Duty, Rules, Welcome};
use crate::worker::{self, Budget, Hardware, HomeError, Occupied, network};

/// Between two looks at clocks and speeds.
const TICK: Duration = Duration::from_secs(1);

/// Most of an unknown device's id that an error repeats.
const NAMED_CHARS_MAX: usize = 64;

/// Asking for the account; aborted when dropped.
pub(super) struct Account {
    pub known: watch::Receiver<Known>,
    pub task: JoinHandle<()>,
}

impl Drop for Account {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// See the module.
pub(super) struct Core {
    pub config: EngineConfig,
    pub board: watch::Sender<Status>,
    pub status: Status,
    pub purse: Purse,
    /// Who waits for the wallet's errand.
    pub sent: Option<oneshot::Sender<Result<(), EngineError>>>,
    pub finding: Option<JoinHandle<Search>>,
    pub found: Vec<Found>,
    pub hardware: Option<watch::Receiver<Hardware>>,
    pub network: Option<Invite>,
    /// An invitation that waits, and its code.
    pub offer: Option<(Invite, String)>,
    pub running: Option<Running>,
    pub account: Option<Account>,
    pub working: watch::Sender<bool>,
    /// Answers so far, and when the last of them was seen, by the monotonic clock.
    pub answered: (u64, Option<Duration>),
    pub credits: Credits,
    pub intent: Intent,
    /// When the present pause began, by the monotonic clock.
    pub paused_at: Option<Duration>,
    pub settings: Settings,
    pub rules: watch::Sender<Rules>,
    pub welcome: watch::Receiver<Welcome>,
    pub budget: (watch::Sender<Option<u64>>, Budget),
    pub duty: Duty,
    pub meter: Meter,
    /// Free bytes of the disk with the slices, as of the last tick.
    pub free_disk_bytes: u64,
    /// This program works in the state directory alone, or does nothing.
    pub alone: Result<Occupied, Arc<HomeError>>,
}

/// What a task gives, if there is one; its place is empty then.
pub(super) async fn end_of<T>(task: &mut Option<JoinHandle<T>>) -> Result<T, JoinError> {
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

/// Answers an order; a refusal is in the log too.
pub(super) fn tell(answer: oneshot::Sender<Result<(), EngineError>>, done: Result<(), EngineError>) {
    if let Err(error) = &done {
        info!(code = error.code(), %error, "refused");
    }
    // Whoever asked may be gone.
    let _ = answer.send(done);
}

impl Core {
    pub fn new(config: EngineConfig, board: watch::Sender<Status>) -> Self {
        let dir = &config.state_dir;
        let alone = worker::occupy(dir).map_err(Arc::new);
        // What another program works with is not even read: a damaged file would be put aside under its hands.
        let (settings, damaged): (Settings, _) = if alone.is_ok() { SETTINGS.read(dir) } else { Default::default() };
        let (intent, forgotten): (Intent, _) = if alone.is_ok() { INTENT.read(dir) } else { Default::default() };
        let purse = Purse::new(Arc::clone(&config.store), dir.clone());
        let (rules, wished) = watch::channel(settings.rules.clone());
        let (welcome, _) =
            courtesy::watch(wished, config.sources.clone(), Arc::clone(&config.clock), config.look_every);
        let mut core = Self {
            board,
            status: Status::default(),
            purse,
            sent: None,
            finding: None,
            found: Vec::new(),
            hardware: None,
            network: None,
            offer: None,
            running: None,
            account: None,
            working: watch::Sender::new(false),
            answered: (0, None),
            credits: Credits::default(),
            paused_at: None,
            rules,
            welcome,
            budget: Budget::changeable(None),
            duty: Duty::default(),
            meter: Meter::default(),
            free_disk_bytes: 0,
            intent,
            settings,
            alone,
            config,
        };
        if damaged.is_some() && core.intent.contributing {
            // Defaults are not what the owner wished: nothing is done by them before somebody has looked.
            let pause = pause_from(PauseKind::UntilResumed, core.now_unix_s());
            if let Err(error) = core.intend(|intent| intent.pause = Some(pause)) {
                warn!(%error, "the pause is not kept");
            }
        }
        let taken = core.check_alone().err();
        let problem = taken.or(damaged.or(forgotten).map(EngineError::from));
        core.status.state_problem = problem.map(|error| (&error).into());
        core.apply_settings();
        core.look_at_pause();
        core.find_hardware();
        if core.alone.is_ok() {
            core.open_wallet();
        }
        match network::join(&core.config.state_dir, None, &[], core.now_unix_s()) {
            Ok(invite) => core.belong_to(invite),
            Err(error) => core.status.network_problem = Some((&EngineError::from(error)).into()),
        }
        core.publish();
        core
    }

    pub async fn run(mut self, mut orders: mpsc::Receiver<Asked>) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut sleep = self.sleep();
        loop {
            tokio::select! {
                asked = orders.recv() => {
                    let Some((order, answer)) = asked else { break };
                    let done = match order {
                        Order::Stop => {
                            self.rest().await;
                            // Whoever asked may be gone.
                            let _ = answer.send(Ok(()));
                            return;
                        }
                        Order::Wallet(errand) => match self.send_to_wallet(errand).await {
                            // Answered when it is over.
                            Ok(()) => {
                                self.sent = Some(answer);
                                continue;
                            }
                            Err(error) => Err(error),
                        },
                        order => self.obey(order).await,
                    };
                    self.reconcile().await;
                    self.publish();
                    tell(answer, done);
                }
                returned = self.purse.returned() => self.wallet_returned(returned).await,
                found = end_of(&mut self.finding) => self.hardware_found(found).await,
                () = change_of(self.hardware.as_mut()) => self.show_hardware(),
                () = change_of(Some(&mut self.welcome)) => {}
                event = super::work::event_of(self.running.as_mut()) => {
                    if let Some(ended) = event { self.worker_ended(ended).await }
                }
                () = change_of(self.account.as_mut().map(|account| &mut account.known)) => {}
                _ = tick.tick() => self.look_at_clocks(),
                () = &mut sleep => {
                    sleep = self.sleep();
                    self.woke();
                }
            }
            self.reconcile().await;
            self.publish();
        }
        self.rest().await;
    }

    async fn obey(&mut self, order: Order) -> Result<(), EngineError> {
        self.check_alone()?;
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
                self.rest().await;
                self.belong_to(Some(invite));
            }
            Order::Decline => self.offer = None,
            Order::Leave => {
                // First the work, whatever the disk says.
                self.rest().await;
                self.intend(|intent| intent.contributing = false)?;
                network::leave(&self.config.state_dir)?;
                self.belong_to(None);
                // The build's own network, if it has one, is what remains.
                let rest = network::join(&self.config.state_dir, None, &[], self.now_unix_s())?;
                self.belong_to(rest);
            }
            Order::Contribute(true) => {
                self.can_contribute()?;
                self.status.worker_problem = None;
                self.intend(|intent| (intent.contributing, intent.pause) = (true, None))?;
            }
            Order::Contribute(false) => {
                self.rest().await;
                self.intend(|intent| (intent.contributing, intent.pause) = (false, None))?;
            }
            Order::Pause(kind) => {
                self.rest().await;
                let pause = pause_from(kind, self.now_unix_s());
                self.paused_at = Some(self.config.clock.mono());
                self.intend(|intent| intent.pause = intent.contributing.then_some(pause))?;
            }
            Order::SwitchDevice(id, on) => {
                if !self.found.iter().any(|found| found.id == id) {
                    return Err(EngineError::NoSuchDevice(id.chars().take(NAMED_CHARS_MAX).collect()));
                }
                let is_used = self.status.devices.iter().any(|device| device.id == id && device.used);
                self.intend(|intent| {
                    let _ = if on { intent.off.remove(&id) } else { intent.off.insert(id) };
                })?;
                if is_used && !on {
                    self.rest().await;
                    self.hardware = None;
                    self.status.device = DeviceState::Opening;
                }
                self.find_hardware();
            }
            Order::SaveSettings(settings) => self.save_settings(*settings).await?,
            Order::ConfirmDownload(yes) => {
                let asked = self.running.as_ref().zip(self.status.confirm_download).zip(self.network.as_ref());
                let ((running, download), network) = asked.ok_or(EngineError::NothingAsked)?;
                if yes {
                    let agreed = Agreed::to(network.operator, download.needed_bytes);
                    // The worker may just have ended.
                    let _ = running.agreed.send(agreed.bytes);
                    self.intend(|intent| intent.agreed = Some(agreed))?;
                } else {
                    self.rest().await;
                    self.intend(|intent| intent.contributing = false)?;
                }
            }
            Order::DeleteSlices => {
                self.rest().await;
                // A full disk, which keeps nothing, is what this order is for.
                let kept = self.intend(|intent| (intent.contributing, intent.agreed) = (false, None));
                super::remove::slices(self.config.state_dir.clone()).await?;
                kept.or_else(|_| self.intend(|_| ()))?;
            }
            Order::OpenWallet => self.open_wallet(),
            Order::ShowPhrase(words) => {
                // Nobody may be waiting any more.
                let _ = words.send(self.purse.phrase()?.words());
            }
            Order::VerifyPhrase(answers) => {
                self.purse.verify(&answers)?;
                self.status.wallet = self.purse.status();
            }
            Order::Context(asked) => {
                let wallet = self.purse.wallet().cloned();
                let network = self.effective_network();
                let rate = self.account.as_ref().and_then(|account| account.known.borrow().rate);
                let _ = asked.send(super::Context { wallet, network, rate });
            }
            Order::Wallet(_) | Order::Stop => {}
        }
        Ok(())
    }

    /// Nothing is done in a state directory that another program works in.
    pub fn check_alone(&self) -> Result<(), EngineError> {
        self.alone.as_ref().map(drop).map_err(|error| Arc::clone(error).into())
    }

    /// Completes once the machine has slept.
    fn sleep(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let clock = Arc::clone(&self.config.clock);
        Box::pin(async move { worker::slept(&*clock, TICK).await })
    }

    /// Works for this network from now on; the worker, if any, was stopped before.
    pub fn belong_to(&mut self, invite: Option<Invite>) {
        self.status.network_problem = None;
        self.network = invite;
        self.ask_for_account();
    }

    pub fn offered(&self) -> Option<&Invite> {
        self.offer.as_ref().map(|(invite, _)| invite)
    }

    pub fn now_unix_s(&self) -> u64 {
        Duration::from_millis(self.config.clock.unix_ms()).as_secs()
    }
}
