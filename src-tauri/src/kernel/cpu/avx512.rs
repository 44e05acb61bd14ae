//! AVX-512 with VNNI: sixteen (weight row, unit) lanes at a time, four weight rows in flight.
//!
//! A *unit* is what stands under one f16 scale (256 weights of a K-quant, 32 of Q8_0 and Q4_0), a *quad* four
//! consecutive units of a row. Four rows of a quad are sixteen lanes, in the order `unit · 4 + row`, that are scaled,
//! shifted and rounded together, so that this costs next to nothing per weight: up to four quantised rows are met as
//! fast as memory gives the weights. More of them meet a [`tile`], which costs more to unpack and less to multiply.

mod k_quants;
mod lanes;
mod row;
mod small;
mod tile;

use super::elementwise;
use super::engine::{Dots, Engine, Pass};
use crate::kernel::numerics::{OutOfRange, Poison};
use crate::model::BlockType;
use crate::types::GateWeight;
use crate::wire::work::SUPER_BLOCK;
pub(super) use row::Row;

/// Proof that this CPU has AVX-512 F, BW, VL, DQ, CD, VBMI and VNNI.
#[derive(Clone, Copy, Debug)]
pub(super) struct Avx512 {
    _detected: (),
}

impl Avx512 {
    /// The proof, where there is one.
    pub fn detect() -> Option<Self> {
        let detected = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512cd")
            && is_x86_feature_detected!("avx512vbmi")
            && is_x86_feature_detected!("avx512vnni");
        detected.then_some(Self { _detected: () })
    }
}

#[expect(unsafe_code, reason = "calls functions compiled for instructions that this value proves to be there")]
impl Engine for Avx512 {
    type Row = Row;

    fn row(self, ty: BlockType, wire: &[u8]) -> Row {
        // SAFETY: `self` exists only where `detect` found the instructions.
        unsafe { row::prepare(ty, wire) }
    }

    fn top(row: &Row) -> i32 {
        row.top
    }

    fn dots(self, pass: &Pass<'_>, xs: &[&Row], out: &mut [i32]) {
        // SAFETY: as above.
        unsafe {
            match *xs {
                [] => {}
                [a] => dots(pass, [a], out),
                [a, b] => dots(pass, [a, b], out),
                [a, b, c] if is_wide(pass) => dots(pass, [a, b, c], out),
                [a, b, c, d] if is_wide(pass) => dots(pass, [a, b, c, d], out),
                _ => tile::dots(pass, xs, out),
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

/// Whether the weights are K-quants, whose quads are cheap to meet a few more times.
fn is_wide(pass: &Pass<'_>) -> bool {
    pass.weights.ty().block().0 == SUPER_BLOCK
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx512vbmi,avx512vnni")]
fn dots<const N: usize>(pass: &Pass<'_>, xs: [&Row; N], out: &mut [i32]) {
    match pass.weights.ty() {
        BlockType::Q4_K => lanes::walk(pass, out, |quads, q, e, soon| k_quants::q4_k(quads, xs, q, e, soon)),
        BlockType::Q5_K => lanes::walk(pass, out, |quads, q, e, soon| k_quants::q5_k(quads, xs, q, e, soon)),
        BlockType::Q6_K => lanes::walk(pass, out, |quads, q, e, soon| k_quants::q6_k(quads, xs, q, e, soon)),
        BlockType::Q4_0 => lanes::walk(pass, out, |quads, q, e, soon| small::q4_0(quads, xs, q, e, soon)),
        _ => lanes::walk(pass, out, |quads, q, e, soon| small::q8_0(quads, xs, q, e, soon)),
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx512vbmi,avx512vnni")]
fn swiglu(gate: Dots<'_>, up: Dots<'_>, out: &mut [f32]) {
    elementwise::swiglu(gate, up, out);
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx512vbmi,avx512vnni")]
fn quantise(x: &[f32], wire: &mut Vec<u8>) -> Result<(), Poison> {
    elementwise::quantise(x, wire)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx512vbmi,avx512vnni")]
fn reals(dots: Dots<'_>, out: &mut [f32]) {
    elementwise::reals(dots, out);
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx512vbmi,avx512vnni")]
fn add_outputs(dots: Dots<'_>, gate: GateWeight, grid: i8, sums: &mut [i32]) -> Result<(), OutOfRange> {
    elementwise::add_outputs(dots, gate, grid, sums)
}
