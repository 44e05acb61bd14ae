//! The forward pass against activations, states and logits that transformers computed (`data/README.md`).
//!
//! Quantised files are held against the same reference run over their dequantised weights. Up to the first attention
//! layer the tolerances are those of an f32 implementation with another order of sums. Behind it they allow for keys
//! and values in half precision, which the references keep in f32: random weights make a lot of that rounding (logits
//! of standard deviation 3 move by up to 0.0012, and by 0.0066 where every layer attends); what attention does with
//! the rounded numbers is held beside its code to a bound that follows from f32 arithmetic. Ids must be equal wherever
//! the reference's own margin allows.

use crate::support::{Golden, Recorder, data, float_backbone, hf_head, largest_difference, top};
use kvasir::backbone::delta_rule::{HeadInput, delta_rule};
use kvasir::backbone::rows::l2_norm;
use kvasir::backbone::sequence::LayerState;
use kvasir::backbone::{Backbone, Reach, Rows, Sequence, Share, Want, sampler::argmax};
use kvasir::kernel::float::{FloatExpert, Residency};
use kvasir::model::{DeltaNetShape, Model};
use std::sync::Arc;

/// Router probabilities nearer than this may be ordered differently.
const ROUTER_MARGIN: f32 = 1e-4;

pub struct Case {
    pub model: &'static str,
    pub golden: &'static str,
    /// Before the first attention.
    tolerance: f32,
    /// Behind it.
    pub rounded: f32,
}

pub const CASES: [Case; 6] = [
    Case { model: "q35moe-tiny", golden: "q35moe-tiny/golden", tolerance: 2e-3, rounded: 4e-3 },
    Case { model: "q35moe-tiny/model-BF16.gguf", golden: "q35moe-tiny/golden", tolerance: 2e-3, rounded: 4e-3 },
    Case { model: "q35moe-tiny/model-Q8_0.gguf", golden: "q35moe-tiny/golden-Q8_0", tolerance: 2e-3, rounded: 4e-3 },
    Case {
        model: "q35moe-k256/model-Q4_K_M.gguf",
        golden: "q35moe-k256/golden-Q4_K_M",
        tolerance: 5e-4,
        rounded: 2e-3,
    },
    Case { model: "q3moe-tiny", golden: "q3moe-tiny/golden", tolerance: 5e-4, rounded: 1e-2 },
    Case { model: "q3moe-tiny/model-BF16.gguf", golden: "q3moe-tiny/golden", tolerance: 5e-4, rounded: 1e-2 },
];

impl Case {
    pub fn open(&self) -> (Arc<Model>, Golden) {
        let model = kvasir::model::open(&data(self.model)).expect("a model of the repository");
        (Arc::new(model), Golden::read(&data(&format!("{}.safetensors", self.golden))))
    }

    /// What is allowed in the input of layer `layer`.
    fn before(&self, model: &Model, layer: usize) -> f32 {
        if model.hyper.recurrent[..layer].iter().all(|recurrent| *recurrent) { self.tolerance } else { self.rounded }
    }

    /// Keys and values are kept in half precision: half a unit in its last place more than `tolerance`.
    fn close_to_half(&self, what: &str, got: &[f32], want: &[f32], tolerance: f32) {
        assert_eq!(got.len(), want.len(), "{}: {what}", self.model);
        for (got, want) in got.iter().zip(want) {
            let allowed = tolerance + want.abs() / 2048.0;
            assert!((got - want).abs() <= allowed, "{}: {what} is {got}, expected {want}", self.model);
        }
    }

    pub fn close(&self, what: &str, got: &[f32], want: &[f32], tolerance: f32) {
        let difference = largest_difference(got, want);
        assert!(difference <= tolerance, "{}: {what} is off by {difference:e}", self.model);
    }
}

