//! The expert that every row meets, on the backbone.

use super::parallel::{self, EXP_WORK};
use super::rows::Rows;
use crate::kernel::float::{Dense, Residency, dot, sigmoid, silu_times};
use crate::model;

/// The shared expert of one layer.
#[derive(Debug)]
pub struct SharedExpert {
    gate_proj: Dense,
    up: Dense,
    down: Dense,
    gate: Vec<f32>,
}

/// Where a step's shared expert is computed.
#[derive(Debug, Default)]
pub struct SharedBuffers {
    pub(super) inner: Rows,
    pub(super) factor: Rows,
    /// `[rows, hidden]`: the expert's output, before it is multiplied.
    pub(super) out: Rows,
    /// Per row: what it is multiplied by.
    pub(super) gates: Vec<f32>,
}

impl SharedExpert {
    /// Prepares a layer's weights.
    #[must_use]
    pub fn new(weights: &model::SharedExpert, residency: Residency) -> Self {
        let dense = |matrix| Dense::new(matrix, residency);
        let model::ExpertWeights { gate, up, down } = &weights.ffn;
        Self { gate_proj: dense(gate), up: dense(up), down: dense(down), gate: weights.gate.clone() }
    }

    /// `ffn(x)` and `sigmoid(x · gate)` for every row.
    pub fn forward(&self, x: &Rows, SharedBuffers { inner, factor, out, gates }: &mut SharedBuffers) {
        x.times_all([(&self.gate_proj, &mut *inner), (&self.up, &mut *factor)]);
        let (width, work) = (inner.width(), inner.values().len() * EXP_WORK);
        parallel::rows(work, inner.values_mut(), width, |r, row| silu_times(row, factor.row(r)));
        inner.times_into(&self.down, out);
        gates.clear();
        gates.extend(x.iter().map(|x| sigmoid(dot(x, &self.gate))));
    }
}
