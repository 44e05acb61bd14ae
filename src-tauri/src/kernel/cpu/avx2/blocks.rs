//! One block of weights of each exact type times one unit of up to four quantised rows.

use std::arch::x86_64::*;

use super::lanes::{Products, load_i8, load_i16, load128, load256};
use super::row::{SmallUnit, WideUnit};

/// Σ weight · q over 256 unsigned weights, each sixteen under its multiplier; eight lanes to be summed.
///
/// `multipliers` are those of blocks 0, 2 … 14 | 1, 3 … 15.
#[inline]
#[target_feature(enable = "avx2")]
fn products(weights: &[__m256i; 8], values: &[[i8; 32]; 8], multipliers: __m256i) -> __m256i {
    let mut total = _mm256_setzero_si256();
    for (b, (weights, values)) in weights.iter().zip(values).enumerate() {
        // Within each half, the multiplier of that half's sixteen weights, eight times.
        let place = _mm256_set1_epi16(((2 * b + 1) << 8 | (2 * b)) as i16);
        let multiplier = _mm256_shuffle_epi8(multipliers, place);
        let pairs = _mm256_maddubs_epi16(*weights, load_i8(values));
        total = _mm256_add_epi32(total, _mm256_madd_epi16(pairs, multiplier));
    }
    total
}

/// Eight scales and eight minima of Q4_K and Q5_K, as sixteen bytes.
#[inline]
#[target_feature(enable = "avx2")]
fn six_bits(packed: &[u8]) -> __m128i {
    let word = |at: usize| u32::from_le_bytes([packed[at], packed[at + 1], packed[at + 2], packed[at + 3]]);
    let (low, high, both) = (word(0), word(4), word(8));
    let late = |six: u32, four: u32| (four & 0x0f0f_0f0f) | ((six >> 2) & 0x3030_3030);
    _mm_setr_epi32(
        (low & 0x3f3f_3f3f) as i32,
        late(low, both) as i32,
        (high & 0x3f3f_3f3f) as i32,
        late(high, both >> 4) as i32,
    )
}

/// What Q4_K and Q5_K share; `weights` are 0..=31.
#[inline]
#[target_feature(enable = "avx2")]
fn k45<const N: usize>(header: &[u8], weights: [__m256i; 8], xs: [&WideUnit; N]) -> [Products; N] {
    let scales = i32::from_le_bytes([header[0], header[1], header[2], header[3]]);
    let six = six_bits(&header[4..16]);
    let factors = _mm256_broadcastsi128_si256(_mm_cvtepu8_epi16(six));
    let minima = _mm256_broadcastsi128_si256(_mm_cvtepu8_epi16(_mm_srli_si128::<8>(six)));
    let mut out = [Products::zero(scales); N];
    for (out, x) in out.iter_mut().zip(xs) {
        out.total = products(&weights, &x.values, _mm256_mullo_epi16(factors, load_i16(&x.steps)));
        out.minimum = _mm256_madd_epi16(minima, load_i16(&x.sums));
    }
    out
}

