//! A model on this machine that may have the experts that are served: found by digest, never by name.
//!
//! The expert at the same place is looked at first, so that a copy of the served file costs no more than what is used
//! of it. Only when that one differs, all experts of the same size are hashed, once, and found wherever they stand.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use rayon::prelude::*;

use crate::model::{ExpertShape, ExpertWeights, Model};
use crate::types::{Digest, ExpertId};

/// See the module. Its calls block on the disk.
pub(super) struct LocalWeights {
    model: Arc<Model>,
    by_digest: OnceLock<HashMap<Digest, ExpertId>>,
}

impl LocalWeights {
    pub fn new(model: Arc<Model>) -> Self {
        Self { model, by_digest: OnceLock::new() }
    }

    /// The expert of this digest and shape; the bytes stay in the model's file.
    pub fn find(&self, id: ExpertId, digest: Digest, shape: &ExpertShape) -> Option<ExpertWeights> {
        let has_shape = |weights: &&ExpertWeights| weights.shape() == *shape;
        if let Some(same_place) = self.at(id).filter(has_shape)
            && same_place.digest().is_ok_and(|got| got == digest)
        {
            return Some(same_place.clone());
        }
        if !self.model.weights.moe_layers().flat_map(|layer| layer.experts.first()).any(|e| has_shape(&e)) {
            return None;
        }
        let id = *self.by_digest.get_or_init(|| self.index()).get(&digest)?;
        self.at(id).filter(has_shape).cloned()
    }

    fn at(&self, id: ExpertId) -> Option<&ExpertWeights> {
        self.model.weights.moe_layers().nth(id.layer.into())?.experts.get(usize::from(id.expert))
    }

    fn index(&self) -> HashMap<Digest, ExpertId> {
        tracing::info!(model = self.model.name, "reading every expert of the local weights, to find them by digest");
        let layers = (0u16..).zip(self.model.weights.moe_layers());
        let ids = layers.flat_map(|(layer, l)| (0u16..).zip(&l.experts).map(move |(expert, w)| (layer, expert, w)));
        let all: Vec<_> = ids.collect();
        let digest = |(layer, expert, weights): (u16, u16, &ExpertWeights)| {
            Some((weights.digest().ok()?, ExpertId { layer, expert }))
        };
        all.into_par_iter().filter_map(digest).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expert_is_found_at_its_place_and_at_any_other() {
        let local = LocalWeights::new(Arc::new(crate::model::embedded().unwrap()));
        let third = ExpertId { layer: 0, expert: 3 };
        let weights = local.at(third).unwrap();
        let (digest, shape) = (weights.digest().unwrap(), weights.shape());
        assert_eq!(local.find(third, digest, &shape).unwrap().to_bytes(), weights.to_bytes());
        assert!(local.by_digest.get().is_none(), "nothing else was read");
        for id in [ExpertId { layer: 2, expert: 9 }, ExpertId { layer: 40, expert: 0 }] {
            assert_eq!(local.find(id, digest, &shape).unwrap().to_bytes(), weights.to_bytes());
        }
        assert!(local.find(third, crate::types::Hex([9; 32]), &shape).is_none());
        let other = ExpertShape { hidden: 2 * shape.hidden, ..shape };
        assert!(local.find(third, digest, &other).is_none());
    }
}
