//! Makes shares even again: newcomers and those far below their share take over from those far above.
//!
//! Where the taker holds a replica already, nothing has to move. Everybody else is left in peace, so that a join or a
//! leave, or an estimate that sways, does not shuffle the fleet.

use super::table::Table;

/// A worker that owns less than this part of its share takes over more, even of several layers.
const FAR_BELOW: f64 = 0.5;
/// How much of its share a newcomer takes over.
const NEWCOMER: f64 = 0.75;
/// A worker that owns more than this many times its share gives some of it away.
const FAR_ABOVE: f64 = 2.0;

/// Bytes that may still move.
struct Budget(u64);

/// Experts of a layer that a worker may take over: how good that is, the layer, the experts, and the bytes that move.
type Move = ((bool, bool, f64), usize, Vec<usize>, u64);

impl Budget {
    fn spend(&mut self, bytes: u64) -> bool {
        let enough = self.0 >= bytes;
        self.0 -= if enough { bytes } else { 0 };
        enough
    }
}

impl Table<'_> {
    /// See the module; `bytes_max` may move, and what newcomers take over.
    pub fn level(&mut self, bytes_max: u64) {
        let mut budget = Budget(bytes_max);
        let mut pressures: Vec<f64> = (0..self.layers.len()).map(|layer| self.pressure(layer)).collect();
        let mut takers: Vec<usize> = (0..self.desks.len()).filter(|w| !self.desks[*w].is_slow()).collect();
        takers.sort_by(|a, b| self.desks[*a].load().total_cmp(&self.desks[*b].load()));
        for worker in takers {
            let desk = &self.desks[worker];
            let is_new = desk.own == 0;
            let aim = desk.quota * if is_new { NEWCOMER } else { FAR_BELOW };
            let mut unbounded = Budget(u64::MAX);
            let budget = if is_new { &mut unbounded } else { &mut budget };
            if desk.own as f64 >= aim {
                continue;
            }
            if self.is_spread {
                self.take_experts(worker, aim, budget, &mut pressures);
            } else {
                self.take_layers(worker, aim, budget);
            }
        }
        self.unburden(&mut budget);
    }

    /// How full the owners of a layer's experts are, on average.
    fn pressure(&self, layer: usize) -> f64 {
        let experts = self.experts(layer);
        let count = experts.len().max(1) as f64;
        let loads = experts.filter_map(|expert| self.desks.get(self.owner[expert] as usize));
        loads.map(|desk| desk.load().min(1e6)).sum::<f64>() / count
    }

    /// Bytes that would have to move for `worker` to own these experts.
    fn moving(&self, layer: usize, experts: &[usize], worker: usize) -> u64 {
        let missing = experts.iter().filter(|expert| !self.desks[worker].holds(**expert)).count();
        missing as u64 * self.layers[layer].expert_bytes
    }

    /// Takes over whole layers from those with the most to give, while that makes shares more even.
    fn take_layers(&mut self, worker: usize, aim: f64, budget: &mut Budget) {
        while (self.desks[worker].own as f64) < aim {
            let desk = &self.desks[worker];
            let mut best: Option<Move> = None;
            for layer in self.hot_first.iter().copied() {
                let size = self.layers[layer];
                if !desk.may_hold(size.layer) {
                    continue;
                }
                for (owner, experts) in self.pieces(layer) {
                    let bytes = experts.len() as u64 * size.expert_bytes;
                    let (excess, moving) = (self.desks[owner].excess(), self.moving(layer, &experts, worker));
                    let evens = excess - desk.excess() > bytes as f64;
                    if owner == worker || !evens || desk.room() < bytes || moving > budget.0 {
                        continue;
                    }
                    let key = (desk.wants(size.layer), moving == 0, excess);
                    // The coldest layer of equals: it comes last.
                    if best.as_ref().is_none_or(|(other, ..)| key >= *other) {
                        best = Some((key, layer, experts, moving));
                    }
                }
            }
            let Some((_, layer, experts, moving)) = best else { return };
            if !budget.spend(moving) {
                return;
            }
            experts.into_iter().for_each(|expert| self.give(layer, expert, worker));
        }
    }

    /// Takes over experts of one layer from those of its owners with the most to do, and of another while it lacks.
    fn take_experts(&mut self, worker: usize, aim: f64, budget: &mut Budget, pressures: &mut [f64]) {
        let may_hold = |layer: &usize| self.desks[worker].may_hold(self.layers[*layer].layer);
        let mut open: Vec<usize> = (0..self.layers.len()).filter(may_hold).collect();
        while (self.desks[worker].own as f64) < aim {
            let better = |a: &usize, b: &usize| {
                let wants = |layer: &usize| self.desks[worker].wants(self.layers[*layer].layer);
                wants(a).cmp(&wants(b)).then(pressures[*a].total_cmp(&pressures[*b]))
            };
            let Some(at) = (0..open.len()).max_by(|a, b| better(&open[*a], &open[*b])) else { return };
            let layer = open.swap_remove(at);
            let bytes = self.layers[layer].expert_bytes;
            let mut pieces = self.pieces(layer);
            pieces.retain(|(owner, _)| *owner != worker);
            while self.desks[worker].room() >= bytes && self.desks[worker].excess() < 0.0 {
                let busiest = pieces.iter_mut().filter(|(_, experts)| !experts.is_empty());
                let busiest = busiest.max_by(|(a, _), (b, _)| self.desks[*a].load().total_cmp(&self.desks[*b].load()));
                let Some((owner, experts)) = busiest else { break };
                let (after, own) = (self.desks[worker].load_with(bytes), &self.desks[*owner]);
                if !own.is_slow() && (own.own - bytes) as f64 / own.quota <= after {
                    break;
                }
                let held = experts.iter().rposition(|expert| self.desks[worker].holds(*expert));
                let expert = experts.remove(held.unwrap_or(experts.len() - 1));
                if held.is_none() && !budget.spend(bytes) {
                    return;
                }
                self.give(layer, expert, worker);
            }
            pressures[layer] = self.pressure(layer);
            if self.desks[worker].load() >= FAR_BELOW {
                return;
            }
        }
    }

    /// Takes from workers that own far more than their share, what is asked for most first.
    fn unburden(&mut self, budget: &mut Budget) {
        let largest = self.layers.iter().map(|size| size.expert_bytes).max().unwrap_or(0) as f64;
        let is_burdened = |table: &Self, w: usize| {
            let desk = &table.desks[w];
            desk.own > 0 && desk.excess() > largest.min(desk.own as f64 - 1.0) && desk.load() > FAR_ABOVE
        };
        if !(0..self.desks.len()).any(|w| is_burdened(self, w)) {
            return;
        }
        for layer in self.hot_first.clone() {
            for (owner, experts) in self.pieces(layer) {
                let mut rest = &experts[..];
                while !rest.is_empty() && is_burdened(self, owner) {
                    let taken = self.relieve(layer, owner, rest, budget);
                    if taken == 0 {
                        break;
                    }
                    rest = &rest[taken..];
                }
            }
        }
    }

    /// Gives the first of `experts` to whoever has the least to do, all of them where layers are whole; how many.
    fn relieve(&mut self, layer: usize, owner: usize, experts: &[usize], budget: &mut Budget) -> usize {
        let count = if self.is_spread { 1 } else { experts.len() };
        let piece = &experts[..count];
        let bytes = count as u64 * self.layers[layer].expert_bytes;
        let limit = self.desks[owner].load().min(FAR_ABOVE);
        let takes = |w: &usize| {
            let desk = &self.desks[*w];
            *w != owner
                && desk.may_hold(self.layers[layer].layer)
                && desk.room() >= bytes
                && desk.load_with(bytes) < limit
        };
        let key = |w: &usize| (self.moving(layer, piece, *w) > 0, self.desks[*w].load_with(bytes));
        let better = |a: &usize, b: &usize| {
            let ((a_moves, a_load), (b_moves, b_load)) = (key(a), key(b));
            a_moves.cmp(&b_moves).then(a_load.total_cmp(&b_load))
        };
        let Some(worker) = (0..self.desks.len()).filter(takes).min_by(better) else { return 0 };
        if !budget.spend(self.moving(layer, piece, worker)) {
            return 0;
        }
        piece.iter().for_each(|expert| self.give(layer, *expert, worker));
        count
    }
}
