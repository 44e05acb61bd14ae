//! What could compute, and what does: graphics cards and the processor, each with a switch of its own.

use std::collections::BTreeSet;
use std::pin::Pin;

use tokio::sync::watch;
use tokio::task::JoinError;
use tokio::time::Instant;

use super::facts::{Device, DeviceKind};
use super::status::DeviceState;
use super::task::Core;
use super::work::give_back;
use super::{EngineError, PAUSE_MAX};
use crate::worker::Hardware;

/// Identity of the processor.
const CPU_ID: &str = "cpu";

/// Something that could compute, found on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The same for the same hardware, whatever is plugged in beside it.
    pub id: String,
    /// For people.
    pub name: String,
    /// GPU or CPU.
    pub kind: DeviceKind,
    /// Its memory; 0 when nobody tells.
    pub memory_bytes: u64,
    /// Why it cannot be used, if so.
    pub unusable: Option<String>,
}

/// What a search found: everything that could compute, and the best of it that is switched on, which may change later
/// (a driver comes up minutes after the machine). An error is in words for people.
pub struct Search {
    /// Everything.
    pub found: Vec<Found>,
    /// The best.
    pub best: Result<watch::Receiver<Hardware>, String>,
}

/// A search under way; it may take long.
pub type Searching = Pin<Box<dyn Future<Output = Search> + Send>>;

/// Searches, leaving out the devices whose ids are switched off.
pub type FindHardware = Box<dyn Fn(BTreeSet<String>) -> Searching + Send>;

/// The devices as windows show them.
pub(super) fn shown(found: &[Found], off: &BTreeSet<String>, in_use: Option<&Hardware>) -> Vec<Device> {
    let used = in_use.map(|hardware| hardware.kernel.identity());
    let device = |found: &Found| {
        let is_used = used.as_ref() == Some(&found.id);
        let on = !off.contains(&found.id);
        let why = match (&found.unusable, in_use) {
            (Some(why), _) => Some(why.clone()),
            (None, Some(hardware)) if is_used => Some(hardware.why.clone()).filter(|why| !why.is_empty()),
            _ => None,
        };
        let (id, name) = (found.id.clone(), found.name.clone());
        Device { id, name, kind: found.kind, on, used: is_used, why, memory_bytes: found.memory_bytes }
    };
    found.iter().map(device).collect()
}

impl Core {
    pub fn find_hardware(&mut self) {
        let off: BTreeSet<String> = self.intent.off.clone();
        if let Some(before) = self.finding.replace(tokio::spawn((self.config.hardware)(off))) {
            before.abort();
        }
    }

    /// The machine slept: a card that was not there before may be there now.
    pub fn woke(&mut self) {
        let has_card = |hardware: &watch::Receiver<Hardware>| hardware.borrow().kernel.identity() != CPU_ID;
        if !self.hardware.as_ref().is_some_and(has_card) {
            self.find_hardware();
        }
    }

    pub async fn hardware_found(&mut self, searched: Result<Search, JoinError>) {
        let reason = match searched {
            Ok(Search { found, best }) => {
                self.found = found;
                match best {
                    Ok(hardware) => {
                        // The same is not opened twice.
                        let id = |hardware: &watch::Receiver<Hardware>| hardware.borrow().kernel.identity();
                        if self.hardware.as_ref().map(id) != Some(id(&hardware)) {
                            if !self.is_wished() {
                                // A card that computes nothing is not kept awake: whoever works opens it again.
                                give_back(hardware.clone(), Instant::now() + PAUSE_MAX).await;
                            }
                            self.hardware = Some(hardware);
                        }
                        return self.show_hardware();
                    }
                    Err(reason) => reason,
                }
            }
            Err(error) if error.is_cancelled() => return,
            Err(_) => "the driver took its thread with it".to_owned(),
        };
        self.hardware = None;
        self.status.device = DeviceState::Failed { problem: (&EngineError::Device(reason)).into() };
    }

    pub fn show_hardware(&mut self) {
        let Some(newest) = &mut self.hardware else { return };
        let hardware = newest.borrow_and_update();
        self.status.device = DeviceState::Ready { name: hardware.kernel.device(), why: hardware.why.clone() };
        if let Some(running) = &self.running {
            running.use_hardware(&hardware);
        }
    }
}
