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
    experts: HashMap<ExpertId, Vec<usize>>,
}

impl Routes {
    /// Routes to everything that `members` hold; workers that are to keep an expert come before those that are to give
    /// it up.
    pub(super) fn to<'a>(members: impl Iterator<Item = &'a Member>) -> Self {
        let mut routes = Self::default();
        let mut leaving = Vec::new();
        for member in members.filter(|m| !m.paused) {
            for (lease, slice) in member.serves() {
                let index = routes.holders.len();
                routes.holders.push(Holder { session: Arc::clone(&member.session), lease });
                for id in slice.iter() {
                    if member.target.contains(id) {
                        routes.experts.entry(id).or_default().push(index);
                    } else {
                        leaving.push((id, index));
                    }
                }
            }
        }
        for (id, index) in leaving {
            routes.experts.entry(id).or_default().push(index);
        }
        routes
    }

    /// Indices into [`Routes::holders`] of those who hold an expert, preferred ones first; none when nobody does.
    pub fn holders_of(&self, id: ExpertId) -> &[usize] {
        self.experts.get(&id).map_or(&[], Vec::as_slice)
    }

    /// Experts that have a holder.
    pub fn len(&self) -> usize {
        self.experts.len()
    }
}
