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

    /// Elements of a head that turn, and of a position's angles.
    #[must_use]
    pub fn dimensions(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// The cosines of all frequencies at `position`, then the sines.
    pub fn angles(&self, position: usize, angles: &mut [f32]) {
        let (cosines, sines) = angles.split_at_mut(self.frequencies.len());
        for ((cosine, sine), frequency) in cosines.iter_mut().zip(sines).zip(&self.frequencies) {
            let (sin, cos) = (position as f64 * frequency).sin_cos();
            (*cosine, *sine) = (cos as f32, sin as f32);
        }
    }

    /// Turns one head by the angles of its position.
    pub fn rotate(&self, head: &mut [f32], angles: &[f32]) {
        let (cosines, sines) = angles.split_at(self.frequencies.len());
        let (first, rest) = head.split_at_mut(self.frequencies.len());
        for (((a, b), cos), sin) in first.iter_mut().zip(rest).zip(cosines).zip(sines) {
            (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
        }
    }
}
