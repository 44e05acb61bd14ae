//! Drafts: whatever they are and however many are right, the text is the text without them.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use kvasir::backbone::sequence::LayerState;
use kvasir::backbone::speculate::{Drafter, Load, Pace, Room};
use kvasir::backbone::{
    Backbone, Drafters, Finish, GenerateOptions, Generation, Reach, Rows, Sampler, Sampling, Sequence, Share,
    Speculation, Want, argmax,
};
use kvasir::dispatch::Mode;

use crate::goldens::CASES;
use crate::support::{Recorder, data, float_backbone, local};

const PROMPTS: [&str; 3] = [
    "The princess opened the door, and",
    "\"Who are you?\" said the old woman.\n\n\"I am",
    "Once upon a time there was a king who had three sons. The eldest said to his father: \"I will go out into the \
     world and seek my fortune.\" So he went, and when he had gone a little way he met an old woman, who asked him \
     where he was going, and he said",
];

fn backbone() -> Backbone {
    let model = Arc::new(kvasir::model::embedded().unwrap());
    Backbone::new(model.clone(), Arc::new(local(&model, Mode::Exact))).unwrap()
}

fn encode(backbone: &Backbone, text: &str) -> Vec<u32> {
    backbone.model().tokenizer.as_ref().unwrap().encode(text).unwrap()
}

fn greedy(max_tokens: usize) -> GenerateOptions {
    GenerateOptions { max_tokens, sampling: Sampling::GREEDY, stop_ids: Vec::new() }
}

async fn text(backbone: &Backbone, drafts: Speculation, prompt: &[u32], options: &GenerateOptions) -> Generation {
    backbone.generate_with(drafts, prompt, options, |_| ControlFlow::Continue(())).await.unwrap()
}

fn always(drafters: Drafters, drafts: usize) -> Speculation {
    Speculation { drafters, always: Some(drafts) }
}

async fn step(backbone: &Backbone, sequence: &mut Sequence, tokens: &[u32], want: Want) -> Rows {
    let share = Share { sequence, tokens, want, reach: Reach::Any };
    backbone.step(&mut [share]).await.unwrap().logits.pop().unwrap()
}

/// Every number of a sequence's state, as bits.
fn bits(sequence: &Sequence) -> Vec<u32> {
    let numbers = |layer: &LayerState| match layer {
        LayerState::Attention(cache) => {
            cache.keys.iter().chain(&cache.values).flatten().map(|half| half.to_bits().into()).collect::<Vec<u32>>()
        }
        LayerState::DeltaNet(state) => {
            state.conv.values().iter().chain(&state.recurrent).map(|float| float.to_bits()).collect()
        }
    };
    sequence.layers.iter().flat_map(numbers).collect()
}

#[tokio::test]
async fn after_any_verdict_a_sequence_has_the_bits_of_plain_steps() {
    let backbone = backbone();
    // Around the corners of the delta rule's chunks, and shorter than the convolution.
    for length in [1usize, 2, 61, 64, 66] {
        let prompt: Vec<u32> = (0..length as u32).map(|i| i * 7919 % 4000).collect();
        let mut plain = backbone.sequence();
        let mut logits = step(&backbone, &mut plain, &prompt, Want::Last).await;
        let before = plain.clone();
        let (mut tokens, mut rows, mut states) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..6 {
            tokens.push(argmax(logits.row(0)));
            logits = step(&backbone, &mut plain, &tokens[tokens.len() - 1..], Want::Last).await;
            rows.push(logits.row(0).to_vec());
            states.push(bits(&plain));
        }
        for drafts in 1..=4 {
            for right in 0..=drafts {
                let mut sequence = before.clone();
                let mut judged = tokens[..=drafts].to_vec();
                judged[right + 1..].iter_mut().for_each(|draft| *draft = (*draft + 1) % 4000);
                let logits = step(&backbone, &mut sequence, &judged, Want::Drafts).await;
                assert_eq!(logits.len(), 1 + drafts);
                for (row, logits) in rows.iter().zip(logits.iter()).take(right + 1) {
                    assert!(row == logits, "{right} of {drafts} after {length}");
                }
                // What nobody accepts, the next step forgets.
                if right > 0 || drafts == 1 {
                    backbone.accept(&mut sequence, right);
                    assert!(bits(&sequence) == states[right], "{right} of {drafts} after {length}");
                }
                let next = step(&backbone, &mut sequence, &tokens[right + 1..right + 2], Want::Last).await;
                assert!(next.row(0) == rows[right + 1], "{right} of {drafts} after {length}");
                assert!(bits(&sequence) == states[right + 1], "{right} of {drafts} after {length}");
                assert_eq!(sequence.position, length + right + 2);
            }
        }
    }
}

