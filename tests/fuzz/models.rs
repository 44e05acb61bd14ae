//! Targets for both containers of model files.

use kvasir::model::{self, BlockType, Checkpoint, Data, Model, ModelError, QuantiseError};

use super::Target;
use crate::tiny_model::{self, Gguf};

const GGUF: Target = Target { name: "gguf", run: gguf };
const SAFETENSORS: Target = Target { name: "safetensors", run: safetensors };
const EXPERTS: Target = Target { name: "experts", run: experts };

fn outcome(model: Result<Model, ModelError>) -> String {
    match model {
        // Names come from the input; what was expected comes from the reader.
        Err(ModelError::Tensor { expected, .. }) => format!("tensor {expected}"),
        Err(ModelError::Field { expected, .. }) => format!("field {expected}"),
        Err(ModelError::Truncated { what, .. }) => format!("truncated {what}"),
        Err(ModelError::UnknownTensor { .. }) => "unknown tensor".into(),
        Err(other) => other.to_string(),
        Ok(model) => {
            let words = model.tokenizer.map(|words| {
                let ids = words.encode("he was <|im_end|> ok\n").unwrap_or_default();
                words.decode(&ids).is_ok()
            });
            format!("opened {words:?}")
        }
    }
}

fn gguf(input: &[u8]) -> String {
    outcome(model::from_gguf("input", Data::from(input.to_vec())))
}

/// `config.json`, a zero byte, a shard.
fn safetensors(input: &[u8]) -> String {
    let end = input.iter().position(|byte| *byte == 0).unwrap_or(input.len());
    let (config, shard) = input.split_at(end);
    let shard = shard.get(1..).unwrap_or_default().to_vec();
    let shards = vec![("model.safetensors".to_owned(), Data::from(shard))];
    outcome(Checkpoint { config: config.to_vec(), shards, ..Checkpoint::default() }.into_model("input"))
}

/// A model whose routed experts are quantised, whatever weights they have.
fn experts(input: &[u8]) -> String {
    let Ok(mut model) = model::from_gguf("input", Data::from(input.to_vec())) else { return "refused".into() };
    let ty = if input.len().is_multiple_of(2) { BlockType::Q8_0 } else { BlockType::Q4_0 };
    match model.quantise_experts(ty, |_| {}) {
        Ok(()) => "quantised".into(),
        Err(QuantiseError::Weight { tensor, .. }) => format!("a weight of {tensor}"),
        Err(QuantiseError::Rows { tensor, .. }) => format!("rows of {tensor}"),
        Err(other) => other.to_string(),
    }
}

/// The valid examples; `KVASIR_FUZZ_WRITE=1` writes them when the builders have changed.
fn examples() -> [(&'static Target, &'static str, Vec<u8>); 4] {
    let checkpoint =
        [tiny_model::config().to_string().into_bytes(), vec![0], tiny_model::safetensors(&tiny_model::tensors())];
    [
        (&GGUF, "valid-qwen3moe", Gguf::qwen3moe(8).bytes()),
        (&GGUF, "valid-with-words", Gguf::with_words().bytes()),
        (&SAFETENSORS, "valid-qwen35moe", checkpoint.concat()),
        (&EXPERTS, "valid-float-experts", Gguf::float_experts(32).bytes()),
    ]
}

#[test]
fn the_corpus_holds_valid_models() {
    for (target, name, bytes) in examples() {
        let path = target.corpus_dir().join(name);
        if std::env::var_os("KVASIR_FUZZ_WRITE").is_some() {
            std::fs::write(&path, &bytes).unwrap();
        }
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "{}", path.display());
        let outcome = (target.run)(&bytes);
        assert!(outcome.starts_with("opened") || outcome == "quantised", "{name}: {outcome}");
    }
}

#[test]
fn no_bytes_make_the_gguf_reader_panic() {
    GGUF.check();
}

#[test]
fn no_bytes_make_the_safetensors_reader_panic() {
    SAFETENSORS.check();
}

#[test]
fn no_weights_make_the_quantisers_panic() {
    EXPERTS.check();
}

#[test]
fn a_defect_behind_the_gguf_readers_checks_is_found() {
    let finding = GGUF.finds(|outcome| outcome.starts_with("tensor a start at or after"));
    assert!(finding.iteration > 0 && finding.message.contains("planted"));
}

#[test]
fn a_defect_behind_the_safetensors_readers_checks_is_found() {
    let finding = SAFETENSORS.finds(|outcome| outcome.starts_with("tensor shape"));
    assert!(finding.iteration > 0 && finding.message.contains("planted"));
}
