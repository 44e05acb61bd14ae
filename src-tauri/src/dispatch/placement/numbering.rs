//! Numbers the experts of the layers that are placed, one after the other through all layers.

use std::ops::Range;

use super::LayerSize;
use crate::types::ExpertId;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Numbering {
    /// By layer number: its first expert's number and how many it has; (0, 0) for a layer that is not placed.
    by_layer: Vec<(u32, u16)>,
    total: usize,
}

impl Numbering {
    /// Numbers in the order of `layers`.
    #[must_use]
    pub fn of(layers: &[LayerSize]) -> Self {
        let mut by_layer = vec![(0, 0); layers.iter().map(|size| usize::from(size.layer) + 1).max().unwrap_or(0)];
        let mut total = 0;
        for size in layers {
            by_layer[usize::from(size.layer)] = (total as u32, size.experts);
            total += usize::from(size.experts);
        }
        Self { by_layer, total }
    }

    /// Experts of all layers.
    #[must_use]
    pub fn total(&self) -> usize {
        self.total
    }

    /// An expert's number; `None` when it is not placed.
    #[must_use]
    pub fn get(&self, id: ExpertId) -> Option<usize> {
        let (start, experts) = *self.by_layer.get(usize::from(id.layer))?;
        (id.expert < experts).then(|| start as usize + usize::from(id.expert))
    }

    /// The numbers of a layer's experts.
    #[must_use]
    pub fn layer(&self, layer: u16) -> Range<usize> {
        let (start, experts) = self.by_layer.get(usize::from(layer)).copied().unwrap_or_default();
        start as usize..start as usize + usize::from(experts)
    }
}
