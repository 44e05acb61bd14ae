//! AVX2: eight (weight row, unit) lanes at a time, two weight rows in flight.
//!
//! A *unit* is what stands under one f16 scale, a *quad* four consecutive units of a row; two rows of a quad are the
//! eight lanes, in the order `row · 4 + unit`, that are scaled, shifted and rounded together.

mod blocks;
mod lanes;
mod row;

use super::elementwise;
use super::engine::{Dots, Engine, Pass};
use crate::kernel::numerics::{OutOfRange, Poison};
use crate::model::BlockType;
use crate::types::GateWeight;
use crate::wire::work::SUPER_BLOCK;
pub(super) use row::Row;

/// Quantised rows that meet unpacked weights of a K-quant in registers.
const WIDE_AT_ONCE: usize = 4;
/// The same for blocks of 32, each of which needs sums of its own.
const SMALL_AT_ONCE: usize = 2;

/// Proof that this CPU has AVX2.
#[derive(Clone, Copy, Debug)]
pub(super) struct Avx2 {
    _detected: (),
}

impl Avx2 {
    /// The proof, where there is one.
    pub fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx2").then_some(Self { _detected: () })
    }
}

#[expect(unsafe_code, reason = "calls functions compiled for instructions that this value proves to be there")]
impl Engine for Avx2 {
    type Row = Row;

    fn row(self, _ty: BlockType, wire: &[u8]) -> Row {
        Row::new(wire)
    }

    fn top(row: &Row) -> i32 {
        row.top
    }

    fn dots(self, pass: &Pass<'_>, xs: &[&Row], out: &mut [i32]) {
        let n = pass.rows.len().max(1);
        let at_once = if pass.weights.ty().block().0 == SUPER_BLOCK { WIDE_AT_ONCE } else { SMALL_AT_ONCE };
        for (xs, out) in xs.chunks(at_once).zip(out.chunks_mut(at_once * n)) {
            // SAFETY: `self` exists only where `detect` found the instructions.
            unsafe {
                match *xs {
                    [] => {}
                    [a] => dots(pass, [a], out),
                    [a, b] => dots(pass, [a, b], out),
                    [a, b, c] => dots(pass, [a, b, c], out),
                    [a, b, c, d, ..] => dots(pass, [a, b, c, d], out),
                }
            }
        }
    }

    fn swiglu(self, gate: Dots<'_>, up: Dots<'_>, out: &mut [f32]) {
        // SAFETY: as above.
        unsafe { swiglu(gate, up, out) }
    }

    fn quantise(self, x: &[f32], wire: &mut Vec<u8>) -> Result<(), Poison> {
        // SAFETY: as above.
        unsafe { quantise(x, wire) }
    }

    fn reals(self, dots: Dots<'_>, out: &mut [f32]) {
        // SAFETY: as above.
        unsafe { reals(dots, out) }
    }

    fn add_outputs(self, dots: Dots<'_>, gate: GateWeight, grid: i8, sums: &mut [i32]) -> Result<(), OutOfRange> {
        // SAFETY: as above.
        unsafe { add_outputs(dots, gate, grid, sums) }
    }
}

#[target_feature(enable = "avx2")]
fn dots<const N: usize>(pass: &Pass<'_>, xs: [&Row; N], out: &mut [i32]) {
    let wide = xs.map(Row::wide);
    let small = xs.map(Row::small);
    match pass.weights.ty() {
        BlockType::Q4_K => lanes::walk(pass, out, wide, |block, x| blocks::q4_k(block, x)),
        BlockType::Q5_K => lanes::walk(pass, out, wide, |block, x| blocks::q5_k(block, x)),
        BlockType::Q6_K => lanes::walk(pass, out, wide, |block, x| blocks::q6_k(block, x)),
        BlockType::Q4_0 => lanes::walk(pass, out, small, |block, x| blocks::q4_0(block, x)),
        _ => lanes::walk(pass, out, small, |block, x| blocks::q8_0(block, x)),
    }
}

#[target_feature(enable = "avx2")]
fn swiglu(gate: Dots<'_>, up: Dots<'_>, out: &mut [f32]) {
    elementwise::swiglu(gate, up, out);
}

#[target_feature(enable = "avx2")]
fn quantise(x: &[f32], wire: &mut Vec<u8>) -> Result<(), Poison> {
    elementwise::quantise(x, wire)
}

#[target_feature(enable = "avx2")]
fn reals(dots: Dots<'_>, out: &mut [f32]) {
    elementwise::reals(dots, out);
}

#[target_feature(enable = "avx2")]
fn add_outputs(dots: Dots<'_>, gate: GateWeight, grid: i8, sums: &mut [i32]) -> Result<(), OutOfRange> {
    elementwise::add_outputs(dots, gate, grid, sums)
}
