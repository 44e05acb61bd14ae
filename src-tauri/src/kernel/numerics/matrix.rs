//! A weight matrix that the exact function can read: its type, its scales and its row exponents, checked once.

use crate::model::{BlockType, Matrix};

use super::blocks;

/// Longest row that the overflow proofs cover.
pub const COLUMNS_MAX: usize = 8192;

/// Why a matrix cannot take part in the exact function.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MatrixError {
    /// Its type has no exact form.
    #[error("expected Q4_K, Q5_K, Q6_K, Q8_0 or Q4_0, got {got:?}")]
    NotExact {
        /// The type.
        got: BlockType,
    },
    /// Its rows are empty or longer than the proofs allow.
    #[error("expected rows of 1 to {COLUMNS_MAX} elements, got {got}")]
    Columns {
        /// Elements of a row.
        got: usize,
    },
    /// A block's scale is infinite or NaN.
    #[error("expected finite block scales, got f16 bits {bits:#06x} in row {row}")]
    Scale {
        /// Row of the block.
        row: usize,
        /// The scale's bits.
        bits: u16,
    },
}

/// A matrix of an exact type, shape `[rows, cols]`, as stored.
///
/// **Invariant:** the type is exact, `1 ≤ cols ≤ COLUMNS_MAX`, every scale is finite.
#[derive(Clone, Debug)]
pub struct ExactMatrix {
    stored: Matrix,
    exponents: Vec<i8>,
}

impl ExactMatrix {
    /// Checks `stored` and finds its row exponents; the bytes are shared.
    ///
    /// # Errors
    /// The matrix is outside the exact function.
    pub fn new(stored: &Matrix) -> Result<Self, MatrixError> {
        if !stored.ty.is_exact() {
            return Err(MatrixError::NotExact { got: stored.ty });
        }
        if stored.cols == 0 || stored.cols > COLUMNS_MAX {
            return Err(MatrixError::Columns { got: stored.cols });
        }
        let exponents = (0..stored.rows)
            .map(|row| {
                blocks::largest_exponent(stored.ty, stored.row(row)).map_err(|bits| MatrixError::Scale { row, bits })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { stored: stored.clone(), exponents })
    }

    /// How the elements are stored.
    #[must_use]
    pub fn ty(&self) -> BlockType {
        self.stored.ty
    }

    /// Output size.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.stored.rows
    }

    /// Input size.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.stored.cols
    }

    /// All bytes, row after row.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.stored.data
    }

    /// The bytes of row `r`.
    #[must_use]
    pub fn row(&self, r: usize) -> &[u8] {
        self.stored.row(r)
    }

    /// The bytes of `rows`, as far as there are such rows.
    #[must_use]
    pub fn some_rows(&self, rows: std::ops::Range<usize>) -> &[u8] {
        let (n, end) = (self.stored.row_bytes(), rows.end.min(self.stored.rows));
        &self.stored.data[rows.start.min(end) * n..end * n]
    }

    /// Ed per row: the largest exponent of the row's scales, −24..=5.
    #[must_use]
    pub fn exponents(&self) -> &[i8] {
        &self.exponents
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_infinite_scale_is_refused_with_its_row() {
        let mut data = vec![0u8; 2 * 210];
        data[210 + 208..].copy_from_slice(&0xfc00u16.to_le_bytes());
        let stored = Matrix::new(BlockType::Q6_K, 2, 256, data.into()).expect("shape");
        assert_eq!(ExactMatrix::new(&stored).map(|_| ()), Err(MatrixError::Scale { row: 1, bits: 0xfc00 }));
    }

    #[test]
    fn rows_beyond_the_proofs_are_refused() {
        let stored = Matrix::new(BlockType::Q8_0, 1, 8224, vec![0u8; 257 * 34].into()).expect("shape");
        assert_eq!(ExactMatrix::new(&stored).map(|_| ()), Err(MatrixError::Columns { got: 8224 }));
        let float = Matrix::new(BlockType::F32, 1, 1, vec![0u8; 4].into()).expect("shape");
        assert_eq!(ExactMatrix::new(&float).map(|_| ()), Err(MatrixError::NotExact { got: BlockType::F32 }));
    }

    #[test]
    fn a_row_has_the_exponent_of_its_largest_scale() {
        let mut data = vec![0u8; 3 * 18];
        for (block, scale) in [0x3c00u16, 0x0001, 0x7bff].into_iter().enumerate() {
            data[block * 18..][..2].copy_from_slice(&scale.to_le_bytes());
        }
        let stored = Matrix::new(BlockType::Q4_0, 3, 32, data.into()).expect("shape");
        assert_eq!(ExactMatrix::new(&stored).expect("finite").exponents(), [-10, -24, 5]);
    }
}
