//! Which tiling of a kernel is the fastest on this adapter: a handful of candidates, timed on experts of the real shape.
//!
//! Experts are taken in turn from more memory than a cache holds, as decoding does, and the device's own clock is asked
//! where there is one. Not here: whether a candidate is right; the self-test decides that first.

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::compose::{MatrixKernel, Op, TileRows, Tiling, Weights};
use super::kernel::Open;
use super::layout::ClassKey;
use super::selftest::Held;
use super::vectors::{SplitMix, synthetic};
use crate::kernel::experts::{Expert, KernelError};
use crate::kernel::numerics::quantise_row;
use crate::model::ExpertWeights;
use crate::types::GateWeight;
use crate::wire::work::{Activations, Assignment, Dispatch, RowHead};

/// Memory through which the timed experts rotate: more than the largest caches hold.
const ROTATED_BYTES: u64 = 256 << 20;
/// Part of the free memory that tuning may take.
const ROOM_PART: u64 = 4;
/// Experts of a row, as routers choose.
const EXPERTS_PER_ROW: usize = 8;

/// How thoroughly an adapter is tuned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Effort {
    /// Candidates of a kernel beside the untuned tiling.
    pub candidates: usize,
    /// Timed runs of a candidate, after one that compiles.
    pub rounds: usize,
    /// Experts that are placed at most.
    pub experts: usize,
    /// How long the device computes before anything is timed, until its clocks are up.
    pub warm_up: Duration,
    /// Longest time for all kernels of a class.
    pub limit: Duration,
    /// Sizes of tiles that are tuned.
    pub tiles: &'static [TileRows],
}

impl Effort {
    /// For GPUs: tiles of every size.
    pub const FULL: Self = Self {
        candidates: 5,
        rounds: 15,
        experts: 64,
        warm_up: Duration::from_millis(200),
        limit: Duration::from_secs(4),
        tiles: &TileRows::ALL,
    };
    /// For programs on the CPU, where nothing is to be won.
    pub const SMALL: Self = Self {
        candidates: 2,
        rounds: 1,
        experts: 2,
        warm_up: Duration::ZERO,
        limit: Duration::from_secs(1),
        tiles: &[TileRows::One],
    };
}

/// Threads of a workgroup, lanes, and whether eight lanes share a super-block, the most promising first.
const DECODE: [(u32, u32, bool); 10] = [
    (128, 32, true),
    (128, 16, true),
    (128, 8, true),
    (128, 16, false),
    (64, 8, false),
    (128, 4, false),
    (64, 2, false),
    (256, 32, true),
    (256, 4, false),
    (64, 1, false),
];
/// The same for full tiles.
const BATCH: [(u32, u32, bool); 7] = [
    (128, 8, true),
    (128, 1, false),
    (256, 1, false),
    (128, 2, false),
    (256, 16, true),
    (256, 8, true),
    (128, 4, false),
];

/// What limits the choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Bounds {
    /// Super-blocks of a weight row.
    pub blocks: usize,
    /// Whether eight neighbouring threads can add up by shuffles.
    pub shared_blocks: bool,
    /// Largest workgroup.
    pub threads_max: u32,
}

/// At most `count` tilings worth trying.
pub(super) fn candidates(op: Op, weights: Weights, tile: TileRows, bounds: Bounds, count: usize) -> Vec<Tiling> {
    let list: &[(u32, u32, bool)] = if tile == TileRows::One { &DECODE } else { &BATCH };
    let tiling = |&(threads, lanes, shared_blocks): &(u32, u32, bool)| {
        let one = MatrixKernel { op, weights, tile, tiling: Tiling { lanes, rows: 1, shared_blocks } };
        let rows = threads / one.workgroup();
        // Lanes without a super-block of their own would idle.
        let busy = lanes as usize / if shared_blocks { 8 } else { 1 } <= bounds.blocks.next_power_of_two();
        let fits = rows > 0 && threads <= bounds.threads_max && (bounds.shared_blocks || !shared_blocks);
        (fits && busy).then_some(Tiling { lanes, rows, shared_blocks })
    };
    list.iter().filter_map(tiling).take(count).collect()
}

/// Experts of one class, and requests that walk through them.
pub(super) struct Course<'a> {
    open: &'a Open,
    key: ClassKey,
    held: Held,
    rounds: usize,
    turn: Cell<usize>,
}