#[tokio::test]
async fn every_layer_gives_the_reference_hidden_states_and_routes() {
    for case in &CASES {
        let (model, golden) = case.open();
        let recorder = Recorder::over(&model);
        let backbone = Backbone::new(model.clone(), recorder.clone()).expect("a backbone");
        let mut sequence = backbone.sequence();
        let mut x = backbone.embed(&sequence, &golden.ids("input_ids")).expect("known tokens");
        case.close("hidden.0", x.values(), &golden.floats("hidden.0"), case.tolerance);
        for layer in 0..model.hyper.layers {
            x = backbone.layer(layer, x, &mut sequence).await.expect("a layer");
            let (name, tolerance) = (format!("hidden.{}", layer + 1), case.before(&model, layer + 1));
            case.close(&name, x.values(), &golden.floats(&name), tolerance);
        }
        case.close("logits", backbone.logits(&x).values(), &golden.floats("logits"), case.rounded);

        let k = model.hyper.experts_per_token;
        for (layer, step) in recorder.steps().iter().enumerate() {
            let ids = golden.ids(&format!("topk_ids.{layer}"));
            let weights = golden.floats(&format!("topk_w.{layer}"));
            let margins = golden.router_margins(layer, model.hyper.experts, k);
            for (r, margin) in margins.iter().enumerate().filter(|(_, margin)| **margin > ROUTER_MARGIN) {
                let mut got: Vec<_> = step.routes[r * k..(r + 1) * k].iter().map(|x| (x.expert, x.weight)).collect();
                let mut want: Vec<_> = (r * k..(r + 1) * k).map(|i| (ids[i] as u16, weights[i])).collect();
                got.sort_by_key(|(expert, _)| *expert);
                want.sort_by_key(|(expert, _)| *expert);
                let experts = |pairs: &[(u16, f32)]| pairs.iter().map(|(expert, _)| *expert).collect::<Vec<_>>();
                assert_eq!(experts(&got), experts(&want), "{}: layer {layer}, row {r}, {margin:e}", case.model);
                let weights = |pairs: &[(u16, f32)]| pairs.iter().map(|(_, weight)| *weight).collect::<Vec<_>>();
                case.close("gate weights", &weights(&got), &weights(&want), case.before(&model, layer + 1));
            }
        }
    }
}

#[tokio::test]
async fn prefill_leaves_the_reference_states_and_decode_its_logits() {
    for case in &CASES {
        let (model, golden) = case.open();
        let backbone = float_backbone(&model);
        let ids = golden.ids("input_ids");
        let decode_logits = golden.floats("decode_logits");
        let vocab = model.hyper.vocab_size;
        let prompt = ids.len() - decode_logits.len() / vocab;

        let mut sequence = backbone.sequence();
        let logits = backbone.prefill(&mut sequence, &ids[..prompt]).await.expect("a prompt");
        let want = &golden.floats("logits")[(prompt - 1) * vocab..prompt * vocab];
        case.close("prefill", logits.row(0), want, case.rounded);
        check_states(case, &golden, &model, &sequence);
        let mut last = logits;
        for (token, want) in ids[prompt..].iter().zip(decode_logits.chunks_exact(vocab)) {
            last = backbone.forward(&mut sequence, &[*token], Want::Last).await.expect("a step");
            case.close("decode", last.row(0), want, case.rounded);
        }
        for want in golden.ids("greedy_ids") {
            let token = argmax(last.row(0));
            assert_eq!(token, want, "{}: greedy token at {}", case.model, sequence.position);
            last = backbone.forward(&mut sequence, &[token], Want::Last).await.expect("a step");
        }
    }
}

fn check_states(case: &Case, golden: &Golden, model: &Model, sequence: &Sequence) {
    for (i, layer) in sequence.layers.iter().enumerate() {
        let tolerance = case.before(model, i);
        match layer {
            LayerState::Attention(cache) if golden.has(&format!("cache_k.{i}")) => {
                for (what, halves, name) in [("keys", &cache.keys, "cache_k"), ("values", &cache.values, "cache_v")] {
                    let (halves, want) = (halves.concat(), golden.floats(&format!("{name}.{i}")));
                    let got: Vec<f32> = halves.iter().map(|half| half.to_f32()).collect();
                    case.close_to_half(what, &got, &want, tolerance);
                }
            }
            LayerState::DeltaNet(state) if golden.has(&format!("state_rec.{i}")) => {
                let shape = model.hyper.delta_net.expect("DeltaNet sizes");
                let recurrent = golden.floats(&format!("state_rec.{i}"));
                let size = shape.key_head_dim * shape.value_head_dim;
                for (h, got) in state.recurrent.chunks_exact(size).enumerate() {
                    case.close("recurrent state", got, &recurrent[hf_head(&shape, h) * size..][..size], tolerance);
                }
                let conv = golden.floats(&format!("state_conv.{i}"));
                for channel in 0..state.conv.width() {
                    let got: Vec<f32> = state.conv.iter().map(|row| row[channel]).collect();
                    let want = &conv[hf_channel(&shape, channel) * 3..][..3];
                    case.close("convolution state", &got, want, tolerance);
                }
            }
            _ => {}
        }
    }
}

