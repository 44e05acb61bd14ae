//! Float checkpoints become exact ones: as a file by `kvasir model convert`, or in memory by `--experts`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvasir::backbone::{Backbone, Want};
use kvasir::dispatch::Mode;
use kvasir::model::{self, BlockType, Conversion, Manifest, Matrix, Mixer, Model};

use crate::support::process::kvasir;
use crate::support::{data, largest_difference, local};
use crate::tiny_model::Gguf;

fn open(path: &Path) -> Model {
    model::open(path).unwrap()
}

/// `source` converted into `dir`.
fn converted(source: &Path, dir: &Path, to: BlockType) -> PathBuf {
    let out = dir.join("out.gguf");
    let mut told = (0, 0);
    let order = Conversion { out: &out, to, overwrite: true };
    let bytes = model::convert(source, &order, |done, total| {
        assert!(done >= told.0 && done <= total);
        told = (done, total);
    });
    let bytes = bytes.unwrap();
    assert_eq!((bytes, told.1), (std::fs::metadata(&out).unwrap().len(), bytes));
    assert!(bytes - told.0 < 32, "{told:?}");
    assert_eq!(std::fs::read_dir(dir).unwrap().count(), 1, "only the file itself is left");
    out
}

fn floats(matrix: &Matrix) -> Vec<f32> {
    matrix.ty.floats(&matrix.data).unwrap()
}

/// Everything but the routed experts, as numbers.
fn dense(model: &Model) -> Vec<(&'static str, Vec<f32>)> {
    let weights = &model.weights;
    let mut all = vec![("embedding", floats(&weights.embedding)), ("head", floats(&weights.head))];
    all.push(("final norm", weights.final_norm.clone()));
    for layer in weights.moe_layers() {
        all.extend([("input norm", layer.input_norm.clone()), ("post norm", layer.post_norm.clone())]);
        all.push(("router", floats(&layer.router)));
        match &layer.mixer {
            Mixer::Attention(a) => {
                all.extend([("q", &a.q), ("k", &a.k), ("v", &a.v), ("o", &a.output)].map(|(n, m)| (n, floats(m))));
                all.extend([("q norm", a.q_norm.clone()), ("k norm", a.k_norm.clone())]);
            }
            Mixer::DeltaNet(d) => {
                let parts = [("qkv", &d.qkv), ("z", &d.z), ("a", &d.a), ("b", &d.b), ("out", &d.output)];
                all.extend(parts.map(|(name, matrix)| (name, floats(matrix))));
                all.extend([("conv", d.conv.clone()), ("dt", d.dt_bias.clone()), ("norm", d.norm.clone())]);
                all.push(("decay", d.neg_a.clone()));
            }
        }
        if let Some(shared) = &layer.shared {
            let ffn = [&shared.ffn.gate, &shared.ffn.up, &shared.ffn.down];
            all.extend(ffn.map(|matrix| ("shared", floats(matrix))));
            all.push(("shared scalar", shared.gate.clone()));
        }
    }
    if let Some(mtp) = &weights.mtp {
        all.extend([("MTP projection", floats(&mtp.projection)), ("MTP head", floats(&mtp.head))]);
        all.extend([&mtp.embedding_norm, &mtp.hidden_norm, &mtp.final_norm].map(|norm| ("MTP norm", norm.clone())));
    }
    all
}

#[test]
fn a_converted_checkpoint_is_the_peers_file_but_for_its_experts() {
    for name in ["q35moe-tiny", "q3moe-tiny"] {
        let peer = open(&data(&format!("{name}/model-BF16.gguf")));
        for source in [name.to_owned(), format!("{name}/model-BF16.gguf")] {
            let dir = tempfile::tempdir().unwrap();
            let ours = open(&converted(&data(&source), dir.path(), BlockType::Q8_0));
            for ((part, ours), (_, theirs)) in dense(&ours).into_iter().zip(dense(&peer)) {
                let difference = largest_difference(&ours, &theirs);
                // exp(A_log) is rounded once more on one side.
                let slack =
                    if part == "decay" { 1e-6 * theirs.iter().fold(0.0, |m: f32, x| m.max(x.abs())) } else { 0.0 };
                assert!(difference <= slack, "{source}: {part} is off by {difference:e}");
            }
            let (ours, theirs) = (ours.tokenizer.unwrap(), peer.tokenizer.as_ref().unwrap());
            for text in ["the tethered hat, Ångström 3.14\n", "<|im_start|>he<|im_end|>\n"] {
                assert_eq!(ours.encode(text).unwrap(), theirs.encode(text).unwrap(), "{source}: {text:?}");
            }
            assert_eq!(ours.has_chat_template(), theirs.has_chat_template());
        }
    }
}

