//! Matrix products that add to what is there: attention's weighted values and the delta rule's states.
//!
//! **Invariant:** every element of the result is summed in ascending order of the inner index, starting from its old
//! value, whatever the tiles; so it does not depend on the rows beside it.

use super::levels::on_the_widest_level;
use crate::kernel::cpu::sixteen::{LANES, Level};

/// A left factor in place: element `(i, k)` is `values[i · row + k · step]`.
#[derive(Clone, Copy, Debug)]
pub struct Factor<'a> {
    /// Where the elements are.
    pub values: &'a [f32],
    /// From one row to the next.
    pub row: usize,
    /// From one element of a row to the next.
    pub step: usize,
}

impl<'a> Factor<'a> {
    /// A row-major matrix of rows `width` long.
    #[must_use]
    pub fn rows(values: &'a [f32], width: usize) -> Self {
        Self { values, row: width, step: 1 }
    }

    /// The transpose of a row-major matrix of rows `width` long.
    #[must_use]
    pub fn columns(values: &'a [f32], width: usize) -> Self {
        Self { values, row: 1, step: width }
    }
}

/// R rows and `16 · C` columns of the result.
#[inline(always)]
fn tile<L: Level, const R: usize, const C: usize>(
    level: L,
    a: Factor<'_>,
    b: &[f32],
    out: &mut [f32],
    [width, first, column]: [usize; 3],
) {
    let mut sums = [[level.splat(0.0); C]; R];
    for (r, sums) in sums.iter_mut().enumerate() {
        let from = out[(first + r) * width + column..][..C * LANES].as_chunks().0;
        for (sum, from) in sums.iter_mut().zip(from) {
            *sum = level.load(from);
        }
    }
    for (k, b) in b.chunks_exact(width).enumerate() {
        let b = b[column..][..C * LANES].as_chunks().0;
        let mut row = [level.splat(0.0); C];
        for (row, b) in row.iter_mut().zip(b) {
            *row = level.load(b);
        }
        for (r, sums) in sums.iter_mut().enumerate() {
            let a = level.splat(a.values[(first + r) * a.row + k * a.step]);
            for (sum, row) in sums.iter_mut().zip(row) {
                *sum = level.add(*sum, level.mul(a, row));
            }
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        let to = out[(first + r) * width + column..][..C * LANES].as_chunks_mut().0;
        for (sum, to) in sums.iter().zip(to) {
            level.store(*sum, to);
        }
    }
}

/// R rows of the result.
#[inline(always)]
fn rows<L: Level, const R: usize, const C: usize>(
    level: L,
    a: Factor<'_>,
    b: &[f32],
    out: &mut [f32],
    [width, first]: [usize; 2],
) {
    let mut column = 0;
    while column + C * LANES <= width {
        tile::<L, R, C>(level, a, b, out, [width, first, column]);
        column += C * LANES;
    }
    while column + LANES <= width {
        tile::<L, R, 1>(level, a, b, out, [width, first, column]);
        column += LANES;
    }
    for r in first..first + R {
        for (k, b) in b.chunks_exact(width).enumerate() {
            let a = a.values[r * a.row + k * a.step];
            for (sum, b) in out[r * width + column..(r + 1) * width].iter_mut().zip(&b[column..]) {
                *sum += a * b;
            }
        }
    }
}

#[inline(always)]
fn body<L: Level, const R: usize, const C: usize>(level: L, a: Factor<'_>, b: &[f32], width: usize, out: &mut [f32]) {
    let count = out.len() / width;
    let mut first = 0;
    while first + R <= count {
        rows::<L, R, C>(level, a, b, out, [width, first]);
        first += R;
    }
    for first in first..count {
        rows::<L, 1, C>(level, a, b, out, [width, first]);
    }
}

on_the_widest_level! {
    /// `out += a · b`: `b` and `out` have rows of `width`, `a` as many columns as `b` has rows.
    accumulate(a: Factor<'_>, b: &[f32], width: usize, out: &mut [f32]),
    body::<_, 4, 4>, body::<_, 2, 2>, body::<_, 1, 1>
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::cpu::sixteen::Plain;
    use crate::kernel::float::weighted_rows;

    fn numbers(n: usize, seed: u32) -> Vec<f32> {
        (0..n as u32).map(|i| ((i.wrapping_mul(2_654_435_761) ^ seed) % 2001) as f32 / 1000.0 - 1.0).collect()
    }

    #[test]
    fn every_tile_gives_the_bits_of_one_row_after_the_other() {
        for (rows, inner, width) in [(1, 7, 16), (4, 64, 128), (9, 33, 83), (6, 0, 20), (5, 3, 5)] {
            let (a, b, start) = (numbers(rows * inner, 1), numbers(inner * width, 2), numbers(rows * width, 3));
            let mut expected = start.clone();
            for (r, out) in expected.chunks_exact_mut(width).enumerate() {
                weighted_rows(&a[r * inner..(r + 1) * inner], &b, out);
            }
            let run = |product: &dyn Fn(&mut [f32])| {
                let mut out = start.clone();
                product(&mut out);
                out
            };
            assert_eq!(expected, run(&|out| accumulate(Factor::rows(&a, inner), &b, width, out)));
            assert_eq!(expected, run(&|out| body::<_, 1, 1>(Plain, Factor::rows(&a, inner), &b, width, out)));
            assert_eq!(expected, run(&|out| body::<_, 3, 2>(Plain, Factor::rows(&a, inner), &b, width, out)));
            let turned: Vec<f32> =
                (0..inner).flat_map(|k| (0..rows).map(move |r| (r, k))).map(|(r, k)| a[r * inner + k]).collect();
            assert_eq!(expected, run(&|out| accumulate(Factor::columns(&turned, rows), &b, width, out)));
        }
    }
}
