//! Files that lie, end early or hold something else are refused with one clear message, and nothing is allocated for
//! what they only claim.

use std::path::Path;

use kvasir::model::{self, Checkpoint, Data};
use serde_json::json;

use crate::allocation;
use crate::tiny_model::{self, Gguf, Value, text};

const FILE: &str = "tiny.gguf";

/// The message with which a GGUF file is refused.
fn refusal(bytes: Vec<u8>) -> String {
    let length = bytes.len();
    let (outcome, peak) = allocation::peak(|| model::from_gguf(FILE, Data::from(bytes)));
    let message = outcome.map(|model| model.name).unwrap_err().to_string();
    assert!(peak <= 2 * length + 65_536, "{peak} bytes were allocated for a file of {length}: {message}");
    message
}

/// What is spoiled, how, and words of the refusal.
type Case<'a> = (&'a str, &'a dyn Fn(&mut Gguf), &'a [&'a str]);

/// Asserts that each change to the tiny model is refused with a message that contains all the words.
fn refused(cases: Vec<Case>) {
    for (what, change, words) in cases {
        let mut file = Gguf::qwen3moe(8);
        change(&mut file);
        let message = refusal(file.bytes());
        for word in words.iter().chain([&FILE]) {
            assert!(message.contains(word), "{what}: expected {word:?} in {message:?}");
        }
    }
}

#[test]
fn the_tiny_models_open() {
    let model = model::from_gguf(FILE, Data::from(Gguf::qwen3moe(8).bytes())).unwrap();
    assert_eq!((model.name.as_str(), model.hyper.experts, model.tokenizer.is_none()), (FILE, 2, true));
    let model = model::from_gguf(FILE, Data::from(Gguf::with_words().bytes())).unwrap();
    let words = model.tokenizer.unwrap();
    assert_eq!(words.encode("hehi<|im_end|>").unwrap(), [256, 104, 105, 257]);
    assert_eq!(model.hyper.eos_token_ids, [257]);
    let model = checkpoint(&tiny_model::config(), tiny_model::safetensors(&tiny_model::tensors())).unwrap();
    assert_eq!(model.hyper.eos_token_ids, [7, 6]);
}

#[test]
fn a_file_cut_anywhere_is_refused_without_a_panic() {
    for bytes in [Gguf::qwen3moe(8).bytes(), Gguf::with_words().bytes()] {
        for end in 0..bytes.len() {
            let outcome = model::from_gguf(FILE, Data::from(bytes[..end].to_vec()));
            // The last tensor's padding is not needed.
            assert!(outcome.is_err() || end + 32 > bytes.len(), "cut at {end} of {}", bytes.len());
        }
    }
}

#[test]
fn headers_that_lie_are_refused() {
    refused(vec![
        ("magic", &|f| f.magic = *b"GGML", &["magic", "expected \"GGUF\""]),
        ("version", &|f| f.version = 2, &["version: expected 3", "got 2"]),
        ("big-endian", &|f| f.version = 3u32.swap_bytes(), &["little-endian"]),
        ("tensor count", &|f| f.counts = Some((1 << 63, 3)), &["tensor count: expected at most 65536"]),
        ("key count", &|f| f.counts = Some((3, u64::MAX)), &["metadata count: expected at most 65536"]),
        ("too few", &|f| f.counts = Some((60_000, 12)), &["expected", "got"]),
        (
            "text length",
            &|f| f.keys[0].1 = Value::Raw(8, (1u64 << 63).to_le_bytes().into()),
            &["expected 9223372036854775808 bytes for a text value"],
        ),
        (
            "array length",
            &|f| f.keys[0].1 = Value::Raw(9, [&[4, 0, 0, 0], &u64::MAX.to_le_bytes()[..]].concat()),
            &["expected 18446744073709551615 bytes for an array"],
        ),
        (
            "text array",
            &|f| f.keys[0].1 = Value::Raw(9, [&[8, 0, 0, 0], &u64::MAX.to_le_bytes()[..]].concat()),
            &["a text in an array"],
        ),
        (
            "nested array",
            &|f| f.keys[0].1 = Value::Raw(9, [[9, 0, 0, 0], [0; 4], [0; 4]].concat()),
            &["expected an array of numbers, booleans or texts, got 9"],
        ),
        ("value type", &|f| f.keys[0].1 = Value::Raw(77, vec![]), &["expected a value type from 0 to 12, got 77"]),
        ("boolean", &|f| f.keys[0].1 = Value::Raw(7, vec![2]), &["expected 0 or 1"]),
        ("not UTF-8", &|f| f.keys[0].1 = Value::Text(vec![0xFF, 0xFE]), &["expected UTF-8", "at offset"]),
        ("a key twice", &|f| f.keys.push(f.keys[1].clone()), &["qwen3moe.block_count", "the key once"]),
        ("empty key", &|f| f.keys[0].0.clear(), &["length of a key", "got 0"]),
        ("alignment", &|f| _ = f.set("general.alignment", Value::U32(48)), &["general.alignment", "got 48"]),
    ]);
}

#[test]
fn tensors_that_lie_are_refused() {
    refused(vec![
        ("offset", &|f| f.tensor("blk.0.attn_q.weight").offset = Some(33), &["blk.0.attn_q.weight", "aligned to 32"]),
        (
            "far offset",
            &|f| f.tensor("blk.0.attn_q.weight").offset = Some(1 << 62),
            &["blk.0.attn_q.weight", "an end within the file's"],
        ),
        ("overflow", &|f| f.tensor("blk.0.attn_q.weight").offset = Some(u64::MAX - 31), &["blk.0.attn_q.weight"]),
        ("overlap", &|f| f.tensor("blk.0.attn_q.weight").offset = Some(0), &["expected a start at or after"]),
        ("2^63 elements", &|f| f.tensor("blk.0.attn_q.weight").ne = vec![4, 1 << 62], &["blk.0.attn_q.weight", "2^63"]),
        ("2^64 elements", &|f| f.tensor("blk.0.attn_q.weight").ne = vec![1 << 33, 1 << 33, 4], &["2^63"]),
        ("no elements", &|f| f.tensor("blk.0.attn_q.weight").ne = vec![4, 0], &["expected sizes above 0"]),
        ("dimensions", &|f| f.tensor("blk.0.attn_q.weight").ne = vec![1; 5], &["expected 1 to 4 dimensions, got 5"]),
        ("type", &|f| f.tensor("blk.0.attn_q.weight").ty = 18, &["expected one of F32,", "got ggml type 18"]),
        ("blocks", &|f| f.tensor("blk.0.attn_q.weight").ty = 12, &["whole Q4_K blocks of 256, got 4"]),
        ("shape", &|f| f.tensor("blk.0.attn_q.weight").ne = vec![4, 3], &["expected shape [4, 4], got [3, 4]"]),
        ("transposed", &|f| f.tensor("blk.0.attn_k.weight").ne = vec![2, 4], &["expected shape [2, 4], got [4, 2]"]),
        ("expert count", &|f| f.tensor("blk.0.ffn_up_exps.weight").ne = vec![4, 4, 1], &["expected shape [2, 4, 4]"]),
        (
            "missing",
            &|f| f.tensors.retain(|t| t.name != "blk.0.ffn_norm.weight"),
            &["expected tensor blk.0.ffn_norm.weight, got none"],
        ),
        ("no embedding", &|f| _ = f.tensors.remove(0), &["vocabulary size: expected 1 to"]),
        ("twice", &|f| f.tensors.push(f.tensors[4].clone()), &["blk.0.attn_q.weight", "a second one"]),
        (
            "an extra",
            &|f| {
                let mut extra = f.tensors[4].clone();
                extra.name = "blk.0.attn_q.bias".into();
                f.tensors.push(extra);
            },
            &["only known tensors", "blk.0.attn_q.bias"],
        ),
    ]);
}

#[test]
fn metadata_of_other_models_is_refused() {
    let set = |key: &'static str, value: Value| move |f: &mut Gguf| _ = f.set(key, value.clone());
    refused(vec![
        ("architecture", &set("general.architecture", text("llama")), &["qwen35moe or qwen3moe", "llama"]),
        ("no architecture", &|f| _ = f.remove("general.architecture"), &["general.architecture"]),
        ("missing key", &|f| _ = f.remove("qwen3moe.expert_count"), &["qwen3moe.expert_count", "no such key"]),
        ("wrong kind", &set("qwen3moe.expert_count", text("two")), &["expected a size, got \"two\""]),
        ("many layers", &set("qwen3moe.block_count", Value::U32(u32::MAX)), &["block_count: expected 1 to 1024"]),
        ("many experts", &set("qwen3moe.expert_count", Value::U32(u32::MAX)), &["experts: expected 1 to 65534"]),
        ("top-k", &set("qwen3moe.expert_used_count", Value::U32(3)), &["experts per token: expected 1 to 2, got 3"]),
        ("heads", &set("qwen3moe.attention.head_count_kv", Value::U32(3)), &["a multiple of 3, got 2"]),
        ("no heads", &set("qwen3moe.attention.head_count_kv", Value::U32(0)), &["key/value heads"]),
        ("width", &set("qwen3moe.embedding_length", Value::U32(u32::MAX)), &["hidden size: expected 1 to 1048576"]),
        ("scaled RoPE", &set("qwen3moe.rope.scaling.type", text("yarn")), &["scaled RoPE", "yarn"]),
        ("odd rotary", &set("qwen3moe.rope.dimension_count", Value::U32(1)), &["rotary size", "a multiple of 2"]),
        ("RoPE base", &set("qwen3moe.rope.freq_base", Value::F32(f32::NAN)), &["RoPE base", "NaN"]),
        ("end token", &set("tokenizer.ggml.eos_token_id", Value::U32(8)), &["end tokens: expected ids below", "got 8"]),
        ("part of a split", &set("split.count", Value::U16(3)), &["split.count: expected 1, since its name", "got 3"]),
        (
            "count of tensors",
            &set("split.tensors.count", Value::U32(3)),
            &["split.tensors.count: expected 14, the tensors of all parts, got 3"],
        ),
    ]);
}

#[test]
fn vocabularies_that_do_not_fit_are_refused() {
    type Spoil<'a> = &'a dyn Fn(&mut Gguf);
    let cases: Vec<(&str, Spoil<'_>, &str)> = vec![
        (
            "few tokens",
            &|f| _ = f.set("tokenizer.ggml.tokens", Value::Texts(vec!["a".into(); 3])),
            "expected 259 tokens, one per embedding row, got 3",
        ),
        ("repeated", &|f| _ = f.set("tokenizer.ggml.tokens", Value::Texts(vec!["a".into(); 259])), "every token once"),
        ("few kinds", &|f| _ = f.set("tokenizer.ggml.token_type", Value::I32s(vec![1])), "259 numbers, one per token"),
        ("numbers", &|f| _ = f.set("tokenizer.ggml.tokens", Value::I32s(vec![1])), "an array of texts"),
        ("no token for a byte", &|f| _ = f.set("tokenizer.ggml.token_type", Value::I32s(vec![5; 259])), "0x00"),
        ("merge", &|f| _ = f.set("tokenizer.ggml.merges", Value::Texts(vec!["he".into()])), "merges of two tokens"),
        ("merge of strangers", &|f| _ = f.set("tokenizer.ggml.merges", Value::Texts(vec!["h x".into()])), "hx"),
        ("model", &|f| _ = f.set("tokenizer.ggml.model", text("llama")), "tokenizer.ggml.model"),
        ("split", &|f| _ = f.set("tokenizer.ggml.pre", text("llama-bpe")), "qwen35 or qwen2"),
        ("template", &|f| _ = f.set("tokenizer.chat_template", text("{% for %}")), "chat template"),
    ];
    for (what, change, expected) in cases {
        let mut file = Gguf::with_words();
        change(&mut file);
        let message = model::from_gguf(FILE, Data::from(file.bytes())).unwrap_err().to_string();
        assert!(message.contains(expected) && message.contains(FILE), "{what}: expected {expected:?} in {message:?}");
    }
}

/// A checkpoint of one configuration and one shard.
fn checkpoint(config: &serde_json::Value, shard: Vec<u8>) -> Result<model::Model, model::ModelError> {
    let shards = vec![("model.safetensors".to_owned(), Data::from(shard))];
    Checkpoint { config: config.to_string().into(), shards, ..Checkpoint::default() }.into_model("tiny")
}

#[test]
fn safetensors_that_lie_are_refused() {
    let one = |header: serde_json::Value| tiny_model::with_header(&header, &[0; 64]);
    let tensor = |dtype: &str, shape: serde_json::Value, offsets: serde_json::Value| {
        one(json!({ "a": { "dtype": dtype, "shape": shape, "data_offsets": offsets } }))
    };
    let valid = tiny_model::safetensors(&tiny_model::tensors());
    let mut shapes = tiny_model::tensors();
    shapes[3].1 = vec![5];
    let cases = [
        ("empty", vec![]),
        ("header length", [&u64::MAX.to_le_bytes()[..], b"{}"].concat()),
        ("header of 2^63", [&(1u64 << 63).to_le_bytes()[..], b"{}"].concat()),
        ("not JSON", [&2u64.to_le_bytes()[..], b"{["].concat()),
        ("not UTF-8", [&2u64.to_le_bytes()[..], &[0xFF, 0xFE]].concat()),
        ("offsets", tensor("F32", json!([16]), json!([0, 63]))),
        ("backwards", tensor("F32", json!([16]), json!([64, 0]))),
        ("overflow", tensor("F32", json!([1u64 << 62, 1u64 << 62]), json!([0, 64]))),
        ("beyond", tensor("F32", json!([16]), json!([64, 128]))),
        ("short data", valid[..valid.len() - 1].to_vec()),
        ("unknown type", tensor("Q9", json!([16]), json!([0, 64]))),
        (
            "overlap",
            one(json!({
                "a": { "dtype": "F32", "shape": [16], "data_offsets": [0, 64] },
                "b": { "dtype": "F32", "shape": [8], "data_offsets": [32, 64] }
            })),
        ),
        ("wrong shape", tiny_model::safetensors(&shapes)),
        ("missing tensor", tiny_model::safetensors(&tiny_model::tensors()[1..])),
    ];
    for (what, shard) in cases {
        let length = shard.len();
        let (outcome, peak) = allocation::peak(|| checkpoint(&tiny_model::config(), shard));
        let message = outcome.map(|model| model.name).unwrap_err().to_string();
        assert!(peak <= 2 * length + 65_536, "{what}: {peak} bytes were allocated for {length}");
        assert!(message.contains("model.safetensors") || message.contains("tiny"), "{what}: {message}");
    }
    for end in 0..valid.len() {
        assert!(checkpoint(&tiny_model::config(), valid[..end].to_vec()).is_err(), "cut at {end}");
    }
}

#[test]
fn quantised_checkpoints_are_refused_by_their_element_type() {
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for (name, shape) in tiny_model::tensors() {
        let (dtype, size) = if name.ends_with("in_proj_z.weight") { ("F8_E4M3", 1) } else { ("BF16", 2) };
        let start = end;
        end += size * shape.iter().product::<usize>();
        header.insert(name, json!({ "dtype": dtype, "shape": shape, "data_offsets": [start, end] }));
    }
    let shard = tiny_model::with_header(&header.into(), &vec![0; end]);
    let message = checkpoint(&tiny_model::config(), shard).unwrap_err().to_string();
    assert!(message.contains("in_proj_z.weight: expected a supported element type, got F8_E4M3"), "{message}");
}

#[test]
fn configurations_of_other_arithmetic_are_refused() {
    let cases = [
        ("model_type", json!("llama"), "qwen3_5_moe_text or qwen3_moe"),
        ("hidden_act", json!("gelu"), "hidden_act: expected \"silu\""),
        ("attention_bias", json!(true), "attention_bias: expected false"),
        ("mlp_only_layers", json!([0]), "mlp_only_layers"),
        ("rope_scaling", json!({ "type": "yarn", "factor": 4.0 }), "scaled RoPE"),
        ("hidden_size", json!(-4), "hidden_size: expected a size, got -4"),
        ("hidden_size", json!(u64::MAX), "hidden size"),
        ("num_hidden_layers", json!(u64::MAX), "num_hidden_layers: expected 1 to 1024"),
        ("num_experts", json!(1u64 << 40), "experts: expected 1 to 65534"),
        ("layer_types", json!(["linear_attention", "full_attention"]), "layer_types: expected 1 kinds"),
        ("layer_types", json!(["sliding_attention"]), "linear_attention or full_attention"),
        ("rope_theta", json!("big"), "rope_theta: expected a number"),
        ("rope_theta", json!(null), "rope_theta: expected a value, got no such key"),
        ("eos_token_id", json!([7, -1]), "eos_token_id"),
        ("eos_token_id", json!(8), "expected ids below the vocabulary's 8, got 8"),
    ];
    for (key, value, expected) in cases {
        let mut config = tiny_model::config();
        config[key] = value;
        let shard = tiny_model::safetensors(&tiny_model::tensors());
        let message = checkpoint(&config, shard).unwrap_err().to_string();
        assert!(message.starts_with("config.json: ") && message.contains(expected), "{key}: {message}");
    }
}

fn write(dir: &Path, name: &str, bytes: &[u8]) {
    std::fs::write(dir.join(name), bytes).unwrap();
}

/// Part `number` of the tiny model in two parts.
fn part(number: u16) -> Gguf {
    let mut file = Gguf::qwen3moe(8);
    let second = file.tensors.split_off(5);
    if number == 1 {
        file.keys.clear();
        file.tensors = second;
    }
    file.set("split.no", Value::U16(number)).set("split.count", Value::U16(2));
    file.set("split.tensors.count", Value::Raw(5, 14i32.to_le_bytes().into()));
    file
}

fn name(number: u32) -> String {
    format!("m-{number:05}-of-00002.gguf")
}

#[test]
fn parts_that_contradict_each_other_are_refused() {
    let first = part(0).tensors[4].clone();
    let cases: [Case; 6] = [
        ("count", &|f| _ = f.set("split.count", Value::U16(3)), &["split.count: expected 2, got 3"]),
        ("no count", &|f| _ = f.remove("split.count"), &["split.count: expected 2, got 1"]),
        ("number", &|f| _ = f.set("split.no", Value::U16(2)), &["split.no: expected 1, got 2"]),
        (
            "of another model",
            &|f| _ = f.set("split.tensors.count", Value::U16(15)),
            &["split.tensors.count: expected 14 as in the first part, so that all are parts of one model, got 15"],
        ),
        (
            "a tensor less",
            &|f| _ = f.tensors.pop(),
            &["split.tensors.count: expected 13, the tensors of all parts, got 14"],
        ),
        ("a tensor twice", &|f| f.tensors.push(first.clone()), &["blk.0.attn_q.weight: expected it only in"]),
    ];
    for (what, change, words) in cases {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &name(1), &part(0).bytes());
        let mut second = part(1);
        change(&mut second);
        write(dir.path(), &name(2), &second.bytes());
        let message = model::open(&dir.path().join(name(1))).unwrap_err().to_string();
        assert!(words.iter().all(|word| message.contains(word)), "{what}: expected {words:?} in {message:?}");
    }
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &name(1), &part(0).bytes());
    let cut = part(1).bytes();
    write(dir.path(), &name(2), &cut[..cut.len() - 64]);
    let message = model::open(&dir.path().join(name(2))).unwrap_err().to_string();
    assert!(message.contains("m-00002-of-00002.gguf") && message.contains("an end within the file's"), "{message}");
}

