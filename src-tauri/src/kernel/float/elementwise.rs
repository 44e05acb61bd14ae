//! What is done to each number by itself, and the online softmax, which is almost that.

use super::levels::on_the_widest_level;
use super::math::{exp, sigmoid, silu};
use crate::kernel::cpu::sixteen::{LANES, Level};
use half::f16;

#[inline(always)]
fn silu_body<L: Level>(_: L, x: &mut [f32]) {
    x.iter_mut().for_each(|x| *x = silu(*x));
}

#[inline(always)]
fn silu_times_body<L: Level>(_: L, x: &mut [f32], factor: &[f32]) {
    x.iter_mut().zip(factor).for_each(|(x, factor)| *x = silu(*x) * factor);
}

#[inline(always)]
fn times_silu_body<L: Level>(_: L, x: &mut [f32], z: &[f32]) {
    x.iter_mut().zip(z).for_each(|(x, z)| *x *= silu(*z));
}

#[inline(always)]
fn times_sigmoid_body<L: Level>(_: L, x: &mut [f32], gate: &[f32]) {
    x.iter_mut().zip(gate).for_each(|(x, gate)| *x *= sigmoid(*gate));
}

#[inline(always)]
fn add_products_body<L: Level>(_: L, x: &mut [f32], a: &[f32], b: &[f32]) {
    x.iter_mut().zip(a).zip(b).for_each(|((x, a), b)| *x += a * b);
}

#[inline(always)]
fn widen_body<L: Level>(level: L, halves: &[f16], out: &mut [f32]) {
    let ((blocks, rest), (to, last)) = (halves.as_chunks(), out.as_chunks_mut::<LANES>());
    for (halves, to) in blocks.iter().zip(to) {
        level.store(level.load_halves(halves), to);
    }
    rest.iter().zip(last).for_each(|(half, to)| *to = half.to_f32());
}

#[inline(always)]
fn narrow_body<L: Level>(level: L, values: &[f32], out: &mut [f16]) {
    let ((blocks, rest), (to, last)) = (values.as_chunks(), out.as_chunks_mut::<LANES>());
    for (values, to) in blocks.iter().zip(to) {
        level.store_halves(level.load(values), to);
    }
    rest.iter().zip(last).for_each(|(value, to)| *to = f16::from_f32(*value));
}

/// The running softmax of several queries.
#[derive(Debug)]
pub struct Softmax<'a> {
    /// Per query: the largest score so far; −∞ before the first block.
    pub max: &'a mut [f32],
    /// Per query: the sum of the weights so far, relative to `max`.
    pub sum: &'a mut [f32],
    /// Per query, written: what sums of earlier blocks are to be multiplied by.
    pub correction: &'a mut [f32],
}

/// Queries `first..first + N` of a block.
#[inline(always)]
fn some_queries<const N: usize>(
    scores: &mut [f32],
    stride: usize,
    scale: f32,
    softmax: &mut Softmax<'_>,
    first: usize,
) {
    let (mut max, mut sum, mut correction) = ([0.0f32; N], [0.0f32; N], [0.0f32; N]);
    max.copy_from_slice(&softmax.max[first..first + N]);
    sum.copy_from_slice(&softmax.sum[first..first + N]);
    let before = max;
    for row in scores.chunks_mut(stride) {
        let Some(row) = row[first..].first_chunk_mut::<N>() else { return };
        for (score, max) in row.iter_mut().zip(&mut max) {
            *score *= scale;
            *max = if *score > *max { *score } else { *max };
        }
    }
    for i in 0..N {
        correction[i] = exp(before[i] - max[i]);
        sum[i] *= correction[i];
    }
    for row in scores.chunks_mut(stride) {
        let Some(row) = row[first..].first_chunk_mut::<N>() else { return };
        for i in 0..N {
            row[i] = exp(row[i] - max[i]);
            sum[i] += row[i];
        }
    }
    softmax.max[first..first + N].copy_from_slice(&max);
    softmax.sum[first..first + N].copy_from_slice(&sum);
    softmax.correction[first..first + N].copy_from_slice(&correction);
}

#[inline(always)]
fn soften_body<L: Level>(_: L, scores: &mut [f32], stride: usize, scale: f32, mut softmax: Softmax<'_>) {
    let mut first = 0;
    while first < softmax.max.len() {
        first += match softmax.max.len() - first {
            LANES.. => (some_queries::<LANES>(scores, stride, scale, &mut softmax, first), LANES).1,
            8.. => (some_queries::<8>(scores, stride, scale, &mut softmax, first), 8).1,
            4.. => (some_queries::<4>(scores, stride, scale, &mut softmax, first), 4).1,
            2.. => (some_queries::<2>(scores, stride, scale, &mut softmax, first), 2).1,
            _ => (some_queries::<1>(scores, stride, scale, &mut softmax, first), 1).1,
        };
    }
}

on_the_widest_level! {
    /// `x = silu(x)`.
    silu_each(x: &mut [f32]), silu_body, silu_body, silu_body
}

on_the_widest_level! {
    /// `x = silu(x) · factor`.
    silu_times(x: &mut [f32], factor: &[f32]), silu_times_body, silu_times_body, silu_times_body
}

