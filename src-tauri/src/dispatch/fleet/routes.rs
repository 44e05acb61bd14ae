//! Where each expert's requests go, built anew from the members whenever one of them changed.

use std::sync::Arc;

use super::member::Member;
use crate::dispatch::placement::Numbering;
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
    numbering: Numbering,
    /// Per expert the end of its part of `order`; it starts where the part of the one before ends.
    ends: Vec<u32>,
    /// Indices into `holders`.
    order: Vec<usize>,
    len: usize,
}

/// How much a worker is preferred for an expert: it owns it, it holds a replica, it is to give it up.
const PREFERENCES: usize = 3;

impl Routes {
    /// Routes to everything that `members` serve: who owns an expert comes first, then who holds a replica of it, then
    /// who is to give it up, each time the nearest first.
    pub(super) fn to<'a>(numbering: &Numbering, members: impl Iterator<Item = &'a Member>) -> Self {
        let mut members: Vec<&Member> = members.filter(|member| member.is_asked()).collect();
        members.sort_by_cached_key(|member| member.session.measured().round_trip);
        let mut holders = Vec::new();
        let mut routes: [Vec<(usize, usize)>; PREFERENCES] = Default::default();
        for member in members {
            for (lease, slice) in member.serves() {
                let index = holders.len();
                holders.push(Holder { session: Arc::clone(&member.session), lease });
                for id in slice.iter() {
                    let Some(expert) = numbering.get(id) else { continue };
                    let preference = match () {
                        () if member.share.own.contains(id) => 0,
                        () if member.target.contains(id) => 1,
                        () => 2,
                    };
                    routes[preference].push((expert, index));
                }
            }
        }
        let mut ends = vec![0u32; numbering.total()];
        routes.iter().flatten().for_each(|(expert, _)| ends[*expert] += 1);
        let len = ends.iter().filter(|count| **count > 0).count();
        let mut next = Vec::with_capacity(ends.len());
        let mut sum = 0;
        for end in &mut ends {
            next.push(sum);
            sum += *end;
            *end = sum;
        }
        let mut order = vec![0; sum as usize];
        for (expert, index) in routes.iter().flatten() {
            order[next[*expert] as usize] = *index;
            next[*expert] += 1;
        }
        Self { holders, numbering: numbering.clone(), ends, order, len }
    }

    /// Indices into [`Routes::holders`] of those who hold an expert, preferred ones first; none when nobody does.
    pub fn holders_of(&self, id: ExpertId) -> &[usize] {
        let Some(expert) = self.numbering.get(id) else { return &[] };
        let Some(end) = self.ends.get(expert) else { return &[] };
        let start = if expert == 0 { 0 } else { self.ends[expert - 1] };
        &self.order[start as usize..*end as usize]
    }

    /// Experts that have a holder.
    pub fn len(&self) -> usize {
        self.len
    }
}