#[test]
fn any_part_of_a_split_file_opens_the_whole() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &name(1), &part(0).bytes());
    let missing = model::open(&dir.path().join(name(1))).unwrap_err().to_string();
    assert!(missing.contains("m-00002-of-00002.gguf"), "{missing}");
    write(dir.path(), &name(2), &part(1).bytes());
    for number in [1, 2] {
        assert_eq!(model::open(&dir.path().join(name(number))).unwrap().hyper.experts, 2);
    }
    write(dir.path(), &name(2), &part(0).bytes());
    let twice = model::open(&dir.path().join(name(2))).unwrap_err().to_string();
    assert!(twice.contains("m-00002-of-00002.gguf: split.no: expected 1, got 0"), "{twice}");
}

#[test]
fn an_index_may_not_point_outside_of_its_directory() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "config.json", tiny_model::config().to_string().as_bytes());
    let index = |shard: &str| json!({ "weight_map": { "lm_head.weight": shard } }).to_string();
    for shard in ["../model.safetensors", "/etc/passwd", "a/b.safetensors", "..", ""] {
        write(dir.path(), "model.safetensors.index.json", index(shard).as_bytes());
        let message = model::open(dir.path()).unwrap_err().to_string();
        assert!(message.contains("expected names of files beside it"), "{shard:?}: {message}");
    }
    write(dir.path(), "model.safetensors.index.json", index("gone.safetensors").as_bytes());
    assert!(model::open(dir.path()).unwrap_err().to_string().contains("gone.safetensors"));
    write(dir.path(), "gone.safetensors", &tiny_model::safetensors(&tiny_model::tensors()[..1]));
    let message = model::open(dir.path()).unwrap_err().to_string();
    assert_eq!(message, "gone.safetensors: expected tensor lm_head.weight, got none of that name");
}
