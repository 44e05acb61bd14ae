//! The gated delta rule of one head: a matrix that forgets, corrects itself and is read.
//!
//! Two forms of one function. Token by token, with `S` `[key, value]`:
//! `S ← e^g S;  S ← S + k (β (v − Sᵀk))ᵀ;  o = Sᵀq`. And 64 tokens at once, for prompts.
//!
//! **Invariant:** which form a token takes depends on its absolute position alone: the tokens `[64i, 64i + 64)` go
//! together when one call brings all of them, every other token goes by itself. Prefill calls are multiples of 64,
//! so a prompt gives the same bits however it was split.

use crate::kernel::float::{decay_and_add, exp, products, weighted_rows};
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
    let decay = exp(input.log_decay[0]);
    let mut correction = vec![0.0; out.len()];
    weighted_rows(input.k, state, &mut correction);
    for (read, v) in correction.iter_mut().zip(input.v) {
        *read = input.beta[0] * (v - decay * *read);
    }
    decay_and_add(state, decay, input.k, &correction);
    out.fill(0.0);
    weighted_rows(input.q, state, out);
}

/// With `G` the running sum of the log decays and `D_ij = e^(G_i − G_j)` for `i ≥ j`, the corrections solve
/// `(I + strictly_lower(β K Kᵀ ∘ D)) C = β (V − e^G K S)`, row after row; then
/// `O = e^G Q S + (Q Kᵀ ∘ D) C` and `S ← e^G_last S + (e^(G_last − G) K)ᵀ C`.
fn chunk(input: HeadInput<'_>, state: &mut [f32], out: &mut [f32]) {
    let HeadInput { q, k, v, log_decay, beta, .. } = input;
    let (n, key_dim, width) = (beta.len(), k.len() / beta.len(), out.len() / beta.len());
    let mut running = 0.0;
    let sums: Vec<f64> = log_decay.iter().map(|g| (running += f64::from(*g), running).1).collect();
    let kept = |i: usize, j: usize| exp((sums[i] - sums[j]) as f32);
    let from_start: Vec<f32> = sums.iter().map(|sum| exp(*sum as f32)).collect();
    let (mut kk, mut qk) = (vec![0.0; n * n], vec![0.0; n * n]);
    products(k, k, key_dim, &mut kk);
    products(q, k, key_dim, &mut qk);

    let mut corrections = vec![0.0; n * width];
    out.fill(0.0);
    for i in 0..n {
        let decays: Vec<f32> = (0..=i).map(|j| kept(i, j)).collect();
        let (earlier, rest) = corrections.split_at_mut(i * width);
        let correction = &mut rest[..width];
        weighted_rows(&k[i * key_dim..(i + 1) * key_dim], state, correction);
        for (read, v) in correction.iter_mut().zip(&v[i * width..]) {
            *read = beta[i] * (v - from_start[i] * *read);
        }
        let known: Vec<f32> = (0..i).map(|j| -beta[i] * kk[i * n + j] * decays[j]).collect();
        weighted_rows(&known, earlier, correction);

        let out = &mut out[i * width..(i + 1) * width];
        let query: Vec<f32> = q[i * key_dim..(i + 1) * key_dim].iter().map(|q| q * from_start[i]).collect();
        weighted_rows(&query, state, out);
        let seen: Vec<f32> = (0..=i).map(|j| qk[i * n + j] * decays[j]).collect();
        weighted_rows(&seen, &corrections[..(i + 1) * width], out);
    }

    let to_end: Vec<f32> = (0..n).map(|i| kept(n - 1, i)).collect();
    for (a, row) in state.chunks_exact_mut(width).enumerate() {
        row.iter_mut().for_each(|s| *s *= from_start[n - 1]);
        let keys: Vec<f32> = (0..n).map(|i| k[i * key_dim + a] * to_end[i]).collect();
        weighted_rows(&keys, &corrections, row);
    }
}
