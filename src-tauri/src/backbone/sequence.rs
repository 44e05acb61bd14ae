//! What the model remembers of one sequence.

use super::rows::Rows;
use crate::model::{DeltaNetShape, HyperParameters};
use crate::types::GenerationId;
use half::f16;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Sequences begun since the start.
static BEGUN: AtomicU64 = AtomicU64::new(0);

/// The state of one sequence, all layers.
///
/// It only moves forward: recurrent states cannot be cut back to an earlier token, so drafts are kept apart until they
/// are judged. After a failed step it must not be used again.
#[derive(Clone, Debug)]
pub struct Sequence {
    /// Which generation it is of.
    pub generation: GenerationId,
    /// Tokens seen.
    pub position: usize,
    /// Drafts that the last step saw behind them and that nobody has judged ([`super::Want::Drafts`]).
    pub drafts: usize,
    /// One per trunk layer.
    pub layers: Vec<LayerState>,
}

/// The state of one layer.
#[derive(Clone, Debug)]
pub enum LayerState {
    /// Keys and values of all tokens.
    Attention(KvCache),
    /// A fixed amount, whatever the length.
    DeltaNet(DeltaState),
}

/// Keys (after norm and RoPE) and values in half precision, each `[tokens, head_dim]` per key/value head.
#[derive(Clone, Debug)]
pub struct KvCache {
    /// One per key/value head.
    pub keys: Vec<Vec<f16>>,
    /// One per key/value head.
    pub values: Vec<Vec<f16>>,
}

impl KvCache {
    /// A cache before its first token, with the memory of `tokens` tokens taken at once.
    #[must_use]
    pub fn with_room(hyper: &HyperParameters, tokens: usize) -> Self {
        let heads = || (0..hyper.kv_heads).map(|_| Vec::with_capacity(tokens * hyper.head_dim)).collect();
        Self { keys: heads(), values: heads() }
    }

    /// Forgets all but the first `tokens` tokens.
    pub fn truncate(&mut self, tokens: usize, head_dim: usize) {
        self.keys.iter_mut().chain(&mut self.values).for_each(|head| head.truncate(tokens * head_dim));
    }
}

/// Convolution inputs and recurrent matrices; value heads in the order of the model's files.
#[derive(Clone, Debug)]
pub struct DeltaState {
    /// The last `kernel − 1` rows of q | k | v before the convolution, oldest first.
    pub conv: Rows,
    /// `[value_heads, key_head_dim, value_head_dim]`.
    pub recurrent: Vec<f32>,
    /// What the drafts of the last step would change them by.
    pub drafts: DraftInputs,
}

/// What drafts bring to the recurrence of a layer, a row each: enough to move the state past those that are accepted,
/// and some hundredths of the state's size.
#[derive(Clone, Debug, Default)]
pub struct DraftInputs {
    /// q | k | v before the convolution.
    pub qkv: Rows,
    /// Per value head, before its decay.
    pub a: Rows,
    /// Per value head, before its correction rate.
    pub b: Rows,
}

impl DraftInputs {
    /// Becomes the given rows of a step's projections.
    pub fn keep(&mut self, [qkv, a, b]: [&Rows; 3], rows: Range<usize>) {
        self.qkv.pick_from(qkv, rows.clone());
        self.a.pick_from(a, rows.clone());
        self.b.pick_from(b, rows);
    }
}

/// The rows of a step that belong to one sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The first of them.
    pub first: usize,
    /// How many.
    pub rows: usize,
    /// Where the first one stands in its sequence.
    pub position: usize,
    /// How many of the last of them are drafts, which the sequence does not move past yet.
    pub drafts: usize,
}

impl Span {
    /// The rows that are no drafts.
    #[must_use]
    pub fn sure(&self) -> usize {
        self.rows - self.drafts
    }
}

impl Sequence {
    /// A sequence before its first token.
    #[must_use]
    pub fn new(hyper: &HyperParameters) -> Self {
        Self::with_room(hyper, 0)
    }

    /// The same, with the memory of its first `tokens` tokens taken at once: [`state_bytes`] of them, no more.
    #[must_use]
    pub fn with_room(hyper: &HyperParameters, tokens: usize) -> Self {
        let state = |recurrent: &bool| match hyper.delta_net.filter(|_| *recurrent) {
            Some(shape) => LayerState::DeltaNet(DeltaState::new(&shape)),
            None => LayerState::Attention(KvCache::with_room(hyper, tokens)),
        };
        let generation = GenerationId(BEGUN.fetch_add(1, Relaxed) + 1);
        Self { generation, position: 0, drafts: 0, layers: hyper.recurrent.iter().map(state).collect() }
    }
}

