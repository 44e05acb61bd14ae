//! In which form a layer's experts are computed, and what its requests and answers weigh.

use crate::model::{ExpertWeights, Matrix};
use crate::wire::frame::HEADER_BYTES;
use crate::wire::work::{HIDDEN_MAX, SUPER_BLOCK_BYTES, super_blocks};

/// How a layer's routed experts are computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// In integers, anywhere, with the same bits.
    Exact,
    /// Weights stored as floats: f32 anywhere, weighed and summed by the backbone.
    Float,
    /// In f32 on the backbone only.
    Here,
}

impl Form {
    /// The form of a layer with these experts; one file gives all experts of a layer the same types.
    #[must_use]
    pub fn of(experts: &[ExpertWeights]) -> Self {
        let Some(ExpertWeights { gate, up, down }) = experts.first() else { return Self::Here };
        let all = |holds: fn(&Matrix) -> bool| [gate, up, down].into_iter().all(holds);
        match () {
            () if all(|m| m.ty.is_exact() && m.cols <= HIDDEN_MAX) => Self::Exact,
            () if all(|m| m.ty.is_float()) => Self::Float,
            () => Self::Here,
        }
    }
}

/// The measures of a step's requests and answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Elements of a row.
    pub hidden: usize,
    /// Whether the exact form travels, or the float form.
    pub exact: bool,
}

impl Shape {
    /// Bytes of a request for so many rows and assignments and of its answer, headers included.
    #[must_use]
    pub fn bytes(&self, rows: usize, assignments: usize) -> usize {
        let Self { hidden, exact } = *self;
        let (row, assignment, answers) =
            if exact { (super_blocks(hidden) * SUPER_BLOCK_BYTES, 6, rows) } else { (4 * hidden, 4, assignments) };
        2 * HEADER_BYTES + 8 + rows * (8 + row) + assignments * assignment + rows + 4 * hidden * answers
    }
}