impl<'a> Course<'a> {
    /// Places experts of class `key`, copies of one.
    ///
    /// # Errors
    /// There is no room, or the device is lost.
    pub fn new(open: &'a Open, key: ClassKey, effort: Effort) -> Result<Self, KernelError> {
        let mut random = SplitMix(key.expert_bytes() as u64);
        let mut matrix = |weights, rows, cols| synthetic(weights, rows, cols, &mut random);
        let expert = Expert::new(&ExpertWeights {
            gate: matrix(key.outer, key.intermediate, key.hidden)?,
            up: matrix(key.outer, key.intermediate, key.hidden)?,
            down: matrix(key.inner, key.hidden, key.intermediate)?,
        })?;
        let copies = ROTATED_BYTES.min(open.room() / ROOM_PART) / key.expert_bytes() as u64;
        let copies = (copies as usize).clamp(1, effort.experts);
        let held = Held::place(open, key, &[expert], copies)?;
        let course = Self { open, key, held, rounds: effort.rounds, turn: Cell::new(0) };
        let start = Instant::now();
        while start.elapsed() < effort.warm_up {
            course.run(1)?;
        }
        Ok(course)
    }

    /// Time of a request that fills tiles of one size, through the kernels that are chosen now: the median.
    ///
    /// # Errors
    /// The kernels do not compile, or the device is lost.
    pub fn time(&self, tile: TileRows) -> Result<Duration, KernelError> {
        let mut times = Vec::with_capacity(self.rounds);
        // The first run compiles.
        self.run(tile.count() as usize)?;
        for _ in 0..self.rounds {
            times.push(self.run(tile.count() as usize)?.0);
        }
        times.sort();
        Ok(times[times.len() / 2])
    }

    /// One request of `rows` rows over the next experts: its time and its assignments.
    ///
    /// # Errors
    /// As [`time`](Self::time).
    pub fn run(&self, rows: usize) -> Result<(Duration, usize), KernelError> {
        let experts = self.held.len().min(EXPERTS_PER_ROW);
        let first = self.turn.replace((self.turn.get() + experts) % self.held.len());
        let request = self.request(rows, first, experts);
        let start = Instant::now();
        let (_, time) = self.open.compute(&self.held, 0, &[request], true)?;
        // An adapter without a clock is timed by ours.
        Ok((time.unwrap_or_else(|| start.elapsed()), rows * experts))
    }

    fn request(&self, rows: usize, first: usize, experts: usize) -> Dispatch {
        let mut own: Vec<u16> = (0..experts).map(|i| ((first + i) % self.held.len()) as u16).collect();
        own.sort_unstable();
        let (mut wire, mut heads, mut assignments) = (Vec::new(), Vec::new(), Vec::new());
        for r in 0..rows {
            let x: Vec<f32> = (0..self.key.hidden).map(|i| ((i * (2 * r + 3)) as f32 * 0.7).sin()).collect();
            // Sines are finite, so that the row always has a quantised form.
            let _ = quantise_row(&x, &mut wire);
            heads.push(RowHead { grid: 0, count: own.len() as u16, first: assignments.len() as u32 });
            let gate = GateWeight { mantissa: 32768, exponent: -18 };
            assignments.extend(own.iter().map(|expert| Assignment { expert: *expert, gate }));
        }
        let activations = Activations::Exact(wire.into());
        Dispatch { lease: 0, deadline_ms: 0, hidden: self.key.hidden, rows: heads, activations, assignments }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_fit_the_device_and_keep_their_lanes_busy() {
        for weights in Weights::EXACT {
            for tile in TileRows::ALL {
                for (shared_blocks, blocks, threads_max) in [(true, 12, 256), (false, 12, 256), (true, 1, 128)] {
                    let bounds = Bounds { blocks, shared_blocks, threads_max };
                    let all = candidates(Op::GateUp, weights, tile, bounds, usize::MAX);
                    assert!(!all.is_empty(), "{weights} {tile:?} {bounds:?}");
                    for tiling in all {
                        let kernel = MatrixKernel { op: Op::GateUp, weights, tile, tiling };
                        assert!(kernel.workgroup() <= threads_max && tiling.lanes.is_power_of_two(), "{kernel}");
                        assert!(shared_blocks || !tiling.shared_blocks, "{kernel}");
                        assert!(!tiling.shared_blocks || tiling.lanes >= 8, "{kernel}");
                        assert!(tiling.lanes as usize <= 8 * blocks.next_power_of_two(), "{kernel}");
                    }
                }
            }
        }
    }

    #[test]
    fn no_more_candidates_than_asked_for_are_tried() {
        let bounds = Bounds { blocks: 12, shared_blocks: true, threads_max: 256 };
        assert_eq!(candidates(Op::Down, Weights::Q4K, TileRows::One, bounds, 5).len(), 5);
    }
}
