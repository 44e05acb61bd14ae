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
use crate::kernel::cpu::ahead::{Ahead, Soon};
use crate::kernel::cpu::engine::{Pass, ROWS_PER_PASS};
use crate::model::BlockType;
use unpack::unpack;

/// Weight rows of a tile.
pub(super) const LANES: usize = 16;
/// Steps of a super-block.
const STEPS: usize = 16;

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
    let blocks = weights.cols().div_ceil(256);
    let (all_bytes, row_bytes) = (weights.bytes(), weights.bytes().len() / weights.rows().max(1));
    let mut tiles = [Tile::EMPTY; 2];
    for first in (0..count).step_by(2 * LANES) {
        // The second tile is left out when the first one covers what is left.
        let tiles = if count - first > LANES { &mut tiles[..] } else { &mut tiles[..1] };
        let mut sums = [[[0i32; LANES]; 2]; ROWS_PER_PASS];
        // Missing rows repeat the last one.
        let row = |lane: usize| rows.start + (first + lane).min(count - 1);
        let bytes: [[&[u8]; LANES]; 2] = std::array::from_fn(|t| {
            std::array::from_fn(|lane| &all_bytes[row(t * LANES + lane) * row_bytes..][..row_bytes])
        });
        let exponents: [[i32; LANES]; 2] =
            std::array::from_fn(|t| std::array::from_fn(|lane| i32::from(weights.exponents()[row(t * LANES + lane)])));
        for block in 0..blocks {
            for ((tile, bytes), exponents) in tiles.iter_mut().zip(&bytes).zip(&exponents) {
                unpack(ty, bytes, block, load_i32(exponents), tile);
            }
            // The next super-block of these rows is asked for, or the first one of the next rows: a whole row ahead would
            // push out what is needed before it.
            let (lanes, block_bytes) = (tiles.len() * LANES, row_bytes / blocks);
            let (row, there) = if block + 1 < blocks { (first, block + 1) } else { (first + lanes, 0) };
            let at = row * row_bytes + there * block_bytes;
            let soon = Soon { ahead: &ahead, at, stride: row_bytes, part: block_bytes };
            match tiles {
                [a, b] => all(ty, [a, b], xs, block, soon, &mut sums),
                [a, ..] => all(ty, [a], xs, block, soon, &mut sums),
                [] => {}
            }
        }
        for (sums, out) in sums.iter().zip(out.chunks_exact_mut(count)) {
            let present = (count - first).min(2 * LANES);
            out[first..first + present].copy_from_slice(&sums.as_flattened()[..present]);
        }
    }
}

/// Adds one super-block's terms of all rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx512vbmi,avx512vnni")]
fn all<const T: usize>(
    ty: BlockType,
    tiles: [&Tile; T],
    xs: &[&Row],
    block: usize,
    soon: Soon<'_>,
    sums: &mut [[[i32; LANES]; 2]; ROWS_PER_PASS],
) {
    // Every group of four rows asks for its share of what comes next.
    let share = (T * LANES).div_ceil(STEPS * xs.len().div_ceil(4));
    for ((xs, sums), group) in xs.chunks(4).zip(sums.chunks_mut(4)).zip(0..) {
        let fetch = |step: usize| (0..share).for_each(|i| soon.fetch((group * STEPS + step) * share + i));
        match *xs {
            [a, b, c, d, ..] => some(ty, tiles, [a, b, c, d], block, fetch, sums),
            [a, b, c] => some(ty, tiles, [a, b, c], block, fetch, sums),
            [a, b] => some(ty, tiles, [a, b], block, fetch, sums),
            [a] => some(ty, tiles, [a], block, fetch, sums),
            [] => {}
        }
    }
}

/// Adds one super-block's terms for N rows; `fetch` is called [`STEPS`] times.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx512vbmi,avx512vnni")]
fn some<const T: usize, const N: usize>(
    ty: BlockType,
    tiles: [&Tile; T],
    xs: [&Row; N],
    block: usize,
    fetch: impl Fn(usize),
    sums: &mut [[[i32; LANES]; 2]],
) {
    let xs = xs.map(|x| &x.steps[block]);
    let terms = match ty {
        BlockType::Q4_K | BlockType::Q5_K => with_minima(tiles, xs, fetch),
        BlockType::Q6_K => six(tiles, xs, fetch),
        _ => small(tiles, xs, fetch),
    };
    for (sums, terms) in sums.iter_mut().zip(terms) {
        for (sums, term) in sums.iter_mut().zip(terms) {
            let sum = _mm512_add_epi32(load_i32(sums), term);
            #[expect(unsafe_code, reason = "a store")]
            // SAFETY: sixteen i32 are 64 bytes.
            unsafe {
                _mm512_storeu_si512(sums.as_mut_ptr().cast(), sum);
            }
        }
    }
}

