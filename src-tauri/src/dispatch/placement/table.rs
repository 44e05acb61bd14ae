//! Experts and workers while they are being matched: experts in one row, numbered through all layers.

use std::ops::Range;

use super::numbering::Numbering;
use super::{Capacity, Heat, LayerSize, Share};
use crate::types::ExpertId;
use crate::wire::Slice;

/// The owner of what nobody owns.
pub(super) const NOBODY: u32 = u32::MAX;
/// A worker with less than the median pace divided by this is slow.
const SLOW: f64 = 4.0;

/// A worker and what it is given.
pub(super) struct Desk<'a> {
    pub capacity: &'a Capacity,
    /// 0 for a slow one.
    pub pace: f64,
    /// Bytes that it should own; 0 for a slow one.
    pub quota: f64,
    /// Bytes that it owns.
    pub own: u64,
    /// What it holds so far, ascending.
    pub held: Vec<u32>,
}

impl Desk<'_> {
    /// How full its share is; without a share it is over-full.
    pub fn load(&self) -> f64 {
        self.load_with(0)
    }

    /// The same with this many bytes more.
    pub fn load_with(&self, bytes: u64) -> f64 {
        if self.quota > 0.0 { (self.own + bytes) as f64 / self.quota } else { f64::INFINITY }
    }

    /// Bytes owned beyond its share.
    pub fn excess(&self) -> f64 {
        self.own as f64 - self.quota
    }

    /// Bytes that it could own beside what it owns.
    pub fn room(&self) -> u64 {
        self.capacity.memory_bytes.saturating_sub(self.own)
    }

    pub fn is_slow(&self) -> bool {
        self.quota <= 0.0
    }

    pub fn wants(&self, layer: u16) -> bool {
        self.capacity.wants.contains(&layer)
    }

    pub fn may_hold(&self, layer: u16) -> bool {
        !self.capacity.barred.contains(&layer)
    }

    pub fn holds(&self, expert: usize) -> bool {
        self.held.binary_search(&(expert as u32)).is_ok()
    }
}

/// See the module.
pub(super) struct Table<'a> {
    pub layers: &'a [LayerSize],
    pub heat: &'a Heat,
    /// Layers, those most asked for first.
    pub hot_first: Vec<usize>,
    pub desks: Vec<Desk<'a>>,
    /// Per expert.
    pub owner: Vec<u32>,
    /// Whether layers are shared among several workers.
    pub is_spread: bool,
    pub numbering: Numbering,
    /// Per expert the end of its part of `holders`; it starts where the part of the one before ends.
    holder_ends: Vec<u32>,
    holders: Vec<u32>,
}

impl<'a> Table<'a> {
    pub fn new(layers: &'a [LayerSize], heat: &'a Heat, workers: &'a [Capacity]) -> Self {
        let numbering = Numbering::of(layers);
        let index = |id: ExpertId| numbering.get(id).map(|expert| expert as u32);
        let desk = |capacity: &'a Capacity| {
            let held = capacity.held.iter().filter_map(index).collect();
            Desk { capacity, pace: capacity.pace(), quota: 0.0, own: 0, held }
        };
        let desks: Vec<Desk<'a>> = workers.iter().map(desk).collect();
        let (holder_ends, holders) = holders_of(numbering.total(), &desks);

