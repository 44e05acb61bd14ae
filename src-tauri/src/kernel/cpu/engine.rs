//! What one instruction level must do; everything around it is shared.

use std::ops::Range;

use super::elementwise;
use crate::kernel::numerics::row_dot::GUARD_BITS;
use crate::kernel::numerics::{ExactMatrix, OutOfRange, Poison, growth_bits};
use crate::model::BlockType;
use crate::types::GateWeight;

/// Most quantised rows that one pass over a weight row serves.
pub(in crate::kernel) const ROWS_PER_PASS: usize = 64;

/// Least weight rows of a piece that a thread takes.
const PIECE_ROWS_MIN: usize = 64;
/// Most of them: beyond that nothing is gained.
const PIECE_ROWS_MAX: usize = 384;

/// Weight rows of a piece, of `all` rows that meet up to `at_once` quantised rows: as many as leave every thread a few
/// pieces, because memory is slow at first wherever a read begins. Weights that are met in several passes stay in a
/// core's own cache from one to the next.
pub(in crate::kernel) fn piece_rows(all: usize, at_once: usize, threads: usize) -> usize {
    if at_once > ROWS_PER_PASS {
        return PIECE_ROWS_MIN;
    }
    (all / (4 * threads)).next_multiple_of(16).clamp(PIECE_ROWS_MIN, PIECE_ROWS_MAX)
}

/// Weight rows that are read in one go.
#[derive(Clone)]
pub(in crate::kernel) struct Pass<'a> {
    /// The matrix.
    pub weights: &'a ExactMatrix,
    /// Which of its rows.
    pub rows: Range<usize>,
    /// What this thread is likely to read next: it may be fetched while the last rows are computed, because memory
    /// takes longer to answer than a pass takes.
    pub next: &'a [u8],
}

/// Dots of consecutive weight rows with one quantised row: dot i is `values[i] · 2^(base + exponents[i])`.
#[derive(Clone, Copy)]
pub(in crate::kernel) struct Dots<'a> {
    /// One per weight row.
    pub values: &'a [i32],
    /// The weight rows' exponents.
    pub exponents: &'a [i8],
    /// The part of the exponent that the quantised row and the type decide.
    pub base: i32,
}

impl Dots<'_> {
    /// The base for a quantised row with the given top and weights of type `ty`.
    pub fn base(top: i32, ty: BlockType) -> i32 {
        top + growth_bits(ty) - 31 + GUARD_BITS
    }
}

/// A computation for whichever engine this machine has.
pub(in crate::kernel) trait OnEngine {
    /// What it gives.
    type Out;

    /// Computes on `engine`.
    fn on<E: Engine>(self, engine: E) -> Self::Out;
}

/// One instruction level. Every method returns the bits of `kernel::numerics`.
pub(in crate::kernel) trait Engine: Copy + Send + Sync {
    /// A quantised row in the layout that [`dots`](Self::dots) reads for one weight type.
    type Row: Send + Sync;

    /// Prepares whole super-blocks in wire form for weights of type `ty`.
    fn row(self, ty: BlockType, wire: &[u8]) -> Self::Row;

    /// The row's top exponent; any number when it is all zero.
    fn top(row: &Self::Row) -> i32;

    /// Dots of the pass's weight rows with each of `xs` (at most [`ROWS_PER_PASS`], prepared for the weights' type):
    /// `out[x · rows.len() + r]`.
    fn dots(self, pass: &Pass<'_>, xs: &[&Self::Row], out: &mut [i32]);

    /// `silu(gate) · up` for every dot.
    fn swiglu(self, gate: Dots<'_>, up: Dots<'_>, out: &mut [f32]) {
        elementwise::swiglu(gate, up, out);
    }

    /// Appends the wire form of `x`.
    fn quantise(self, x: &[f32], wire: &mut Vec<u8>) -> Result<(), Poison> {
        elementwise::quantise(x, wire)
    }

    /// The f32 nearest to every dot.
    fn reals(self, dots: Dots<'_>, out: &mut [f32]) {
        elementwise::reals(dots, out);
    }

    /// Adds the weighted dots on the grid to `sums`, which may wrap when there are more than sixteen experts.
    ///
    /// # Errors
    /// An output does not fit the grid; `sums` then hold anything.
    fn add_outputs(self, dots: Dots<'_>, gate: GateWeight, grid: i8, sums: &mut [i32]) -> Result<(), OutOfRange> {
        elementwise::add_outputs(dots, gate, grid, sums)
    }
}
