//! One step of some streams, from their rows to their tokens; it owns them until it ends.

use std::cmp::Reverse;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::counters::{Counters, add, add_time};
use super::lanes::Cost;
use super::stream::{Given, Stream};
use super::{Event, Purpose, StreamError};
use crate::backbone::speculate::{Load, Pace, Room};
use crate::backbone::step::{Share, StepOutput};
use crate::backbone::{Backbone, ForwardError, Rows};
use crate::kernel::Crew;
use crate::shutdown::Shutdown;
use tokio::sync::mpsc;

/// Work of choosing, in multiplications per logit.
const CHOICE_WORK: usize = 2;

/// A stream and its rows of a step.
pub(super) type Member = (Stream, usize);

/// A step that ended.
pub(super) struct Stepped {
    /// Its streams, moved on, or ended with its error.
    pub streams: Vec<Stream>,
    /// Whom it was for.
    pub purpose: Purpose,
    /// What it took; unknown when it failed or was given up.
    pub cost: Option<Cost>,
    /// From its begin to its end.
    pub took: Duration,
}

/// What all steps share.
#[derive(Clone)]
pub(super) struct Common {
    pub backbone: Arc<Backbone>,
    pub counters: Arc<Counters>,
    pub pace: Arc<Mutex<Pace>>,
    pub shutdown: Shutdown,
}

impl Common {
    fn pace(&self) -> MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs a step of `members`; `decoders` streams decode in it and in those beside it.
pub(super) async fn run(common: Common, mut members: Vec<Member>, purpose: Purpose, decoders: usize) -> Stepped {
    let (start, mut compute) = (Instant::now(), Duration::ZERO);
    let Common { backbone, counters, .. } = &common;
    let prompts = members.iter().filter(|(stream, _)| stream.prompt_left() > 0);
    let (readers, prompt_rows) = prompts.fold((0, 0), |(readers, sum), (_, rows)| (readers + 1, sum + rows));
    let load = Load { here: members.len() - readers, all: decoders, prompt_rows };
    if load.here > 0 {
        timed(&mut compute, draft(&common, &mut members, load)).await;
    }
    let (began, mut hidden) = (Instant::now(), Rows::default());
    let rows: usize = members.iter().map(|(_, rows)| *rows).sum();
    let drafts: usize = members.iter().map(|(stream, _)| stream.drafts()).sum();
    let reads_hidden = members.iter_mut().any(|(stream, _)| stream.drafting().0.reads_hidden());
    let clients: Vec<_> = members.iter().map(|(stream, _)| stream.client()).collect();
    let stepped = {
        let mut shares: Vec<Share<'_>> = members.iter_mut().map(|(stream, rows)| stream.share(*rows)).collect();
        let step = backbone.step_in_parts(&mut shares, purpose.parts(), reads_hidden.then_some(&mut hidden));
        tokio::select! {
            biased;
            stepped = timed(&mut compute, step) => Some(stepped),
            () = is_unwanted(&clients, purpose, &common.shutdown) => None,
        }
    };
    add(&counters.steps, 1);
    add(&counters.step_rows, rows as u64);
    add_time(&counters.step_us, start.elapsed());
    let cost = match stepped {
        Some(Ok(output)) => {
            add(&counters.prompt_tokens, prompt_rows as u64);
            let chosen = Instant::now();
            if load.here > 0 {
                common.pace().stepped(load, rows - prompt_rows, began.elapsed());
            }
            advance(&common, &mut members, &output, &hidden);
            compute += chosen.elapsed() + output.experts.here;
            // Lanes share out streams: what its drafts cost is a part of what a stream costs.
            Some(Cost { rows: rows - drafts, compute, away: output.experts.away })
        }
        Some(Err(error)) => {
            fail(&mut members, error);
            None
        }
        None => {
            members.iter_mut().for_each(|(stream, _)| stream.end(Err(StreamError::Stopping)));
            None
        }
    };
    let streams = members.into_iter().map(|(stream, _)| stream).collect();
    Stepped { streams, purpose, cost, took: start.elapsed() }
}

/// Until nobody waits for a step any more: all its clients are gone, or the process stops and it only reads prompts.
async fn is_unwanted(clients: &[mpsc::Sender<Event>], purpose: Purpose, shutdown: &Shutdown) {
    let all_gone = async {
        for client in clients {
            client.closed().await;
        }
    };
    let stops = async {
        match purpose {
            Purpose::Prompts(_) => shutdown.wait().await,
            Purpose::Decoding(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        () = all_gone => {}
        () = stops => {}
    }
}

/// Awaits `work`, adding to `compute` the time that it computed in.
async fn timed<T>(compute: &mut Duration, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    poll_fn(|context| {
        let polled = Instant::now();
        let done = work.as_mut().poll(context);
        *compute += polled.elapsed();
        done
    })
    .await
}

/// Makes the drafts of the decoding members and gives them rows.
async fn draft(common: &Common, members: &mut [Member], load: Load) {
    {
        let mut pace = common.pace();
        pace.begin(load);
        let (mut room, context) = (Room::default(), common.backbone.model().hyper.context_length);
        let mut streams: Vec<&mut Stream> = members.iter_mut().map(|(stream, _)| stream).collect();
        streams.sort_by_key(|stream| Reverse(stream.passed_over()));
        streams.into_iter().for_each(|stream| stream.plan(&mut room, context, &pace));
    }
    let mut drafters: Vec<_> = members.iter_mut().map(|(stream, _)| stream.drafting()).collect();
    let making = common.backbone.make_drafts(&mut drafters).await;
    common.pace().made(making);
    members.iter_mut().for_each(|(stream, rows)| *rows += stream.drafts());
}

/// Gives every stream its tokens.
fn advance(common: &Common, members: &mut [Member], output: &StepOutput, hidden: &Rows) {
    let Common { backbone, counters, .. } = common;
    add_time(&counters.experts_us, output.experts.waited);
    for served in &output.served {
        add(&counters.assignments_remote, served.remote);
        add(&counters.assignments_local, served.local);
    }
    let mut first = 0;
    let parts: Vec<&[f32]> = members
        .iter()
        .map(|(_, rows)| {
            first += rows;
            if hidden.is_empty() { &[][..] } else { hidden.part(first - rows, *rows) }
        })
        .collect();
    let logits: usize = output.logits.iter().map(|rows| rows.values().len()).sum();
    for ((stream, _), lost) in members.iter_mut().zip(&output.lost) {
        let Some(error) = lost else { continue };
        tracing::error!(%error, "a stream's experts cannot be computed");
        stream.end(Err(StreamError::Step(Arc::new(ForwardError::Lost(Arc::clone(error))))));
    }
    let given = members.iter_mut().zip(&output.logits).zip(&output.served).zip(parts);
    let given = given.zip(&output.lost).filter(|(_, lost)| lost.is_none()).map(|(given, _)| given);
    Crew::all().each(
        CHOICE_WORK * logits,
        given,
        || (),
        |(), ((((stream, rows), logits), served), hidden)| {
            let given = Given { rows: *rows, logits, hidden, served: *served, experts: output.experts.waited };
            stream.advance(&given, backbone, counters);
        },
    );
}

fn fail(members: &mut [Member], error: ForwardError) {
    tracing::error!(%error, streams = members.len(), "a step failed");
    let error = Arc::new(error);
    members.iter_mut().for_each(|(stream, _)| stream.end(Err(StreamError::Step(Arc::clone(&error)))));
}
