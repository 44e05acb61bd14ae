//! `config.json` → sizes and constants of the model, in the spellings that released files use.

use serde_json::Value;

use crate::model::hyper::check;
use crate::model::{Architecture, DeltaNetShape, HeadOrder, HyperParameters, ModelError};

const FILE: &str = "config.json";
/// transformers' defaults for `qwen3_5_moe_text`.
const PARTIAL_ROTARY_FACTOR: f64 = 0.25;
const CONV_KERNEL: usize = 4;

/// The text part of a configuration.
struct Config<'a>(&'a Value);

impl Config<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    /// RoPE's keys stand in `rope_parameters` in newer files and at top level in older ones.
    fn rope(&self, key: &str) -> Option<&Value> {
        self.get("rope_parameters").and_then(|rope| rope.get(key)).filter(|v| !v.is_null()).or_else(|| self.get(key))
    }

    fn optional_size(&self, key: &str) -> Result<Option<usize>, ModelError> {
        self.get(key).map(|value| read_size(key, value)).transpose()
    }

    fn size(&self, key: &str) -> Result<usize, ModelError> {
        self.optional_size(key)?.ok_or_else(|| missing(key))
    }

    fn flag(&self, key: &str, default: bool) -> Result<bool, ModelError> {
        match self.get(key) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(ModelError::field(FILE, key, "true or false", other)),
        }
    }

    /// Refuses a key that is there with a value other than `only`: it would change the arithmetic.
    fn only(&self, key: &str, only: &Value) -> Result<(), ModelError> {
        match self.get(key) {
            Some(got) if got != only => Err(ModelError::field(FILE, key, only.to_string(), got)),
            _ => Ok(()),
        }
    }
}

fn missing(key: &str) -> ModelError {
    ModelError::field(FILE, key, "a value", "no such key")
}

fn read_size(key: &str, value: &Value) -> Result<usize, ModelError> {
    let size = value.as_u64().and_then(|n| usize::try_from(n).ok());
    size.ok_or_else(|| ModelError::field(FILE, key, "a size", value))
}

fn read_float(key: &str, value: Option<&Value>) -> Result<f64, ModelError> {
    let value = value.ok_or_else(|| missing(key))?;
    value.as_f64().ok_or_else(|| ModelError::field(FILE, key, "a number", value))
}

/// Reads the sizes; end tokens are those of `generation_config.json` and then of the configuration itself.
pub(super) fn hyper(config: &Value, generation: Option<&Value>) -> Result<HyperParameters, ModelError> {
    let text = Config(config.get("text_config").unwrap_or(config));
    let kind = text.get("model_type").or_else(|| config.get("model_type")).and_then(Value::as_str).unwrap_or_default();
    let architecture = match kind {
        "qwen3_5_moe" | "qwen3_5_moe_text" => Architecture::Qwen35Moe,
        "qwen3_moe" => Architecture::Qwen3Moe,
        _ => {
            let expected = "qwen3_5_moe, qwen3_5_moe_text or qwen3_moe";
            return Err(ModelError::field(FILE, "model_type", expected, kind));
        }
    };
    let is_35 = architecture == Architecture::Qwen35Moe;
    refuse_what_changes_the_arithmetic(&text)?;
    let layers = text.size("num_hidden_layers")?;
    check::range(FILE, "num_hidden_layers", layers, 1, check::LAYERS_MAX)?;
    let (hidden_size, heads) = (text.size("hidden_size")?, text.size("num_attention_heads")?);
    let head_dim = match text.optional_size("head_dim")? {
        Some(head_dim) => head_dim,
        None => hidden_size.checked_div(heads).unwrap_or(0),
    };
    let rotary_dim = match (is_35, text.rope("partial_rotary_factor")) {
        (false, None) => head_dim,
        (true, None) => (head_dim as f64 * PARTIAL_ROTARY_FACTOR) as usize,
        (_, factor) => (head_dim as f64 * read_float("partial_rotary_factor", factor)?) as usize,
    };
    let hyper = HyperParameters {
        architecture,
        vocab_size: text.size("vocab_size")?,
        hidden_size,
        layers,
        recurrent: if is_35 { recurrent(&text, layers)? } else { vec![false; layers] },
        heads,
        kv_heads: text.optional_size("num_key_value_heads")?.unwrap_or(heads),
        head_dim,
        gated_attention: is_35 && text.flag("attn_output_gate", true)?,
        rotary_dim,
        rope_theta: read_float("rope_theta", text.rope("rope_theta"))?,
        rms_eps: read_float("rms_norm_eps", text.get("rms_norm_eps"))? as f32,
        experts: text.size("num_experts")?,
        experts_per_token: text.size("num_experts_per_tok")?,
        norm_topk: is_35 || text.flag("norm_topk_prob", false)?,
        intermediate_size: text.size("moe_intermediate_size")?,
        shared_intermediate_size: if is_35 { text.size("shared_expert_intermediate_size")? } else { 0 },
        delta_net: if is_35 { Some(delta_net(&text)?) } else { None },
        mtp_layers: if is_35 { text.optional_size("mtp_num_hidden_layers")?.unwrap_or(0) } else { 0 },
        context_length: text.size("max_position_embeddings")?,
        eos_token_ids: end_tokens(&[generation, config.get("eos_token_id").map(|_| config), Some(text.0)])?,
    };
    check::all(FILE, &hyper)?;
    Ok(hyper)
}

