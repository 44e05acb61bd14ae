//! One request to one worker: its frames, its answers, and exactly one verdict for each of its parts.
//!
//! **Promises:** every part gets its verdict, also when the request is dropped half-way; partials that are not what was
//! asked for are refused when they come.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::batch::Wanted;
use super::estimate::{DeadlineRule, Load, Queued};
use super::exact::{OpenStep, Part, PartialsError, Shape};
use super::fleet::Holder;
use super::inflight::Answer;
use super::session::Session;
use super::trust::Dossier;
use crate::wire::frame::{FLAG_FLOAT, Frame, FrameError, HEADER_BYTES, Header, Kind};
use crate::wire::work::{Activations, Partials, RowStatus};

/// A part that a worker was asked for.
pub(super) struct Asked {
    /// What was asked.
    pub part: Part,
    /// What came back and can be used.
    pub partials: Option<Partials>,
    judged: bool,
}

impl Asked {
    fn assignments(&self) -> u32 {
        self.part.dispatch.assignments.len() as u32
    }
}

/// How a request ended, if it was not answered in full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Failure {
    /// Past its deadline.
    Late,
    /// The worker declined.
    Declined,
    /// The session ended.
    Lost,
}

/// A request to one worker, from its sending to its last verdict.
pub(super) struct Request {
    session: Arc<Session>,
    id: u64,
    load: Load,
    sent: Instant,
    deadline: Instant,
    unanswered: usize,
    /// When the newest of its answers came, or it failed.
    settled: Instant,
    raw_bytes: usize,
    /// What it is a part of, and who was asked before.
    wanted: Wanted,
    /// Whether what it did not bring was handed on.
    handed_on: bool,
    /// Its parts in order.
    pub asked: Vec<Asked>,
    /// Why there will be no more answers.
    pub failure: Option<Failure>,
}

impl Request {
    /// Sends `parts` of `wanted` to a worker; `None` when it cannot be asked, and then nothing was sent.
    pub fn send(
        id: u64,
        layer: u16,
        holder: &Holder,
        wanted: Wanted,
        mut parts: Vec<Part>,
        rule: &DeadlineRule,
        answers: mpsc::UnboundedSender<Answer>,
    ) -> Option<Self> {
        let session = Arc::clone(&holder.session);
        let assignments = parts.iter().map(|p| p.dispatch.assignments.len()).sum();
        let bytes = parts.iter().map(bytes_both_ways).sum();
        let queued = session.inflight.add(id, parts.len() as u16, Queued { bytes, assignments }, answers)?;
        let load = Load { bytes, queued, assignments };
        let allowed = rule.deadline(session.predict(load));
        let frames = frames(id, layer, holder.lease, allowed, &mut parts);
        let sent = Instant::now();
        let raw_bytes = frames.as_ref().map_or(0, |frames| frames.iter().map(raw_bytes).sum());
        if !frames.is_ok_and(|frames| session.send_all(frames)) {
            session.inflight.withdraw(id);
            return None;
        }
        session.asked(sent);
        let asked: Vec<Asked> = parts.into_iter().map(|part| Asked { part, partials: None, judged: false }).collect();
        let (unanswered, deadline) = (asked.len(), sent + allowed);
        Some(Self {
            session,
            id,
            load,
            sent,
            deadline,
            unanswered,
            settled: sent,
            raw_bytes,
            wanted,
            handed_on: false,
            asked,
            failure: None,
        })
    }

    /// Its id.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// What is known of its worker's honesty.
    pub fn dossier(&self) -> &Arc<Dossier> {
        &self.session.dossier
    }

    /// When it is late.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// How long its worker may take.
    pub fn allowed(&self) -> Duration {
        self.deadline - self.sent
    }

    /// Bytes of its frames, both ways.
    pub fn raw_bytes(&self) -> usize {
        self.raw_bytes
    }

    /// When the newest of its answers came, or it failed.
    pub fn settled(&self) -> Instant {
        self.settled
    }

    /// The experts that it asks for.
    pub fn experts(&self) -> &BTreeSet<u16> {
        &self.wanted.experts
    }

    /// Assignments of all its parts.
    pub fn assignments(&self) -> usize {
        self.load.assignments
    }

    /// Whether answers may still come.
    pub fn is_awaited(&self) -> bool {
        self.unanswered > 0 && self.failure.is_none()
    }

    /// Takes an answer to one part; whether it can be used.
    pub fn answer(&mut self, open: &OpenStep, frame: &Frame, arrived: Instant) -> bool {
        let index = usize::from(frame.header.part);
        let Some(asked) = self.asked.get_mut(index) else { return false };
        self.raw_bytes += raw_bytes(frame);
        self.unanswered -= 1;
        self.settled = self.settled.max(arrived);
        match read(open, &asked.part, frame) {
            Ok(partials) => {
                asked.partials = Some(partials);
                true
            }
            Err(error) => {
                tracing::warn!(session = %self.session.opened.session_id, request = self.id, %error, "bad partials");
                self.refuse(index, "shape");
                false
            }
        }
    }

