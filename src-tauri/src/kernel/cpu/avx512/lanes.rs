//! Loads, sums across lanes, the rounded term of sixteen units, and the walk over weight rows.

use std::arch::x86_64::*;

use crate::kernel::cpu::ahead::{Ahead, PREFETCH_BYTES, Soon};
use crate::kernel::cpu::engine::Pass;

/// 64 bytes.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load512(bytes: &[u8]) -> __m512i {
    assert!(bytes.len() >= 64);
    #[expect(unsafe_code, reason = "an unaligned load")]
    // SAFETY: 64 bytes can be read.
    unsafe {
        _mm512_loadu_si512(bytes.as_ptr().cast())
    }
}

/// 32 bytes.
#[inline]
#[target_feature(enable = "avx512f")]
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
#[target_feature(enable = "avx512f")]
pub(super) fn load128(bytes: &[u8]) -> __m128i {
    assert!(bytes.len() >= 16);
    #[expect(unsafe_code, reason = "an unaligned load")]
    // SAFETY: 16 bytes can be read.
    unsafe {
        _mm_loadu_si128(bytes.as_ptr().cast())
    }
}

/// Sixteen bytes from each of four blocks, side by side.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load_four<const B: usize>(blocks: &[[u8; B]; 4], at: usize) -> __m512i {
    let first = _mm512_castsi128_si512(load128(&blocks[0][at..]));
    let second = _mm512_inserti32x4::<1>(first, load128(&blocks[1][at..]));
    let third = _mm512_inserti32x4::<2>(second, load128(&blocks[2][at..]));
    _mm512_inserti32x4::<3>(third, load128(&blocks[3][at..]))
}

/// Sixteen numbers as they lie in memory.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load_i32(numbers: &[i32; 16]) -> __m512i {
    #[expect(unsafe_code, reason = "a load")]
    // SAFETY: sixteen i32 are 64 bytes.
    unsafe {
        _mm512_loadu_si512(numbers.as_ptr().cast())
    }
}

/// Thirty-two numbers as they lie in memory.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load_i16(numbers: &[i16; 32]) -> __m512i {
    #[expect(unsafe_code, reason = "a load")]
    // SAFETY: thirty-two i16 are 64 bytes.
    unsafe {
        _mm512_loadu_si512(numbers.as_ptr().cast())
    }
}

/// Sixty-four numbers as they lie in memory.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load_i8(numbers: &[i8; 64]) -> __m512i {
    #[expect(unsafe_code, reason = "a load")]
    // SAFETY: sixty-four i8 are 64 bytes.
    unsafe {
        _mm512_loadu_si512(numbers.as_ptr().cast())
    }
}

/// Within every 128 bits: the sums of the four lanes of a, b, c and d.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn sum_within([a, b, c, d]: [__m512i; 4]) -> __m512i {
    let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd))
}

/// The sums over the four 128-bit parts of a, b, c and d: lane `4 · vector + position`.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn sum_across([a, b, c, d]: [__m512i; 4]) -> __m512i {
    let ab = _mm512_add_epi32(_mm512_shuffle_i64x2::<0b01_00_01_00>(a, b), _mm512_shuffle_i64x2::<0b11_10_11_10>(a, b));
    let cd = _mm512_add_epi32(_mm512_shuffle_i64x2::<0b01_00_01_00>(c, d), _mm512_shuffle_i64x2::<0b11_10_11_10>(c, d));
    _mm512_add_epi32(_mm512_shuffle_i64x2::<0b10_00_10_00>(ab, cd), _mm512_shuffle_i64x2::<0b11_01_11_01>(ab, cd))
}

/// Swaps rows and columns of the 4 × 4 lanes.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn transpose(v: __m512i) -> __m512i {
    _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), v)
}

/// Sixteen f16 scales as mantissa and exponent.
#[derive(Clone, Copy)]
pub(super) struct Scales {
    pub mantissa: __m512i,
    pub exponent: __m512i,
}

/// Reads the f16 bits in the low half of every lane; the high halves must be zero.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn scales(bits: __m512i) -> Scales {
    let field = _mm512_and_si512(_mm512_srli_epi32::<10>(bits), _mm512_set1_epi32(31));
    let low = _mm512_and_si512(bits, _mm512_set1_epi32(0x3ff));
    let normal = _mm512_test_epi32_mask(field, field);
    let magnitude = _mm512_mask_or_epi32(low, normal, low, _mm512_set1_epi32(0x400));
    let negative = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x8000));
    Scales {
        mantissa: _mm512_mask_sub_epi32(magnitude, negative, _mm512_setzero_si512(), magnitude),
        exponent: _mm512_sub_epi32(_mm512_max_epi32(field, _mm512_set1_epi32(1)), _mm512_set1_epi32(25)),
    }
}

