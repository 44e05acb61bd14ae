//! Shares work out to the machine's threads, when it is worth waking them.
//!
//! Nothing here decides a bit: every piece is computed by itself, whoever computes it.

use super::sequence::Span;
use rayon::prelude::*;
use std::cell::RefCell;

/// Multiply-adds below which threads cost more than they save (about 0.05 ms on one core).
pub(super) const PARALLEL_WORK_MIN: usize = 1 << 20;
/// What an exponential costs, in multiply-adds.
pub(super) const EXP_WORK: usize = 8;

/// Calls `each` with the index and the values of every piece of `size` values (the last may be shorter).
pub(super) fn pieces<T: Send>(work: usize, values: &mut [T], size: usize, each: impl Fn(usize, &mut [T]) + Sync) {
    if work < PARALLEL_WORK_MIN || values.len() <= size {
        values.chunks_mut(size).enumerate().for_each(|(i, piece)| each(i, piece));
    } else {
        values.par_chunks_mut(size).enumerate().for_each(|(i, piece)| each(i, piece));
    }
}

/// Calls `each` with every row of `values` and its index.
pub(super) fn rows(work: usize, values: &mut [f32], width: usize, each: impl Fn(usize, &mut [f32]) + Sync) {
    let count = values.len().checked_div(width).unwrap_or(0);
    let at_once = count.div_ceil(4 * rayon::current_num_threads()).max(1);
    pieces(work, values, at_once * width, |i, some| {
        some.chunks_exact_mut(width).enumerate().for_each(|(j, row)| each(i * at_once + j, row));
    });
}

/// Calls `each` with every sequence and its rows of `values`, which are those of all `sequences`, `width` wide.
pub(super) fn sequences<T: Send>(
    work: usize,
    sequences: &mut [(Span, T)],
    values: &mut [f32],
    width: usize,
    each: &(impl Fn(Span, &mut T, &mut [f32]) + Sync),
) {
    match sequences {
        [] => {}
        [(span, state)] => each(*span, state, values),
        several => {
            let (first, half) = (several[0].0.first, several.len() / 2);
            let (left, right) = several.split_at_mut(half);
            let (low, high) = values.split_at_mut((right[0].0.first - first) * width);
            let mut left = || self::sequences(work / 2, left, low, width, each);
            let mut right = || self::sequences(work / 2, right, high, width, each);
            if work < PARALLEL_WORK_MIN {
                left();
                right();
            } else {
                rayon::join(left, right);
            }
        }
    }
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
                    let span = Span { first, rows, position: 0 };
                    first += rows;
                    (span, 0)
                })
                .collect();
            sequences(work, &mut spans, &mut values, 3, &|span, seen, rows| {
                *seen += 1;
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