        let mut hot_first: Vec<usize> = (0..layers.len()).collect();
        let layer_heat = |index: &usize| -> u64 {
            heat.get(usize::from(layers[*index].layer)).map_or(0, |counts| counts.iter().map(|n| u64::from(*n)).sum())
        };
        hot_first.sort_by_cached_key(|index| std::cmp::Reverse(layer_heat(index)));
        let owner = vec![NOBODY; numbering.total()];
        let mut table =
            Self { layers, heat, hot_first, desks, owner, is_spread: false, numbering, holder_ends, holders };
        table.set_quotas();
        let smallest = layers.iter().map(|size| size.expert_bytes).min().unwrap_or(0);
        let useful = table.desks.iter().filter(|desk| !desk.is_slow() && desk.capacity.memory_bytes >= smallest);
        table.is_spread = useful.count() > layers.len();
        table
    }

    /// Every worker's share of all bytes: as its pace, within its memory; what one has no room for goes to the others.
    fn set_quotas(&mut self) {
        let mut paces: Vec<f64> = self.desks.iter().map(|desk| desk.pace).filter(|pace| *pace > 0.0).collect();
        paces.sort_by(f64::total_cmp);
        let slow = paces.get(paces.len() / 2).map_or(0.0, |median| median / SLOW);
        self.desks.iter_mut().filter(|desk| desk.pace < slow).for_each(|desk| desk.pace = 0.0);
        let mut order: Vec<usize> = (0..self.desks.len()).filter(|w| self.desks[*w].pace > 0.0).collect();
        let fills_up = |w: &usize| self.desks[*w].capacity.memory_bytes as f64 / self.desks[*w].pace;
        order.sort_by(|a, b| fills_up(a).total_cmp(&fills_up(b)));
        let mut bytes = self.layers.iter().map(|size| f64::from(size.experts) * size.expert_bytes as f64).sum::<f64>();
        let mut pace: f64 = order.iter().map(|w| self.desks[*w].pace).sum();
        for w in order {
            let desk = &mut self.desks[w];
            let (share, memory) = (bytes * desk.pace / pace, desk.capacity.memory_bytes as f64);
            desk.quota = share.min(memory);
            // Those who come later fill up later still: from the first with room on, all shares are of the same rest.
            if share > memory {
                bytes -= memory;
                pace -= desk.pace;
            }
        }
    }

    /// Experts of a layer.
    pub fn experts(&self, layer: usize) -> Range<usize> {
        self.numbering.layer(self.layers[layer].layer)
    }

    /// Experts of a layer that nobody owns.
    pub fn unowned(&self, layer: usize) -> Vec<usize> {
        self.experts(layer).filter(|expert| self.owner[*expert] == NOBODY).collect()
    }

    /// A layer's experts by owner, owners ascending.
    pub fn pieces(&self, layer: usize) -> Vec<(usize, Vec<usize>)> {
        let mut owned: Vec<usize> = self.experts(layer).filter(|expert| self.owner[*expert] != NOBODY).collect();
        owned.sort_by_key(|expert| self.owner[*expert]);
        let pieces = owned.chunk_by(|a, b| self.owner[*a] == self.owner[*b]);
        pieces.map(|piece| (self.owner[piece[0]] as usize, piece.to_vec())).collect()
    }

    /// Workers that hold an expert so far.
    pub fn holders(&self, expert: usize) -> &[u32] {
        let start = if expert == 0 { 0 } else { self.holder_ends[expert - 1] };
        &self.holders[start as usize..self.holder_ends[expert] as usize]
    }

    /// How often an expert of a layer was asked for.
    pub fn heat_of(&self, layer: usize, expert: usize) -> u32 {
        let counts = self.heat.get(usize::from(self.layers[layer].layer));
        counts.and_then(|counts| counts.get(expert - self.experts(layer).start)).copied().unwrap_or(0)
    }

    /// Makes `worker` the owner of an expert; whoever owned it does no more.
    pub fn give(&mut self, layer: usize, expert: usize, worker: usize) {
        let bytes = self.layers[layer].expert_bytes;
        if let Some(before) = self.desks.get_mut(self.owner[expert] as usize) {
            before.own -= bytes;
        }
        self.owner[expert] = worker as u32;
        self.desks[worker].own += bytes;
    }

    /// What everybody got.
    pub fn shares(&self, replicas: &[Vec<u32>]) -> Vec<Share> {
        let mut own: Vec<Vec<ExpertId>> = self.desks.iter().map(|_| Vec::new()).collect();
        let mut ids = Vec::with_capacity(self.owner.len());
        for size in self.layers {
            for expert in 0..size.experts {
                let id = ExpertId { layer: size.layer, expert };
                if let Some(own) = own.get_mut(self.owner[ids.len()] as usize) {
                    own.push(id);
                }
                ids.push(id);
            }
        }
        let slice = |replicas: &Vec<u32>| -> Slice { replicas.iter().map(|expert| ids[*expert as usize]).collect() };
        let share = |(own, replicas): (Vec<ExpertId>, &Vec<u32>)| Share {
            own: own.into_iter().collect(),
            replicas: slice(replicas),
        };
        own.into_iter().zip(replicas).map(share).collect()
    }
}

/// Who holds each expert, as ends and one row of workers.
fn holders_of(experts: usize, desks: &[Desk<'_>]) -> (Vec<u32>, Vec<u32>) {
    let mut ends = vec![0u32; experts];
    desks.iter().flat_map(|desk| &desk.held).for_each(|expert| ends[*expert as usize] += 1);
    let mut next = Vec::with_capacity(experts);
    let mut sum = 0;
    for end in &mut ends {
        next.push(sum);
        sum += *end;
        *end = sum;
    }
    let mut holders = vec![0; sum as usize];
    for (worker, desk) in desks.iter().enumerate() {
        for expert in &desk.held {
            let at = &mut next[*expert as usize];
            holders[*at as usize] = worker as u32;
            *at += 1;
        }
    }
    (ends, holders)
}
