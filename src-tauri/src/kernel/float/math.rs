//! Exponentials made of plain multiplications and additions, so that no platform's `libm` decides a bit.

const LOG2_E: f64 = std::f64::consts::LOG2_E;
const LN_2: f64 = std::f64::consts::LN_2;
/// Adding and subtracting it rounds an f64 of small magnitude to the nearest integer.
const ROUND: f64 = 6_755_399_441_055_744.0;

/// `e^x`, within one unit in the last place; 0 below −104, infinite above 89, NaN for NaN.
#[inline]
#[must_use]
pub fn exp(x: f32) -> f32 {
    let t = f64::from(x).clamp(-104.0, 89.0) * LOG2_E;
    let rounded = t + ROUND;
    let n = rounded - ROUND;
    let r = (t - n) * LN_2;
    // Taylor to the eighth power: |r| ≤ ln 2 / 2 leaves a relative error below 3e-10.
    let p = 1.0 / 40320.0;
    let p = p * r + 1.0 / 5040.0;
    let p = p * r + 1.0 / 720.0;
    let p = p * r + 1.0 / 120.0;
    let p = p * r + 1.0 / 24.0;
    let p = p * r + 1.0 / 6.0;
    let p = p * r + 0.5;
    let p = p * r + 1.0;
    let p = p * r + 1.0;
    // The low bits of `rounded` are n: no conversion to an integer, which would keep this from being vectorised.
    let power = f64::from_bits(rounded.to_bits().wrapping_add(1023) << 52);
    (p * power) as f32
}

/// `1 / (1 + e^−x)`.
#[inline]
#[must_use]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `x · sigmoid(x)`.
#[inline]
#[must_use]
pub fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// `ln(1 + e^x)`.
#[must_use]
pub fn softplus(x: f32) -> f32 {
    // ln(1 + t) = 2 artanh(t / (2 + t)); the argument is at most 1/3, where ten terms leave less than 1e-10.
    let t = f64::from(exp(-x.abs()));
    let s = t / (2.0 + t);
    let series = (0..10).rev().fold(0.0, |sum, k| sum * s * s + 1.0 / f64::from(2 * k + 1));
    (f64::from(x.max(0.0)) + 2.0 * s * series) as f32
}

/// Turns logits into probabilities, summed from the first to the last.
pub fn softmax(values: &mut [f32]) {
    let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for v in values.iter_mut() {
        *v = exp(*v - max);
        sum += *v;
    }
    values.iter_mut().for_each(|v| *v /= sum);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_within_one_unit_in_the_last_place() {
        let close = |got: f32, want: f64| {
            let want = want as f32;
            assert!((got - want).abs() <= want.abs() * 1.3e-7 + f32::from_bits(1), "expected {want}, got {got}");
        };
        for i in -1030..880 {
            let x = i as f32 * 0.1 + 0.017;
            close(exp(x), f64::from(x).exp());
            close(softplus(x), f64::from(x).exp().ln_1p());
        }
        assert_eq!((exp(0.0), exp(-200.0), exp(100.0)), (1.0, 0.0, f32::INFINITY));
        assert!(exp(f32::NAN).is_nan() && sigmoid(f32::NAN).is_nan());
        assert_eq!((silu(-200.0), sigmoid(200.0)), (0.0, 1.0));
    }
}