#[tokio::test]
async fn every_drafter_with_any_number_of_drafts_gives_the_plain_text() {
    let backbone = backbone();
    for (seed, prompt) in (0..).zip(PROMPTS) {
        let prompt = encode(&backbone, prompt);
        let warm = Sampling { temperature: 0.8, top_p: 0.95, top_k: 40, seed };
        for sampling in [Sampling::GREEDY, warm] {
            let options = GenerateOptions { sampling, ..greedy(30) };
            let plain = text(&backbone, Speculation::OFF, &prompt, &options).await;
            assert_eq!((plain.timing.decode_steps, plain.tally.drafted), (29, 0));
            for drafters in [Drafters::Auto, Drafters::Mtp, Drafters::Lookup] {
                for always in [None, Some(1), Some(4)] {
                    let got = text(&backbone, Speculation { drafters, always }, &prompt, &options).await;
                    assert_eq!(got.tokens, plain.tokens, "{drafters:?}, {always:?}, {sampling:?}");
                    assert_eq!((&got.text, got.finish), (&plain.text, plain.finish));
                    assert!(got.tally.accepted <= got.tally.drafted);
                    assert_eq!(got.timing.decode_steps + got.tally.accepted as usize, got.timing.decode_tokens);
                }
            }
        }
    }
}

#[tokio::test]
async fn the_text_ends_in_the_middle_of_drafts_that_were_right() {
    let backbone = backbone();
    let prompt = encode(&backbone, PROMPTS[1]);
    let all = text(&backbone, Speculation::OFF, &prompt, &greedy(32)).await.tokens;
    for drafters in [Drafters::Mtp, Drafters::Lookup] {
        for end in (1..all.len()).step_by(2) {
            let got = text(&backbone, always(drafters, 4), &prompt, &greedy(end)).await;
            assert_eq!((&got.tokens[..], got.finish), (&all[..end], Finish::Length));
            let stopping = GenerateOptions { stop_ids: vec![all[end]], ..greedy(32) };
            let got = text(&backbone, always(drafters, 4), &prompt, &stopping).await;
            let first = all.iter().position(|token| *token == all[end]).unwrap();
            assert_eq!((&got.tokens[..], got.finish), (&all[..first], Finish::Stop));
        }
        // Since the text was cut at every other place, it was cut at some of them.
        let got = text(&backbone, always(drafters, 4), &prompt, &greedy(32)).await;
        assert!(got.tally.accepted > 3, "{drafters:?}: {:?}", got.tally);
    }
}

#[tokio::test]
async fn drafts_end_where_the_context_does() {
    let mut model = kvasir::model::open(&data(CASES[1].model)).unwrap();
    model.hyper.context_length = 40;
    let backbone = float_backbone(&Arc::new(model));
    for length in 33..40 {
        let prompt: Vec<u32> = (0..length).map(|i| i % 2).collect();
        let plain = text(&backbone, Speculation::OFF, &prompt, &greedy(99)).await;
        assert_eq!((plain.finish, plain.tokens.len()), (Finish::Context, 41 - length as usize));
        for drafters in [Drafters::Mtp, Drafters::Lookup] {
            let got = text(&backbone, always(drafters, 4), &prompt, &greedy(99)).await;
            assert_eq!((got.tokens, got.finish), (plain.tokens.clone(), plain.finish));
        }
    }
}

/// The likeliest `top` tokens and the probabilities with which a sampler of temperature 1 takes them.
fn distribution(logits: &[f32], top: usize) -> Vec<(u32, f64)> {
    let mut tokens: Vec<u32> = (0..logits.len() as u32).collect();
    tokens.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
    tokens.truncate(top);
    let sum: f64 = tokens.iter().map(|token| f64::from(logits[*token as usize]).exp()).sum();
    tokens.into_iter().map(|token| (token, f64::from(logits[token as usize]).exp() / sum)).collect()
}

