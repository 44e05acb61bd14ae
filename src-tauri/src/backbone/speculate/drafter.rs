//! One stream's drafts: who makes them, how many, and how often they were right.

use std::time::{Duration, Instant};

use super::head::Head;
use super::lookup::{CLASSES, Lookup, copy};
use super::pace::Pace;
use super::{DRAFTS_MAX, Drafters, Speculation};
use crate::backbone::mtp::DraftShare;
use crate::backbone::{Backbone, Reach, Rows, Sampler, Want};

/// Share of the last verdict in the chance that a draft is right.
const NEWEST: f64 = 0.08;
/// That chance before the first verdict: of the head, and of a place that agrees in two, three, four or more tokens.
const HEAD_RIGHT: f64 = 0.6;
const LOOKUP_RIGHT: [f64; CLASSES] = [0.3, 0.45, 0.6, 0.75];
/// Steps without drafts until one is tried all the same, at first and at last.
const RETRY_STEPS: [u32; 2] = [32, 1024];

/// One step in so many has [`FEWER`] drafts than pay most, so that the cost of a row stays known.
const VARIED: u32 = 8;
const FEWER: usize = 2;

/// Drafts and how they ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Made.
    pub drafted: u64,
    /// Right, and therefore text.
    pub accepted: u64,
}

impl Tally {
    /// Adds another.
    pub fn add(&mut self, other: Self) {
        self.drafted += other.drafted;
        self.accepted += other.accepted;
    }

    /// Share of the drafts that were right; `None` without any.
    #[must_use]
    pub fn acceptance(&self) -> Option<f64> {
        (self.drafted > 0).then(|| self.accepted as f64 / self.drafted as f64)
    }
}

/// What making drafts took, without passes that read more of a prompt than they drafted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Making {
    /// Drafts.
    pub drafts: usize,
    /// Of all of them.
    pub time: Duration,
}

/// Who made the drafts of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    Head,
    /// A place that agreed so well.
    Lookup(usize),
}

/// The drafts of one stream.
#[derive(Clone, Debug)]
pub struct Drafter {
    speculation: Speculation,
    /// Everything of the stream, the prompt included.
    tokens: Vec<u32>,
    lookup: Option<Lookup>,
    head: Option<Head>,
    head_right: f64,
    lookup_right: [f64; CLASSES],
    source: Source,
    drafts: Vec<u32>,
    /// Drafts that the head is to make.
    asked: usize,
    /// Steps in which drafts paid.
    paid: u32,
    /// Steps since drafts last paid, and until one is tried all the same.
    idle: u32,
    retry: u32,
}

impl Drafter {
    /// Before the prompt is read, with the memory of `tokens` tokens: [`Speculation::bytes`] of them, no more.
    #[must_use]
    pub fn new(backbone: &Backbone, speculation: Speculation, prompt: &[u32], tokens: usize) -> Self {
        let head = speculation.asks_head(&backbone.model().hyper);
        let mut all = Vec::new();
        if speculation.drafters != Drafters::Off {
            all.reserve_exact(tokens.max(prompt.len()));
            all.extend_from_slice(prompt);
        }
        Self {
            speculation,
            tokens: all,
            lookup: speculation.looks_up().then(|| Lookup::new(tokens)),
            head: head.then(|| backbone.draft_state_with_room(tokens)).flatten().map(Head::new),
            head_right: HEAD_RIGHT,
            lookup_right: LOOKUP_RIGHT,
            source: Source::Head,
            drafts: Vec::with_capacity(DRAFTS_MAX),
            asked: 0,
            paid: 0,
            idle: 0,
            retry: RETRY_STEPS[0],
        }
    }

    /// Whether it reads the hidden states of the stream's steps.
    #[must_use]
    pub fn reads_hidden(&self) -> bool {
        self.head.is_some()
    }

    /// Takes the trunk's rows behind the final norm of the tokens from place `first` on, `[rows, width]`.
    pub fn read(&mut self, first: usize, width: usize, rows: &[f32]) {
        if let Some(head) = &mut self.head {
            head.keep(first, width, rows);
        }
    }

    /// Takes the next token of the text.
    pub fn push(&mut self, token: u32) {
        if self.speculation.drafters != Drafters::Off {
            self.tokens.push(token);
        }
    }

    /// The drafts that the next step is to judge.
    #[must_use]
    pub fn drafts(&self) -> &[u32] {
        &self.drafts
    }

    /// How many drafts the next step is to judge, made or still to be made.
    #[must_use]
    pub fn planned(&self) -> usize {
        self.drafts.len().max(self.asked)
    }

