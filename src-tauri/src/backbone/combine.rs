//! Adds a step's routed and shared experts to the hidden state.
//!
//! **Invariant:** there is one way from integers to floats, so a row does not depend on who computed its partials:
//! `routed = (Σ i32, rounded to f32) · 2^G;  x = x + (routed + shared)`.

use super::rows::Rows;
use crate::dispatch::RowSum;

/// `x = x + (routed + shared)`; `sums` has one entry per row of `x`.
pub fn combine(x: &mut Rows, sums: &[RowSum], shared: Option<&Rows>) {
    for (r, (row, sum)) in x.iter_mut().zip(sums).enumerate() {
        let shared = |i: usize| shared.map_or(0.0, |shared| shared.row(r)[i]);
        match sum {
            RowSum::Exact { grid, sum } => {
                let step = f32::from_bits(((i32::from(*grid) + 127).clamp(1, 254) as u32) << 23);
                row.iter_mut().zip(sum).enumerate().for_each(|(i, (x, sum))| *x += *sum as f32 * step + shared(i));
            }
            RowSum::Float(sum) => row.iter_mut().zip(sum).enumerate().for_each(|(i, (x, sum))| *x += sum + shared(i)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_become_floats_on_their_grid() {
        let mut x = Rows::zeros(2, 2);
        x.values_mut().fill(1.0);
        let mut shared = Rows::zeros(2, 2);
        shared.values_mut().copy_from_slice(&[0.5, 0.0, 0.0, 0.25]);
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
