//! Scales of the K-quants: for N sub-blocks at once, the scale (and offset) under which their codes err least.
//!
//! Each sub-block is a lane of its own: its sums run in the order of its weights, as in the field's reference
//! quantisers, so that the bytes are theirs, while the lanes beside it make the loops wide. Every step tries another
//! rounding of the weights to codes, solves for the scale that suits these codes, and keeps the best.

use std::array::from_fn;

/// Sub-blocks whose largest magnitude lies below this count as zero.
pub(super) const ZERO_BELOW: f32 = 1e-15;
/// Between two tries of the code range, in codes.
const STEP: f32 = 0.1;

/// `v` as the nearest integer, ties to even, for magnitudes up to 2^22: the sum's last bits are the integer.
pub(super) fn nearest(v: f32) -> i32 {
    ((v + 12_582_912.0).to_bits() & 0x007f_ffff) as i32 - 0x0040_0000
}

/// Sub-blocks of codes `0..=most`, weight ≈ `scale · code - offset`.
pub(super) struct Affine<const N: usize> {
    pub scale: [f32; N],
    /// 0 or more.
    pub offset: [f32; N],
    most: i32,
    /// The codes of the best try were `nearest(factor · (x - from))`.
    factor: [f32; N],
    from: [f32; N],
}

impl<const N: usize> Affine<N> {
    /// The best of `steps + 1` tries over the weights `x[i][lane]`, of which the first spreads them over
    /// `most + first` codes.
    pub fn search<const LEN: usize>(x: &[[f32; N]; LEN], most: i32, first: f32, steps: u8) -> Self {
        let importance = importance(x);
        let (mut min, mut max) = (x[0], x[0]);
        let mut sum_w = importance[0];
        let mut sum_x: [f32; N] = from_fn(|j| sum_w[j] * x[0][j]);
        for (x, w) in x.iter().zip(&importance).skip(1) {
            for j in 0..N {
                min[j] = if x[j] < min[j] { x[j] } else { min[j] };
                max[j] = if x[j] > max[j] { x[j] } else { max[j] };
                sum_w[j] += w[j];
                sum_x[j] += w[j] * x[j];
            }
        }
        min.iter_mut().for_each(|min| *min = if *min > 0.0 { 0.0 } else { *min });
        let flat: [bool; N] = from_fn(|j| max[j] == min[j]);

        let mut factor: [f32; N] = from_fn(|j| most as f32 / (max[j] - min[j]));
        let mut scale = factor.map(|factor| 1.0 / factor);
        let (mut best, mut from) = ([0.0; N], min);
        for (x, w) in x.iter().zip(&importance) {
            for j in 0..N {
                let code = nearest(factor[j] * (x[j] - min[j])).clamp(0, most) as f32;
                let off = scale[j] * code + min[j] - x[j];
                best[j] += w[j] * (off * off);
            }
        }
        for step in 0..=steps {
            let spread = first + STEP * f32::from(step) + most as f32;
            let trial: [f32; N] = from_fn(|j| spread / (max[j] - min[j]));
            let mut codes = [[0.0; N]; LEN];
            let (mut sum_l, mut sum_l2, mut sum_xl) = ([0.0; N], [0.0; N], [0.0; N]);
            for ((x, w), codes) in x.iter().zip(&importance).zip(&mut codes) {
                for j in 0..N {
                    let code = nearest(trial[j] * (x[j] - min[j])).clamp(0, most) as f32;
                    codes[j] = code;
                    let weighted = w[j] * code;
                    sum_l[j] += weighted;
                    sum_l2[j] += weighted * code;
                    sum_xl[j] += weighted * x[j];
                }
            }
            let determinant: [f32; N] = from_fn(|j| sum_w[j] * sum_l2[j] - sum_l[j] * sum_l[j]);
            let (mut this_scale, mut this_min) = ([0.0; N], [0.0; N]);
            for j in 0..N {
                this_scale[j] = (sum_w[j] * sum_xl[j] - sum_x[j] * sum_l[j]) / determinant[j];
                this_min[j] = (sum_l2[j] * sum_x[j] - sum_l[j] * sum_xl[j]) / determinant[j];
                if this_min[j] > 0.0 {
                    (this_scale[j], this_min[j]) = (sum_xl[j] / sum_l2[j], 0.0);
                }
            }
            let mut error = [0.0; N];
            for ((x, w), codes) in x.iter().zip(&importance).zip(&codes) {
                for j in 0..N {
                    let off = this_scale[j] * codes[j] + this_min[j] - x[j];
                    error[j] += w[j] * (off * off);
                }
            }
            for j in 0..N {
                if determinant[j] > 0.0 && error[j] < best[j] {
                    (factor[j], from[j]) = (trial[j], min[j]);
                    (best[j], scale[j], min[j]) = (error[j], this_scale[j], this_min[j]);
                }
            }
        }
        for j in (0..N).filter(|j| flat[*j]) {
            (scale[j], factor[j]) = (0.0, 0.0);
        }
        Self { scale, offset: min.map(|min| -min), most, factor, from }
    }

