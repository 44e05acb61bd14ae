//! Compares workers' answers with the backbone's own: a newcomer's before they are used, a share of the rest after.
//!
//! Exact partials are integers that every machine gets alike, so an audit is `==`; float-weight experts have no such
//! promise and may differ by rounding. **Promises:** with audits before use a step's sums are the local ones whatever is
//! sent; audits after use wait in a bounded queue, and one that finds no room is counted; they take at most a part of
//! the machine's time.

mod policy;
mod record;
mod seniority;

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep};

use super::DispatchError;
use super::batch::Round;
use super::counters::Counters;
use super::exact::{OpenStep, Part};
use super::here::joined;
use super::quarantine::Lie;
use super::remote::Shared;
use super::request::{Asked, Request};
use super::trust::Dossier;
use crate::shutdown::Shutdown;
use crate::types::GenerationId;
use crate::wire::work::{Dispatch, PartialValues, Partials};
pub use policy::{AuditPolicy, Draws, Look, RATE_MIN};
pub(super) use record::{Record, Used, bytes, digest};
pub use seniority::Seniority;

/// After an audit the machine has so many times its time for other things.
const REST: u32 = 3;
/// How far a float partial may lie from ours, relative to its length: other orders of adding, no other weights.
const FLOAT_ERROR_MAX: f64 = 1e-3;

/// An answer that was used and is to be recomputed.
pub(super) struct Job {
    dossier: Arc<Dossier>,
    request: u64,
    part: u16,
    layer: u16,
    dispatch: Dispatch,
    answer: Partials,
    generations: BTreeSet<GenerationId>,
    _room: OwnedSemaphorePermit,
}

/// The first row in which an answer is not what it should be.
pub(super) fn first_difference(expected: &Partials, got: &Partials, asked: &Dispatch) -> Option<usize> {
    let rows = asked.rows.len();
    if (got.status.len(), expected.status.len()) != (rows, rows) {
        return Some(0);
    }
    let status = (0..rows).find(|row| expected.status[*row] != got.status[*row]);
    let values = match (&expected.values, &got.values) {
        (PartialValues::Exact(expected), PartialValues::Exact(got)) => {
            let differs = expected.iter().zip(got).position(|(a, b)| a != b);
            let shorter = (expected.len() != got.len()).then_some(0);
            differs.map(|at| at / asked.hidden.max(1)).or(shorter)
        }
        (PartialValues::Float(expected), PartialValues::Float(got)) => {
            let same_length = expected.len() == got.len();
            let rows = expected.chunks(asked.hidden.max(1)).zip(got.chunks(asked.hidden.max(1)));
            let far = rows.into_iter().position(|(a, b)| is_far(a, b));
            // The values are one row per assignment; the row that it belongs to is the one whose range holds it.
            let row_of = |at: usize| asked.rows.iter().rposition(|head| head.first as usize <= at).unwrap_or(0);
            far.map(row_of).or((!same_length).then_some(0))
        }
        _ => Some(0),
    };
    status.into_iter().chain(values).min()
}

