//! A file of the real model's shape, without its weights: 49 blocks of 256 experts in three shards of about 25 GB each,
//! whose data are holes. Opening must read headers and small tensors only, and find every expert at its place.
#![cfg(target_os = "linux")]

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kvasir::model::{self, BlockType, Inspection};

use crate::support::process::kvasir;
use crate::tiny_model::{Gguf, Tensor, Value, text};

const HIDDEN: u64 = 3072;
const INNER: u64 = 1024;
const EXPERTS: u64 = 256;
const TRUNK: u64 = 48;
const VOCABULARY: usize = 248_320;
const MARK: &[u8; 16] = b"the right expert";
/// What opening the whole file may take.
const OPEN: Duration = Duration::from_secs(2);

fn bytes(tensor: &Tensor) -> u64 {
    let row = BlockType::from_ggml(tensor.ty).unwrap().row_bytes(tensor.ne[0] as usize).unwrap();
    row as u64 * tensor.ne[1..].iter().product::<u64>()
}

fn tensor(name: impl Into<String>, ty: BlockType, ne: &[u64]) -> Tensor {
    Tensor { name: name.into(), ne: ne.into(), ty: ty as u32, offset: None, data: None }
}

/// Whether llama.cpp's Q4_K_M stores block `i` of 49 with six bits where it can.
fn is_finer(i: u64) -> bool {
    let n = TRUNK + 1;
    i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2
}

/// Block `i`; the last one is the MTP block.
fn block(i: u64) -> Vec<Tensor> {
    let (f32, q4) = (BlockType::F32, BlockType::Q4_K);
    let finer = if is_finer(i) { BlockType::Q6_K } else { q4 };
    let mut parts = vec![("attn_norm.weight", f32, vec![HIDDEN]), ("post_attention_norm.weight", f32, vec![HIDDEN])];
    if i % 4 == 3 || i == TRUNK {
        parts.extend([
            ("attn_q.weight", q4, vec![HIDDEN, 16384]),
            ("attn_k.weight", q4, vec![HIDDEN, 512]),
            ("attn_v.weight", finer, vec![HIDDEN, 512]),
            ("attn_output.weight", q4, vec![8192, HIDDEN]),
            ("attn_q_norm.weight", f32, vec![256]),
            ("attn_k_norm.weight", f32, vec![256]),
        ]);
    } else {
        parts.extend([
            ("attn_qkv.weight", finer, vec![HIDDEN, 12288]),
            ("attn_gate.weight", q4, vec![HIDDEN, 8192]),
            ("ssm_alpha.weight", q4, vec![HIDDEN, 64]),
            ("ssm_beta.weight", q4, vec![HIDDEN, 64]),
            ("ssm_conv1d.weight", f32, vec![4, 12288]),
            ("ssm_a", f32, vec![64]),
            ("ssm_dt.bias", f32, vec![64]),
            ("ssm_norm.weight", f32, vec![128]),
            ("ssm_out.weight", q4, vec![8192, HIDDEN]),
        ]);
    }
    parts.extend([
        ("ffn_gate_inp.weight", f32, vec![HIDDEN, EXPERTS]),
        ("ffn_gate_exps.weight", q4, vec![HIDDEN, INNER, EXPERTS]),
        ("ffn_up_exps.weight", q4, vec![HIDDEN, INNER, EXPERTS]),
        ("ffn_down_exps.weight", finer, vec![INNER, HIDDEN, EXPERTS]),
        ("ffn_gate_inp_shexp.weight", f32, vec![HIDDEN]),
        ("ffn_gate_shexp.weight", q4, vec![HIDDEN, INNER]),
        ("ffn_up_shexp.weight", q4, vec![HIDDEN, INNER]),
        ("ffn_down_shexp.weight", finer, vec![INNER, HIDDEN]),
    ]);
    if i == TRUNK {
        parts.push(("nextn.eh_proj.weight", q4, vec![2 * HIDDEN, HIDDEN]));
        let norms = ["nextn.enorm.weight", "nextn.hnorm.weight", "nextn.shared_head_norm.weight"];
        parts.extend(norms.map(|name| (name, f32, vec![HIDDEN])));
    }
    parts.into_iter().map(|(name, ty, ne)| tensor(format!("blk.{i}.{name}"), ty, &ne)).collect()
}

fn sizes() -> Vec<(String, Value)> {
    let sizes = [
        ("block_count", TRUNK + 1),
        ("nextn_predict_layers", 1),
        ("context_length", 262_144),
        ("embedding_length", HIDDEN),
        ("attention.head_count", 32),
        ("attention.head_count_kv", 2),
        ("attention.key_length", 256),
        ("attention.value_length", 256),
        ("rope.dimension_count", 64),
        ("expert_count", EXPERTS),
        ("expert_used_count", 8),
        ("expert_feed_forward_length", INNER),
        ("expert_shared_feed_forward_length", INNER),
        ("ssm.conv_kernel", 4),
        ("ssm.state_size", 128),
        ("ssm.group_count", 16),
        ("ssm.time_step_rank", 64),
        ("ssm.inner_size", 8192),
        ("full_attention_interval", 4),
    ];
    let mut keys = vec![("general.architecture".to_owned(), text("qwen35moe"))];
    keys.extend(sizes.map(|(name, n)| (format!("qwen35moe.{name}"), Value::U32(n as u32))));
    keys.push(("qwen35moe.rope.freq_base".into(), Value::F32(1e7)));
    keys.push(("qwen35moe.attention.layer_norm_rms_epsilon".into(), Value::F32(1e-6)));
    keys
}

