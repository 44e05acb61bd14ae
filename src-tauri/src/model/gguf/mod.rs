//! GGUF v3 files, single or split into `-00001-of-0000N` parts → a [`Model`].

mod hyper;
mod reader;
mod value;
mod words;
pub(super) mod writer;

use std::path::{Path, PathBuf};

use super::assemble::{self, Container, MtpNames};
use super::names::{GGUF_QWEN3, GGUF_QWEN35};
use super::tensors::{ElementType, Tensor, Tensors};
use super::{Architecture, Data, HyperParameters, Model, ModelError, files};
use hyper::Metadata;
use reader::Header;
use value::Value;

const EMBEDDING: &str = "token_embd.weight";
/// Key with the number of tensors in all parts.
const SPLIT_TENSORS: &str = "split.tensors.count";
/// Tokens that end a turn or a text in both families, whichever of them `eos_token_id` names.
const END_TOKENS: [&str; 2] = ["<|im_end|>", "<|endoftext|>"];

/// Opens `path` and, when it is one part of a split file, its siblings.
pub(super) fn open(path: &Path) -> Result<Model, ModelError> {
    let paths = part_paths(path);
    let parts = paths.iter().map(|part| Ok((part.display().to_string(), files::map(part)?)));
    let parts = parts.collect::<Result<_, ModelError>>()?;
    let name = paths.first().and_then(|first| first.file_stem());
    read(&name.map_or_else(|| "model".into(), std::ffi::OsStr::to_string_lossy), parts)
}

/// Reads a model out of the parts of a file, first part first; `name` stands in where the metadata has none.
pub(super) fn read(name: &str, parts: Vec<(String, Data)>) -> Result<Model, ModelError> {
    let Some((file, first)) = parts.first() else {
        return Err(ModelError::field(name, "parts", "at least 1", 0));
    };
    let head = reader::read(file, first)?;
    let metadata = Metadata { file, values: &head.metadata };
    check_split(&metadata, 0, parts.len())?;
    let total = metadata.optional(SPLIT_TENSORS, "a size", Value::size)?;
    let mut tensors = Tensors::new(file);
    add(file, first, &head, &mut tensors)?;
    for (number, (file, data)) in parts.iter().enumerate().skip(1) {
        let part = reader::read(file, data)?;
        let values = Metadata { file, values: &part.metadata };
        check_split(&values, number, parts.len())?;
        let here = values.optional(SPLIT_TENSORS, "a size", Value::size)?;
        if let (Some(total), Some(here)) = (total, here)
            && here != total
        {
            let expected = format!("{total} as in the first part, so that all are parts of one model");
            return Err(ModelError::field(file, SPLIT_TENSORS, expected, here));
        }
        add(file, data, &part, &mut tensors)?;
    }
    if let Some(total) = total.filter(|total| *total != tensors.len()) {
        let expected = format!("{}, the tensors of all parts", tensors.len());
        return Err(ModelError::field(file, SPLIT_TENSORS, expected, total));
    }
    model(name, &metadata, &mut tensors)
}

fn model(name: &str, metadata: &Metadata, tensors: &mut Tensors) -> Result<Model, ModelError> {
    let vocab_size = tensors.shape(EMBEDDING).and_then(|shape| shape.first().copied()).unwrap_or(0);
    let hyper = hyper::hyper(metadata, vocab_size, end_tokens(metadata)?)?;
    let weights = assemble::weights(&hyper, &container(&hyper), tensors)?;
    let name = metadata.text("general.name")?.unwrap_or(name).into();
    let tokenizer = words::tokenizer(metadata, vocab_size)?;
    Ok(Model { name, hyper, weights, tokenizer })
}

