//! Gated DeltaNet: a short causal convolution, the gated delta rule per head, a gated norm.
//!
//! Each head convolves its own channels on the way, so the convolution's output exists only as far as a head reads it.

use super::delta_rule::{CHUNK, HeadInput, delta_rule};
use super::parallel::{self, EXP_WORK};
use super::rows::{Rows, l2_norm, rms_norm};
use super::sequence::{DeltaState, Span};
use crate::kernel::float::{Dense, Residency, add_products, sigmoid, silu_each, softplus, times_silu};
use crate::model::{DeltaNetShape, DeltaNetWeights, HeadOrder};
use std::ops::Range;

/// The Gated DeltaNet mixer of one layer.
#[derive(Debug)]
pub struct DeltaNet {
    shape: DeltaNetShape,
    qkv: Dense,
    z: Dense,
    a: Dense,
    b: Dense,
    /// One row of channels per tap, the current token's last.
    taps: Rows,
    neg_a: Vec<f32>,
    dt_bias: Vec<f32>,
    norm: Vec<f32>,
    output: Dense,
    eps: f32,
}

/// Where a step's rows are computed.
#[derive(Debug, Default)]
pub struct DeltaNetBuffers {
    qkv: Rows,
    z: Rows,
    a: Rows,
    b: Rows,
    /// Per sequence and key head: its queries, then its keys, `[rows, key_head_dim]` each.
    keys: Rows,
    /// Per sequence and value head: `[rows, value_head_dim]`.
    by_head: Rows,
    mixed: Rows,
}

/// The rows of one sequence before the convolution, and those that precede them.
#[derive(Clone, Copy)]
struct Inputs<'a> {
    before: &'a Rows,
    qkv: &'a Rows,
    span: Span,
}

impl Inputs<'_> {
    /// Row `t` of the span; negative ones precede it.
    fn row(&self, t: isize) -> &[f32] {
        match usize::try_from(t) {
            Ok(t) => self.qkv.row(self.span.first + t),
            Err(_) => self.before.row(self.before.len() - t.unsigned_abs()),
        }
    }
}

impl DeltaNet {
    /// Prepares a layer's weights.
    #[must_use]
    pub fn new(weights: &DeltaNetWeights, shape: DeltaNetShape, eps: f32, residency: Residency) -> Self {
        let dense = |matrix| Dense::new(matrix, residency);
        let mut taps = Rows::zeros(shape.conv_kernel, weights.qkv.rows);
        for (tap, row) in taps.iter_mut().enumerate() {
            row.iter_mut().zip(weights.conv.chunks_exact(shape.conv_kernel)).for_each(|(to, from)| *to = from[tap]);
        }
        Self {
            shape,
            qkv: dense(&weights.qkv),
            z: dense(&weights.z),
            a: dense(&weights.a),
            b: dense(&weights.b),
            taps,
            neg_a: weights.neg_a.clone(),
            dt_bias: weights.dt_bias.clone(),
            norm: weights.norm.clone(),
            output: dense(&weights.output),
            eps,
        }
    }

