//! The experts that a worker holds, by lease, and the library of verified experts behind them.
//!
//! What is verified of a new slice serves beside the slice of before, and takes over when it is whole; those before stay
//! until the backbone first asks under a later whole lease, so that no request under way finds its experts gone.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use super::Source;
use super::cache::Cache;
use super::fetch::expert_bytes;
use super::local::LocalWeights;
use crate::kernel::{Expert, ExpertSource};
use crate::model::Manifest;
use crate::types::ExpertId;
use crate::wire::Slice;

/// What a lease gives, verified and ready.
pub(super) struct Held {
    pub lease: u32,
    /// What of it is here.
    pub slice: Slice,
    /// Whether that is all of it.
    pub whole: bool,
    /// Elements of a row.
    pub hidden: usize,
    pub experts: HashMap<ExpertId, Arc<Expert>>,
}

impl Held {
    fn within(&self, slice: &Slice) -> Self {
        let experts = self.experts.iter().filter(|(id, _)| slice.contains(**id));
        let experts: HashMap<ExpertId, Arc<Expert>> = experts.map(|(id, expert)| (*id, Arc::clone(expert))).collect();
        let slice = self.slice.iter().filter(|id| slice.contains(*id)).collect();
        Self { slice, experts, ..*self }
    }
}

impl ExpertSource for Held {
    fn expert(&self, layer: u16, expert: u16) -> Option<Arc<Expert>> {
        self.experts.get(&ExpertId { layer, expert }).cloned()
    }
}

/// Leases before the newest that may still be asked for; of more, the oldest go.
const EARLIER_MAX: usize = 8;

/// The leases of a session, in the order in which they were held.
#[derive(Default)]
pub(super) struct Holdings(RwLock<Vec<Arc<Held>>>);

impl Holdings {
    fn read(&self) -> RwLockReadGuard<'_, Vec<Arc<Held>>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Arc<Held>>)) {
        change(&mut self.0.write().unwrap_or_else(PoisonError::into_inner));
    }

    pub fn newest(&self) -> Option<Arc<Held>> {
        self.read().last().cloned()
    }

    /// Every expert that some lease still holds.
    pub fn ids(&self) -> BTreeSet<ExpertId> {
        self.read().iter().flat_map(|held| held.experts.keys().copied()).collect()
    }

    /// The experts of a lease; a question for one that is whole lets go of those before it.
    pub fn of_lease(&self, lease: u32) -> Option<Arc<Held>> {
        let (held, is_last) = {
            let leases = self.read();
            let held = leases.iter().find(|held| held.lease == lease).cloned()?;
            let is_first = leases.iter().all(|earlier| earlier.lease >= lease);
            let is_last = is_first || !held.whole;
            (held, is_last)
        };
        if !is_last {
            self.change(|leases| leases.retain(|earlier| earlier.lease >= lease));
        }
        Some(held)
    }

    /// Holds more of the newest lease, or the first of another.
    pub fn take_over(&self, held: Arc<Held>) {
        self.change(|leases| {
            leases.retain(|earlier| earlier.lease != held.lease);
            leases.push(held);
            // The newest whole lease is the one that the backbone asks for; it stays, whatever was begun after it.
            let serving = leases.iter().rev().find(|held| held.whole).map(|held| held.lease);
            let mut over = leases.len().saturating_sub(EARLIER_MAX + 1);
            leases.retain(|held| {
                let goes = over > 0 && Some(held.lease) != serving;
                over -= usize::from(goes);
                !goes
            });
        });
    }

    /// Lets go of everything outside `slice`, in every lease.
    pub fn keep_only(&self, slice: &Slice) {
        self.change(|leases| leases.iter_mut().for_each(|held| *held = Arc::new(held.within(slice))));
    }
}

/// Verified experts of one model, kept over reconnects, and where more may be found on this machine.
pub(super) struct Library {
    weights: Option<LocalWeights>,
    cache: Option<Arc<Cache>>,
    shelf: Mutex<Shelf>,
}

#[derive(Default)]
struct Shelf {
    manifest: Option<Arc<Manifest>>,
    experts: HashMap<ExpertId, Arc<Expert>>,
}

impl Library {
    pub fn new(source: &Source, cache: Option<Arc<Cache>>) -> Self {
        let weights = match source {
            Source::Fetch => None,
            Source::LocalModel(model) => Some(LocalWeights::new(Arc::clone(model))),
        };
        Self { weights, cache, shelf: Mutex::default() }
    }

