//! Both containers of the reference models open to the same numbers.

use std::path::{Path, PathBuf};

use kvasir::model::{self, Architecture, BlockType, HeadOrder, Mixer, Model};

/// A file of `tests/data`.
pub fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data").join(name)
}

fn open(name: &str) -> Model {
    model::open(&data(name)).expect("a model that opens")
}

#[test]
fn a_hugging_face_directory_and_its_gguf_hold_the_same_experts() {
    for name in ["q35moe-tiny", "q3moe-tiny"] {
        let (ours, theirs) = (open(name), open(&format!("{name}/model-BF16.gguf")));
        let layers = ours.weights.layers.iter().chain(ours.weights.mtp.iter().map(|mtp| &mtp.layer));
        let others = theirs.weights.layers.iter().chain(theirs.weights.mtp.iter().map(|mtp| &mtp.layer));
        assert!(layers.clone().count() >= 3);
        for (layer, other) in layers.zip(others) {
            assert_eq!(layer.experts.len(), ours.hyper.experts);
            for (a, b) in layer.experts.iter().zip(&other.experts) {
                assert_eq!(a.gate.data[..], b.gate.data[..]);
                assert_eq!(a.up.data[..], b.up.data[..]);
                assert_eq!(a.down.data[..], b.down.data[..]);
            }
            let router = |m: &kvasir::model::Matrix| m.ty.floats(&m.data).unwrap();
            assert_eq!(router(&layer.router), router(&other.router));
        }
    }
}

#[test]
fn norms_and_decay_are_canonical_in_both_containers() {
    let (ours, theirs) = (open("q35moe-tiny"), open("q35moe-tiny/model-BF16.gguf"));
    assert_eq!(ours.weights.final_norm, theirs.weights.final_norm);
    let (key_heads, value_heads) = (2, 4);
    for (layer, other) in ours.weights.layers.iter().zip(&theirs.weights.layers) {
        assert_eq!(layer.input_norm, other.input_norm);
        assert_eq!(layer.post_norm, other.post_norm);
        assert_eq!(layer.shared.as_ref().map(|s| &s.gate), other.shared.as_ref().map(|s| &s.gate));
        match (&layer.mixer, &other.mixer) {
            (Mixer::Attention(a), Mixer::Attention(b)) => {
                assert_eq!((&a.q_norm, &a.k_norm), (&b.q_norm, &b.k_norm));
                assert_eq!(a.q.data[..], b.q.data[..]);
            }
            (Mixer::DeltaNet(grouped), Mixer::DeltaNet(tiled)) => {
                assert_eq!(grouped.norm, tiled.norm);
                for h in 0..value_heads {
                    let group = value_heads / key_heads;
                    let tile = (h % group) * key_heads + h / group;
                    assert_eq!(grouped.dt_bias[h], tiled.dt_bias[tile]);
                    let (a, b) = (grouped.neg_a[h], tiled.neg_a[tile]);
                    assert!((a - b).abs() <= a.abs() * f32::EPSILON, "expected {b}, got {a}");
                    assert_eq!(grouped.a.row(h), tiled.a.row(tile));
                    assert_eq!(grouped.b.row(h), tiled.b.row(tile));
                }
            }
            _ => panic!("expected the same mixer in both containers"),
        }
    }
    let (a, b) = (ours.weights.mtp.unwrap(), theirs.weights.mtp.unwrap());
    assert_eq!(a.projection.data[..], b.projection.data[..]);
    assert_eq!((a.embedding_norm, a.hidden_norm, a.final_norm), (b.embedding_norm, b.hidden_norm, b.final_norm));
}

#[test]
fn both_containers_agree_on_the_sizes() {
    for name in ["q35moe-tiny", "q3moe-tiny"] {
        let ours = open(name).hyper;
        let mut theirs = open(&format!("{name}/model-BF16.gguf")).hyper;
        if let Some(net) = &mut theirs.delta_net {
            assert_eq!(net.order, HeadOrder::Tiled);
            net.order = HeadOrder::Grouped;
        }
        theirs.eos_token_ids.sort_unstable();
        let mut ours_sorted = ours.clone();
        ours_sorted.eos_token_ids.sort_unstable();
        assert_eq!(ours_sorted, theirs);
    }
    let tiny = open("q35moe-tiny").hyper;
    assert_eq!(tiny.architecture, Architecture::Qwen35Moe);
    assert_eq!((tiny.layers, tiny.mtp_layers, tiny.rotary_dim), (4, 1, 8));
    assert_eq!(tiny.recurrent, [true, true, true, false]);
    assert_eq!(tiny.eos_token_ids, [274, 272]);
}

#[test]
fn quantised_files_keep_their_blocks() {
    let model = open("q35moe-k256/model-Q4_K_M.gguf");
    assert_eq!(model.weights.layers[0].experts[3].gate.ty, BlockType::Q4_K);
    assert_eq!(model.weights.head.ty, BlockType::Q6_K);
    assert_eq!(open("q35moe-tiny/model-Q8_0.gguf").weights.layers[1].experts[0].down.ty, BlockType::Q8_0);
}

#[test]
fn the_embedded_model_opens() {
    let model = model::embedded().unwrap();
    assert_eq!(model.name, "kvasir-tiny");
    assert_eq!((model.hyper.layers, model.hyper.experts, model.hyper.vocab_size), (4, 16, 4096));
    assert_eq!(model.hyper.eos_token_ids, [4095, 4093]);
    assert!(model.weights.mtp.is_some());
}

