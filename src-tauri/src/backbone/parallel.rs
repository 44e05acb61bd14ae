//! Shares work out to the machine's threads, when it is worth waking them.
//!
//! Nothing here decides a bit: every piece is computed by itself, whoever computes it.

use super::sequence::Span;
use crate::kernel::Crew;
use std::cell::RefCell;

/// What an exponential costs, in multiply-adds.
pub(super) const EXP_WORK: usize = 4;

/// Threads that work is shared out to.
pub(super) fn threads() -> usize {
    Crew::all().threads()
}

/// Calls `each` with every piece; `work` = multiply-adds of all of them together.
pub(super) fn each<I>(work: usize, pieces: I, each: impl Fn(I::Item) + Sync)
where
    I: IntoIterator<IntoIter: Send>,
{
    Crew::all().each(work, pieces, || (), |(), piece| each(piece));
}

/// Calls `each` with every row of `values` and its index.
pub(super) fn rows(work: usize, values: &mut [f32], width: usize, each: impl Fn(usize, &mut [f32]) + Sync) {
    let count = values.len().checked_div(width).unwrap_or(0);
    let at_once = count.div_ceil(4 * threads()).max(1);
    self::each(work, values.chunks_mut((at_once * width).max(1)).enumerate(), |(i, some)| {
        some.chunks_exact_mut(width).enumerate().for_each(|(j, row)| each(i * at_once + j, row));
    });
}

/// Calls `each` with every sequence and its rows of `values`, which are those of all `sequences`, `width` wide; and
/// with the work to name when it shares out its own part, 0 when there are sequences enough for all threads.
pub(super) fn sequences<T: Send>(
    work: usize,
    sequences: &mut [(Span, T)],
    values: &mut [f32],
    width: usize,
    each: impl Fn(usize, Span, &mut T, &mut [f32]) + Sync,
) {
    let inside = if sequences.len() < 2 * threads() { work / sequences.len().max(1) } else { 0 };
    let mut rest = values;
    let parts = sequences.iter_mut().map(move |(span, state)| {
        let (rows, after) = std::mem::take(&mut rest).split_at_mut(span.rows * width);
        rest = after;
        (*span, state, rows)
    });
    self::each(work, parts, |(span, state, rows)| each(inside, span, state, rows));
}

thread_local! {
    static SCRATCH: RefCell<Vec<Vec<f32>>> = const { RefCell::new(Vec::new()) };
}

/// Lends `work` as many numbers as it needs, of no particular value; every thread keeps its own for the next time.
pub(super) fn with_scratch<T>(numbers: usize, work: impl FnOnce(&mut [f32]) -> T) -> T {
    // Taken, not borrowed: whoever asks again inside `work` gets the next one.
    let mut scratch = SCRATCH.with_borrow_mut(Vec::pop).unwrap_or_default();
    if scratch.len() < numbers {
        scratch.resize(numbers, 0.0);
    }
    let out = work(&mut scratch[..numbers]);
    SCRATCH.with_borrow_mut(|free| free.push(scratch));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_and_every_sequence_is_met_once_for_any_amount_of_work() {
        for work in [0, usize::MAX] {
            let mut values = vec![0.0; 7 * 3];
            rows(work, &mut values, 3, |r, row| row.iter_mut().for_each(|v| *v += r as f32 + 1.0));
            assert!(values.chunks_exact(3).enumerate().all(|(r, row)| row == [r as f32 + 1.0; 3]));
            let mut first = 0;
            let mut spans: Vec<(Span, usize)> = [1, 3, 1, 2]
                .into_iter()
                .map(|rows| {
                    let span = Span { first, rows, position: 0, drafts: 0 };
                    first += rows;
                    (span, 0)
                })
                .collect();
            sequences(work, &mut spans, &mut values, 3, |inside, span, seen, rows| {
                *seen += 1;
                assert!(inside <= work);
                assert_eq!(rows.len(), span.rows * 3);
                assert_eq!(rows[0], span.first as f32 + 1.0);
            });
            assert!(spans.iter().all(|(_, seen)| *seen == 1));
        }
    }

    #[test]
    fn scratch_inside_scratch_is_other_scratch() {
        with_scratch(4, |outer| {
            outer.fill(1.0);
            with_scratch(8, |inner| inner.fill(2.0));
            assert_eq!(outer, [1.0; 4]);
        });
    }
}
