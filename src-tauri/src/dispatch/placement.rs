//! Decides who holds which experts: the workers' memory and a list of remote layers in, one slice per worker out.
//!
//! A token pays one round trip for every layer that has a remote expert, so a worker gets whole layers first; a
//! layer's experts are spread only when there are more workers than layers, or when no worker has room for all.
//! **Promises:** pure and deterministic; no slice is larger than its worker's memory; no expert is given twice; when
//! the experts are of one size and the memory suffices, every one is given.

use crate::types::ExpertId;
use crate::wire::Slice;

/// A layer to be placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LayerSize {
    /// The layer.
    pub layer: u16,
    /// Routed experts of the layer.
    pub experts: u16,
    /// Stored bytes of one expert.
    pub expert_bytes: u64,
}

/// What a worker can hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Capacity {
    /// Bytes that its slice may take.
    pub memory_bytes: u64,
    /// Layers it would rather hold; empty = any.
    pub wants: Vec<u16>,
}

/// The unplaced rest of a layer: experts `next..experts`.
struct Rest {
    size: LayerSize,
    next: u16,
}

impl Rest {
    fn left(&self) -> u16 {
        self.size.experts - self.next
    }
}

/// A worker being filled.
struct Filling<'a> {
    capacity: &'a Capacity,
    free_bytes: u64,
    layers: usize,
    experts: Vec<ExpertId>,
}

impl Filling<'_> {
    /// Experts of this size that still fit.
    fn room(&self, size: &LayerSize) -> u16 {
        let fit = self.free_bytes.checked_div(size.expert_bytes).unwrap_or(u64::MAX);
        u16::try_from(fit).unwrap_or(u16::MAX)
    }

    fn wants(&self, layer: u16) -> bool {
        self.capacity.wants.contains(&layer)
    }

    /// Takes up to `count` experts from the rest of a layer.
    fn take(&mut self, rest: &mut Rest, count: u16) {
        let count = count.min(rest.left()).min(self.room(&rest.size));
        if count == 0 {
            return;
        }
        let layer = rest.size.layer;
        self.experts.extend((rest.next..rest.next + count).map(|expert| ExpertId { layer, expert }));
        self.free_bytes -= u64::from(count) * rest.size.expert_bytes;
        self.layers += 1;
        rest.next += count;
    }
}

/// One slice per worker, in the order of `workers`.
#[must_use]
pub fn place(layers: &[LayerSize], workers: &[Capacity]) -> Vec<Slice> {
    let mut rests: Vec<Rest> = layers.iter().map(|size| Rest { size: *size, next: 0 }).collect();
    let mut fillings: Vec<Filling<'_>> = workers
        .iter()
        .map(|capacity| Filling { capacity, free_bytes: capacity.memory_bytes, layers: 0, experts: Vec::new() })
        .collect();
    if workers.len() > layers.len() {
        spread(&mut rests, &mut fillings);
    } else {
        whole_layers(&mut rests, &mut fillings);
    }
    remainder(&mut rests, &mut fillings);
    fillings.into_iter().map(|f| f.experts.into_iter().collect()).collect()
}

/// Gives each layer whole to the worker with the fewest layers that has the room: wished-for layers first, up to a
/// fair share each, then the others.
fn whole_layers(rests: &mut [Rest], fillings: &mut [Filling<'_>]) {
    let share = rests.len().div_ceil(fillings.len().max(1));
    for wished in [true, false] {
        for rest in rests.iter_mut().filter(|r| r.left() > 0) {
            let size = rest.size;
            let takes = |f: &&mut Filling<'_>| {
                f.room(&size) >= size.experts && (!wished || (f.wants(size.layer) && f.layers < share))
            };
            if let Some(worker) = fillings.iter_mut().filter(takes).min_by_key(|f| f.layers) {
                worker.take(rest, size.experts);
            }
        }
    }
}

