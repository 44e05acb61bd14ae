//! What a model is made of, for people and scripts: `kvasir model inspect`.
//!
//! Everything comes from the headers: no weight is read.

mod slice;
mod text;

use std::collections::BTreeMap;

use serde::Serialize;

pub use slice::SliceFit;

use super::{Architecture, BlockType, ExpertWeights, LayerWeights, Matrix, Mixer, Model};

/// Geometry, element types and bytes of a model. Bytes count weights as stored, without headers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Inspection {
    /// Name for people.
    pub name: String,
    /// `qwen3_5_moe` or `qwen3_moe`.
    pub architecture: &'static str,
    /// Trunk layers.
    pub layers: usize,
    /// Of these, Gated DeltaNet layers.
    pub recurrent_layers: usize,
    /// Multi-token-prediction layers.
    pub mtp_layers: usize,
    /// Elements of a hidden state.
    pub hidden_size: usize,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Longest context.
    pub context_length: usize,
    /// Query heads, key/value heads and elements of a head.
    pub attention: [usize; 3],
    /// Routed experts per layer.
    pub experts: usize,
    /// Routed experts of all layers, MTP's included.
    pub experts_total: usize,
    /// In which ways experts are stored.
    pub expert_kinds: Vec<ExpertKind>,
    /// Experts per token.
    pub experts_per_token: usize,
    /// Inner width of a routed expert.
    pub intermediate_size: usize,
    /// Whether every routed expert goes through the exact integer function.
    pub exact: bool,
    /// All weights.
    pub parameters: u64,
    /// Bytes of all routed experts, MTP's included.
    pub expert_bytes: u64,
    /// Bytes of the largest routed expert.
    pub expert_bytes_max: u64,
    /// Bytes of everything else.
    pub backbone_bytes: u64,
    /// Bytes of routed experts by element type.
    pub expert_types: BTreeMap<&'static str, u64>,
    /// Bytes of everything else by element type.
    pub backbone_types: BTreeMap<&'static str, u64>,
    /// Whether the files have a tokenizer.
    pub tokenizer: bool,
    /// Whether the files have a chat template.
    pub chat_template: bool,
    /// What a slice of the size that was asked about would hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slice: Option<SliceFit>,
}

/// One way in which experts are stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExpertKind {
    /// Element types of gate, up and down.
    pub types: [&'static str; 3],
    /// Bytes of one expert.
    pub bytes: u64,
    /// Experts stored so.
    pub experts: usize,
    /// Layers whose experts are stored so.
    pub layers: usize,
}

/// The kinds by first appearance; the experts of a layer are stored alike.
fn kinds<'a>(layers: impl Iterator<Item = &'a LayerWeights>) -> Vec<ExpertKind> {
    let mut kinds: Vec<ExpertKind> = Vec::new();
    for experts in layers.map(|layer| &layer.experts) {
        let Some(first) = experts.first() else { continue };
        let (types, bytes) = (parts(first).map(|matrix| matrix.ty.name()), expert_bytes(first));
        match kinds.iter_mut().find(|kind| (kind.types, kind.bytes) == (types, bytes)) {
            Some(kind) => (kind.experts, kind.layers) = (kind.experts + experts.len(), kind.layers + 1),
            None => kinds.push(ExpertKind { types, bytes, experts: experts.len(), layers: 1 }),
        }
    }
    kinds
}

fn expert_bytes(expert: &ExpertWeights) -> u64 {
    parts(expert).iter().map(|matrix| matrix.data.len() as u64).sum()
}

/// Sums over one part of the model.
#[derive(Default)]
struct Sum {
    parameters: u64,
    types: BTreeMap<&'static str, u64>,
}

impl Sum {
    fn matrix(&mut self, matrix: &Matrix) {
        self.parameters += (matrix.rows * matrix.cols) as u64;
        *self.types.entry(matrix.ty.name()).or_default() += matrix.data.len() as u64;
    }

