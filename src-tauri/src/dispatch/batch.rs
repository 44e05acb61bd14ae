//! One round of a step: who is asked for what, and what becomes of it.
//!
//! A worker gets one request per layer and round, whatever the number of rows; it travels in parts that fit a frame.
//! What a request does not bring is handed on: to a replica, or to this machine. **Promises:** every assignment of a
//! round is in exactly one request that is answered or in one part that is computed here; partials that are not what
//! was asked for are never added.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::choice::{Candidate, choose};
use super::estimate::DeadlineRule;
use super::exact::{OpenStep, Part};
use super::fleet::Routes;
use super::inflight::Answer;
use super::request::{Failure, Request};
use crate::types::{ExpertId, SessionId};
use crate::wire::frame::ROWS_MAX;

/// Work of a round that somebody has to do: some experts of some rows.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// The rows.
    pub rows: Vec<usize>,
    /// The experts; a row wants those of them that its router chose.
    pub experts: BTreeSet<u16>,
    /// Sessions that were asked in vain.
    pub tried: Vec<SessionId>,
    /// How many of them ended while they owed it.
    pub deaths: u8,
}

/// What a round needs to know to ask.
pub(super) struct Asking<'a> {
    /// Who holds what.
    pub routes: &'a Routes,
    /// How long a worker may take.
    pub rule: &'a DeadlineRule,
    /// Ids of requests.
    pub next_id: &'a dyn Fn() -> u64,
    /// The time that this machine would need; a worker that is not sooner is not asked. `None`: whoever can is asked.
    pub sooner_than: Option<Duration>,
    /// Whether only workers of trusted wallets are asked.
    pub trusted_only: bool,
    /// Whether benched workers are asked too, because this machine cannot help.
    pub must: bool,
}

/// See the module.
pub(super) struct Round {
    /// What workers were asked for.
    pub requests: Vec<Request>,
    /// What is to be computed here.
    pub local: Vec<Part>,
    /// Answers that were refused.
    pub refused: usize,
    started: Instant,
    // Unbounded in type only: a request is answered once per part, and once more at its end.
    sender: mpsc::UnboundedSender<Answer>,
    answers: mpsc::UnboundedReceiver<Answer>,
}

impl Round {
    /// A round in which nobody was asked yet.
    pub fn new() -> Self {
        let (sender, answers) = mpsc::unbounded_channel();
        Self { requests: Vec::new(), local: Vec::new(), refused: 0, started: Instant::now(), sender, answers }
    }

    /// A round without anybody else.
    pub fn here(open: &OpenStep) -> Self {
        Self { local: open.parts(|_| true), ..Self::new() }
    }

    /// Asks holders for what is wanted, each for its share; what nobody takes is to be computed here.
    pub fn ask(&mut self, open: &OpenStep, mut wanted: Wanted, asking: &Asking<'_>) {
        let (layer, shape, turn) = (open.layer(), open.shape(), (asking.next_id)());
        loop {
            let by_expert = open.by_expert(&wanted.rows, |expert| wanted.experts.contains(&expert));
            let holders_of = |expert| asking.routes.holders_of(ExpertId { layer, expert });
            let candidates = candidates(by_expert.keys().flat_map(|e| holders_of(*e)).copied(), &wanted.tried, asking);
            let shares = choose(&by_expert, shape, &candidates, holders_of, turn);
            // Whom nobody can stand in for is waited for: giving up would end the step.
            let patient = DeadlineRule { floor: asking.rule.ceiling, ..*asking.rule };
            let rule = if asking.must && candidates.len() == 1 { &patient } else { asking.rule };
            let mut is_complete = true;
            for (index, share) in shares {
                let Candidate { estimate, queued, .. } = candidates[&index];
                let predicted = estimate.predict(share.load(shape, queued));
                if asking.sooner_than.is_some_and(|here| here <= predicted) {
                    continue;
                }
                let share = Wanted { experts: share.experts, ..wanted.clone() };
                wanted.experts.retain(|expert| !share.experts.contains(expert));
                if let Err(refused) = self.send(open, index, share, asking, rule) {
                    wanted.experts.extend(refused.experts);
                    wanted.tried.push(asking.routes.holders[index].session.opened.session_id);
                    is_complete = false;
                }
            }
            if is_complete {
                break;
            }
        }
        self.keep(open, &wanted);
    }

