//! Sixteen weight rows at once, one per lane: no sum ever crosses lanes, and a row of weights is unpacked once for any
//! number of quantised rows.
//!
//! A *tile* is one super-block of sixteen rows, unpacked by [`unpack`] to bytes whose dwords are four weights of one
//! row; a quantised row's four values then meet all sixteen rows in one instruction. Signed weights are stored plus an
//! offset, which the sums start without.

mod unpack;

use std::arch::x86_64::*;

use super::lanes::{load_i8, load_i16, load_i32};
use super::row::{Row, Steps};
use crate::kernel::cpu::ahead::Ahead;
use crate::kernel::cpu::engine::{Pass, ROWS_PER_PASS};
use crate::model::BlockType;
use unpack::unpack;

/// Weight rows of a tile.
pub(super) const LANES: usize = 16;

/// One super-block of sixteen weight rows, a row per lane.
#[repr(C, align(64))]
pub(super) struct Tile {
    /// Per sixteen weights: four times four weights of every row.
    weights: [[[i8; 64]; 4]; 16],
    /// K-quants: the factor of every sixteen weights.
    factors: [[i32; LANES]; 16],
    /// Q4_K and Q5_K: the minimum of every 32 weights, twice.
    minima: [[i16; 32]; 8],
    /// The f16 scale of every unit: one of a K-quant, eight of the others.
    scales: [Scale; 8],
    /// The f16 scale of the minima.
    min_scale: Scale,
}

/// An f16 scale of every row.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(super) struct Scale {
    mantissa: [i32; LANES],
    /// The mantissa in the high half.
    high: [i32; LANES],
    /// Ed − ed − 17.
    distance: [i32; LANES],
}

impl Scale {
    /// Makes every term zero, with a legal shift.
    const NONE: Self = Self { mantissa: [0; LANES], high: [0; LANES], distance: [-17; LANES] };
}

impl Tile {
    const EMPTY: Self = Self {
        weights: [[[0; 64]; 4]; 16],
        factors: [[0; LANES]; 16],
        minima: [[0; 32]; 8],
        scales: [Scale::NONE; 8],
        min_scale: Scale::NONE,
    };
}

/// Dots of the pass's weight rows with each of `xs`, up to [`ROWS_PER_PASS`]: `out[x · rows.len() + r]`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx512vbmi,avx512vnni")]
pub(super) fn dots(pass: &Pass<'_>, xs: &[&Row], out: &mut [i32]) {
    let Pass { weights, rows, .. } = pass;
    let (count, ty, ahead) = (rows.len(), weights.ty(), Ahead::new(pass));
    let mut tile = Tile::EMPTY;
    for first in (0..count).step_by(LANES) {
        // Missing rows repeat the last one.
        let row = |lane: usize| rows.start + (first + lane).min(count - 1);
        let bytes: [&[u8]; LANES] = std::array::from_fn(|lane| weights.row(row(lane)));
        let exponents: [i32; LANES] = std::array::from_fn(|lane| i32::from(weights.exponents()[row(lane)]));
        let tile_bytes = LANES * bytes[0].len();
        let mut sums = [[0i32; LANES]; ROWS_PER_PASS];
        let blocks = weights.cols().div_ceil(256);
        for block in 0..blocks {
            unpack(ty, &bytes, block, load_i32(&exponents), &mut tile);
            // The next tile's bytes, a share with every super-block of this one.
            let share = tile_bytes / blocks;
            ahead.fetch((first / LANES + 1) * tile_bytes + block * share, share);
            let mut done = 0;
            while done < xs.len() {
                let sums = &mut sums[done..];
                done += match xs[done..] {
                    [a, b, c, d, e, f, g, h, ..] => some(ty, &tile, [a, b, c, d, e, f, g, h], block, sums),
                    [a, b, c, d, ..] => some(ty, &tile, [a, b, c, d], block, sums),
                    [a, b, ..] => some(ty, &tile, [a, b], block, sums),
                    [a] => some(ty, &tile, [a], block, sums),
                    [] => break,
                };
            }
        }
        let present = (count - first).min(LANES);
        for (sums, out) in sums.iter().zip(out.chunks_exact_mut(count)) {
            out[first..first + present].copy_from_slice(&sums[..present]);
        }
    }
}

/// Adds one super-block's terms for N rows; returns N.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx512vbmi,avx512vnni")]
fn some<const N: usize>(ty: BlockType, tile: &Tile, xs: [&Row; N], block: usize, sums: &mut [[i32; LANES]]) -> usize {
    let xs = xs.map(|x| &x.steps[block]);
    let terms = match ty {
        BlockType::Q4_K | BlockType::Q5_K => with_minima(tile, xs),
        BlockType::Q6_K => six(tile, xs),
        _ => small(tile, xs),
    };
    for (sums, term) in sums.iter_mut().zip(terms) {
        let sum = _mm512_add_epi32(load_i32(sums), term);
        #[expect(unsafe_code, reason = "a store")]
        // SAFETY: sixteen i32 are 64 bytes.
        unsafe {
            _mm512_storeu_si512(sums.as_mut_ptr().cast(), sum);
        }
    }
    N
}