/// Low and high nibbles of 32 bytes.
#[inline]
#[target_feature(enable = "avx2")]
fn nibbles(bytes: &[u8]) -> [__m256i; 2] {
    let (v, fifteen) = (load256(bytes), _mm256_set1_epi8(15));
    [_mm256_and_si256(v, fifteen), _mm256_and_si256(_mm256_srli_epi16::<4>(v), fifteen)]
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn q4_k<const N: usize>(block: &[u8; 144], xs: [&WideUnit; N]) -> [Products; N] {
    let [a, b, c, d] = [nibbles(&block[16..]), nibbles(&block[48..]), nibbles(&block[80..]), nibbles(&block[112..])];
    k45(&block[..16], [a[0], a[1], b[0], b[1], c[0], c[1], d[0], d[1]], xs)
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn q5_k<const N: usize>(block: &[u8; 176], xs: [&WideUnit; N]) -> [Products; N] {
    let [a, b, c, d] = [nibbles(&block[48..]), nibbles(&block[80..]), nibbles(&block[112..]), nibbles(&block[144..])];
    let mut weights = [a[0], a[1], b[0], b[1], c[0], c[1], d[0], d[1]];
    let mut fifth = load256(&block[16..]);
    for weights in &mut weights {
        // Bit 0 is this block's; it moves to bit 4.
        let bit = _mm256_slli_epi16::<4>(_mm256_and_si256(fifth, _mm256_set1_epi8(1)));
        *weights = _mm256_or_si256(*weights, bit);
        fifth = _mm256_srli_epi16::<1>(fifth);
    }
    k45(&block[..16], weights, xs)
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn q6_k<const N: usize>(block: &[u8; 210], xs: [&WideUnit; N]) -> [Products; N] {
    let two = _mm256_set1_epi8(0x30);
    let half = |h: usize| {
        let ([a, c], [b, d]) = (nibbles(&block[64 * h..]), nibbles(&block[64 * h + 32..]));
        let high = load256(&block[128 + 32 * h..]);
        let bits = [_mm256_slli_epi16::<4>(high), _mm256_slli_epi16::<2>(high), high, _mm256_srli_epi16::<2>(high)];
        let merge = |low, i: usize| _mm256_or_si256(low, _mm256_and_si256(bits[i], two));
        [merge(a, 0), merge(b, 1), merge(c, 2), merge(d, 3)]
    };
    let [[a, b, c, d], [e, f, g, h]] = [half(0), half(1)];
    let weights = [a, b, c, d, e, f, g, h];
    // Factors 0, 2 … 14 | 1, 3 … 15.
    let order = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    let factors = _mm256_cvtepi8_epi16(_mm_shuffle_epi8(load128(&block[192..]), order));
    let scales = i32::from(u16::from_le_bytes([block[208], block[209]]));
    let mut out = [Products::zero(scales); N];
    for (out, x) in out.iter_mut().zip(xs) {
        let total = products(&weights, &x.values, _mm256_mullo_epi16(factors, load_i16(&x.steps)));
        // Weights are stored plus 32.
        let offset = _mm256_slli_epi32::<5>(_mm256_madd_epi16(factors, load_i16(&x.sums)));
        out.total = _mm256_sub_epi32(total, offset);
    }
    out
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn q8_0<const N: usize>(block: &[u8; 34], xs: [&SmallUnit; N]) -> [Products; N] {
    let weights = load256(&block[2..]);
    let magnitudes = _mm256_abs_epi8(weights);
    let scales = i32::from(u16::from_le_bytes([block[0], block[1]]));
    let mut out = [Products::zero(scales); N];
    for (out, x) in out.iter_mut().zip(xs) {
        let pairs = _mm256_maddubs_epi16(magnitudes, _mm256_sign_epi8(load_i8(&x.values), weights));
        out.total = _mm256_madd_epi16(pairs, load_i16(&x.steps));
    }
    out
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn q4_0<const N: usize>(block: &[u8; 18], xs: [&SmallUnit; N]) -> [Products; N] {
    let (bytes, fifteen) = (load128(&block[2..]), _mm_set1_epi8(15));
    let high = _mm_and_si128(_mm_srli_epi16::<4>(bytes), fifteen);
    let weights = _mm256_set_m128i(high, _mm_and_si128(bytes, fifteen));
    let scales = i32::from(u16::from_le_bytes([block[0], block[1]]));
    let mut out = [Products::zero(scales); N];
    for (out, x) in out.iter_mut().zip(xs) {
        let pairs = _mm256_maddubs_epi16(weights, load_i8(&x.values));
        // Weights are stored plus 8.
        let bias = _mm256_setr_epi32(x.bias, 0, 0, 0, 0, 0, 0, 0);
        out.total = _mm256_sub_epi32(_mm256_madd_epi16(pairs, load_i16(&x.steps)), bias);
    }
    out
}
