//! Sizes and constants of a model, the same for both containers, and the bounds they are held to.
//!
//! **Invariant:** after `check::all` every product of two sizes fits, every division of heads is whole, and every
//! list that a size implies is short enough to allocate.

/// Which family of models.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Architecture {
    /// `qwen3_5_moe` / `qwen35moe`: Gated DeltaNet and gated attention, shared expert.
    Qwen35Moe,
    /// `qwen3_moe` / `qwen3moe`: attention only, no shared expert.
    Qwen3Moe,
}

/// How value heads pair with key heads in the stored tensors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeadOrder {
    /// Value head h reads key head `h / (value_heads / key_heads)` (safetensors).
    Grouped,
    /// Value head h reads key head `h % key_heads` (GGUF).
    Tiled,
}

/// Shape of the Gated DeltaNet layers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeltaNetShape {
    /// Query/key heads.
    pub key_heads: usize,
    /// Value heads.
    pub value_heads: usize,
    /// Elements of a query/key head.
    pub key_head_dim: usize,
    /// Elements of a value head.
    pub value_head_dim: usize,
    /// Taps of the causal convolution.
    pub conv_kernel: usize,
    /// Order of value heads.
    pub order: HeadOrder,
}

/// Everything about a model but its weights and words.
#[derive(Clone, PartialEq, Debug)]
pub struct HyperParameters {
    /// Family.
    pub architecture: Architecture,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Elements of a hidden state.
    pub hidden_size: usize,
    /// Trunk layers (without MTP).
    pub layers: usize,
    /// Per trunk layer: whether it is Gated DeltaNet.
    pub recurrent: Vec<bool>,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Elements of an attention head.
    pub head_dim: usize,
    /// Whether attention has an output gate.
    pub gated_attention: bool,
    /// Leading elements of a head that rotate.
    pub rotary_dim: usize,
    /// RoPE base.
    pub rope_theta: f64,
    /// RMSNorm epsilon.
    pub rms_eps: f32,
    /// Routed experts per layer.
    pub experts: usize,
    /// Experts per token.
    pub experts_per_token: usize,
    /// Whether top-k weights are divided by their sum.
    pub norm_topk: bool,
    /// Inner width of a routed expert.
    pub intermediate_size: usize,
    /// Inner width of the shared expert; 0 = none.
    pub shared_intermediate_size: usize,
    /// Gated DeltaNet, where the architecture has it.
    pub delta_net: Option<DeltaNetShape>,
    /// MTP layers in the files.
    pub mtp_layers: usize,
    /// Longest context.
    pub context_length: usize,
    /// Tokens that end a generation.
    pub eos_token_ids: Vec<u32>,
}

/// Bounds of the sizes, checked before any of them shapes a tensor or an allocation.
pub(super) mod check {
    use super::HyperParameters;
    use crate::model::ModelError;

    /// More than any published model has.
    pub const LAYERS_MAX: usize = 1_024;
    /// Expert ids are 16 bits on the wire.
    pub const EXPERTS_MAX: usize = 65_534;
    /// One full-attention layer in so many when the files do not say.
    pub const FULL_ATTENTION_INTERVAL: usize = 4;
    const WIDTH_MAX: usize = 1 << 20;
    const VOCAB_MAX: usize = 1 << 24;
    const HEADS_MAX: usize = 4_096;

    /// `min <= got <= max`.
    pub fn range(file: &str, what: &str, got: usize, min: usize, max: usize) -> Result<(), ModelError> {
        if (min..=max).contains(&got) {
            return Ok(());
        }
        Err(ModelError::field(file, what, format!("{min} to {max}"), got))
    }

    fn multiple(file: &str, what: &str, got: usize, of: usize) -> Result<(), ModelError> {
        if of > 0 && got.is_multiple_of(of) {
            return Ok(());
        }
        Err(ModelError::field(file, what, format!("a multiple of {of}"), got))
    }

    /// Refuses sizes that no computation of this crate could carry.
    pub fn all(file: &str, hyper: &HyperParameters) -> Result<(), ModelError> {
        let range = |what: &str, got: usize, min: usize, max: usize| range(file, what, got, min, max);
        range("vocabulary size", hyper.vocab_size, 1, VOCAB_MAX)?;
        range("hidden size", hyper.hidden_size, 1, WIDTH_MAX)?;
        range("layers", hyper.layers, 1, LAYERS_MAX)?;
        range("MTP layers", hyper.mtp_layers, 0, 1)?;
        range("attention heads", hyper.heads, 1, HEADS_MAX)?;
        range("key/value heads", hyper.kv_heads, 1, HEADS_MAX)?;
        multiple(file, "attention heads", hyper.heads, hyper.kv_heads)?;
        range("head size", hyper.head_dim, 1, WIDTH_MAX)?;
        range("rotary size", hyper.rotary_dim, 0, hyper.head_dim)?;
        multiple(file, "rotary size", hyper.rotary_dim, 2)?;
        range("experts", hyper.experts, 1, EXPERTS_MAX)?;
        range("experts per token", hyper.experts_per_token, 1, hyper.experts)?;
        range("expert intermediate size", hyper.intermediate_size, 1, WIDTH_MAX)?;
        range("shared expert's intermediate size", hyper.shared_intermediate_size, 0, WIDTH_MAX)?;
        range("context length", hyper.context_length, 1, 1 << 30)?;
        if let Some(net) = &hyper.delta_net {
            range("DeltaNet key heads", net.key_heads, 1, HEADS_MAX)?;
            range("DeltaNet value heads", net.value_heads, 1, HEADS_MAX)?;
            multiple(file, "DeltaNet value heads", net.value_heads, net.key_heads)?;
            range("DeltaNet key head size", net.key_head_dim, 1, WIDTH_MAX)?;
            range("DeltaNet value head size", net.value_head_dim, 1, WIDTH_MAX)?;
            range("convolution taps", net.conv_kernel, 1, 64)?;
        }
        let finite = hyper.rope_theta.is_finite() && hyper.rope_theta > 0.0;
        if !finite {
            return Err(ModelError::field(file, "RoPE base", "a positive number", hyper.rope_theta));
        }
        if !(hyper.rms_eps.is_finite() && hyper.rms_eps >= 0.0) {
            return Err(ModelError::field(file, "RMSNorm epsilon", "a number of 0 or more", hyper.rms_eps));
        }
        match hyper.eos_token_ids.iter().find(|id| **id as usize >= hyper.vocab_size) {
            None => Ok(()),
            Some(id) => {
                let expected = format!("ids below the vocabulary's {}", hyper.vocab_size);
                Err(ModelError::field(file, "end tokens", expected, id))
            }
        }
    }
}