fn refuse_what_changes_the_arithmetic(text: &Config) -> Result<(), ModelError> {
    text.only("hidden_act", &Value::from("silu"))?;
    text.only("attention_bias", &Value::from(false))?;
    text.only("decoder_sparse_step", &Value::from(1))?;
    text.only("mlp_only_layers", &Value::Array(Vec::new()))?;
    for scaling in ["rope_parameters", "rope_scaling"].iter().filter_map(|key| text.get(key)) {
        let kind = scaling.get("rope_type").or_else(|| scaling.get("type")).filter(|kind| !kind.is_null());
        if let Some(kind) = kind.filter(|kind| *kind != "default") {
            return Err(ModelError::field(FILE, "rope_type", "default: scaled RoPE is not supported", kind));
        }
    }
    Ok(())
}

fn delta_net(text: &Config) -> Result<DeltaNetShape, ModelError> {
    Ok(DeltaNetShape {
        key_heads: text.size("linear_num_key_heads")?,
        value_heads: text.size("linear_num_value_heads")?,
        key_head_dim: text.size("linear_key_head_dim")?,
        value_head_dim: text.size("linear_value_head_dim")?,
        conv_kernel: text.optional_size("linear_conv_kernel_dim")?.unwrap_or(CONV_KERNEL),
        order: HeadOrder::Grouped,
    })
}

/// `layer_types` when it is there, else the interval of full attention.
fn recurrent(text: &Config, layers: usize) -> Result<Vec<bool>, ModelError> {
    if let Some(types) = text.get("layer_types") {
        let kinds = types.as_array().filter(|kinds| kinds.len() == layers);
        let kinds = kinds.ok_or_else(|| ModelError::field(FILE, "layer_types", format!("{layers} kinds"), types))?;
        return kinds
            .iter()
            .map(|kind| match kind.as_str() {
                Some("linear_attention") => Ok(true),
                Some("full_attention") => Ok(false),
                _ => Err(ModelError::field(FILE, "layer_types", "linear_attention or full_attention", kind)),
            })
            .collect();
    }
    let interval = text.optional_size("full_attention_interval")?.unwrap_or(check::FULL_ATTENTION_INTERVAL);
    if interval == 0 {
        return Err(ModelError::field(FILE, "full_attention_interval", "at least 1", 0));
    }
    Ok((1..=layers).map(|i| !i.is_multiple_of(interval)).collect())
}

/// `eos_token_id` (one id or a list) of each source in turn, each id once.
fn end_tokens(sources: &[Option<&Value>]) -> Result<Vec<u32>, ModelError> {
    let mut ids = Vec::new();
    let values = sources.iter().flatten().filter_map(|source| source.get("eos_token_id")).filter(|v| !v.is_null());
    for value in values {
        let list = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        for id in list {
            let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
            let id = id.ok_or_else(|| ModelError::field(FILE, "eos_token_id", "token ids", value))?;
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
    }
    Ok(ids)
}
