//! What happens between the dots, without branches, so that compilers turn it into vectors of any width.
//!
//! The bodies are inlined into each engine and compiled there for its instructions; they are proven equal to the
//! readable versions in `kernel::numerics` by the engines' tests.

use super::engine::Dots;
use crate::kernel::numerics::quantise::{STEPS, block_exponent, step};
use crate::kernel::numerics::row_dot::power_of_two;
use crate::kernel::numerics::swiglu::{BEYOND, SIGMOID};
use crate::kernel::numerics::{OutOfRange, Poison, QuantisedBlock};
use crate::types::GateWeight;
use crate::wire::work::{SUPER_BLOCK, SUPER_BLOCK_BYTES};

/// `silu(gate) · up` for every dot.
#[inline(always)]
pub(super) fn swiglu(gate: Dots<'_>, up: Dots<'_>, out: &mut [f32]) {
    let gates = gate.values.iter().zip(gate.exponents);
    let ups = up.values.iter().zip(up.exponents);
    for (h, ((g, ge), (u, ue))) in out.iter_mut().zip(gates.zip(ups)) {
        *h = silu_times(*g, gate.base + i32::from(*ge), *u, up.base + i32::from(*ue));
    }
}

/// The f32 nearest to every dot.
#[inline(always)]
pub(super) fn reals(dots: Dots<'_>, out: &mut [f32]) {
    for (out, (value, exponent)) in out.iter_mut().zip(dots.values.iter().zip(dots.exponents)) {
        *out = (f64::from(*value) * power_of_two(dots.base + i32::from(*exponent))) as f32;
    }
}

/// `v · 2^exponent` as (m, e) with m in 32768..=65535; anything for v = 0.
#[inline(always)]
fn normalise(v: u32, exponent: i32) -> (u32, i32) {
    let zeros = v.leading_zeros();
    let n = v << (zeros & 31);
    (((n >> 16) + ((n >> 15) & 1)).min(65535), exponent + 16 - zeros as i32)
}

#[inline(always)]
fn silu_times(gate: i32, gate_exponent: i32, up: i32, up_exponent: i32) -> f32 {
    const ONE: u32 = 1 << 30;
    let (gate_m, gate_e) = normalise(gate.unsigned_abs(), gate_exponent);
    let (up_m, up_e) = normalise(up.unsigned_abs(), up_exponent);
    // The argument of the sigmoid in units of 2^-13; 256 units are one step of the table.
    let place = gate_e + 13;
    let (left, right) = (place.clamp(0, 1) as u32, (-place).clamp(0, 31) as u32);
    let argument = ((gate_m << left) + ((1 << right) >> 1)) >> right;
    let (i, fraction) = ((argument >> 8 & 511) as usize, argument & 255);
    let inside = SIGMOID[i] + (((SIGMOID[i + 1] - SIGMOID[i]) * fraction + 128) >> 8);
    let positive = if place >= 2 { ONE } else { inside };
    let sigmoid = if gate < 0 { ONE - positive } else { positive };
    let (sigmoid_m, sigmoid_e) = normalise(sigmoid, -30);
    let (silu_m, silu_e) = normalise(gate_m * sigmoid_m, gate_e + sigmoid_e);
    let product = silu_m * up_m;
    let zeros = product.leading_zeros();
    let n = product << (zeros & 31);
    let significand = (n >> 8) + ((n >> 7) & 1);
    let exponent = 31 + silu_e + up_e - zeros as i32 + 127;
    let sign = ((gate ^ up) as u32) & 0x8000_0000;
    let normal = sign | (((exponent as u32) << 23).wrapping_add(significand.wrapping_sub(0x80_0000)));
    let bits = if exponent > 253 { sign | BEYOND } else { normal };
    let zero = gate == 0 || up == 0 || sigmoid == 0 || exponent < 1;
    f32::from_bits(if zero { 0 } else { bits })
}