    /// The code of weight `x` of a lane in the best try.
    pub fn code(&self, lane: usize, x: f32) -> u8 {
        nearest(self.factor[lane] * (x - self.from[lane])).clamp(0, self.most) as u8
    }
}

/// How much an error at each weight counts: its magnitude above the sub-block's root mean square.
fn importance<const N: usize, const LEN: usize>(x: &[[f32; N]; LEN]) -> [[f32; N]; LEN] {
    let mut squares = [0.0; N];
    for x in x {
        (0..N).for_each(|j| squares[j] += x[j] * x[j]);
    }
    let spread = squares.map(|sum| (sum / LEN as f32).sqrt());
    x.map(|x| from_fn(|j| spread[j] + x[j].abs()))
}

/// Sub-blocks of codes `-most..most`, weight ≈ `scale · code`.
pub(super) struct Symmetric<const N: usize> {
    /// Of the sign that brings the largest weight to the code `-most`; 0 for a sub-block of zeros.
    pub scale: [f32; N],
    most: i32,
    /// The codes of the best try were `nearest(factor · x)`.
    factor: [f32; N],
    zero: [bool; N],
}

impl<const N: usize> Symmetric<N> {
    /// The best of 19 tries over the weights `x[i][lane]`; errors count by the weight's square.
    pub fn search<const LEN: usize>(x: &[[f32; N]; LEN], most: i32) -> Self {
        let (mut peak, mut magnitude) = ([0.0; N], [0.0; N]);
        for x in x {
            for j in 0..N {
                let larger = x[j].abs() > magnitude[j];
                peak[j] = if larger { x[j] } else { peak[j] };
                magnitude[j] = if larger { x[j].abs() } else { magnitude[j] };
            }
        }
        let zero = magnitude.map(|magnitude| magnitude < ZERO_BELOW);
        let mut factor: [f32; N] = from_fn(|j| -(most as f32) / peak[j]);
        let (sum_lx, sum_l2) = fit(x, &factor, most);
        let mut scale: [f32; N] = from_fn(|j| if sum_l2[j] == 0.0 { 0.0 } else { sum_lx[j] / sum_l2[j] });
        let mut best: [f32; N] = from_fn(|j| scale[j] * sum_lx[j]);
        for step in (-9i8..=9).filter(|step| *step != 0) {
            let trial: [f32; N] = from_fn(|j| -(most as f32 + STEP * f32::from(step)) / peak[j]);
            let (sum_lx, sum_l2) = fit(x, &trial, most);
            for j in 0..N {
                if sum_l2[j] > 0.0 && sum_lx[j] * sum_lx[j] > best[j] * sum_l2[j] {
                    (factor[j], scale[j]) = (trial[j], sum_lx[j] / sum_l2[j]);
                    best[j] = scale[j] * sum_lx[j];
                }
            }
        }
        for j in (0..N).filter(|j| zero[*j]) {
            scale[j] = 0.0;
        }
        Self { scale, most, factor, zero }
    }

    /// The code of weight `x` of a lane in the best try, `most` above zero; 0 in a sub-block of zeros.
    pub fn code(&self, lane: usize, x: f32) -> u8 {
        if self.zero[lane] {
            return 0;
        }
        (self.most + nearest(self.factor[lane] * x).clamp(-self.most, self.most - 1)) as u8
    }
}

/// Sums of `w · x · code` and `w · code²` with `w = x²`, for the codes that `factor` makes.
fn fit<const N: usize, const LEN: usize>(x: &[[f32; N]; LEN], factor: &[f32; N], most: i32) -> ([f32; N], [f32; N]) {
    let (mut sum_lx, mut sum_l2) = ([0.0; N], [0.0; N]);
    for x in x {
        for j in 0..N {
            let code = nearest(factor[j] * x[j]).clamp(-most, most - 1) as f32;
            let w = x[j] * x[j];
            sum_lx[j] += w * x[j] * code;
            sum_l2[j] += w * code * code;
        }
    }
    (sum_lx, sum_l2)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn ties_go_to_the_even_integer() {
        let cases = [(0.5, 0), (1.5, 2), (2.5, 2), (-0.5, 0), (-1.5, -2), (3.49, 3), (-31.51, -32), (4.0e6, 4_000_000)];
        for (v, expected) in cases {
            assert_eq!(nearest(v), expected, "{v}");
        }
    }
}
