//! Q4_K, Q5_K and Q6_K: sixteen super-blocks (four of each of four rows) become sixteen terms.

use std::arch::x86_64::*;

use super::lanes::{Quads, load_four, load_i8, load_i16, load_i32, load256, load512, scales};
use super::lanes::{sum_across, sum_within, term, transpose};
use super::row::{Row, WideQuad};
use crate::kernel::cpu::ahead::Soon;

/// Which of 32 multipliers the packed products of vectors 2p and 2p + 1 of a super-block meet.
const fn packed_order(blocks: [[i16; 4]; 2], first: i16) -> [i16; 32] {
    let mut order = [0; 32];
    let mut lane = 0;
    while lane < 32 {
        order[lane] = first + blocks[lane % 8 / 4][lane / 8];
        lane += 1;
    }
    order
}

/// Per super-block of a pair and per two vectors; 16-element blocks in the order of the nibbles.
const NIBBLE_ORDER: [[[i16; 32]; 2]; 2] = {
    let blocks = [[0, 1, 4, 5], [2, 3, 6, 7]];
    [[packed_order(blocks, 0), packed_order(blocks, 8)], [packed_order(blocks, 16), packed_order(blocks, 24)]]
};
/// The same in natural order.
const PLAIN_ORDER: [[[i16; 32]; 2]; 2] = {
    let blocks = [[0, 1, 2, 3], [4, 5, 6, 7]];
    [[packed_order(blocks, 0), packed_order(blocks, 8)], [packed_order(blocks, 16), packed_order(blocks, 24)]]
};

/// Σ weight · q in sixteen lanes, times the multipliers of a super-block: still sixteen lanes to be summed.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx512vbmi,avx512vnni")]
fn products(weights: [__m512i; 4], values: &[[i8; 64]; 4], multipliers: __m512i, order: &[[i16; 32]; 2]) -> __m512i {
    let zero = _mm512_setzero_si512();
    let dot = |i: usize| _mm512_dpbusd_epi32(zero, weights[i], load_i8(&values[i]));
    // A lane holds four products of at most 63 · 127: it fits sixteen bits.
    let (low, high) = (_mm512_packs_epi32(dot(0), dot(1)), _mm512_packs_epi32(dot(2), dot(3)));
    let first = _mm512_permutexvar_epi16(load_i16(&order[0]), multipliers);
    let second = _mm512_permutexvar_epi16(load_i16(&order[1]), multipliers);
    _mm512_dpwssd_epi32(_mm512_dpwssd_epi32(zero, low, first), high, second)
}

/// Scales and minima of four super-blocks, sixteen bytes each: eight scales, then eight minima.
#[inline]
#[target_feature(enable = "avx512f")]
fn six_bits(headers: __m512i) -> __m512i {
    // Per super-block: d and dmin | low 0..4 | low 4..8 | high bits.
    let low = _mm512_shuffle_epi32::<0b10_10_01_01>(headers);
    let low = _mm512_srlv_epi32(low, _mm512_set4_epi32(2, 0, 2, 0));
    let high = _mm512_srlv_epi32(_mm512_shuffle_epi32::<0b11_11_11_11>(headers), _mm512_set4_epi32(4, 0, 0, 0));
    let from_low = _mm512_set4_epi32(0x3030_3030, 0x3f3f_3f3f, 0x3030_3030, 0x3f3f_3f3f);
    // from_low ? low : high
    let merged = _mm512_ternarylogic_epi32::<0xca>(from_low, low, high);
    _mm512_and_si512(merged, _mm512_set1_epi8(0x3f))
}

/// Σ of sixteen unsigned factors times the row's block sums, four lanes per super-block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx512vbmi,avx512vnni")]
fn factor_sums(factors: __m512i, x: &WideQuad) -> __m512i {
    let zero = _mm512_setzero_si512();
    let high = _mm512_dpbusd_epi32(zero, factors, load_i8(&x.sums_high));
    _mm512_dpbusd_epi32(_mm512_slli_epi32::<8>(high), factors, load_i8(&x.sums_low))
}

