//! Which idle streams go into the next step, and with how many rows each.
//!
//! Where partials travel, steps that decode and those that read a prompt go apart: a chunk's partials would hold up every
//! token that travels with it. Where nothing travels they go together, because a step costs this machine something
//! whatever its rows.

use std::time::Instant;

use super::Purpose;
use super::lanes::Lanes;
use super::stream::Stream;
use super::under_way::UnderWay;
use crate::backbone::{PREFILL_TOKENS, delta_rule};

/// Prompt tokens in a step that others wait for; whole chunks of the delta rule.
const PREFILL_BESIDE: usize = 256;

/// An idle stream that may take part in a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Idle {
    /// Its place among the idle ones, who were idle longest first.
    pub index: usize,
    /// Prompt tokens that it has not read.
    pub prompt_left: usize,
    /// When its turn came.
    pub admitted: Instant,
}

impl Idle {
    /// The streams of `idle` that are ready.
    pub fn among(idle: &[Stream]) -> Vec<Self> {
        let ready = idle.iter().enumerate().filter(|(_, stream)| stream.is_ready());
        let idle =
            ready.map(|(index, stream)| Self { index, prompt_left: stream.prompt_left(), admitted: stream.admitted });
        idle.collect()
    }

    /// The prompt rows that it may have of `budget`: all that is left, or whole chunks of the delta rule, so that
    /// splitting changes no bit.
    fn rows_of(&self, budget: usize) -> usize {
        if self.prompt_left <= budget { self.prompt_left } else { budget / delta_rule::CHUNK * delta_rule::CHUNK }
    }
}

/// What is under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Busy {
    /// Steps in which streams decode.
    pub decoding: usize,
    /// Streams in them.
    pub decoders: usize,
    /// Steps that only read prompts.
    pub prompts: usize,
}

impl From<&UnderWay> for Busy {
    fn from(steps: &UnderWay) -> Self {
        Self { decoding: steps.decoding(), decoders: steps.decoders(), prompts: steps.prompts() }
    }
}

/// The next step to begin beside those under way: rows by index of [`Idle`]; `None` while there is none.
pub(super) fn next(ready: &[Idle], busy: Busy, lanes: &mut Lanes) -> Option<(Purpose, Vec<(usize, usize)>)> {
    let (mut prompts, decoding): (Vec<Idle>, Vec<Idle>) = ready.iter().partition(|idle| idle.prompt_left > 0);
    prompts.sort_by_key(|idle| idle.admitted);
    let decoders = decoding.len() + busy.decoders;
    if decoders == 0 {
        let (most, parts) = lanes.for_prompts(prompts.len() + busy.prompts);
        let budget = (parts * PREFILL_TOKENS).min(lanes.prompt_rows());
        let rows = if busy.prompts < most { chunks(&prompts, budget) } else { Vec::new() };
        return (!rows.is_empty()).then_some((Purpose::Prompts(parts), rows));
    }
    let most = lanes.for_decoding(decoders);
    if !decoding.is_empty() && busy.decoding < most {
        let members = &decoding[..decoders.div_ceil(most).min(decoding.len())];
        let mut rows: Vec<(usize, usize)> = members.iter().map(|idle| (idle.index, 1)).collect();
        if !lanes.travels() && most == 1 && busy.prompts == 0 {
            rows.extend(chunks(&prompts, PREFILL_BESIDE));
        }
        return Some((Purpose::Decoding(members.len()), rows));
    }
    let apart = (lanes.travels() || most > 1) && busy.prompts == 0;
    let rows = if apart { chunks(&prompts, PREFILL_BESIDE.min(lanes.prompt_rows())) } else { Vec::new() };
    (!rows.is_empty()).then_some((Purpose::Prompts(lanes.prompt_parts()), rows))
}

