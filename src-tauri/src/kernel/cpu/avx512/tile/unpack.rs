//! The five exact types → a tile: sixteen rows turned so that each has a lane, their codes spread to bytes.

use std::arch::x86_64::*;

use super::{LANES, Scale, Tile};
use crate::kernel::cpu::avx512::lanes::{load128, load256, load512, scales};
use crate::model::BlockType;

/// Unpacks super-block `block` of sixteen rows with the row exponents `exponents`; missing blocks of a short one get
/// no scale.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx512vbmi,avx512vnni")]
pub(super) fn unpack(ty: BlockType, rows: &[&[u8]; LANES], block: usize, exponents: __m512i, tile: &mut Tile) {
    match ty {
        BlockType::Q4_K => {
            let blocks = rows.map(|row| &row.as_chunks::<144>().0[block]);
            k45_scales(&blocks.map(|b| &b[..16]), exponents, tile);
            q4_k(&blocks.map(|b| &b[16..]), None, tile);
        }
        BlockType::Q5_K => {
            let blocks = rows.map(|row| &row.as_chunks::<176>().0[block]);
            k45_scales(&blocks.map(|b| &b[..16]), exponents, tile);
            let fifth = turned(|i| _mm512_castsi256_si512(load256(&blocks[i][16..])));
            q4_k(&blocks.map(|b| &b[48..]), Some(&fifth), tile);
        }
        BlockType::Q6_K => q6_k(&rows.map(|row| &row.as_chunks::<210>().0[block]), exponents, tile),
        BlockType::Q4_0 => {
            let blocks = rows.map(|row| present::<18>(row, block));
            small_scales(&blocks, exponents, tile);
            q4_0(&blocks, tile);
        }
        _ => {
            let blocks = rows.map(|row| present::<34>(row, block));
            small_scales(&blocks, exponents, tile);
            q8_0(&blocks, tile);
        }
    }
}

/// The blocks of 32 that a super-block has, at most eight.
#[inline]
fn present<const B: usize>(row: &[u8], block: usize) -> &[[u8; B]] {
    let blocks = row.as_chunks::<B>().0;
    &blocks[8 * block..(8 * block + 8).min(blocks.len())]
}

/// Dword c of sixteen rows, as vector c; `load` gives the 64 bytes of a row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn turned(load: impl Fn(usize) -> __m512i) -> [__m512i; 16] {
    let zero = _mm512_setzero_si512();
    let mut rows = [zero; 16];
    for (i, row) in rows.iter_mut().enumerate() {
        *row = load(i);
    }
    // Within every 128 bits: four rows of four dwords are turned.
    let mut fours = [zero; 16];
    for g in 0..4 {
        let [a, b, c, d] = [rows[4 * g], rows[4 * g + 1], rows[4 * g + 2], rows[4 * g + 3]];
        let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
        let (ab_high, cd_high) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
        fours[4 * g] = _mm512_unpacklo_epi64(ab, cd);
        fours[4 * g + 1] = _mm512_unpackhi_epi64(ab, cd);
        fours[4 * g + 2] = _mm512_unpacklo_epi64(ab_high, cd_high);
        fours[4 * g + 3] = _mm512_unpackhi_epi64(ab_high, cd_high);
    }
    // Vector 4 g + k now has, in 128-bit part p, dword 4 p + k of rows 4 g to 4 g + 3: the parts are turned.
    let mut out = [zero; 16];
    for k in 0..4 {
        let [a, b, c, d] = [fours[k], fours[4 + k], fours[8 + k], fours[12 + k]];
        let (ab, cd) = (_mm512_shuffle_i32x4::<0b01_00_01_00>(a, b), _mm512_shuffle_i32x4::<0b01_00_01_00>(c, d));
        let (ab_high, cd_high) =
            (_mm512_shuffle_i32x4::<0b11_10_11_10>(a, b), _mm512_shuffle_i32x4::<0b11_10_11_10>(c, d));
        out[k] = _mm512_shuffle_i32x4::<0b10_00_10_00>(ab, cd);
        out[4 + k] = _mm512_shuffle_i32x4::<0b11_01_11_01>(ab, cd);
        out[8 + k] = _mm512_shuffle_i32x4::<0b10_00_10_00>(ab_high, cd_high);
        out[12 + k] = _mm512_shuffle_i32x4::<0b11_01_11_01>(ab_high, cd_high);
    }
    out
}