    /// Sends a worker its share, or gives it back when the worker cannot be asked.
    fn send(
        &mut self,
        open: &OpenStep,
        index: usize,
        share: Wanted,
        asking: &Asking<'_>,
        rule: &DeadlineRule,
    ) -> Result<(), Wanted> {
        let (holder, layer) = (&asking.routes.holders[index], open.layer());
        let parts = open.parts_of(&share.rows, |expert| share.experts.contains(&expert));
        let send = |parts| {
            let (id, sender) = ((asking.next_id)(), self.sender.clone());
            Request::send(id, layer, holder, share.clone(), parts, rule, sender)
        };
        match requests_of(parts).into_iter().map(send).collect::<Option<Vec<_>>>() {
            Some(sent) => self.requests.extend(sent),
            // Requests that were sent before one that could not be are dropped with their verdicts.
            None => return Err(share),
        }
        Ok(())
    }

    /// Has this machine compute what is wanted.
    pub fn keep(&mut self, open: &OpenStep, wanted: &Wanted) {
        self.local.extend(open.parts_of(&wanted.rows, |expert| wanted.experts.contains(&expert)));
    }

    /// When the round was sent.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// From then to the newest answer, or to the newest failure of a request; zero where nobody was asked.
    pub fn away(&self) -> Duration {
        self.requests.iter().map(Request::settled).max().map_or(Duration::ZERO, |at| at - self.started)
    }

    /// Bytes of work frames sent and received.
    pub fn raw_bytes(&self) -> usize {
        self.requests.iter().map(Request::raw_bytes).sum()
    }

    /// Waits for answers until something has to be done by somebody else; `None` once nothing more is to come.
    pub async fn next_missing(&mut self, open: &OpenStep) -> Option<Wanted> {
        loop {
            if let Some(wanted) = self.requests.iter_mut().find_map(Request::hand_on) {
                return Some(wanted);
            }
            let deadline = self.requests.iter().filter(|r| r.is_awaited()).map(Request::deadline).min()?;
            match tokio::time::timeout_at(deadline, self.answers.recv()).await {
                Ok(Some(Answer::Part { frame, arrived })) => {
                    let request = self.awaited(frame.header.request);
                    let is_unusable = request.is_some_and(|request| !request.answer(open, &frame, arrived));
                    self.refused += usize::from(is_unusable);
                }
                Ok(Some(Answer::Declined { request, reason })) => {
                    tracing::debug!(request, reason, "declined");
                    self.fail(request, Failure::Declined);
                }
                Ok(Some(Answer::Gone { request })) => self.fail(request, Failure::Lost),
                // The round holds a sender itself, so its answers never end before their deadline.
                Ok(None) | Err(_) => {
                    let now = Instant::now();
                    let late = self.requests.iter_mut().filter(|r| r.is_awaited() && r.deadline() <= now);
                    late.for_each(|request| request.fail(Failure::Late, now));
                }
            }
        }
    }

    fn awaited(&mut self, id: u64) -> Option<&mut Request> {
        self.requests.iter_mut().find(|r| r.id() == id && r.is_awaited())
    }

    fn fail(&mut self, id: u64, failure: Failure) {
        if let Some(request) = self.awaited(id) {
            request.fail(failure, Instant::now());
        }
    }
}

/// Those of `holders` that may be asked.
fn candidates(
    holders: impl Iterator<Item = usize>,
    tried: &[SessionId],
    asking: &Asking<'_>,
) -> BTreeMap<usize, Candidate> {
    let (mut seen, mut candidates, now) = (BTreeSet::new(), BTreeMap::new(), Instant::now());
    for index in holders.filter(|index| seen.insert(*index)) {
        let session = &asking.routes.holders[index].session;
        let is_barred = asking.trusted_only && !session.bounds.is_trusted;
        if is_barred || tried.contains(&session.opened.session_id) {
            continue;
        }
        if asking.must || session.may_be_asked(now) {
            candidates.insert(index, session.candidate(now));
        }
    }
    candidates
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
