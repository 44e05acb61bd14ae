//! The sixteen partial sums of float dot products, kept in vector registers.
//!
//! `kernel::float` defines the order of additions; here are the same multiplications and additions, never fused,
//! written so that no compiler's idea of vectors decides how fast they are.

use std::arch::x86_64::{
    _mm256_add_ps, _mm256_loadu_ps, _mm256_mul_ps, _mm256_setzero_ps, _mm256_storeu_ps, _mm512_add_ps, _mm512_loadu_ps,
    _mm512_mul_ps, _mm512_setzero_ps, _mm512_storeu_ps,
};

use super::formats::Format;

/// Partial sums of a dot product.
const LANES: usize = 16;

/// Sixteen partial sums of W rows with X rows, over as many whole blocks of sixteen as all of them have.
#[target_feature(enable = "avx512f")]
#[inline]
#[expect(unsafe_code, reason = "vector loads take pointers")]
pub fn sums_avx512<F: Format, const W: usize, const X: usize>(
    w: &[&[[F::Stored; LANES]]; W],
    x: &[&[[f32; LANES]]; X],
) -> [[[f32; LANES]; X]; W] {
    let blocks = blocks(w, x);
    let mut sums = [[_mm512_setzero_ps(); X]; W];
    for block in 0..blocks {
        for (sums, w) in sums.iter_mut().zip(w) {
            // SAFETY: `block` is below the length of every row, and a block is sixteen weights.
            let w = unsafe { F::load512(w.get_unchecked(block).as_ptr()) };
            for (sum, x) in sums.iter_mut().zip(x) {
                // SAFETY: as above, with floats.
                let x = unsafe { _mm512_loadu_ps(x.get_unchecked(block).as_ptr()) };
                *sum = _mm512_add_ps(*sum, _mm512_mul_ps(w, x));
            }
        }
    }
    let mut out = [[[0.0; LANES]; X]; W];
    for (out, sum) in out.as_flattened_mut().iter_mut().zip(sums.as_flattened()) {
        // SAFETY: sixteen floats.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), *sum) };
    }
    out
}

/// As [`sums_avx512`], each set of sums in two registers.
#[target_feature(enable = "avx2,f16c")]
#[inline]
#[expect(unsafe_code, reason = "vector loads take pointers")]
pub fn sums_avx2<F: Format, const W: usize, const X: usize>(
    w: &[&[[F::Stored; LANES]]; W],
    x: &[&[[f32; LANES]]; X],
) -> [[[f32; LANES]; X]; W] {
    let blocks = blocks(w, x);
    let mut sums = [[[_mm256_setzero_ps(); 2]; X]; W];
    for block in 0..blocks {
        for half in 0..2 {
            for (sums, w) in sums.iter_mut().zip(w) {
                // SAFETY: `block` is below the length of every row, and half a block is eight weights.
                let w = unsafe { F::load256(w.get_unchecked(block).as_ptr().add(8 * half)) };
                for (sum, x) in sums.iter_mut().zip(x) {
                    // SAFETY: as above, with floats.
                    let x = unsafe { _mm256_loadu_ps(x.get_unchecked(block).as_ptr().add(8 * half)) };
                    sum[half] = _mm256_add_ps(sum[half], _mm256_mul_ps(w, x));
                }
            }
        }
    }
    let mut out = [[[0.0; LANES]; X]; W];
    for (out, sum) in out.as_flattened_mut().iter_mut().zip(sums.as_flattened()) {
        for (half, sum) in sum.iter().enumerate() {
            // SAFETY: the upper half begins eight floats in.
            unsafe { _mm256_storeu_ps(out.as_mut_ptr().add(8 * half), *sum) };
        }
    }
    out
}

/// Blocks that every row has.
#[inline(always)]
fn blocks<S, const W: usize, const X: usize>(w: &[&[[S; LANES]]; W], x: &[&[[f32; LANES]]; X]) -> usize {
    let w = w.iter().map(|row| row.len()).min().unwrap_or(0);
    x.iter().map(|row| row.len()).min().unwrap_or(0).min(w)
}
