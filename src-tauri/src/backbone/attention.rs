//! Full attention over everything a sequence has seen.
//!
//! Keys and values are kept in half precision and met in blocks: a block is read once for all query heads of its
//! key/value head, and for several rows of a prompt.
//!
//! **Invariant:** the keys are met in fixed absolute blocks of 256, and each query by itself, so a row's result does
//! not depend on the rows beside it, on how the prompt was split, or on threads.

use super::parallel;
use super::rope::Rope;
use super::rows::{Rows, rms_norm};
use super::sequence::{KvCache, Span};
use crate::kernel::float::{
    Dense, Factor, Residency, Softmax, accumulate, narrow, products, soften, times_sigmoid, widen,
};
use crate::model::{AttentionWeights, HyperParameters};
use half::f16;

/// Keys that are reduced together.
const KV_BLOCK: usize = 256;
/// Keys or values that are floats at a time: 64 KiB at width 256, which stays near the core.
const WIDENED: usize = 64;
/// Rows of a prompt that meet a block of keys together.
const TILE_ROWS: usize = 4;

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
    kv_heads: usize,
    head_dim: usize,
    gated: bool,
    eps: f32,
}

/// Where a step's queries, keys and values are computed.
#[derive(Debug, Default)]
pub struct AttentionBuffers {
    q: Rows,
    k: Rows,
    v: Rows,
    mixed: Rows,
}

/// Queries that are computed together: some heads of one row, or all heads of some rows of one sequence.
struct Tile<'a> {
    /// As the projection gave them, `[rows, heads · (1 or 2) · head_dim]`.
    q: &'a [f32],
    /// Of the first row.
    position: usize,
    first_head: usize,
    heads: usize,
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
            kv_heads: hyper.kv_heads,
            head_dim: hyper.head_dim,
            gated: hyper.gated_attention,
            eps: hyper.rms_eps,
        }
    }

    /// Attends from `x`, the rows of each span within its own sequence, and appends their keys and values to its
    /// cache; the mixed rows go to `out`.
    pub fn forward(
        &self,
        x: &Rows,
        sequences: &mut [(Span, &mut KvCache)],
        rope: &Rope,
        AttentionBuffers { q, k, v, mixed }: &mut AttentionBuffers,
        out: &mut Rows,
    ) {
        x.times_all([(&self.q, &mut *q), (&self.k, &mut *k), (&self.v, &mut *v)]);
        let width = self.heads * self.head_dim;
        let mut work = 0;
        for (span, cache) in sequences.iter_mut() {
            self.remember(*span, cache, k, v, rope);
            work += 2 * width * span.rows * (span.position + span.rows.div_ceil(2));
        }
        mixed.reshape(x.len(), width);
        let q: &Rows = q;
        parallel::sequences(work, sequences, mixed.values_mut(), width, |work, span, cache, out| {
            self.attend(work, span, cache, q.part(span.first, span.rows), rope, out);
        });
        mixed.times_into(&self.output, out);
    }

    /// Appends the keys, normed and turned, and the values of a span.
    fn remember(&self, span: Span, cache: &mut KvCache, k: &mut Rows, v: &Rows, rope: &Rope) {
        let d = self.head_dim;
        let keep = |head: &[f32], to: &mut Vec<f16>| {
            let end = to.len();
            to.resize(end + d, f16::ZERO);
            narrow(head, &mut to[end..]);
        };
        parallel::with_scratch(rope.dimensions(), |angles| {
            for (r, position) in (span.first..span.first + span.rows).zip(span.position..) {
                rope.angles(position, angles);
                for (h, head) in k.row_mut(r).chunks_exact_mut(d).enumerate() {
                    rms_norm(head, &self.k_norm, self.eps);
                    rope.rotate(head, angles);
                    keep(head, &mut cache.keys[h]);
                    keep(&v.row(r)[h * d..(h + 1) * d], &mut cache.values[h]);
                }
            }
        });
    }

    /// The rows of one sequence: `q` as projected, `out` `[rows, heads · head_dim]`.
    fn attend(&self, work: usize, span: Span, cache: &KvCache, q: &[f32], rope: &Rope, out: &mut [f32]) {
        let (rows, heads) =
            if span.rows < TILE_ROWS { (1, self.heads_at_once(span.rows)) } else { (TILE_ROWS, self.heads) };
        let q_width = q.len() / span.rows;
        parallel::each(work, out.chunks_mut(rows * heads * self.head_dim).enumerate(), |(i, out)| {
            let (row, first_head) = (i * rows * heads / self.heads, i * rows * heads % self.heads);
            let q = &q[row * q_width..(row + rows).min(span.rows) * q_width];
            self.tile(&Tile { q, position: span.position + row, first_head, heads }, q_width, cache, rope, out);
        });
    }

    /// Heads of a row that one thread takes: those of a key/value head, or fewer when there are too few for all threads.
    fn heads_at_once(&self, rows: usize) -> usize {
        let (group, threads) = (self.heads / self.kv_heads, parallel::threads());
        let mut parts = (1..=group).filter(|parts| group.is_multiple_of(*parts));
        group / parts.find(|parts| rows * self.kv_heads * parts >= threads).unwrap_or(group)
    }

    fn tile(&self, tile: &Tile<'_>, q_width: usize, cache: &KvCache, rope: &Rope, out: &mut [f32]) {
        let (d, group) = (self.head_dim, self.heads / self.kv_heads);
        let (rows, at_once) = (tile.q.len() / q_width, group.min(tile.heads));
        let q_stride = if self.gated { 2 * d } else { d };
        let queries = rows * at_once;
        let needed = rope.dimensions() + queries * (d + KV_BLOCK + 3) + WIDENED * d;
        parallel::with_scratch(needed, |scratch| {
            let (angles, scratch) = scratch.split_at_mut(rope.dimensions());
            let (heads, scratch) = scratch.split_at_mut(queries * d);
            for first in (tile.first_head..tile.first_head + tile.heads).step_by(at_once) {
                for (r, heads) in heads.chunks_exact_mut(at_once * d).enumerate() {
                    rope.angles(tile.position + r, angles);
                    let from = tile.q[r * q_width..].chunks_exact(q_stride).skip(first);
                    for (head, from) in heads.chunks_exact_mut(d).zip(from) {
                        head.copy_from_slice(&from[..d]);
                        rms_norm(head, &self.q_norm, self.eps);
                        rope.rotate(head, angles);
                    }
                }
                let (keys, values) = (&cache.keys[first / group], &cache.values[first / group]);
                let columns = (first - tile.first_head) * d..(first - tile.first_head + at_once) * d;
                let mut outs = Strips { values: out, width: tile.heads * d, columns };
                let queries = Queries { heads, d, at_once, seen: tile.position + 1 };
                queries.attend(keys, values, scratch, &mut outs);
                if self.gated {
                    for r in 0..rows {
                        let from = tile.q[r * q_width..].chunks_exact(q_stride).skip(first);
                        outs.row(r).chunks_exact_mut(d).zip(from).for_each(|(out, q)| times_sigmoid(out, &q[d..]));
                    }
                }
            }
        });
    }
}

