//! The expert that every row meets, on the backbone.

use super::rows::Rows;
use crate::kernel::float::{FloatExpert, Residency, dot, sigmoid};
use crate::model;

/// The shared expert of one layer.
#[derive(Debug)]
pub struct SharedExpert {
    ffn: FloatExpert,
    gate: Vec<f32>,
}

impl SharedExpert {
    /// Prepares a layer's weights.
    #[must_use]
    pub fn new(weights: &model::SharedExpert, residency: Residency) -> Self {
        Self { ffn: FloatExpert::new(&weights.ffn, residency), gate: weights.gate.clone() }
    }

    /// `sigmoid(x · gate) · ffn(x)` for every row.
    #[must_use]
    pub fn forward(&self, x: &Rows) -> Rows {
        let mut out = Rows::zeros(x.len(), x.width());
        self.ffn.forward(x.values(), out.values_mut());
        for (out, x) in out.iter_mut().zip(x.iter()) {
            let gate = sigmoid(dot(x, &self.gate));
            out.iter_mut().for_each(|out| *out *= gate);
        }
        out
    }
}