    /// Mixes `x`, the rows of each span within its own sequence, into `out`, and moves that sequence's state past those
    /// that are no drafts.
    pub fn forward(
        &self,
        x: &Rows,
        sequences: &mut [(Span, &mut DeltaState)],
        buffers: &mut DeltaNetBuffers,
        out: &mut Rows,
    ) {
        let DeltaNetBuffers { qkv, z, a, b, keys, by_head, mixed } = buffers;
        x.times_all([(&self.qkv, &mut *qkv), (&self.z, &mut *z), (&self.a, &mut *a), (&self.b, &mut *b)]);
        let (qkv, z, a, b): (&Rows, &Rows, &Rows, &Rows) = (qkv, z, a, b);
        let DeltaNetShape { key_heads, value_heads, key_head_dim, value_head_dim, conv_kernel, .. } = self.shape;

        let (key_width, width) = (2 * key_heads * key_head_dim, value_heads * value_head_dim);
        keys.reshape(x.len(), key_width);
        let work = x.len() * key_width * (conv_kernel + EXP_WORK);
        parallel::sequences(work, sequences, keys.values_mut(), key_width, |work, span, state, keys| {
            let inputs = Inputs { before: &state.conv, qkv, span };
            let head = span.rows * 2 * key_head_dim;
            parallel::each(work, keys.chunks_exact_mut(head).enumerate(), |(kh, keys)| {
                self.keys_of_head(inputs, kh, keys);
            });
        });

        by_head.reshape(x.len(), width);
        let (keys, work) = (&*keys, x.len() * width * self.recurrence_work());
        parallel::sequences(work, sequences, by_head.values_mut(), width, |work, span, state, out| {
            let DeltaState { conv, recurrent, .. } = &mut **state;
            let inputs = Inputs { before: conv, qkv, span };
            let keys = keys.part(span.first, span.rows);
            let states = recurrent.chunks_exact_mut(key_head_dim * value_head_dim);
            let heads = states.zip(out.chunks_exact_mut(span.rows * value_head_dim)).enumerate();
            parallel::each(work, heads, |(h, (state, out))| {
                let keys = &keys[self.key_head(h) * span.rows * 2 * key_head_dim..][..span.rows * 2 * key_head_dim];
                self.value_head(inputs, h, keys, [z, a, b], state, out);
            });
        });
        for (span, state) in sequences.iter_mut() {
            remember(&mut state.conv, qkv.part(span.first, span.sure()));
            state.drafts.keep([qkv, a, b], span.first + span.sure()..span.first + span.rows);
        }

        if sequences.iter().all(|(span, _)| span.rows == 1) {
            return by_head.times_into(&self.output, out);
        }
        mixed.reshape(x.len(), width);
        for (span, _) in sequences.iter() {
            let heads = by_head.part(span.first, span.rows);
            parallel::rows(heads.len(), mixed.part_mut(span.first, span.rows), width, |r, row| {
                for (row, head) in
                    row.chunks_exact_mut(value_head_dim).zip(heads.chunks_exact(span.rows * value_head_dim))
                {
                    row.copy_from_slice(&head[r * value_head_dim..(r + 1) * value_head_dim]);
                }
            });
        }
        mixed.times_into(&self.output, out);
    }

    /// Moves `state`, which has seen `position` tokens, past the first `count` drafts of its last step, and forgets the
    /// others: the same function of the same numbers as a step of these tokens, so the same bits.
    pub fn accept(&self, state: &mut DeltaState, position: usize, count: usize) {
        let DeltaNetShape { key_heads, value_heads, key_head_dim, value_head_dim, conv_kernel, .. } = self.shape;
        let DeltaState { conv, recurrent, drafts } = state;
        if count > 0 {
            let inputs =
                Inputs { before: conv, qkv: &drafts.qkv, span: Span { first: 0, rows: count, position, drafts: 0 } };
            let (head, width) = (count * 2 * key_head_dim, value_heads * value_head_dim);
            parallel::with_scratch(key_heads * head + count * width, |scratch| {
                let (keys, out) = scratch.split_at_mut(key_heads * head);
                let work = keys.len() * (conv_kernel + EXP_WORK);
                parallel::each(work, keys.chunks_exact_mut(head).enumerate(), |(kh, keys)| {
                    self.keys_of_head(inputs, kh, keys);
                });
                let keys = &*keys;
                let states = recurrent.chunks_exact_mut(key_head_dim * value_head_dim);
                let heads = states.zip(out.chunks_exact_mut(count * value_head_dim)).enumerate();
                parallel::each(count * width * self.recurrence_work(), heads, |(h, (state, out))| {
                    let keys = &keys[self.key_head(h) * head..][..head];
                    self.recur(inputs, h, 0..count, keys, [&drafts.a, &drafts.b], None, state, out);
                });
            });
            remember(conv, drafts.qkv.part(0, count));
        }
        drafts.keep([&Rows::default(); 3], 0..0);
    }

    /// Multiply-adds per row and output of the delta rule and what surrounds it.
    fn recurrence_work(&self) -> usize {
        3 * self.shape.key_head_dim + self.shape.conv_kernel + 2 * EXP_WORK
    }

    /// Queries and keys of a key head, convolved, normed and scaled: `[rows, key_head_dim]` each.
    fn keys_of_head(&self, inputs: Inputs<'_>, kh: usize, out: &mut [f32]) {
        let DeltaNetShape { key_heads, key_head_dim: d, .. } = self.shape;
        let (q, k) = out.split_at_mut(inputs.span.rows * d);
        self.convolve(inputs, kh * d..(kh + 1) * d, 0, q);
        self.convolve(inputs, (key_heads + kh) * d..(key_heads + kh + 1) * d, 0, k);
        let scale = 1.0 / (d as f32).sqrt();
        q.chunks_exact_mut(d).for_each(|q| l2_norm(q, scale));
        k.chunks_exact_mut(d).for_each(|k| l2_norm(k, 1.0));
    }

