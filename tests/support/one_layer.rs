//! A `qwen3moe` model of one layer with random weights, at any width.

use kvasir::model::BlockType;

use crate::tiny_model::{Gguf, Tensor, Value};

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

/// Tokens of [`Gguf::with_words`].
const VOCAB: usize = 259;
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
        let mut file = Gguf::with_words();
        for (name, value) in [
            ("context_length", 4096),
            ("embedding_length", h),
            ("attention.head_count", HEADS),
            ("attention.key_length", HEAD_DIM),
            ("expert_count", e),
            ("expert_used_count", self.experts_per_token),
            ("expert_feed_forward_length", i),
        ] {
            file.set(&format!("qwen3moe.{name}"), Value::U32(value as u32));
        }
        file.tensors.clear();
        let mut tensor = |name: &str, ne: &[usize], ty: BlockType, data: Vec<u8>| {
            let ne = ne.iter().map(|n| *n as u64).collect();
            let name = format!("{name}.weight");
            file.tensors.push(Tensor { name, ne, ty: ty as u32, offset: None, data: Some(data) });
        };
        let ones = |n: usize| 1f32.to_le_bytes().repeat(n);
        let f32 = BlockType::F32;
        tensor("token_embd", &[h, VOCAB], f32, random.floats(h * VOCAB, 1.0));
        tensor("output", &[h, VOCAB], f32, random.weights(f32, h * VOCAB, h));
        for name in ["output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"] {
            tensor(name, &[h], f32, ones(h));
        }
        for name in ["blk.0.attn_q_norm", "blk.0.attn_k_norm"] {
            tensor(name, &[HEAD_DIM], f32, ones(HEAD_DIM));
        }
        for (name, cols, rows) in [
            ("attn_q", h, HEADS * HEAD_DIM),
            ("attn_k", h, HEAD_DIM),
            ("attn_v", h, HEAD_DIM),
            ("attn_output", HEADS * HEAD_DIM, h),
            ("ffn_gate_inp", h, e),
        ] {
            tensor(&format!("blk.0.{name}"), &[cols, rows], f32, random.weights(f32, cols * rows, cols));
        }
        for (name, cols, rows) in [("ffn_gate_exps", h, i), ("ffn_up_exps", h, i), ("ffn_down_exps", i, h)] {
            let data = random.weights(self.experts_type, cols * rows * e, cols);
            tensor(&format!("blk.0.{name}"), &[cols, rows, e], self.experts_type, data);
        }
        file.bytes()
    }
}