/// A vocabulary of the real size: bytes, their pairs, some of their triples, control tokens, unused rows.
fn words() -> Vec<(String, Value)> {
    let mut keys = Gguf::with_words().keys;
    keys.retain(|(name, _)| name.starts_with("tokenizer."));
    let alphabet: Vec<String> = match keys.iter().find(|(name, _)| name == "tokenizer.ggml.tokens") {
        Some((_, Value::Texts(tokens))) => tokens[..256].to_vec(),
        _ => panic!("expected a list of tokens"),
    };
    let pairs = alphabet.iter().flat_map(|a| alphabet.iter().map(move |b| (a.clone(), b.clone())));
    let pairs: Vec<(String, String)> = pairs.collect();
    let triples = pairs.iter().flat_map(|(a, b)| alphabet.iter().map(move |c| (format!("{a}{b}"), c.clone())));
    let merged: Vec<(String, String)> = pairs.iter().cloned().chain(triples).take(248_044 - 256).collect();
    let mut tokens = alphabet.clone();
    tokens.extend(merged.iter().map(|(a, b)| format!("{a}{b}")));
    tokens.extend(["<|endoftext|>", "<|im_start|>", "<|im_end|>"].map(str::to_owned));
    let (normal, used) = (248_044, tokens.len());
    tokens.extend((used..VOCABULARY).map(|id| format!("[PAD{id}]")));
    let kind = |id: usize| {
        if id < normal {
            1
        } else if id < used {
            3
        } else {
            5
        }
    };
    let merges = merged.iter().map(|(a, b)| format!("{a} {b}")).collect();
    for (name, value) in [
        ("tokens", Value::Texts(tokens)),
        ("token_type", Value::I32s((0..VOCABULARY).map(kind).collect())),
        ("merges", Value::Texts(merges)),
        ("eos_token_id", Value::U32(248_046)),
        ("pre", text("qwen35")),
    ] {
        let name = format!("tokenizer.ggml.{name}");
        keys.retain(|(key, _)| *key != name);
        keys.push((name, value));
    }
    keys
}

/// How long this thread has run: time on a machine that others use, too.
fn worked() -> Duration {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(told.split(' ').next().unwrap().parse().unwrap())
}

/// Writes the three shards; gives the path of the second one and the bytes that all seem to have.
fn write_shards(dir: &Path) -> (PathBuf, u64) {
    let vocab = VOCABULARY as u64;
    let blocks = |range: std::ops::Range<u64>| range.flat_map(block);
    let embedding = tensor("token_embd.weight", BlockType::Q4_K, &[HIDDEN, vocab]);
    let head = tensor("output.weight", BlockType::Q6_K, &[HIDDEN, vocab]);
    let norm = tensor("output_norm.weight", BlockType::F32, &[HIDDEN]);
    let shards: [Vec<Tensor>; 3] = [
        std::iter::once(embedding).chain(blocks(0..16)).collect(),
        blocks(16..33).collect(),
        blocks(33..TRUNK + 1).chain([norm, head]).collect(),
    ];
    let total = shards.iter().map(Vec::len).sum::<usize>() as i32;
    let path = |number: usize| dir.join(format!("real-{:05}-of-00003.gguf", number + 1));
    let mut apparent = 0;
    for (number, tensors) in shards.into_iter().enumerate() {
        let keys = if number == 0 { [sizes(), words()].concat() } else { Vec::new() };
        let mut shard = Gguf { keys, tensors, ..Gguf::qwen3moe(8) };
        shard.set("split.no", Value::U16(number as u16)).set("split.count", Value::U16(3));
        shard.set("split.tensors.count", Value::Raw(5, total.to_le_bytes().into()));
        let (header, data) = shard.head(bytes);
        let file = File::create(path(number)).unwrap();
        file.write_all_at(&header, 0).unwrap();
        file.set_len(header.len() as u64 + data).unwrap();
        apparent += header.len() as u64 + data;
        let mut at = header.len() as u64;
        for tensor in &shard.tensors {
            if tensor.name == format!("blk.{TRUNK}.ffn_down_exps.weight") {
                file.write_all_at(MARK, at + 200 * (bytes(tensor) / EXPERTS)).unwrap();
            }
            at = (at + bytes(tensor)).next_multiple_of(32);
        }
        assert!(file.metadata().unwrap().blocks() * 512 < 64 << 20, "a file system that keeps holes as holes");
    }
    (path(1), apparent)
}

#[test]
fn a_file_of_the_real_shape_opens_at_once_and_every_expert_is_at_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let (part, apparent) = write_shards(dir.path());
    assert!((75_000_000_000..77_000_000_000).contains(&apparent), "{apparent}");

    let (start, worked) = (Instant::now(), worked());
    let model = model::open(&part).unwrap();
    let (took, worked) = (start.elapsed(), self::worked() - worked);
    eprintln!("{apparent} bytes open in {took:?}, {worked:?} of them at work");
    assert!(worked < OPEN, "{worked:?} of work to open");
    let mtp = &model.weights.mtp.as_ref().unwrap().layer;
    let marked = |e: usize| mtp.experts[e].down.data.starts_with(MARK);
    assert_eq!((0..256).filter(|e| marked(*e)).collect::<Vec<_>>(), [200]);
    let inspection = Inspection::of(&model).with_slice(&model, 4 << 30);
    assert_eq!((inspection.experts_total, inspection.layers, inspection.mtp_layers), (12_544, 48, 1));
    let fit = inspection.slice.unwrap();
    assert_eq!((fit.whole_layers, fit.experts), (2, 2 * 256 + 189));

    let shown = kvasir(dir.path(), &["model", "inspect", part.to_str().unwrap()]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    for expected in ["12,544 in all", "5,308,416 B (Q4_K) in 24 layers", "6,119,424 B (Q4_K, Q4_K, Q6_K) in 25 layers"]
    {
        assert!(shown.contains(expected), "expected {expected:?} in {shown}");
    }
}
