//! Turns what placement wants into leases: what is gained at once, what is lost when nobody needs it any more.
//!
//! Replicas wait until everything that can be held is held once. A worker that gains keeps what it is to lose until
//! somebody else serves it, as long as its memory goes; one whose memory has become less loses it at once, and no
//! request is sent for it any more before the worker hears of it.

use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

use super::member::Member;
use super::{Fleet, Members};
use crate::dispatch::placement::{Capacity, Rules, place};
use crate::wire::Slice;

/// How often shares that have grown apart are made even; within it, a bounded number of bytes moves.
pub(super) const LEVEL_EVERY: Duration = Duration::from_secs(60);

impl Fleet {
    /// Runs placement. Shares are made even again only if `level`; else only newcomers and what lost its owner move.
    pub(super) fn place(&self, members: &mut Members, level: bool, now: Instant) {
        (members.due, members.aim_due) = (false, false);
        let mut offering: Vec<&mut Member> = members.by_key.values_mut().filter(|m| m.offer.is_some()).collect();
        let capacities: Vec<Capacity> = offering.iter().filter_map(|member| member.capacity(now)).collect();
        let levelled_bytes_max = if level { self.rules.levelled_bytes_max } else { 0 };
        let rules = Rules { levelled_bytes_max, ..self.rules };
        let shares = place(&self.goods.layers, &self.heat.counts(), &capacities, &rules);
        let (placed, wanted) = (shares.iter().map(|share| share.own.len()).sum::<usize>(), self.numbering.total());
        if placed < wanted && !offering.is_empty() && !level {
            warn!(placed, wanted, workers = offering.len(), "not all experts are covered; the rest is computed here");
        }
        let mut changed = false;
        for (member, share) in offering.iter_mut().zip(shares) {
            changed |= member.share != share;
            member.share = share;
        }
        members.reroute_due |= changed;
        self.aim(members);
        self.issue(members);
    }

    /// Says what everybody is to hold now.
    pub(super) fn aim(&self, members: &mut Members) {
        members.aim_due = false;
        let mut is_served = vec![false; self.numbering.total()];
        // Who is not asked serves nobody, whatever it says that it holds.
        let asked = members.by_key.values().filter(|member| member.is_asked());
        for slice in asked.filter_map(|member| member.active.as_ref()).map(|(_, slice)| slice) {
            slice.iter().filter_map(|id| self.numbering.get(id)).for_each(|expert| is_served[expert] = true);
        }
        let is_served = |id| self.numbering.get(id).is_none_or(|expert| is_served[expert]);
        members.is_covered = members.by_key.values().flat_map(|member| member.share.own.iter()).all(is_served);
        for member in members.by_key.values_mut() {
            let held = (!members.is_covered).then(|| member.held());
            let replicas =
                member.share.replicas.iter().filter(|id| held.as_ref().is_none_or(|held| held.contains(*id)));
            member.target = member.share.own.iter().chain(replicas).collect();
        }
        self.changed.send_replace(());
    }

    /// Sends the leases that are due: those that gain something at once, those that only lose once nobody gains.
    pub(super) fn issue(&self, members: &mut Members) {
        let all = &mut members.by_key;
        let mut lost = false;
        let is_due = |member: &Member| member.lacks() || member.is_over(&self.goods) || member.fetches_too_much();
        for member in all.values_mut().filter(|member| is_due(member)) {
            lost |= member.drop_what_does_not_fit(&self.goods);
            let kept = self.unserved_elsewhere(member);
            let with_kept: Slice = member.target.iter().chain(kept.iter()).collect();
            let fits = self.goods.bytes(&with_kept) <= member.memory_bytes();
            let slice = if fits { with_kept } else { member.target.clone() };
            member.lease(&self.goods, slice);
        }
        if all.values().all(|member| member.leased.is_none()) {
            for member in all.values_mut().filter(|member| member.exceeds()) {
                let target = member.target.clone();
                member.lease(&self.goods, target);
            }
        }
        if lost {
            self.reroute(members);
        }
    }

    /// What a member serves, is not to hold and nobody else serves.
    fn unserved_elsewhere(&self, member: &Member) -> Slice {
        let Some((_, active)) = &member.active else { return Slice::default() };
        let routes = self.routes();
        let is_elsewhere = |id| {
            let mut holders = routes.holders_of(id).iter().map(|index| &routes.holders[*index].session);
            holders.any(|session| !std::sync::Arc::ptr_eq(session, &member.session))
        };
        active.iter().filter(|id| !member.target.contains(*id) && !is_elsewhere(*id)).collect()
    }
}