on_the_widest_level! {
    /// `x = x · silu(z)`.
    times_silu(x: &mut [f32], z: &[f32]), times_silu_body, times_silu_body, times_silu_body
}

on_the_widest_level! {
    /// `x = x · sigmoid(gate)`.
    times_sigmoid(x: &mut [f32], gate: &[f32]), times_sigmoid_body, times_sigmoid_body, times_sigmoid_body
}

on_the_widest_level! {
    /// `x = x + a · b`.
    add_products(x: &mut [f32], a: &[f32], b: &[f32]), add_products_body, add_products_body, add_products_body
}

on_the_widest_level! {
    /// Half-precision numbers as floats; exact.
    widen(halves: &[f16], out: &mut [f32]), widen_body, widen_body, widen_body
}

on_the_widest_level! {
    /// Floats as the nearest half-precision numbers, the even one of two.
    narrow(values: &[f32], out: &mut [f16]), narrow_body, narrow_body, narrow_body
}

on_the_widest_level! {
    /// One block of keys of a softmax that runs over blocks: row i of `scores` (`stride` apart; the last may be short)
    /// holds one score per query, which becomes its weight, `e^(scale · score − max)`; sums ascend in i.
    soften(scores: &mut [f32], stride: usize, scale: f32, softmax: Softmax<'_>), soften_body, soften_body, soften_body
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::cpu::sixteen::Plain;
    use crate::kernel::float::softmax;

    #[test]
    fn every_half_survives_and_floats_round_the_same_way_on_every_level() {
        let halves: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).filter(|half| !half.is_nan()).collect();
        let (mut floats, mut again) = (vec![0.0; halves.len()], vec![f16::ZERO; halves.len()]);
        widen(&halves, &mut floats);
        assert!(floats.iter().zip(&halves).all(|(float, half)| float.to_bits() == half.to_f32().to_bits()));
        narrow(&floats, &mut again);
        assert!(again.iter().zip(&halves).all(|(a, b)| a.to_bits() == b.to_bits()));
        let between: Vec<f32> = (0..100_003u32).map(|i| f32::from_bits(i.wrapping_mul(42_901) % 0x7f80_0000)).collect();
        let (mut wide, mut plain) = (vec![f16::ZERO; between.len()], vec![f16::ZERO; between.len()]);
        narrow(&between, &mut wide);
        narrow_body(Plain, &between, &mut plain);
        assert!(wide.iter().zip(&plain).all(|(a, b)| a.to_bits() == b.to_bits()));
    }

    #[test]
    fn elementwise_levels_give_the_bits_of_the_plain_one() {
        let x: Vec<f32> = (0..1003).map(|i| (i as f32 - 500.0) * 0.21).collect();
        let y: Vec<f32> = x.iter().rev().copied().collect();
        let same = |wide: &dyn Fn(&mut [f32]), plain: &dyn Fn(&mut [f32])| {
            let (mut a, mut b) = (x.clone(), x.clone());
            wide(&mut a);
            plain(&mut b);
            assert_eq!(a, b);
        };
        same(&|x| silu_each(x), &|x| x.iter_mut().for_each(|x| *x = silu(*x)));
        same(&|x| silu_times(x, &y), &|x| silu_times_body(Plain, x, &y));
        same(&|x| times_silu(x, &y), &|x| times_silu_body(Plain, x, &y));
        same(&|x| times_sigmoid(x, &y), &|x| times_sigmoid_body(Plain, x, &y));
        same(&|x| add_products(x, &y, &y), &|x| add_products_body(Plain, x, &y, &y));
    }

    #[test]
    fn queries_beside_each_other_do_not_change_a_softmax_and_blocks_add_up_to_one() {
        let (keys, queries) = (300, 31);
        let all: Vec<f32> = (0..keys * queries).map(|i| ((i * 7919) % 997) as f32 / 100.0).collect();
        let run = |scores: &mut [f32], width: usize| {
            let (mut max, mut sum, mut correction) =
                (vec![f32::NEG_INFINITY; width], vec![0.0; width], vec![0.0; width]);
            for block in scores.chunks_mut(256 * width) {
                let softmax = Softmax { max: &mut max, sum: &mut sum, correction: &mut correction };
                soften(block, width, 0.5, softmax);
            }
            (max, sum, correction)
        };
        let mut together = all.clone();
        let (max, sum, correction) = run(&mut together, queries);
        for q in 0..queries {
            let mut alone: Vec<f32> = all[q..].iter().step_by(queries).copied().collect();
            let mut expected: Vec<f32> = alone.iter().map(|s| s * 0.5).collect();
            let one = run(&mut alone, 1);
            assert_eq!((max[q], sum[q], correction[q]), (one.0[0], one.1[0], one.2[0]));
            softmax(&mut expected);
            for (i, weight) in alone.iter().enumerate() {
                assert_eq!(*weight, together[i * queries + q]);
                let weight = if i < 256 { weight * correction[q] } else { *weight };
                assert!((weight / sum[q] - expected[i]).abs() < 1e-6);
            }
        }
    }
}
