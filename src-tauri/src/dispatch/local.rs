//! Computes every routed expert on the backbone itself.
//!
//! It is the reference of remote dispatch: both go through [`OpenStep`], so both give the same bits.

use super::exact::{Form, OpenStep};
use super::experts::ModelExperts;
use super::{Dispatch, DispatchError, MoeStep, Pending, StepSums};
use crate::kernel::ExpertCompute;
use crate::model::Model;
use std::sync::Arc;

/// Which arithmetic the routed experts use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// The exact form wherever the weights have one.
    Exact,
    /// f32 over dequantised weights everywhere.
    Float,
}

/// Routed experts without a network.
pub struct LocalDispatch {
    experts: Arc<ModelExperts>,
    compute: Arc<dyn ExpertCompute>,
    mode: Mode,
}

impl LocalDispatch {
    /// Computes the experts of `model` with `compute`.
    #[must_use]
    pub fn new(model: Arc<Model>, compute: Arc<dyn ExpertCompute>, mode: Mode) -> Self {
        let experts = Arc::new(ModelExperts::new(model));
        if let (Some(ty), Mode::Exact) = (experts.inexact_type(), mode) {
            tracing::warn!(?ty, "this expert type has no exact form; its experts run in f32 on the backbone only");
        }
        Self { experts, compute, mode }
    }

    /// The experts.
    #[must_use]
    pub fn experts(&self) -> &Arc<ModelExperts> {
        &self.experts
    }
}

impl Dispatch for LocalDispatch {
    fn begin(&self, step: MoeStep) -> Pending {
        let (experts, compute, mode) = (self.experts.clone(), self.compute.clone(), self.mode);
        Box::pin(async move { sums(&experts, &*compute, mode, step) })
    }

    fn begin_here(&self, step: MoeStep) -> Pending {
        self.begin(step)
    }
}

/// The sums of a step, computed where they are asked for.
pub(super) fn sums(
    experts: &ModelExperts,
    compute: &dyn ExpertCompute,
    mode: Mode,
    step: MoeStep,
) -> Result<StepSums, DispatchError> {
    // Float-weight experts have the same bits through the f32 path as through requests, with less copying.
    let form = match (mode, experts.form(step.layer)) {
        (Mode::Exact, Form::Exact) => Form::Exact,
        _ => Form::Here,
    };
    let mut open = OpenStep::prepare(step, form, experts)?;
    while open.is_open() {
        let parts = open.parts(|_| true);
        let requests: Vec<_> = parts.iter().map(|part| part.dispatch.clone()).collect();
        let answers = compute.compute(experts, open.layer(), &requests)?;
        open.add_all(&parts, &answers)?;
        open.close_round();
    }
    Ok(StepSums::here(open.finish(experts)?))
}
