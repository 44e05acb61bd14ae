//! The gated delta rule of one head: a matrix that forgets, corrects itself and is read.
//!
//! Two forms of one function. Token by token, with `S` `[key, value]`:
//! `S ← e^g S;  S ← S + k (β (v − Sᵀk))ᵀ;  o = Sᵀq`. And 64 tokens at once, for prompts.
//!
//! **Invariant:** which form a token takes depends on its absolute position alone: the tokens `[64i, 64i + 64)` go
//! together when one call brings all of them, every other token goes by itself. Prefill calls are multiples of 64,
//! so a prompt gives the same bits however it was split.

use super::parallel::with_scratch;
use crate::kernel::float::{DeltaToken, Factor, accumulate, delta_token, exp, products};
use std::ops::Range;

/// Tokens of the chunked form.
pub const CHUNK: usize = 64;

/// One head's input: `tokens` rows, the first at absolute position `position`.
#[derive(Clone, Copy, Debug)]
pub struct HeadInput<'a> {
    /// Position of the first row.
    pub position: usize,
    /// `[tokens, key_dim]`, normalised and scaled.
    pub q: &'a [f32],
    /// `[tokens, key_dim]`, normalised.
    pub k: &'a [f32],
    /// `[tokens, value_dim]`.
    pub v: &'a [f32],
    /// Per token, ≤ 0: the logarithm of what the state keeps.
    pub log_decay: &'a [f32],
    /// Per token, 0..1: how much of the error is corrected.
    pub beta: &'a [f32],
}

impl<'a> HeadInput<'a> {
    fn tokens(&self) -> usize {
        self.beta.len()
    }

    fn part(&self, range: Range<usize>) -> Self {
        let rows = |values: &'a [f32]| {
            let width = values.len() / self.tokens();
            &values[range.start * width..range.end * width]
        };
        Self {
            position: self.position + range.start,
            q: rows(self.q),
            k: rows(self.k),
            v: rows(self.v),
            log_decay: rows(self.log_decay),
            beta: rows(self.beta),
        }
    }
}

/// Runs the rule over `input`, changing `state` `[key_dim, value_dim]` and writing `out` `[tokens, value_dim]`.
pub fn delta_rule(input: HeadInput<'_>, state: &mut [f32], out: &mut [f32]) {
    let width = out.len().checked_div(input.tokens()).unwrap_or(0);
    let mut t = 0;
    while t < input.tokens() {
        let aligned = (input.position + t).is_multiple_of(CHUNK);
        let (form, count): (fn(_, &mut _, &mut _), _) =
            if aligned && input.tokens() - t >= CHUNK { (chunk, CHUNK) } else { (token, 1) };
        form(input.part(t..t + count), state, &mut out[t * width..(t + count) * width]);
        t += count;
    }
}

fn token(input: HeadInput<'_>, state: &mut [f32], out: &mut [f32]) {
    let HeadInput { q, k, v, log_decay, beta, .. } = input;
    delta_token(DeltaToken { decay: exp(log_decay[0]), beta: beta[0], q, k, v }, state, out);
}

/// Rows of a triangular product that are computed together, up to the corner.
const TRIANGLE_ROWS: usize = 4;

/// With `G` the running sum of the log decays and `D_ij = e^(G_i − G_j)` for `i ≥ j`, the corrections solve
/// `(I + strictly_lower(β K Kᵀ ∘ D)) C = β (V − e^G K S)`, row after row; then
/// `O = e^G Q S + (Q Kᵀ ∘ D) C` and `S ← e^G_last S + (e^(G_last − G) K)ᵀ C`.
fn chunk(input: HeadInput<'_>, state: &mut [f32], out: &mut [f32]) {
    let HeadInput { q, k, v, log_decay, beta, .. } = input;
    let (n, key_dim, width) = (beta.len(), k.len() / beta.len(), out.len() / beta.len());
    let (mut sums, mut running) = ([0.0f64; CHUNK], 0.0);
    for (sum, g) in sums.iter_mut().zip(log_decay) {
        running += f64::from(*g);
        *sum = running;
    }
    let kept = |i: usize, j: usize| exp((sums[i] - sums[j]) as f32);
    let from_start = sums.map(|sum| exp(sum as f32));
    with_scratch(2 * n * n + n * width + n * key_dim, |scratch| {
        let (known, scratch) = scratch.split_at_mut(n * n);
        let (seen, scratch) = scratch.split_at_mut(n * n);
        let (corrections, scaled) = scratch.split_at_mut(n * width);
        products(k, k, key_dim, known);
        products(q, k, key_dim, seen);
        for i in 0..n {
            for j in 0..=i {
                let decay = kept(i, j);
                known[i * n + j] = -beta[i] * known[i * n + j] * decay;
                seen[i * n + j] *= decay;
            }
        }

        corrections.fill(0.0);
        accumulate(Factor::rows(k, key_dim), state, width, corrections);
        for (i, (correction, v)) in corrections.chunks_exact_mut(width).zip(v.chunks_exact(width)).enumerate() {
            correction.iter_mut().zip(v).for_each(|(read, v)| *read = beta[i] * (v - from_start[i] * *read));
        }
        for first in (0..n).step_by(TRIANGLE_ROWS) {
            let (earlier, rest) = corrections.split_at_mut(first * width);
            let rows = &mut rest[..TRIANGLE_ROWS.min(n - first) * width];
            accumulate(Factor::rows(&known[first * n..], n), earlier, width, rows);
            for r in 1..rows.len() / width {
                let (before, row) = rows.split_at_mut(r * width);
                let row = &mut row[..width];
                accumulate(Factor::rows(&known[(first + r) * n + first..], n), before, width, row);
            }
        }

        let queries = scaled.chunks_exact_mut(key_dim).zip(q.chunks_exact(key_dim)).zip(&from_start);
        queries.for_each(|((to, q), kept)| to.iter_mut().zip(q).for_each(|(to, q)| *to = q * kept));
        out.fill(0.0);
        accumulate(Factor::rows(scaled, key_dim), state, width, out);
        for (i, out) in out.chunks_mut(TRIANGLE_ROWS * width).enumerate() {
            let first = i * TRIANGLE_ROWS;
            accumulate(Factor::rows(&seen[first * n..], n), &corrections[..first * width], width, out);
            for (r, out) in out.chunks_exact_mut(width).enumerate() {
                let own = &corrections[first * width..(first + r + 1) * width];
                accumulate(Factor::rows(&seen[(first + r) * n + first..], n), own, width, out);
            }
        }

        for (i, (to, k)) in scaled.chunks_exact_mut(key_dim).zip(k.chunks_exact(key_dim)).enumerate() {
            let to_end = kept(n - 1, i);
            to.iter_mut().zip(k).for_each(|(to, k)| *to = k * to_end);
        }
        state.iter_mut().for_each(|s| *s *= from_start[n - 1]);
        accumulate(Factor::columns(scaled, key_dim), corrections, width, state);
    });
}
