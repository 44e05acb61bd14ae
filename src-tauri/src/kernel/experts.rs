//! An expert ready to be computed, where experts come from, and the one question that a kernel answers.

use std::sync::Arc;

use super::float::{FloatExpert, Residency};
use super::numerics::{ExactMatrix, MatrixError};
use crate::model::{BlockType, ExpertWeights, Matrix};
use crate::wire::work::{Dispatch, Partials};

/// Why a kernel cannot take an expert or a request.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KernelError {
    /// The three matrices do not form an expert.
    #[error("{matrix}: expected shape {expected:?}, got {got:?}")]
    Shape {
        /// Which matrix.
        matrix: &'static str,
        /// Rows and columns that its neighbours imply.
        expected: [usize; 2],
        /// Rows and columns.
        got: [usize; 2],
    },
    /// A matrix of an exact type is outside the numerics.
    #[error("{matrix}: {source}")]
    Matrix {
        /// Which matrix.
        matrix: &'static str,
        /// Why.
        source: MatrixError,
    },
    /// Nobody here holds the expert.
    #[error("expected expert {expert} of layer {layer} among those held, got none")]
    NoExpert {
        /// Layer.
        layer: u16,
        /// Expert.
        expert: u16,
    },
    /// The expert has neither the exact nor the float form: only the backbone's own float path can run it.
    #[error("not exact: local only (expert {expert} stores {types:?})")]
    LocalOnly {
        /// Expert.
        expert: u16,
        /// Types of gate, up and down.
        types: [BlockType; 3],
    },
    /// The request's rows are in a form that its experts do not read.
    #[error("expected {expected} rows for expert {expert}, got {got}")]
    Form {
        /// Expert.
        expert: u16,
        /// "exact" or "float".
        expected: &'static str,
        /// What came.
        got: &'static str,
    },
    /// The request contradicts itself or its experts.
    #[error("{what}: expected {expected}, got {got}")]
    Request {
        /// Which number.
        what: &'static str,
        /// Its value according to the rest.
        expected: usize,
        /// Its value.
        got: usize,
    },
}

/// One routed expert, checked and ready: `down(silu(gate x) · (up x))`.
#[derive(Debug)]
pub struct Expert {
    weights: ExpertWeights,
    exact: Option<Arc<ExactExpert>>,
    float: Option<FloatExpert>,
}

/// The matrices of an expert whose types are all exact.
#[derive(Debug)]
pub(super) struct ExactExpert {
    pub gate: ExactMatrix,
    pub up: ExactMatrix,
    pub down: ExactMatrix,
}

impl Expert {
    /// Checks shapes and, for exact types, every scale; the bytes are shared, not copied.
    ///
    /// # Errors
    /// Shapes that do not fit each other, scales that are not finite, rows longer than the numerics allow.
    pub fn new(weights: &ExpertWeights) -> Result<Self, KernelError> {
        let inner = [weights.gate.rows, weights.gate.cols];
        expect_shape("up", &weights.up, inner)?;
        expect_shape("down", &weights.down, [inner[1], inner[0]])?;
        let all_exact = matrices(weights).iter().all(|m| m.ty.is_exact());
        let exact = all_exact.then(|| ExactExpert::new(weights).map(Arc::new)).transpose()?;
        // As stored: a worker's memory is promised by the stored size.
        let all_float = matrices(weights).iter().all(|m| m.ty.is_float());
        let float = all_float.then(|| FloatExpert::new(weights, Residency::Stored));
        Ok(Self { weights: weights.clone(), exact, float })
    }

    /// Whether the exact integer function covers this expert.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.exact.is_some()
    }

    /// Whether all three matrices are floats as stored, so that the float form of a request applies.
    #[must_use]
    pub fn is_float(&self) -> bool {
        self.float.is_some()
    }

    /// Elements of a hidden state.
    #[must_use]
    pub fn hidden(&self) -> usize {
        self.weights.gate.cols
    }

    /// Inner width.
    #[must_use]
    pub fn intermediate(&self) -> usize {
        self.weights.gate.rows
    }

    /// The matrices as stored.
    #[must_use]
    pub fn weights(&self) -> &ExpertWeights {
        &self.weights
    }

    pub(super) fn exact(&self) -> Option<&Arc<ExactExpert>> {
        self.exact.as_ref()
    }

    pub(super) fn float(&self) -> Option<&FloatExpert> {
        self.float.as_ref()
    }

    /// Types of gate, up and down.
    pub(super) fn types(&self) -> [BlockType; 3] {
        matrices(&self.weights).map(|m| m.ty)
    }
}

impl ExactExpert {
    fn new(weights: &ExpertWeights) -> Result<Self, KernelError> {
        let exact = |matrix, stored| ExactMatrix::new(stored).map_err(|source| KernelError::Matrix { matrix, source });
        Ok(Self {
            gate: exact("gate", &weights.gate)?,
            up: exact("up", &weights.up)?,
            down: exact("down", &weights.down)?,
        })
    }
}

fn matrices(weights: &ExpertWeights) -> [&Matrix; 3] {
    [&weights.gate, &weights.up, &weights.down]
}

fn expect_shape(matrix: &'static str, stored: &Matrix, expected: [usize; 2]) -> Result<(), KernelError> {
    let got = [stored.rows, stored.cols];
    if got == expected { Ok(()) } else { Err(KernelError::Shape { matrix, expected, got }) }
}

/// Who holds experts.
pub trait ExpertSource: Send + Sync {
    /// The expert, or `None` when it is not held.
    fn expert(&self, layer: u16, expert: u16) -> Option<Arc<Expert>>;
}

/// Computes requests: some hardware and its kernels.
pub trait ExpertCompute: Send + Sync {
    /// Answers `parts` of one request as one batch, so that an expert met by several rows is read once.
    ///
    /// Exact rows come back as sums on their grids, float rows as unweighted outputs per assignment. Rows that the
    /// exact form cannot hold come back with a status and zeros; they are no error.
    ///
    /// # Errors
    /// An expert that is not held or has no such form, or a request that contradicts itself.
    fn compute(&self, experts: &dyn ExpertSource, layer: u16, parts: &[Dispatch])
    -> Result<Vec<Partials>, KernelError>;

    /// The hardware, for people.
    fn device(&self) -> String;
}
