//! Finds second holders for experts, once everything that can be owned is: spare memory is there to be used.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::LayerSize;
use super::table::{NOBODY, Table};

/// Experts of one owner in one layer that want another holder.
struct Piece {
    layer: usize,
    owner: usize,
    experts: Vec<usize>,
}

impl Table<'_> {
    /// Per worker the replicas that it holds, so that an expert has up to `holders_max` holders. Replicas of before stay
    /// where there is room; new ones go to workers with room to spare, fast ones first.
    pub fn replicas(&self, holders_max: usize) -> Vec<Vec<u32>> {
        let mut spare: Vec<u64> = self.desks.iter().map(|desk| desk.room()).collect();
        let mut holders: Vec<usize> = self.owner.iter().map(|owner| usize::from(*owner != NOBODY)).collect();
        let mut replicas: Vec<Vec<u32>> = self.desks.iter().map(|_| Vec::new()).collect();
        let size_of: Vec<&LayerSize> = self.layers.iter().flat_map(|s| (0..s.experts).map(move |_| s)).collect();
        let mut order: Vec<usize> = (0..self.desks.len()).collect();
        order.sort_by(|a, b| self.desks[*b].pace.total_cmp(&self.desks[*a].pace));
        for worker in order {
            for expert in self.desks[worker].held.iter().map(|expert| *expert as usize) {
                let is_owned = self.owner[expert] != NOBODY && self.owner[expert] != worker as u32;
                let LayerSize { layer, expert_bytes, .. } = *size_of[expert];
                let fits = expert_bytes <= spare[worker] && self.desks[worker].may_hold(layer);
                if is_owned && holders[expert] < holders_max && fits {
                    holders[expert] += 1;
                    spare[worker] -= expert_bytes;
                    replicas[worker].push(expert as u32);
                }
            }
        }
        for wanted in 2..=holders_max {
            self.add_replicas(wanted, &mut holders, &mut spare, &mut replicas);
        }
        replicas
    }

    /// Gives experts with fewer than `wanted` holders one more.
    fn add_replicas(&self, wanted: usize, holders: &mut [usize], spare: &mut [u64], replicas: &mut [Vec<u32>]) {
        let weight = |worker: usize, spare: u64| (spare as f64 * self.desks[worker].pace) as u64;
        let entry = |worker: usize, spare: u64| (weight(worker, spare), spare, Reverse(worker));
        let mut roomy: BinaryHeap<_> = (0..spare.len()).filter(|w| spare[*w] > 0).map(|w| entry(w, spare[w])).collect();
        let mut aside = Vec::new();
        for piece in self.wanting(wanted, holders) {
            let Piece { layer, owner, experts } = piece;
            let bytes = self.layers[layer].expert_bytes;
            let mut rest = experts;
            while !rest.is_empty() {
                let Some((_, _, Reverse(worker))) = roomy.pop() else { break };
                let may_hold = self.desks[worker].may_hold(self.layers[layer].layer);
                let kept = std::mem::take(&mut replicas[worker]);
                rest.retain(|expert| {
                    let takes = may_hold
                        && worker != owner
                        && bytes <= spare[worker]
                        && kept.binary_search(&(*expert as u32)).is_err();
                    if takes {
                        spare[worker] -= bytes;
                        holders[*expert] += 1;
                        replicas[worker].push(*expert as u32);
                    }
                    !takes
                });
                replicas[worker].extend(kept);
                replicas[worker].sort();
                aside.push(worker);
            }
            roomy.extend(aside.drain(..).filter(|w| spare[*w] > 0).map(|w| entry(w, spare[w])));
        }
    }

    /// What has an owner and fewer than `wanted` holders: of slow workers first, then of unproven ones, then by heat.
    fn wanting(&self, wanted: usize, holders: &[usize]) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for layer in self.hot_first.iter().copied() {
            for (owner, mut experts) in self.pieces(layer) {
                experts.retain(|expert| holders[*expert] < wanted);
                // The hottest first, for when there is no room for all.
                experts.sort_by_key(|expert| Reverse(self.heat_of(layer, *expert)));
                if !experts.is_empty() {
                    pieces.push(Piece { layer, owner, experts });
                }
            }
        }
        pieces.sort_by_cached_key(|piece| {
            let desk = &self.desks[piece.owner];
            let heat: u64 = piece.experts.iter().map(|e| u64::from(self.heat_of(piece.layer, *e))).sum();
            (Reverse(desk.is_slow()), desk.capacity.is_proven, Reverse(heat))
        });
        pieces
    }
}