/// Dwords c of sixteen rows of sixteen bytes, as vector c.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn turned_short(rows: &[&[u8]; LANES], at: usize) -> [__m512i; 4] {
    // Rows 0, 4, 8, 12 | 1, 5, 9, 13 | …: the 128-bit parts of one vector are four rows apart.
    let four = |i: usize| {
        let first = _mm512_castsi128_si512(load128(&rows[i][at..]));
        let second = _mm512_inserti32x4::<1>(first, load128(&rows[4 + i][at..]));
        let third = _mm512_inserti32x4::<2>(second, load128(&rows[8 + i][at..]));
        _mm512_inserti32x4::<3>(third, load128(&rows[12 + i][at..]))
    };
    let [a, b, c, d] = [four(0), four(1), four(2), four(3)];
    let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
    let (ab_high, cd_high) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
    [
        _mm512_unpacklo_epi64(ab, cd),
        _mm512_unpackhi_epi64(ab, cd),
        _mm512_unpacklo_epi64(ab_high, cd_high),
        _mm512_unpackhi_epi64(ab_high, cd_high),
    ]
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store<T>(to: &mut T, v: __m512i) {
    const { assert!(size_of::<T>() == 64) };
    #[expect(unsafe_code, reason = "a store")]
    // SAFETY: the target is 64 bytes of integers.
    unsafe {
        _mm512_storeu_si512(std::ptr::from_mut(to).cast(), v);
    }
}

/// f16 bits in the low half of every lane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn scale(bits: __m512i, exponents: __m512i, to: &mut Scale) {
    let scales = scales(bits);
    store(&mut to.mantissa, scales.mantissa);
    store(&mut to.high, _mm512_slli_epi32::<16>(scales.mantissa));
    let distance = _mm512_sub_epi32(exponents, scales.exponent);
    store(&mut to.distance, _mm512_sub_epi32(distance, _mm512_set1_epi32(17)));
}

/// `d f16 | dmin f16 | eight 6-bit scales and minima in 12 bytes`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn k45_scales(headers: &[&[u8]; LANES], exponents: __m512i, tile: &mut Tile) {
    let [both, low, high, late] = turned_short(headers, 0);
    scale(_mm512_and_si512(both, _mm512_set1_epi32(0xffff)), exponents, &mut tile.scales[0]);
    scale(_mm512_srli_epi32::<16>(both), exponents, &mut tile.min_scale);
    let six = |v| _mm512_and_si512(v, _mm512_set1_epi32(0x3f3f_3f3f));
    let merge = |four, six| {
        let top = _mm512_and_si512(_mm512_srli_epi32::<2>(six), _mm512_set1_epi32(0x3030_3030));
        _mm512_or_si512(_mm512_and_si512(four, _mm512_set1_epi32(0x0f0f_0f0f)), top)
    };
    let factors = [six(low), merge(late, low)];
    let minima = [six(high), merge(_mm512_srli_epi32::<4>(late), high)];
    let byte = _mm512_set1_epi32(255);
    for j in 0..8 {
        let shift = _mm_cvtsi32_si128(8 * (j as i32 % 4));
        store(&mut tile.factors[2 * j], _mm512_and_si512(_mm512_srl_epi32(factors[j / 4], shift), byte));
        let minimum = _mm512_and_si512(_mm512_srl_epi32(minima[j / 4], shift), byte);
        store(&mut tile.minima[j], _mm512_or_si512(minimum, _mm512_slli_epi32::<16>(minimum)));
    }
}

/// 128 bytes of nibbles, per 64 weights 32; `fifth`: bit b of a byte belongs to block b.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn q4_k(nibbles: &[&[u8]; LANES], fifth: Option<&[__m512i; 16]>, tile: &mut Tile) {
    let fifteen = _mm512_set1_epi8(15);
    for half in 0..2 {
        let columns = turned(|i| load512(&nibbles[i][64 * half..]));
        for (c, codes) in columns.into_iter().enumerate() {
            // Sixteen bytes of low nibbles are a step, those of high nibbles the step 32 weights on.
            let (block, four) = (4 * half + c / 8 * 2, c % 8);
            let mut low = _mm512_and_si512(codes, fifteen);
            let mut high = _mm512_and_si512(_mm512_srli_epi16::<4>(codes), fifteen);
            if let Some(fifth) = fifth {
                let bit = |block: usize| {
                    let shifted = _mm512_srl_epi32(fifth[four], _mm_cvtsi32_si128(block as i32));
                    _mm512_slli_epi32::<4>(_mm512_and_si512(shifted, _mm512_set1_epi8(1)))
                };
                low = _mm512_or_si512(low, bit(block));
                high = _mm512_or_si512(high, bit(block + 1));
            }
            store(&mut tile.weights[2 * block + four / 4][four % 4], low);
            store(&mut tile.weights[2 * block + 2 + four / 4][four % 4], high);
        }
    }
}

