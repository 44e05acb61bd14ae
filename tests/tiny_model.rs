//! Valid models of a few kilobytes, built in memory, and every way to spoil them.

use serde_json::json;

/// A metadata value as GGUF writes it.
#[derive(Clone)]
pub enum Value {
    U16(u16),
    U32(u32),
    F32(f32),
    Text(Vec<u8>),
    Texts(Vec<String>),
    I32s(Vec<i32>),
    /// Any value type with any bytes.
    Raw(u32, Vec<u8>),
}

pub fn text(text: &str) -> Value {
    Value::Text(text.into())
}

/// A tensor of a GGUF file; `offset` overrides the place that it would get, `data` the ramp of bytes.
#[derive(Clone)]
pub struct Tensor {
    pub name: String,
    pub ne: Vec<u64>,
    pub ty: u32,
    pub offset: Option<u64>,
    pub data: Option<Vec<u8>>,
}

/// A GGUF file before it is written; `counts` overrides the numbers of tensors and keys.
#[derive(Clone)]
pub struct Gguf {
    pub magic: [u8; 4],
    pub version: u32,
    pub counts: Option<(u64, u64)>,
    pub keys: Vec<(String, Value)>,
    pub tensors: Vec<Tensor>,
}

const F16: u32 = 1;

impl Gguf {
    /// One layer of hidden 4, two experts of 4, `vocab` tokens, no tokenizer.
    pub fn qwen3moe(vocab: u64) -> Self {
        let key = |name: &str, value| (format!("qwen3moe.{name}"), Value::U32(value));
        let mut keys = vec![("general.architecture".to_owned(), text("qwen3moe"))];
        keys.extend([
            key("block_count", 1),
            key("context_length", 64),
            key("embedding_length", 4),
            key("attention.head_count", 2),
            key("attention.head_count_kv", 1),
            key("attention.key_length", 2),
            key("expert_count", 2),
            key("expert_used_count", 1),
            key("expert_feed_forward_length", 4),
        ]);
        keys.push(("qwen3moe.rope.freq_base".into(), Value::F32(1e4)));
        keys.push(("qwen3moe.attention.layer_norm_rms_epsilon".into(), Value::F32(1e-6)));
        let shapes: [(&str, &[u64]); 14] = [
            ("token_embd.weight", &[4, vocab]),
            ("output_norm.weight", &[4]),
            ("blk.0.attn_norm.weight", &[4]),
            ("blk.0.ffn_norm.weight", &[4]),
            ("blk.0.attn_q.weight", &[4, 4]),
            ("blk.0.attn_k.weight", &[4, 2]),
            ("blk.0.attn_v.weight", &[4, 2]),
            ("blk.0.attn_output.weight", &[4, 4]),
            ("blk.0.attn_q_norm.weight", &[2]),
            ("blk.0.attn_k_norm.weight", &[2]),
            ("blk.0.ffn_gate_inp.weight", &[4, 2]),
            ("blk.0.ffn_gate_exps.weight", &[4, 4, 2]),
            ("blk.0.ffn_up_exps.weight", &[4, 4, 2]),
            ("blk.0.ffn_down_exps.weight", &[4, 4, 2]),
        ];
        let tensor =
            |(name, ne): (&str, &[u64])| Tensor { name: name.into(), ne: ne.into(), ty: F16, offset: None, data: None };
        let tensors = shapes.into_iter().map(tensor).collect();
        Self { magic: *b"GGUF", version: 3, counts: None, keys, tensors }
    }

    /// The same with a byte-level vocabulary, a merge, a control token and a chat template.
    pub fn with_words() -> Self {
        let mut tokens: Vec<String> = (0..=255u8).map(byte_token).collect();
        tokens.extend(["he".to_owned(), "<|im_end|>".to_owned(), "[unused]".to_owned()]);
        let mut file = Self::qwen3moe(tokens.len() as u64);
        let mut kinds = vec![1; 257];
        kinds.extend([3, 5]);
        let key = |name: &str, value| (format!("tokenizer.{name}"), value);
        file.keys.extend([
            key("ggml.model", text("gpt2")),
            key("ggml.pre", text("qwen2")),
            key("ggml.tokens", Value::Texts(tokens)),
            key("ggml.token_type", Value::I32s(kinds)),
            key("ggml.merges", Value::Texts(vec!["h e".into()])),
            key("ggml.eos_token_id", Value::U32(257)),
            key("chat_template", text("{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}")),
        ]);
        file
    }