/// Bytes of the state of one sequence of `tokens` tokens: keys and values of every token, and the convolution inputs
/// and recurrent matrices, which do not grow.
#[must_use]
pub fn state_bytes(hyper: &HyperParameters, tokens: usize) -> u64 {
    let bytes = |recurrent: &bool| match hyper.delta_net.filter(|_| *recurrent) {
        Some(shape) => {
            let DeltaNetShape { value_heads, key_head_dim, value_head_dim, conv_kernel, .. } = shape;
            let conv = conv_kernel.saturating_sub(1) * channels(&shape);
            size_of::<f32>() * (conv + value_heads * key_head_dim * value_head_dim)
        }
        None => tokens.saturating_mul(cache_bytes(hyper)),
    };
    hyper.recurrent.iter().map(bytes).fold(0, usize::saturating_add) as u64
}

/// Bytes of the keys and values of one token in one attention layer.
pub(super) fn cache_bytes(hyper: &HyperParameters) -> usize {
    size_of::<f16>() * 2 * hyper.kv_heads * hyper.head_dim
}

/// Bytes that `drafts` drafts of one sequence take until they are judged.
pub(super) fn draft_bytes(hyper: &HyperParameters, drafts: usize) -> u64 {
    let row = |shape: DeltaNetShape| size_of::<f32>() * (channels(&shape) + 2 * shape.value_heads);
    let layers = hyper.recurrent.iter().filter(|recurrent| **recurrent).count();
    (drafts * layers * hyper.delta_net.map_or(0, row)) as u64
}

/// Channels of the convolution: q | k | v.
fn channels(shape: &DeltaNetShape) -> usize {
    2 * shape.key_heads * shape.key_head_dim + shape.value_heads * shape.value_head_dim
}

impl DeltaState {
    fn new(shape: &DeltaNetShape) -> Self {
        Self {
            conv: Rows::zeros(shape.conv_kernel.saturating_sub(1), channels(shape)),
            recurrent: vec![0.0; shape.value_heads * shape.key_head_dim * shape.value_head_dim],
            drafts: DraftInputs::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Architecture, HeadOrder};

    /// The published sizes of Qwen3.5-122B-A10B.
    fn qwen_122b() -> HyperParameters {
        HyperParameters {
            architecture: Architecture::Qwen35Moe,
            vocab_size: 248_320,
            hidden_size: 3072,
            layers: 48,
            recurrent: (0..48).map(|layer| (layer + 1) % 4 != 0).collect(),
            heads: 32,
            kv_heads: 2,
            head_dim: 256,
            gated_attention: true,
            rotary_dim: 64,
            rope_theta: 1e7,
            rms_eps: 1e-6,
            experts: 256,
            experts_per_token: 8,
            norm_topk: true,
            intermediate_size: 1024,
            shared_intermediate_size: 1024,
            delta_net: Some(DeltaNetShape {
                key_heads: 16,
                value_heads: 64,
                key_head_dim: 128,
                value_head_dim: 128,
                conv_kernel: 4,
                order: HeadOrder::Tiled,
            }),
            mtp_layers: 1,
            context_length: 262_144,
            eos_token_ids: Vec::new(),
        }
    }

    #[test]
    fn the_state_of_the_122b_model_has_its_published_size() {
        let fixed = state_bytes(&qwen_122b(), 0);
        assert_eq!(fixed, (64 * 128 * 128 + 12_288 * 3) * 4 * 36);
        assert_eq!(fixed >> 20, 149);
        assert_eq!(state_bytes(&qwen_122b(), 1) - fixed, 24_576);
        // Four snapshots would take 600 MB.
        assert_eq!(draft_bytes(&qwen_122b(), 4), 4 * 36 * (12_288 + 128) * 4);
        assert_eq!(draft_bytes(&qwen_122b(), 4) >> 20, 6);
    }

    #[test]
    fn a_sequence_takes_what_was_computed_for_it() {
        let hyper = HyperParameters { recurrent: vec![true, false], layers: 2, ..qwen_122b() };
        let sequence = Sequence::with_room(&hyper, 100);
        let held = sequence.layers.iter().map(|layer| match layer {
            LayerState::Attention(cache) => {
                2 * cache.keys.iter().chain(&cache.values).map(Vec::capacity).sum::<usize>()
            }
            LayerState::DeltaNet(state) => 4 * (state.conv.values().len() + state.recurrent.len()),
        });
        assert_eq!(held.sum::<usize>() as u64, state_bytes(&hyper, 100));
    }
}
