//! Many generations at once: none of them changes another, none takes what it was not given.

mod drafts;
mod given_up;
mod lanes;
mod process;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use kvasir::backbone::scheduler::{Event, Refused};
use kvasir::backbone::sequence::state_bytes;
use kvasir::backbone::{
    Adjustments, Backbone, Finish, GenerateOptions, Order, Reach, Sampling, Scheduler, SchedulerConfig, Share, Want,
};
use kvasir::dispatch::Mode;
use kvasir::shutdown::{self, ShutdownTrigger};
use proptest::prelude::*;
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;

use crate::support::local;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn backbone() -> Arc<Backbone> {
    let model = Arc::new(kvasir::model::embedded().unwrap());
    Arc::new(Backbone::new(model.clone(), Arc::new(local(&model, Mode::Exact))).unwrap())
}

/// A prompt of `tokens` arbitrary tokens, continued by `new` tokens in a way that depends on `seed`.
fn order(tokens: usize, new: usize, seed: u64) -> Order {
    let prompt = (0..tokens as u64).map(|i| ((i * 7919 + seed * 104_729) % 4000) as u32).collect();
    // Every third is greedy; the others sample.
    let temperature = if seed.is_multiple_of(3) { 0.0 } else { 0.9 };
    let sampling = Sampling { temperature, seed, ..Sampling::PEOPLE };
    let options = GenerateOptions { max_tokens: new, sampling, stop_ids: Vec::new() };
    let adjustments = Adjustments { frequency_penalty: 0.3, ..Adjustments::default() };
    Order { prompt, options, adjustments, reach: Reach::Any, logprobs: Some(2) }
}

fn start(backbone: &Arc<Backbone>, config: SchedulerConfig) -> (Scheduler, ShutdownTrigger) {
    let (stop, shutdown) = shutdown::channel();
    (Scheduler::start(backbone.clone(), config, shutdown), stop)
}

fn submit(scheduler: &Scheduler, order: Order) -> Receiver<Event> {
    scheduler.submit(scheduler.place().unwrap(), order).unwrap()
}

/// Everything that a stream says, its numbers as bits.
async fn outcome(mut events: Receiver<Event>) -> (Vec<(u32, Vec<u32>)>, Finish) {
    let mut said = Vec::new();
    loop {
        match timeout(PATIENCE, events.recv()).await.unwrap().unwrap() {
            Event::Prefilled(_) => assert!(said.is_empty()),
            Event::Token(choice, _) => {
                let logprobs = choice.logprobs.unwrap();
                let rivals = logprobs.top.iter().flat_map(|l| [l.token, l.logprob.to_bits()]);
                said.push((choice.token, rivals.chain([logprobs.chosen.logprob.to_bits()]).collect()));
            }
            Event::End(end) => return (said, end.unwrap().0),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_stream_alone_in_a_batch_and_beside_a_long_prompt_is_the_same(
        tokens in 1usize..300,
        seed in 0u64..1000,
        others in prop::collection::vec((1usize..200, 1usize..24, 0u64..1000), 31),
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let backbone = backbone();
            let (scheduler, _stop) = start(&backbone, SchedulerConfig::default());
            let alone = outcome(submit(&scheduler, order(tokens, 20, seed))).await;
            assert_eq!(alone.0.len(), 20);

            let steps = || scheduler.counters().steps.load(Relaxed);
            let before = steps();
            let batch: Vec<_> = others.iter().map(|(t, n, s)| submit(&scheduler, order(*t, *n, *s))).collect();
            let among = outcome(submit(&scheduler, order(tokens, 20, seed))).await;
            assert!(alone == among, "in a batch of 32");
            for events in batch {
                outcome(events).await;
            }
            let one_by_one: usize = others.iter().map(|(_, n, _)| n).sum();
            assert!(steps() - before < one_by_one as u64 / 2, "they ran together");

            let long = submit(&scheduler, order(1900, 1, 5));
            let beside = outcome(submit(&scheduler, order(tokens, 20, seed))).await;
            assert!(alone == beside, "beside a long prefill");
            outcome(long).await;
        });
    }
}

#[tokio::test]
async fn the_rows_of_a_step_do_not_meet() {
    let backbone = backbone();
    let prompts: Vec<Vec<u32>> = [70, 1, 128, 5].map(|n| order(n, 1, n as u64).prompt).into();
    let mut alone = Vec::new();
    for prompt in &prompts {
        let mut sequence = backbone.sequence();
        let first = backbone.forward(&mut sequence, prompt, Want::Every).await.unwrap();
        alone.push([first, backbone.forward(&mut sequence, &[9], Want::Last).await.unwrap()]);
    }
    let mut sequences: Vec<_> = prompts.iter().map(|_| backbone.sequence()).collect();
    let reaches = [Reach::Any, Reach::Local, Reach::Any, Reach::Local];
    let mut step = async |tokens: &[&[u32]], want: Want| {
        let parts = sequences.iter_mut().zip(tokens).zip(reaches);
        let mut shares: Vec<_> =
            parts.map(|((sequence, tokens), reach)| Share { sequence, tokens, want, reach }).collect();
        backbone.step(&mut shares).await.unwrap().logits
    };
    let first = step(&prompts.iter().map(Vec::as_slice).collect::<Vec<_>>(), Want::Every).await;
    let nine: &[u32] = &[9];
    let second = step(&[nine; 4], Want::Last).await;
    for ((alone, first), second) in alone.iter().zip(first).zip(second) {
        assert!(alone[0] == first && alone[1] == second);
    }
}