/// Gives each worker to one layer, evenly, and each layer's experts to its workers in equal shares.
fn spread(rests: &mut [Rest], fillings: &mut [Filling<'_>]) {
    let mut groups: Vec<Vec<usize>> = rests.iter().map(|_| Vec::new()).collect();
    for (index, worker) in fillings.iter().enumerate() {
        let preferred = |i: &usize| (!worker.wants(rests[*i].size.layer), groups[*i].len());
        if let Some(group) = (0..groups.len()).filter(|i| worker.room(&rests[*i].size) > 0).min_by_key(preferred) {
            groups[group].push(index);
        }
    }
    for (rest, group) in rests.iter_mut().zip(&groups) {
        for (taken, index) in group.iter().enumerate() {
            let shares = (group.len() - taken) as u16;
            fillings[*index].take(rest, rest.left().div_ceil(shares));
        }
    }
}

/// Gives what is left to whoever has the most room for it, in as few pieces as possible.
fn remainder(rests: &mut [Rest], fillings: &mut [Filling<'_>]) {
    for rest in rests {
        while rest.left() > 0 {
            let roomiest = fillings
                .iter_mut()
                .enumerate()
                .max_by_key(|(index, f)| (f.room(&rest.size), std::cmp::Reverse(*index)))
                .filter(|(_, f)| f.room(&rest.size) > 0);
            let Some((_, worker)) = roomiest else { break };
            worker.take(rest, rest.size.experts);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn layers(count: u16, experts: u16, expert_bytes: u64) -> Vec<LayerSize> {
        (0..count).map(|layer| LayerSize { layer, experts, expert_bytes }).collect()
    }

    fn workers(memory: &[u64]) -> Vec<Capacity> {
        memory.iter().map(|m| Capacity { memory_bytes: *m, wants: vec![] }).collect()
    }

    fn texts(slices: &[Slice]) -> Vec<String> {
        slices.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn whole_layers_come_first() {
        let slices = place(&layers(4, 16, 10), &workers(&[1000, 1000]));
        assert_eq!(texts(&slices), ["0:0-15,2:0-15", "1:0-15,3:0-15"]);
    }

    #[test]
    fn a_layer_is_split_when_there_are_more_workers_than_layers() {
        let slices = place(&layers(1, 16, 10), &workers(&[1000, 1000, 1000]));
        assert_eq!(texts(&slices), ["0:0-5", "0:6-10", "0:11-15"]);
    }

    #[test]
    fn a_layer_that_fits_nowhere_is_split_and_the_rest_stays_local() {
        let slices = place(&layers(2, 16, 10), &workers(&[100, 90]));
        assert_eq!(texts(&slices), ["0:0-9", "0:10-15,1:0-2"]);
    }

    #[test]
    fn a_wish_is_followed_where_memory_allows() {
        let mut two = workers(&[1000, 1000]);
        two[0].wants = vec![1];
        assert_eq!(texts(&place(&layers(2, 4, 10), &two)), ["1:0-3", "0:0-3"]);
    }

    #[test]
    fn nobody_and_nothing_are_fine() {
        assert!(place(&layers(2, 4, 10), &[]).is_empty());
        assert_eq!(texts(&place(&[], &workers(&[10]))), [""]);
    }

    proptest! {
        #[test]
        fn memory_is_respected_and_nothing_is_given_twice(
            sizes in prop::collection::vec((0u16..40, 0u64..50), 0..6),
            memory in prop::collection::vec(0u64..2000, 0..9),
        ) {
            let layers: Vec<LayerSize> = sizes
                .iter()
                .enumerate()
                .map(|(i, (experts, expert_bytes))| LayerSize { layer: i as u16, experts: *experts, expert_bytes: *expert_bytes })
                .collect();
            let slices = place(&layers, &workers(&memory));
            prop_assert_eq!(&slices, &place(&layers, &workers(&memory)));
            let mut seen = std::collections::BTreeSet::new();
            for (slice, memory) in slices.iter().zip(&memory) {
                let bytes: u64 = slice.iter().map(|id| layers[id.layer as usize].expert_bytes).sum();
                prop_assert!(bytes <= *memory);
                for id in slice.iter() {
                    prop_assert!(id.expert < layers[id.layer as usize].experts);
                    prop_assert!(seen.insert(id));
                }
            }
        }

        #[test]
        fn every_expert_is_covered_when_memory_allows(
            count in 0u16..6,
            experts in 1u16..40,
            expert_bytes in 1u64..50,
            memory in prop::collection::vec(0u64..4000, 1..9),
        ) {
            let slices = place(&layers(count, experts, expert_bytes), &workers(&memory));
            let room: u64 = memory.iter().map(|m| m / expert_bytes).sum();
            let placed: usize = slices.iter().map(Slice::len).sum();
            prop_assert_eq!(placed as u64, room.min(u64::from(count) * u64::from(experts)));
        }
    }
}
