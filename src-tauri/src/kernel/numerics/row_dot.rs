//! One weight row times one quantised row, as an integer and a power of two.

use super::blocks::{Scale, growth_bits, super_block_bytes, units};
use super::matrix::ExactMatrix;
use super::quantise::{QuantisedBlock, QuantisedRow, STEP_ELEMENTS};
use super::{fits_i32, round_shift};

/// Bits that every term is rounded by at least, so that 32 super-blocks add up within 32 bits.
pub(crate) const GUARD_BITS: i32 = 17;

/// `value · 2^exponent`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Scaled {
    /// The integer.
    pub value: i32,
    /// Power of two; 0 when the row is all zero.
    pub exponent: i32,
}

impl Scaled {
    /// The f32 nearest to it: what a dense matrix gives, whose outputs leave the integers.
    #[must_use]
    pub fn to_f32(self) -> f32 {
        // 31 bits are exact in an f64, and so is a power of two: the one rounding is the last.
        (f64::from(self.value) * power_of_two(self.exponent)) as f32
    }
}

/// 2^exponent, for exponents of dots (−200..200).
#[inline(always)]
pub(crate) fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

/// Row `r` of `weights` times `x` (its super-blocks cover the row's columns).
///
/// # Panics
/// When an intermediate leaves the 32 bits that the proofs promise.
#[must_use]
pub fn row_dot(weights: &ExactMatrix, r: usize, x: &QuantisedRow) -> Scaled {
    let ty = weights.ty();
    let Some(row_top) = x.top() else { return Scaled::default() };
    let row_exponent = i32::from(weights.exponents()[r]);
    let mut sum = 0i64;
    for (bytes, block) in weights.row(r).chunks(super_block_bytes(ty)).zip(&x.blocks) {
        if block.bits() == 0 {
            continue;
        }
        let up = 31 - growth_bits(ty) - block.bits();
        let term = |scale: Scale, total: i64| {
            let down = GUARD_BITS + (row_top - block.top()) + (row_exponent - scale.exponent);
            round_shift(scale.mantissa * fits_i32(total << up), down as u32)
        };
        let mut first_step = 0;
        for unit in units(ty, bytes) {
            let products = unit.factors.iter().zip(unit.weights.chunks(STEP_ELEMENTS)).zip(first_step..);
            let total: i64 = products.map(|((factor, weights), j)| factor * step_dot(block, j, weights)).sum();
            sum += term(unit.scale, total);
            if let Some(minimum) = &unit.minimum {
                let total: i64 = minimum.factors.iter().zip(first_step..).map(|(m, j)| m * block.step_sum(j)).sum();
                sum -= term(minimum.scale, total);
            }
            first_step += unit.factors.len();
        }
        fits_i32(sum);
    }
    Scaled { value: sum as i32, exponent: row_exponent + row_top + growth_bits(ty) - 31 + GUARD_BITS }
}

/// `s_j · Σ q · weight` over the 16 elements of step `j`.
fn step_dot(block: &QuantisedBlock, j: usize, weights: &[i64]) -> i64 {
    let values = &block.values[j * STEP_ELEMENTS..(j + 1) * STEP_ELEMENTS];
    let dot: i64 = values.iter().zip(weights).map(|(q, w)| i64::from(*q) * w).sum();
    i64::from(block.steps[j]) * dot
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{BlockType, Matrix};

    #[test]
    fn a_short_last_super_block_counts_its_own_blocks_only() {
        // 288 columns: nine blocks of Q8_0, all weights 1 with scale 1.0, times all ones.
        let block: Vec<u8> = 0x3c00u16.to_le_bytes().into_iter().chain([1; 32]).collect();
        let stored = Matrix::new(BlockType::Q8_0, 1, 288, block.repeat(9).into()).expect("shape");
        let matrix = ExactMatrix::new(&stored).expect("exact");
        let x = QuantisedRow::quantise(&[1.0; 288]).expect("finite");
        let dot = row_dot(&matrix, 0, &x);
        let value = f64::from(dot.value) * f64::from(dot.exponent).exp2();
        assert!((value - 288.0).abs() < 1.0, "{value}");
    }

    #[test]
    fn the_worst_case_of_every_type_stays_within_its_proof() {
        let x = QuantisedRow { blocks: vec![QuantisedBlock { exponent: 0, steps: [15; 16], values: [-127; 256] }; 32] };
        for ty in [BlockType::Q4_K, BlockType::Q5_K, BlockType::Q6_K, BlockType::Q8_0, BlockType::Q4_0] {
            let (elements, bytes) = ty.block();
            for fill in [0u8, 0x7f, 0x80, 0xff] {
                let mut block = vec![fill; bytes];
                let scales: &[usize] = match ty {
                    BlockType::Q4_K | BlockType::Q5_K => &[0, 2],
                    BlockType::Q6_K => &[208],
                    _ => &[0],
                };
                scales.iter().for_each(|at| block[*at..at + 2].copy_from_slice(&0xfbffu16.to_le_bytes()));
                let stored = Matrix::new(ty, 1, 8192, block.repeat(8192 / elements).into()).expect("shape");
                let dot = row_dot(&ExactMatrix::new(&stored).expect("finite"), 0, &x);
                assert!(dot.value.unsigned_abs() < 1_150_000_000, "{ty:?} {fill:#x}: {}", dot.value);
            }
        }
    }

    #[test]
    fn a_dot_becomes_the_nearest_float() {
        assert_eq!(Scaled { value: -3, exponent: 4 }.to_f32(), -48.0);
        assert_eq!(Scaled { value: 16_777_217, exponent: 0 }.to_f32(), 16_777_216.0);
        assert_eq!(Scaled { value: 5, exponent: -150 }.to_f32(), f32::from_bits(2));
        assert_eq!(Scaled { value: i32::MAX, exponent: 110 }.to_f32(), f32::INFINITY);
        assert_eq!(Scaled::default().to_f32().to_bits(), 0);
    }

    #[test]
    fn a_zero_row_is_zero() {
        let stored = Matrix::new(BlockType::Q4_0, 1, 32, vec![0x3c; 18].into()).expect("shape");
        let x = QuantisedRow { blocks: vec![QuantisedBlock::ZERO] };
        assert_eq!(row_dot(&ExactMatrix::new(&stored).expect("finite"), 0, &x), Scaled::default());
    }
}