/// `Σ weight · q` of sixteen weights of every row, for N quantised rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx512vbmi,avx512vnni")]
fn sixteen<const N: usize>(tile: &Tile, xs: [&Steps; N], step: usize) -> [__m512i; N] {
    let mut sums = xs.map(|x| _mm512_set1_epi32(x.starts[step]));
    for (four, weights) in tile.weights[step].iter().enumerate() {
        let weights = load_i8(weights);
        for (sum, x) in sums.iter_mut().zip(xs) {
            *sum = _mm512_dpbusd_epi32(*sum, weights, _mm512_set1_epi32(x.values[step][four]));
        }
    }
    sums
}

/// The same, times the row's step.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx512vbmi,avx512vnni")]
fn stepped<const N: usize>(tile: &Tile, xs: [&Steps; N], step: usize) -> [__m512i; N] {
    let mut sums = sixteen(tile, xs, step);
    for (sum, x) in sums.iter_mut().zip(xs) {
        *sum = _mm512_mullo_epi32(*sum, _mm512_set1_epi32(x.steps[step]));
    }
    sums
}

/// `mantissa · (total · 2^up)` shifted down by `down − exponent`, rounded half up, in every lane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx512vbmi,avx512vnni")]
fn term(scale: &Scale, total: __m512i, x: &Steps) -> __m512i {
    let v = _mm512_sllv_epi32(total, _mm512_set1_epi32(x.up));
    // floor(mantissa · v / 2^16): the two halves of v meet without a 64-bit product.
    let high = _mm512_madd_epi16(v, load_i32(&scale.high));
    let low = _mm512_mullo_epi32(load_i32(&scale.mantissa), _mm512_and_si512(v, _mm512_set1_epi32(0xffff)));
    let t = _mm512_add_epi32(high, _mm512_srai_epi32::<16>(low));
    // |t| < 2^27, so that every shift from 29 on gives zero. The last bit is shifted out behind the rounding.
    let shift = _mm512_add_epi32(load_i32(&scale.distance), _mm512_set1_epi32(x.down));
    let shift = _mm512_min_epi32(shift, _mm512_set1_epi32(29));
    _mm512_srai_epi32::<1>(_mm512_add_epi32(_mm512_srav_epi32(t, shift), _mm512_set1_epi32(1)))
}

/// Terms of Q4_K and Q5_K, whose factors are for 32 weights.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx512vbmi,avx512vnni")]
fn with_minima<const N: usize>(tile: &Tile, xs: [&Steps; N]) -> [__m512i; N] {
    let mut totals = [_mm512_setzero_si512(); N];
    let mut minima = [_mm512_setzero_si512(); N];
    for pair in 0..8 {
        let (first, second) = (stepped(tile, xs, 2 * pair), stepped(tile, xs, 2 * pair + 1));
        let factors = load_i32(&tile.factors[2 * pair]);
        let mins = load_i16(&tile.minima[pair]);
        for a in 0..N {
            let both = _mm512_add_epi32(first[a], second[a]);
            totals[a] = _mm512_add_epi32(totals[a], _mm512_mullo_epi32(both, factors));
            minima[a] = _mm512_dpwssd_epi32(minima[a], mins, _mm512_set1_epi32(xs[a].sums[pair]));
        }
    }
    std::array::from_fn(|a| {
        let positive = term(&tile.scales[0], totals[a], xs[a]);
        _mm512_sub_epi32(positive, term(&tile.min_scale, minima[a], xs[a]))
    })
}

/// Terms of Q6_K, whose factors are for sixteen weights.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx512vbmi,avx512vnni")]
fn six<const N: usize>(tile: &Tile, xs: [&Steps; N]) -> [__m512i; N] {
    let mut totals = [_mm512_setzero_si512(); N];
    for step in 0..16 {
        let factors = load_i32(&tile.factors[step]);
        let sums = stepped(tile, xs, step);
        for (total, sum) in totals.iter_mut().zip(sums) {
            *total = _mm512_add_epi32(*total, _mm512_mullo_epi32(sum, factors));
        }
    }
    std::array::from_fn(|a| term(&tile.scales[0], totals[a], xs[a]))
}

/// Terms of Q8_0 and Q4_0: a scale for every 32 weights.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx512vbmi,avx512vnni")]
fn small<const N: usize>(tile: &Tile, xs: [&Steps; N]) -> [__m512i; N] {
    let mut terms = [_mm512_setzero_si512(); N];
    for (unit, scale) in tile.scales.iter().enumerate() {
        let (first, second) = (stepped(tile, xs, 2 * unit), stepped(tile, xs, 2 * unit + 1));
        for a in 0..N {
            let total = _mm512_add_epi32(first[a], second[a]);
            terms[a] = _mm512_add_epi32(terms[a], term(scale, total, xs[a]));
        }
    }
    terms
}