#[tokio::test]
async fn sampled_tokens_are_distributed_as_the_model_says_whatever_was_drafted() {
    let backbone = backbone();
    let prompt = &encode(&backbone, PROMPTS[0]);
    // One of the likeliest two, then one of the likeliest two after it, which was drafted: four pairs.
    let mut expected = Vec::new();
    let mut sequence = backbone.sequence();
    let first = step(&backbone, &mut sequence, prompt, Want::Last).await;
    for (one, p) in distribution(first.row(0), 2) {
        let second = step(&backbone, &mut sequence.clone(), &[one], Want::Last).await;
        expected.extend(distribution(second.row(0), 2).into_iter().map(|(two, q)| ([one, two], p * q)));
    }
    let (texts, mut drafted, mut accepted) = (240, 0, 0);
    let mut seen = vec![0usize; expected.len()];
    for seed in 0..texts as u64 {
        let sampling = Sampling { temperature: 1.0, top_p: 1.0, top_k: 2, seed };
        let options = GenerateOptions { sampling, ..greedy(3) };
        let got = text(&backbone, always(Drafters::Mtp, 1), prompt, &options).await;
        seen[expected.iter().position(|(pair, _)| *pair == got.tokens[..2]).unwrap()] += 1;
        (drafted, accepted) = (drafted + got.tally.drafted, accepted + got.tally.accepted);
    }
    assert!(0 < accepted && accepted < drafted, "{accepted} of {drafted}: some drafts right, some wrong");
    let squares = expected.iter().zip(&seen).map(|((_, p), seen)| {
        let expected = p * texts as f64;
        (*seen as f64 - expected).powi(2) / expected
    });
    // Three degrees of freedom: more than 16.3 would be a chance of one in a thousand.
    let chi_square: f64 = squares.sum();
    assert!(chi_square < 16.3, "{chi_square}: {seen:?} for {expected:?}");
}

#[tokio::test]
async fn the_trained_head_is_right_about_as_often_as_its_reference_says() {
    let backbone = backbone();
    for (drafts, least) in [(1, 1.5), (3, 2.0)] {
        let (mut tokens, mut steps) = (0, 0);
        for prompt in PROMPTS {
            let prompt = encode(&backbone, prompt);
            let got = text(&backbone, always(Drafters::Mtp, drafts), &prompt, &greedy(100)).await;
            (tokens, steps) = (tokens + got.timing.decode_tokens, steps + got.timing.decode_steps);
        }
        let per_step = f64::from(tokens as u32) / f64::from(steps as u32);
        eprintln!("{drafts} drafts: {per_step:.3} tokens a step");
        assert!(per_step > least, "{drafts} drafts: {per_step} tokens a step");
    }
}

#[tokio::test]
async fn the_head_reads_no_more_than_a_chunk_at_once_however_many_streams_try_again_together() {
    const STREAMS: usize = 64;
    let model = Arc::new(kvasir::model::embedded().unwrap());
    let recorder = Recorder::over(&model);
    let backbone = Backbone::new(model.clone(), recorder.clone()).unwrap();
    // A step takes as long as its rows: no draft pays.
    let (load, mut pace) = (Load { here: STREAMS, all: STREAMS, prompt_rows: 0 }, Pace::default());
    for rows in [64, 128, 192, 256].into_iter().cycle().take(8) {
        pace.begin(load);
        pace.stepped(load, rows, Duration::from_millis(rows as u64));
    }
    let speculation = Speculation { drafters: Drafters::Mtp, always: None };
    let mut drafters: Vec<_> = (0..STREAMS).map(|_| Drafter::new(&backbone, speculation, &[1], 200)).collect();
    let (sampler, width) = (Sampler::new(Sampling::GREEDY), model.hyper.hidden_size);
    let mut drafted = [0; STREAMS];
    for place in 0..120 {
        let mut room = Room::default();
        pace.begin(load);
        for drafter in &mut drafters {
            drafter.read(place, width, &vec![0.5; width]);
            drafter.take(7);
            drafter.plan(4, &mut room, &pace);
        }
        let mut streams: Vec<_> = drafters.iter_mut().map(|drafter| (drafter, &sampler)).collect();
        backbone.make_drafts(&mut streams).await;
        // What was drafted is never the text.
        drafters.iter_mut().zip(&mut drafted).for_each(|(drafter, drafted)| *drafted += drafter.judge(true).drafted);
    }
    assert_eq!(drafted, [2; STREAMS], "one after 32 steps, one 64 later");
    let passes: Vec<usize> = recorder.steps().iter().map(|step| step.rows).collect();
    assert!(passes.iter().all(|rows| *rows <= 512), "{passes:?} rows");
    assert!(passes.iter().sum::<usize>() <= 2 * 16 * STREAMS, "{passes:?} rows for two drafts of each");
}
