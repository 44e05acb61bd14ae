//! One stream's drafts: who makes them, how many, and how often they were right.

use std::time::{Duration, Instant};

use super::head::Head;
use super::lookup::{CLASSES, Found, Lookup, copy};
use super::pace::Pace;
use super::{DRAFTS_MAX, Drafters, Room, Speculation};
use crate::backbone::mtp::DraftShare;
use crate::backbone::{Backbone, Reach, Rows, Sampler, Want};

/// Share of the last verdict in the chance that a draft is right.
const NEWEST: f64 = 0.08;
/// That chance before the first verdict: of the head, and of a place that agrees in two, three, four or more tokens.
const HEAD_RIGHT: f64 = 0.6;
const LOOKUP_RIGHT: [f64; CLASSES] = [0.3, 0.45, 0.6, 0.75];
/// Steps without drafts until one is tried all the same, at first and at last.
const RETRY_STEPS: [u32; 2] = [32, 1024];
/// Rows that the head reads for such a try.
const RETRY_ROWS: usize = 16;

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
    /// Drafts that were right so far.
    accepted: usize,
    /// Steps in a row that had no room for its drafts.
    passed_over: u32,
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
        let asks = speculation.asks_head(&backbone.model().hyper);
        let state = asks.then(|| backbone.draft_state_with_room(tokens)).flatten();
        let mut all = Vec::new();
        if speculation.drafters != Drafters::Off {
            all.reserve_exact(tokens.max(prompt.len()));
            all.extend_from_slice(prompt);
        }
        Self {
            speculation,
            tokens: all,
            lookup: speculation.looks_up().then(|| Lookup::new(tokens)),
            head: state.map(|state| Head::new(state, backbone.model().hyper.hidden_size)),
            head_right: HEAD_RIGHT,
            lookup_right: LOOKUP_RIGHT,
            source: Source::Head,
            drafts: Vec::with_capacity(DRAFTS_MAX),
            asked: 0,
            accepted: 0,
            passed_over: 0,
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

    /// Takes the next token of the text. Whether it is what was drafted, so that the next row of the step goes on.
    pub fn take(&mut self, token: u32) -> bool {
        if self.speculation.drafters != Drafters::Off {
            self.tokens.push(token);
        }
        let right = self.drafts.get(self.accepted) == Some(&token);
        self.accepted += usize::from(right);
        right
    }

    /// The drafts that the next step is to judge.
    #[must_use]
    pub fn drafts(&self) -> &[u32] {
        &self.drafts
    }

    /// Steps in a row that had no room for its drafts; whoever waited longest should be asked first.
    #[must_use]
    pub fn passed_over(&self) -> u32 {
        self.passed_over
    }

    /// Decides on the drafts of the next step, at most `most` and as far as there is room: those of a lookup are made at
    /// once, those of the head by [`Backbone::make_drafts`].
    pub fn plan(&mut self, most: usize, room: &mut Room, pace: &Pace) {
        self.drafts.clear();
        (self.asked, self.accepted) = (0, 0);
        let most = most.min(DRAFTS_MAX);
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
                let gains = sources.map(|(source, right)| (source, pace.gain(right, most, source == Source::Head)));
                match gains.max_by(|a, b| a.1.rate.total_cmp(&b.1.rate)) {
                    Some((source, gain)) if gain.drafts > 0 => {
                        (self.paid, self.idle, self.retry) = (self.paid.wrapping_add(1), 0, RETRY_STEPS[0]);
                        let fewer = if self.paid.is_multiple_of(VARIED) { FEWER } else { 0 };
                        (Some(source), gain.drafts.saturating_sub(fewer))
                    }
                    _ => {
                        // One, now and then and ever more seldom, to find out whether that is still so.
                        self.idle = self.idle.saturating_add(1);
                        (likeliest, usize::from(self.idle >= self.retry))
                    }
                }
            }
        };
        match source.filter(|_| count.min(most) > 0) {
            Some(source) => self.claim(source, found, count.min(most), room),
            None => self.passed_over = 0,
        }
    }

    /// Takes room for `count` drafts, or for as many as there is room for.
    fn claim(&mut self, source: Source, found: Option<Found>, count: usize, room: &mut Room) {
        let tries = self.idle >= self.retry;
        let unread = match &mut self.head {
            Some(head) if source == Source::Head => {
                if tries {
                    head.skip_to(RETRY_ROWS);
                }
                head.unread()
            }
            _ => 0,
        };
        let count = count.min(room.drafts);
        if count == 0 || unread > room.unread {
            self.passed_over = self.passed_over.saturating_add(1);
            return;
        }
        if tries {
            (self.idle, self.retry) = (0, (2 * self.retry).min(RETRY_STEPS[1]));
        }
        (self.source, self.passed_over) = (source, 0);
        (room.drafts, room.unread) = (room.drafts - count, room.unread - unread);
        match source {
            Source::Head => self.asked = count,
            Source::Lookup(_) => {
                found.into_iter().for_each(|found| copy(&self.tokens, found.next, count, &mut self.drafts));
            }
        }
    }

    /// Takes the verdict of a step: the drafts that [`Drafter::take`] met were right, and the next one, if there is one,
    /// was wrong if the text goes on.
    pub fn judge(&mut self, goes_on: bool) -> Tally {
        let accepted = std::mem::take(&mut self.accepted);
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
