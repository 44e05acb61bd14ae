//! Stored blocks of every supported type → f32, bit for bit as the field's reference reader computes them.
//!
//! The backbone's dense rows, embeddings and goldens come through here; routed experts of exact types do not, they go
//! through [`super::numerics`]. Layouts are ggml's (little-endian; `d` and `m` are F16). The order of the float
//! operations is part of the contract: a test compares bits, so that a model reads the same everywhere.

use half::{bf16, f16};

use crate::model::BlockType;

/// Values of IQ4_NL's and IQ4_XS's 4-bit codes.
const NON_LINEAR: [f32; 16] =
    [-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0];
/// Twice the values of the 4-bit floats (E2M1) of MXFP4 and NVFP4.
const E2M1_DOUBLED: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0];

/// Writes the values of `bytes`, whole blocks of `ty`, to `out`.
///
/// `bytes.len()` is `ty.row_bytes(out.len())`, as in every [`crate::model::Matrix`]; a partial block is left alone.
pub fn dequantise(ty: BlockType, bytes: &[u8], out: &mut [f32]) {
    debug_assert_eq!(ty.row_bytes(out.len()), Some(bytes.len()), "expected whole blocks of {}", ty.name());
    match ty {
        BlockType::F32 => blocks(bytes, out, |b, [y]| *y = f32::from_le_bytes(*b)),
        BlockType::F16 => blocks(bytes, out, |b, [y]| *y = f16::from_le_bytes(*b).to_f32()),
        BlockType::BF16 => blocks(bytes, out, |b, [y]| *y = bf16::from_le_bytes(*b).to_f32()),
        BlockType::Q4_0 => blocks(bytes, out, q4_0),
        BlockType::Q4_1 => blocks(bytes, out, q4_1),
        BlockType::Q5_0 => blocks(bytes, out, q5_0),
        BlockType::Q5_1 => blocks(bytes, out, q5_1),
        BlockType::Q8_0 => blocks(bytes, out, q8_0),
        BlockType::Q2_K => blocks(bytes, out, q2_k),
        BlockType::Q3_K => blocks(bytes, out, q3_k),
        BlockType::Q4_K => blocks(bytes, out, q4_k),
        BlockType::Q5_K => blocks(bytes, out, q5_k),
        BlockType::Q6_K => blocks(bytes, out, q6_k),
        BlockType::IQ4_NL => blocks(bytes, out, iq4_nl),
        BlockType::IQ4_XS => blocks(bytes, out, iq4_xs),
        BlockType::MXFP4 => blocks(bytes, out, mxfp4),
        BlockType::NVFP4 => blocks(bytes, out, nvfp4),
    }
}

#[inline(always)]
fn blocks<const B: usize, const N: usize>(bytes: &[u8], out: &mut [f32], block: impl Fn(&[u8; B], &mut [f32; N])) {
    for (b, y) in bytes.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
        block(b, y);
    }
}

#[inline(always)]
fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Bytes of 16 code pairs: low nibbles are the first 16 weights, high nibbles the last 16.
#[inline(always)]
fn nibbles(codes: &[u8], y: &mut [f32], value: impl Fn(usize, u8) -> f32) {
    for (j, code) in codes.iter().enumerate() {
        y[j] = value(j, code & 15);
        y[j + codes.len()] = value(j + codes.len(), code >> 4);
    }
}

fn q4_0(b: &[u8; 18], y: &mut [f32; 32]) {
    let d = half_at(b, 0);
    nibbles(&b[2..], y, |_, q| d * (f32::from(q) - 8.0));
}

fn q4_1(b: &[u8; 20], y: &mut [f32; 32]) {
    let (d, m) = (half_at(b, 0), half_at(b, 2));
    nibbles(&b[4..], y, |_, q| d * f32::from(q) + m);
}