#[test]
fn golden_texts_encode_and_decode_in_both_containers() {
    for name in ["q35moe-tiny", "q3moe-tiny"] {
        let cases = std::fs::read(data(&format!("{name}/tokenizer_cases.json"))).unwrap();
        let cases: Vec<serde_json::Value> = serde_json::from_slice(&cases).unwrap();
        for file in [name.to_owned(), format!("{name}/model-BF16.gguf")] {
            let tokenizer = open(&file).tokenizer.unwrap();
            for case in &cases {
                let text = case["text"].as_str().unwrap();
                let expected: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
                assert_eq!(tokenizer.encode(text).unwrap(), expected, "{file}: {text:?}");
                if !text.contains("<|") && !text.contains('\u{301}') {
                    assert_eq!(tokenizer.decode(&expected).unwrap(), text, "{file}");
                }
            }
        }
    }
}

const TEXTS: [&str; 9] = [
    "Once upon a time there was a princess who could not laugh.",
    "\"Who are you?\" said the old woman.\n\n\"I am going to the King.\"\n",
    "  leading and trailing  spaces \t\r\n  \n\nx",
    "It's IT'S we'll They'RE 3.14159 2026-11-29",
    "naïve café résumé Ångström",
    "中文 漢字 हिन्दी नमस्ते العربية ไทย 한국어",
    "🙂🙃👩‍👩‍👧 \u{0}\u{1}\u{7f}\u{80}\u{ad}\u{feff}",
    "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n",
    "a<|endoftext|>b <|im_start|<|im_end|>>",
];

/// Its `tokenizer.json` does not normalise, which GGUF cannot say, so these texts are in NFC.
#[test]
fn the_embedded_tokenizer_equals_its_hugging_face_file() {
    let json = std::fs::read(data("kvasir-tiny/tokenizer.json")).unwrap();
    let theirs = model::Tokenizer::from_json(&json, 4096, None).unwrap();
    let ours = model::embedded().unwrap().tokenizer.unwrap();
    for text in TEXTS {
        let ids = ours.encode(text).unwrap();
        assert_eq!(ids, theirs.encode(text).unwrap(), "{text:?}");
        assert_eq!(ours.decode(&ids).unwrap(), theirs.decode(&ids).unwrap());
    }
    for id in 0..4096 {
        assert_eq!(ours.decode(&[id]).unwrap(), theirs.decode(&[id]).unwrap(), "id {id}");
    }
}

#[test]
fn decomposed_accents_encode_as_composed_ones() {
    let tokenizer = model::embedded().unwrap().tokenizer.unwrap();
    assert_eq!(tokenizer.encode("re\u{301}sume\u{301}").unwrap(), tokenizer.encode("résumé").unwrap());
}

#[test]
fn streamed_pieces_join_to_the_whole_text() {
    let tokenizer = model::embedded().unwrap().tokenizer.unwrap();
    for text in &TEXTS[..7] {
        let ids = tokenizer.encode(text).unwrap();
        let mut stream = tokenizer.stream();
        let pieces: Vec<String> = ids.iter().map(|id| stream.push(*id).unwrap()).collect();
        assert!(pieces.iter().all(|piece| !piece.contains('\u{fffd}')), "{text:?}: {pieces:?}");
        assert_eq!(pieces.concat() + &stream.finish(), tokenizer.decode(&ids).unwrap());
    }
}

#[test]
fn a_character_that_never_ends_becomes_one_mark() {
    let tokenizer = open("q3moe-tiny").tokenizer.unwrap();
    let mut stream = tokenizer.stream();
    assert_eq!(stream.push(0xE4).unwrap(), "");
    assert_eq!(stream.push(0xB8).unwrap(), "");
    assert_eq!(stream.push(u32::from(b'!')).unwrap(), "\u{fffd}!");
    assert_eq!(stream.push(0xE4).unwrap(), "");
    assert_eq!(stream.finish(), "\u{fffd}");
    assert_eq!(tokenizer.decode(&[0xFF, 0x41, 274]).unwrap(), "\u{fffd}A");
    let refused = tokenizer.decode(&[288]).unwrap_err();
    assert_eq!(refused.to_string(), "expected token ids below 288, got 288");
}

#[test]
fn chats_render_with_the_models_own_template() {
    let said = [("user", "Tell me a story."), ("assistant", "No."), ("user", "Please.")];
    let said = said.map(|(role, content)| model::ChatMessage::new(role, content));
    let chat = |messages| model::Chat {
        messages,
        add_generation_prompt: true,
        enable_thinking: Some(true),
        ..model::Chat::default()
    };
    let tokenizer = model::embedded().unwrap().tokenizer.unwrap();
    let prompt = tokenizer.render_chat(&chat(&said)).unwrap();
    let expected = "<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\nNo.<|im_end|>\n\
                    <|im_start|>user\nPlease.<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(prompt, expected);
    assert_eq!(tokenizer.encode(&prompt).unwrap()[0], 4094);
    for file in ["q35moe-tiny", "q35moe-tiny/model-BF16.gguf"] {
        let tokenizer = open(file).tokenizer.unwrap();
        assert!(tokenizer.has_chat_template());
        let prompt = tokenizer.render_chat(&chat(&said[..1])).unwrap();
        assert_eq!(prompt, "<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\n<think>\n");
    }
}
