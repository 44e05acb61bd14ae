//! A row's grid, gate weights as integers, and an expert's weighted output on the grid.
//!
//! All experts of a row round to the same grid 2^G before they are added, so that their sum is the same integers
//! however they are spread over workers. Sixteen outputs below 2^27 cannot overflow 32 bits.

use super::round_shift;
use super::row_dot::Scaled;
use crate::types::GateWeight;

/// Weighted outputs stay below this magnitude.
pub const OUTPUT_MAX: i64 = 1 << 27;
/// Beyond this shift every output rounds to zero.
const SHIFT_MAX: i32 = 47;

/// A gate weight that no router gives.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
#[error("expected a finite gate weight of at least 0, got {got}")]
pub struct GateWeightError {
    /// The weight.
    pub got: f32,
}

/// A weighted output that its row's grid cannot hold; the row is asked again on a coarser one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("expected weighted outputs below 2^27 on the row's grid, got a larger one")]
pub struct OutOfRange;

/// G for a row whose residual stream has root mean square `rms`: about 2^-18 of it, with head-room 2^10.
#[must_use]
pub fn grid(rms: f32) -> i8 {
    let exponent = (rms.to_bits() >> 23 & 0xff) as i32 - 127;
    (exponent - 17).clamp(-126, 100) as i8
}

/// `w` as `mantissa · 2^exponent`; `None` when it is too small to matter (below 2^-100) and the assignment is dropped.
///
/// # Errors
/// NaN, infinite or negative weights.
pub fn gate_weight(w: f32) -> Result<Option<GateWeight>, GateWeightError> {
    let bits = w.to_bits();
    // Covers the sign bit too: what is left is +0 up to the largest finite number.
    if bits >= f32::INFINITY.to_bits() {
        return Err(GateWeightError { got: w });
    }
    let e = (bits >> 23) as i32;
    if e < 27 {
        return Ok(None);
    }
    let significand = (bits & 0x7f_ffff) | 0x80_0000;
    Ok(Some(GateWeight { mantissa: ((significand + 128) >> 8).min(65535) as u16, exponent: (e - 142) as i8 }))
}

/// `dot · gate` rounded to the grid 2^grid.
///
/// # Errors
/// [`OutOfRange`].
pub fn output(dot: Scaled, gate: GateWeight, grid: i8) -> Result<i32, OutOfRange> {
    if dot.value == 0 {
        return Ok(0);
    }
    let shift = i32::from(grid) - dot.exponent - i32::from(gate.exponent);
    let rounded = match shift {
        ..1 => return Err(OutOfRange),
        1..=SHIFT_MAX => round_shift(i64::from(dot.value) * i64::from(gate.mantissa), shift as u32),
        _ => 0,
    };
    if rounded.abs() < OUTPUT_MAX { Ok(rounded as i32) } else { Err(OutOfRange) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gate_weights_keep_sixteen_bits() {
        assert_eq!(gate_weight(1.0), Ok(Some(GateWeight { mantissa: 32768, exponent: -15 })));
        assert_eq!(gate_weight(0.75), Ok(Some(GateWeight { mantissa: 49152, exponent: -16 })));
        assert_eq!(gate_weight(1.999_999_9), Ok(Some(GateWeight { mantissa: 65535, exponent: -15 })));
        for nothing in [0.0, 1e-38, 2f32.powi(-101)] {
            assert_eq!(gate_weight(nothing), Ok(None));
        }
        assert_eq!(gate_weight(2f32.powi(-100)), Ok(Some(GateWeight { mantissa: 32768, exponent: -115 })));
        for bad in [f32::NAN, f32::INFINITY, -0.5, -0.0] {
            assert!(gate_weight(bad).is_err());
        }
    }

    #[test]
    fn the_grid_follows_the_residual_stream() {
        assert_eq!((grid(1.0), grid(1.9), grid(0.5), grid(8.0)), (-17, -17, -18, -14));
        assert_eq!((grid(0.0), grid(f32::INFINITY)), (-126, 100));
    }

    #[test]
    fn outputs_round_half_up_and_refuse_what_does_not_fit() {
        let half = GateWeight { mantissa: 32768, exponent: -16 };
        let at = |value, grid| output(Scaled { value, exponent: 0 }, half, grid);
        assert_eq!((at(3, 0), at(-3, 0), at(4, 1)), (Ok(2), Ok(-1), Ok(1)));
        assert_eq!(at(1 << 28, 0), Err(OutOfRange));
        assert_eq!(at((1 << 28) - 2, 0), Ok((1 << 27) - 1));
        assert_eq!(at(1, -16), Err(OutOfRange));
        assert_eq!(at(0, -16), Ok(0));
        assert_eq!(at(i32::MIN, 32), Ok(0));
    }
}
