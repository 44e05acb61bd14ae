//! Rotary positions, NeoX pairing: element j turns with element j + rotary_dim / 2; the rest of a head passes through.
//!
//! The model's three-axis positions (M-RoPE) are equal for text, where they are plain RoPE.

use crate::model::HyperParameters;

/// The frequencies.
#[derive(Debug)]
pub struct Rope {
    frequencies: Vec<f64>,
}

impl Rope {
    /// `theta^(−2j / rotary_dim)` for j below half the rotary dimensions.
    #[must_use]
    pub fn new(hyper: &HyperParameters) -> Self {
        let dim = hyper.rotary_dim as f64;
        let frequency = |j| hyper.rope_theta.powf(-2.0 * j as f64 / dim);
        Self { frequencies: (0..hyper.rotary_dim / 2).map(frequency).collect() }
    }

    /// (cos, sin) of every frequency at `position`.
    #[must_use]
    pub fn angles(&self, position: usize) -> Vec<(f32, f32)> {
        let turn = |frequency: &f64| {
            let (sin, cos) = (position as f64 * frequency).sin_cos();
            (cos as f32, sin as f32)
        };
        self.frequencies.iter().map(turn).collect()
    }

    /// Turns one head.
    pub fn rotate(&self, head: &mut [f32], angles: &[(f32, f32)]) {
        let (first, rest) = head.split_at_mut(angles.len());
        for ((a, b), (cos, sin)) in first.iter_mut().zip(rest).zip(angles) {
            (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
        }
    }
}
