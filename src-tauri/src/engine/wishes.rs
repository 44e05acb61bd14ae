//! What the owner wishes, as the engine's task goes by it: settings, pauses, and errands for the wallet.

use tracing::warn;

use super::EngineError;
use super::facts::{Needs, Pause, WalletStatus};
use super::intent::{INTENT, Intent, left_of};
use super::purse::{Brought, Errand};
use super::settings::{SETTINGS, Settings};
use super::task::{Core, tell};
use super::work::free_disk;

impl Core {
    /// Changes what is wanted, and keeps it.
    pub fn intend(&mut self, change: impl FnOnce(&mut Intent)) -> Result<(), EngineError> {
        change(&mut self.intent);
        Ok(INTENT.write(&self.config.state_dir, &self.intent)?)
    }

    pub async fn save_settings(&mut self, settings: Settings) -> Result<(), EngineError> {
        settings.check()?;
        SETTINGS.write(&self.config.state_dir, &settings)?;
        let before = std::mem::replace(&mut self.settings, settings);
        self.apply_settings();
        let now = &self.settings;
        if (&now.gateways, now.disk_cap_bytes) != (&before.gateways, before.disk_cap_bytes) {
            // What a worker is told when it starts.
            self.rest().await;
            self.ask_for_account();
        }
        Ok(())
    }

    /// What can change while a worker works.
    pub fn apply_settings(&mut self) {
        let memory = [self.config.memory_bytes, self.settings.vram_cap_bytes].into_iter().flatten().min();
        self.budget.0.send_if_modified(|before| std::mem::replace(before, memory) != memory);
        self.duty.set(self.settings.rules.duty_percent);
        let rules = self.settings.rules.clone();
        self.rules.send_if_modified(|before| {
            let is_new = *before != rules;
            *before = rules;
            is_new
        });
    }

    /// Ends a pause that is over. One that goes on stays on the disk as it was asked for: a clock that is wrong after a
    /// start, and set right later, must not have shortened it.
    pub fn look_at_pause(&mut self) {
        let (Some(pause), Ok(_alone)) = (self.intent.pause, &self.alone) else { return };
        let now = self.config.clock.mono();
        let passed = now.saturating_sub(*self.paused_at.get_or_insert(now)).as_secs();
        if left_of(pause, self.now_unix_s(), passed).is_some() {
            return;
        }
        self.paused_at = None;
        if let Err(error) = self.intend(|intent| intent.pause = None) {
            warn!(%error, "the end of the pause is not kept");
        }
    }

    /// The pause as it is now.
    pub fn pause_left(&self) -> Option<Pause> {
        let passed = self.paused_at.map_or(0, |since| self.config.clock.mono().saturating_sub(since).as_secs());
        left_of(self.intent.pause?, self.now_unix_s(), passed)
    }

    pub fn look_at_clocks(&mut self) {
        self.look_at_pause();
        self.free_disk_bytes = free_disk(&self.config.state_dir);
    }

    pub async fn send_to_wallet(&mut self, errand: Errand) -> Result<(), EngineError> {
        self.check_alone()?;
        if let Errand::Remove { confirmed } = errand {
            self.purse.check_free()?;
            if !confirmed && !self.purse.is_safe() {
                return Err(EngineError::NotBackedUp);
            }
            self.rest().await;
            // Nothing begins again meanwhile, whatever the disk says.
            if let Err(error) = self.intend(|intent| intent.contributing = false) {
                warn!(%error, "that nothing is contributed is not kept");
            }
        }
        self.purse.send(errand)
    }

    /// Everything of this installation is gone from the disk: what was read from it is forgotten.
    fn forget_all(&mut self) {
        self.belong_to(None);
        self.offer = None;
        let was_off = !self.intent.off.is_empty();
        (self.intent, self.settings, self.paused_at) = (Intent::default(), Settings::default(), None);
        self.apply_settings();
        if was_off {
            self.find_hardware();
        }
    }

    pub fn open_wallet(&mut self) {
        // One that is on its way is waited for.
        if self.purse.wallet().is_none() && self.purse.send(Errand::Open).is_ok() {
            self.status.wallet = WalletStatus::default();
        }
    }

    /// An errand for the wallet is over.
    pub async fn wallet_returned(&mut self, returned: Result<Brought, EngineError>) {
        let done = match returned {
            Ok(Brought::Same) => Ok(()),
            Ok(Brought::Other) => {
                // It starts again with the other one.
                self.rest().await;
                self.ask_for_account();
                Ok(())
            }
            Ok(Brought::Removed) => {
                self.forget_all();
                Ok(())
            }
            Err(error) => {
                warn!(code = error.code(), %error, "no wallet");
                Err(error)
            }
        };
        self.status.wallet = match (self.purse.wallet(), &done) {
            (Some(_), _) => self.purse.status(),
            (None, Err(error)) if self.purse.was_to_open() => self.purse.failed(error),
            (None, Err(_)) => std::mem::take(&mut self.status.wallet),
            (None, Ok(())) if !self.purse.has_password() => WalletStatus::default(),
            // A password is at hand, and the phrase is asked for.
            (None, Ok(())) => WalletStatus { needs: Some(Needs::Restore), ..std::mem::take(&mut self.status.wallet) },
        };
        if let Some(answer) = self.sent.take() {
            self.reconcile().await;
            self.publish();
            tell(answer, done);
        }
    }
}
