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
use crate::model::{BlockType, ExpertWeights, LayerWeights, Manifest, Model};
use crate::types::{Digest, ExpertId};
use shelf::Shelf;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Calls at once that the shelf is meant for: what they use must not push out one another's experts.
const PORTIONS: u64 = 4;

/// An expert that is not what the manifest says.
#[derive(Debug, thiserror::Error)]
#[error(
    "expected the manifest's digest {expected}, got {got}: the file of {model} is damaged or was changed; restore it and \
     start again"
)]
struct Damaged {
    model: String,
    expected: Digest,
    got: Digest,
}

/// All routed experts of a model; layers as in `ExpertId`, the MTP layer last.
pub struct ModelExperts {
    model: Arc<Model>,
    residency: Residency,
    leased: BTreeSet<u16>,
    shelf: Shelf,
    /// Digests of leased experts that were not compared yet.
    unverified: Mutex<HashMap<ExpertId, Digest>>,
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
        let unverified = Mutex::default();
        Self { residency, leased, shelf, unverified, exact: cells(&model), float: cells(&model), model }
    }

    /// The same, with the experts of `layers` read from the file as they are needed and the latest of them kept, up to
    /// `bytes_max`.
    #[must_use]
    pub fn leased(self, layers: impl IntoIterator<Item = u16>, bytes_max: u64) -> Self {
        Self { leased: layers.into_iter().collect(), shelf: Shelf::new(bytes_max), ..self }
    }

    /// The same, where every leased expert must have its digest when it is first read: a damaged file must not be what
    /// workers are judged by.
    #[must_use]
    pub fn checked_by(self, manifest: &Manifest) -> Self {
        let all = self.leased.iter().flat_map(|&layer| {
            let ids =
                (0..u16::try_from(self.count(layer)).unwrap_or(u16::MAX)).map(move |e| ExpertId { layer, expert: e });
            ids.filter_map(|id| Some((id, manifest.digest(id)?)))
        });
        let unverified = Mutex::new(all.collect());
        Self { unverified, ..self }
    }

    /// A leased expert's own copy of its bytes, compared with the manifest the first time.
    fn read(&self, id: ExpertId, weights: &ExpertWeights) -> std::io::Result<ExpertWeights> {
        let own = weights.copied()?;
        let unverified = || self.unverified.lock().unwrap_or_else(PoisonError::into_inner);
        let expected = unverified().get(&id).copied();
        if let Some(expected) = expected {
            let got = own.digest()?;
            if got != expected {
                let model = self.model.name.clone();
                return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, Damaged { model, expected, got }));
            }
            unverified().remove(&id);
        }
        Ok(own)
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

    /// Types of gate, up and down of a layer's experts; one file gives all experts of a layer the same.
    #[must_use]
    pub fn types(&self, layer: u16) -> Option<[BlockType; 3]> {
        let first = layers(&self.model).nth(layer.into())?.experts.first()?;
        Some([first.gate.ty, first.up.ty, first.down.ty])
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
                let own = self.read(ExpertId { layer, expert }, weights);
                let own = own.map_err(|source| DispatchError::Weights { layer, expert, source })?;
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
        let own = self.read(id, weights).inspect_err(|error| {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leased_expert_that_is_not_what_the_manifest_says_is_not_computed_with() {
        let model = Arc::new(crate::model::embedded().unwrap());
        let mut manifest = Manifest::of(&model).unwrap().bytes().to_vec();
        let right = Manifest::from_bytes(&manifest).unwrap();
        let id = ExpertId { layer: 1, expert: 2 };
        let digest = right.digest(id).unwrap().to_string();
        let at = manifest.windows(digest.len()).position(|window| window == digest.as_bytes()).unwrap();
        manifest[at] = if manifest[at] == b'0' { b'1' } else { b'0' };
        let wrong = Manifest::from_bytes(&manifest).unwrap();
        let leased = || ModelExperts::new(Arc::clone(&model)).leased([1], 1 << 20);
        let experts = leased().checked_by(&wrong);
        assert!(experts.expert(1, 2).is_none(), "its digest is another");
        assert!(experts.expert(1, 2).is_none(), "nor the second time");
        assert!(experts.expert(1, 3).is_some());
        let error = experts.read(id, experts.weights(1, 2).unwrap()).unwrap_err().to_string();
        assert!(error.contains(&digest) && error.contains("restore it"), "{error}");
        assert!(leased().checked_by(&right).expert(1, 2).is_some());
    }
}