/// `mantissa · (total · 2^up)` shifted down by `down − exponent`, rounded half up, in every lane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn term(scales: Scales, total: __m512i, up: __m512i, down: __m512i) -> __m512i {
    let (one, sixteen) = (_mm512_set1_epi32(1), _mm512_set1_epi32(16));
    let v = _mm512_sllv_epi32(total, up);
    // floor(mantissa · v / 2^16): the two halves of v meet without a 64-bit product.
    let high = _mm512_mullo_epi32(scales.mantissa, _mm512_srai_epi32::<16>(v));
    let low = _mm512_mullo_epi32(scales.mantissa, _mm512_and_si512(v, _mm512_set1_epi32(0xffff)));
    let t = _mm512_add_epi32(high, _mm512_srai_epi32::<16>(low));
    // |t| < 2^27, so that every shift from 29 on gives zero.
    let shift = _mm512_sub_epi32(_mm512_sub_epi32(down, scales.exponent), sixteen);
    let shift = _mm512_min_epi32(shift, _mm512_set1_epi32(30));
    let half = _mm512_sllv_epi32(one, _mm512_sub_epi32(shift, one));
    _mm512_srav_epi32(_mm512_add_epi32(t, half), shift)
}

/// Four consecutive units of each of four weight rows.
pub(super) type Quads<'a, const B: usize> = [&'a [[u8; B]; 4]; 4];

/// Adds the terms of all quads of weight rows `rows`: `out[x · rows.len() + r]`.
///
/// `terms(quads, q, exponents)` gives sixteen terms, lane `4 · unit + row`, of quad `q` for each of N quantised rows;
/// `exponents` are those of the weight rows in the same lanes. Missing units and rows are zeros and repetitions.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx512vbmi,avx512vnni")]
pub(super) fn walk<const B: usize, const N: usize>(
    pass: &Pass<'_>,
    out: &mut [i32],
    terms: impl Fn(Quads<'_, B>, usize, __m512i, Soon<'_>) -> [__m512i; N],
) {
    let Pass { weights, rows, .. } = pass;
    let (count, ahead) = (rows.len(), Ahead::new(pass));
    for r in (0..count).step_by(4) {
        let row = |i: usize| rows.start + (r + i).min(count - 1);
        let exponent = |i: usize| i32::from(weights.exponents()[row(i)]);
        let exponents = _mm512_broadcast_i32x4(_mm_setr_epi32(exponent(0), exponent(1), exponent(2), exponent(3)));
        let [a, b, c, d] = std::array::from_fn(|i| weights.row(row(i)).as_chunks::<B>().0);
        let [(qa, ta), (qb, tb), (qc, tc), (qd, td)] =
            [a.as_chunks::<4>(), b.as_chunks::<4>(), c.as_chunks::<4>(), d.as_chunks::<4>()];
        let mut sums = [_mm512_setzero_si512(); N];
        let at = r * weights.row(row(0)).len() + PREFETCH_BYTES;
        for (q, (((a, b), c), d)) in qa.iter().zip(qb).zip(qc).zip(qd).enumerate() {
            let soon = Soon { ahead: &ahead, at: at + q * 16 * B, stride: 4 * B, part: 4 * B };
            let terms = terms([a, b, c, d], q, exponents, soon);
            for (sum, term) in sums.iter_mut().zip(terms) {
                *sum = _mm512_add_epi32(*sum, term);
            }
        }
        if !ta.is_empty() {
            let mut padded = [[[0u8; B]; 4]; 4];
            for (padded, tail) in padded.iter_mut().zip([ta, tb, tc, td]) {
                padded[..tail.len()].copy_from_slice(tail);
            }
            let soon = Soon { ahead: &ahead, at: at + qa.len() * 16 * B, stride: 0, part: 0 };
            let terms = terms(padded.each_ref(), qa.len(), exponents, soon);
            for (sum, term) in sums.iter_mut().zip(terms) {
                *sum = _mm512_add_epi32(*sum, term);
            }
        }
        for (sum, out) in sums.into_iter().zip(out.chunks_exact_mut(count)) {
            let half = _mm256_add_epi32(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64::<1>(sum));
            let four = _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256::<1>(half));
            let four = [
                _mm_extract_epi32::<0>(four),
                _mm_extract_epi32::<1>(four),
                _mm_extract_epi32::<2>(four),
                _mm_extract_epi32::<3>(four),
            ];
            let present = (count - r).min(4);
            out[r..r + present].copy_from_slice(&four[..present]);
        }
    }
}