/// Some columns of each row of a matrix.
struct Strips<'a> {
    values: &'a mut [f32],
    width: usize,
    columns: std::ops::Range<usize>,
}

impl Strips<'_> {
    fn row(&mut self, r: usize) -> &mut [f32] {
        &mut self.values[r * self.width..][self.columns.clone()]
    }
}

/// Queries of one key/value head: `at_once` heads of some consecutive rows, `[rows, at_once, d]`.
struct Queries<'a> {
    heads: &'a [f32],
    d: usize,
    at_once: usize,
    /// Keys that the first row sees; each row sees one more than the row before.
    seen: usize,
}

impl Queries<'_> {
    /// `softmax(q kᵀ / √d) v` over the visible keys, one block after the other with a running maximum.
    fn attend(&self, keys: &[f16], values: &[f16], scratch: &mut [f32], out: &mut Strips<'_>) {
        let Self { heads, d, at_once, seen } = *self;
        let queries = heads.len() / d;
        let (rows, scale) = (queries / at_once, 1.0 / (d as f32).sqrt());
        let (max, scratch) = scratch.split_at_mut(queries);
        let (sum, scratch) = scratch.split_at_mut(queries);
        let (correction, scratch) = scratch.split_at_mut(queries);
        let (scores, widened) = scratch.split_at_mut(queries * KV_BLOCK);
        max.fill(f32::NEG_INFINITY);
        sum.fill(0.0);
        (0..rows).for_each(|r| out.row(r).fill(0.0));

        let all = seen + rows - 1;
        for start in (0..all).step_by(KV_BLOCK) {
            let end = all.min(start + KV_BLOCK);
            for from in (start..end).step_by(WIDENED) {
                let count = WIDENED.min(end - from);
                let widened = &mut widened[..count * d];
                widen(&keys[from * d..(from + count) * d], widened);
                products(widened, heads, d, &mut scores[(from - start) * queries..][..count * queries]);
            }
            // Per row: how many keys of this block it sees.
            let visible = |r: usize| (seen + r).min(end).saturating_sub(start);
            for r in 0..rows {
                let of = r * at_once..(r + 1) * at_once;
                let softmax = Softmax {
                    max: &mut max[of.clone()],
                    sum: &mut sum[of.clone()],
                    correction: &mut correction[of.clone()],
                };
                if visible(r) > 0 {
                    soften(&mut scores[of.start..visible(r) * queries], queries, scale, softmax);
                    let heads = out.row(r).chunks_exact_mut(d).zip(&correction[of]);
                    heads.for_each(|(out, correction)| out.iter_mut().for_each(|out| *out *= correction));
                }
            }
            for from in (start..end).step_by(WIDENED) {
                let count = WIDENED.min(end - from);
                widen(&values[from * d..(from + count) * d], &mut widened[..count * d]);
                for r in 0..rows {
                    let count = visible(r).saturating_sub(from - start).min(count);
                    if count > 0 {
                        let weights = &scores[(from - start) * queries + r * at_once..];
                        accumulate(Factor::columns(weights, queries), &widened[..count * d], d, out.row(r));
                    }
                }
            }
        }
        for r in 0..rows {
            let heads = out.row(r).chunks_exact_mut(d).zip(&sum[r * at_once..]);
            heads.for_each(|(out, sum)| out.iter_mut().for_each(|out| *out /= sum));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(n: usize, seed: u32) -> Vec<f32> {
        (0..n as u32).map(|i| ((i.wrapping_mul(2_654_435_761) ^ seed) % 2001) as f32 / 500.0 - 2.0).collect()
    }

    fn halves(values: &[f32]) -> Vec<f16> {
        let mut out = vec![f16::ZERO; values.len()];
        narrow(values, &mut out);
        out
    }

    /// Attends with `heads` of consecutive rows, the first of which sees `seen` keys.
    fn attend(heads: &[f32], d: usize, at_once: usize, seen: usize, [keys, values]: [&[f16]; 2]) -> Vec<f32> {
        let queries = heads.len() / d;
        let mut scratch = vec![f32::NAN; queries * (KV_BLOCK + 3) + WIDENED * d];
        let mut out = vec![f32::NAN; heads.len()];
        let mut strips = Strips { values: &mut out, width: at_once * d, columns: 0..at_once * d };
        Queries { heads, d, at_once, seen }.attend(keys, values, &mut scratch, &mut strips);
        out
    }

    #[test]
    fn online_blocks_are_the_softmax_and_rows_and_heads_beside_do_not_change_it() {
        let (d, group, rows) = (32, 3, 5);
        for seen in [1, 60, 254, 256, 700] {
            let all = seen + rows - 1;
            let (keys, values) = (halves(&numbers(all * d, 1)), halves(&numbers(all * d, 2)));
            let heads = numbers(rows * group * d, 3);
            let together = attend(&heads, d, group, seen, [&keys, &values]);
            for (i, (q, got)) in heads.chunks_exact(d).zip(together.chunks_exact(d)).enumerate() {
                let n = seen + i / group;
                assert_eq!(got, attend(q, d, 1, n, [&keys, &values]), "query {i} alone");
                let score = |key: &[f16]| q.iter().zip(key).map(|(q, k)| f64::from(*q) * k.to_f64()).sum::<f64>();
                let scores: Vec<f64> = keys.chunks_exact(d).take(n).map(|k| score(k) / (d as f64).sqrt()).collect();
                // A dot product of `d` floats is right to about this, and its exponential to the same share.
                let length =
                    |key: &[f16]| q.iter().zip(key).map(|(q, k)| (f64::from(*q) * k.to_f64()).abs()).sum::<f64>();
                let longest = keys.chunks_exact(d).take(n).map(length).fold(0.0, f64::max) / (d as f64).sqrt();
                let allowed = 2.0 * (d as f64).log2() * longest * f64::from(f32::EPSILON) / 2.0;
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
                let sum: f64 = weights.iter().sum();
                for (c, got) in got.iter().enumerate() {
                    let weighted = weights.iter().zip(values.chunks_exact(d)).map(|(w, v)| w * v[c].to_f64());
                    let expected = weighted.sum::<f64>() / sum;
                    assert!((f64::from(*got) - expected).abs() < allowed, "{got} for {expected}, allowed {allowed}");
                }
            }
        }
    }
}