/// Terms of a quad of Q4_K.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx512vbmi,avx512vnni")]
pub(super) fn q4_k<const N: usize>(
    quads: Quads<'_, 144>,
    xs: [&Row; N],
    q: usize,
    exponents: __m512i,
    soon: Soon<'_>,
) -> [__m512i; N] {
    k45(quads, xs, q, exponents, soon, |block| {
        let (low, fifteen) = ([load512(&block[16..]), load512(&block[80..])], _mm512_set1_epi8(15));
        let high = |v| _mm512_and_si512(_mm512_srli_epi16::<4>(v), fifteen);
        let plain = |v| _mm512_and_si512(v, fifteen);
        [plain(low[0]), high(low[0]), plain(low[1]), high(low[1])]
    })
}

/// Terms of a quad of Q5_K.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx512vbmi,avx512vnni")]
pub(super) fn q5_k<const N: usize>(
    quads: Quads<'_, 176>,
    xs: [&Row; N],
    q: usize,
    exponents: __m512i,
    soon: Soon<'_>,
) -> [__m512i; N] {
    k45(quads, xs, q, exponents, soon, |block| {
        let fifth = _mm512_broadcast_i64x4(load256(&block[16..]));
        let nibbles = [load512(&block[48..]), load512(&block[112..])];
        let (fifteen, all) = (_mm512_set1_epi8(15), _mm512_set1_epi8(31));
        // Bit b of a byte belongs to block b; it moves to bit 4, in each half for that half's block.
        let merge = |nibbles, fifth| _mm512_and_si512(_mm512_ternarylogic_epi32::<0xca>(fifteen, nibbles, fifth), all);
        let halves = |low, high| _mm512_set_epi64(high, high, high, high, low, low, low, low);
        let high = [_mm512_srli_epi16::<4>(nibbles[0]), _mm512_srli_epi16::<4>(nibbles[1])];
        [
            merge(nibbles[0], _mm512_sllv_epi64(fifth, halves(4, 2))),
            merge(high[0], _mm512_sllv_epi64(fifth, halves(3, 1))),
            merge(nibbles[1], _mm512_srlv_epi64(fifth, halves(0, 2))),
            merge(high[1], _mm512_srlv_epi64(fifth, halves(1, 3))),
        ]
    })
}

/// What Q4_K and Q5_K share; `unpack` gives a super-block's weights, 0..=31, in nibble order.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx512vbmi,avx512vnni")]
fn k45<const B: usize, const N: usize>(
    quads: Quads<'_, B>,
    xs: [&Row; N],
    q: usize,
    exponents: __m512i,
    soon: Soon<'_>,
    unpack: impl Fn(&[u8; B]) -> [__m512i; 4],
) -> [__m512i; N] {
    let zero = _mm512_setzero_si512();
    let xs = xs.map(|x| &x.wide[q]);
    let mut headers = [zero; 4];
    for (header, blocks) in headers.iter_mut().zip(quads) {
        *header = load_four(blocks, 0);
    }
    let mut totals = [[zero; 4]; N];
    let mut minima = [[zero; 4]; N];
    for r in 0..4 {
        soon.fetch(r);
        let six = six_bits(headers[r]);
        let (factors, mins) = (_mm512_unpacklo_epi8(six, six), _mm512_unpackhi_epi8(six, six));
        let pairs = [
            _mm512_cvtepu8_epi16(_mm512_castsi512_si256(factors)),
            _mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64::<1>(factors)),
        ];
        let mut parts = [[zero; 4]; N];
        for i in 0..4 {
            let weights = unpack(&quads[r][i]);
            for (parts, x) in parts.iter_mut().zip(xs) {
                let multipliers = _mm512_mullo_epi16(pairs[i / 2], load_i16(&x.steps[i / 2]));
                parts[i] = products(weights, &x.values[i], multipliers, &NIBBLE_ORDER[i % 2]);
            }
        }
        for a in 0..N {
            totals[a][r] = sum_within(parts[a]);
            minima[a][r] = factor_sums(mins, xs[a]);
        }
    }
    let [a, b, c, d] = headers;
    let both = _mm512_unpacklo_epi64(_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
    let scale = scales(_mm512_and_si512(both, _mm512_set1_epi32(0xffff)));
    let min_scale = scales(_mm512_srli_epi32::<16>(both));
    let mut terms = [zero; N];
    for (a, x) in xs.into_iter().enumerate() {
        let (up, down) = (load_i32(&x.up), _mm512_add_epi32(load_i32(&x.down), exponents));
        let positive = term(scale, transpose(sum_across(totals[a])), up, down);
        terms[a] = _mm512_sub_epi32(positive, term(min_scale, sum_within(minima[a]), up, down));
    }
    terms
}

