//! The whole expert for one row, straight from the definition: what every kernel must return.

use super::matrix::ExactMatrix;
use super::output::{OutOfRange, output};
use super::quantise::{Poison, QuantisedRow};
use super::row_dot::row_dot;
use super::swiglu::swiglu;
use crate::types::GateWeight;

/// Why an expert has no weighted output for a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WeighedError {
    /// The inner row cannot be quantised.
    #[error(transparent)]
    Poison(#[from] Poison),
    /// An output does not fit the grid.
    #[error(transparent)]
    Range(#[from] OutOfRange),
}

/// `gate_weight · down(silu(gate_proj x) · (up_proj x))` on the grid 2^grid: one integer per row of `down`.
///
/// # Errors
/// The inner row is [`Poison`], or an output is [`OutOfRange`].
pub fn expert(
    [gate, up, down]: [&ExactMatrix; 3],
    x: &QuantisedRow,
    weight: GateWeight,
    grid: i8,
) -> Result<Vec<i32>, WeighedError> {
    let inner = QuantisedRow::quantise(&inner_row(gate, up, x))?;
    (0..down.rows()).map(|r| Ok(output(row_dot(down, r, &inner), weight, grid)?)).collect()
}

/// `silu(gate_proj x) · (up_proj x)`, one value per row of the two matrices.
#[must_use]
pub fn inner_row(gate: &ExactMatrix, up: &ExactMatrix, x: &QuantisedRow) -> Vec<f32> {
    (0..gate.rows()).map(|r| swiglu(row_dot(gate, r, x), row_dot(up, r, x))).collect()
}
