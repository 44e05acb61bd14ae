//! Float experts → blocks of the exact types, byte for byte as the field's reference quantisers make them.
//!
//! A checkpoint in BF16 has no exact form; its experts quantised have one, whether a file keeps them so
//! ([`super::convert`]) or memory does ([`Model::quantise_experts`]). Equal bytes matter: the manifest names experts by
//! content, so everybody who quantises the same checkpoint serves the same experts. Only finite weights that an F16
//! can hold are taken, since scales are F16.

mod blocks;
mod search;

use rayon::prelude::*;

use super::names::GGUF_EXPERTS;
use super::{BlockType, Data, ExpertShape, ExpertWeights, Matrix, Model};

/// Largest magnitude of a weight.
const WEIGHT_MAX: f32 = 65_504.0;

/// Why weights cannot be quantised.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantiseError {
    /// A type that experts are not quantised to.
    #[error("expected one of {}, got {}", type_names(), .0.name())]
    Target(BlockType),
    /// The weights are quantised already.
    #[error(
        "tensor {tensor}: expected float weights (F32, F16 or BF16) to quantise, got {}: a model is quantised from its float checkpoint, once",
        .got.name()
    )]
    Source {
        /// Name of the tensor, as in GGUF.
        tensor: String,
        /// Its type.
        got: BlockType,
    },
    /// A row is not whole blocks.
    #[error(
        "tensor {tensor}: expected rows of whole {} blocks of {}, got {cols}: q8_0 and q4_0 have blocks of 32",
        .ty.name(), .ty.block().0
    )]
    Rows {
        /// Name of the tensor, as in GGUF.
        tensor: String,
        /// The wanted type.
        ty: BlockType,
        /// Weights of a row.
        cols: usize,
    },
    /// A weight that no block can hold.
    #[error(
        "tensor {tensor}: expected finite weights of at most {WEIGHT_MAX} in magnitude, got {got} for expert {expert}"
    )]
    Weight {
        /// Name of the tensor, as in GGUF.
        tensor: String,
        /// Index of the expert.
        expert: usize,
        /// The weight.
        got: String,
    },
}

/// The types that experts can be quantised to, as messages list them.
fn type_names() -> String {
    let exact = BlockType::ALL.into_iter().filter(|ty| ty.is_exact());
    exact.map(|ty| ty.name().to_ascii_lowercase()).collect::<Vec<_>>().join(", ")
}

/// Writes the blocks of `ty` for `x` to `out`; false when `ty` is not an exact type.
///
/// `x` is whole blocks, `out` has [`BlockType::row_bytes`] of them, and every weight is finite and at most 65,504.
pub fn quantise(ty: BlockType, x: &[f32], out: &mut [u8]) -> bool {
    debug_assert_eq!(ty.row_bytes(x.len()), Some(out.len()), "expected whole blocks of {}", ty.name());
    match ty {
        BlockType::Q8_0 => each(x, out, blocks::q8_0),
        BlockType::Q4_0 => each(x, out, blocks::q4_0),
        BlockType::Q4_K => each(x, out, blocks::q4_k),
        BlockType::Q5_K => each(x, out, blocks::q5_k),
        BlockType::Q6_K => each(x, out, blocks::q6_k),
        _ => return false,
    }
    true
}

fn each<const N: usize, const B: usize>(x: &[f32], out: &mut [u8], block: impl Fn(&[f32; N], &mut [u8; B])) {
    for (x, out) in x.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
        block(x, out);
    }
}

/// Gate, up and down.
pub(super) fn parts(expert: &ExpertWeights) -> [&Matrix; 3] {
    [&expert.gate, &expert.up, &expert.down]
}

