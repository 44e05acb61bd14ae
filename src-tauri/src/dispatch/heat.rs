//! How often each expert is asked for, so that placement knows which ones matter.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A count that every expert of a layer loses half of once one of them reaches this: what was hot yesterday cools down.
const COUNT_MAX: u32 = 1 << 20;

/// Counters by layer, then by expert.
pub(super) struct Heat(Vec<Vec<AtomicU32>>);

impl Heat {
    /// Counters for layers with these numbers of experts; nothing was asked for yet.
    pub fn new(experts: impl Iterator<Item = usize>) -> Self {
        Self(experts.map(|count| (0..count).map(|_| AtomicU32::new(0)).collect()).collect())
    }

    /// Notes that `experts` of a layer are asked for.
    pub fn count(&self, layer: u16, experts: impl Iterator<Item = u16>) {
        let Some(counts) = self.0.get(usize::from(layer)) else { return };
        let mut is_full = false;
        for expert in experts {
            is_full |= counts.get(usize::from(expert)).is_some_and(|count| count.fetch_add(1, Relaxed) >= COUNT_MAX);
        }
        if is_full {
            counts.iter().for_each(|count| count.store(count.load(Relaxed) / 2, Relaxed));
        }
    }

    /// The counts now.
    pub fn counts(&self) -> Vec<Vec<u32>> {
        self.0.iter().map(|layer| layer.iter().map(|count| count.load(Relaxed)).collect()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_follow_what_is_asked_for_and_never_overflow() {
        let heat = Heat::new([2, 3].into_iter());
        heat.count(1, [0, 2, 2, 9].into_iter());
        heat.count(7, [0].into_iter());
        assert_eq!(heat.counts(), [vec![0, 0], vec![1, 0, 2]]);
        heat.count(1, std::iter::repeat_n(2, COUNT_MAX as usize));
        heat.count(1, [0].into_iter());
        assert!(heat.counts()[1][2] <= COUNT_MAX / 2 + 1);
    }
}
