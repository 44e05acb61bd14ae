//! Hidden state → int8 with one exponent per 256 elements and a 4-bit step per 16: the wire's exact rows.
//!
//! An element is `q · s · 2^F` with `q` in −127..=127, `s` in 0..=15. The quantiser reads f32 bit patterns as
//! integers, so that it cannot depend on a rounding mode, and rounds half away from zero.

use crate::wire::work::{SUPER_BLOCK, SUPER_BLOCK_BYTES};

/// Elements that share a step.
pub const STEP_ELEMENTS: usize = 16;
/// Steps of a super-block.
pub const STEPS: usize = SUPER_BLOCK / STEP_ELEMENTS;
/// The exponent of a super-block whose elements are all zero.
pub const ZERO_EXPONENT: i8 = -128;

/// A value that no quantised row can hold: NaN, infinite, or at least 2^101.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("expected finite values below 2^101, got a row with another")]
pub struct Poison;

/// 256 elements: `values[i] · steps[i / 16] · 2^exponent`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QuantisedBlock {
    /// F: −110..=91, or [`ZERO_EXPONENT`].
    pub exponent: i8,
    /// s: 0..=15 each.
    pub steps: [u8; STEPS],
    /// q: −127..=127 each.
    pub values: [i8; SUPER_BLOCK],
}

/// A row as its experts read it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QuantisedRow {
    /// Super-blocks, the last one padded with zeros.
    pub blocks: Vec<QuantisedBlock>,
}

/// Appends the exact wire form of `x` to `out`: ⌈len / 256⌉ super-blocks of 265 bytes.
///
/// # Errors
/// [`Poison`]; `out` then holds what it held before.
pub fn quantise_row(x: &[f32], out: &mut Vec<u8>) -> Result<(), Poison> {
    let start = out.len();
    for chunk in x.chunks(SUPER_BLOCK) {
        match QuantisedBlock::quantise(chunk) {
            Ok(block) => out.extend_from_slice(&block.to_wire()),
            Err(poison) => {
                out.truncate(start);
                return Err(poison);
            }
        }
    }
    Ok(())
}

/// The 24-bit significand of a normal f32.
#[inline]
fn significand(magnitude: u32) -> u32 {
    (magnitude & 0x7f_ffff) | 0x80_0000
}

/// The smallest exponent F with `magnitude ≤ 15 · 127 · 2^F`, for a magnitude of 2^-100 at least.
#[inline]
pub(crate) fn block_exponent(magnitude: u32) -> i32 {
    // 1905 = 15 · 127 has 11 bits: a significand up to 1905 · 2^13 needs 13 bits less than its own 24.
    let spare = if significand(magnitude) <= 1905 << 13 { 13 } else { 14 };
    (magnitude >> 23) as i32 - 150 + spare
}

/// `ceil(magnitude / (127 · 2^exponent))`, in 1..=15; 0 for a subnormal magnitude.
#[inline]
pub(crate) fn step(magnitude: u32, exponent: i32) -> u32 {
    let e = (magnitude >> 23) as i32;
    if e == 0 {
        return 0;
    }
    let distance = exponent - (e - 150);
    let shift = (distance - 10).min(25) as u32;
    let tenths = (significand(magnitude) + (1 << shift) - 1) >> shift;
    tenths.div_ceil(127 << 10)
}

/// The element with f32 bits `bits` in units of `step · 2^exponent`, half away from zero.
fn element(bits: u32, step: u32, exponent: i32) -> i8 {
    let magnitude = bits & 0x7fff_ffff;
    let e = (magnitude >> 23) as i32;
    let distance = exponent - (e - 150);
    if e == 0 || step == 0 || distance > 24 {
        return 0;
    }
    let twice = (significand(magnitude) + (step << (distance - 1))) >> distance;
    let q = (twice / step) as i8;
    if bits >> 31 == 1 { -q } else { q }
}

impl QuantisedBlock {
    /// All zero.
    pub const ZERO: Self = Self { exponent: ZERO_EXPONENT, steps: [0; STEPS], values: [0; SUPER_BLOCK] };

    /// Quantises up to 256 elements; missing ones are zero.
    ///
    /// # Errors
    /// [`Poison`].
    pub fn quantise(x: &[f32]) -> Result<Self, Poison> {
        let magnitude = |v: &f32| v.to_bits() & 0x7fff_ffff;
        let largest = x.iter().map(magnitude).max().unwrap_or(0);
        match largest >> 23 {
            0..27 => return Ok(Self::ZERO),
            27..=227 => {}
            _ => return Err(Poison),
        }
        let exponent = block_exponent(largest);
        let mut block = Self { exponent: exponent as i8, ..Self::ZERO };
        for (j, group) in x.chunks(STEP_ELEMENTS).enumerate() {
            let step = step(group.iter().map(magnitude).max().unwrap_or(0), exponent);
            block.steps[j] = step as u8;
            for (q, v) in block.values[j * STEP_ELEMENTS..].iter_mut().zip(group) {
                *q = element(v.to_bits(), step, exponent);
            }
        }
        Ok(block)
    }

    /// `F i8 | s u4[16], s_0 in the low nibble | q i8[256]`.
    #[must_use]
    pub fn to_wire(&self) -> [u8; SUPER_BLOCK_BYTES] {
        let mut out = [0; SUPER_BLOCK_BYTES];
        out[0] = self.exponent as u8;
        for (byte, pair) in out[1..9].iter_mut().zip(self.steps.chunks_exact(2)) {
            *byte = pair[0] | pair[1] << 4;
        }
        for (byte, q) in out[9..].iter_mut().zip(self.values) {
            *byte = q as u8;
        }
        out
    }

