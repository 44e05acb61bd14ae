//! GGUF metadata → sizes and constants of the model.

use std::collections::BTreeMap;

use super::value::Value;
use crate::model::hyper::check;
use crate::model::{Architecture, DeltaNetShape, HeadOrder, HyperParameters, ModelError};

/// Metadata of a file, asked by key.
pub(super) struct Metadata<'a, 'f> {
    pub file: &'f str,
    pub values: &'f BTreeMap<&'a str, Value<'a>>,
}

impl<'a> Metadata<'a, '_> {
    pub fn get(&self, key: &str) -> Option<&Value<'a>> {
        self.values.get(key)
    }

    /// A key that must be there, read by `read`.
    pub fn required<T>(
        &self,
        key: &str,
        expected: &str,
        read: impl Fn(&Value<'a>) -> Option<T>,
    ) -> Result<T, ModelError> {
        self.optional(key, expected, read)?.ok_or_else(|| ModelError::field(self.file, key, expected, "no such key"))
    }

    /// A key that may be absent; when it is there it must be readable.
    pub fn optional<T>(
        &self,
        key: &str,
        expected: &str,
        read: impl Fn(&Value<'a>) -> Option<T>,
    ) -> Result<Option<T>, ModelError> {
        let read = |value| read(value).ok_or_else(|| ModelError::field(self.file, key, expected, value));
        self.get(key).map(read).transpose()
    }

    pub fn size(&self, key: &str) -> Result<usize, ModelError> {
        self.required(key, "a size", Value::size)
    }

    pub fn size_or(&self, key: &str, default: usize) -> Result<usize, ModelError> {
        Ok(self.optional(key, "a size", Value::size)?.unwrap_or(default))
    }

    pub fn float(&self, key: &str) -> Result<f64, ModelError> {
        self.required(key, "a number", |value| if let Value::Float(x) = value { Some(*x) } else { None })
    }

    pub fn text(&self, key: &str) -> Result<Option<&'a str>, ModelError> {
        self.optional(key, "a text", |value| if let Value::Text(text) = value { Some(*text) } else { None })
    }
}

/// Reads the sizes; `vocab_size` comes from the embedding's shape, `eos_token_ids` from the tokenizer's keys.
pub(super) fn hyper(
    metadata: &Metadata,
    vocab_size: usize,
    eos_token_ids: Vec<u32>,
) -> Result<HyperParameters, ModelError> {
    let name = metadata.text("general.architecture")?.unwrap_or_default();
    let architecture = match name {
        "qwen35moe" => Architecture::Qwen35Moe,
        "qwen3moe" => Architecture::Qwen3Moe,
        _ => {
            return Err(ModelError::field(metadata.file, "general.architecture", "qwen35moe or qwen3moe", name));
        }
    };
    let is_35 = architecture == Architecture::Qwen35Moe;
    let key = |suffix: &str| format!("{name}.{suffix}");
    refuse_scaled_rope(metadata, &key("rope.scaling.type"))?;
    let head_dim = metadata.size(&key("attention.key_length"))?;
    same(metadata, &key("attention.value_length"), head_dim)?;
    let mtp_layers = metadata.size_or(&key("nextn_predict_layers"), 0)?;
    let blocks = metadata.size(&key("block_count"))?;
    let Some(layers) = blocks.checked_sub(mtp_layers) else {
        return Err(ModelError::field(metadata.file, key("block_count"), format!("at least {mtp_layers}"), blocks));
    };
    check::range(metadata.file, &key("block_count"), layers, 1, check::LAYERS_MAX)?;
    let shared = key("expert_shared_feed_forward_length");
    let hyper = HyperParameters {
        architecture,
        vocab_size,
        hidden_size: metadata.size(&key("embedding_length"))?,
        layers,
        recurrent: if is_35 { recurrent(metadata, name, layers, blocks)? } else { vec![false; layers] },
        heads: metadata.size(&key("attention.head_count"))?,
        kv_heads: kv_heads(metadata, &key("attention.head_count_kv"))?,
        head_dim,
        gated_attention: is_35,
        rotary_dim: metadata.size_or(&key("rope.dimension_count"), head_dim)?,
        rope_theta: metadata.float(&key("rope.freq_base"))?,
        rms_eps: metadata.float(&key("attention.layer_norm_rms_epsilon"))? as f32,
        experts: metadata.size(&key("expert_count"))?,
        experts_per_token: metadata.size(&key("expert_used_count"))?,
        norm_topk: true,
        intermediate_size: metadata.size(&key("expert_feed_forward_length"))?,
        shared_intermediate_size: if is_35 { metadata.size(&shared)? } else { metadata.size_or(&shared, 0)? },
        delta_net: if is_35 { Some(delta_net(metadata, name)?) } else { None },
        mtp_layers,
        context_length: metadata.size(&key("context_length"))?,
        eos_token_ids,
    };
    check::all(metadata.file, &hyper)?;
    Ok(hyper)
}

