//! How the five exact types store weights: bytes of a super-block → scales, sub-scales and integers.

use crate::model::BlockType;

/// Elements of a super-block of weights; the 32-element types are read eight blocks at a time.
const SUPER_BLOCK: usize = 256;

/// An f16 scale as `mantissa · 2^exponent`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Scale {
    /// −2047..=2047.
    pub mantissa: i64,
    /// −24..=5.
    pub exponent: i32,
}

impl Scale {
    /// Reads f16 bits; infinities and NaN were refused when the matrix was loaded.
    pub fn from_bits(bits: u16) -> Self {
        let (field, low) = (i32::from(bits >> 10 & 31), i64::from(bits & 0x3ff));
        let magnitude = if field == 0 { low } else { low | 0x400 };
        Self { mantissa: if bits >> 15 == 1 { -magnitude } else { magnitude }, exponent: field.max(1) - 25 }
    }
}

/// The part that is subtracted from a unit: `scale · Σ factors[j] · (sum of the row's step j)`.
pub(super) struct Minimum {
    pub scale: Scale,
    pub factors: Vec<i64>,
}

/// Weights under one f16 scale: `scale · factors[i / 16] · weights[i]`, minus the minimum.
pub(super) struct Unit {
    pub scale: Scale,
    /// One per 16 weights.
    pub factors: Vec<i64>,
    pub weights: Vec<i64>,
    pub minimum: Option<Minimum>,
}

/// Bytes of 256 weights.
pub(super) fn super_block_bytes(ty: BlockType) -> usize {
    let (elements, bytes) = ty.block();
    SUPER_BLOCK / elements * bytes
}

/// k: `|Σ factor · s · q · weight| ≤ 2^k · Σ s · |q|` over a unit, whatever the bytes are.
pub(crate) fn growth_bits(ty: BlockType) -> i32 {
    match ty {
        BlockType::Q4_K => 10, // 63 · 15
        BlockType::Q5_K => 11, // 63 · 31
        BlockType::Q6_K => 12, // 128 · 32
        BlockType::Q4_0 => 3,  // 8
        _ => 7,                // Q8_0: 128
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// The largest exponent of a row's scales; the bits of a scale that is not finite.
pub(super) fn largest_exponent(ty: BlockType, row: &[u8]) -> Result<i8, u16> {
    let positions: &[usize] = match ty {
        BlockType::Q4_K | BlockType::Q5_K => &[0, 2],
        BlockType::Q6_K => &[208],
        _ => &[0],
    };
    let mut largest = -24;
    for block in row.chunks_exact(ty.block().1) {
        for at in positions {
            let bits = u16_at(block, *at);
            if bits & 0x7c00 == 0x7c00 {
                return Err(bits);
            }
            largest = largest.max(Scale::from_bits(bits).exponent);
        }
    }
    Ok(largest as i8)
}

/// The units of a super-block: one of 256 weights, or one per block of 32 (a short super-block has fewer).
pub(super) fn units(ty: BlockType, super_block: &[u8]) -> Vec<Unit> {
    super_block
        .chunks_exact(ty.block().1)
        .map(|block| match ty {
            BlockType::Q4_K => k45(block, &block[16..], None),
            BlockType::Q5_K => k45(block, &block[48..], Some(&block[16..48])),
            BlockType::Q6_K => q6_k(block),
            BlockType::Q4_0 => q4_0(block),
            _ => q8_0(block),
        })
        .collect()
}

/// `d f16 | dmin f16 | eight 6-bit scales and minima in 12 bytes | [fifth bits] | nibbles`, per 64 weights 32 bytes.
fn k45(block: &[u8], nibbles: &[u8], fifth: Option<&[u8]>) -> Unit {
    let packed = &block[4..16];
    let six_bits = |j: usize| {
        if j < 4 {
            (packed[j] & 63, packed[j + 4] & 63)
        } else {
            (packed[j + 4] & 15 | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4)
        }
    };
    let weight = |i: usize| {
        let (group, at) = (i / 32, i % 32);
        let nibble = nibbles[group / 2 * 32 + at] >> (4 * (group % 2)) & 15;
        i64::from(nibble | fifth.map_or(0, |bits| (bits[at] >> group & 1) << 4))
    };
    Unit {
        scale: Scale::from_bits(u16_at(block, 0)),
        factors: (0..16).map(|j| i64::from(six_bits(j / 2).0)).collect(),
        weights: (0..SUPER_BLOCK).map(weight).collect(),
        minimum: Some(Minimum {
            scale: Scale::from_bits(u16_at(block, 2)),
            factors: (0..16).map(|j| i64::from(six_bits(j / 2).1)).collect(),
        }),
    }
}

/// `low nibbles 128 | high bit pairs 64 | sixteen i8 scales | d f16`; per 128 weights 64 + 32 bytes.
fn q6_k(block: &[u8]) -> Unit {
    let weight = |i: usize| {
        let (half, quarter, at) = (i / 128, i % 128 / 32, i % 32);
        let low = block[half * 64 + quarter % 2 * 32 + at] >> (4 * (quarter / 2)) & 15;
        let high = block[128 + half * 32 + at] >> (2 * quarter) & 3;
        i64::from(low | high << 4) - 32
    };
    Unit {
        scale: Scale::from_bits(u16_at(block, 208)),
        factors: block[192..208].iter().map(|s| i64::from(*s as i8)).collect(),
        weights: (0..SUPER_BLOCK).map(weight).collect(),
        minimum: None,
    }
}

/// `d f16 | 32 × i8`.
fn q8_0(block: &[u8]) -> Unit {
    Unit {
        scale: Scale::from_bits(u16_at(block, 0)),
        factors: vec![1, 1],
        weights: block[2..].iter().map(|w| i64::from(*w as i8)).collect(),
        minimum: None,
    }
}

/// `d f16 | 16 bytes`: low nibbles are the first 16 weights, high nibbles the others, each minus 8.
fn q4_0(block: &[u8]) -> Unit {
    let weight = |i: usize| i64::from(block[2 + i % 16] >> (4 * (i / 16)) & 15) - 8;
    Unit {
        scale: Scale::from_bits(u16_at(block, 0)),
        factors: vec![1, 1],
        weights: (0..32).map(weight).collect(),
        minimum: None,
    }
}