    /// All rows of value head `h`. Drafts meet a copy of the state, which stays near the core and is forgotten.
    fn value_head(
        &self,
        inputs: Inputs<'_>,
        h: usize,
        keys: &[f32],
        [z, a, b]: [&Rows; 3],
        state: &mut [f32],
        out: &mut [f32],
    ) {
        let (sure, rows) = (inputs.span.sure(), inputs.span.rows);
        let (out, drafted) = out.split_at_mut(sure * self.shape.value_head_dim);
        self.recur(inputs, h, 0..sure, keys, [a, b], Some(z), state, out);
        if sure < rows {
            parallel::with_scratch(state.len(), |copy| {
                copy.copy_from_slice(state);
                self.recur(inputs, h, sure..rows, keys, [a, b], Some(z), copy, drafted);
            });
        }
    }

    /// Some rows of value head `h`: its values, the delta rule and, with `z`, the gated norm; chunk after chunk.
    #[expect(clippy::too_many_arguments, reason = "one head of a recurrence reads many things, each of one kind")]
    fn recur(
        &self,
        inputs: Inputs<'_>,
        h: usize,
        which: Range<usize>,
        keys: &[f32],
        [a, b]: [&Rows; 2],
        z: Option<&Rows>,
        state: &mut [f32],
        out: &mut [f32],
    ) {
        let DeltaNetShape { key_heads, key_head_dim, value_head_dim: d, .. } = self.shape;
        let Span { first, rows, position, .. } = inputs.span;
        let channel = 2 * key_heads * key_head_dim + h * d;
        let (q, k) = keys.split_at(rows * key_head_dim);
        parallel::with_scratch(CHUNK * d, |values| {
            // Pieces end where the chunks of the delta rule do.
            let mut done = which.start;
            while done < which.end {
                let count = (CHUNK - (position + done) % CHUNK).min(which.end - done);
                let v = &mut values[..count * d];
                self.convolve(inputs, channel..channel + d, done, v);
                let (mut log_decay, mut beta) = ([0.0; CHUNK], [0.0; CHUNK]);
                for (i, r) in (first + done..first + done + count).enumerate() {
                    log_decay[i] = self.neg_a[h] * softplus(a.row(r)[h] + self.dt_bias[h]);
                    beta[i] = sigmoid(b.row(r)[h]);
                }
                let input = HeadInput {
                    position: position + done,
                    q: &q[done * key_head_dim..(done + count) * key_head_dim],
                    k: &k[done * key_head_dim..(done + count) * key_head_dim],
                    v,
                    log_decay: &log_decay[..count],
                    beta: &beta[..count],
                };
                let out = &mut out[(done - which.start) * d..][..count * d];
                delta_rule(input, state, out);
                if let Some(z) = z {
                    for (out, r) in out.chunks_exact_mut(d).zip(first + done..) {
                        rms_norm(out, &self.norm, self.eps);
                        times_silu(out, &z.row(r)[h * d..(h + 1) * d]);
                    }
                }
                done += count;
            }
        });
    }

    /// The key head that value head `h` reads.
    fn key_head(&self, h: usize) -> usize {
        match self.shape.order {
            HeadOrder::Grouped => h / (self.shape.value_heads / self.shape.key_heads),
            HeadOrder::Tiled => h % self.shape.key_heads,
        }
    }

    /// `silu(Σ_j tap_j · u[t − kernel + 1 + j])` for some channels of the rows from `start` on, as many as `out` holds.
    fn convolve(&self, inputs: Inputs<'_>, channels: Range<usize>, start: usize, out: &mut [f32]) {
        out.fill(0.0);
        let earliest = start as isize + 1 - self.taps.len() as isize;
        for (out, t) in out.chunks_exact_mut(channels.len()).zip(earliest..) {
            for (tap, t) in self.taps.iter().zip(t..) {
                add_products(out, &inputs.row(t)[channels.clone()], &tap[channels.clone()]);
            }
            silu_each(out);
        }
    }
}

/// Keeps the last rows of `before` followed by `u`, as many as `before` has.
fn remember(before: &mut Rows, u: &[f32]) {
    let (kept, width) = (before.values().len(), before.width());
    let new = u.len().min(kept);
    before.values_mut().copy_within(new.., 0);
    before.values_mut()[kept - new..].copy_from_slice(&u[u.len() - new..]);
    debug_assert!(new.is_multiple_of(width));
}
