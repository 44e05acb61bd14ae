//! The model's own routed experts, prepared when they are first asked for.
//!
//! The backbone holds every expert, so that whatever nobody else computes can be computed here: in the exact
//! form through [`ExpertSource`], and in f32 for rows or types that the exact form cannot hold.

use super::exact::{Form, weigh};
use super::{DispatchError, Route};
use crate::kernel::float::{FloatExpert, Residency};
use crate::kernel::{Expert, ExpertSource};
use crate::model::{BlockType, ExpertWeights, LayerWeights, Model};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// All routed experts of a model; layers as in `ExpertId`, the MTP layer last.
pub struct ModelExperts {
    model: Arc<Model>,
    residency: Residency,
    exact: Vec<Vec<OnceLock<Option<Arc<Expert>>>>>,
    float: Vec<Vec<OnceLock<FloatExpert>>>,
}

fn layers(model: &Model) -> impl Iterator<Item = &LayerWeights> {
    model.weights.layers.iter().chain(model.weights.mtp.iter().map(|mtp| &mtp.layer))
}

impl ModelExperts {
    /// The experts of `model`, none prepared yet.
    #[must_use]
    pub fn new(model: Arc<Model>) -> Self {
        let weights = layers(&model).flat_map(|layer| &layer.experts);
        let residency = Residency::for_floats(weights.flat_map(|e| [&e.gate, &e.up, &e.down]));
        fn cells<T>(model: &Model) -> Vec<Vec<OnceLock<T>>> {
            layers(model).map(|layer| layer.experts.iter().map(|_| OnceLock::new()).collect()).collect()
        }
        Self { residency, exact: cells(&model), float: cells(&model), model }
    }

    /// Experts of a layer; 0 for a layer that the model does not have.
    #[must_use]
    pub fn count(&self, layer: u16) -> usize {
        self.exact.get(usize::from(layer)).map_or(0, Vec::len)
    }

    /// How a layer's experts are computed.
    #[must_use]
    pub fn form(&self, layer: u16) -> Form {
        layers(&self.model).nth(layer.into()).map_or(Form::Float, |layer| Form::of(&layer.experts))
    }

    /// The first quantised type that has neither an exact form nor a float one, to be named to the operator.
    #[must_use]
    pub fn inexact_type(&self) -> Option<BlockType> {
        let here = layers(&self.model).filter(|layer| Form::of(&layer.experts) == Form::Here);
        let mut types = here.filter_map(|layer| layer.experts.first()).flat_map(|e| [e.gate.ty, e.up.ty, e.down.ty]);
        types.find(|ty| !ty.is_exact() && !ty.is_float())
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    fn weights(&self, layer: u16, expert: u16) -> Option<&ExpertWeights> {
        layers(&self.model).nth(layer.into())?.experts.get(usize::from(expert))
    }

    /// Per row `(hidden, routes)` the f32 sum of its weighted experts, ascending expert id; an expert that several
    /// rows meet is read once.
    ///
    /// # Errors
    /// An expert that the layer does not have.
    pub fn float_sums(&self, layer: u16, rows: &[(&[f32], &[Route])]) -> Result<Vec<Vec<f32>>, DispatchError> {
        let mut by_expert = BTreeMap::<u16, Vec<(usize, usize)>>::new();
        for (r, (_, routes)) in rows.iter().enumerate() {
            for (slot, route) in routes.iter().enumerate() {
                by_expert.entry(route.expert).or_default().push((r, slot));
            }
        }
        let mut outputs: Vec<Vec<f32>> = rows.iter().map(|(x, routes)| vec![0.0; x.len() * routes.len()]).collect();
        for (expert, asked) in by_expert {
            let missing = DispatchError::NoExpert { layer, expert };
            let (weights, cells) = match (self.weights(layer, expert), self.float.get(usize::from(layer))) {
                (Some(weights), Some(cells)) => (weights, cells),
                _ => return Err(missing),
            };
            let prepared = cells[usize::from(expert)].get_or_init(|| FloatExpert::new(weights, self.residency));
            let x: Vec<f32> = asked.iter().flat_map(|(r, _)| rows[*r].0).copied().collect();
            let width = x.len() / asked.len();
            let mut y = vec![0.0; x.len()];
            prepared.forward(&x, &mut y);
            for ((r, slot), y) in asked.iter().zip(y.chunks_exact(width)) {
                outputs[*r][slot * width..(slot + 1) * width].copy_from_slice(y);
            }
        }
        Ok(rows.iter().zip(&outputs).map(|((x, routes), outputs)| weigh(routes, outputs, x.len())).collect())
    }
}

impl ExpertSource for ModelExperts {
    fn expert(&self, layer: u16, expert: u16) -> Option<Arc<Expert>> {
        let cell = self.exact.get(usize::from(layer))?.get(usize::from(expert))?;
        let prepare = || match Expert::new(self.weights(layer, expert)?) {
            Ok(prepared) => Some(Arc::new(prepared)),
            Err(error) => {
                tracing::error!(layer, expert, %error, "expert refused");
                None
            }
        };
        cell.get_or_init(prepare).clone()
    }
}

impl std::fmt::Debug for ModelExperts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "experts of {} in {} layers", self.model.name, self.exact.len())
    }
}