#[tokio::test]
async fn memory_is_taken_before_a_stream_starts_and_what_never_fits_is_refused() {
    let backbone = backbone();
    let hyper = &backbone.model().hyper;
    // Room for one of them at a time.
    let config = SchedulerConfig { state_bytes: state_bytes(hyper, 150), ..SchedulerConfig::default() };
    let (scheduler, _stop) = start(&backbone, config);
    let streams: Vec<_> = (0..3).map(|seed| submit(&scheduler, order(100, 8, seed))).collect();
    for stream in streams {
        assert_eq!(outcome(stream).await.1, Finish::Length);
        assert!(scheduler.counters().gauges.state_bytes.load(Relaxed) <= config.state_bytes);
        assert!(scheduler.counters().gauges.running.load(Relaxed) <= 1);
    }
    let refused = scheduler.submit(scheduler.place().unwrap(), order(100, 51, 1)).unwrap_err();
    let Refused::State { needed, limit, tokens, tokens_max } = refused else { panic!("{refused}") };
    assert_eq!((needed, limit), (state_bytes(hyper, 151), config.state_bytes));
    assert_eq!((tokens, tokens_max), (151, 150));
}

#[tokio::test]
async fn a_full_queue_refuses_and_a_place_comes_back() {
    let (scheduler, _stop) = start(&backbone(), SchedulerConfig { streams: 1, waiting: 1, ..Default::default() });
    let (first, second) = (submit(&scheduler, order(9, 40, 1)), submit(&scheduler, order(9, 3, 2)));
    assert_eq!(scheduler.place().unwrap_err(), Refused::Full { limit: 2 });
    outcome(first).await;
    outcome(second).await;
    let start = std::time::Instant::now();
    while scheduler.place().is_err() {
        assert!(start.elapsed() < PATIENCE, "the places of ended streams stay taken");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_stream_without_a_reader_ends_within_a_step() {
    let (scheduler, _stop) = start(&backbone(), SchedulerConfig::default());
    let mut events = submit(&scheduler, order(9, 2000, 1));
    assert!(matches!(events.recv().await, Some(Event::Prefilled(_))));
    drop(events);
    // The next one sees a batch without it.
    let before = scheduler.counters().step_rows.load(Relaxed);
    let (said, _) = outcome(submit(&scheduler, order(9, 12, 2))).await;
    assert_eq!((said.len(), scheduler.counters().cancelled.load(Relaxed)), (12, 1));
    let rows = scheduler.counters().step_rows.load(Relaxed) - before;
    assert!(rows <= 9 + 12 + 3, "{rows} rows: the abandoned stream was computed");
}

#[tokio::test]
async fn a_reader_that_does_not_read_holds_up_nobody() {
    let (scheduler, _stop) = start(&backbone(), SchedulerConfig::default());
    let slow = submit(&scheduler, order(9, 700, 3));
    for seed in 0..4 {
        outcome(submit(&scheduler, order(20, 150, seed))).await;
    }
    // It paused; now it goes on where it was.
    assert_eq!(outcome(slow).await.0.len(), 700);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_prompt_holds_a_stream_up_for_one_chunk_at_most() {
    let (scheduler, _stop) = start(&backbone(), SchedulerConfig::default());
    let mut running = submit(&scheduler, order(9, 200, 3));
    assert!(matches!(running.recv().await, Some(Event::Prefilled(_))));
    let mut long = submit(&scheduler, order(1900, 1, 1));
    let seen = scheduler.counters().new_tokens.load(Relaxed);
    assert!(matches!(timeout(PATIENCE, long.recv()).await.unwrap(), Some(Event::Prefilled(_))));
    // At most 256 prompt tokens a step, so at least seven steps between, each with a token of the other stream.
    let meanwhile = scheduler.counters().new_tokens.load(Relaxed) - seen;
    assert!(meanwhile >= 7, "{meanwhile} tokens while the prompt was read");
    assert_eq!(outcome(running).await.0.len(), 200);
}

#[tokio::test]
async fn a_stop_tells_everybody() {
    let (scheduler, stop) = start(&backbone(), SchedulerConfig { streams: 1, ..Default::default() });
    let streams: Vec<_> = (0..3).map(|seed| submit(&scheduler, order(9, 2000, seed))).collect();
    stop.fire();
    for mut events in streams {
        let mut last = None;
        while let Some(event) = timeout(PATIENCE, events.recv()).await.unwrap() {
            last = Some(event);
        }
        assert!(matches!(last, Some(Event::End(Err(_)))), "{last:?}");
    }
    let order = order(9, 1, 1);
    assert!(!scheduler.is_running());
    assert_eq!(scheduler.submit(scheduler.place().unwrap(), order).unwrap_err(), Refused::Stopping);
}
