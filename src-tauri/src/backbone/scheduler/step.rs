//! One step of some streams, from their rows to their tokens; it owns them until it ends.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::counters::{Counters, add, add_time};
use super::lanes::Cost;
use super::stream::Stream;
use super::{Purpose, StreamError};
use crate::backbone::step::{Share, StepOutput};
use crate::backbone::{Backbone, ForwardError};
use crate::kernel::Crew;

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
    /// What it took; unknown when it failed.
    pub cost: Option<Cost>,
}

/// Runs a step of `members`.
pub(super) async fn run(
    backbone: Arc<Backbone>,
    counters: Arc<Counters>,
    mut members: Vec<Member>,
    purpose: Purpose,
) -> Stepped {
    let (start, mut compute) = (Instant::now(), Duration::ZERO);
    let prompts = members.iter().filter(|(stream, _)| stream.prompt_left() > 0);
    let prompt_rows: usize = prompts.map(|(_, rows)| *rows).sum();
    let rows: usize = members.iter().map(|(_, rows)| *rows).sum();
    let stepped = {
        let mut shares: Vec<Share<'_>> = members.iter_mut().map(|(stream, rows)| stream.share(*rows)).collect();
        let mut step = pin!(backbone.step(&mut shares));
        poll_fn(|context| {
            let polled = Instant::now();
            let stepped = step.as_mut().poll(context);
            compute += polled.elapsed();
            stepped
        })
        .await
    };
    add(&counters.steps, 1);
    add(&counters.step_rows, rows as u64);
    add_time(&counters.step_us, start.elapsed());
    let cost = match stepped {
        Ok(output) => {
            add(&counters.prompt_tokens, prompt_rows as u64);
            let chosen = Instant::now();
            advance(&backbone, &counters, &mut members, &output);
            compute += chosen.elapsed() + output.here;
            Some(Cost { rows, compute, away: output.away })
        }
        Err(error) => {
            fail(&mut members, error);
            None
        }
    };
    Stepped { streams: members.into_iter().map(|(stream, _)| stream).collect(), purpose, cost }
}

/// Gives every stream its token.
fn advance(backbone: &Backbone, counters: &Counters, members: &mut [Member], output: &StepOutput) {
    add_time(&counters.experts_us, output.experts);
    for served in &output.served {
        add(&counters.assignments_remote, served.remote);
        add(&counters.assignments_local, served.local);
    }
    add(&counters.new_tokens, output.logits.iter().map(|rows| rows.len() as u64).sum());
    let logits: usize = output.logits.iter().map(|rows| rows.values().len()).sum();
    let given = members.iter_mut().zip(&output.logits).zip(&output.served);
    Crew::all().each(
        CHOICE_WORK * logits,
        given,
        || (),
        |(), (((stream, rows), logits), served)| {
            let logits = (!logits.is_empty()).then(|| logits.row(0));
            stream.advance(*rows, logits, *served, output.experts, backbone);
        },
    );
}

fn fail(members: &mut [Member], error: ForwardError) {
    tracing::error!(%error, streams = members.len(), "a step failed");
    let error = Arc::new(error);
    members.iter_mut().for_each(|(stream, _)| stream.end(Err(StreamError::Step(Arc::clone(&error)))));
}
