//! Model files on disk → named, checked tensors in one canonical form.
//!
//! Both containers (GGUF v3 and Hugging Face safetensors) of both architectures end in the same [`Model`]:
//! norms are plain multipliers, decay is `-exp(A_log)`, and the only thing that still differs is the order of
//! DeltaNet value heads, which [`HeadOrder`] names. Weights stay as stored; nothing is requantised.

mod assemble;
pub mod bytes;
mod convert;
mod error;
mod expert;
mod files;
mod gguf;
pub mod huggingface;
pub mod hyper;
pub mod inspect;
pub mod manifest;
mod names;
mod prefetch;
pub mod quantise;
pub(crate) mod room;
pub mod tensor;
mod tensors;
pub mod tokenizer;

use std::path::{Path, PathBuf};

pub use bytes::Data;
pub use convert::{Conversion, ConvertError, convert};
pub use error::ModelError;
pub use expert::{ExpertBytesError, ExpertShape};
pub use huggingface::Checkpoint;
pub use hyper::{Architecture, DeltaNetShape, HeadOrder, HyperParameters};
pub use inspect::Inspection;
pub use manifest::{Manifest, ManifestError};
pub use prefetch::{Prefetch, Reach};
pub use quantise::QuantiseError;
pub use tensor::{BlockType, Matrix};
pub use tokenizer::{Chat, ChatMessage, Ordered, TokenStream, Tokenizer, TokenizerError};

/// Opens `path`: a `.gguf` file, any part of a split one, or a Hugging Face directory.
///
/// # Errors
/// Anything that is not exactly a model of a known architecture, with the file, the tensor or key, what was expected
/// and what was there.
pub fn open(path: &Path) -> Result<Model, ModelError> {
    if !path.is_dir() {
        return gguf::open(path);
    }
    let name = path.canonicalize().ok().and_then(|path| path.file_name().map(|n| n.to_string_lossy().into_owned()));
    Checkpoint::read(path)?.into_model(&name.unwrap_or_else(|| "model".into()))
}

/// The files that make up the model at `path`, as [`open`] finds them.
///
/// # Errors
/// A directory that cannot be listed.
pub fn files_of(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(gguf::part_paths(path));
    }
    let is_part = |path: &PathBuf| {
        path.extension().is_some_and(|e| e == "safetensors") || path.file_name().is_some_and(|n| n == "config.json")
    };
    let entries = std::fs::read_dir(path)?.map(|entry| Ok(entry?.path()));
    let mut files: Vec<PathBuf> = entries.collect::<std::io::Result<_>>()?;
    files.retain(is_part);
    files.sort();
    Ok(files)
}

/// Reads a whole GGUF file from memory; `name` stands in messages and where the metadata names nothing.
///
/// # Errors
/// As [`open`].
pub fn from_gguf(name: &str, data: Data) -> Result<Model, ModelError> {
    gguf::read(name, vec![(name.into(), data)])
}

/// The model that is compiled into the binary (`assets/README.md` describes it).
///
/// # Errors
/// As [`open`]; a test opens it.
pub fn embedded() -> Result<Model, ModelError> {
    static FILE: &[u8] = include_bytes!("../../assets/kvasir-tiny.gguf");
    from_gguf("kvasir-tiny", Data::from(FILE))
}

/// A model, ready to be run or sliced.
#[derive(Debug)]
pub struct Model {
    /// Name for people.
    pub name: String,
    /// Sizes and constants.
    pub hyper: HyperParameters,
    /// The weights.
    pub weights: Weights,
    /// Text ↔ ids, when the files have a vocabulary.
    pub tokenizer: Option<Tokenizer>,
}

/// All weights of a model.
#[derive(Debug)]
pub struct Weights {
    /// `[vocab, hidden]`.
    pub embedding: Matrix,
    /// `[vocab, hidden]`; a clone of `embedding` when tied.
    pub head: Matrix,
    /// `[hidden]`, plain multiplier.
    pub final_norm: Vec<f32>,
    /// The trunk's layers.
    pub layers: Vec<LayerWeights>,
    /// The multi-token-prediction head, if the files have one.
    pub mtp: Option<MtpWeights>,
}