fn hf_channel(shape: &DeltaNetShape, channel: usize) -> usize {
    let values = 2 * shape.key_heads * shape.key_head_dim;
    match channel.checked_sub(values) {
        None => channel,
        Some(v) => values + hf_head(shape, v / shape.value_head_dim) * shape.value_head_dim + v % shape.value_head_dim,
    }
}

#[test]
fn experts_give_the_reference_outputs() {
    for case in &CASES {
        let (model, golden) = case.open();
        let (x, want) = (golden.floats("expert_x"), golden.floats("expert_y"));
        for (expert, want) in model.weights.layers[0].experts.iter().zip(want.chunks_exact(x.len())) {
            let mut y = vec![0.0; x.len()];
            FloatExpert::new(expert, Residency::Stored).forward(&x, &mut y);
            case.close("expert", &y, want, case.tolerance);
        }
    }
}

/// Runs the golden recurrence of one head from absolute position `start`, which decides the form.
fn golden_delta_rule(golden: &Golden, h: usize, start: usize) -> (Vec<f32>, Vec<f32>) {
    let (heads, key_heads, d) = (4, 2, 16);
    let head = |name: &str, heads: usize, h: usize, d: usize| -> Vec<f32> {
        golden.floats(name).chunks_exact(heads * d).flat_map(|row| row[h * d..(h + 1) * d].to_vec()).collect()
    };
    let (mut q, mut k) = (head("gdn.q", key_heads, h / 2, d), head("gdn.k", key_heads, h / 2, d));
    q.chunks_exact_mut(d).for_each(|q| l2_norm(q, 0.25));
    k.chunks_exact_mut(d).for_each(|k| l2_norm(k, 1.0));
    let mut state = golden.floats("gdn.s0")[h * d * d..(h + 1) * d * d].to_vec();
    let mut out = vec![0.0; q.len()];
    let (v, g, beta) = (head("gdn.v", heads, h, d), head("gdn.g", heads, h, 1), head("gdn.beta", heads, h, 1));
    let input = HeadInput { position: start, q: &q, k: &k, v: &v, log_decay: &g, beta: &beta };
    delta_rule(input, &mut state, &mut out);
    (out, state)
}

#[test]
fn both_forms_of_the_delta_rule_give_the_reference_recurrence() {
    let golden = Golden::read(&data("q35moe-tiny/golden.safetensors"));
    for h in 0..4 {
        let want_out: Vec<f32> =
            golden.floats("gdn.out").chunks_exact(64).flat_map(|row| row[h * 16..(h + 1) * 16].to_vec()).collect();
        let want_state = golden.floats("gdn.s1")[h * 256..(h + 1) * 256].to_vec();
        let (chunked, recurrent) = (golden_delta_rule(&golden, h, 0), golden_delta_rule(&golden, h, 1));
        assert_ne!(chunked.0, recurrent.0, "the two forms round differently");
        for (out, state) in [chunked, recurrent] {
            assert!(largest_difference(&out, &want_out) < 2e-6);
            assert!(largest_difference(&state, &want_state) < 2e-6);
        }
    }
}

async fn run(backbone: &Backbone, sequence: &mut Sequence, tokens: &[u32], rows: usize) -> Vec<f32> {
    let mut logits = Vec::new();
    for tokens in tokens.chunks(rows) {
        logits.extend_from_slice(backbone.forward(sequence, tokens, Want::Every).await.expect("a step").values());
    }
    logits
}

