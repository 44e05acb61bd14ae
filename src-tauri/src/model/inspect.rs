//! What a model is made of, for people and scripts: `kvasir model inspect`.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

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

/// Whether two matrices are the same bytes, as a tied head and its embedding are.
fn is_shared(a: &Matrix, b: &Matrix) -> bool {
    std::ptr::eq(a.data.as_ptr(), b.data.as_ptr())
}

impl Inspection {
    /// Describes `model`.
    #[must_use]
    pub fn of(model: &Model) -> Self {
        let (hyper, weights) = (&model.hyper, &model.weights);
        let mut backbone = Sum::default();
        backbone.matrix(&weights.embedding);
        backbone.matrices(Some(&weights.head).filter(|head| !is_shared(head, &weights.embedding)));
        backbone.floats(&weights.final_norm);
        if let Some(mtp) = &weights.mtp {
            backbone.matrix(&mtp.projection);
            backbone.matrices(Some(&mtp.embedding).filter(|own| !is_shared(own, &weights.embedding)));
            backbone.matrices(Some(&mtp.head).filter(|own| !is_shared(own, &weights.head)));
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
        let size = |expert: &ExpertWeights| parts(expert).iter().map(|m| m.data.len() as u64).sum();
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
            experts_per_token: hyper.experts_per_token,
            intermediate_size: hyper.intermediate_size,
            exact: experts().flat_map(parts).all(|matrix| matrix.ty.is_exact()),
            parameters: backbone.parameters + routed.parameters,
            expert_bytes: routed.bytes(),
            expert_bytes_max: experts().map(size).max().unwrap_or(0),
            backbone_bytes: backbone.bytes(),
            expert_types: routed.types,
            backbone_types: backbone.types,
            tokenizer: model.tokenizer.is_some(),
            chat_template: model.tokenizer.as_ref().is_some_and(super::Tokenizer::has_chat_template),
        }
    }
}

/// Bytes in decimal units, three digits: 5,308,416 → `5.31 MB`.
fn bytes(n: u64) -> String {
    let (mut value, mut unit) = (n as f64, "B");
    for larger in ["kB", "MB", "GB", "TB"] {
        if value < 999.5 {
            break;
        }
        (value, unit) = (value / 1000.0, larger);
    }
    let decimals = if unit == "B" || value >= 99.95 { 0 } else { 1 + usize::from(value < 9.995) };
    format!("{value:.decimals$} {unit}")
}

fn types(types: &BTreeMap<&'static str, u64>) -> String {
    types.iter().map(|(name, n)| format!("{name} {}", bytes(*n))).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let attention = self.layers - self.recurrent_layers;
        let [heads, kv_heads, head_dim] = self.attention;
        let words = match (self.tokenizer, self.chat_template) {
            (true, true) => "tokenizer and chat template",
            (true, false) => "tokenizer, no chat template",
            (false, _) => "no tokenizer",
        };
        writeln!(f, "{} ({}), {} parameters", self.name, self.architecture, self.parameters)?;
        writeln!(
            f,
            "  layers      {} ({} recurrent, {attention} attention) + {} MTP",
            self.layers, self.recurrent_layers, self.mtp_layers
        )?;
        writeln!(
            f,
            "  hidden      {}, vocabulary {}, context {}",
            self.hidden_size, self.vocab_size, self.context_length
        )?;
        writeln!(f, "  attention   {heads} heads, {kv_heads} key/value heads of {head_dim}")?;
        writeln!(
            f,
            "  experts     {} per layer, top-{}, intermediate {}, {} each, {}",
            self.experts,
            self.experts_per_token,
            self.intermediate_size,
            bytes(self.expert_bytes_max),
            if self.exact { "exact" } else { "float" }
        )?;
        writeln!(f, "  expert bytes    {} ({})", bytes(self.expert_bytes), types(&self.expert_types))?;
        writeln!(f, "  backbone bytes  {} ({})", bytes(self.backbone_bytes), types(&self.backbone_types))?;
        write!(f, "  words       {words}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_read_in_three_digits() {
        let cases = [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (5_308_416, "5.31 MB"), (10_030_000, "10.0 MB")];
        for (n, expected) in cases.into_iter().chain([(999_600, "1.00 MB"), (66_600_000_000, "66.6 GB")]) {
            assert_eq!(bytes(n), expected);
        }
    }

    #[test]
    fn the_embedded_model_counts_to_its_cards_figures() {
        let inspection = Inspection::of(&crate::model::embedded().unwrap());
        assert_eq!(inspection.parameters, 17_602_712 + 4_003_840);
        assert!(inspection.exact && inspection.tokenizer && inspection.chat_template);
        assert_eq!(inspection.expert_bytes_max, 3 * 256 * 210 - 2 * 256 * (210 - 144));
        let file = 13_658_656;
        let weights = inspection.expert_bytes + inspection.backbone_bytes;
        assert!(weights < file && weights > file - 300_000, "{weights}");
    }
}
