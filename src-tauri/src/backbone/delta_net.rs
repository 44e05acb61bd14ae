//! Gated DeltaNet: a short causal convolution, the gated delta rule per head, a gated norm.

use super::delta_rule::{HeadInput, delta_rule};
use super::rows::{Rows, l2_norm, rms_norm};
use super::sequence::{DeltaState, Span};
use crate::kernel::float::{Dense, Residency, sigmoid, silu, softplus};
use crate::model::{DeltaNetShape, DeltaNetWeights, HeadOrder};
use rayon::prelude::*;

/// Multiply-adds below which threads cost more than they save.
const PARALLEL_WORK_MIN: usize = 1 << 21;

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

/// One head of one sequence while it is computed; `out` is `[rows, value_head_dim]`.
struct Head<'a> {
    span: Span,
    h: usize,
    state: &'a mut [f32],
    out: Vec<f32>,
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

    /// Mixes `x`, the rows of each span within its own sequence, and moves that sequence's state past them.
    pub fn forward(&self, x: &Rows, sequences: &mut [(Span, &mut DeltaState)]) -> Rows {
        let DeltaNetShape { key_heads, value_heads, key_head_dim, value_head_dim, .. } = self.shape;
        let (z, a, b) = (x.times(&self.z), x.times(&self.a), x.times(&self.b));
        let mut qkv = x.times(&self.qkv);
        for (span, state) in sequences.iter_mut() {
            let convolved = self.convolve(qkv.part(span.first, span.rows), &mut state.conv);
            qkv.part_mut(span.first, span.rows).copy_from_slice(convolved.values());
        }
        let key_dim = key_heads * key_head_dim;
        for row in qkv.iter_mut() {
            let scale = 1.0 / (key_head_dim as f32).sqrt();
            row[..key_dim].chunks_exact_mut(key_head_dim).for_each(|q| l2_norm(q, scale));
            row[key_dim..2 * key_dim].chunks_exact_mut(key_head_dim).for_each(|k| l2_norm(k, 1.0));
        }

        let mut heads: Vec<Head<'_>> = Vec::with_capacity(sequences.len() * value_heads);
        for (span, state) in sequences {
            let states = state.recurrent.chunks_exact_mut(key_head_dim * value_head_dim).enumerate();
            let out = || vec![0.0; span.rows * value_head_dim];
            heads.extend(states.map(|(h, state)| Head { span: *span, h, state, out: out() }));
        }
        let work = x.len() * value_heads * value_head_dim * 3 * key_head_dim;
        let serial = if work < PARALLEL_WORK_MIN { usize::MAX } else { 1 };
        heads.par_iter_mut().with_min_len(serial).for_each(|Head { span, h, state, out }| {
            let (h, kh, rows) = (*h, self.key_head(*h), span.first..span.first + span.rows);
            let column = |start: usize, width: usize| -> Vec<f32> {
                rows.clone().flat_map(|r| &qkv.row(r)[start..start + width]).copied().collect()
            };
            let decay = |a: f32| self.neg_a[h] * softplus(a + self.dt_bias[h]);
            let input = HeadInput {
                position: span.position,
                q: &column(kh * key_head_dim, key_head_dim),
                k: &column(key_dim + kh * key_head_dim, key_head_dim),
                v: &column(2 * key_dim + h * value_head_dim, value_head_dim),
                log_decay: &rows.clone().map(|r| decay(a.row(r)[h])).collect::<Vec<_>>(),
                beta: &rows.clone().map(|r| sigmoid(b.row(r)[h])).collect::<Vec<_>>(),
            };
            delta_rule(input, state, out);
            for (o, r) in out.chunks_exact_mut(value_head_dim).zip(rows) {
                rms_norm(o, &self.norm, self.eps);
                o.iter_mut().zip(&z.row(r)[h * value_head_dim..]).for_each(|(o, z)| *o *= silu(*z));
            }
        });

        let mut mixed = Rows::zeros(x.len(), value_heads * value_head_dim);
        for Head { span, h, out, .. } in heads {
            for (offset, o) in out.chunks_exact(value_head_dim).enumerate() {
                mixed.row_mut(span.first + offset)[h * value_head_dim..(h + 1) * value_head_dim].copy_from_slice(o);
            }
        }
        mixed.times(&self.output)
    }

    /// The key head that value head `h` reads.
    fn key_head(&self, h: usize) -> usize {
        match self.shape.order {
            HeadOrder::Grouped => h / (self.shape.value_heads / self.shape.key_heads),
            HeadOrder::Tiled => h % self.shape.key_heads,
        }
    }

    /// `silu(Σ_j tap_j · u[t − kernel + 1 + j])` per channel; `before` holds the rows that precede `u`.
    fn convolve(&self, u: &[f32], before: &mut Rows) -> Rows {
        let (width, rows) = (self.taps.width(), u.len() / self.taps.width());
        let mut all = Rows::zeros(before.len() + rows, width);
        let (old, new) = all.values_mut().split_at_mut(before.values().len());
        old.copy_from_slice(before.values());
        new.copy_from_slice(u);

        let mut out = Rows::zeros(rows, width);
        for (t, out) in out.iter_mut().enumerate() {
            for (j, tap) in self.taps.iter().enumerate() {
                let inputs = all.row(t + j).iter().zip(tap);
                out.iter_mut().zip(inputs).for_each(|(out, (u, w))| *out += u * w);
            }
            out.iter_mut().for_each(|out| *out = silu(*out));
        }
        for (r, row) in before.iter_mut().enumerate() {
            row.copy_from_slice(all.row(rows + r));
        }
        out
    }
}
