//! Asks a device for rows whose answers the backbone knows, before any traffic and again from time to time.
//!
//! A device is asked once for every combination of weight types in its slice, for one row and for a batch, since those
//! take different kernels. The rows are drawn anew each time, on experts that the worker holds. A challenge can be
//! told from work: it finds what computes wrongly, and who lies in work alone is the audits' to catch.
//! **Promises:** nothing is asked of a device that has not passed, or of one that offers another name since; an answer
//! that is late costs the worker its routes and nothing else; a wrong one costs the device.

mod proof;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::audit::first_difference;
use super::counters::Counters;
use super::exact::OpenStep;
use super::remote::Shared;
use super::session::Session;
use super::{MoeStep, Route};
use crate::model::BlockType;
use crate::shutdown::Shutdown;
use crate::types::ExpertId;
use crate::wire::control::{Offer, SliceReady};
use crate::wire::frame::FLAG_FLOAT;
use crate::wire::work::{Dispatch, Partials};
use crate::wire::{Frame, FrameError, Header, Kind, Slice};

pub(super) use proof::Proof;
use proof::{Open, Question, Types};

/// Ids of challenges have this bit; those of work never get so far.
pub(super) const CHALLENGE: u64 = 1 << 63;
/// Rows of the second question: more than the kernels for single rows take.
const BATCH_ROWS: usize = 17;
/// Experts that a question's rows share: few, so that each meets several rows.
const EXPERTS_ASKED: usize = 8;
/// Between two looks at who is to be challenged.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Types that a device is asked for, with the lease and the experts to ask it on.
type Asked = BTreeMap<Types, (u32, Vec<ExpertId>)>;

impl Shared {
    /// A worker offers its device.
    ///
    /// # Errors
    /// As [`super::fleet::Fleet::offer`].
    pub fn offered(self: &Arc<Self>, session: &Arc<Session>, offer: Offer) -> Result<(), FrameError> {
        if session.proof.named(&offer.device) {
            self.fleet.proof_changed(false);
        }
        self.fleet.offer(session, offer)?;
        self.review(session);
        Ok(())
    }

    /// A worker holds a lease, or some of it.
    ///
    /// # Errors
    /// As [`super::fleet::Fleet::ready`].
    pub fn slice_ready(self: &Arc<Self>, session: &Arc<Session>, ready: &SliceReady) -> Result<(), FrameError> {
        let coming = if ready.experts.is_empty() {
            self.fleet.leased(session, ready.lease)
        } else {
            Some(Slice::from_ranges(&ready.experts)?)
        };
        let coming = coming.map(|slice| (ready.lease, slice));
        if !self.unproven(session, &Vec::from_iter(coming)).is_empty() {
            session.proof.holds.store(false, Relaxed);
        }
        self.fleet.ready(session, ready)?;
        self.review(session);
        Ok(())
    }

    /// The types in some slices that the session's device has not passed.
    fn unproven(&self, session: &Session, slices: &[(u32, Slice)]) -> Asked {
        let mut types = self.types_of(slices);
        let state = session.proof.state();
        types.retain(|types, _| !state.proven.contains(types));
        types
    }

    fn types_of(&self, slices: &[(u32, Slice)]) -> Asked {
        let mut asked = Asked::new();
        for (lease, slice) in slices {
            let mut known = None;
            for id in slice.iter() {
                let of = match known {
                    Some((layer, of)) if layer == id.layer => of,
                    _ => self.experts.types(id.layer),
                };
                known = Some((id.layer, of));
                let Some(of) = of else { continue };
                let (named, experts) = asked.entry(of).or_insert((*lease, Vec::new()));
                if named == lease {
                    experts.push(id);
                }
            }
        }
        asked
    }

