//! The experts and the manifest as bytes for workers to fetch, read straight from the model's files.

use std::sync::Arc;

use bytes::Bytes;

use super::placement::LayerSize;
use crate::model::{ExpertWeights, LayerWeights, Manifest, Model};
use crate::types::Digest;
use crate::wire::chunk::{CHUNK_BYTES_MAX, ExpertChunk, MANIFEST_EXPERT};
use crate::wire::control::ExpertGet;

/// Why a piece cannot be given.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum StockError {
    #[error("layer {layer} has no expert {expert}")]
    NoExpert { layer: u16, expert: u16 },
    #[error("expected at most {CHUNK_BYTES_MAX} bytes of a piece, got {length}")]
    Length { length: u32 },
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
        let experts = &self.layer(layer)?.experts;
        let bytes = |e: &ExpertWeights| pieces(e).iter().map(|piece| piece.len() as u64).sum();
        let expert_bytes = experts.iter().map(bytes).max().unwrap_or(0);
        Some(LayerSize { layer, experts: u16::try_from(experts.len()).ok()?, expert_bytes })
    }

    /// The bytes that `get` asks for; fewer, down to none, where the expert or the manifest ends.
    ///
    /// # Errors
    /// An expert that does not exist, or too many bytes at once.
    pub fn read(&self, get: &ExpertGet) -> Result<ExpertChunk, StockError> {
        if get.length as usize > CHUNK_BYTES_MAX {
            return Err(StockError::Length { length: get.length });
        }
        let bytes = if get.expert == MANIFEST_EXPERT {
            range(&[self.manifest.bytes()], get)
        } else {
            let expert = self.layer(get.layer).and_then(|layer| layer.experts.get(usize::from(get.expert)));
            let missing = StockError::NoExpert { layer: get.layer, expert: get.expert };
            range(&pieces(expert.ok_or(missing)?), get)
        };
        Ok(ExpertChunk { offset: get.offset, bytes })
    }
}

/// `gate ‖ up ‖ down` as stored.
fn pieces(expert: &ExpertWeights) -> [&[u8]; 3] {
    [&expert.gate.data, &expert.up.data, &expert.down.data]
}

/// The range of `get` in the pieces laid end to end.
fn range(pieces: &[&[u8]], get: &ExpertGet) -> Bytes {
    let mut skip = usize::try_from(get.offset).unwrap_or(usize::MAX);
    let mut left = get.length as usize;
    let mut out = Vec::with_capacity(left);
    for piece in pieces {
        let from = skip.min(piece.len());
        let part = &piece[from..piece.len().min(from + left)];
        out.extend_from_slice(part);
        skip -= from;
        left -= part.len();
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_runs_over_the_pieces_and_ends_with_them() {
        let read =
            |offset, length| range(&[b"abc", b"", b"defg", b"h"], &ExpertGet { layer: 0, expert: 0, offset, length });
        assert_eq!(read(0, 100), "abcdefgh");
        assert_eq!(read(2, 3), "cde");
        assert_eq!(read(7, 9), "h");
        assert_eq!(read(8, 9), "");
        assert_eq!(read(u64::MAX, 9), "");
    }
}
