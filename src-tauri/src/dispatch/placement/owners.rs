//! Finds an owner for every expert: those of before, then holders of replicas, then whoever has the most to take.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::table::{NOBODY, Table};

impl Table<'_> {
    /// Leaves owners what they own and still hold, as far as their memory goes; what lost its owner goes to holders of
    /// its replicas, in as few pieces as possible.
    pub fn keep(&mut self) {
        let layer_of: Vec<u32> =
            (0..self.layers.len()).flat_map(|layer| self.experts(layer).map(move |_| layer as u32)).collect();
        for worker in 0..self.desks.len() {
            let desk = &self.desks[worker];
            let own = desk.capacity.own.iter().filter(|id| desk.may_hold(id.layer));
            let own = own.filter_map(|id| self.numbering.get(id));
            let mut kept: Vec<usize> =
                own.filter(|expert| self.owner[*expert] == NOBODY && desk.holds(*expert)).collect();
            let layer = |expert: usize| layer_of[expert] as usize;
            let bytes: u64 = kept.iter().map(|expert| self.layers[layer(*expert)].expert_bytes).sum();
            if bytes > desk.capacity.memory_bytes {
                kept.sort_by_key(|expert| Reverse(self.heat_of(layer(*expert), *expert)));
            }
            for expert in kept {
                if self.layers[layer(expert)].expert_bytes <= self.desks[worker].room() {
                    self.give(layer(expert), expert, worker);
                }
            }
        }
        (0..self.layers.len()).for_each(|layer| self.adopt(layer));
    }

    fn adopt(&mut self, layer: usize) {
        let orphans = self.unowned(layer);
        let mut counts = BTreeMap::<u32, usize>::new();
        orphans.iter().flat_map(|expert| self.holders(*expert)).for_each(|w| *counts.entry(*w).or_default() += 1);
        let mut holders: Vec<(u32, usize)> = counts.into_iter().collect();
        holders.sort_by(|(a, a_count), (b, b_count)| {
            let (one, two) = (&self.desks[*a as usize], &self.desks[*b as usize]);
            let by_load = one.load().total_cmp(&two.load());
            one.is_slow().cmp(&two.is_slow()).then(b_count.cmp(a_count)).then(by_load)
        });
        let number = self.layers[layer].layer;
        holders.retain(|(worker, _)| self.desks[*worker as usize].may_hold(number));
        for (worker, _) in holders {
            for expert in &orphans {
                let is_free = self.owner[*expert] == NOBODY && self.holders(*expert).contains(&worker);
                if is_free && self.desks[worker as usize].room() >= self.layers[layer].expert_bytes {
                    self.give(layer, *expert, worker as usize);
                }
            }
        }
    }

    /// Finds owners for what has none.
    pub fn fill(&mut self) {
        if self.is_spread {
            self.spread();
        } else {
            self.whole_layers();
        }
        for layer in self.hot_first.clone() {
            self.fill_rest(layer);
        }
    }

    /// Gives each layer whole to the worker that lacks most of its share and has the room: wished-for layers first, up
    /// to its share, then the others.
    fn whole_layers(&mut self) {
        for wished in [true, false] {
            for layer in self.hot_first.clone() {
                let missing = self.unowned(layer);
                if missing.is_empty() {
                    continue;
                }
                let size = self.layers[layer];
                let bytes = missing.len() as u64 * size.expert_bytes;
                let has_part = |w: usize| self.experts(layer).any(|expert| self.owner[expert] == w as u32);
                let takes = |w: &usize| {
                    let desk = &self.desks[*w];
                    !desk.is_slow()
                        && desk.may_hold(size.layer)
                        && desk.room() >= bytes
                        && (!wished || desk.wants(size.layer) && desk.excess() < 0.0)
                };
                let better = |a: &usize, b: &usize| {
                    let by_excess = self.desks[*a].excess().total_cmp(&self.desks[*b].excess());
                    has_part(*b).cmp(&has_part(*a)).then(by_excess)
                };
                if let Some(worker) = (0..self.desks.len()).filter(takes).min_by(better) {
                    missing.into_iter().for_each(|expert| self.give(layer, expert, worker));
                    self.complete(layer, worker);
                }
            }
        }
    }

    /// Gives what others own of a layer to the worker that took the rest of it, where that makes shares more even.
    fn complete(&mut self, layer: usize, worker: usize) {
        for (owner, experts) in self.pieces(layer) {
            let bytes = experts.len() as u64 * self.layers[layer].expert_bytes;
            let (from, to) = (&self.desks[owner], &self.desks[worker]);
            if from.excess() - to.excess() > bytes as f64 && to.room() >= bytes {
                experts.into_iter().for_each(|expert| self.give(layer, expert, worker));
            }
        }
    }

    /// Gives each worker that lacks something to one layer, so that layers are served alike, and each layer's experts
    /// to its workers as they lack.
    fn spread(&mut self) {
        let missing: Vec<Vec<usize>> = (0..self.layers.len()).map(|layer| self.unowned(layer)).collect();
        let mut open: Vec<f64> =
            missing.iter().zip(self.layers).map(|(m, size)| m.len() as f64 * size.expert_bytes as f64).collect();
        let mut groups: Vec<Vec<(usize, f64)>> = missing.iter().map(|_| Vec::new()).collect();
        let mut order: Vec<usize> = (0..self.desks.len()).collect();
        order.sort_by(|a, b| self.desks[*b].pace.total_cmp(&self.desks[*a].pace));
        for worker in order {
            let desk = &self.desks[worker];
            let lack = (-desk.excess()).min(desk.room() as f64);
            let may_hold = |layer: &usize| desk.may_hold(self.layers[*layer].layer);
            let fits = |layer: &usize| {
                open[*layer] > 0.0 && may_hold(layer) && lack >= self.layers[*layer].expert_bytes as f64
            };
            let better = |a: &usize, b: &usize| {
                let wants = |layer: &usize| desk.wants(self.layers[*layer].layer);
                wants(a).cmp(&wants(b)).then(open[*a].total_cmp(&open[*b])).then(b.cmp(a))
            };
            if let Some(layer) = (0..self.layers.len()).filter(fits).max_by(better) {
                open[layer] -= lack;
                groups[layer].push((worker, lack));
            }
        }
        for (layer, (missing, mut group)) in missing.into_iter().zip(groups).enumerate() {
            group.sort_by_key(|(worker, _)| *worker);
            let mut lacking: f64 = group.iter().map(|(_, lack)| lack).sum();
            let mut rest = &missing[..];
            for (worker, lack) in group {
                let room = self.desks[worker].room().checked_div(self.layers[layer].expert_bytes).unwrap_or(u64::MAX);
                // A hair less, so that equal shares of whole experts do not round up.
                let share = (rest.len() as f64 * lack / lacking - 1e-9).ceil() as usize;
                let taken = share.min(rest.len()).min(usize::try_from(room).unwrap_or(usize::MAX));
                rest[..taken].iter().for_each(|expert| self.give(layer, *expert, worker));
                rest = &rest[taken..];
                lacking -= lack;
            }
        }
    }

    /// Gives what is left of a layer to whoever has the most room for it, in as few pieces as possible; of a spread
    /// layer, to those who serve it already and have the least to do.
    fn fill_rest(&mut self, layer: usize) {
        let missing = self.unowned(layer);
        let bytes = self.layers[layer].expert_bytes;
        let owners: BTreeSet<u32> = self.experts(layer).map(|expert| self.owner[expert]).collect();
        let serving = owners.iter().filter(|owner| **owner != NOBODY).count();
        let sharing = match (self.is_spread, serving) {
            (false, _) => 1,
            (true, 0) => self.desks.iter().filter(|desk| !desk.is_slow()).count(),
            (true, _) => serving,
        };
        let piece = missing.len().div_ceil(sharing.max(1));
        let mut rest = &missing[..];
        while !rest.is_empty() {
            let number = self.layers[layer].layer;
            let fits = |w: &usize| self.desks[*w].room() >= bytes && self.desks[*w].may_hold(number);
            let better = |a: &usize, b: &usize| {
                let (one, two) = (&self.desks[*a], &self.desks[*b]);
                let slow = one.is_slow().cmp(&two.is_slow());
                if self.is_spread {
                    let elsewhere = |w: &usize| !owners.contains(&(*w as u32));
                    slow.then(elsewhere(a).cmp(&elsewhere(b)))
                        .then(one.load_with(bytes).total_cmp(&two.load_with(bytes)))
                } else {
                    slow.then(two.room().cmp(&one.room()))
                }
            };
            let Some(worker) = (0..self.desks.len()).filter(fits).min_by(better) else { break };
            let room = self.desks[worker].room().checked_div(bytes).unwrap_or(u64::MAX);
            let taken = piece.min(rest.len()).min(usize::try_from(room).unwrap_or(usize::MAX));
            rest[..taken].iter().for_each(|expert| self.give(layer, *expert, worker));
            rest = &rest[taken..];
        }
    }
}
