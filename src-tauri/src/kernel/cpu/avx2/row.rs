//! A quantised row, laid out for the AVX2 kernels.

use crate::kernel::numerics::QuantisedRow;
use crate::kernel::numerics::row_dot::GUARD_BITS;

/// A quantised row for the kernels.
pub(in crate::kernel::cpu) struct Row {
    /// Super-blocks.
    wide: Vec<WideUnit>,
    wide_shifts: Vec<Shifts>,
    /// Blocks of 32.
    small: Vec<SmallUnit>,
    small_shifts: Vec<Shifts>,
    /// The row's top exponent; 0 when it is all zero.
    pub top: i32,
}

/// A row as one kind of weights meets it.
pub(super) struct Units<'a, U> {
    /// Quantised values under one scale.
    pub units: &'a [U],
    /// Those of four units each.
    pub shifts: &'a [Shifts],
}

impl<U> Clone for Units<'_, U> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<U> Copy for Units<'_, U> {}

/// What the shifts of four units depend on; legal ones for missing units.
#[derive(Clone, Copy)]
pub(super) struct Shifts {
    /// 31 − L: with k less, how far a sum can be shifted up.
    pub room: [i32; 4],
    /// 17 + Emax − E.
    pub down: [i32; 4],
}

impl Shifts {
    /// Of units one after the other.
    fn quads(units: impl Iterator<Item = (i32, i32)>) -> Vec<Self> {
        let mut quads = Vec::new();
        for (i, (room, down)) in units.enumerate() {
            if i % 4 == 0 {
                quads.push(Self { room: [31; 4], down: [GUARD_BITS; 4] });
            }
            if let Some(quad) = quads.last_mut() {
                (quad.room[i % 4], quad.down[i % 4]) = (room, down);
            }
        }
        quads
    }
}

/// 256 values; numbers per step stand in the order 0, 2, 4 … 14 | 1, 3 … 15.
#[repr(C, align(32))]
pub(super) struct WideUnit {
    /// q.
    pub values: [[i8; 32]; 8],
    /// s.
    pub steps: [i16; 16],
    /// s_j · Σ q.
    pub sums: [i16; 16],
}

/// 32 values.
#[repr(C, align(32))]
pub(super) struct SmallUnit {
    /// q.
    pub values: [i8; 32],
    /// s of the first sixteen values eight times, then that of the others.
    pub steps: [i16; 16],
    /// Eight times `Σ s_j Σ q`: what reading Q4_0's signed weights as unsigned adds.
    pub bias: i32,
}

impl Row {
    /// Lays out whole super-blocks in wire form.
    pub fn new(wire: &[u8]) -> Self {
        let row = QuantisedRow::from_wire(wire);
        let top = row.top().unwrap_or(0);
        let shifts: Vec<(i32, i32)> = row
            .blocks
            .iter()
            .map(|block| match block.bits() {
                0 => (31, GUARD_BITS),
                bits => (31 - bits, GUARD_BITS + top - block.top()),
            })
            .collect();
        let wide_shifts = Shifts::quads(shifts.iter().copied());
        let small_shifts = Shifts::quads(shifts.iter().flat_map(|shifts| [*shifts; 8]));
        let (mut wide, mut small) = (Vec::new(), Vec::new());
        for block in &row.blocks {
            let step = |j: usize| i16::from(block.steps[j]);
            let sum = |j: usize| block.step_sum(j) as i16;
            let even_first = |lane: usize| lane % 8 * 2 + lane / 8;
            let values: [[i8; 32]; 8] = std::array::from_fn(|b| std::array::from_fn(|i| block.values[32 * b + i]));
            small.extend(values.iter().enumerate().map(|(b, values)| SmallUnit {
                values: *values,
                steps: std::array::from_fn(|lane| step(2 * b + lane / 8)),
                bias: 8 * (i32::from(sum(2 * b)) + i32::from(sum(2 * b + 1))),
            }));
            wide.push(WideUnit {
                values,
                steps: std::array::from_fn(|lane| step(even_first(lane))),
                sums: std::array::from_fn(|lane| sum(even_first(lane))),
            });
        }
        Self { wide, wide_shifts, small, small_shifts, top }
    }

    /// For K-quants.
    pub(super) fn wide(&self) -> Units<'_, WideUnit> {
        Units { units: &self.wide, shifts: &self.wide_shifts }
    }

    /// For blocks of 32.
    pub(super) fn small(&self) -> Units<'_, SmallUnit> {
        Units { units: &self.small, shifts: &self.small_shifts }
    }
}
