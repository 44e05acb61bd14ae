//! What could compute, and what does: graphics cards and the processor, each with a switch of its own.

use std::collections::BTreeSet;
use std::pin::Pin;

use tokio::sync::watch;

use super::facts::{Device, DeviceKind};
use crate::worker::Hardware;

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