    /// Ends the wait for its answers.
    pub fn fail(&mut self, failure: Failure, now: Instant) {
        (self.failure, self.settled) = (Some(failure), now);
        match failure {
            Failure::Late => self.session.late(self.load, self.allowed(), now),
            Failure::Declined => self.session.missed(now),
            Failure::Lost => {}
        }
        self.session.inflight.give_up(self.id);
        let reason = match failure {
            Failure::Late | Failure::Lost => "late",
            Failure::Declined => "declined",
        };
        for part in 0..self.asked.len() {
            if self.asked[part].partials.is_none() {
                self.refuse(part, reason);
            }
        }
    }

    /// The rows of an answered part that its worker says it cannot compute, and what it says of each; `None` when there
    /// are none.
    pub fn claims(&self, part: usize) -> Option<(Vec<usize>, Vec<RowStatus>)> {
        let Asked { part, partials, .. } = &self.asked[part];
        let rows = part.rows.iter().zip(&partials.as_ref()?.status);
        let claims: (Vec<usize>, Vec<RowStatus>) = rows.filter(|(_, status)| **status != RowStatus::Ok).unzip();
        (!claims.0.is_empty()).then_some(claims)
    }

    /// What has to be done by somebody else, once, when nothing more is to come.
    pub fn hand_on(&mut self) -> Option<Wanted> {
        if self.is_awaited() || self.handed_on {
            return None;
        }
        self.handed_on = true;
        let missing = self.asked.iter().filter(|asked| asked.partials.is_none());
        let rows: Vec<usize> = missing.flat_map(|asked| &asked.part.rows).copied().collect();
        if rows.is_empty() {
            return None;
        }
        let mut wanted = Wanted { rows, ..self.wanted.clone() };
        wanted.tried.push(self.session.opened.session_id);
        wanted.deaths += u8::from(self.failure == Some(Failure::Lost));
        Some(wanted)
    }

    /// Tells the session how the request went, once it is known what of it can be used.
    pub fn close(&self) {
        if self.failure.is_some() {
            return;
        }
        if self.asked.iter().all(|asked| asked.partials.is_some()) {
            self.session.on_time(self.load, self.settled - self.sent);
        } else {
            self.session.missed(Instant::now());
        }
    }

    /// Says that nothing of a part was used.
    pub fn refuse(&mut self, part: usize, reason: &str) {
        let refused = self.asked[part].assignments();
        self.asked[part].partials = None;
        self.judge(part, 0, refused, reason);
    }

    /// Says that `accepted` of a part's assignments were used.
    pub fn accept(&mut self, part: usize, accepted: u32) {
        let refused = self.asked[part].assignments() - accepted;
        self.judge(part, accepted, refused, if refused == 0 { "ok" } else { "status" });
    }

    fn judge(&mut self, part: usize, accepted: u32, refused: u32, reason: &str) {
        if !std::mem::replace(&mut self.asked[part].judged, true) {
            self.session.judge(self.id, part as u16, accepted, refused, reason);
        }
    }
}

impl Drop for Request {
    /// A step that is cancelled wants no more answers.
    fn drop(&mut self) {
        if self.is_awaited() {
            self.session.inflight.give_up(self.id);
        }
        for part in 0..self.asked.len() {
            if !self.asked[part].judged {
                self.refuse(part, "unused");
            }
        }
    }
}

/// Why an answer cannot be used.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Partials(#[from] PartialsError),
}

fn read(open: &OpenStep, part: &Part, frame: &Frame) -> Result<Partials, Unusable> {
    let dispatch = &part.dispatch;
    let (rows, assignments) = (dispatch.rows.len(), dispatch.assignments.len());
    let partials = Partials::decode(&frame.header, &frame.body, dispatch.hidden, rows, assignments)?;
    open.check(part, &partials)?;
    Ok(partials)
}

/// The frames of a request, with lease and deadline filled in.
fn frames(id: u64, layer: u16, lease: u32, allowed: Duration, parts: &mut [Part]) -> Result<Vec<Frame>, FrameError> {
    let count = parts.len() as u16;
    let frame = |(index, part): (usize, &mut Part)| {
        let dispatch = &mut part.dispatch;
        dispatch.lease = lease;
        dispatch.deadline_ms = u32::try_from(allowed.as_millis()).unwrap_or(u32::MAX);
        let header = Header {
            flags: if dispatch.is_float() { FLAG_FLOAT } else { 0 },
            layer,
            request: id,
            rows: dispatch.rows.len() as u32,
            assignments: dispatch.assignments.len() as u32,
            part: index as u16,
            parts: count,
            ..Header::control(Kind::Dispatch)
        };
        Frame::new(header, dispatch.encode())
    };
    parts.iter_mut().enumerate().map(frame).collect()
}

/// Bytes of a frame with its header.
fn raw_bytes(frame: &Frame) -> usize {
    HEADER_BYTES + frame.body.len()
}

/// Bytes of a part and of its answer.
fn bytes_both_ways(part: &Part) -> usize {
    let dispatch = &part.dispatch;
    let exact = matches!(dispatch.activations, Activations::Exact(_));
    Shape { hidden: dispatch.hidden, exact }.bytes(dispatch.rows.len(), dispatch.assignments.len())
}