/// Adds the weighted dots on the grid to `sums`.
///
/// # Errors
/// An output does not fit the grid; `sums` then hold anything.
#[inline(always)]
pub(super) fn add_outputs(dots: Dots<'_>, gate: GateWeight, grid: i8, sums: &mut [i32]) -> Result<(), OutOfRange> {
    let shift = i32::from(grid) - dots.base - i32::from(gate.exponent);
    let mut bad = false;
    for (sum, (value, exponent)) in sums.iter_mut().zip(dots.values.iter().zip(dots.exponents)) {
        let shift = shift - i32::from(*exponent);
        // |product| < 2^47: a shift of 48 gives zero, and so do larger ones.
        let used = shift.clamp(1, 48) as u32;
        let product = i64::from(*value) * i64::from(gate.mantissa);
        let rounded = (product + (1 << (used - 1))) >> used;
        bad |= (shift < 1) & (*value != 0) | (rounded.unsigned_abs() >= 1 << 27);
        *sum = sum.wrapping_add(rounded as i32);
    }
    if bad { Err(OutOfRange) } else { Ok(()) }
}

/// `ceil(65536 / s)`: `t · RECIPROCALS[s] >> 16` is `t / s` for t ≤ 2055.
const RECIPROCALS: [u32; 16] = {
    let mut out = [0; 16];
    let mut s = 1;
    while s < 16 {
        out[s] = 65536u32.div_ceil(s as u32);
        s += 1;
    }
    out
};

/// Appends the wire form of `x`.
///
/// # Errors
/// A value that no row can hold; `wire` then holds what it held before.
#[inline(always)]
pub(super) fn quantise(x: &[f32], wire: &mut Vec<u8>) -> Result<(), Poison> {
    let start = wire.len();
    wire.resize(start + x.len().div_ceil(SUPER_BLOCK) * SUPER_BLOCK_BYTES, 0);
    let (blocks, _) = wire[start..].as_chunks_mut::<SUPER_BLOCK_BYTES>();
    let (whole, last) = x.as_chunks::<SUPER_BLOCK>();
    let mut fine = true;
    for (x, out) in whole.iter().zip(blocks.iter_mut()) {
        fine &= quantise_block(x, out);
    }
    if let ([_, ..], Some(out)) = (last, blocks.last_mut()) {
        let mut padded = [0.0; SUPER_BLOCK];
        padded[..last.len()].copy_from_slice(last);
        fine &= quantise_block(&padded, out);
    }
    if !fine {
        wire.truncate(start);
        return Err(Poison);
    }
    Ok(())
}

/// Writes one super-block; false for one that cannot be held.
#[inline(always)]
fn quantise_block(x: &[f32; SUPER_BLOCK], out: &mut [u8; SUPER_BLOCK_BYTES]) -> bool {
    let groups = x.as_chunks::<16>().0;
    let mut largest = [0u32; STEPS];
    for (largest, group) in largest.iter_mut().zip(groups) {
        *largest = group.iter().fold(0, |m, v| m.max(v.to_bits() & 0x7fff_ffff));
    }
    let top = largest.iter().fold(0, |m, v| m.max(*v));
    match top >> 23 {
        0..27 => {
            *out = QuantisedBlock::ZERO.to_wire();
            return true;
        }
        27..=227 => {}
        _ => return false,
    }
    let exponent = block_exponent(top);
    let steps = largest.map(|m| step(m, exponent));
    out[0] = exponent as u8;
    for (byte, pair) in out[1..9].iter_mut().zip(steps.as_chunks::<2>().0) {
        *byte = (pair[0] | pair[1] << 4) as u8;
    }
    for ((values, group), step) in out[9..].as_chunks_mut::<16>().0.iter_mut().zip(groups).zip(steps) {
        let reciprocal = RECIPROCALS[step as usize & 15];
        for (value, x) in values.iter_mut().zip(group) {
            let bits = x.to_bits();
            // From a distance of 25 on the result is zero; 28 keeps the sum below 2^31.
            let distance = (exponent + 150 - (bits >> 23 & 0xff) as i32).clamp(1, 28) as u32;
            let sum = ((bits & 0x7f_ffff) | 0x80_0000) + (step << (distance - 1));
            let q = ((sum >> distance) * reciprocal) >> 16;
            let sign = ((bits as i32) >> 31) as u32;
            *value = ((q ^ sign).wrapping_sub(sign)) as u8;
        }
    }
    true
}
