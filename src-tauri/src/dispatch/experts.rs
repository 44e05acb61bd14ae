//! The model's own routed experts, for whatever nobody else computes: prepared when they are first asked for.
//!
//! They come in the exact form through [`ExpertSource`], and in f32 for rows or types that the exact form cannot hold.
//! Those of layers that stay here are kept for good. Those that workers hold are needed now and then only, so they are
//! read from the file one by one and the latest few of them kept: with all layers leased, a model takes no more memory
//! here than its dense part and that [`Shelf`].

mod shelf;

use super::exact::{Form, weigh};
use super::{DispatchError, Route};
use crate::kernel::float::{FloatExpert, Residency};
use crate::kernel::{Expert, ExpertSource};
use crate::model::{BlockType, ExpertWeights, LayerWeights, Model};
use crate::types::ExpertId;
use shelf::Shelf;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

/// Calls at once that the shelf is meant for: what they use must not push out one another's experts.
const PORTIONS: u64 = 4;

/// All routed experts of a model; layers as in `ExpertId`, the MTP layer last.
pub struct ModelExperts {
    model: Arc<Model>,
    residency: Residency,
    leased: BTreeSet<u16>,
    shelf: Shelf,
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
        let (leased, shelf) = (BTreeSet::new(), Shelf::new(0));
        Self { residency, leased, shelf, exact: cells(&model), float: cells(&model), model }
    }

    /// The same, with the experts of `layers` read from the file as they are needed and the latest of them kept, up to
    /// `bytes_max`.
    #[must_use]
    pub fn leased(self, layers: impl IntoIterator<Item = u16>, bytes_max: u64) -> Self {
        Self { leased: layers.into_iter().collect(), shelf: Shelf::new(bytes_max), ..self }
    }

    /// Bytes of leased layers' experts that are kept now.
    #[must_use]
    pub fn shelf_bytes(&self) -> u64 {
        self.shelf.bytes()
    }

    /// Most experts of a layer that should be computed in one call, so that those in use are not many more than those
    /// that are kept.
    #[must_use]
    pub fn at_once(&self, layer: u16) -> usize {
        let bytes = self.weights(layer, 0).map_or(0, |weights| weights.shape().bytes() as u64);
        if !self.leased.contains(&layer) || bytes == 0 {
            return usize::MAX;
        }
        usize::try_from(self.shelf.bytes_max() / PORTIONS / bytes).unwrap_or(usize::MAX).max(1)
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
    /// An expert that the layer does not have, or that cannot be read.
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
            let passing;
            let prepared = if self.leased.contains(&layer) {
                let own = weights.copied().map_err(|source| DispatchError::Weights { layer, expert, source })?;
                passing = FloatExpert::new(&own, Residency::Stored);
                &passing
            } else {
                cells[usize::from(expert)].get_or_init(|| FloatExpert::new(weights, self.residency))
            };
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

/// An expert in its exact form; one that has none is named in the log.
fn prepare(id: ExpertId, weights: &ExpertWeights) -> Option<Arc<Expert>> {
    match Expert::new(weights) {
        Ok(prepared) => Some(Arc::new(prepared)),
        Err(error) => {
            tracing::error!(id.layer, id.expert, %error, "expert refused");
            None
        }
    }
}

impl ModelExperts {
    /// An expert that is not here for good.
    fn passing(&self, id: ExpertId) -> Option<Arc<Expert>> {
        if let Some(kept) = self.shelf.get(id) {
            return Some(kept);
        }
        let weights = self.weights(id.layer, id.expert)?;
        let own = weights.copied().inspect_err(|error| {
            tracing::error!(id.layer, id.expert, %error, "expert cannot be read from the model's file");
        });
        let prepared = prepare(id, &own.ok()?)?;
        self.shelf.put(id, &prepared, weights.shape().bytes() as u64);
        Some(prepared)
    }
}

impl ExpertSource for ModelExperts {
    fn expert(&self, layer: u16, expert: u16) -> Option<Arc<Expert>> {
        let id = ExpertId { layer, expert };
        if self.leased.contains(&layer) {
            return self.passing(id);
        }
        let cell = self.exact.get(usize::from(layer))?.get(usize::from(expert))?;
        let prepare = || prepare(id, self.weights(layer, expert)?);
        cell.get_or_init(prepare).clone()
    }
}

impl std::fmt::Debug for ModelExperts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "experts of {} in {} layers", self.model.name, self.exact.len())
    }
}