/// One decoder layer.
#[derive(Debug)]
pub struct LayerWeights {
    /// `[hidden]`, before the mixer.
    pub input_norm: Vec<f32>,
    /// Attention or Gated DeltaNet.
    pub mixer: Mixer,
    /// `[hidden]`, before the experts.
    pub post_norm: Vec<f32>,
    /// Router `[experts, hidden]`.
    pub router: Matrix,
    /// The routed experts, index = expert id.
    pub experts: Vec<ExpertWeights>,
    /// The expert that always runs, if the architecture has one.
    pub shared: Option<SharedExpert>,
}

/// The token mixer of a layer.
#[derive(Debug)]
pub enum Mixer {
    /// Full attention.
    Attention(AttentionWeights),
    /// Gated DeltaNet.
    DeltaNet(DeltaNetWeights),
}

/// Full attention. In the gated form rows of `q` are per head `head_dim` of q then `head_dim` of gate.
#[derive(Debug)]
pub struct AttentionWeights {
    /// `[heads · head_dim · (1 or 2), hidden]`.
    pub q: Matrix,
    /// `[kv_heads · head_dim, hidden]`.
    pub k: Matrix,
    /// `[kv_heads · head_dim, hidden]`.
    pub v: Matrix,
    /// `[hidden, heads · head_dim]`.
    pub output: Matrix,
    /// `[head_dim]`.
    pub q_norm: Vec<f32>,
    /// `[head_dim]`.
    pub k_norm: Vec<f32>,
}

/// Gated DeltaNet; value heads stand in the order that [`HyperParameters::delta_net`] names.
#[derive(Debug)]
pub struct DeltaNetWeights {
    /// `[2 · key_dim + value_dim, hidden]`, rows q | k | v.
    pub qkv: Matrix,
    /// `[value_dim, hidden]`.
    pub z: Matrix,
    /// `[value_heads, hidden]`, decay.
    pub a: Matrix,
    /// `[value_heads, hidden]`, beta.
    pub b: Matrix,
    /// `[2 · key_dim + value_dim, kernel]`, the last tap hits the current token.
    pub conv: Vec<f32>,
    /// `[value_heads]`, `-exp(A_log)`.
    pub neg_a: Vec<f32>,
    /// `[value_heads]`.
    pub dt_bias: Vec<f32>,
    /// `[value_head_dim]`, plain multiplier.
    pub norm: Vec<f32>,
    /// `[hidden, value_dim]`.
    pub output: Matrix,
}

/// One routed expert: `down(silu(gate x) · (up x))`.
#[derive(Debug, Clone)]
pub struct ExpertWeights {
    /// `[intermediate, hidden]`.
    pub gate: Matrix,
    /// `[intermediate, hidden]`.
    pub up: Matrix,
    /// `[hidden, intermediate]`.
    pub down: Matrix,
}

/// The shared expert and its scalar gate.
#[derive(Debug)]
pub struct SharedExpert {
    /// The FFN, `intermediate` = `shared_intermediate`.
    pub ffn: ExpertWeights,
    /// `[hidden]`; the output is multiplied by `sigmoid(gate · x)`.
    pub gate: Vec<f32>,
}

/// The multi-token-prediction head: norms, projection, one attention layer.
#[derive(Debug)]
pub struct MtpWeights {
    /// `[vocab, hidden]`; the trunk's unless the head has its own.
    pub embedding: Matrix,
    /// `[vocab, hidden]`; the trunk's unless the head has its own.
    pub head: Matrix,
    /// `[hidden, 2 · hidden]`, columns embedding | hidden state.
    pub projection: Matrix,
    /// `[hidden]`.
    pub embedding_norm: Vec<f32>,
    /// `[hidden]`.
    pub hidden_norm: Vec<f32>,
    /// The layer.
    pub layer: LayerWeights,
    /// `[hidden]`.
    pub final_norm: Vec<f32>,
}
