//! The experts that a worker holds, by lease, and the library of verified experts behind them.
//!
//! A new slice takes over when all of it is verified; those before stay until the backbone first asks under a later
//! lease, so that no request under way finds its experts gone.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use tokio::sync::OnceCell;
use tokio::task::spawn_blocking;

use super::Source;
use super::fetch::{FetchError, expert_bytes};
use crate::kernel::{Expert, ExpertSource};
use crate::model::{Manifest, Model};
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

impl Held {
    fn within(&self, slice: &Slice) -> Self {
        let experts = self.experts.iter().filter(|(id, _)| slice.contains(**id));
        let experts: HashMap<ExpertId, Arc<Expert>> = experts.map(|(id, expert)| (*id, Arc::clone(expert))).collect();
        let slice = self.slice.iter().filter(|id| slice.contains(*id)).collect();
        Self { lease: self.lease, slice, hidden: self.hidden, experts }
    }
}

impl ExpertSource for Held {
    fn expert(&self, layer: u16, expert: u16) -> Option<Arc<Expert>> {
        self.experts.get(&ExpertId { layer, expert }).cloned()
    }
}

/// Leases before the newest that may still be asked for; of more, the oldest go.
const EARLIER_MAX: usize = 8;

#[derive(Default)]
struct Leases {
    newest: Option<Arc<Held>>,
    /// In the order in which they were held.
    earlier: Vec<Arc<Held>>,
}

impl Leases {
    fn all(&self) -> impl Iterator<Item = &Arc<Held>> {
        self.earlier.iter().chain(&self.newest)
    }
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

    /// Every expert that some lease still holds.
    pub fn ids(&self) -> BTreeSet<ExpertId> {
        self.read().all().flat_map(|held| held.experts.keys().copied()).collect()
    }

    /// The experts of a lease; a question for it lets go of those before it.
    pub fn of_lease(&self, lease: u32) -> Option<Arc<Held>> {
        let (held, is_last) = {
            let leases = self.read();
            let held = leases.all().find(|held| held.lease == lease).cloned()?;
            (held, leases.earlier.iter().all(|earlier| earlier.lease >= lease))
        };
        if !is_last {
            self.change(|leases| leases.earlier.retain(|earlier| earlier.lease >= lease));
        }
        Some(held)
    }

    pub fn take_over(&self, held: Arc<Held>) {
        self.change(|leases| {
            leases.earlier.extend(leases.newest.replace(held));
            let over = leases.earlier.len().saturating_sub(EARLIER_MAX);
            leases.earlier.drain(..over);
        });
    }

    /// Lets go of everything outside `slice`, in every lease.
    pub fn keep_only(&self, slice: &Slice) {
        self.change(|leases| {
            for held in leases.earlier.iter_mut().chain(&mut leases.newest) {
                *held = Arc::new(held.within(slice));
            }
        });
    }
}

/// Verified experts of one model, kept over reconnects.
pub(super) struct Library {
    source: Source,
    /// Manifest of the local model, which is read whole for it: once.
    local: OnceCell<Arc<Manifest>>,
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
        Self { source, local: OnceCell::new(), shelf: Mutex::default() }
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

    /// The manifest of the local model.
    pub async fn manifest_of(&self, model: &Arc<Model>) -> Result<Arc<Manifest>, FetchError> {
        let compute = || async {
            let model = Arc::clone(model);
            Ok(Arc::new(spawn_blocking(move || Manifest::of(&model)).await??))
        };
        self.local.get_or_try_init(compute).await.cloned()
    }

    /// Whether the local model is the one that is served.
    pub fn is_own(&self) -> bool {
        self.shelf().own
    }

    /// Starts over for another model; `own` when it is the local one.
    pub fn set_manifest(&self, manifest: Arc<Manifest>, own: bool) {
        *self.shelf() = Shelf { manifest: Some(manifest), own, experts: HashMap::new() };
    }

    /// Every expert on the shelf.
    pub fn ids(&self) -> BTreeSet<ExpertId> {
        self.shelf().experts.keys().copied().collect()
    }

    pub fn get(&self, id: ExpertId) -> Option<Arc<Expert>> {
        self.shelf().experts.get(&id).cloned()
    }

    pub fn put(&self, id: ExpertId, expert: Arc<Expert>) {
        self.shelf().experts.insert(id, expert);
    }

    /// Stored bytes of the experts on the shelf.
    pub fn bytes(&self) -> u64 {
        let shelf = self.shelf();
        let Some(manifest) = &shelf.manifest else { return 0 };
        shelf.experts.keys().filter_map(|id| expert_bytes(manifest, id.layer)).sum()
    }

    /// Drops every expert outside `slice`.
    pub fn keep_only(&self, slice: &Slice) {
        self.shelf().experts.retain(|id, _| slice.contains(*id));
    }

    /// Drops every expert: where they were placed is gone.
    pub fn clear(&self) {
        self.shelf().experts.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(lease: u32, last: u16) -> Arc<Held> {
        let slice = (0..=last).map(|expert| ExpertId { layer: 0, expert }).collect();
        Arc::new(Held { lease, slice, hidden: 32, experts: HashMap::new() })
    }

    fn known(holdings: &Holdings) -> Vec<u32> {
        holdings.read().all().map(|held| held.lease).collect()
    }

    #[test]
    fn a_lease_stays_until_a_later_one_is_asked_for() {
        let holdings = Holdings::default();
        (1..=4).for_each(|lease| holdings.take_over(held(lease, 3)));
        assert!(holdings.of_lease(1).is_some() && holdings.of_lease(9).is_none());
        assert_eq!(known(&holdings), [1, 2, 3, 4]);
        assert!(holdings.of_lease(3).is_some());
        assert_eq!(known(&holdings), [3, 4]);
        assert!(holdings.of_lease(4).is_some() && holdings.of_lease(3).is_none());
        (5..=40).for_each(|lease| holdings.take_over(held(lease, 3)));
        assert_eq!(known(&holdings).len(), EARLIER_MAX + 1);
    }

    #[test]
    fn what_is_given_up_leaves_every_lease_and_the_rest_stays() {
        let holdings = Holdings::default();
        (1..=2).for_each(|lease| holdings.take_over(held(lease, 7)));
        holdings.keep_only(&held(3, 4).slice);
        for lease in [1, 2] {
            assert_eq!(holdings.of_lease(lease).unwrap().slice.to_string(), "0:0-4");
        }
    }
}
