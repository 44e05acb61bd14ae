//! Adds a step's routed and shared experts to the hidden state.
//!
//! **Invariant:** there is one way from integers to floats, so a row does not depend on who computed its partials:
//! `routed = (Σ i32, rounded to f32) · 2^G;  x = x + (routed + gate · shared)`.

use super::parallel;
use super::rows::Rows;
use super::shared::SharedBuffers;
use crate::dispatch::RowSum;

/// `x = x + (routed + gate · shared)`; `sums` has one entry per row of `x`.
pub fn combine(x: &mut Rows, sums: &[RowSum], shared: Option<&SharedBuffers>) {
    let width = x.width();
    parallel::rows(2 * x.values().len(), x.values_mut(), width, |r, row| {
        let shared = shared.map(|shared| (shared.out.row(r), shared.gates[r]));
        match &sums[r] {
            RowSum::Exact { grid, sum } => {
                let step = f32::from_bits(((i32::from(*grid) + 127).clamp(1, 254) as u32) << 23);
                add(row, sum.iter().map(|sum| *sum as f32 * step), shared);
            }
            RowSum::Float(sum) => add(row, sum.iter().copied(), shared),
        }
    });
}

fn add(row: &mut [f32], routed: impl Iterator<Item = f32>, shared: Option<(&[f32], f32)>) {
    let both = row.iter_mut().zip(routed);
    match shared {
        Some((shared, gate)) => both.zip(shared).for_each(|((x, routed), shared)| *x += routed + shared * gate),
        None => both.for_each(|(x, routed)| *x += routed + 0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_become_floats_on_their_grid() {
        let mut x = Rows::zeros(2, 2);
        x.values_mut().fill(1.0);
        let mut shared = SharedBuffers { out: Rows::zeros(2, 2), gates: vec![0.5, 1.0], ..SharedBuffers::default() };
        shared.out.values_mut().copy_from_slice(&[1.0, 0.0, 0.0, 0.25]);
        let sums = [RowSum::Exact { grid: -4, sum: vec![16, -8] }, RowSum::Float(vec![2.0, 3.0])];
        combine(&mut x, &sums, Some(&shared));
        assert_eq!(x.values(), [2.5, 0.5, 3.0, 4.25]);
    }

    #[test]
    fn large_sums_round_to_nearest_even() {
        let mut x = Rows::zeros(1, 2);
        combine(&mut x, &[RowSum::Exact { grid: 0, sum: vec![(1 << 24) + 1, (1 << 24) + 3] }], None);
        assert_eq!(x.values(), [16_777_216.0, 16_777_220.0]);
    }
}
