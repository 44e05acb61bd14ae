//! The experts that a worker holds, by lease, and the library of verified experts behind them.
//!
//! A new slice takes over when all of it is verified; the one before stays until the backbone first asks under the new
//! lease, so that no request under way finds its experts gone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use super::Source;
use crate::kernel::{Expert, ExpertSource};
use crate::model::Manifest;
use crate::types::ExpertId;
use crate::wire::Slice;

/// What a lease gives, verified and ready.
pub(super) struct Held {
    pub lease: u32,
    pub slice: Slice,
    /// Elements of a row.
    pub hidden: usize,
    pub experts: HashMap<ExpertId, Arc<Expert>>,
}

impl ExpertSource for Held {
    fn expert(&self, layer: u16, expert: u16) -> Option<Arc<Expert>> {
        self.experts.get(&ExpertId { layer, expert }).cloned()
    }
}

#[derive(Default)]
struct Leases {
    newest: Option<Arc<Held>>,
    before: Option<Arc<Held>>,
}

/// The leases of a session.
#[derive(Default)]
pub(super) struct Holdings(RwLock<Leases>);

impl Holdings {
    fn read(&self) -> RwLockReadGuard<'_, Leases> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Leases)) {
        change(&mut self.0.write().unwrap_or_else(PoisonError::into_inner));
    }

    pub fn newest(&self) -> Option<Arc<Held>> {
        self.read().newest.clone()
    }

    /// The experts of a lease; the first question for the newest lets go of the one before.
    pub fn of_lease(&self, lease: u32) -> Option<Arc<Held>> {
        let (newest, before) = {
            let leases = self.read();
            (leases.newest.clone(), leases.before.clone())
        };
        if let Some(held) = newest.filter(|held| held.lease == lease) {
            if before.is_some() {
                self.change(|leases| leases.before = None);
            }
            return Some(held);
        }
        before.filter(|held| held.lease == lease)
    }

    pub fn take_over(&self, held: Arc<Held>) {
        self.change(|leases| leases.before = leases.newest.replace(held));
    }

    /// Lets go of some experts of the newest lease.
    pub fn give_up(&self, leaving: &Slice) {
        self.change(|leases| {
            leases.before = None;
            let Some(held) = leases.newest.take() else { return };
            let slice = held.slice.without(leaving);
            let experts = slice.iter().filter_map(|id| Some((id, Arc::clone(held.experts.get(&id)?)))).collect();
            leases.newest = Some(Arc::new(Held { lease: held.lease, hidden: held.hidden, slice, experts }));
        });
    }
}

/// Verified experts of one model, kept over reconnects.
pub(super) struct Library {
    source: Source,
    shelf: Mutex<Shelf>,
}

#[derive(Default)]
struct Shelf {
    manifest: Option<Arc<Manifest>>,
    /// Whether the manifest is the local model's.
    own: bool,
    experts: HashMap<ExpertId, Arc<Expert>>,
}

impl Library {
    pub fn new(source: Source) -> Self {
        Self { source, shelf: Mutex::default() }
    }

    pub fn source(&self) -> &Source {
        &self.source
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn manifest(&self) -> Option<Arc<Manifest>> {
        self.shelf().manifest.clone()
    }

    /// Whether the local model is the one that is served.
    pub fn is_own(&self) -> bool {
        self.shelf().own
    }

    /// Starts over for another model; `own` when it is the local one.
    pub fn set_manifest(&self, manifest: Arc<Manifest>, own: bool) {
        *self.shelf() = Shelf { manifest: Some(manifest), own, experts: HashMap::new() };
    }

    pub fn get(&self, id: ExpertId) -> Option<Arc<Expert>> {
        self.shelf().experts.get(&id).cloned()
    }

    pub fn put(&self, id: ExpertId, expert: Arc<Expert>) {
        self.shelf().experts.insert(id, expert);
    }

    /// Drops every expert outside `slice`.
    pub fn keep_only(&self, slice: &Slice) {
        self.shelf().experts.retain(|id, _| slice.contains(*id));
    }
}
