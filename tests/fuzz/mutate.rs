//! Changes to an input: flipped bytes, splices, cuts, repeats, and numbers that readers get wrong.

use std::hash::{BuildHasher, RandomState};

/// A small generator (SplitMix64): the whole hunt follows from its seed.
pub struct Random(u64);

/// A seed that no earlier run had.
pub fn any_seed() -> u64 {
    RandomState::new().hash_one(0)
}

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 when `n` is 0.
    fn below(&mut self, n: usize) -> usize {
        self.next().checked_rem(n as u64).unwrap_or(0) as usize
    }

    pub fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }

    /// Applies one to four changes; `pool` lends parts to splices.
    pub fn mutate(&mut self, input: &mut Vec<u8>, pool: &[Vec<u8>]) {
        for _ in 0..=self.below(4) {
            self.change(input, pool);
        }
    }

    fn change(&mut self, input: &mut Vec<u8>, pool: &[Vec<u8>]) {
        let at = self.below(input.len());
        match self.below(10) {
            0 => input.truncate(at),
            1 => {
                let byte = self.next() as u8;
                let end = input.len();
                input.splice(at.min(end)..at.min(end), [byte]);
            }
            2 => drop(input.drain(at..input.len().min(at + 1 + self.below(16)))),
            3 => {
                let end = input.len().min(at + 1 + self.below(64));
                let again = input[at.min(end)..end].to_vec();
                input.splice(at..at, again);
            }
            4 => {
                let other = self.pick(pool);
                let from = self.below(other.len());
                let end = other.len().min(from + 1 + self.below(256));
                let over = input.len().min(at + self.below(end - from + 1));
                input.splice(at..over, other[from..end].iter().copied());
            }
            5 | 6 => self.number(input, at),
            7 => self.nudge(input, at),
            _ => {
                let flip = 1u8 << self.below(8);
                let byte = if self.below(2) == 0 { self.next() as u8 } else { flip };
                if let Some(b) = input.get_mut(at) {
                    *b ^= byte;
                }
            }
        }
    }

    /// Overwrites 1, 2, 4 or 8 bytes with a number at an edge.
    fn number(&mut self, input: &mut [u8], at: usize) {
        const EDGES: [u64; 14] = [
            0,
            1,
            2,
            0x7F,
            0xFF,
            0x7FFF,
            0xFFFF,
            0x10000,
            0x7FFF_FFFF,
            0xFFFF_FFFF,
            1 << 32,
            i64::MAX as u64,
            1 << 63,
            u64::MAX,
        ];
        let edge = *self.pick(&EDGES);
        let mut bytes = edge.to_le_bytes();
        let width = 1 << self.below(4);
        if self.below(4) == 0 {
            bytes[..width].reverse();
        }
        if let Some(place) = input.get_mut(at..at + width) {
            place.copy_from_slice(&bytes[..width]);
        }
    }

    /// Adds or takes a power of two, or doubles a 1, 2, 4 or 8 byte number: lengths that are nearly right.
    fn nudge(&mut self, input: &mut [u8], at: usize) {
        let width = 1 << self.below(4);
        let step = 1u64 << self.below(10);
        let change = self.below(5);
        if let Some(place) = input.get_mut(at..at + width) {
            let mut bytes = [0; 8];
            bytes[..width].copy_from_slice(place);
            let number = u64::from_le_bytes(bytes);
            let number = match change {
                0 => number.wrapping_mul(2),
                1 | 2 => number.wrapping_sub(step),
                _ => number.wrapping_add(step),
            };
            place.copy_from_slice(&number.to_le_bytes()[..width]);
        }
    }
}
