//! Q8_0 and Q4_0: sixteen blocks of 32 (four of each of four rows) become sixteen terms.

use std::arch::x86_64::*;

use super::lanes::{Quads, load_four, load_i8, load_i16, load_i32, load256, scales, sum_within, term};
use super::row::{Row, SmallQuad};
use crate::kernel::cpu::ahead::Soon;

/// Terms of a quad of Q8_0; there are registers for the sums of two rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx512vbmi,avx512vnni")]
pub(super) fn q8_0<const N: usize>(
    quads: Quads<'_, 34>,
    xs: [&Row; N],
    q: usize,
    exponents: __m512i,
    soon: Soon<'_>,
) -> [__m512i; N] {
    let zero = _mm512_setzero_si512();
    let xs = xs.map(|x| &x.small[q]);
    let mut products = [[[zero; 2]; 4]; N];
    for r in 0..4 {
        soon.fetch(r);
        for v in 0..2 {
            let [first, second] = [load256(&quads[r][2 * v][2..]), load256(&quads[r][2 * v + 1][2..])];
            let signed = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(first), second);
            let unsigned = _mm512_xor_si512(signed, _mm512_set1_epi8(-128));
            for (products, x) in products.iter_mut().zip(xs) {
                let dot = _mm512_dpbusd_epi32(zero, unsigned, load_i8(&x.values[v]));
                products[r][v] = _mm512_mullo_epi32(dot, load_i32(&x.lane_steps[v]));
            }
        }
    }
    let scale = block_scales(quads);
    let mut terms = [zero; N];
    for a in 0..N {
        let [p, q, r, s] = products[a];
        // Per 128 bits: row 0 first and second vector, row 1 first and second vector; blocks 0, 0, 1, 1 | 2, 2, 3, 3.
        let (front, back) = (sum_within([p[0], p[1], q[0], q[1]]), sum_within([r[0], r[1], s[0], s[1]]));
        let even = _mm512_shuffle_i64x2::<0b10_00_10_00>(front, back);
        let odd = _mm512_shuffle_i64x2::<0b11_01_11_01>(front, back);
        // Lanes now: rows 0, 1 (blocks 0, 2), the same (1, 3), rows 2, 3 (0, 2), the same (1, 3).
        let order = _mm512_setr_epi32(0, 2, 8, 10, 4, 6, 12, 14, 1, 3, 9, 11, 5, 7, 13, 15);
        let totals = _mm512_permutexvar_epi32(order, _mm512_add_epi32(even, odd));
        terms[a] = finish(scale, totals, xs[a], exponents);
    }
    terms
}

/// Terms of a quad of Q4_0.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx512vbmi,avx512vnni")]
pub(super) fn q4_0<const N: usize>(
    quads: Quads<'_, 18>,
    xs: [&Row; N],
    q: usize,
    exponents: __m512i,
    soon: Soon<'_>,
) -> [__m512i; N] {
    let (zero, fifteen) = (_mm512_setzero_si512(), _mm512_set1_epi8(15));
    let xs = xs.map(|x| &x.small[q]);
    let mut products = [[zero; 4]; N];
    for r in 0..4 {
        soon.fetch(r);
        let bytes = load_four(quads[r], 2);
        let low = _mm512_and_si512(bytes, fifteen);
        let high = _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), fifteen);
        for (products, x) in products.iter_mut().zip(xs) {
            let first = _mm512_dpbusd_epi32(zero, low, load_i8(&x.values[0]));
            let second = _mm512_dpbusd_epi32(zero, high, load_i8(&x.values[1]));
            products[r] = _mm512_madd_epi16(_mm512_packs_epi32(first, second), load_i16(&x.packed_steps));
        }
    }
    let scale = block_scales(quads);
    let mut terms = [zero; N];
    for a in 0..N {
        terms[a] = finish(scale, sum_within(products[a]), xs[a], exponents);
    }
    terms
}

/// The first two bytes of all sixteen blocks, lane `4 · block + row`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn block_scales<const B: usize>(quads: Quads<'_, B>) -> super::lanes::Scales {
    let [a, b, c, d] = [load_four(quads[0], 0), load_four(quads[1], 0), load_four(quads[2], 0), load_four(quads[3], 0)];
    let both = _mm512_unpacklo_epi64(_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
    scales(_mm512_and_si512(both, _mm512_set1_epi32(0xffff)))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn finish(scale: super::lanes::Scales, totals: __m512i, x: &SmallQuad, exponents: __m512i) -> __m512i {
    let (up, down) = (load_i32(&x.up), _mm512_add_epi32(load_i32(&x.down), exponents));
    term(scale, _mm512_sub_epi32(totals, load_i32(&x.bias)), up, down)
}
