//! One round of a step: who is asked for what, and what became of it.
//!
//! A worker gets one request per layer and round, whatever the number of rows; it travels in parts that fit a frame.
//! **Promises:** every part gets exactly one verdict, also when the round is dropped half-way; partials that are not
//! what was asked for are never added.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::exact::{OpenStep, Part};
use super::fleet::{Holder, Routes};
use super::inflight::{Answer, DeadlineRule, Load};
use super::session::Session;
use super::trust::Dossier;
use crate::types::ExpertId;
use crate::wire::frame::{FLAG_FLOAT, Frame, FrameError, HEADER_BYTES, Header, Kind, ROWS_MAX};
use crate::wire::work::{Activations, Dispatch, Partials};

/// A part that a worker was asked for.
pub(super) struct Asked {
    /// What was asked.
    pub part: Part,
    /// What came back and could be read.
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
    /// When the newest of its answers came.
    arrived: Instant,
    raw_bytes: usize,
    /// Its parts in order.
    pub asked: Vec<Asked>,
    /// Why there will be no more answers.
    pub failure: Option<Failure>,
}

impl Request {
    /// Sends `parts` to a worker; `None` when it cannot be asked, and then nothing was sent.
    fn send(
        id: u64,
        layer: u16,
        holder: &Holder,
        mut parts: Vec<Part>,
        rule: &DeadlineRule,
        answers: mpsc::Sender<Answer>,
    ) -> Option<Self> {
        let session = Arc::clone(&holder.session);
        let assignments = parts.iter().map(|p| p.dispatch.assignments.len()).sum();
        let bytes = parts.iter().map(|p| bytes_both_ways(&p.dispatch)).sum();
        let queued = session.inflight.add(id, parts.len() as u16, assignments, answers)?;
        let load = Load { bytes, queued, assignments };
        let allowed = rule.deadline(session.predict(load));
        let frames = frames(id, layer, holder.lease, allowed, &mut parts);
        let sent = Instant::now();
        let raw_bytes = frames.as_ref().map_or(0, |frames| frames.iter().map(raw_bytes).sum());
        if !frames.is_ok_and(|frames| session.send_all(frames)) {
            session.inflight.withdraw(id);
            return None;
        }
        let asked: Vec<Asked> = parts.into_iter().map(|part| Asked { part, partials: None, judged: false }).collect();
        let (unanswered, deadline) = (asked.len(), sent + allowed);
        let (arrived, failure) = (sent, None);
        Some(Self { session, id, load, sent, deadline, unanswered, arrived, raw_bytes, asked, failure })
    }

    /// Its id.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// What is known of its worker's honesty.
    pub fn dossier(&self) -> &Arc<Dossier> {
        &self.session.dossier
    }

    fn is_awaited(&self) -> bool {
        self.unanswered > 0 && self.failure.is_none()
    }

    /// Takes a reply to one part; whether it can be read.
    fn answer(&mut self, frame: &Frame, arrived: Instant) -> bool {
        let Some(asked) = self.asked.get_mut(usize::from(frame.header.part)) else { return false };
        self.raw_bytes += raw_bytes(frame);
        let Dispatch { hidden, rows, assignments, .. } = &asked.part.dispatch;
        let partials = Partials::decode(&frame.header, &frame.body, *hidden, rows.len(), assignments.len());
        let read = partials.is_ok();
        match partials {
            Ok(partials) => asked.partials = Some(partials),
            Err(error) => {
                tracing::warn!(session = %self.session.opened.session_id, request = self.id, %error, "bad partials");
                self.refuse(usize::from(frame.header.part), "shape");
            }
        }
        self.unanswered -= 1;
        self.arrived = self.arrived.max(arrived);
        read
    }

    /// Tells the session how the request went, once it is known what of it can be used.
    pub fn close(&self) {
        if self.failure.is_some() {
            return;
        }
        if self.asked.iter().all(|asked| asked.partials.is_some()) {
            self.session.on_time(self.load, self.arrived - self.sent);
        } else {
            self.session.missed(Instant::now());
        }
    }

