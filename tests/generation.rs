//! Generation with the trained model: what ends it, what it gives out, what it refuses.

use crate::support::local;
use kvasir::backbone::{Backbone, Finish, ForwardError, GenerateOptions, Sampling, generate::GenerateError};
use kvasir::dispatch::Mode;
use std::ops::ControlFlow;
use std::sync::Arc;

const PROMPT: &str = "The princess opened the door, and";

fn backbone() -> Arc<Backbone> {
    let model = Arc::new(kvasir::model::embedded().unwrap());
    Arc::new(Backbone::new(model.clone(), Arc::new(local(&model, Mode::Exact))).unwrap())
}

fn prompt(backbone: &Backbone) -> Vec<u32> {
    backbone.model().tokenizer.as_ref().unwrap().encode(PROMPT).unwrap()
}

fn options(max_tokens: usize) -> GenerateOptions {
    GenerateOptions { max_tokens, sampling: Sampling::GREEDY, stop_ids: Vec::new() }
}

#[tokio::test]
async fn pieces_are_the_text_and_the_text_is_the_tokens() {
    let backbone = backbone();
    // On a task of its own: the future must be free to move between threads.
    let generation = tokio::spawn(async move {
        let mut pieces = (Vec::new(), String::new());
        let prompt = prompt(&backbone);
        let generation = backbone
            .generate(&prompt, &options(20), |piece| {
                pieces.0.push(piece.token);
                pieces.1.push_str(piece.text);
                ControlFlow::Continue(())
            })
            .await
            .unwrap();
        assert_eq!((&pieces.0, pieces.1.as_str()), (&generation.tokens, generation.text.as_str()));
        assert_eq!(backbone.model().tokenizer.as_ref().unwrap().decode(&pieces.0).unwrap(), generation.text);
        generation
    });
    let generation = generation.await.unwrap();
    assert!(generation.text.starts_with(" the prince was so delighted"), "{:?}", generation.text);
    assert_eq!((generation.finish, generation.tokens.len()), (Finish::Length, 20));
    assert_eq!((generation.timing.prompt_tokens, generation.timing.decode_steps), (7, 19));
}

#[tokio::test]
async fn a_stop_token_ends_the_text_and_is_no_part_of_it() {
    let backbone = backbone();
    let prompt = prompt(&backbone);
    let all = backbone.generate(&prompt, &options(8), |_| ControlFlow::Continue(())).await.unwrap().tokens;
    let stopping = GenerateOptions { stop_ids: vec![all[5]], ..options(8) };
    let cut = backbone.generate(&prompt, &stopping, |_| ControlFlow::Continue(())).await.unwrap();
    let first = all.iter().position(|token| *token == all[5]).unwrap();
    assert_eq!((cut.finish, &cut.tokens[..]), (Finish::Stop, &all[..first]));
}

#[tokio::test]
async fn the_receiver_can_end_it() {
    let backbone = backbone();
    let prompt = prompt(&backbone);
    let generation = backbone.generate(&prompt, &options(8), |_| ControlFlow::Break(())).await.unwrap();
    assert_eq!((generation.finish, generation.tokens.len()), (Finish::Cancelled, 1));
}

#[tokio::test]
async fn a_full_context_ends_it_and_an_overlong_prompt_is_refused() {
    let backbone = backbone();
    let limit = backbone.model().hyper.context_length;
    let long: Vec<u32> = (0..limit as u32 - 2).map(|i| i % 4000).collect();
    let generation = backbone.generate(&long, &options(9), |_| ControlFlow::Continue(())).await.unwrap();
    assert_eq!((generation.finish, generation.tokens.len()), (Finish::Context, 3));
    let longer = vec![1; limit + 1];
    match backbone.generate(&longer, &options(1), |_| ControlFlow::Continue(())).await {
        Err(GenerateError::Forward(ForwardError::Context { limit: l, needed })) => {
            assert_eq!((l, needed), (limit, limit + 1))
        }
        other => panic!("expected a context error, got {other:?}"),
    }
}

#[tokio::test]
async fn unknown_tokens_and_empty_prompts_are_refused() {
    let backbone = backbone();
    for (prompt, message) in
        [(vec![], "expected at least one token, got none"), (vec![4096], "expected a token below 4096, got 4096")]
    {
        let error = backbone.generate(&prompt, &options(1), |_| ControlFlow::Continue(())).await.unwrap_err();
        assert_eq!(error.to_string(), message);
    }
}

#[tokio::test]
async fn one_seed_gives_one_text() {
    let backbone = backbone();
    let prompt = prompt(&backbone);
    let mut texts = Vec::new();
    for seed in [1, 1, 2] {
        let sampling = Sampling { temperature: 0.9, top_p: 0.95, top_k: 40, seed };
        let options = GenerateOptions { sampling, ..options(24) };
        let generation = backbone.generate(&prompt, &options, |_| ControlFlow::Continue(()));
        texts.push(generation.await.unwrap().text);
    }
    assert_eq!(texts[0], texts[1]);
    assert_ne!(texts[0], texts[2]);
}

#[tokio::test]
async fn timing_counts_what_it_timed() {
    let timing = backbone().time(10, 5).await.unwrap();
    assert_eq!((timing.prompt_tokens, timing.decode_steps), (10, 5));
    assert!(timing.decode_tokens_per_s() > 0.0 && timing.prefill_tokens_per_s() > 0.0);
}
