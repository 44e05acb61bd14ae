//! The experts and the manifest as bytes for workers to fetch, read from the model's files piece by piece: what is given
//! away does not stay in this process's memory.

use std::sync::Arc;

use super::placement::LayerSize;
use crate::model::{LayerWeights, Manifest, Model};
use crate::types::Digest;
use crate::wire::chunk::{CHUNK_BYTES_MAX, ExpertChunk, MANIFEST_EXPERT};
use crate::wire::control::ExpertGet;

/// Why a piece cannot be given.
#[derive(Debug, thiserror::Error)]
pub(super) enum StockError {
    #[error("layer {layer} has no expert {expert}")]
    NoExpert { layer: u16, expert: u16 },
    #[error("expected at most {CHUNK_BYTES_MAX} bytes of a piece, got {length}")]
    Length { length: u32 },
    #[error("cannot read layer {layer}, expert {expert}: {source}")]
    Read { layer: u16, expert: u16, source: std::io::Error },
}

/// See the module.
pub(super) struct Stock {
    model: Arc<Model>,
    manifest: Manifest,
}

impl Stock {
    pub fn new(model: Arc<Model>, manifest: Manifest) -> Self {
        Self { model, manifest }
    }

    pub fn manifest_id(&self) -> Digest {
        self.manifest.id()
    }

    pub fn manifest_bytes(&self) -> u64 {
        self.manifest.bytes().len() as u64
    }

    /// Layers with routed experts.
    pub fn layers(&self) -> usize {
        self.model.weights.moe_layers().count()
    }

    pub fn hidden_size(&self) -> u32 {
        self.model.hyper.hidden_size as u32
    }

    fn layer(&self, layer: u16) -> Option<&LayerWeights> {
        self.model.weights.moe_layers().nth(layer.into())
    }

    /// What placement needs to know of a layer; `None` when the model has no such layer.
    pub fn layer_size(&self, layer: u16) -> Option<LayerSize> {
        LayerSize::of(layer, self.layer(layer)?)
    }

    /// The bytes that `get` asks for; fewer, down to none, where the expert or the manifest ends.
    ///
    /// # Errors
    /// An expert that does not exist, or too many bytes at once.
    pub fn read(&self, get: &ExpertGet) -> Result<ExpertChunk, StockError> {
        if get.length as usize > CHUNK_BYTES_MAX {
            return Err(StockError::Length { length: get.length });
        }
        let start = usize::try_from(get.offset).unwrap_or(usize::MAX);
        let (layer, expert, length) = (get.layer, get.expert, get.length as usize);
        let bytes = if expert == MANIFEST_EXPERT {
            let all = self.manifest.bytes();
            let start = start.min(all.len());
            all[start..all.len().min(start + length)].to_vec()
        } else {
            let weights = self.layer(layer).and_then(|layer| layer.experts.get(usize::from(expert)));
            let weights = weights.ok_or(StockError::NoExpert { layer, expert })?;
            weights.read(start, length).map_err(|source| StockError::Read { layer, expert, source })?
        };
        Ok(ExpertChunk { offset: get.offset, bytes: bytes.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_ends_where_its_expert_or_the_manifest_does() {
        let model = Arc::new(crate::model::embedded().unwrap());
        let stock = Stock::new(Arc::clone(&model), Manifest::of(&model).unwrap());
        let expert = model.weights.layers[1].experts[2].to_bytes();
        for (expert, all) in [(2, &expert[..]), (MANIFEST_EXPERT, stock.manifest.bytes())] {
            let read = |offset, length| stock.read(&ExpertGet { layer: 1, expert, offset, length }).unwrap().bytes;
            let end = all.len() as u64;
            assert_eq!(read(0, 100), all[..100]);
            assert_eq!(read(end - 3, 100), all[all.len() - 3..]);
            assert!(read(end, 9).is_empty() && read(u64::MAX, 9).is_empty());
        }
        let none = stock.read(&ExpertGet { layer: 1, expert: 16, offset: 0, length: 1 });
        assert!(matches!(none, Err(StockError::NoExpert { layer: 1, expert: 16 })));
    }
}
