//! One token of the gated delta rule, reading its state from memory once.
//!
//! The state of a layer is megabytes and is read and written for every token: how often it passes through the caches
//! is what this costs.

use super::levels::on_the_widest_level;
use crate::kernel::cpu::sixteen::{LANES, Level};

/// One token of one head.
#[derive(Clone, Copy, Debug)]
pub struct DeltaToken<'a> {
    /// What the state keeps, 0..1.
    pub decay: f32,
    /// How much of the error is corrected, 0..1.
    pub beta: f32,
    /// `[key_dim]`, normalised and scaled.
    pub q: &'a [f32],
    /// `[key_dim]`, normalised.
    pub k: &'a [f32],
    /// `[value_dim]`.
    pub v: &'a [f32],
}

/// `16 · C` columns of the state: all reads first, then each row is changed and read again while it is at hand.
#[inline(always)]
fn columns<L: Level, const C: usize>(
    level: L,
    token: DeltaToken<'_>,
    state: &mut [f32],
    out: &mut [f32],
    column: usize,
) {
    let (width, DeltaToken { decay, beta, q, k, v }) = (out.len(), token);
    let mut reads = [level.splat(0.0); C];
    for (row, k) in state.chunks_exact(width).zip(k) {
        let k = level.splat(*k);
        for (read, row) in reads.iter_mut().zip(row[column..][..C * LANES].as_chunks().0) {
            *read = level.add(*read, level.mul(k, level.load(row)));
        }
    }
    let mut corrections = [level.splat(0.0); C];
    for ((correction, read), v) in corrections.iter_mut().zip(reads).zip(v[column..].as_chunks::<LANES>().0) {
        let mut error = [0.0; LANES];
        level.store(read, &mut error);
        for (error, v) in error.iter_mut().zip(v) {
            *error = beta * (v - decay * *error);
        }
        *correction = level.load(&error);
    }
    let decay = level.splat(decay);
    let mut sums = [level.splat(0.0); C];
    for ((row, k), q) in state.chunks_exact_mut(width).zip(k).zip(q) {
        let (k, q) = (level.splat(*k), level.splat(*q));
        let row = row[column..][..C * LANES].as_chunks_mut().0;
        for ((sum, correction), row) in sums.iter_mut().zip(corrections).zip(row) {
            let new = level.add(level.mul(level.load(row), decay), level.mul(k, correction));
            level.store(new, row);
            *sum = level.add(*sum, level.mul(q, new));
        }
    }
    for (sum, out) in sums.iter().zip(out[column..].as_chunks_mut().0) {
        level.store(*sum, out);
    }
}

#[inline(always)]
fn body<L: Level, const C: usize>(level: L, token: DeltaToken<'_>, state: &mut [f32], out: &mut [f32]) {
    let width = out.len();
    let mut column = 0;
    while column + C * LANES <= width {
        columns::<L, C>(level, token, state, out, column);
        column += C * LANES;
    }
    while column + LANES <= width {
        columns::<L, 1>(level, token, state, out, column);
        column += LANES;
    }
    let DeltaToken { decay, beta, q, k, v } = token;
    for column in column..width {
        let read = state.chunks_exact(width).zip(k).fold(0.0, |read, (row, k)| read + k * row[column]);
        let correction = beta * (v[column] - decay * read);
        let mut sum = 0.0;
        for ((row, k), q) in state.chunks_exact_mut(width).zip(k).zip(q) {
            row[column] = row[column] * decay + k * correction;
            sum += q * row[column];
        }
        out[column] = sum;
    }
}

on_the_widest_level! {
    /// `S ← decay S; S ← S + k (β (v − Sᵀk))ᵀ; out = Sᵀq`, `state` being `S` as `[key_dim, value_dim]`.
    delta_token(token: DeltaToken<'_>, state: &mut [f32], out: &mut [f32]),
    body::<_, 8>, body::<_, 2>, body::<_, 1>
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::cpu::sixteen::Plain;

    #[test]
    fn levels_and_strips_give_the_same_bits_and_the_rule_holds() {
        let numbers = |n: usize, seed: usize| -> Vec<f32> {
            (0..n).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1000.0 - 1.0).collect()
        };
        for (keys, width) in [(16, 16), (128, 128), (7, 37), (32, 200)] {
            let (q, k, v) = (numbers(keys, 1), numbers(keys, 2), numbers(width, 3));
            let token = DeltaToken { decay: 0.75, beta: 0.5, q: &q, k: &k, v: &v };
            let start = numbers(keys * width, 4);
            let run = |form: &dyn Fn(&mut [f32], &mut [f32])| {
                let (mut state, mut out) = (start.clone(), vec![f32::NAN; width]);
                form(&mut state, &mut out);
                (state, out)
            };
            let (state, out) = run(&|state, out| delta_token(token, state, out));
            assert_eq!((&state, &out), (&run(&|state, out| body::<_, 1>(Plain, token, state, out)).0, &out));
            assert_eq!(out, run(&|state, out| body::<_, 3>(Plain, token, state, out)).1);
            for column in 0..width {
                let read: f32 = (0..keys).map(|a| k[a] * start[a * width + column] * 0.75).sum();
                let error = v[column] - read;
                for a in 0..keys {
                    let expected = 0.75 * start[a * width + column] + k[a] * 0.5 * error;
                    assert!((state[a * width + column] - expected).abs() < 1e-4);
                }
            }
        }
    }
}
