//! An expert ready to be computed, where experts come from, and the one question that a kernel answers.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

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
    /// The kernel has no code for the expert's types.
    #[error(
        "{device}: expected gate and up of one type and all three exact or all three float, got {types:?}: compute such experts on the CPU"
    )]
    Types {
        /// The kernel's hardware.
        device: String,
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
    /// The expert is elsewhere than where the kernel computes.
    #[error("expert {expert}: expected it in the memory of {device}, got it elsewhere: place it first")]
    NotPlaced {
        /// Expert.
        expert: u16,
        /// The kernel's hardware.
        device: String,
    },
    /// The hardware has no room.
    #[error("{device}: expected {bytes} bytes of free memory, got less: hold fewer experts")]
    Full {
        /// The kernel's hardware.
        device: String,
        /// What the expert or the request needs.
        bytes: u64,
    },
    /// The hardware cannot hold such an expert at all.
    #[error(
        "{device}: expected experts of at most {most} bytes, got one of {bytes}: compute them on another GPU or the CPU"
    )]
    TooLarge {
        /// The kernel's hardware.
        device: String,
        /// What the expert needs.
        bytes: u64,
        /// Most that one binding of this hardware holds.
        most: u64,
    },
    /// The hardware went away, and with it every expert that was placed there.
    #[error("{device} is lost: {reason}")]
    Lost {
        /// The kernel's hardware.
        device: String,
        /// What the driver said.
        reason: String,
    },
    /// The hardware's kernels for the expert's types do not return what the numerics define.
    #[error("{device} computes wrongly: {reason}")]
    Wrong {
        /// The kernel's hardware.
        device: String,
        /// Which kernels, and what to do.
        reason: String,
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
///
/// Its weights are in host memory, or wherever the kernel that placed it keeps them.
#[derive(Debug)]
pub struct Expert {
    hidden: usize,
    intermediate: usize,
    types: [BlockType; 3],
    body: Body,
}

#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "experts live in an Arc each, where the size of the other variant is no loss"
)]
enum Body {
    Host { weights: ExpertWeights, exact: Option<Arc<ExactExpert>>, float: Option<FloatExpert> },
    Placed(Placed),
}

/// What a kernel knows of an expert that it has placed; the memory is free again when the last holder lets go.
pub(super) type Placed = Arc<dyn Any + Send + Sync>;

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
        Ok(Self {
            hidden: inner[1],
            intermediate: inner[0],
            types: matrices(weights).map(|m| m.ty),
            body: Body::Host { weights: weights.clone(), exact, float },
        })
    }

    /// The same expert with its weights where a kernel has put them.
    #[cfg_attr(not(feature = "gpu"), expect(dead_code, reason = "only a GPU has memory of its own"))]
    pub(super) fn placed_as(&self, placed: Placed) -> Self {
        Self { body: Body::Placed(placed), ..*self }
    }

    /// What the kernel that placed it knows.
    #[cfg_attr(not(feature = "gpu"), expect(dead_code, reason = "only a GPU has memory of its own"))]
    pub(super) fn placed(&self) -> Option<&Placed> {
        match &self.body {
            Body::Placed(placed) => Some(placed),
            Body::Host { .. } => None,
        }
    }

    /// Whether the exact integer function covers this expert.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.types.iter().all(|ty| ty.is_exact())
    }

    /// Whether all three matrices are floats as stored, so that the float form of a request applies.
    #[must_use]
    pub fn is_float(&self) -> bool {
        self.types.iter().all(|ty| ty.is_float())
    }

    /// Elements of a hidden state.
    #[must_use]
    pub fn hidden(&self) -> usize {
        self.hidden
    }

    /// Inner width.
    #[must_use]
    pub fn intermediate(&self) -> usize {
        self.intermediate
    }

    /// The matrices as stored; `None` when a kernel has placed them elsewhere.
    #[must_use]
    pub fn weights(&self) -> Option<&ExpertWeights> {
        match &self.body {
            Body::Host { weights, .. } => Some(weights),
            Body::Placed(_) => None,
        }
    }

    pub(super) fn exact(&self) -> Option<&Arc<ExactExpert>> {
        match &self.body {
            Body::Host { exact, .. } => exact.as_ref(),
            Body::Placed(_) => None,
        }
    }

    pub(super) fn float(&self) -> Option<&FloatExpert> {
        match &self.body {
            Body::Host { float, .. } => float.as_ref(),
            Body::Placed(_) => None,
        }
    }

    /// Types of gate, up and down.
    #[must_use]
    pub fn types(&self) -> [BlockType; 3] {
        self.types
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
    /// An expert that is not held, not placed or has no such form, a request that contradicts itself, or hardware
    /// that is lost.
    fn compute(&self, experts: &dyn ExpertSource, layer: u16, parts: &[Dispatch])
    -> Result<Vec<Partials>, KernelError>;

    /// The hardware, for people.
    fn device(&self) -> String;

    /// Which hardware, the same for the same hardware whatever is plugged in beside it: `cpu`, or a card's vendor, device
    /// and place.
    fn identity(&self) -> String {
        "cpu".to_owned()
    }

    /// Brings an expert to where this kernel computes: nothing to do for a CPU, an upload for a GPU, whose memory is
    /// free again when the last holder of the expert lets go. A kernel computes only experts that it has placed.
    ///
    /// # Errors
    /// [`KernelError::Full`] when there is no room, [`KernelError::Lost`] when the hardware is gone,
    /// [`KernelError::Wrong`] when it fails its self-test.
    fn place(&self, expert: Expert) -> Result<Expert, KernelError> {
        Ok(expert)
    }

    /// Bytes of experts, as stored, that the hardware's own memory takes now beside those placed; `None` when experts
    /// stay in host memory.
    fn memory_bytes(&self) -> Option<u64> {
        None
    }

    /// Requests that are best under way at once, so that the upload of one overlaps the computation of another.
    fn depth(&self) -> usize {
        1
    }

    /// Gives the hardware and its memory back at once: what is under way is answered as lost, and so is everything until
    /// [`recover`](Self::recover). A kernel in host memory has nothing to give back.
    fn release(&self) {}

    /// Opens lost hardware anew, looking for it as long as `patience`; blocks. Experts placed before are gone and must
    /// be placed again. Hardware that is not lost stays as it is.
    ///
    /// # Errors
    /// [`KernelError::Lost`] when it does not come back.
    fn recover(&self, _patience: Duration) -> Result<(), KernelError> {
        Ok(())
    }
}