/// The fifth bits of a Q5_0 or Q5_1 block, bit j for weight j.
fn fifth_bits(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

fn fifth(bits: u32, j: usize, q: u8) -> f32 {
    f32::from(q | ((bits >> j & 1) << 4) as u8)
}

fn q5_0(b: &[u8; 22], y: &mut [f32; 32]) {
    let (d, bits) = (half_at(b, 0), fifth_bits(b, 2));
    nibbles(&b[6..], y, |j, q| d * (fifth(bits, j, q) - 16.0));
}

fn q5_1(b: &[u8; 24], y: &mut [f32; 32]) {
    let (d, m, bits) = (half_at(b, 0), half_at(b, 2), fifth_bits(b, 4));
    nibbles(&b[8..], y, |j, q| d * fifth(bits, j, q) + m);
}

fn q8_0(b: &[u8; 34], y: &mut [f32; 32]) {
    let d = half_at(b, 0);
    for (y, q) in y.iter_mut().zip(&b[2..]) {
        *y = f32::from(*q as i8) * d;
    }
}

/// 2-bit codes of Q2_K and Q3_K: weight `128 h + 32 s + l` is `qs[32 h + l] >> 2 s`, one scale for 16 weights.
#[inline(always)]
fn crumbs(qs: &[u8], y: &mut [f32; 256], value: impl Fn(usize, usize, u8) -> f32) {
    for (sub, y) in y.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let (half, shift, from) = (sub / 8, sub % 8 / 2 * 2, sub % 2 * 16);
        let qs = &qs[32 * half + from..][..16];
        for (l, (y, q)) in y.iter_mut().zip(qs).enumerate() {
            *y = value(sub, from + l, q >> shift & 3);
        }
    }
}

fn q2_k(b: &[u8; 84], y: &mut [f32; 256]) {
    let (d, m) = (half_at(b, 80), half_at(b, 82));
    let scale: [f32; 16] = std::array::from_fn(|i| d * f32::from(b[i] & 15));
    let minimum: [f32; 16] = std::array::from_fn(|i| m * f32::from(b[i] >> 4));
    crumbs(&b[16..80], y, |sub, _, q| scale[sub] * f32::from(q) - minimum[sub]);
}

fn q3_k(b: &[u8; 110], y: &mut [f32; 256]) {
    let (d, mask, packed) = (half_at(b, 108), &b[..32], &b[96..108]);
    let scale: [f32; 16] = std::array::from_fn(|i| {
        let low = packed[i % 8] >> (i / 8 * 4) & 15;
        let high = packed[8 + i % 4] >> (i / 4 * 2) & 3;
        d * (f32::from(low | high << 4) - 32.0)
    });
    crumbs(&b[32..96], y, |sub, l, q| {
        let high = mask[l] >> (sub / 2) & 1;
        scale[sub] * (f32::from(q | high << 2) - 4.0)
    });
}

/// The eight 6-bit scales and minimums of Q4_K and Q5_K, times `d` and `m`.
#[inline(always)]
fn six_bit(d: f32, m: f32, q: &[u8]) -> [(f32, f32); 8] {
    std::array::from_fn(|j| {
        let (scale, minimum) = if j < 4 {
            (q[j] & 63, q[j + 4] & 63)
        } else {
            (q[j + 4] & 15 | q[j - 4] >> 6 << 4, q[j + 4] >> 4 | q[j] >> 6 << 4)
        };
        (d * f32::from(scale), m * f32::from(minimum))
    })
}

fn q4_k(b: &[u8; 144], y: &mut [f32; 256]) {
    let scales = six_bit(half_at(b, 0), half_at(b, 2), &b[4..16]);
    for (pair, (y, qs)) in y.as_chunks_mut::<64>().0.iter_mut().zip(b[16..].as_chunks::<32>().0).enumerate() {
        let ((d0, m0), (d1, m1)) = (scales[2 * pair], scales[2 * pair + 1]);
        let (low, high) = y.split_at_mut(32);
        for ((q, low), high) in qs.iter().zip(low).zip(high) {
            *low = d0 * f32::from(q & 15) - m0;
            *high = d1 * f32::from(q >> 4) - m1;
        }
    }
}

fn q5_k(b: &[u8; 176], y: &mut [f32; 256]) {
    let scales = six_bit(half_at(b, 0), half_at(b, 2), &b[4..16]);
    let fifth = &b[16..48];
    for (pair, (y, qs)) in y.as_chunks_mut::<64>().0.iter_mut().zip(b[48..].as_chunks::<32>().0).enumerate() {
        let ((d0, m0), (d1, m1)) = (scales[2 * pair], scales[2 * pair + 1]);
        let (low, high) = y.split_at_mut(32);
        for (((q, bits), low), high) in qs.iter().zip(fifth).zip(low).zip(high) {
            let bits = bits >> (2 * pair);
            *low = d0 * f32::from(q & 15 | (bits & 1) << 4) - m0;
            *high = d1 * f32::from(q >> 4 | (bits >> 1 & 1) << 4) - m1;
        }
    }
}

