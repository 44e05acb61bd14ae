//! A quantised row, laid out for the AVX2 kernels.

use crate::kernel::numerics::QuantisedRow;
use crate::kernel::numerics::row_dot::GUARD_BITS;

/// A quantised row for the kernels.
pub(in crate::kernel::cpu) struct Row {
    /// Super-blocks.
    pub(super) wide: Vec<WideUnit>,
    /// Blocks of 32.
    pub(super) small: Vec<SmallUnit>,
    /// The row's top exponent; 0 when it is all zero.
    pub top: i32,
}

/// What the shifts of a unit depend on.
#[derive(Clone, Copy)]
pub(super) struct Shifts {
    /// 31 − L: with k less, how far a sum can be shifted up.
    pub room: i32,
    /// 17 + Emax − E.
    pub down: i32,
}

/// Quantised values under one scale.
pub(super) trait Unit {
    fn shifts(&self) -> Shifts;
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
    pub shifts: Shifts,
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
    pub shifts: Shifts,
}

impl Unit for WideUnit {
    fn shifts(&self) -> Shifts {
        self.shifts
    }
}

impl Unit for SmallUnit {
    fn shifts(&self) -> Shifts {
        self.shifts
    }
}

impl Row {
    /// Lays out whole super-blocks in wire form.
    pub fn new(wire: &[u8]) -> Self {
        let row = QuantisedRow::from_wire(wire);
        let top = row.top().unwrap_or(0);
        let (mut wide, mut small) = (Vec::new(), Vec::new());
        for block in &row.blocks {
            let bits = block.bits();
            let down = if bits == 0 { GUARD_BITS } else { GUARD_BITS + top - block.top() };
            let shifts = Shifts { room: 31 - bits, down };
            let step = |j: usize| i16::from(block.steps[j]);
            let sum = |j: usize| block.step_sum(j) as i16;
            let even_first = |lane: usize| lane % 8 * 2 + lane / 8;
            let values: [[i8; 32]; 8] = std::array::from_fn(|b| std::array::from_fn(|i| block.values[32 * b + i]));
            small.extend(values.iter().enumerate().map(|(b, values)| SmallUnit {
                values: *values,
                steps: std::array::from_fn(|lane| step(2 * b + lane / 8)),
                bias: 8 * (i32::from(sum(2 * b)) + i32::from(sum(2 * b + 1))),
                shifts,
            }));
            wide.push(WideUnit {
                values,
                steps: std::array::from_fn(|lane| step(even_first(lane))),
                sums: std::array::from_fn(|lane| sum(even_first(lane))),
                shifts,
            });
        }
        Self { wide, small, top }
    }
}
