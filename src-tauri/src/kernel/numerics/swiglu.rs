//! `silu(gate) · up` in integers, with the sigmoid read from a table.
//!
//! The result is stored in f32 bit layout only so that the quantiser can be used again: nobody adds or multiplies
//! it as a float. The table is data, not code, because a mathematics library may round differently elsewhere.

use super::row_dot::Scaled;

/// 2^30: one in the table's units.
const ONE: u32 = 1 << 30;
/// f32 bits of a value that the quantiser refuses.
pub(crate) const BEYOND: u32 = 0x7f00_0000;

/// `round(2^30 · sigmoid(i / 32))` for i = 0..=512.
pub(crate) static SIGMOID: [u32; 513] = read_table(include_bytes!("sigmoid_q30.bin"));

const fn read_table(bytes: &[u8; 4 * 513]) -> [u32; 513] {
    let mut table = [0; 513];
    let mut i = 0;
    while i < 513 {
        table[i] = u32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]]);
        i += 1;
    }
    table
}

/// `v · 2^exponent` as `(m, e)` with m in 32768..=65535, rounded half up and cut at the top; v > 0.
fn normalise(v: u32, exponent: i32) -> (u32, i32) {
    let zeros = v.leading_zeros();
    let n = v << zeros;
    (((n >> 16) + ((n >> 15) & 1)).min(65535), exponent + 16 - zeros as i32)
}

/// 2^30 · sigmoid(m · 2^exponent), m in 32768..=65535.
fn sigmoid(m: u32, exponent: i32) -> u32 {
    // The argument in units of 2^-13, saturating at 16; 256 units are one step of the table.
    let argument = match exponent + 13 {
        2.. => return ONE,
        1 => m << 1,
        0 => m,
        p @ -17..0 => (m + (1 << (-p - 1))) >> -p,
        _ => 0,
    };
    let (i, fraction) = ((argument >> 8) as usize, argument & 255);
    SIGMOID[i] + (((SIGMOID[i + 1] - SIGMOID[i]) * fraction + 128) >> 8)
}

/// `silu(gate) · up`; a value beyond f32's quantisable range becomes ±2^127, which the quantiser refuses.
#[must_use]
pub fn swiglu(gate: Scaled, up: Scaled) -> f32 {
    if gate.value == 0 || up.value == 0 {
        return 0.0;
    }
    let (gate_m, gate_e) = normalise(gate.value.unsigned_abs(), gate.exponent);
    let (up_m, up_e) = normalise(up.value.unsigned_abs(), up.exponent);
    let positive = sigmoid(gate_m, gate_e);
    let sigmoid = if gate.value < 0 { ONE - positive } else { positive };
    if sigmoid == 0 {
        return 0.0;
    }
    let (sigmoid_m, sigmoid_e) = normalise(sigmoid, -30);
    let (silu_m, silu_e) = normalise(gate_m * sigmoid_m, gate_e + sigmoid_e);
    let product = silu_m * up_m;
    let zeros = product.leading_zeros();
    let n = product << zeros;
    let significand = (n >> 8) + ((n >> 7) & 1);
    let exponent = 31 + silu_e + up_e - zeros as i32 + 127;
    let sign = ((gate.value ^ up.value) as u32) & 0x8000_0000;
    f32::from_bits(match exponent {
        ..1 => 0,
        // A significand rounded up to 2^24 carries into the exponent, as it should.
        1..=253 => sign | (((exponent as u32) << 23) + (significand - 0x80_0000)),
        _ => sign | BEYOND,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};

    #[test]
    fn the_table_is_the_pinned_one() {
        let bytes: Vec<u8> = SIGMOID.iter().flat_map(|t| t.to_le_bytes()).collect();
        let hash: String = Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hash, "690b700b5a292449205d2411c2fc5109c6ae873d285031e6b95681159785b631");
        assert_eq!((SIGMOID[0], SIGMOID[1], SIGMOID[512]), (536_870_912, 545_258_837, 1_073_741_703));
    }

    #[test]
    fn it_is_silu_times_up_to_sixteen_bits() {
        for gate in [-3_000_000, -70_000, -4097, -1, 1, 33, 65_535, 900_000, 8_000_000] {
            for up in [-1_000_000_000, -3, 1, 77_777] {
                let (g, u) = (f64::from(gate) * 2f64.powi(-19), f64::from(up) * 2f64.powi(-9));
                let expected = g / (1.0 + (-g).exp()) * u;
                let got = swiglu(Scaled { value: gate, exponent: -19 }, Scaled { value: up, exponent: -9 });
                assert!((f64::from(got) / expected - 1.0).abs() < 3e-4, "{g} {u}: expected {expected}, got {got}");
            }
        }
    }

    #[test]
    fn what_no_row_can_hold_becomes_poison() {
        let huge = Scaled { value: i32::MAX, exponent: 60 };
        assert_eq!(swiglu(huge, huge).to_bits(), BEYOND);
        assert_eq!(swiglu(huge, Scaled { value: -1, exponent: 100 }).to_bits(), BEYOND | 1 << 31);
        let tiny = Scaled { value: 1, exponent: -100 };
        assert_eq!(swiglu(tiny, tiny).to_bits(), 0);
        assert_eq!(swiglu(Scaled { value: i32::MIN, exponent: 0 }, huge).to_bits(), 0);
    }
}
