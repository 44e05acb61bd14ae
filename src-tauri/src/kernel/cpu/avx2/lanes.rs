//! Loads, the rounded term of eight units, and the walk over weight rows.

use std::arch::x86_64::*;

use super::row::Units;
use crate::kernel::cpu::ahead::{Ahead, PREFETCH_BYTES};
use crate::kernel::cpu::engine::Pass;
use crate::kernel::numerics::growth_bits;

/// 32 bytes.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load256(bytes: &[u8]) -> __m256i {
    assert!(bytes.len() >= 32);
    #[expect(unsafe_code, reason = "an unaligned load")]
    // SAFETY: 32 bytes can be read.
    unsafe {
        _mm256_loadu_si256(bytes.as_ptr().cast())
    }
}

/// 16 bytes.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load128(bytes: &[u8]) -> __m128i {
    assert!(bytes.len() >= 16);
    #[expect(unsafe_code, reason = "an unaligned load")]
    // SAFETY: 16 bytes can be read.
    unsafe {
        _mm_loadu_si128(bytes.as_ptr().cast())
    }
}

/// Thirty-two numbers as they lie in memory.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_i8(numbers: &[i8; 32]) -> __m256i {
    #[expect(unsafe_code, reason = "a load")]
    // SAFETY: thirty-two i8 are 32 bytes.
    unsafe {
        _mm256_loadu_si256(numbers.as_ptr().cast())
    }
}

/// Sixteen numbers as they lie in memory.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_i16(numbers: &[i16; 16]) -> __m256i {
    #[expect(unsafe_code, reason = "a load")]
    // SAFETY: sixteen i16 are 32 bytes.
    unsafe {
        _mm256_loadu_si256(numbers.as_ptr().cast())
    }
}

/// What one unit of one weight row and one quantised row multiply to; eight lanes each, still to be summed.
#[derive(Clone, Copy)]
pub(super) struct Products {
    /// The f16 scale's bits, and those of the minimum in the high half.
    pub scales: i32,
    /// Σ factor · s · q · weight.
    pub total: __m256i,
    /// Σ minimum · s · Σ q; zero for types without minima.
    pub minimum: __m256i,
}

impl Products {
    /// Nothing, under `scales`.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn zero(scales: i32) -> Self {
        Self { scales, total: _mm256_setzero_si256(), minimum: _mm256_setzero_si256() }
    }
}

/// Sums of the eight lanes of each of four vectors.
#[inline]
#[target_feature(enable = "avx2")]
fn sums([a, b, c, d]: [__m256i; 4]) -> __m128i {
    let four = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
    _mm_add_epi32(_mm256_castsi256_si128(four), _mm256_extracti128_si256::<1>(four))
}

/// `mantissa · (total · 2^up)` shifted down by `down − exponent`, rounded half up, in every lane; `bits` are f16 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn term(bits: __m256i, total: __m256i, up: __m256i, down: __m256i) -> __m256i {
    let (zero, one) = (_mm256_setzero_si256(), _mm256_set1_epi32(1));
    let field = _mm256_and_si256(_mm256_srli_epi32::<10>(bits), _mm256_set1_epi32(31));
    let low = _mm256_and_si256(bits, _mm256_set1_epi32(0x3ff));
    let hidden = _mm256_andnot_si256(_mm256_cmpeq_epi32(field, zero), _mm256_set1_epi32(0x400));
    let sign = _mm256_srai_epi32::<31>(_mm256_slli_epi32::<16>(bits));
    let mantissa = _mm256_sub_epi32(_mm256_xor_si256(_mm256_or_si256(low, hidden), sign), sign);
    let exponent = _mm256_sub_epi32(_mm256_max_epi32(field, one), _mm256_set1_epi32(25));
    let v = _mm256_sllv_epi32(total, up);
    // floor(mantissa · v / 2^16): the two halves of v meet without a 64-bit product.
    let high = _mm256_mullo_epi32(mantissa, _mm256_srai_epi32::<16>(v));
    let low = _mm256_mullo_epi32(mantissa, _mm256_and_si256(v, _mm256_set1_epi32(0xffff)));
    let t = _mm256_add_epi32(high, _mm256_srai_epi32::<16>(low));
    // |t| < 2^27, so that every shift from 29 on gives zero.
    let shift = _mm256_sub_epi32(_mm256_sub_epi32(down, exponent), _mm256_set1_epi32(16));
    let shift = _mm256_min_epi32(shift, _mm256_set1_epi32(30));
    let half = _mm256_sllv_epi32(one, _mm256_sub_epi32(shift, one));
    _mm256_srav_epi32(_mm256_add_epi32(t, half), shift)
}

