//! What the owner wishes, as the engine's task goes by it: settings, pauses, and errands for the wallet.

use tracing::warn;

use super::EngineError;
use super::facts::{Needs, WalletStatus};
use super::intent::{HOUR_S, INTENT, Intent, left_of};
use super::purse::Errand;
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
        self.duty.set(self.settings.duty_percent);
        let rules = self.settings.rules();
        self.rules.send_if_modified(|before| {
            let is_new = *before != rules;
            *before = rules;
            is_new
        });
    }

    /// Ends a pause that is over, and makes one that a clock has stretched an hour again.
    pub fn look_at_pause(&mut self) {
        let Some(pause) = self.intent.pause else { return };
        let since = *self.paused_at.get_or_insert_with(|| self.config.clock.mono());
        let passed = self.config.clock.mono().saturating_sub(since).as_secs();
        let is_over = pause.until_unix_s.is_some() && passed >= HOUR_S;
        let left = if is_over { None } else { left_of(pause, self.now_unix_s()) };
        if left.is_none() {
            self.paused_at = None;
        }
        if left != Some(pause)
            && let Err(error) = self.intend(|intent| intent.pause = left)
        {
            warn!(%error, "the end of the pause is not kept");
        }
    }

    pub fn look_at_clocks(&mut self) {
        self.look_at_pause();
        self.free_disk_bytes = free_disk(&self.config.state_dir);
    }

    pub fn send_to_wallet(&mut self, errand: Errand) -> Result<(), EngineError> {
        self.check_alone()?;
        self.purse.send(errand)
    }

    pub fn open_wallet(&mut self) {
        // One that is on its way is waited for.
        if self.purse.wallet().is_none() && self.purse.send(Errand::Open).is_ok() {
            self.status.wallet = WalletStatus::default();
        }
    }

    /// An errand for the wallet is over.
    pub async fn wallet_returned(&mut self, returned: Result<bool, EngineError>) {
        let done = match returned {
            Ok(is_other) => {
                if is_other {
                    // It starts again with the other one.
                    self.rest().await;
                    self.ask_for_account();
                }
                Ok(())
            }
            Err(error) => {
                warn!(code = error.code(), %error, "no wallet");
                Err(error)
            }
        };
        self.status.wallet = match (self.purse.wallet(), &done) {
            (Some(_), _) => self.purse.status(),
            (None, Err(error)) => self.purse.failed(error),
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
