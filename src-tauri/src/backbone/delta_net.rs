//! Gated DeltaNet: a short causal convolution, the gated delta rule per head, a gated norm.

use super::delta_rule::{HeadInput, delta_rule};
use super::rows::{Rows, l2_norm, rms_norm};
use super::sequence::DeltaState;
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

    /// Mixes `x`, whose first row stands at `position`, and moves `state` past it.
    pub fn forward(&self, x: &Rows, state: &mut DeltaState, position: usize) -> Rows {
        let DeltaNetShape { key_heads, value_heads, key_head_dim, value_head_dim, .. } = self.shape;
        let (z, a, b) = (x.times(&self.z), x.times(&self.a), x.times(&self.b));
        let mut qkv = self.convolve(&x.times(&self.qkv), &mut state.conv);
        let key_dim = key_heads * key_head_dim;
        for row in qkv.iter_mut() {
            let scale = 1.0 / (key_head_dim as f32).sqrt();
            row[..key_dim].chunks_exact_mut(key_head_dim).for_each(|q| l2_norm(q, scale));
            row[key_dim..2 * key_dim].chunks_exact_mut(key_head_dim).for_each(|k| l2_norm(k, 1.0));
        }

        let mut by_head = vec![0.0; value_heads * x.len() * value_head_dim];
        let work = by_head.len() * 3 * key_head_dim;
        let serial = if work < PARALLEL_WORK_MIN { usize::MAX } else { 1 };
        let states = state.recurrent.par_chunks_mut(key_head_dim * value_head_dim);
        let outs = by_head.par_chunks_mut(x.len() * value_head_dim);
        states.zip(outs).with_min_len(serial).enumerate().for_each(|(h, (state, out))| {
            let kh = self.key_head(h);
            let column = |start: usize, width: usize| -> Vec<f32> {
                qkv.iter().flat_map(|row| &row[start..start + width]).copied().collect()
            };
            let decay = |a: &[f32]| self.neg_a[h] * softplus(a[h] + self.dt_bias[h]);
            let input = HeadInput {
                position,
                q: &column(kh * key_head_dim, key_head_dim),
                k: &column(key_dim + kh * key_head_dim, key_head_dim),
                v: &column(2 * key_dim + h * value_head_dim, value_head_dim),
                log_decay: &a.iter().map(decay).collect::<Vec<_>>(),
                beta: &b.iter().map(|b| sigmoid(b[h])).collect::<Vec<_>>(),
            };
            delta_rule(input, state, out);
            for (o, z) in out.chunks_exact_mut(value_head_dim).zip(z.iter()) {
                rms_norm(o, &self.norm, self.eps);
                o.iter_mut().zip(&z[h * value_head_dim..]).for_each(|(o, z)| *o *= silu(*z));
            }
        });

        let mut mixed = Rows::zeros(x.len(), value_heads * value_head_dim);
        for (h, head) in by_head.chunks_exact(x.len() * value_head_dim).enumerate() {
            for (row, o) in mixed.iter_mut().zip(head.chunks_exact(value_head_dim)) {
                row[h * value_head_dim..(h + 1) * value_head_dim].copy_from_slice(o);
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
    fn convolve(&self, u: &Rows, before: &mut Rows) -> Rows {
        let mut all = Rows::zeros(before.len() + u.len(), u.width());
        let (old, new) = all.values_mut().split_at_mut(before.values().len());
        old.copy_from_slice(before.values());
        new.copy_from_slice(u.values());

        let mut out = Rows::zeros(u.len(), u.width());
        for (t, out) in out.iter_mut().enumerate() {
            for (j, tap) in self.taps.iter().enumerate() {
                let inputs = all.row(t + j).iter().zip(tap);
                out.iter_mut().zip(inputs).for_each(|(out, (u, w))| *out += u * w);
            }
            out.iter_mut().for_each(|out| *out = silu(*out));
        }
        for (r, row) in before.iter_mut().enumerate() {
            row.copy_from_slice(all.row(u.len() + r));
        }
        out
    }
}