/// `s · Σ weight · q` of sixteen weights of every row of T tiles, for N quantised rows; the sums start at what the
/// weights' offset adds, less.
///
/// A quantised value is read once for all tiles and a weight once for all quantised rows: reading is what limits this.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx512vbmi,avx512vnni")]
fn stepped<const T: usize, const N: usize, const OFFSET: bool>(
    tiles: [&Tile; T],
    xs: [&Steps; N],
    step: usize,
) -> [[__m512i; T]; N] {
    let mut sums = [[_mm512_setzero_si512(); T]; N];
    if OFFSET {
        for (sums, x) in sums.iter_mut().zip(xs) {
            *sums = [_mm512_set1_epi32(x.starts[step]); T];
        }
    }
    for four in 0..4 {
        let mut weights = [_mm512_setzero_si512(); T];
        for (weights, tile) in weights.iter_mut().zip(tiles) {
            *weights = load_i8(&tile.weights[step][four]);
        }
        for (sums, x) in sums.iter_mut().zip(xs) {
            let values = _mm512_set1_epi32(x.values[step][four]);
            for (sum, weights) in sums.iter_mut().zip(weights) {
                *sum = _mm512_dpbusd_epi32(*sum, weights, values);
            }
        }
    }
    for (sums, x) in sums.iter_mut().zip(xs) {
        let s = _mm512_set1_epi32(x.steps[step]);
        for sum in sums {
            *sum = _mm512_mullo_epi32(*sum, s);
        }
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
fn with_minima<const T: usize, const N: usize>(
    tiles: [&Tile; T],
    xs: [&Steps; N],
    fetch: impl Fn(usize),
) -> [[__m512i; T]; N] {
    let mut totals = [[_mm512_setzero_si512(); T]; N];
    for pair in 0..8 {
        fetch(2 * pair);
        fetch(2 * pair + 1);
        let first = stepped::<T, N, false>(tiles, xs, 2 * pair);
        let second = stepped::<T, N, false>(tiles, xs, 2 * pair + 1);
        for t in 0..T {
            let factors = load_i32(&tiles[t].factors[2 * pair]);
            for a in 0..N {
                let both = _mm512_add_epi32(first[a][t], second[a][t]);
                totals[a][t] = _mm512_add_epi32(totals[a][t], _mm512_mullo_epi32(both, factors));
            }
        }
    }
    let mut minima = [[_mm512_setzero_si512(); T]; N];
    for pair in 0..8 {
        for (minima, x) in minima.iter_mut().zip(xs) {
            let sums = _mm512_set1_epi32(x.sums[pair]);
            for (minima, tile) in minima.iter_mut().zip(tiles) {
                *minima = _mm512_dpwssd_epi32(*minima, load_i16(&tile.minima[pair]), sums);
            }
        }
    }
    for (a, x) in xs.into_iter().enumerate() {
        for (t, tile) in tiles.into_iter().enumerate() {
            let positive = term(&tile.scales[0], totals[a][t], x);
            totals[a][t] = _mm512_sub_epi32(positive, term(&tile.min_scale, minima[a][t], x));
        }
    }
    totals
}

/// Terms of Q6_K, whose factors are for sixteen weights.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx512vbmi,avx512vnni")]
fn six<const T: usize, const N: usize>(tiles: [&Tile; T], xs: [&Steps; N], fetch: impl Fn(usize)) -> [[__m512i; T]; N] {
    let mut totals = [[_mm512_setzero_si512(); T]; N];
    for step in 0..16 {
        fetch(step);
        let sums = stepped::<T, N, true>(tiles, xs, step);
        for t in 0..T {
            let factors = load_i32(&tiles[t].factors[step]);
            for a in 0..N {
                totals[a][t] = _mm512_add_epi32(totals[a][t], _mm512_mullo_epi32(sums[a][t], factors));
            }
        }
    }
    for (a, x) in xs.into_iter().enumerate() {
        for (t, tile) in tiles.into_iter().enumerate() {
            totals[a][t] = term(&tile.scales[0], totals[a][t], x);
        }
    }
    totals
}

/// Terms of Q8_0 and Q4_0: a scale for every 32 weights.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx512vbmi,avx512vnni")]
fn small<const T: usize, const N: usize>(
    tiles: [&Tile; T],
    xs: [&Steps; N],
    fetch: impl Fn(usize),
) -> [[__m512i; T]; N] {
    let mut terms = [[_mm512_setzero_si512(); T]; N];
    for unit in 0..8 {
        fetch(2 * unit);
        fetch(2 * unit + 1);
        let first = stepped::<T, N, true>(tiles, xs, 2 * unit);
        let second = stepped::<T, N, true>(tiles, xs, 2 * unit + 1);
        for (a, x) in xs.into_iter().enumerate() {
            for (t, tile) in tiles.into_iter().enumerate() {
                let total = _mm512_add_epi32(first[a][t], second[a][t]);
                terms[a][t] = _mm512_add_epi32(terms[a][t], term(&tile.scales[unit], total, x));
            }
        }
    }
    terms
}