    fn fail(&mut self, failure: Failure, now: Instant) {
        self.failure = Some(failure);
        match failure {
            Failure::Late => self.session.late(self.load, self.deadline - self.sent, now),
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

/// Bytes of a part and of its reply.
fn bytes_both_ways(dispatch: &Dispatch) -> usize {
    let (rows, assignments) = (dispatch.rows.len(), dispatch.assignments.len());
    let (request, reply) = match &dispatch.activations {
        Activations::Exact(bytes) => (bytes.len() + 6 * assignments, rows),
        Activations::Float(values) => (4 * values.len() + 4 * assignments, assignments),
    };
    2 * HEADER_BYTES + 8 + 8 * rows + request + rows + 4 * dispatch.hidden * reply
}

/// See the module.
pub(super) struct Round {
    /// What workers were asked for.
    pub requests: Vec<Request>,
    /// What is computed here.
    pub local: Vec<Part>,
    started: Instant,
    answers: mpsc::Receiver<Answer>,
}

impl Round {
    /// Asks the holders of `routes` for everything they hold; the rest stays here. Ids come from `next_id`.
    pub fn send(open: &OpenStep, routes: &Routes, rule: &DeadlineRule, next_id: impl Fn() -> u64) -> Self {
        let started = Instant::now();
        let layer = open.layer();
        let holder = |expert| routes.holder(ExpertId { layer, expert });
        let mut asked: Vec<usize> = Vec::new();
        for index in open.open_assignments().filter_map(|(_, expert)| holder(expert)) {
            if !asked.contains(&index) && routes.holders[index].session.may_be_asked(started) {
                asked.push(index);
            }
        }
        let batches: Vec<(usize, Vec<Vec<Part>>)> = asked
            .iter()
            .map(|index| (*index, requests_of(open.parts(|expert| holder(expert) == Some(*index)))))
            .collect();
        let room: usize = batches.iter().flat_map(|(_, requests)| requests).map(|parts| parts.len() + 1).sum();
        let (tx, answers) = mpsc::channel(room.max(1));
        let mut requests = Vec::with_capacity(batches.len());
        for (index, batch) in batches {
            let holder = &routes.holders[index];
            let sent: Option<Vec<Request>> = batch
                .into_iter()
                .map(|parts| Request::send(next_id(), layer, holder, parts, rule, tx.clone()))
                .collect();
            match sent {
                Some(sent) => requests.extend(sent),
                // What this worker was sent so far is dropped with its verdicts; all of its share stays here.
                None => asked.retain(|other| *other != index),
            }
        }
        let local = open.parts(|expert| holder(expert).is_none_or(|index| !asked.contains(&index)));
        Self { requests, local, started, answers }
    }

    /// A round without anybody else.
    pub fn here(open: &OpenStep) -> Self {
        let (_, answers) = mpsc::channel(1);
        Self { requests: Vec::new(), local: open.parts(|_| true), started: Instant::now(), answers }
    }

    /// When the round was sent.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Bytes of work frames sent and received.
    pub fn raw_bytes(&self) -> usize {
        self.requests.iter().map(|request| request.raw_bytes).sum()
    }

    /// Waits until every request is answered, failed or late; returns how many replies could not be read.
    pub async fn wait(&mut self) -> usize {
        let mut unreadable = 0;
        while let Some(deadline) = self.requests.iter().filter(|r| r.is_awaited()).map(|r| r.deadline).min() {
            match tokio::time::timeout_at(deadline, self.answers.recv()).await {
                Ok(Some(Answer::Part { frame, arrived })) => {
                    let request = self.awaited(frame.header.request);
                    unreadable += usize::from(request.is_some_and(|r| !r.answer(&frame, arrived)));
                }
                Ok(Some(Answer::Declined { request, reason })) => {
                    tracing::debug!(request, reason, "declined");
                    self.fail(request, Failure::Declined);
                }
                Ok(Some(Answer::Gone { request })) => self.fail(request, Failure::Lost),
                // Nobody is left who could answer.
                Ok(None) => self.fail_awaited(Failure::Lost, |_| true),
                Err(_) => {
                    let now = Instant::now();
                    self.fail_awaited(Failure::Late, |request| request.deadline <= now);
                }
            }
        }
        unreadable
    }

    fn awaited(&mut self, id: u64) -> Option<&mut Request> {
        self.requests.iter_mut().find(|r| r.id == id && r.is_awaited())
    }

    fn fail(&mut self, id: u64, failure: Failure) {
        if let Some(request) = self.awaited(id) {
            request.fail(failure, Instant::now());
        }
    }

    fn fail_awaited(&mut self, failure: Failure, which: impl Fn(&Request) -> bool) {
        let now = Instant::now();
        self.requests.iter_mut().filter(|r| r.is_awaited() && which(r)).for_each(|r| r.fail(failure, now));
    }
}

/// Parts in groups that stay within the rows of a request.
fn requests_of(parts: Vec<Part>) -> Vec<Vec<Part>> {
    let mut requests: Vec<Vec<Part>> = Vec::new();
    let mut rows = 0;
    for part in parts {
        rows += part.rows.len();
        match requests.last_mut() {
            Some(request) if rows <= ROWS_MAX as usize => request.push(part),
            _ => {
                rows = part.rows.len();
                requests.push(vec![part]);
            }
        }
    }
    requests
}
