//! A Hugging Face directory (`config.json`, safetensors shards, index) → a [`Model`].
//!
//! [`Checkpoint`] is the directory's content, so that everything past reading the files works on bytes alone.

mod config;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::assemble::{self, Container, MtpNames};
use super::names::HUGGING_FACE;
use super::tensors::{ElementType, Tensor, Tensors};
use super::{Architecture, BlockType, Data, Model, ModelError, files};

/// Bytes of a small JSON file; real ones have a few thousand.
const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// Bytes of an index or a `tokenizer.json`; Qwen3.5's vocabulary takes some 13 MB.
const INDEX_BYTES_MAX: u64 = 64 << 20;
/// Bytes of `tokenizer_config.json`, which may list every added token.
const TOKENIZER_CONFIG_BYTES_MAX: u64 = 16 << 20;
const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";

/// The files of a checkpoint, by content.
#[derive(Debug, Default)]
pub struct Checkpoint {
    /// `config.json`.
    pub config: Vec<u8>,
    /// `generation_config.json`.
    pub generation_config: Option<Vec<u8>>,
    /// `model.safetensors.index.json`, when there are several shards.
    pub index: Option<Vec<u8>>,
    /// `tokenizer.json`.
    pub tokenizer: Option<Vec<u8>>,
    /// `tokenizer_config.json`, for the chat template and the end token.
    pub tokenizer_config: Option<Vec<u8>>,
    /// `chat_template.jinja`, which goes before the template in the configuration.
    pub chat_template: Option<Vec<u8>>,
    /// The shards: file name and content.
    pub shards: Vec<(String, Data)>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Checkpoint {
    /// Reads the small files of `dir` and maps its shards.
    ///
    /// # Errors
    /// A file is missing, too large or unreadable, or the index names a file outside of `dir`.
    pub fn read(dir: &Path) -> Result<Self, ModelError> {
        let small = |name: &str, max| files::read_small(&dir.join(name), max);
        let required = |name: &str| {
            let source = std::io::Error::from(std::io::ErrorKind::NotFound);
            ModelError::Io { file: dir.join(name).display().to_string(), source }
        };
        let index = small(INDEX, INDEX_BYTES_MAX)?;
        let names = match &index {
            Some(bytes) => shard_names(&parse::<Index>(INDEX, bytes)?)?,
            None => BTreeSet::from([SINGLE.to_owned()]),
        };
        let shards = names.into_iter().map(|name| {
            let data = files::map(&dir.join(&name))?;
            Ok((name, data))
        });
        Ok(Self {
            config: small("config.json", CONFIG_BYTES_MAX)?.ok_or_else(|| required("config.json"))?,
            generation_config: small("generation_config.json", CONFIG_BYTES_MAX)?,
            tokenizer: small("tokenizer.json", INDEX_BYTES_MAX)?,
            tokenizer_config: small("tokenizer_config.json", TOKENIZER_CONFIG_BYTES_MAX)?,
            chat_template: small("chat_template.jinja", CONFIG_BYTES_MAX)?,
            shards: shards.collect::<Result<_, ModelError>>()?,
            index,
        })
    }

    /// Builds the model; `name` is for people.
    ///
    /// # Errors
    /// Any file that does not parse, any tensor that is missing or of another shape than the configuration implies.
    pub fn into_model(self, name: &str) -> Result<Model, ModelError> {
        let config: Value = parse("config.json", &self.config)?;
        let generation: Option<Value> =
            self.generation_config.as_ref().map(|bytes| parse("generation_config.json", bytes)).transpose()?;
        let mut tensors = self.tensors(name)?;
        let words = words::Words::read(&self)?;
        let mut hyper = config::hyper(&config, generation.as_ref())?;
        hyper.eos_token_ids.extend(words.end_token.filter(|id| !hyper.eos_token_ids.contains(id)));
        if !tensors.has("mtp.fc.weight") && !tensors.has("language_model.mtp.fc.weight") {
            hyper.mtp_layers = 0;
        }
        let container = container(&hyper, &tensors);
        let weights = assemble::weights(&hyper, &container, &mut tensors)?;
        let tokenizer = words.tokenizer(&self, hyper.vocab_size)?;
        Ok(Model { name: name.into(), hyper, weights, tokenizer })
    }

    /// Every tensor of every shard that the index (if any) assigns to that shard.
    fn tensors(&self, model: &str) -> Result<Tensors, ModelError> {
        let index = self.index.as_ref().map(|bytes| parse::<Index>(INDEX, bytes)).transpose()?;
        let mut tensors = Tensors::new(model);
        for (file, data) in &self.shards {
            add_shard(file, data, index.as_ref(), &mut tensors)?;
        }
        let missing = index.iter().flat_map(|index| index.weight_map.iter()).find(|(name, _)| !tensors.has(name));
        if let Some((name, shard)) = missing {
            return Err(ModelError::MissingTensor { file: shard.clone(), tensor: name.clone() });
        }
        tensors.forget(|name| name.starts_with("model.visual.") || name.starts_with("vision_tower."));
        Ok(tensors)
    }
}

fn parse<'a, T: Deserialize<'a>>(file: &str, bytes: &'a [u8]) -> Result<T, ModelError> {
    serde_json::from_slice(bytes).map_err(|source| ModelError::Json { file: file.into(), source })
}

/// The index's shards: plain names of files in the same directory.
fn shard_names(index: &Index) -> Result<BTreeSet<String>, ModelError> {
    let names: BTreeSet<String> = index.weight_map.values().cloned().collect();
    match names.iter().find(|name| Path::new(name).file_name() != Some(name.as_ref())) {
        None => Ok(names),
        Some(name) => Err(ModelError::field(INDEX, "weight_map", "names of files beside it", name)),
    }
}

fn add_shard(file: &str, data: &Data, index: Option<&Index>, tensors: &mut Tensors) -> Result<(), ModelError> {
    let (header_bytes, header) = safetensors::SafeTensors::read_metadata(data)
        .map_err(|source| ModelError::SafeTensors { file: file.into(), source })?;
    let data_start = 8 + header_bytes;
    for (name, info) in header.tensors() {
        if index.is_some_and(|index| index.weight_map.get(&name).is_none_or(|shard| shard != file)) {
            continue;
        }
        let (start, end) = info.data_offsets;
        let Some(bytes) = start.checked_add(data_start).zip(end.checked_add(data_start)) else {
            return Err(ModelError::tensor(file, &name, "offsets within the file", end));
        };
        let Some(bytes) = data.slice(bytes.0..bytes.1) else {
            let expected = format!("an end within the file's {} bytes", data.len());
            return Err(ModelError::tensor(file, &name, expected, end));
        };
        let ty = match info.dtype {
            safetensors::Dtype::F32 => ElementType::Known(BlockType::F32),
            safetensors::Dtype::F16 => ElementType::Known(BlockType::F16),
            safetensors::Dtype::BF16 => ElementType::Known(BlockType::BF16),
            other => ElementType::Other(other.to_string()),
        };
        let tensor = Tensor { file: file.into(), ty, shape: info.shape.clone(), data: bytes };
        tensors.insert(name, tensor)?;
    }
    Ok(())
}

/// Chooses prefixes and conventions by what the files hold.
///
/// MLX exports have moved the convolution's axes and added 1 to the norms in the same step, so the convolution's shape
/// tells whether the norms still need it (presence of MTP tensors does not).
fn container(hyper: &super::HyperParameters, tensors: &Tensors) -> Container {
    let prefixes = ["model.language_model.", "model.", "language_model.model."];
    let has = |prefix: &&&str| tensors.has(&format!("{prefix}embed_tokens.weight"));
    let prefix = prefixes.iter().find(has).unwrap_or(&"model.");
    let root = if *prefix == "language_model.model." { "language_model." } else { "" };
    let layer_prefix = format!("{prefix}layers.");
    let first_recurrent = hyper.recurrent.iter().position(|recurrent| *recurrent);
    let conv = first_recurrent.map(|i| format!("{layer_prefix}{i}.{}", HUGGING_FACE.conv));
    let conv_shape = conv.as_ref().and_then(|name| tensors.shape(name));
    let is_mlx = matches!(conv_shape, Some([_, taps, 1]) if *taps > 1);
    let is_35 = hyper.architecture == Architecture::Qwen35Moe;
    let mtp = if tensors.has("mtp.fc.weight") { "mtp.".to_owned() } else { format!("{root}mtp.") };
    Container {
        embedding: format!("{prefix}embed_tokens.weight"),
        head: format!("{root}lm_head.weight"),
        final_norm: format!("{prefix}norm.weight"),
        layer_prefix,
        names: &HUGGING_FACE,
        norm_shift: if is_35 && !is_mlx { 1.0 } else { 0.0 },
        decay_is_log: true,
        mtp: (hyper.mtp_layers > 0).then(|| MtpNames {
            projection: format!("{mtp}fc.weight"),
            embedding_norm: format!("{mtp}pre_fc_norm_embedding.weight"),
            hidden_norm: format!("{mtp}pre_fc_norm_hidden.weight"),
            final_norm: format!("{mtp}norm.weight"),
            layer: format!("{mtp}layers.0."),
            embedding: format!("{mtp}embed_tokens.weight"),
            head: format!("{mtp}lm_head.weight"),
        }),
    }
}