    /// Decides on the drafts of the next step, at most `room`: those of a lookup are made at once, those of the head by
    /// [`Backbone::make_drafts`].
    pub fn plan(&mut self, room: usize, pace: &Pace) {
        self.drafts.clear();
        self.asked = 0;
        let room = room.min(DRAFTS_MAX);
        let found = self.lookup.as_mut().and_then(|lookup| {
            lookup.see(&self.tokens);
            lookup.find(&self.tokens)
        });
        let by_lookup = found.map(|found| (Source::Lookup(found.class), self.lookup_right[found.class]));
        let can = self.head.as_ref().is_some_and(|head| head.next(&self.tokens).is_some());
        let by_head = can.then_some((Source::Head, self.head_right));
        let sources = by_head.into_iter().chain(by_lookup);
        let likeliest = sources.clone().max_by(|a, b| a.1.total_cmp(&b.1)).map(|(source, _)| source);
        let (source, count) = match self.speculation.always.or_else(|| pace.learning()) {
            Some(count) => (likeliest, count),
            None => {
                let gains = sources.map(|(source, right)| (source, pace.gain(right, room, source == Source::Head)));
                match gains.max_by(|a, b| a.1.rate.total_cmp(&b.1.rate)) {
                    Some((source, gain)) if gain.drafts > 0 => {
                        (self.paid, self.idle, self.retry) = (self.paid.wrapping_add(1), 0, RETRY_STEPS[0]);
                        let fewer = if self.paid.is_multiple_of(VARIED) { FEWER } else { 0 };
                        (Some(source), gain.drafts.saturating_sub(fewer))
                    }
                    _ => (likeliest, self.retry()),
                }
            }
        };
        let count = count.min(room);
        match source {
            None => {}
            Some(Source::Head) => (self.source, self.asked) = (Source::Head, count),
            Some(lookup) => {
                self.source = lookup;
                found.into_iter().for_each(|found| copy(&self.tokens, found.next, count, &mut self.drafts));
            }
        }
    }

    /// Drafts of a step in which none pay: one, now and then and ever more seldom, to find out whether that is still so.
    fn retry(&mut self) -> usize {
        self.idle += 1;
        if self.idle < self.retry {
            return 0;
        }
        (self.idle, self.retry) = (0, (2 * self.retry).min(RETRY_STEPS[1]));
        1
    }

    /// Takes the verdict of a step: the first `accepted` drafts were right, and the next one, if there is one, was wrong
    /// if the text goes on.
    pub fn judge(&mut self, accepted: usize, goes_on: bool) -> Tally {
        let refuted = goes_on && accepted < self.drafts.len();
        let right = match self.source {
            Source::Head => &mut self.head_right,
            Source::Lookup(class) => &mut self.lookup_right[class],
        };
        let verdicts = std::iter::repeat_n(1.0, accepted).chain(refuted.then_some(0.0));
        verdicts.for_each(|verdict| *right += NEWEST * (verdict - *right));
        let tally = Tally { drafted: self.drafts.len() as u64, accepted: accepted as u64 };
        self.drafts.clear();
        self.asked = 0;
        tally
    }
}

impl Backbone {
    /// Lets the head make the drafts that it was asked for, of many streams together. Each is chosen by a copy of its
    /// stream's sampler: the same adjustments, and the random numbers to come. If the head cannot be computed, the
    /// streams go on without it.
    pub async fn make_drafts(&self, streams: &mut [(&mut Drafter, &Sampler)]) -> Making {
        let mut takers: Vec<_> = streams
            .iter_mut()
            .filter(|(drafter, _)| drafter.asked > 0)
            .map(|(drafter, sampler)| (&mut **drafter, (*sampler).clone()))
            .collect();
        takers.iter_mut().filter_map(|(drafter, _)| drafter.head.as_mut()).for_each(Head::begin);
        let (mut made, mut making) = (0, Making::default());
        loop {
            let (start, mut rows) = (Instant::now(), 0);
            let mut taking: Vec<_> =
                takers.iter_mut().filter(|(drafter, _)| drafter.asked > made && drafter.head.is_some()).collect();
            let mut shares = Vec::with_capacity(taking.len());
            for (drafter, _) in &mut taking {
                let Drafter { head: Some(head), tokens, drafts, .. } = &mut **drafter else { continue };
                let next = if made == 0 { head.next(tokens).unwrap_or_default() } else { &drafts[made - 1..] };
                rows += next.len();
                let Head { state, hidden, .. } = head;
                shares.push(DraftShare { state, hidden, next, want: Want::Last, reach: Reach::Local });
            }
            if shares.is_empty() {
                break;
            }
            let drafts = match self.draft_all(&mut shares).await {
                Ok(drafts) => drafts,
                Err(error) => {
                    tracing::warn!(%error, "the head drafts no more for some streams");
                    taking.into_iter().for_each(|(drafter, _)| drafter.head = None);
                    break;
                }
            };
            drop(shares);
            let (count, after_prompt) = (taking.len(), rows > taking.len() * (DRAFTS_MAX + 1));
            for ((drafter, sampler), draft) in taking.into_iter().zip(drafts) {
                drafter.drafts.push(sampler.choose(draft.logits.row(0)));
                let row: Rows = draft.hidden.last();
                drafter.head.iter_mut().for_each(|head| head.took(&row, made == 0));
            }
            made += 1;
            if !after_prompt {
                making.drafts += count;
                making.time += start.elapsed();
            }
        }
        takers.iter_mut().filter_map(|(drafter, _)| drafter.head.as_mut()).for_each(Head::end);
        making
    }
}