/// The rows of prompts, the oldest first, within a budget.
///
/// The oldest gets what the younger ones leave, which have at most half, the shortest first: a long prompt neither
/// starves nor holds up the short ones behind it.
fn chunks(prompts: &[Idle], mut budget: usize) -> Vec<(usize, usize)> {
    let Some((oldest, younger)) = prompts.split_first() else { return Vec::new() };
    let mut younger = younger.to_vec();
    younger.sort_by_key(|idle| idle.prompt_left);
    let mut half = budget / 2;
    let mut rows = Vec::with_capacity(prompts.len());
    for idle in &younger {
        let some = idle.rows_of(half);
        (half, budget) = (half - some, budget - some);
        rows.push((idle, some));
    }
    let most = oldest.rows_of(budget);
    budget -= most;
    for (idle, some) in rows.iter_mut().filter(|(_, some)| *some == 0) {
        *some = idle.rows_of(budget);
        budget -= *some;
    }
    let rows = std::iter::once((oldest, most)).chain(rows);
    rows.filter(|(_, some)| *some > 0).map(|(idle, some)| (idle.index, some)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::lanes::Cost;
    use super::*;
    use std::time::Duration;

    /// As many lanes as possible, or one.
    fn lanes(many: bool) -> Lanes {
        let mut lanes = Lanes::default();
        let away = Duration::from_millis(if many { 1000 } else { 0 });
        lanes.decoded(Cost { rows: 8, compute: Duration::from_millis(800), away }, Instant::now());
        lanes.read(Cost { rows: 512, compute: Duration::from_millis(100), away }, away / 2);
        lanes
    }

    fn idle(prompts: &[usize]) -> Vec<Idle> {
        let admitted = Instant::now();
        let one = |(index, prompt_left): (usize, &usize)| Idle { index, prompt_left: *prompt_left, admitted };
        prompts.iter().enumerate().map(one).collect()
    }

    const NOTHING: Busy = Busy { decoding: 0, decoders: 0, prompts: 0 };

    #[test]
    fn one_lane_takes_everybody_and_a_chunk_of_the_prompts() {
        let (who, rows) = next(&idle(&[0, 1900, 0, 30]), NOTHING, &mut lanes(false)).expect("a step");
        assert_eq!((who, rows), (Purpose::Decoding(2), vec![(0, 1), (2, 1), (1, 192), (3, 30)]));
        let busy = Busy { decoding: 1, decoders: 4, prompts: 0 };
        assert_eq!(next(&idle(&[0, 9]), busy, &mut lanes(false)), None, "the step under way comes first");
    }

    #[test]
    fn lanes_share_the_decoding_streams_and_one_reads_prompts() {
        let mut lanes = lanes(true);
        let (mut ready, mut busy) = (idle(&[0, 0, 1900, 0, 0, 1000]), NOTHING);
        let mut begun = Vec::new();
        while let Some((who, rows)) = next(&ready, busy, &mut lanes) {
            ready.retain(|idle| rows.iter().all(|(index, _)| *index != idle.index));
            match who {
                Purpose::Decoding(n) => (busy.decoding, busy.decoders) = (busy.decoding + 1, busy.decoders + n),
                Purpose::Prompts(_) => busy.prompts += 1,
            }
            begun.push(rows);
        }
        let (prompts, decoding): (Vec<_>, Vec<_>) = begun.into_iter().partition(|rows| rows[0].1 > 1);
        assert!(decoding.len() > 1, "{decoding:?}");
        assert!(decoding.iter().flatten().map(|(index, _)| *index).eq([0, 1, 3, 4]), "in their order: {decoding:?}");
        assert_eq!(prompts, [vec![(2, 128), (5, 128)]], "a chunk and no more");
    }

    #[test]
    fn prompts_that_nobody_decodes_beside_fill_several_lanes() {
        let mut lanes = lanes(true);
        let ready = idle(&[600, 600, 600, 600]);
        let first = next(&ready, NOTHING, &mut lanes).expect("a step");
        assert_eq!(first, (Purpose::Prompts(1), vec![(0, 256), (1, 256)]));
        let busy = Busy { prompts: 1, ..NOTHING };
        assert_eq!(next(&ready[2..3], busy, &mut lanes).expect("another").1, [(2, 600)], "in parts");
    }

    #[test]
    fn a_prompt_alone_fills_the_wait_with_parts_of_itself() {
        let alone = |many| next(&idle(&[9000]), NOTHING, &mut lanes(many)).expect("a step");
        assert_eq!(alone(true), (Purpose::Prompts(4), vec![(0, 2048)]));
        assert_eq!(alone(false), (Purpose::Prompts(1), vec![(0, 512)]));
    }
}
