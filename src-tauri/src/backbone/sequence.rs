//! What the model remembers of one sequence.

use super::rows::Rows;
use crate::model::{DeltaNetShape, HyperParameters};

/// The state of one sequence, all layers.
///
/// It only moves forward: recurrent states cannot be cut back to an earlier token. After a failed step it must not
/// be used again.
#[derive(Clone, Debug)]
pub struct Sequence {
    /// Tokens seen.
    pub position: usize,
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

/// Keys (after norm and RoPE) and values, f32, each `[tokens, head_dim]` per key/value head.
#[derive(Clone, Debug)]
pub struct KvCache {
    /// One per key/value head.
    pub keys: Vec<Vec<f32>>,
    /// One per key/value head.
    pub values: Vec<Vec<f32>>,
}

/// Convolution inputs and recurrent matrices; value heads in the order of the model's files.
#[derive(Clone, Debug)]
pub struct DeltaState {
    /// The last `kernel − 1` rows of q | k | v before the convolution, oldest first.
    pub conv: Rows,
    /// `[value_heads, key_head_dim, value_head_dim]`.
    pub recurrent: Vec<f32>,
}

impl Sequence {
    /// A sequence before its first token.
    #[must_use]
    pub fn new(hyper: &HyperParameters) -> Self {
        let state = |recurrent: &bool| match hyper.delta_net.filter(|_| *recurrent) {
            Some(shape) => LayerState::DeltaNet(DeltaState::new(&shape)),
            None => {
                let empty = vec![Vec::new(); hyper.kv_heads];
                LayerState::Attention(KvCache { keys: empty.clone(), values: empty })
            }
        };
        Self { position: 0, layers: hyper.recurrent.iter().map(state).collect() }
    }
}

impl DeltaState {
    fn new(shape: &DeltaNetShape) -> Self {
        let channels = 2 * shape.key_heads * shape.key_head_dim + shape.value_heads * shape.value_head_dim;
        Self {
            conv: Rows::zeros(shape.conv_kernel.saturating_sub(1), channels),
            recurrent: vec![0.0; shape.value_heads * shape.key_head_dim * shape.value_head_dim],
        }
    }
}
