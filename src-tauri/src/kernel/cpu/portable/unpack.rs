//! The five exact types, unpacked to sixteen-bit integers.

use crate::model::BlockType;
use crate::wire::work::SUPER_BLOCK;

/// An f16 scale as `mantissa · 2^exponent`.
#[derive(Clone, Copy)]
pub(super) struct Scale {
    mantissa: i32,
    exponent: i32,
}

impl Scale {
    /// The scale of a missing block: with the least exponent it never asks for a shift below the legal ones.
    const ZERO: Self = Self { mantissa: 0, exponent: -24 };

    fn at(bytes: &[u8], at: usize) -> Self {
        let bits = i32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
        let (field, low) = (bits >> 10 & 31, bits & 0x3ff);
        let magnitude = if field == 0 { low } else { low | 0x400 };
        Self { mantissa: if bits >> 15 == 1 { -magnitude } else { magnitude }, exponent: field.max(1) - 25 }
    }

    /// `mantissa · (total · 2^up)` shifted down by `down - exponent`, rounded half up, all within 32 bits.
    pub fn term(self, total: i32, up: i32, down: i32) -> i32 {
        let v = total << up;
        // floor(mantissa · v / 2^16): the two halves of v meet without a 64-bit product.
        let t = self.mantissa * (v >> 16) + ((self.mantissa * (v & 0xffff)) >> 16);
        // |t| < 2^27, so that every shift from 29 on gives zero.
        let shift = (down - self.exponent - 16).min(30);
        (t + (1 << (shift - 1))) >> shift
    }
}

/// What is subtracted from a unit.
pub(super) struct Minimum {
    pub scale: Scale,
    /// One per 16 weights.
    pub factors: [i32; 16],
}

/// 256 weights: `scales[unit] · factors[i / 16] · weights[i]`, minus the minimum.
pub(super) struct SuperBlock {
    pub weights: [i16; SUPER_BLOCK],
    /// One per 16 weights.
    pub factors: [i32; 16],
    /// One per unit; of missing blocks zero.
    pub scales: [Scale; 8],
    /// 1 or 8.
    pub units: usize,
    pub minimum: Option<Minimum>,
}

impl Default for SuperBlock {
    fn default() -> Self {
        Self { weights: [0; SUPER_BLOCK], factors: [1; 16], scales: [Scale::ZERO; 8], units: 1, minimum: None }
    }
}

/// Unpacks one super-block; a short one of a 32-element type leaves its missing blocks with scale zero.
pub(super) fn unpack(ty: BlockType, bytes: &[u8], out: &mut SuperBlock) {
    match ty {
        BlockType::Q4_K => k45(bytes, &bytes[16..144], None, out),
        BlockType::Q5_K => k45(bytes, &bytes[48..176], Some(&bytes[16..48]), out),
        BlockType::Q6_K => q6_k(bytes, out),
        BlockType::Q4_0 => small(bytes, 18, out, |block, weights| {
            for (i, byte) in block.iter().enumerate() {
                weights[i] = i16::from(byte & 15) - 8;
                weights[i + 16] = i16::from(byte >> 4) - 8;
            }
        }),
        _ => small(bytes, 34, out, |block, weights| {
            for (weight, byte) in weights.iter_mut().zip(block) {
                *weight = i16::from(*byte as i8);
            }
        }),
    }
}

fn small(bytes: &[u8], block_bytes: usize, out: &mut SuperBlock, weights: impl Fn(&[u8], &mut [i16])) {
    out.units = 8;
    out.scales = [Scale::ZERO; 8];
    let targets = out.scales.iter_mut().zip(out.weights.chunks_exact_mut(32));
    for (block, (scale, target)) in bytes.chunks_exact(block_bytes).zip(targets) {
        *scale = Scale::at(block, 0);
        weights(&block[2..], target);
    }
}

fn k45(block: &[u8], nibbles: &[u8], fifth: Option<&[u8]>, out: &mut SuperBlock) {
    let packed = &block[4..16];
    let mut minimum = Minimum { scale: Scale::at(block, 2), factors: [0; 16] };
    for j in 0..4 {
        let (low, high, both) = (packed[j], packed[j + 4], packed[j + 8]);
        out.factors[2 * j..2 * j + 2].fill(i32::from(low & 63));
        out.factors[2 * j + 8..2 * j + 10].fill(i32::from(both & 15 | low >> 6 << 4));
        minimum.factors[2 * j..2 * j + 2].fill(i32::from(high & 63));
        minimum.factors[2 * j + 8..2 * j + 10].fill(i32::from(both >> 4 | high >> 6 << 4));
    }
    for (pair, (bytes, weights)) in nibbles.chunks_exact(32).zip(out.weights.chunks_exact_mut(64)).enumerate() {
        let (even, odd) = weights.split_at_mut(32);
        for ((even, odd), byte) in even.iter_mut().zip(odd.iter_mut()).zip(bytes) {
            (*even, *odd) = (i16::from(byte & 15), i16::from(byte >> 4));
        }
        for ((even, odd), bits) in even.iter_mut().zip(odd).zip(fifth.unwrap_or_default()) {
            *even |= i16::from(bits >> (2 * pair) & 1) << 4;
            *odd |= i16::from(bits >> (2 * pair + 1) & 1) << 4;
        }
    }
    out.scales[0] = Scale::at(block, 0);
    out.minimum = Some(minimum);
}

fn q6_k(block: &[u8], out: &mut SuperBlock) {
    let halves = block[..128].chunks_exact(64).zip(block[128..192].chunks_exact(32));
    for ((low, high), weights) in halves.zip(out.weights.chunks_exact_mut(128)) {
        for i in 0..32 {
            let (a, b, h) = (low[i], low[i + 32], high[i]);
            weights[i] = i16::from(a & 15 | (h & 3) << 4) - 32;
            weights[i + 32] = i16::from(b & 15 | (h >> 2 & 3) << 4) - 32;
            weights[i + 64] = i16::from(a >> 4 | (h >> 4 & 3) << 4) - 32;
            weights[i + 96] = i16::from(b >> 4 | h >> 6 << 4) - 32;
        }
    }
    for (factor, byte) in out.factors.iter_mut().zip(&block[192..208]) {
        *factor = i32::from(*byte as i8);
    }
    out.scales[0] = Scale::at(block, 208);
}
