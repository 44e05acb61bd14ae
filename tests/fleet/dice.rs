//! Chance from a seed, so that a fleet does the same again.

use std::time::Duration;

/// SplitMix64.
#[derive(Clone)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Dice of their own for somebody, so that what one does changes nobody else's luck.
    pub fn fork(&self, name: u64) -> Self {
        let mut own = Self(self.0 ^ name.wrapping_mul(0xd6e8_feb8_6659_fd93));
        own.next();
        own
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// Whether something happens that happens `per_mille` times in a thousand.
    pub fn happens(&mut self, per_mille: usize) -> bool {
        self.below(1000) < per_mille
    }

    /// From `least` to below `most`.
    pub fn millis(&mut self, least: usize, most: usize) -> Duration {
        Duration::from_millis((least + self.below(most - least)) as u64)
    }

    pub fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.next() as u8)
    }
}