    /// Sets a metadata key.
    pub fn set(&mut self, key: &str, value: Value) -> &mut Self {
        self.keys.retain(|(name, _)| name != key);
        self.keys.push((key.into(), value));
        self
    }

    pub fn remove(&mut self, key: &str) -> &mut Self {
        self.keys.retain(|(name, _)| name != key);
        self
    }

    pub fn tensor(&mut self, name: &str) -> &mut Tensor {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).unwrap()
    }

    /// The file up to its data, with `size` bytes for each tensor, and how many bytes of data follow.
    pub fn head(&self, size: impl Fn(&Tensor) -> u64) -> (Vec<u8>, u64) {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        let (tensors, keys) = self.counts.unwrap_or((self.tensors.len() as u64, self.keys.len() as u64));
        out.extend(tensors.to_le_bytes());
        out.extend(keys.to_le_bytes());
        for (key, value) in &self.keys {
            put_text(&mut out, key.as_bytes());
            put_value(&mut out, value);
        }
        let mut end = 0u64;
        for tensor in &self.tensors {
            put_text(&mut out, tensor.name.as_bytes());
            out.extend((tensor.ne.len() as u32).to_le_bytes());
            tensor.ne.iter().for_each(|n| out.extend(n.to_le_bytes()));
            out.extend(tensor.ty.to_le_bytes());
            out.extend(tensor.offset.unwrap_or(end).to_le_bytes());
            end = (end + size(tensor)).next_multiple_of(32);
        }
        out.resize(out.len().next_multiple_of(32), 0);
        (out, end)
    }

    /// The file. Tensor data that is not given is a ramp of bytes, so that slices of it differ.
    pub fn bytes(&self) -> Vec<u8> {
        let ramp = |tensor: &Tensor| tensor.ne.iter().fold(2u64, |all, n| all.saturating_mul(*n).min(1 << 16));
        let size = |tensor: &Tensor| tensor.data.as_ref().map_or_else(|| ramp(tensor), |data| data.len() as u64);
        let (mut out, end) = self.head(size);
        let mut at = out.len();
        out.extend((0..end).map(|i| (i % 61) as u8));
        for tensor in &self.tensors {
            if let Some(data) = &tensor.data {
                out[at..at + data.len()].copy_from_slice(data);
            }
            at = (at + size(tensor) as usize).next_multiple_of(32);
        }
        out
    }

    /// A file like [`qwen3moe`](Self::qwen3moe) of hidden and intermediate size `width`, whose experts' F16 weights are
    /// small numbers of both signs.
    pub fn float_experts(width: u64) -> Self {
        let mut file = Self::qwen3moe(8);
        for name in ["embedding_length", "expert_feed_forward_length"] {
            file.set(&format!("qwen3moe.{name}"), Value::U32(width as u32));
        }
        let values = |n: u64| (0..n).map(|i| (i * 7919 % 4093) as f32 / 40_000.0 - 0.05);
        for tensor in &mut file.tensors {
            let experts = tensor.name.contains("_exps");
            let sized = tensor.ne.iter().enumerate().map(|(d, n)| match (d, &*tensor.name) {
                (0, "blk.0.attn_output.weight") | (1, "blk.0.attn_q.weight") => *n,
                _ if tensor.name.ends_with("q_norm.weight") || tensor.name.ends_with("k_norm.weight") => *n,
                (0, _) => width,
                (1, "blk.0.attn_output.weight") => width,
                (1, _) if experts => width,
                _ => *n,
            });
            tensor.ne = sized.collect();
            let count = tensor.ne.iter().product();
            tensor.data = Some(values(count).flat_map(|x| f16_bits(x).to_le_bytes()).collect());
        }
        file
    }
}

/// `x` as an F16, for magnitudes from 2^-14 to 1; smaller ones become zero, further bits are cut off.
fn f16_bits(x: f32) -> u16 {
    let (sign, exponent, mantissa) = (x.to_bits() >> 16 & 0x8000, x.to_bits() >> 23 & 0xFF, x.to_bits() >> 13 & 0x3FF);
    if exponent < 113 { sign as u16 } else { (sign | (exponent - 112) << 10 | mantissa) as u16 }
}

/// The character that stands for a byte in a byte-level vocabulary.
fn byte_token(byte: u8) -> String {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let before = (0..byte).filter(|b| !printable(*b)).count() as u32;
    let code = if printable(byte) { u32::from(byte) } else { 256 + before };
    char::from_u32(code).unwrap().to_string()
}

fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text);
}

fn put_array(out: &mut Vec<u8>, ty: u32, count: usize) {
    out.extend(9u32.to_le_bytes());
    out.extend(ty.to_le_bytes());
    out.extend((count as u64).to_le_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    let mut scalar = |ty: u32, bytes: &[u8]| {
        out.extend(ty.to_le_bytes());
        out.extend(bytes);
    };
    match value {
        Value::U16(n) => scalar(2, &n.to_le_bytes()),
        Value::U32(n) => scalar(4, &n.to_le_bytes()),
        Value::F32(x) => scalar(6, &x.to_le_bytes()),
        Value::Raw(ty, bytes) => scalar(*ty, bytes),
        Value::Text(text) => {
            scalar(8, &[]);
            put_text(out, text);
        }
        Value::Texts(texts) => {
            put_array(out, 8, texts.len());
            texts.iter().for_each(|text| put_text(out, text.as_bytes()));
        }
        Value::I32s(numbers) => {
            put_array(out, 5, numbers.len());
            numbers.iter().for_each(|n| out.extend(n.to_le_bytes()));
        }
    }
}

/// `config.json` of a `qwen3_5_moe_text` with one DeltaNet layer of hidden 4.
pub fn config() -> serde_json::Value {
    json!({
        "model_type": "qwen3_5_moe_text", "vocab_size": 8, "hidden_size": 4, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "linear_num_key_heads": 1,
        "linear_num_value_heads": 2, "linear_key_head_dim": 2, "linear_value_head_dim": 2, "linear_conv_kernel_dim": 2,
        "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 2, "shared_expert_intermediate_size": 2,
        "rms_norm_eps": 1e-6, "rope_theta": 1e4, "partial_rotary_factor": 0.5, "max_position_embeddings": 64,
        "layer_types": ["linear_attention"], "eos_token_id": [7, 6]
    })
}

/// Names and shapes of that model's tensors, all BF16.
pub fn tensors() -> Vec<(String, Vec<usize>)> {
    let layer = "model.layers.0.";
    let shapes: [(&str, &[usize]); 18] = [
        ("input_layernorm.weight", &[4]),
        ("post_attention_layernorm.weight", &[4]),
        ("linear_attn.in_proj_qkv.weight", &[8, 4]),
        ("linear_attn.in_proj_z.weight", &[4, 4]),
        ("linear_attn.in_proj_a.weight", &[2, 4]),
        ("linear_attn.in_proj_b.weight", &[2, 4]),
        ("linear_attn.conv1d.weight", &[8, 1, 2]),
        ("linear_attn.A_log", &[2]),
        ("linear_attn.dt_bias", &[2]),
        ("linear_attn.norm.weight", &[2]),
        ("linear_attn.out_proj.weight", &[4, 4]),
        ("mlp.gate.weight", &[2, 4]),
        ("mlp.experts.gate_up_proj", &[2, 4, 4]),
        ("mlp.experts.down_proj", &[2, 4, 2]),
        ("mlp.shared_expert.gate_proj.weight", &[2, 4]),
        ("mlp.shared_expert.up_proj.weight", &[2, 4]),
        ("mlp.shared_expert.down_proj.weight", &[4, 2]),
        ("mlp.shared_expert_gate.weight", &[1, 4]),
    ];
    let named = shapes.iter().map(|(name, shape)| (format!("{layer}{name}"), shape.to_vec()));
    let globals =
        [("model.embed_tokens.weight", vec![8, 4]), ("model.norm.weight", vec![4]), ("lm_head.weight", vec![8, 4])];
    globals.into_iter().map(|(name, shape)| (name.to_owned(), shape)).chain(named).collect()
}

/// A safetensors file of BF16 tensors.
pub fn safetensors(tensors: &[(String, Vec<usize>)]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for (name, shape) in tensors {
        let start = end;
        end += 2 * shape.iter().product::<usize>();
        header.insert(name.clone(), json!({ "dtype": "BF16", "shape": shape, "data_offsets": [start, end] }));
    }
    with_header(&serde_json::Value::Object(header), &(0..end).map(|i| (i % 61) as u8).collect::<Vec<_>>())
}

/// Any header before any data.
pub fn with_header(header: &serde_json::Value, data: &[u8]) -> Vec<u8> {
    let header = header.to_string();
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}
