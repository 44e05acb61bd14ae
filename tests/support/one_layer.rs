//! A `qwen3moe` model of one layer with random weights, at any width.

use kvasir::model::BlockType;

use super::gguf::GgufWriter;

/// Sizes of the generated model.
#[derive(Clone, Copy)]
pub struct OneLayer {
    pub hidden: usize,
    pub intermediate: usize,
    pub experts: usize,
    pub experts_per_token: usize,
    /// Type of the routed experts: `Q4_K`, `Q8_0` or `F32`.
    pub experts_type: BlockType,
}

/// 256 single bytes, one merge and one control token.
const VOCAB: usize = 258;
const HEADS: usize = 2;
const HEAD_DIM: usize = 64;

/// SplitMix64: enough for weights that only have to be there.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in ±√3 · `std`, so that `std` is its standard deviation.
    fn float(&mut self, std: f32) -> f32 {
        let unit = (self.next() >> 40) as f32 / (1u64 << 24) as f32;
        (unit - 0.5) * 12f32.sqrt() * std
    }

    fn floats(&mut self, n: usize, std: f32) -> Vec<u8> {
        (0..n).flat_map(|_| self.float(std).to_le_bytes()).collect()
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).take(n).collect()
    }

    /// `n` weights of standard deviation about 1/√fan_in.
    fn weights(&mut self, ty: BlockType, n: usize, fan_in: usize) -> Vec<u8> {
        let std = 1.0 / (fan_in as f32).sqrt();
        let (elements, block) = ty.block();
        let half = |v: f32| half::f16::from_f32(v).to_le_bytes();
        match ty {
            BlockType::F32 => self.floats(n, std),
            BlockType::Q8_0 => {
                let mut out = self.bytes(n / elements * block);
                // Uniform int8 has a standard deviation of about 73.9.
                out.chunks_exact_mut(block).for_each(|b| b[..2].copy_from_slice(&half(std / 73.9)));
                out
            }
            BlockType::Q4_K => {
                let mut out = self.bytes(n / elements * block);
                for b in out.chunks_exact_mut(block) {
                    // Scales and minimums of 32 everywhere: y = d·32·(q − 7.5), q uniform in 0..15 (std 4.61).
                    let d = std / (32.0 * 4.61);
                    b[..2].copy_from_slice(&half(d));
                    b[2..4].copy_from_slice(&half(7.5 * d));
                    b[4..12].fill(32 | 2 << 6);
                    b[12..16].fill(0);
                }
                out
            }
            other => panic!("no generator for {other:?}"),
        }
    }
}

impl OneLayer {
    /// The model's file.
    pub fn gguf(&self) -> Vec<u8> {
        let (h, i, e) = (self.hidden, self.intermediate, self.experts);
        let mut random = Random(7);
        let mut w = GgufWriter::default();
        let key = |name: &str| format!("qwen3moe.{name}");
        w.string("general.architecture", "qwen3moe").string("general.name", "one layer");
        for (name, value) in [
            ("block_count", 1),
            ("context_length", 4096),
            ("embedding_length", h),
            ("feed_forward_length", i),
            ("attention.head_count", HEADS),
            ("attention.head_count_kv", 1),
            ("attention.key_length", HEAD_DIM),
            ("attention.value_length", HEAD_DIM),
            ("expert_count", e),
            ("expert_used_count", self.experts_per_token),
            ("expert_feed_forward_length", i),
        ] {
            w.u32(&key(name), value as u32);
        }
        w.f32(&key("attention.layer_norm_rms_epsilon"), 1e-6).f32(&key("rope.freq_base"), 10_000.0);
        tokenizer(&mut w);

        let ones: Vec<u8> = (0..h).flat_map(|_| 1f32.to_le_bytes()).collect();
        let head_ones: Vec<u8> = (0..HEAD_DIM).flat_map(|_| 1f32.to_le_bytes()).collect();
        let f32 = BlockType::F32;
        w.tensor("token_embd.weight", &[h, VOCAB], f32, &random.floats(h * VOCAB, 1.0));
        w.tensor("output.weight", &[h, VOCAB], f32, &random.weights(f32, h * VOCAB, h));
        for name in ["output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"] {
            w.tensor(&format!("{name}.weight"), &[h], f32, &ones);
        }
        for name in ["attn_q_norm", "attn_k_norm"] {
            w.tensor(&format!("blk.0.{name}.weight"), &[HEAD_DIM], f32, &head_ones);
        }
        for (name, cols, rows) in [
            ("attn_q", h, HEADS * HEAD_DIM),
            ("attn_k", h, HEAD_DIM),
            ("attn_v", h, HEAD_DIM),
            ("attn_output", HEADS * HEAD_DIM, h),
            ("ffn_gate_inp", h, e),
        ] {
            w.tensor(&format!("blk.0.{name}.weight"), &[cols, rows], f32, &random.weights(f32, cols * rows, cols));
        }
        for (name, cols, rows) in [("ffn_gate_exps", h, i), ("ffn_up_exps", h, i), ("ffn_down_exps", i, h)] {
            let bytes = random.weights(self.experts_type, cols * rows * e, cols);
            w.tensor(&format!("blk.0.{name}.weight"), &[cols, rows, e], self.experts_type, &bytes);
        }
        w.finish()
    }
}

/// Byte-level BPE: the 256 byte symbols, one merge, one control token.
fn tokenizer(w: &mut GgufWriter) {
    let printable = |b: u32| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let mut shifted = 256;
    let mut tokens: Vec<String> = (0..256u32)
        .map(|b| {
            let code = if printable(b) {
                b
            } else {
                shifted += 1;
                shifted - 1
            };
            char::from_u32(code).expect("a character").to_string()
        })
        .collect();
    tokens.extend(["th".to_owned(), "<|endoftext|>".to_owned()]);
    let kinds: Vec<i32> = (0..VOCAB).map(|t| if t == VOCAB - 1 { 3 } else { 1 }).collect();
    w.string("tokenizer.ggml.model", "gpt2").string("tokenizer.ggml.pre", "qwen2");
    w.strings("tokenizer.ggml.tokens", &tokens).i32s("tokenizer.ggml.token_type", &kinds);
    w.strings("tokenizer.ggml.merges", &["t h".to_owned()]);
    w.u32("tokenizer.ggml.eos_token_id", VOCAB as u32 - 1).bool("tokenizer.ggml.add_bos_token", false);
}