/// Adds the terms of all units of weight rows `rows`: `out[x · rows.len() + r]`.
///
/// `products` multiplies a block of weights with a unit of a quantised row.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn walk<const B: usize, const N: usize, U>(
    pass: &Pass<'_>,
    out: &mut [i32],
    xs: [Units<'_, U>; N],
    products: impl Fn(&[u8; B], [&U; N]) -> [Products; N],
) {
    let Pass { weights, rows, .. } = pass;
    let (count, growth, ahead) = (rows.len(), growth_bits(weights.ty()), Ahead::new(pass));
    for r in (0..count).step_by(2) {
        let row = |i: usize| rows.start + (r + i).min(count - 1);
        let exponent = |i: usize| i32::from(weights.exponents()[row(i)]);
        let (first, second) = (exponent(0), exponent(1));
        let exponents = _mm256_setr_epi32(first, first, first, first, second, second, second, second);
        let pair = [weights.row(row(0)).as_chunks::<B>().0, weights.row(row(1)).as_chunks::<B>().0];
        let zero = _mm256_setzero_si256();
        let mut acc = [zero; N];
        let at = r * weights.row(row(0)).len() + PREFETCH_BYTES;
        for start in (0..pair[0].len()).step_by(4) {
            ahead.fetch(at + start * 2 * B, 8 * B);
            let present = (pair[0].len() - start).min(4);
            let mut totals = [[[zero; 4]; 2]; N];
            let mut minima = [[[zero; 4]; 2]; N];
            // Missing units: no total under a scale of zero with the least exponent, shifted legally.
            let mut scales = [0i32; 8];
            for (i, blocks) in pair.iter().enumerate() {
                for u in 0..present {
                    let mut units = [&xs[0].units[start + u]; N];
                    for (unit, x) in units.iter_mut().zip(&xs) {
                        *unit = &x.units[start + u];
                    }
                    let products = products(&blocks[start + u], units);
                    for (a, products) in products.into_iter().enumerate() {
                        totals[a][i][u] = products.total;
                        minima[a][i][u] = products.minimum;
                        scales[4 * i + u] = products.scales;
                    }
                }
            }
            let both = of(&scales);
            let low = _mm256_and_si256(both, _mm256_set1_epi32(0xffff));
            for a in 0..N {
                let shifts = &xs[a].shifts[start / 4];
                let up = _mm256_sub_epi32(twice(&shifts.room), _mm256_set1_epi32(growth));
                let down = _mm256_add_epi32(twice(&shifts.down), exponents);
                let sum = |s: [[__m256i; 4]; 2]| _mm256_set_m128i(sums(s[1]), sums(s[0]));
                acc[a] = _mm256_add_epi32(acc[a], term(low, sum(totals[a]), up, down));
                let less = term(_mm256_srli_epi32::<16>(both), sum(minima[a]), up, down);
                acc[a] = _mm256_sub_epi32(acc[a], less);
            }
        }
        for (acc, out) in acc.into_iter().zip(out.chunks_exact_mut(count)) {
            let (first, second) = (_mm256_castsi256_si128(acc), _mm256_extracti128_si256::<1>(acc));
            out[r] = sum_four(first);
            if let Some(out) = out.get_mut(r + 1) {
                *out = sum_four(second);
            }
        }
    }
}

/// Four numbers in both halves.
#[inline]
#[target_feature(enable = "avx2")]
fn twice(n: &[i32; 4]) -> __m256i {
    _mm256_broadcastsi128_si256(_mm_setr_epi32(n[0], n[1], n[2], n[3]))
}

#[inline]
#[target_feature(enable = "avx2")]
fn of(n: &[i32; 8]) -> __m256i {
    _mm256_setr_epi32(n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7])
}

#[inline]
#[target_feature(enable = "avx2")]
fn sum_four(v: __m128i) -> i32 {
    let v = _mm_add_epi32(v, _mm_shuffle_epi32::<0b01_00_11_10>(v));
    _mm_cvtsi128_si32(_mm_add_epi32(v, _mm_shuffle_epi32::<0b10_11_00_01>(v)))
}