/// What GGUF calls the tensors of such a model, and in what form it has them.
pub(super) fn container(hyper: &HyperParameters) -> Container {
    Container {
        embedding: EMBEDDING.into(),
        head: "output.weight".into(),
        final_norm: "output_norm.weight".into(),
        layer_prefix: "blk.".into(),
        names: if hyper.architecture == Architecture::Qwen35Moe { &GGUF_QWEN35 } else { &GGUF_QWEN3 },
        norm_shift: 0.0,
        decay_is_log: false,
        mtp: (hyper.mtp_layers > 0).then(|| {
            let layer = format!("blk.{}.", hyper.layers);
            let name = |part: &str| format!("{layer}nextn.{part}.weight");
            MtpNames {
                projection: name("eh_proj"),
                embedding_norm: name("enorm"),
                hidden_norm: name("hnorm"),
                final_norm: name("shared_head_norm"),
                embedding: name("embed_tokens"),
                head: name("shared_head_head"),
                layer: layer.clone(),
            }
        }),
    }
}

/// The metadata of the file or of its first part: keys and the bytes of their values, type first.
pub(super) fn metadata(path: &Path) -> Result<Vec<(String, Vec<u8>)>, ModelError> {
    let first = part_paths(path).swap_remove(0);
    let data = files::map(&first)?;
    let header = reader::read(&first.display().to_string(), &data)?;
    Ok(header.raw.into_iter().map(|(key, value)| (key.to_owned(), value.to_vec())).collect())
}

fn add(file: &str, data: &Data, header: &Header, tensors: &mut Tensors) -> Result<(), ModelError> {
    for entry in &header.tensors {
        let Some(data) = data.slice(entry.start..entry.end) else {
            return Err(ModelError::tensor(file, entry.name, "bytes within the file", entry.end));
        };
        let shape = entry.shape.clone();
        let tensor = Tensor { file: file.into(), ty: ElementType::Known(entry.ty), shape, data };
        tensors.insert(entry.name.into(), tensor)?;
    }
    Ok(())
}

/// A part must say that it is number `number` of `count`; a file that says nothing is whole.
fn check_split(metadata: &Metadata, number: usize, count: usize) -> Result<(), ModelError> {
    let unnamed = if count == 1 { ", since its name does not end in …-00001-of-00002.gguf" } else { "" };
    for (key, default, expected) in [("split.count", 1, count), ("split.no", 0, number)] {
        let got = metadata.size_or(key, default)?;
        if got != expected {
            return Err(ModelError::field(metadata.file, key, format!("{expected}{unnamed}"), got));
        }
    }
    Ok(())
}

/// `eos` and `eot` of the metadata, then the family's own end tokens, each once.
fn end_tokens(metadata: &Metadata) -> Result<Vec<u32>, ModelError> {
    let mut ids = Vec::new();
    for key in ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"] {
        let read = |value: &Value| value.size().and_then(|id| u32::try_from(id).ok());
        ids.extend(metadata.optional(key, "a token id", read)?);
    }
    if let Some(Value::Array(tokens)) = metadata.get("tokenizer.ggml.tokens") {
        let texts = tokens.texts().into_iter().flatten().zip(0u32..);
        ids.extend(texts.filter(|(text, _)| END_TOKENS.contains(text)).map(|(_, id)| id));
    }
    let mut seen = std::collections::HashSet::new();
    ids.retain(|id| seen.insert(*id));
    Ok(ids)
}

/// Splits `…/stem-00002-of-00005.gguf` into stem, number and count; `None` for any other name.
fn part_of(path: &Path) -> Option<(&str, usize, usize)> {
    let name = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
    let (rest, count) = name.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| (text.len() == 5).then(|| text.parse::<usize>().ok()).flatten();
    let (number, count) = (digits(number)?, digits(count)?);
    (1 <= number && number <= count).then_some((stem, number, count))
}

/// The files of the model of which `path` is one, the one with the metadata first; there is one at least.
pub(super) fn part_paths(path: &Path) -> Vec<PathBuf> {
    let Some((stem, _, count)) = part_of(path) else { return vec![path.to_path_buf()] };
    (1..=count).map(|number| path.with_file_name(format!("{stem}-{number:05}-of-{count:05}.gguf"))).collect()
}