    fn matrices<'a>(&mut self, matrices: impl IntoIterator<Item = &'a Matrix>) {
        matrices.into_iter().for_each(|matrix| self.matrix(matrix));
    }

    /// Small tensors are held as f32 whatever the file has.
    fn floats(&mut self, floats: &[f32]) {
        self.parameters += floats.len() as u64;
        *self.types.entry(BlockType::F32.name()).or_default() += 4 * floats.len() as u64;
    }

    fn dense(&mut self, layer: &LayerWeights) {
        self.floats(&layer.input_norm);
        self.floats(&layer.post_norm);
        self.matrix(&layer.router);
        match &layer.mixer {
            Mixer::Attention(a) => {
                self.matrices([&a.q, &a.k, &a.v, &a.output]);
                self.floats(&a.q_norm);
                self.floats(&a.k_norm);
            }
            Mixer::DeltaNet(d) => {
                self.matrices([&d.qkv, &d.z, &d.a, &d.b, &d.output]);
                [&d.conv, &d.neg_a, &d.dt_bias, &d.norm].into_iter().for_each(|floats| self.floats(floats));
            }
        }
        if let Some(shared) = &layer.shared {
            self.matrices(parts(&shared.ffn));
            self.floats(&shared.gate);
        }
    }

    fn bytes(&self) -> u64 {
        self.types.values().sum()
    }
}

fn parts(expert: &ExpertWeights) -> [&Matrix; 3] {
    [&expert.gate, &expert.up, &expert.down]
}

impl Inspection {
    /// Describes `model`.
    #[must_use]
    pub fn of(model: &Model) -> Self {
        let (hyper, weights) = (&model.hyper, &model.weights);
        let mut backbone = Sum::default();
        backbone.matrix(&weights.embedding);
        backbone.matrices(Some(&weights.head).filter(|head| !head.is_same(&weights.embedding)));
        backbone.floats(&weights.final_norm);
        if let Some(mtp) = &weights.mtp {
            backbone.matrix(&mtp.projection);
            backbone.matrices(Some(&mtp.embedding).filter(|own| !own.is_same(&weights.embedding)));
            backbone.matrices(Some(&mtp.head).filter(|own| !own.is_same(&weights.head)));
            for norm in [&mtp.embedding_norm, &mtp.hidden_norm, &mtp.final_norm] {
                backbone.floats(norm);
            }
        }
        let mut routed = Sum::default();
        for layer in weights.moe_layers() {
            backbone.dense(layer);
            routed.matrices(layer.experts.iter().flat_map(parts));
        }
        let experts = || weights.moe_layers().flat_map(|layer| &layer.experts);
        Self {
            name: model.name.clone(),
            architecture: match hyper.architecture {
                Architecture::Qwen35Moe => "qwen3_5_moe",
                Architecture::Qwen3Moe => "qwen3_moe",
            },
            layers: hyper.layers,
            recurrent_layers: hyper.recurrent.iter().filter(|recurrent| **recurrent).count(),
            mtp_layers: hyper.mtp_layers,
            hidden_size: hyper.hidden_size,
            vocab_size: hyper.vocab_size,
            context_length: hyper.context_length,
            attention: [hyper.heads, hyper.kv_heads, hyper.head_dim],
            experts: hyper.experts,
            experts_total: experts().count(),
            expert_kinds: kinds(weights.moe_layers()),
            experts_per_token: hyper.experts_per_token,
            intermediate_size: hyper.intermediate_size,
            exact: experts().flat_map(parts).all(|matrix| matrix.ty.is_exact()),
            parameters: backbone.parameters + routed.parameters,
            expert_bytes: routed.bytes(),
            expert_bytes_max: experts().map(expert_bytes).max().unwrap_or(0),
            backbone_bytes: backbone.bytes(),
            expert_types: routed.types,
            backbone_types: backbone.types,
            tokenizer: model.tokenizer.is_some(),
            chat_template: model.tokenizer.as_ref().is_some_and(super::Tokenizer::has_chat_template),
            slice: None,
        }
    }

    /// The same with what a slice of `bytes` of `model` would hold.
    #[must_use]
    pub fn with_slice(self, model: &Model, bytes: u64) -> Self {
        Self { slice: Some(SliceFit::of(model, bytes)), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_model_counts_to_its_cards_figures() {
        let inspection = Inspection::of(&crate::model::embedded().unwrap());
        assert_eq!(inspection.parameters, 17_602_712 + 4_003_840);
        assert!(inspection.exact && inspection.tokenizer && inspection.chat_template);
        assert_eq!(inspection.expert_bytes_max, 3 * 256 * 210 - 2 * 256 * (210 - 144));
        assert_eq!(inspection.experts_total, 5 * 16);
        assert_eq!(inspection.expert_kinds.iter().map(|kind| kind.layers).sum::<usize>(), 5);
        let file = 13_658_656;
        let weights = inspection.expert_bytes + inspection.backbone_bytes;
        assert!(weights < file && weights > file - 300_000, "{weights}");
    }
}