/// `low nibbles 128 | high bit pairs 64 | sixteen i8 factors | d f16`; per 128 weights 64 + 32 bytes; stored plus 32.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn q6_k(blocks: &[&[u8; 210]; LANES], exponents: __m512i, tile: &mut Tile) {
    let high = turned(|i| load512(&blocks[i][128..]));
    let (fifteen, two) = (_mm512_set1_epi8(15), _mm512_set1_epi8(0x30));
    for half in 0..2 {
        let low = turned(|i| load512(&blocks[i][64 * half..]));
        for c in 0..8 {
            let bits = high[8 * half + c];
            let merge = |low, bits| _mm512_or_si512(_mm512_and_si512(low, fifteen), _mm512_and_si512(bits, two));
            let quarters = [
                merge(low[c], _mm512_slli_epi32::<4>(bits)),
                merge(low[8 + c], _mm512_slli_epi32::<2>(bits)),
                merge(_mm512_srli_epi32::<4>(low[c]), bits),
                merge(_mm512_srli_epi32::<4>(low[8 + c]), _mm512_srli_epi32::<2>(bits)),
            ];
            for (quarter, weights) in quarters.into_iter().enumerate() {
                store(&mut tile.weights[8 * half + 2 * quarter + c / 4][c % 4], weights);
            }
        }
    }
    let bytes = blocks.map(|b| b.as_slice());
    for (quad, factors) in turned_short(&bytes, 192).into_iter().enumerate() {
        for i in 0..4 {
            let top = _mm512_sll_epi32(factors, _mm_cvtsi32_si128(24 - 8 * i));
            store(&mut tile.factors[4 * quad + i as usize], _mm512_srai_epi32::<24>(top));
        }
    }
    let [.., last] = turned_short(&bytes, 194);
    scale(_mm512_srli_epi32::<16>(last), exponents, &mut tile.scales[0]);
}

/// The scales of blocks of 32, which begin with theirs.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn small_scales<const B: usize>(blocks: &[&[[u8; B]]; LANES], exponents: __m512i, tile: &mut Tile) {
    let count = blocks[0].len();
    for (unit, to) in tile.scales.iter_mut().enumerate() {
        if unit >= count {
            *to = Scale::NONE;
            continue;
        }
        let mut bits = [0u16; LANES];
        for (bits, blocks) in bits.iter_mut().zip(blocks) {
            *bits = u16::from_le_bytes([blocks[unit][0], blocks[unit][1]]);
        }
        #[expect(unsafe_code, reason = "a load")]
        // SAFETY: sixteen u16 are 32 bytes.
        let bits = unsafe { _mm256_loadu_si256(bits.as_ptr().cast()) };
        scale(_mm512_cvtepu16_epi32(bits), exponents, to);
    }
}

/// Two blocks of 32 bytes at a time, stored plus 128; a missing block repeats the last one.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn q8_0(blocks: &[&[[u8; 34]]; LANES], tile: &mut Tile) {
    for pair in 0..4 {
        let columns = turned(|row| {
            let at = |i: usize| load256(&blocks[row][(2 * pair + i).min(blocks[row].len() - 1)][2..]);
            _mm512_inserti64x4::<1>(_mm512_castsi256_si512(at(0)), at(1))
        });
        for (c, weights) in columns.into_iter().enumerate() {
            let weights = _mm512_xor_si512(weights, _mm512_set1_epi8(-128));
            store(&mut tile.weights[4 * pair + c / 4][c % 4], weights);
        }
    }
}

/// Four blocks of sixteen bytes of nibbles at a time, stored plus 8; a missing block repeats the last one.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn q4_0(blocks: &[&[[u8; 18]]; LANES], tile: &mut Tile) {
    let fifteen = _mm512_set1_epi8(15);
    for four in 0..2 {
        let columns = turned(|row| {
            let at = |i: usize| load128(&blocks[row][(4 * four + i).min(blocks[row].len() - 1)][2..]);
            let two = _mm512_inserti32x4::<1>(_mm512_castsi128_si512(at(0)), at(1));
            _mm512_inserti32x4::<3>(_mm512_inserti32x4::<2>(two, at(2)), at(3))
        });
        for (c, codes) in columns.into_iter().enumerate() {
            let block = 4 * four + c / 4;
            store(&mut tile.weights[2 * block][c % 4], _mm512_and_si512(codes, fifteen));
            let high = _mm512_and_si512(_mm512_srli_epi16::<4>(codes), fifteen);
            store(&mut tile.weights[2 * block + 1][c % 4], high);
        }
    }
}
