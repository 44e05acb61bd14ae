//! Streams with drafts: what they give is what they give without, and several tokens come of one step.

use kvasir::backbone::{Drafters, Speculation};
use kvasir::demo::Death;

use super::lanes::{far, until};
use super::*;

fn drafting(drafters: Drafters, always: Option<usize>) -> SchedulerConfig {
    SchedulerConfig { speculation: Speculation { drafters, always }, ..SchedulerConfig::default() }
}

/// Streams of all kinds; every fourth stays on this machine.
fn orders() -> Vec<Order> {
    let kind = |seed: u64| {
        let mut order = order(1 + seed as usize * 23 % 150, 30 + seed as usize, seed);
        if seed.is_multiple_of(4) {
            order.reach = Reach::Local;
        }
        if seed.is_multiple_of(5) {
            // Greedy text without penalties repeats itself: a text for lookups.
            order.options.sampling = Sampling::GREEDY;
            order.adjustments = Adjustments::default();
        }
        order
    };
    (0..14).map(kind).collect()
}

async fn outcomes(scheduler: &Scheduler, orders: &[Order]) -> Vec<(Vec<(u32, Vec<u32>)>, Finish)> {
    let mut streams = Vec::new();
    for order in orders {
        streams.push(tokio::spawn(outcome(submit(scheduler, order.clone()))));
    }
    let mut ends = Vec::new();
    for stream in streams {
        ends.push(stream.await.unwrap());
    }
    ends
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_with_drafts_are_those_without() {
    let backbone = backbone();
    let mut orders = orders();
    let (plain, _stop) = start(&backbone, SchedulerConfig::default());
    let expected = outcomes(&plain, &orders).await;
    // Two stop in the middle of their texts.
    for which in [0, 5] {
        orders[which].options.stop_ids = vec![expected[which].0[17].0];
    }
    let stopped = outcomes(&plain, &orders).await;
    assert!(stopped[5].1 == Finish::Stop && plain.counters().drafted.load(Relaxed) == 0);
    for (drafters, always) in [
        (Drafters::Auto, None),
        (Drafters::Auto, Some(4)),
        (Drafters::Mtp, Some(1)),
        (Drafters::Mtp, Some(3)),
        (Drafters::Lookup, Some(4)),
    ] {
        let (scheduler, _stop) = start(&backbone, drafting(drafters, always));
        let got = outcomes(&scheduler, &orders).await;
        for (seed, (got, expected)) in got.iter().zip(&stopped).enumerate() {
            assert!(got == expected, "stream {seed} with {drafters:?}, {always:?}");
        }
        // A stream hears its end a moment before the last turn is counted.
        let counters = scheduler.counters();
        let count =
            || [&counters.turns, &counters.drafted, &counters.accepted, &counters.new_tokens].map(|n| n.load(Relaxed));
        until(|| matches!(count(), [turns, _, accepted, new] if new == turns + accepted)).await;
        let [_, drafted, accepted, _] = count();
        assert!(0 < accepted && accepted < drafted, "{accepted} of {drafted} with {drafters:?}, {always:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn drafts_over_far_workers_survive_their_death() {
    let orders = orders();
    let (near, _stop) = start(&backbone(), SchedulerConfig::default());
    let expected = outcomes(&near, &orders).await;
    let (mut network, backbone) = far(2).await;
    let (scheduler, _stop) = start(&backbone, drafting(Drafters::Auto, Some(2)));
    let streams: Vec<_> = orders.into_iter().map(|order| tokio::spawn(outcome(submit(&scheduler, order)))).collect();
    let new = || scheduler.counters().new_tokens.load(Relaxed);
    until(|| new() > 60).await;
    network.kill(0, Death::Closed);
    until(|| new() > 200).await;
    network.kill(1, Death::Closed);
    for (seed, (stream, expected)) in streams.into_iter().zip(expected).enumerate() {
        assert!(stream.await.unwrap() == expected, "stream {seed}");
    }
    assert!(scheduler.counters().assignments_remote.load(Relaxed) > 0);
    assert!(scheduler.counters().accepted.load(Relaxed) > 0);
}

/// What a stream had drafted when it gave each of its tokens.
async fn drafted(mut events: Receiver<Event>) -> Vec<u64> {
    let mut drafted = Vec::new();
    while let Some(event) = timeout(PATIENCE, events.recv()).await.unwrap() {
        if let Event::Token(_, report) = event {
            drafted.push(report.drafts.drafted);
        }
    }
    drafted
}

#[tokio::test(flavor = "multi_thread")]
async fn how_many_drafts_pay_is_learnt_while_prompts_keep_arriving() {
    let (scheduler, _stop) = start(&backbone(), drafting(Drafters::Mtp, None));
    // In one lane each step of the short one has a chunk of these.
    let long: Vec<_> = (0..2).map(|seed| submit(&scheduler, order(1900, 1, seed))).collect();
    let mut said = drafted(submit(&scheduler, order(9, 12, 3))).await;
    said.dedup();
    // Other numbers, or nothing would ever be known of the cost of a row.
    assert!(matches!(said[..], [0, 2, 3, ..]), "{said:?}");
    for events in long {
        outcome(events).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn drafts_that_a_step_has_no_room_for_have_it_in_the_next() {
    let (scheduler, _stop) = start(&backbone(), drafting(Drafters::Mtp, Some(4)));
    // A step judges 256 drafts: those of 64 streams.
    let streams: Vec<_> = (0..72).map(|seed| tokio::spawn(drafted(submit(&scheduler, order(4, 24, seed))))).collect();
    for (seed, stream) in streams.into_iter().enumerate() {
        let said = stream.await.unwrap();
        // Its eighth token comes of its third turn, unless the first or second had drafts.
        assert!(said[7] > 0, "stream {seed}: {said:?}");
    }
}

#[tokio::test]
async fn the_memory_of_drafts_is_taken_before_a_stream_starts() {
    let backbone = backbone();
    let hyper = &backbone.model().hyper;
    let config = drafting(Drafters::Auto, Some(2));
    let config = SchedulerConfig { state_bytes: config.stream_bytes(hyper, 150), ..config };
    assert!(config.state_bytes > state_bytes(hyper, 150));
    let (scheduler, _stop) = start(&backbone, config);
    let fits = submit(&scheduler, order(100, 50, 1));
    let refused = scheduler.submit(scheduler.place().unwrap(), order(100, 51, 1)).unwrap_err();
    let Refused::State { needed, limit, tokens, tokens_max } = refused else { panic!("{refused}") };
    assert_eq!((needed, limit), (config.stream_bytes(hyper, 151), config.state_bytes));
    assert_eq!((tokens, tokens_max), (151, 150));
    assert_eq!(outcome(fits).await.0.len(), 50);
}