fn q6_k(b: &[u8; 210], y: &mut [f32; 256]) {
    let d = half_at(b, 208);
    let scale: [f32; 16] = std::array::from_fn(|i| d * f32::from(b[192 + i] as i8));
    for (half, y) in y.as_chunks_mut::<128>().0.iter_mut().enumerate() {
        let (low, high, scale) = (&b[64 * half..][..64], &b[128 + 32 * half..][..32], &scale[8 * half..]);
        for quarter in 0..4 {
            let low = &low[quarter % 2 * 32..][..32];
            let (nibble, shift) = (quarter / 2 * 4, 2 * quarter);
            let y = &mut y[32 * quarter..][..32];
            for (l, ((y, low), high)) in y.iter_mut().zip(low).zip(high).enumerate() {
                let q = low >> nibble & 15 | (high >> shift & 3) << 4;
                *y = scale[2 * quarter + l / 16] * (f32::from(q) - 32.0);
            }
        }
    }
}

fn iq4_nl(b: &[u8; 18], y: &mut [f32; 32]) {
    let d = half_at(b, 0);
    nibbles(&b[2..], y, |_, q| d * NON_LINEAR[usize::from(q)]);
}

fn iq4_xs(b: &[u8; 136], y: &mut [f32; 256]) {
    let (d, high, low) = (half_at(b, 0), u16::from_le_bytes([b[2], b[3]]), &b[4..8]);
    for (sub, y) in y.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let scale = low[sub / 2] >> (sub % 2 * 4) & 15 | ((high >> (2 * sub) & 3) << 4) as u8;
        let d = d * (f32::from(scale) - 32.0);
        nibbles(&b[8 + 16 * sub..][..16], y, |_, q| d * NON_LINEAR[usize::from(q)]);
    }
}

/// `2^(e - 128)`: the block's exponent, halved because the codes' table is doubled.
fn e8m0_halved(e: u8) -> f32 {
    let bits = if e < 2 { 0x0020_0000 << e } else { (u32::from(e) - 1) << 23 };
    f32::from_bits(bits)
}

fn mxfp4(b: &[u8; 17], y: &mut [f32; 32]) {
    let d = e8m0_halved(b[0]);
    nibbles(&b[1..], y, |_, q| d * E2M1_DOUBLED[usize::from(q)]);
}

/// An unsigned 8-bit float of 4 exponent and 3 mantissa bits, halved; 0 and the not-a-number code are 0.
fn ue4m3_halved(x: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(x >> 3 & 15), f32::from(x & 7));
    match (x, exponent) {
        (0 | 0x7F, _) => 0.0,
        (_, 0) => mantissa * f32::from_bits((127 - 10) << 23),
        _ => (1.0 + mantissa / 8.0) * f32::from_bits((exponent + 127 - 8) << 23),
    }
}

fn nvfp4(b: &[u8; 36], y: &mut [f32; 64]) {
    for (sub, y) in y.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let d = ue4m3_halved(b[sub]);
        nibbles(&b[4 + 8 * sub..][..8], y, |_, q| d * E2M1_DOUBLED[usize::from(q)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_gives_the_reference_readers_bits() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/quant_blocks.safetensors");
        let bytes = std::fs::read(path).unwrap();
        let golden = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let mut compared = 0;
        for ty in BlockType::ALL.into_iter().filter(|ty| *ty != BlockType::F32) {
            let raw = golden.tensor(&format!("{}.raw", ty.name())).unwrap();
            let expected = golden.tensor(&format!("{}.f32", ty.name())).unwrap();
            let mut out = vec![f32::NAN; expected.data().len() / 4];
            dequantise(ty, raw.data(), &mut out);
            let got: Vec<u8> = out.iter().flat_map(|y| y.to_le_bytes()).collect();
            let first = got.chunks(4).zip(expected.data().chunks(4)).position(|(a, b)| a != b);
            assert_eq!(first, None, "{} differs at this weight", ty.name());
            compared += 1;
        }
        assert_eq!(compared, 16);
    }

    #[test]
    fn singles_are_copied() {
        let values = [0.0f32, -1.5, f32::MIN_POSITIVE, 3.0e38];
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let mut out = [f32::NAN; 4];
        dequantise(BlockType::F32, &bytes, &mut out);
        assert_eq!(out, values);
    }

    #[test]
    fn small_exponents_of_micro_scaled_blocks_are_denormal() {
        assert_eq!(e8m0_halved(0), 2.0f32.powi(-128));
        assert_eq!(e8m0_halved(1), 2.0f32.powi(-127));
        assert_eq!(e8m0_halved(2), 2.0f32.powi(-126));
        assert_eq!(e8m0_halved(128), 1.0);
    }
}