fn is_far(expected: &[f32], got: &[f32]) -> bool {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let length = norm(&mut expected.iter().map(|v| f64::from(*v)));
    let error = norm(&mut expected.iter().zip(got).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    error.is_nan() || error > FLOAT_ERROR_MAX * length
}

impl Shared {
    /// Recomputes the answers of a round that must not be used unseen. What differs is refused, and its wallet is caught;
    /// the right answers come back. Nothing of a caught wallet is used.
    ///
    /// # Errors
    /// The backbone's own kernel.
    pub async fn audit_before_use(
        self: &Arc<Self>,
        layer: u16,
        round: &mut Round,
    ) -> Result<Vec<(Part, Partials)>, DispatchError> {
        let (mut looked_at, mut parts) = (Vec::new(), Vec::new());
        for (r, request) in round.requests.iter_mut().enumerate() {
            let (caught, before) = (request.dossier().is_caught(), self.look(request.dossier()) == Look::BeforeUse);
            for index in 0..request.asked.len() {
                let Asked { part, partials: Some(_), .. } = &request.asked[index] else { continue };
                if caught {
                    Counters::add(&self.counters.recomputed, part.dispatch.assignments.len());
                    round.local.push(part.clone());
                    request.refuse(index, "audit");
                } else if before {
                    looked_at.push((r, index));
                    parts.push(part.clone());
                }
            }
        }
        let asked = parts.iter().map(|part| part.dispatch.clone()).collect();
        let Some(work) = self.here.answer(layer, asked) else { return Ok(Vec::new()) };
        let mut answers = joined(work).await??.into_iter();
        let mut corrected = Vec::new();
        for ((r, index), part) in looked_at.into_iter().zip(parts) {
            let request = &mut round.requests[r];
            let (Some(ours), Some(got)) = (answers.next(), &mut request.asked[index].partials) else {
                request.refuse(index, "unused");
                round.local.push(part);
                continue;
            };
            Counters::add(&self.counters.audits_before_use, 1);
            let Some(row) = first_difference(&ours, got, &part.dispatch) else {
                // Where rounding is allowed to differ, ours is what local dispatch would give.
                *got = ours;
                continue;
            };
            round.refused += 1;
            request.refuse(index, "audit");
            Counters::add(&self.counters.recomputed, part.dispatch.assignments.len());
            corrected.push((part, ours));
            let (request, dossier) = (request.id(), Arc::clone(request.dossier()));
            let part = index as u16;
            self.catch(&dossier, Lie { request, part, layer, row, generations: BTreeSet::new(), when: "before use" });
        }
        Ok(corrected)
    }

    fn look(&self, dossier: &Dossier) -> Look {
        let trust = &self.trust.config;
        trust.audit.look(trust.seniority.accepted(&dossier.wallet))
    }

    /// Takes note of a round's answers that were used: who used them, what is to be looked at again if their worker is
    /// ever caught, and which of them are recomputed in the background.
    pub fn audit_used(&self, open: &OpenStep, requests: &mut [Request]) {
        let trust = &self.trust.config;
        for request in requests {
            let (id, dossier, look) = (request.id(), Arc::clone(request.dossier()), self.look(request.dossier()));
            let used = std::mem::take(&mut request.asked).into_iter().enumerate();
            for (index, Asked { part, partials, .. }) in used {
                let Some(answer) = partials else { continue };
                let part_index = index as u16;
                trust.seniority.add(dossier.wallet, part.dispatch.assignments.len() as u64, trust.audit.grown_up());
                let generations = open.generations(&part.rows);
                dossier.record.used_by(generations.clone(), id);
                let (layer, dispatch) = (open.layer(), part.dispatch);
                if Record::takes(&dispatch) {
                    let answer = digest(&answer, dispatch.hidden);
                    let dispatch = dispatch.clone();
                    dossier.record.remember(Used { request: id, part: part_index, layer, dispatch, answer });
                }
                let n = self.trust.frames.fetch_add(1, Relaxed) + 1;
                if matches!(look, Look::AfterUse(rate) if self.trust.draws.draw(n) < rate) {
                    self.queue(&dossier, (id, part_index, layer), dispatch, answer, generations);
                }
            }
        }
    }

    fn queue(
        &self,
        dossier: &Arc<Dossier>,
        (request, part, layer): (u64, u16, u16),
        dispatch: Dispatch,
        answer: Partials,
        generations: BTreeSet<GenerationId>,
    ) {
        let values = match &answer.values {
            PartialValues::Exact(values) => values.len(),
            PartialValues::Float(values) => values.len(),
        };
        let kib = u32::try_from((bytes(&dispatch) + 4 * values) / 1024 + 1).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.trust.room).try_acquire_many_owned(kib);
        let queued = room.is_ok_and(|room| {
            let dossier = Arc::clone(dossier);
            let job = Job { dossier, request, part, layer, dispatch, answer, generations, _room: room };
            self.trust.jobs.try_send(job).is_ok()
        });
        if !queued {
            Counters::add(&self.counters.audits_dropped, 1);
        }
    }

    /// Recomputes what was queued, one answer after another, until the process stops.
    pub async fn keep_auditing(self: &Arc<Self>, shutdown: &Shutdown) {
        let jobs = self.trust.waiting_jobs.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut jobs) = jobs else { return };
        loop {
            let job = tokio::select! {
                job = jobs.recv() => job,
                () = shutdown.wait() => None,
            };
            let Some(job) = job else { return };
            let start = Instant::now();
            self.audit_after_use(job).await;
            tokio::select! {
                () = sleep(start.elapsed() * REST) => {}
                () = shutdown.wait() => return,
            }
        }
    }

    async fn audit_after_use(self: &Arc<Self>, job: Job) {
        let Job { dossier, request, part, layer, dispatch, answer, generations, _room } = job;
        let Some(ours) = self.recompute(layer, dispatch.clone()).await else { return };
        Counters::add(&self.counters.audits_after_use, 1);
        if let Some(row) = first_difference(&ours, &answer, &dispatch) {
            self.catch(&dossier, Lie { request, part, layer, row, generations, when: "after use" });
        }
    }

    /// The backbone's own answer to a request, when nothing else is recomputed; `None` when it has none, which says
    /// nothing about the worker's.
    pub async fn recompute(self: &Arc<Self>, layer: u16, dispatch: Dispatch) -> Option<Partials> {
        let _turn = self.trust.turn.acquire().await.ok()?;
        let work = self.here.answer(layer, vec![dispatch])?;
        match joined(work).await {
            Ok(Ok(answers)) => answers.into_iter().next(),
            Ok(Err(error)) | Err(error) => {
                tracing::error!(layer, %error, "an audit could not be computed");
                None
            }
        }
    }

    /// Looks again at what a session answered before, but for a part that is `known` to be false; the first request
    /// whose answer was false.
    pub async fn audit_again(self: &Arc<Self>, dossier: &Dossier, known: Option<(u64, u16)>) -> Option<u64> {
        let mut first = None;
        for Used { request, part, layer, dispatch, answer } in dossier.record.take_frames() {
            if known == Some((request, part)) {
                continue;
            }
            let hidden = dispatch.hidden;
            let Some(ours) = self.recompute(layer, dispatch).await else { continue };
            Counters::add(&self.counters.audits_again, 1);
            if digest(&ours, hidden) != answer {
                Counters::add(&self.counters.audit_mismatches, 1);
                tracing::warn!(session = %dossier.session_id, layer, request, part, "an earlier answer was false");
                first = Some(first.map_or(request, |first: u64| first.min(request)));
            }
        }
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::work::{Activations, RowHead, RowStatus};

    const HIDDEN: usize = 4;

    fn asked(float: bool) -> Dispatch {
        let activations = if float { Activations::Float(vec![]) } else { Activations::Exact(vec![].into()) };
        let head = |first| RowHead { grid: 0, count: 2, first };
        let (rows, assignments) = (vec![head(0), head(2)], Vec::new());
        Dispatch { lease: 1, deadline_ms: 1, hidden: HIDDEN, rows, activations, assignments }
    }

    fn answer(values: PartialValues) -> Partials {
        Partials { status: vec![RowStatus::Ok; 2], values }
    }

    #[test]
    fn an_exact_answer_must_be_equal_in_every_value_and_status() {
        let ours = answer(PartialValues::Exact(vec![7; 2 * HIDDEN]));
        assert_eq!(first_difference(&ours, &ours.clone(), &asked(false)), None);
        let mut got = ours.clone();
        got.status[1] = RowStatus::Range;
        assert_eq!(first_difference(&ours, &got, &asked(false)), Some(1));
        let PartialValues::Exact(values) = &mut got.values else { unreachable!() };
        values[HIDDEN - 1] = 8;
        assert_eq!(first_difference(&ours, &got, &asked(false)), Some(0));
        let short = answer(PartialValues::Exact(vec![7; HIDDEN]));
        assert_eq!(first_difference(&ours, &short, &asked(false)), Some(0));
        let float = answer(PartialValues::Float(vec![7.0; 4 * HIDDEN]));
        assert_eq!(first_difference(&ours, &float, &asked(false)), Some(0));
    }

    #[test]
    fn a_float_answer_may_differ_by_rounding_and_by_nothing_else() {
        let floats = |at: usize, value: f32| {
            let mut values = vec![1.0; 4 * HIDDEN];
            values[at] = value;
            answer(PartialValues::Float(values))
        };
        let ours = floats(0, 1.0);
        assert_eq!(first_difference(&ours, &floats(0, 1.0001), &asked(true)), None);
        assert_eq!(first_difference(&ours, &floats(9, 1.01), &asked(true)), Some(1));
        assert_eq!(first_difference(&ours, &floats(5, f32::NAN), &asked(true)), Some(0));
    }
}