    /// Decides anew whether a session may be asked for work, and asks its device what is still to be shown.
    fn review(self: &Arc<Self>, session: &Arc<Session>) {
        let slices = self.fleet.serving(session);
        if slices.is_empty() {
            return;
        }
        let missing = self.unproven(session, &slices);
        let now = Instant::now();
        let (is_open, is_due, is_late) = {
            let state = session.proof.state();
            let wanted = !missing.is_empty() || state.overdue || state.again.is_some_and(|again| again <= now);
            (state.open.is_some(), wanted && state.not_before.is_none_or(|moment| moment <= now), state.overdue)
        };
        let holds = missing.is_empty() && !is_late && !session.proof.is_evaded();
        if session.proof.holds.swap(holds, Relaxed) != holds {
            self.fleet.proof_changed(holds);
        }
        if is_open || !is_due || session.dossier.is_caught() {
            return;
        }
        let asked = if missing.is_empty() { self.types_of(&slices) } else { missing };
        self.challenge(session, asked);
    }

    /// Asks a device for one row and for a batch of each of these types.
    fn challenge(&self, session: &Session, asked: Asked) {
        // A slice of nothing asks for nothing.
        if asked.is_empty() {
            return;
        }
        let (mut frames, mut questions) = (Vec::new(), HashMap::new());
        let challenge = self.trust.challenges.fetch_add(2 * asked.len() as u64, Relaxed);
        let asks = asked.values().flat_map(|asked| [(asked, 1), (asked, BATCH_ROWS)]);
        for (n, ((lease, experts), rows)) in (challenge..).zip(asks) {
            let Some((layer, mut dispatch)) = self.question(n, experts, rows) else { continue };
            dispatch.lease = *lease;
            dispatch.deadline_ms = u32::try_from(self.trust.config.challenge_patience.as_millis()).unwrap_or(u32::MAX);
            let question = Question { challenge, layer, dispatch };
            match frame(CHALLENGE | n, &question) {
                Ok(frame) => frames.push(frame),
                Err(error) => {
                    tracing::error!(%error, "a challenge does not fit a frame");
                    continue;
                }
            }
            questions.insert(CHALLENGE | n, question);
        }
        let left = questions.len();
        if left < 2 * asked.len() {
            tracing::error!(session = %session.opened.session_id, "a challenge could not be drawn");
            return session.proof.put_off();
        }
        let types = asked.into_keys().collect();
        let open = Open { challenge, questions, left, types, sent: Instant::now() };
        if session.proof.opens(open) && !session.send_all(frames) {
            session.proof.put_off();
        }
    }

    /// The `n`-th question: a layer and rows of random values on some of `experts`, all of that layer.
    fn question(&self, n: u64, experts: &[ExpertId], rows: usize) -> Option<(u16, Dispatch)> {
        let mut random = self.trust.draws.values(n);
        let layer = experts.get(random() as usize % experts.len().max(1))?.layer;
        let mut held: Vec<u16> = experts.iter().filter(|id| id.layer == layer).map(|id| id.expert).collect();
        let shared_by_rows = held.len().min(EXPERTS_ASKED);
        for i in 0..shared_by_rows {
            let other = i + random() as usize % (held.len() - i);
            held.swap(i, other);
        }
        held.truncate(shared_by_rows);
        let hyper = &self.experts.model().hyper;
        let (per_row, width) = (hyper.experts_per_token.clamp(1, held.len()), hyper.hidden_size);
        let mut unit = || f32::from(random() as u16) / 65_536.0;
        let mut hidden = Vec::with_capacity(rows * width);
        for _ in 0..rows * width {
            // Four even draws are near enough to a normal one; every row has a few values far outside.
            let bell = unit() + unit() + unit() + unit() - 2.0;
            hidden.push(if unit() < 0.01 { 30.0 * bell } else { bell });
        }
        let rms = hidden.chunks(width).map(|row| (row.iter().map(|v| v * v).sum::<f32>() / width as f32).sqrt());
        let rms = rms.collect();
        let first = (unit() * held.len() as f32) as usize;
        let mut routes = Vec::with_capacity(rows * per_row);
        for at in (0..rows).flat_map(|row| (0..per_row).map(move |k| first + row + k)) {
            routes.push(Route { expert: held[at % held.len()], weight: 0.05 + unit() });
        }
        let step = MoeStep { layer, rows, hidden, rms, routes, generations: Vec::new(), trusted_only: false };
        let open = OpenStep::prepare(step, self.experts.form(layer), &self.experts).ok()?;
        // A model so wide that a frame does not hold the batch is asked for as many rows as it holds.
        Some((layer, open.parts(|_| true).into_iter().next()?.dispatch))
    }

