//! Where each expert's requests go, built anew from the members whenever one of them changed.

use std::collections::HashMap;
use std::sync::Arc;

use super::member::Member;
use crate::dispatch::session::Session;
use crate::types::ExpertId;

/// A session and the lease under which it is asked.
pub(in crate::dispatch) struct Holder {
    pub session: Arc<Session>,
    pub lease: u32,
}

/// Where each expert's requests go.
#[derive(Default)]
pub(in crate::dispatch) struct Routes {
    /// The sessions that have a route.
    pub holders: Vec<Holder>,
    experts: HashMap<ExpertId, usize>,
}

impl Routes {
    /// Routes to everything that `members` hold; an expert held twice goes to the worker that is to keep it.
    pub(super) fn to<'a>(members: impl Iterator<Item = &'a Member>) -> Self {
        let mut routes = Self::default();
        let mut keeps: HashMap<ExpertId, bool> = HashMap::new();
        for member in members.filter(|m| !m.paused) {
            for (lease, slice) in member.serves() {
                let index = routes.holders.len();
                routes.holders.push(Holder { session: Arc::clone(&member.session), lease });
                for id in slice.iter() {
                    let keep = member.target.contains(id);
                    if keep || !keeps.contains_key(&id) {
                        routes.experts.insert(id, index);
                        keeps.insert(id, keep);
                    }
                }
            }
        }
        routes
    }

    /// Index of the holder of an expert.
    pub fn holder(&self, id: ExpertId) -> Option<usize> {
        self.experts.get(&id).copied()
    }

    /// Experts that have a holder.
    pub fn len(&self) -> usize {
        self.experts.len()
    }
}