#[test]
fn converted_experts_are_the_peers_quantised_ones_byte_for_byte() {
    let peer = open(&data("q35moe-tiny/model-Q8_0.gguf"));
    for source in ["q35moe-tiny", "q35moe-tiny/model-BF16.gguf"] {
        let dir = tempfile::tempdir().unwrap();
        let ours = open(&converted(&data(source), dir.path(), BlockType::Q8_0));
        let pairs = ours.weights.moe_layers().zip(peer.weights.moe_layers());
        for (ours, theirs) in pairs.flat_map(|(ours, theirs)| ours.experts.iter().zip(&theirs.experts)) {
            assert_eq!(ours.to_bytes(), theirs.to_bytes());
        }
    }
}

async fn logits(model: &Arc<Model>, mode: Mode) -> Vec<f32> {
    let backbone = Backbone::new(model.clone(), Arc::new(local(model, mode))).unwrap();
    let tokens: Vec<u32> = (0..24).map(|i| i * 37 % 256).collect();
    backbone.forward(&mut backbone.sequence(), &tokens, Want::Every).await.unwrap().values().to_vec()
}

#[tokio::test]
async fn a_converted_file_computes_what_the_checkpoint_does_with_its_experts_quantised_in_memory() {
    for (name, to, tolerance) in [("q35moe-tiny", BlockType::Q8_0, 1e-3), ("q3moe-tiny", BlockType::Q4_0, 0.0)] {
        let dir = tempfile::tempdir().unwrap();
        let file = Arc::new(open(&converted(&data(name), dir.path(), to)));
        let mut memory = open(&data(name));
        let mut told = Vec::new();
        memory.quantise_experts(to, |layers| told.push(layers)).unwrap();
        assert_eq!(told, (1..=memory.weights.moe_layers().count()).collect::<Vec<_>>());
        let memory = Arc::new(memory);
        assert_eq!(Manifest::of(&file).unwrap().id(), Manifest::of(&memory).unwrap().id());
        let difference = largest_difference(&logits(&file, Mode::Float).await, &logits(&memory, Mode::Float).await);
        assert!(difference <= tolerance, "{name}: {difference:e}");
        let unquantised = logits(&Arc::new(open(&data(name))), Mode::Float).await;
        let difference = largest_difference(&logits(&memory, Mode::Exact).await, &unquantised);
        assert!(difference > 0.0, "{name}: the experts were quantised");
    }
}

#[test]
fn every_type_can_be_written_and_holds_its_weights() {
    let dir = tempfile::tempdir().unwrap();
    let source = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(source.path(), Gguf::float_experts(256).bytes()).unwrap();
    let float = open(source.path());
    let allowed = [
        (BlockType::Q4_0, 0.008),
        (BlockType::Q8_0, 0.0003),
        (BlockType::Q4_K, 0.005),
        (BlockType::Q5_K, 0.003),
        (BlockType::Q6_K, 0.002),
    ];
    for (to, tolerance) in allowed {
        let quantised = open(&converted(source.path(), dir.path(), to));
        for (before, after) in float.weights.layers[0].experts.iter().zip(&quantised.weights.layers[0].experts) {
            for (before, after) in [(&before.gate, &after.gate), (&before.up, &after.up), (&before.down, &after.down)] {
                let mut values = vec![0.0; after.rows * after.cols];
                kvasir::kernel::quant::dequantise(after.ty, &after.data, &mut values);
                let difference = largest_difference(&values, &floats(before));
                assert!(after.ty == to && difference <= tolerance, "{}: {difference}", to.name());
            }
        }
    }
}

fn refusal(source: &Path, out: &Path, to: BlockType) -> String {
    let refused = model::convert(source, &Conversion { out, to, overwrite: false }, |_, _| {});
    refused.unwrap_err().to_string()
}

#[test]
fn conversions_that_cannot_end_well_are_refused_and_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.gguf");
    let message = refusal(&data("q3moe-tiny"), &out, BlockType::Q4_K);
    assert!(
        message.starts_with("tensor blk.0.ffn_gate_exps.weight: expected rows of whole Q4_K blocks of 256, got 64")
    );
    let message = refusal(&data("q35moe-tiny/model-Q8_0.gguf"), &out, BlockType::Q8_0);
    assert!(message.contains("blk.0.ffn_gate_exps.weight: expected float weights (F32, F16 or BF16)"), "{message}");
    let message = refusal(&data("q3moe-tiny"), &out, BlockType::BF16);
    assert!(message.starts_with("expected one of q4_0, q8_0, q4_k, q5_k, q6_k, got BF16"), "{message}");
    let message = refusal(&data("no-such-model.gguf"), &out, BlockType::Q8_0);
    assert!(message.contains("no-such-model.gguf"), "{message}");
    let message = refusal(&data("q3moe-tiny"), &dir.path().join("no/such/out.gguf"), BlockType::Q8_0);
    assert!(message.contains("out.gguf.part"), "{message}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);

    std::fs::write(&out, b"precious").unwrap();
    let message = refusal(&data("q3moe-tiny"), &out, BlockType::Q8_0);
    assert!(message.contains("expected no such file, got one") && message.contains("--overwrite"), "{message}");
    assert_eq!(std::fs::read(&out).unwrap(), b"precious");
}