    /// A worker answers a challenge.
    pub fn challenge_reply(self: &Arc<Self>, session: &Arc<Session>, frame: Frame) {
        let question = {
            let mut state = session.proof.state();
            state.open.as_mut().and_then(|open| open.questions.remove(&frame.header.request))
        };
        let Some(question) = question else { return Counters::add(&self.counters.refused, 1) };
        // A crowd of newcomers waits its turn outside of this machine's memory.
        let Ok(judge) = Arc::clone(&self.trust.judges).try_acquire_owned() else { return session.proof.put_off() };
        let (shared, session) = (Arc::clone(self), Arc::clone(session));
        tokio::spawn(async move {
            let _judge = judge;
            shared.judge_reply(&session, question, frame).await;
        });
    }

    async fn judge_reply(self: &Arc<Self>, session: &Arc<Session>, question: Question, frame: Frame) {
        let Question { challenge, layer, dispatch } = question;
        let Some(ours) = self.recompute(layer, dispatch.clone()).await else {
            // It says nothing about the device; it is asked again.
            return session.proof.put_off();
        };
        let Dispatch { hidden, rows, assignments, .. } = &dispatch;
        let wrong = match Partials::decode(&frame.header, &frame.body, *hidden, rows.len(), assignments.len()) {
            Ok(got) => first_difference(&ours, &got, &dispatch).map(|row| format!("row {row} is wrong")),
            Err(error) => Some(error.to_string()),
        };
        let device = session.proof.state().device.clone();
        if let Some(wrong) = wrong {
            Counters::add(&self.counters.challenges_failed, 1);
            let types = self.experts.types(layer).map(|types| types.map(BlockType::name).join("/")).unwrap_or_default();
            let reason = format!("challenge on layer {layer} ({types}, {} rows): {wrong}", rows.len());
            return self.fail_device(session, device, reason);
        }
        if session.proof.answered(challenge, self.next_challenge()) {
            Counters::add(&self.counters.challenges_passed, 1);
            tracing::debug!(session = %session.opened.session_id, device, "the device passed its challenge");
            self.review(session);
        }
    }

    /// When a device that passes now is asked again: at a random moment, so that nobody can be good just then.
    fn next_challenge(&self) -> Instant {
        let drawn = self.trust.draws.draw(CHALLENGE | self.trust.challenges.load(Relaxed));
        Instant::now() + self.trust.config.challenge_every.mul_f64(0.5 + drawn)
    }

    /// A worker will not answer a challenge now.
    pub fn challenge_declined(&self, session: &Session, request: u64, reason: &str) {
        tracing::debug!(session = %session.opened.session_id, reason, "challenge declined");
        let is_open = {
            let mut state = session.proof.state();
            let is_open = state.open.as_ref().is_some_and(|open| open.questions.contains_key(&request));
            state.declined = state.declined.saturating_add(u32::from(is_open));
            is_open
        };
        if is_open {
            session.proof.put_off();
        }
    }

    /// Challenges whoever is due, and takes the routes of whoever is late, until the process stops.
    pub async fn keep_challenging(self: &Arc<Self>, shutdown: &Shutdown) {
        loop {
            tokio::select! {
                () = sleep(LOOK_EVERY.min(self.trust.config.challenge_every)) => {}
                () = shutdown.wait() => return,
            }
            for session in self.fleet.sessions() {
                let late = session.proof.is_late(self.trust.config.challenge_patience);
                Counters::add(&self.counters.challenges_late, usize::from(late));
                self.review(&session);
            }
        }
    }
}

fn frame(request: u64, question: &Question) -> Result<Frame, FrameError> {
    let Question { layer, dispatch, .. } = question;
    let header = Header {
        flags: if dispatch.is_float() { FLAG_FLOAT } else { 0 },
        layer: *layer,
        request,
        rows: dispatch.rows.len() as u32,
        assignments: dispatch.assignments.len() as u32,
        ..Header::control(Kind::Challenge)
    };
    Frame::new(header, dispatch.encode())
}