    /// Reads what [`to_wire`](Self::to_wire) wrote.
    #[must_use]
    pub fn from_wire(bytes: &[u8; SUPER_BLOCK_BYTES]) -> Self {
        Self {
            exponent: bytes[0] as i8,
            steps: std::array::from_fn(|j| bytes[1 + j / 2] >> (4 * (j % 2)) & 15),
            values: std::array::from_fn(|i| bytes[9 + i] as i8),
        }
    }

    /// `s_j · Σ q` over the 16 elements of step `j`; within ±30 480.
    #[must_use]
    pub fn step_sum(&self, j: usize) -> i64 {
        let values = &self.values[j * STEP_ELEMENTS..(j + 1) * STEP_ELEMENTS];
        i64::from(self.steps[j]) * values.iter().map(|q| i64::from(*q)).sum::<i64>()
    }

    /// L: the bits of `Σ s · |q|`, 0..=19; 0 for a block without values.
    #[must_use]
    pub fn bits(&self) -> i32 {
        let step_of = |i: usize| u32::from(self.steps[i / STEP_ELEMENTS]);
        let total: u32 = (0..SUPER_BLOCK).map(|i| step_of(i) * u32::from(self.values[i].unsigned_abs())).sum();
        (32 - total.leading_zeros()) as i32
    }

    /// E = F + L: the block's values sum to less than 2^E in magnitude.
    #[must_use]
    pub fn top(&self) -> i32 {
        i32::from(self.exponent) + self.bits()
    }
}

impl QuantisedRow {
    /// Quantises `x`.
    ///
    /// # Errors
    /// [`Poison`].
    pub fn quantise(x: &[f32]) -> Result<Self, Poison> {
        Ok(Self { blocks: x.chunks(SUPER_BLOCK).map(QuantisedBlock::quantise).collect::<Result<_, _>>()? })
    }

    /// Reads whole super-blocks; bytes after the last whole one are not read.
    #[must_use]
    pub fn from_wire(bytes: &[u8]) -> Self {
        let (blocks, _) = bytes.as_chunks::<SUPER_BLOCK_BYTES>();
        Self { blocks: blocks.iter().map(QuantisedBlock::from_wire).collect() }
    }

    /// Emax: the largest [`top`](QuantisedBlock::top) of blocks with values; `None` when the row is all zero.
    #[must_use]
    pub fn top(&self) -> Option<i32> {
        self.blocks.iter().filter(|b| b.bits() > 0).map(QuantisedBlock::top).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_reads_back_from_its_wire_form() {
        let x: Vec<f32> = (0..512).map(|i| (i as f32 * 0.37).sin() * 3.0).collect();
        let mut wire = vec![7];
        quantise_row(&x, &mut wire).expect("finite");
        assert_eq!(wire.len(), 1 + 2 * SUPER_BLOCK_BYTES);
        assert_eq!(QuantisedRow::from_wire(&wire[1..]), QuantisedRow::quantise(&x).expect("finite"));
    }

    #[test]
    fn every_element_is_within_half_a_step() {
        let x: Vec<f32> = (0..256).map(|i| ((i * i) as f32 * 0.11).cos() * f32::from(i as u16)).collect();
        let block = QuantisedBlock::quantise(&x).expect("finite");
        for (i, v) in x.iter().enumerate() {
            let step = f64::from(block.steps[i / 16]) * f64::from(block.exponent).exp2();
            assert!((f64::from(block.values[i]) * step - f64::from(*v)).abs() <= step * 0.500_001, "element {i}");
        }
    }

    #[test]
    fn values_beyond_the_range_are_poison_and_leave_the_output_alone() {
        for bad in [f32::NAN, f32::INFINITY, 2f32.powi(101), -2f32.powi(101)] {
            let mut out = vec![1, 2];
            let x: Vec<f32> = (0..300).map(|i| if i == 280 { bad } else { 1.0 }).collect();
            assert_eq!(quantise_row(&x, &mut out), Err(Poison));
            assert_eq!(out, [1, 2]);
        }
        assert!(QuantisedBlock::quantise(&[1.99 * 2f32.powi(100)]).is_ok());
    }

    #[test]
    fn what_is_below_two_to_the_minus_100_is_zero() {
        assert_eq!(QuantisedBlock::quantise(&[0.99 * 2f32.powi(-100), -0.0]), Ok(QuantisedBlock::ZERO));
        assert_eq!(QuantisedBlock::quantise(&[2f32.powi(-100)]).map(|b| b.exponent), Ok(-110));
        assert_eq!(QuantisedBlock::quantise(&[1.99 * 2f32.powi(100)]).map(|b| b.exponent), Ok(91));
        assert_eq!(QuantisedBlock::quantise(&[]), Ok(QuantisedBlock::ZERO));
    }

    #[test]
    fn halves_round_away_from_zero() {
        let mut x = [0.0; 16];
        (x[0], x[1], x[2]) = (1905.0, 7.5, -7.5);
        let block = QuantisedBlock::quantise(&x).expect("finite");
        assert_eq!((block.exponent, block.steps[0]), (0, 15));
        assert_eq!(block.values[..3], [127, 1, -1]);
    }

    #[test]
    fn a_saturated_block_needs_nineteen_bits() {
        let block = QuantisedBlock { exponent: 0, steps: [15; STEPS], values: [-127; SUPER_BLOCK] };
        assert_eq!((block.bits(), block.step_sum(3)), (19, -30_480));
        assert_eq!(QuantisedBlock::ZERO.bits(), 0);
    }
}