#[test]
fn a_model_is_not_converted_onto_itself_nor_by_two_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model.gguf");
    let bytes = Gguf::float_experts(32).bytes();
    std::fs::write(&model, &bytes).unwrap();
    let order = Conversion { out: &model, to: BlockType::Q8_0, overwrite: true };
    let message = model::convert(&model, &order, |_, _| {}).unwrap_err().to_string();
    assert!(message.contains("expected another file than the model that is read"), "{message}");
    assert_eq!(std::fs::read(&model).unwrap(), bytes);

    let out = dir.path().join("out.gguf");
    let other = std::fs::File::create(dir.path().join("out.gguf.part")).unwrap();
    other.lock().unwrap();
    assert!(refusal(&model, &out, BlockType::Q8_0).contains("another conversion under way"));
    drop(other);
    // What a killed conversion left behind is in nobody's way.
    assert!(model::convert(&model, &Conversion { out: &out, ..order }, |_, _| {}).is_ok());
}

#[test]
fn a_weight_that_is_no_number_stops_the_conversion_and_no_file_is_left() {
    let mut file = Gguf::float_experts(32);
    let spoilt = file.tensor("blk.0.ffn_down_exps.weight").data.as_mut().unwrap();
    let at = spoilt.len() - 2;
    spoilt[at..].copy_from_slice(&0x7E00u16.to_le_bytes());
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = from.path().join("spoilt.gguf");
    std::fs::write(&source, file.bytes()).unwrap();
    let message = refusal(&source, &to.path().join("out.gguf"), BlockType::Q8_0);
    assert!(message.starts_with("tensor blk.0.ffn_down_exps.weight: expected finite weights"), "{message}");
    assert!(message.ends_with("got NaN for expert 1"), "{message}");
    assert_eq!(std::fs::read_dir(to.path()).unwrap().count(), 0);
    let mut model = open(&source);
    assert_eq!(model.quantise_experts(BlockType::Q8_0, |_| {}).unwrap_err().to_string(), message);
}

/// What the program prints.
fn output(dir: &Path, args: &[&str]) -> String {
    let output = kvasir(dir, args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_converted_file_generates_what_the_checkpoint_generates_with_the_flag() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = data("q3moe-tiny");
    let checkpoint = checkpoint.to_str().unwrap();
    let said = output(dir.path(), &["model", "convert", checkpoint, "exact.gguf", "--to", "q8_0"]);
    assert!(said.starts_with("exact.gguf: ") && said.ends_with("bytes, routed experts in Q8_0\n"), "{said}");
    let inspected = output(dir.path(), &["model", "inspect", "exact.gguf", "--json", "--slice", "40kB"]);
    let inspected: serde_json::Value = serde_json::from_str(&inspected).unwrap();
    assert_eq!((&inspected["exact"], &inspected["expert_kinds"][0]["types"][2]), (&true.into(), &"Q8_0".into()));
    let each = inspected["expert_kinds"][0]["bytes"].as_u64().unwrap();
    assert_eq!(inspected["slice"]["experts"], 40_000 / each);
    let generate = |model: &[&str]| {
        let args = [&["generate", "--ids", "104,101,32", "--tokens", "8", "--json", "--model"], model].concat();
        let said: serde_json::Value = serde_json::from_str(&output(dir.path(), &args)).unwrap();
        said["tokens"].clone()
    };
    let tokens = generate(&["exact.gguf"]);
    assert!(tokens.as_array().unwrap().len() > 4, "{tokens}");
    assert_eq!(generate(&[checkpoint, "--experts", "q8_0"]), tokens);
    let refused = kvasir(dir.path(), &["generate", "--ids", "1", "--experts", "q4_k", "--model", checkpoint]).output();
    let refused = String::from_utf8(refused.unwrap().stderr).unwrap();
    assert!(refused.contains("blk.0.ffn_gate_exps.weight: expected rows of whole Q4_K blocks"), "{refused}");
}

#[test]
fn workers_serve_a_float_checkpoint_exactly_when_its_experts_are_quantised_at_load() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = data("q35moe-tiny");
    let args = ["demo", "--experts", "q8_0", "--tokens", "6", "--workers", "1", "--device", "cpu", "--json", "--model"];
    let report = output(dir.path(), &[&args[..], &[checkpoint.to_str().unwrap()]].concat());
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!((&report["tokens_identical"], &report["logits_bit_identical"]), (&6.into(), &true.into()));
    assert!(report["remote"]["assignments_remote"].as_u64().unwrap() > 0);
}
