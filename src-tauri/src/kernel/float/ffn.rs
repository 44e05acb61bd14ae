//! The feed-forward network of an expert in f32.

use super::dense::{Dense, Residency};
use super::elementwise::silu_times;
use crate::model::ExpertWeights;

/// An expert's three matrices, ready to multiply.
#[derive(Debug)]
pub struct FloatExpert {
    gate: Dense,
    up: Dense,
    down: Dense,
}

impl FloatExpert {
    /// Prepares `weights`.
    #[must_use]
    pub fn new(weights: &ExpertWeights, residency: Residency) -> Self {
        let dense = |matrix| Dense::new(matrix, residency);
        Self { gate: dense(&weights.gate), up: dense(&weights.up), down: dense(&weights.down) }
    }

    /// The expert's unweighted output; `x` and `out` are `[rows, hidden]`.
    pub fn forward(&self, x: &[f32], out: &mut [f32]) {
        ffn(&self.gate, &self.up, &self.down, x, out);
    }
}

/// `out = down(silu(gate x) · (up x))` for each row of `x`.
pub fn ffn(gate: &Dense, up: &Dense, down: &Dense, x: &[f32], out: &mut [f32]) {
    let rows = x.len() / gate.cols().max(1);
    let mut inner = vec![0.0; rows * gate.rows()];
    let mut factor = vec![0.0; inner.len()];
    Dense::forward_many(&[gate, up], x, rows, &mut [&mut inner, &mut factor]);
    silu_times(&mut inner, &factor);
    down.forward(&inner, rows, out);
}