fn delta_net(metadata: &Metadata, name: &str) -> Result<DeltaNetShape, ModelError> {
    let key = |suffix: &str| format!("{name}.ssm.{suffix}");
    let value_heads = metadata.size(&key("time_step_rank"))?;
    let inner = metadata.size(&key("inner_size"))?;
    if value_heads == 0 || !inner.is_multiple_of(value_heads) {
        let expected = format!("a multiple of the {value_heads} value heads");
        return Err(ModelError::field(metadata.file, key("inner_size"), expected, inner));
    }
    Ok(DeltaNetShape {
        key_heads: metadata.size(&key("group_count"))?,
        value_heads,
        key_head_dim: metadata.size(&key("state_size"))?,
        value_head_dim: inner / value_heads,
        conv_kernel: metadata.size(&key("conv_kernel"))?,
        order: HeadOrder::Tiled,
    })
}

/// Newer files list the recurrent blocks; older ones give the interval of full attention.
fn recurrent(metadata: &Metadata, name: &str, layers: usize, blocks: usize) -> Result<Vec<bool>, ModelError> {
    let key = format!("{name}.attention.recurrent_layers");
    if let Some(value) = metadata.get(&key) {
        let fail = || ModelError::field(metadata.file, &key, format!("{blocks} booleans"), value);
        let Value::Array(array) = value else { return Err(fail()) };
        let flags: Vec<bool> = array
            .scalars()
            .map_while(|flag| match flag {
                Value::Bool(b) => Some(b),
                other => other.size().map(|n| n != 0),
            })
            .take(blocks)
            .collect();
        return if flags.len() == blocks && array.len() == blocks { Ok(flags[..layers].to_vec()) } else { Err(fail()) };
    }
    let key = format!("{name}.full_attention_interval");
    let interval = metadata.size_or(&key, check::FULL_ATTENTION_INTERVAL)?;
    if interval == 0 {
        return Err(ModelError::field(metadata.file, key, "at least 1", 0));
    }
    Ok((1..=layers).map(|i| !i.is_multiple_of(interval)).collect())
}

/// One number, or (in some exports) one per block: 0 where the block is recurrent, else all equal.
fn kv_heads(metadata: &Metadata, key: &str) -> Result<usize, ModelError> {
    let read = |value: &Value| match value {
        Value::Array(array) => {
            let mut counts = array.scalars().filter_map(|n| n.size()).filter(|n| *n > 0);
            let first = counts.next()?;
            counts.all(|n| n == first).then_some(first)
        }
        one => one.size(),
    };
    metadata.required(key, "one number of key/value heads", read)
}

fn same(metadata: &Metadata, key: &str, expected: usize) -> Result<(), ModelError> {
    let got = metadata.size_or(key, expected)?;
    if got == expected { Ok(()) } else { Err(ModelError::field(metadata.file, key, expected.to_string(), got)) }
}

fn refuse_scaled_rope(metadata: &Metadata, key: &str) -> Result<(), ModelError> {
    match metadata.text(key)? {
        None | Some("none" | "") => Ok(()),
        Some(other) => Err(ModelError::field(metadata.file, key, "none: scaled RoPE is not supported", other)),
    }
}