/// Terms of a quad of Q6_K.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx512vbmi,avx512vnni")]
pub(super) fn q6_k<const N: usize>(
    quads: Quads<'_, 210>,
    xs: [&Row; N],
    q: usize,
    exponents: __m512i,
    soon: Soon<'_>,
) -> [__m512i; N] {
    let zero = _mm512_setzero_si512();
    let xs = xs.map(|x| &x.wide[q]);
    let mut totals = [[zero; 4]; N];
    let mut offsets = [[zero; 4]; N];
    for r in 0..4 {
        soon.fetch(r);
        let factors = load_four(quads[r], 192);
        let unsigned = _mm512_xor_si512(factors, _mm512_set1_epi8(-128));
        let pairs = [
            _mm512_cvtepi8_epi16(_mm512_castsi512_si256(factors)),
            _mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64::<1>(factors)),
        ];
        let mut parts = [[zero; 4]; N];
        for i in 0..4 {
            let weights = unpack_six(&quads[r][i]);
            for (parts, x) in parts.iter_mut().zip(xs) {
                let multipliers = _mm512_mullo_epi16(pairs[i / 2], load_i16(&x.steps[i / 2]));
                parts[i] = products(weights, &x.values[i], multipliers, &PLAIN_ORDER[i % 2]);
            }
        }
        for a in 0..N {
            totals[a][r] = sum_within(parts[a]);
            offsets[a][r] = factor_sums(unsigned, xs[a]);
        }
    }
    let [a, b, c, d] =
        [load_four(quads[0], 194), load_four(quads[1], 194), load_four(quads[2], 194), load_four(quads[3], 194)];
    let both = _mm512_unpackhi_epi64(_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
    let scale = scales(_mm512_srli_epi32::<16>(both));
    let mut terms = [zero; N];
    for (a, x) in xs.into_iter().enumerate() {
        let (up, down) = (load_i32(&x.up), _mm512_add_epi32(load_i32(&x.down), exponents));
        // Weights are stored plus 32, and the factors of that correction were read plus 128.
        let offset = _mm512_sub_epi32(_mm512_slli_epi32::<5>(sum_within(offsets[a])), load_i32(&x.bias));
        terms[a] = term(scale, _mm512_sub_epi32(transpose(sum_across(totals[a])), offset), up, down);
    }
    terms
}

/// The weights of a Q6_K super-block plus 32: 0..=63, in natural order.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx512vbmi,avx512vnni")]
fn unpack_six(block: &[u8; 210]) -> [__m512i; 4] {
    let (fifteen, all) = (_mm512_set1_epi8(15), _mm512_set1_epi8(63));
    let merge = |low, high| _mm512_and_si512(_mm512_ternarylogic_epi32::<0xca>(fifteen, low, high), all);
    let halves = |low, high| _mm512_set_epi64(high, high, high, high, low, low, low, low);
    let mut out = [_mm512_setzero_si512(); 4];
    for half in 0..2 {
        let low = load512(&block[64 * half..]);
        let high = _mm512_broadcast_i64x4(load256(&block[128 + 32 * half..]));
        out[2 * half] = merge(low, _mm512_sllv_epi64(high, halves(4, 2)));
        out[2 * half + 1] = merge(_mm512_srli_epi16::<4>(low), _mm512_srlv_epi64(high, halves(0, 2)));
    }
    out
}
