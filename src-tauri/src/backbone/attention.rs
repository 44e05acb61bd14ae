//! Full attention over everything a sequence has seen.
//!
//! **Invariant:** the keys are met in fixed absolute blocks of 256, so a row's result does not depend on the rows
//! beside it, on how the prompt was split, or on threads.

use super::rope::Rope;
use super::rows::{Rows, rms_norm};
use super::sequence::{KvCache, Span};
use crate::kernel::float::{Dense, Residency, exp, products, sigmoid, weighted_rows};
use crate::model::{AttentionWeights, HyperParameters};
use rayon::prelude::*;

/// Keys that are reduced together.
const KV_BLOCK: usize = 256;
/// Multiply-adds below which threads cost more than they save.
const PARALLEL_WORK_MIN: usize = 1 << 21;

/// The attention mixer of one layer.
#[derive(Debug)]
pub struct Attention {
    q: Dense,
    k: Dense,
    v: Dense,
    output: Dense,
    q_norm: Vec<f32>,
    k_norm: Vec<f32>,
    heads: usize,
    head_dim: usize,
    gated: bool,
    eps: f32,
}

impl Attention {
    /// Prepares a layer's weights.
    #[must_use]
    pub fn new(weights: &AttentionWeights, hyper: &HyperParameters, residency: Residency) -> Self {
        Self {
            q: Dense::new(&weights.q, residency),
            k: Dense::new(&weights.k, residency),
            v: Dense::new(&weights.v, residency),
            output: Dense::new(&weights.output, residency),
            q_norm: weights.q_norm.clone(),
            k_norm: weights.k_norm.clone(),
            heads: hyper.heads,
            head_dim: hyper.head_dim,
            gated: hyper.gated_attention,
            eps: hyper.rms_eps,
        }
    }

    /// Attends from `x`, the rows of each span within its own sequence, and appends their keys and values to its cache.
    pub fn forward(&self, x: &Rows, sequences: &mut [(Span, &mut KvCache)], rope: &Rope) -> Rows {
        let d = self.head_dim;
        let (mut q, mut k, v) = (x.times(&self.q), x.times(&self.k), x.times(&self.v));
        let q_stride = if self.gated { 2 * d } else { d };
        // Per row: the cache that it sees, and how much of it.
        let mut sees = Vec::with_capacity(x.len());
        for (span, cache) in sequences {
            for offset in 0..span.rows {
                let (r, position) = (span.first + offset, span.position + offset);
                let angles = rope.angles(position);
                for head in q.row_mut(r).chunks_exact_mut(q_stride) {
                    rms_norm(&mut head[..d], &self.q_norm, self.eps);
                    rope.rotate(&mut head[..d], &angles);
                }
                for (h, head) in k.row_mut(r).chunks_exact_mut(d).enumerate() {
                    rms_norm(head, &self.k_norm, self.eps);
                    rope.rotate(head, &angles);
                    cache.keys[h].extend_from_slice(head);
                    cache.values[h].extend_from_slice(&v.row(r)[h * d..(h + 1) * d]);
                }
            }
            let cache: &KvCache = cache;
            sees.extend((0..span.rows).map(|offset| (cache, span.position + offset + 1)));
        }

        let mut mixed = Rows::zeros(x.len(), self.heads * d);
        let work = self.heads * d * sees.iter().map(|(_, tokens)| tokens).sum::<usize>();
        let serial = if work < PARALLEL_WORK_MIN { usize::MAX } else { 1 };
        mixed.values_mut().par_chunks_mut(d).with_min_len(serial).enumerate().for_each(|(i, out)| {
            let (r, h) = (i / self.heads, i % self.heads);
            let head = &q.row(r)[h * q_stride..(h + 1) * q_stride];
            let (cache, tokens) = sees[r];
            let kv_head = h / (self.heads / cache.keys.len());
            let (keys, values) = (&cache.keys[kv_head], &cache.values[kv_head]);
            attend(&head[..d], &keys[..tokens * d], &values[..tokens * d], out);
            out.iter_mut().zip(&head[d..]).for_each(|(out, gate)| *out *= sigmoid(*gate));
        });
        mixed.times(&self.output)
    }
}

/// `out = softmax(q kᵀ / √d) v` over the visible keys, one block after the other with a running maximum.
fn attend(q: &[f32], keys: &[f32], values: &[f32], out: &mut [f32]) {
    let d = q.len();
    let scale = 1.0 / (d as f32).sqrt();
    let (mut max, mut sum) = (f32::NEG_INFINITY, 0.0);
    let mut scores = [0.0; KV_BLOCK];
    out.fill(0.0);
    for (keys, values) in keys.chunks(KV_BLOCK * d).zip(values.chunks(KV_BLOCK * d)) {
        let scores = &mut scores[..keys.len() / d];
        products(keys, q, d, scores);
        scores.iter_mut().for_each(|s| *s *= scale);
        let new_max = scores.iter().copied().fold(max, f32::max);
        let correction = exp(max - new_max);
        scores.iter_mut().for_each(|s| *s = exp(*s - new_max));
        sum = scores.iter().fold(sum * correction, |sum, p| sum + p);
        out.iter_mut().for_each(|out| *out *= correction);
        weighted_rows(scores, values, out);
        max = new_max;
    }
    out.iter_mut().for_each(|out| *out /= sum);
}
