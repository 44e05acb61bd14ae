//! What a slice of a given size holds of a model: whole layers first, as placement hands them out.

use std::fmt;

use serde::Serialize;

use super::text::{bytes, grouped};
use super::{Model, expert_bytes};

/// The experts that fit, counted from the first layer on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SliceFit {
    /// Bytes that the slice may take.
    pub bytes: u64,
    /// Bytes that its experts take.
    pub used_bytes: u64,
    /// Experts.
    pub experts: usize,
    /// Layers of which it holds every expert.
    pub whole_layers: usize,
    /// Experts of a further layer.
    pub further_experts: usize,
}

impl SliceFit {
    /// Fills a slice of `bytes` with the experts of `model`.
    #[must_use]
    pub fn of(model: &Model, bytes: u64) -> Self {
        let mut fit = Self { bytes, used_bytes: 0, experts: 0, whole_layers: 0, further_experts: 0 };
        for layer in model.weights.moe_layers() {
            let mut held = 0;
            for size in layer.experts.iter().map(expert_bytes) {
                if fit.used_bytes + size > bytes {
                    break;
                }
                (fit.used_bytes, held) = (fit.used_bytes + size, held + 1);
            }
            fit.experts += held;
            if held < layer.experts.len() {
                fit.further_experts = held;
                break;
            }
            fit.whole_layers += 1;
        }
        fit
    }
}

impl fmt::Display for SliceFit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { whole_layers, further_experts, .. } = self;
        let (experts, layers) = (grouped(self.experts as u64), if *whole_layers == 1 { "layer" } else { "layers" });
        write!(f, "of {} holds {experts} experts: {whole_layers} whole {layers}", bytes(self.bytes))?;
        if *further_experts > 0 { write!(f, " and {further_experts} experts of the next") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_fills_layers_one_after_the_other() {
        let model = crate::model::embedded().unwrap();
        let layer = |i: usize| model.weights.layers[i].experts.iter().map(expert_bytes).sum::<u64>();
        let one = expert_bytes(&model.weights.layers[1].experts[0]);
        let fit = SliceFit::of(&model, layer(0) + 3 * one + 1);
        assert_eq!((fit.experts, fit.whole_layers, fit.further_experts), (19, 1, 3));
        assert_eq!(fit.used_bytes, fit.bytes - 1);
        assert!(fit.to_string().ends_with("holds 19 experts: 1 whole layer and 3 experts of the next"), "{fit}");
        assert_eq!(SliceFit::of(&model, 0).to_string(), "of 0 B holds 0 experts: 0 whole layers");
        let all = SliceFit::of(&model, u64::MAX / 2);
        assert_eq!((all.experts, all.whole_layers, all.further_experts), (80, 5, 0));
    }
}
