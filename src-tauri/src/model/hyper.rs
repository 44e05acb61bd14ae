//! Sizes and constants of a model, the same for both containers.

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