    /// A model on this machine that may have the same experts.
    pub fn weights(&self) -> Option<&LocalWeights> {
        self.weights.as_ref()
    }

    /// Experts of before on this machine's disk.
    pub fn cache(&self) -> Option<&Arc<Cache>> {
        self.cache.as_ref()
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn manifest(&self) -> Option<Arc<Manifest>> {
        self.shelf().manifest.clone()
    }

    /// Starts over for another model.
    pub fn set_manifest(&self, manifest: Arc<Manifest>) {
        *self.shelf() = Shelf { manifest: Some(manifest), experts: HashMap::new() };
    }

    /// What is here of a lease's `slice`.
    pub fn held(&self, lease: u32, slice: &Slice, hidden: usize, whole: bool) -> Held {
        let shelf = self.shelf();
        let here = slice.iter().filter_map(|id| Some((id, Arc::clone(shelf.experts.get(&id)?))));
        let experts: HashMap<ExpertId, Arc<Expert>> = here.collect();
        Held { lease, slice: experts.keys().copied().collect(), whole, hidden, experts }
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

    /// Drops experts until those that stay take no more than `room` bytes, the last ones first.
    pub fn keep_within(&self, room: u64) {
        let mut shelf = self.shelf();
        let Some(manifest) = shelf.manifest.clone() else { return };
        let stays = within(shelf.experts.keys().copied().collect(), &manifest, room);
        shelf.experts.retain(|id, _| stays.contains(*id));
    }

    /// Drops every expert: where they were placed is gone.
    pub fn clear(&self) {
        self.shelf().experts.clear();
    }
}

/// The first experts of `ids` that fit into `room` bytes: the last ones came last, and the memory of those who came
/// together is free when all of them are gone.
pub(super) fn within(ids: BTreeSet<ExpertId>, manifest: &Manifest, mut room: u64) -> Slice {
    let fits = |id: &ExpertId| {
        let left = expert_bytes(manifest, id.layer).and_then(|bytes| room.checked_sub(bytes));
        room = left.unwrap_or(0);
        left.is_some()
    };
    ids.into_iter().take_while(fits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(lease: u32, last: u16) -> Arc<Held> {
        let slice = (0..=last).map(|expert| ExpertId { layer: 0, expert }).collect();
        Arc::new(Held { lease, slice, whole: true, hidden: 32, experts: HashMap::new() })
    }

    fn known(holdings: &Holdings) -> Vec<u32> {
        holdings.read().iter().map(|held| held.lease).collect()
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
    fn a_lease_that_is_not_whole_yet_serves_beside_the_one_before() {
        let holdings = Holdings::default();
        holdings.take_over(held(1, 3));
        for last in [0, 1] {
            let coming = Arc::into_inner(held(2, last)).unwrap();
            holdings.take_over(Arc::new(Held { whole: false, ..coming }));
            assert_eq!(holdings.of_lease(2).unwrap().slice.to_string(), format!("0:0-{last}"));
            assert!(holdings.of_lease(1).is_some());
        }
        holdings.take_over(held(2, 4));
        assert_eq!(known(&holdings), [1, 2]);
        assert!(holdings.of_lease(2).is_some() && holdings.of_lease(1).is_none());
    }

    #[test]
    fn a_shelf_that_becomes_too_large_keeps_the_first_that_fit() {
        let model = crate::model::embedded().unwrap();
        let library = Library::new(&Source::Fetch, None);
        let manifest = Arc::new(Manifest::of(&model).unwrap());
        let bytes = expert_bytes(&manifest, 0).unwrap();
        library.keep_within(0);
        library.set_manifest(manifest);
        let layer = model.weights.moe_layers().next().unwrap();
        for (expert, weights) in (0..5).zip(&layer.experts) {
            library.put(ExpertId { layer: 0, expert }, Arc::new(Expert::new(weights).unwrap()));
        }
        library.keep_within(5 * bytes);
        assert_eq!(library.bytes(), 5 * bytes);
        library.keep_within(3 * bytes - 1);
        let left: Vec<u16> = library.ids().iter().map(|id| id.expert).collect();
        assert_eq!(left, [0, 1]);
        library.keep_within(0);
        assert_eq!(library.bytes(), 0);
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
