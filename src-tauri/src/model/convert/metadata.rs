//! Metadata of the converted file: that of the GGUF it came from, or what a checkpoint's sizes and words are in GGUF.

use std::path::Path;

use super::ConvertError;
use crate::model::gguf::{self, writer::Keys};
use crate::model::{Architecture, BlockType, HyperParameters, Model, ModelError, Tokenizer};

/// Version of the block layouts, as readers ask for it.
const QUANTISATION_VERSION: usize = 2;
const FILE_TYPE: &str = "general.file_type";
const VERSION: &str = "general.quantization_version";

/// GGUF's number for a file that is mostly of this type.
fn file_type(to: BlockType) -> usize {
    match to {
        BlockType::Q4_0 => 2,
        BlockType::Q4_K => 14,
        BlockType::Q5_K => 16,
        BlockType::Q6_K => 18,
        _ => 7,
    }
}

/// The keys of the file at `source`, or of its first part, but for what the conversion changes.
pub(super) fn copied(source: &Path, to: BlockType) -> Result<Keys, ModelError> {
    let mut keys = Keys::default();
    for (key, value) in gguf::metadata(source)? {
        // Tensors are laid out anew, in one file and with the usual alignment.
        let replaced = [FILE_TYPE, VERSION, "general.alignment"].contains(&&*key) || key.starts_with("split.");
        if !replaced {
            keys.raw(&key, &value);
        }
    }
    keys.size(FILE_TYPE, file_type(to));
    keys.size(VERSION, QUANTISATION_VERSION);
    Ok(keys)
}

/// The keys of a checkpoint.
pub(super) fn of(model: &Model, to: BlockType) -> Result<Keys, ConvertError> {
    let mut keys = Keys::default();
    let architecture = match model.hyper.architecture {
        Architecture::Qwen35Moe => "qwen35moe",
        Architecture::Qwen3Moe => "qwen3moe",
    };
    keys.text("general.architecture", architecture);
    keys.text("general.type", "model");
    keys.text("general.name", &model.name);
    keys.size(FILE_TYPE, file_type(to));
    keys.size(VERSION, QUANTISATION_VERSION);
    sizes(&mut keys, architecture, &model.hyper);
    words(&mut keys, &model.hyper, model.tokenizer.as_ref())?;
    Ok(keys)
}

fn sizes(keys: &mut Keys, architecture: &str, hyper: &HyperParameters) {
    let key = |suffix: &str| format!("{architecture}.{suffix}");
    let blocks = hyper.layers + hyper.mtp_layers;
    keys.size(&key("block_count"), blocks);
    keys.size(&key("context_length"), hyper.context_length);
    keys.size(&key("embedding_length"), hyper.hidden_size);
    keys.size(&key("attention.head_count"), hyper.heads);
    keys.size(&key("attention.head_count_kv"), hyper.kv_heads);
    keys.size(&key("attention.key_length"), hyper.head_dim);
    keys.size(&key("attention.value_length"), hyper.head_dim);
    keys.float(&key("attention.layer_norm_rms_epsilon"), hyper.rms_eps);
    keys.float(&key("rope.freq_base"), hyper.rope_theta as f32);
    keys.size(&key("rope.dimension_count"), hyper.rotary_dim);
    keys.size(&key("expert_count"), hyper.experts);
    keys.size(&key("expert_used_count"), hyper.experts_per_token);
    keys.size(&key("expert_feed_forward_length"), hyper.intermediate_size);
    if hyper.shared_intermediate_size > 0 {
        keys.size(&key("expert_shared_feed_forward_length"), hyper.shared_intermediate_size);
    }
    if hyper.mtp_layers > 0 {
        keys.size(&key("nextn_predict_layers"), hyper.mtp_layers);
    }
    let Some(net) = &hyper.delta_net else { return };
    // Frequencies of time, height and width; where all three positions are one, as in text, any division is the same.
    let frequencies = hyper.rotary_dim / 2;
    let sections = [frequencies.div_ceil(3), (frequencies + 1) / 3, frequencies / 3, 0];
    keys.integers(&key("rope.dimension_sections"), &sections.map(|n| n as i32));
    keys.size(&key("ssm.conv_kernel"), net.conv_kernel);
    keys.size(&key("ssm.state_size"), net.key_head_dim);
    keys.size(&key("ssm.group_count"), net.key_heads);
    keys.size(&key("ssm.time_step_rank"), net.value_heads);
    keys.size(&key("ssm.inner_size"), net.value_heads * net.value_head_dim);
    let interval = hyper.recurrent.iter().position(|recurrent| !recurrent).map_or(hyper.layers + 1, |first| first + 1);
    if hyper.recurrent.iter().zip(1..).all(|(recurrent, i)| *recurrent != (i % interval == 0)) {
        keys.size(&key("full_attention_interval"), interval);
    }
    let mut recurrent = hyper.recurrent.clone();
    recurrent.resize(blocks, false);
    keys.flags(&key("attention.recurrent_layers"), &recurrent);
}

fn words(keys: &mut Keys, hyper: &HyperParameters, tokenizer: Option<&Tokenizer>) -> Result<(), ConvertError> {
    let ends = hyper.eos_token_ids.iter().zip(["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"]);
    ends.for_each(|(id, key)| keys.size(key, *id as usize));
    let Some(tokenizer) = tokenizer else { return Ok(()) };
    let listing = tokenizer.listing()?;
    keys.text("tokenizer.ggml.model", "gpt2");
    keys.text("tokenizer.ggml.pre", listing.split.name());
    keys.texts("tokenizer.ggml.tokens", &listing.tokens);
    keys.integers("tokenizer.ggml.token_type", &listing.kinds);
    keys.texts("tokenizer.ggml.merges", &listing.merges);
    keys.flag("tokenizer.ggml.add_bos_token", false);
    if let Some(template) = &listing.template {
        keys.text("tokenizer.chat_template", template);
    }
    Ok(())
}