/// Checks that all of the layer's experts can become `ty`; gives how one is stored then.
pub(super) fn check_layer(
    layer: usize,
    experts: &[ExpertWeights],
    ty: BlockType,
) -> Result<ExpertShape, QuantiseError> {
    if !ty.is_exact() {
        return Err(QuantiseError::Target(ty));
    }
    for matrices in experts.iter().map(parts) {
        for (part, matrix) in GGUF_EXPERTS.into_iter().zip(matrices) {
            let tensor = || format!("blk.{layer}.{part}");
            if !matrix.ty.is_float() {
                return Err(QuantiseError::Source { tensor: tensor(), got: matrix.ty });
            }
            if ty.row_bytes(matrix.cols).is_none() {
                return Err(QuantiseError::Rows { tensor: tensor(), ty, cols: matrix.cols });
            }
        }
    }
    let [gate, up, down] = [ty; 3];
    let (hidden, intermediate) = experts.first().map_or((0, 0), |e| (e.gate.cols, e.gate.rows));
    Ok(ExpertShape { gate, up, down, hidden, intermediate })
}

/// Quantises one matrix of a layer that [`check_layer`] has passed.
///
/// # Errors
/// A weight that is not finite or too large.
pub(super) fn matrix(
    layer: usize,
    part: &str,
    expert: usize,
    matrix: &Matrix,
    ty: BlockType,
    out: &mut [u8],
) -> Result<(), QuantiseError> {
    let row_bytes = out.len().checked_div(matrix.rows).unwrap_or(0);
    for (r, out) in out.chunks_exact_mut(row_bytes.max(1)).enumerate() {
        let tensor = || format!("blk.{layer}.{part}");
        let x = matrix.ty.floats(matrix.row(r));
        let x = x.ok_or_else(|| QuantiseError::Source { tensor: tensor(), got: matrix.ty })?;
        // In this form a NaN is refused too.
        if let Some(got) = x.iter().find(|x| !(0.0..=WEIGHT_MAX).contains(&x.abs())) {
            return Err(QuantiseError::Weight { tensor: tensor(), expert, got: got.to_string() });
        }
        if !quantise(ty, &x, out) {
            return Err(QuantiseError::Target(ty));
        }
    }
    Ok(())
}

impl Model {
    /// Replaces every routed expert by its blocks of `ty`, in memory, a layer at a time; pages of the file that were
    /// only read for this are given back. `done` is told the number of layers after each.
    ///
    /// # Errors
    /// Experts that are not floats, or that blocks of `ty` cannot hold; the model is then of no use.
    pub fn quantise_experts(&mut self, ty: BlockType, mut done: impl FnMut(usize)) -> Result<(), QuantiseError> {
        // All layers first: a refusal after minutes of work helps nobody.
        for (layer, weights) in self.weights.moe_layers().enumerate() {
            check_layer(layer, &weights.experts, ty)?;
        }
        let weights = &mut self.weights;
        let layers = weights.layers.iter_mut().chain(weights.mtp.iter_mut().map(|mtp| &mut mtp.layer));
        for (layer, weights) in layers.enumerate() {
            weights.experts = quantised(layer, &weights.experts, ty)?;
            done(layer + 1);
        }
        Ok(())
    }
}

/// The experts of a layer as blocks of `ty`, all in one allocation.
fn quantised(layer: usize, experts: &[ExpertWeights], ty: BlockType) -> Result<Vec<ExpertWeights>, QuantiseError> {
    let shape = check_layer(layer, experts, ty)?;
    let bytes = shape.bytes();
    let mut all = vec![0; bytes * experts.len()];
    all.par_chunks_mut(bytes.max(1)).zip(experts).enumerate().try_for_each(|(e, (mut out, expert))| {
        for (part, weights) in GGUF_EXPERTS.into_iter().zip(parts(expert)) {
            let size = ty.row_bytes(weights.cols).unwrap_or(0) * weights.rows;
            let (here, rest) = out.split_at_mut(size);
            matrix(layer, part, e, weights, ty, here)?;
            weights.data.release();
            out = rest;
        }
        Ok(())
    })?;
    let all = Data::from(all);
    let cut = (0..experts.len()).map(|e| {
        let expert = all.slice(e * bytes..(e + 1) * bytes).and_then(|d| ExpertWeights::from_bytes(&shape, &d).ok());
        expert.ok_or(QuantiseError::Target(ty))
    });
    cut.collect()
}

#[cfg(test)]
mod tests;
