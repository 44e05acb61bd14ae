//! What each container calls the tensors of a layer: one table per container and family.

/// Names within a layer, after the layer's prefix.
pub(super) struct LayerNames {
    pub input_norm: &'static str,
    pub post_norm: &'static str,
    pub q: &'static str,
    pub k: &'static str,
    pub v: &'static str,
    /// q, k and v in one matrix, where the container has that form.
    pub qkv_fused: Option<&'static str>,
    pub attention_output: &'static str,
    pub q_norm: &'static str,
    pub k_norm: &'static str,
    pub net_qkv: &'static str,
    pub net_z: &'static str,
    pub net_a: &'static str,
    pub net_b: &'static str,
    pub conv: &'static str,
    pub decay: &'static str,
    pub dt_bias: &'static str,
    pub net_norm: &'static str,
    pub net_output: &'static str,
    pub router: &'static str,
    /// Forms in which the routed experts may be stored, in order of preference.
    pub experts: &'static [ExpertForm],
    pub shared_gate: &'static str,
    pub shared_up: &'static str,
    pub shared_down: &'static str,
    pub shared_scalar: &'static str,
}

/// How the routed experts of a layer are stored.
pub(super) enum ExpertForm {
    /// `[experts, 2 · intermediate, hidden]` with gate rows first, and `[experts, hidden, intermediate]`.
    Fused { gate_up: &'static str, down: &'static str },
    /// One `[experts, …]` tensor per matrix.
    Stacked { gate: &'static str, up: &'static str, down: &'static str },
    /// One tensor per expert and matrix: `{before}{expert}.{gate|up|down}`.
    Each { before: &'static str, gate: &'static str, up: &'static str, down: &'static str },
}

/// Hugging Face (and MLX) names, both families.
pub(super) const HUGGING_FACE: LayerNames = LayerNames {
    input_norm: "input_layernorm.weight",
    post_norm: "post_attention_layernorm.weight",
    q: "self_attn.q_proj.weight",
    k: "self_attn.k_proj.weight",
    v: "self_attn.v_proj.weight",
    qkv_fused: None,
    attention_output: "self_attn.o_proj.weight",
    q_norm: "self_attn.q_norm.weight",
    k_norm: "self_attn.k_norm.weight",
    net_qkv: "linear_attn.in_proj_qkv.weight",
    net_z: "linear_attn.in_proj_z.weight",
    net_a: "linear_attn.in_proj_a.weight",
    net_b: "linear_attn.in_proj_b.weight",
    conv: "linear_attn.conv1d.weight",
    decay: "linear_attn.A_log",
    dt_bias: "linear_attn.dt_bias",
    net_norm: "linear_attn.norm.weight",
    net_output: "linear_attn.out_proj.weight",
    router: "mlp.gate.weight",
    experts: &[
        ExpertForm::Fused { gate_up: "mlp.experts.gate_up_proj", down: "mlp.experts.down_proj" },
        ExpertForm::Each {
            before: "mlp.experts.",
            gate: "gate_proj.weight",
            up: "up_proj.weight",
            down: "down_proj.weight",
        },
        ExpertForm::Stacked {
            gate: "mlp.switch_mlp.gate_proj.weight",
            up: "mlp.switch_mlp.up_proj.weight",
            down: "mlp.switch_mlp.down_proj.weight",
        },
    ],
    shared_gate: "mlp.shared_expert.gate_proj.weight",
    shared_up: "mlp.shared_expert.up_proj.weight",
    shared_down: "mlp.shared_expert.down_proj.weight",
    shared_scalar: "mlp.shared_expert_gate.weight",
};

/// What GGUF calls gate, up and down of a layer's routed experts.
pub(super) const GGUF_EXPERTS: [&str; 3] = ["ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight"];

/// GGUF names of `qwen35moe`.
pub(super) const GGUF_QWEN35: LayerNames = LayerNames {
    input_norm: "attn_norm.weight",
    post_norm: "post_attention_norm.weight",
    q: "attn_q.weight",
    k: "attn_k.weight",
    v: "attn_v.weight",
    qkv_fused: Some("attn_qkv.weight"),
    attention_output: "attn_output.weight",
    q_norm: "attn_q_norm.weight",
    k_norm: "attn_k_norm.weight",
    net_qkv: "attn_qkv.weight",
    net_z: "attn_gate.weight",
    net_a: "ssm_alpha.weight",
    net_b: "ssm_beta.weight",
    conv: "ssm_conv1d.weight",
    decay: "ssm_a",
    dt_bias: "ssm_dt.bias",
    net_norm: "ssm_norm.weight",
    net_output: "ssm_out.weight",
    router: "ffn_gate_inp.weight",
    experts: &[
        ExpertForm::Stacked { gate: GGUF_EXPERTS[0], up: GGUF_EXPERTS[1], down: GGUF_EXPERTS[2] },
        ExpertForm::Fused { gate_up: "ffn_gate_up_exps.weight", down: "ffn_down_exps.weight" },
    ],
    shared_gate: "ffn_gate_shexp.weight",
    shared_up: "ffn_up_shexp.weight",
    shared_down: "ffn_down_shexp.weight",
    shared_scalar: "ffn_gate_inp_shexp.weight",
};

/// GGUF names of `qwen3moe`.
pub(super) const GGUF_QWEN3: LayerNames = LayerNames { post_norm: "ffn_norm.weight", ..GGUF_QWEN35 };