#[tokio::test]
async fn the_rows_of_a_step_do_not_change_each_others_bits() {
    for case in &CASES {
        let (model, golden) = case.open();
        let backbone = float_backbone(&model);
        let tokens: Vec<u32> = golden.ids("input_ids").iter().copied().cycle().take(64).collect();
        // One token first: a run of 64 that starts off the chunk's boundary takes the token-by-token form throughout.
        let mut runs = Vec::new();
        for rows in [1, 7, 64] {
            let mut sequence = backbone.sequence();
            backbone.forward(&mut sequence, &tokens[..1], Want::Last).await.expect("a step");
            runs.push(run(&backbone, &mut sequence, &tokens, rows).await);
        }
        assert_eq!(runs[0], runs[1], "{}: 7 rows", case.model);
        assert_eq!(runs[0], runs[2], "{}: 64 rows", case.model);
    }
}

#[tokio::test]
async fn a_prompt_gives_the_same_bits_however_it_is_split() {
    let (model, golden) = CASES[1].open();
    let backbone = float_backbone(&model);
    let tokens: Vec<u32> = golden.ids("input_ids").iter().copied().cycle().take(300).collect();
    let whole = run(&backbone, &mut backbone.sequence(), &tokens, 512).await;
    for rows in [64, 128, 256] {
        assert_eq!(whole, run(&backbone, &mut backbone.sequence(), &tokens, rows).await, "split every {rows}");
    }
    let single = run(&backbone, &mut backbone.sequence(), &tokens[..128], 1).await;
    let difference = largest_difference(&whole[..single.len()], &single);
    assert!(difference > 0.0 && difference < 2e-3, "chunked against token by token: {difference:e}");
}

#[tokio::test]
async fn prompts_in_parts_have_the_bits_and_the_states_of_whole_ones() {
    let (model, golden) = CASES[1].open();
    let backbone = float_backbone(&model);
    let tokens: Vec<u32> = golden.ids("input_ids").iter().copied().cycle().take(700).collect();
    let lengths = [300, 1, 130, 64, 205];
    let mut expected: Option<Vec<Vec<f32>>> = None;
    for parts in 1..=5 {
        let mut sequences: Vec<Sequence> = lengths.iter().map(|_| backbone.sequence()).collect();
        let mut given = Vec::new();
        // A prompt, and what a sequence goes on with: the state that the parts left.
        for (from, each) in [(0, lengths), (300, [1, 1, 1, 1, 1])] {
            let shares = sequences.iter_mut().zip(each);
            let mut shares: Vec<Share<'_>> = shares
                .map(|(sequence, rows)| Share {
                    sequence,
                    tokens: &tokens[from..from + rows],
                    want: Want::Every,
                    reach: Reach::Any,
                })
                .collect();
            let mut hidden = Rows::default();
            let output = backbone.step_in_parts(&mut shares, parts, Some(&mut hidden)).await.expect("a step");
            // The second share has one row, in whichever part.
            let of_a_row = output.served[1].local;
            let counts = output.served.iter().zip(each);
            assert!(counts.into_iter().all(|(served, rows)| served.local == of_a_row * rows as u64), "{parts} parts");
            given.extend(output.logits.iter().map(|rows| rows.values().to_vec()));
            given.push(hidden.values().to_vec());
        }
        match &expected {
            Some(expected) => assert!(*expected == given, "{parts} parts"),
            None => expected = Some(given),
        }
    }
}

#[tokio::test]
async fn recorded_logits_are_those_of_the_golden_run() {
    let (model, golden) = CASES[4].open();
    let backbone = float_backbone(&model);
    let greedy = golden.ids("greedy_ids");
    let record = backbone.record_logits(&golden.ids("input_ids"), greedy.len()).await.expect("a record");
    assert_eq!(record.greedy_ids, greedy);
    let rows = record.logits.len() / record.vocab;
    assert_eq!(rows, record.input_ids.len() + greedy.len() - 1);
    let prompt = record.input_ids.len();
    for (j, token) in greedy.iter().enumerate() {
        assert_eq!(top(&record.logits[(prompt - 1 + j) * record.vocab..][..record.vocab]).0, *token);
    }
    let file = record.to_safetensors().expect("a file");
    let file = Golden::from_bytes(file);
    assert_eq!((file.ids("greedy_ids"), file.floats("logits")), (greedy, record.logits));
}

#[test]
fn rows_know_their_shape() {
    let rows = Rows::zeros(3, 4);
    assert_eq!((rows.len(), rows.width(), rows.last().len(), rows.is_empty()), (3, 4, 1, false));
}
