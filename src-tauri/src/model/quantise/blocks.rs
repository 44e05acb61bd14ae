//! One block of each exact type from its weights. Layouts are ggml's, as `kernel::quant` reads them.

use std::array::from_fn;

use half::f16;

use super::search::{Affine, Symmetric, ZERO_BELOW, nearest};

fn put_half(out: &mut [u8], value: f32) -> f32 {
    let half = f16::from_f32(value);
    out[..2].copy_from_slice(&half.to_le_bytes());
    half.to_f32()
}

/// Weight i of each of N sub-blocks.
fn lanes<const N: usize, const LEN: usize>(x: &[f32; 256]) -> [[f32; N]; LEN] {
    from_fn(|i| from_fn(|j| x[j * LEN + i]))
}

/// The largest magnitude becomes ±127.
pub(super) fn q8_0(x: &[f32; 32], out: &mut [u8; 34]) {
    let largest = x.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    let d = largest / 127.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    put_half(out, d);
    for (q, x) in out[2..].iter_mut().zip(x) {
        *q = (x * inverse).round() as i8 as u8;
    }
}

/// The weight of largest magnitude becomes code 0, which means -8.
pub(super) fn q4_0(x: &[f32; 32], out: &mut [u8; 18]) {
    let peak = x.iter().fold(0.0f32, |peak, x| if peak.abs() < x.abs() { *x } else { peak });
    let d = peak / -8.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    put_half(out, d);
    let code = |x: f32| ((x * inverse + 8.5) as i8 as u8).min(15);
    for (j, q) in out[2..].iter_mut().enumerate() {
        *q = code(x[j]) | code(x[j + 16]) << 4;
    }
}

/// Scales, offsets and codes of a block of eight affine sub-blocks: `head` is d, dmin and the twelve packed bytes.
fn affine(x: &[f32; 256], head: &mut [u8], most: i32, first: f32, steps: u8) -> [u8; 256] {
    let found = Affine::<8>::search::<32>(&lanes(x), most, first, steps);
    let largest = |values: &[f32; 8]| values.iter().fold(0.0f32, |largest, v| if *v > largest { *v } else { largest });
    let (scale_max, offset_max) = (largest(&found.scale), largest(&found.offset));
    let per_unit = |max: f32| if max > 0.0 { 63.0 / max } else { 0.0 };
    let sixth = |value: f32, max: f32| (nearest(per_unit(max) * value) as u8).min(63);
    let scales = found.scale.map(|scale| sixth(scale, scale_max));
    let offsets = found.offset.map(|offset| sixth(offset, offset_max));
    let d = put_half(head, scale_max / 63.0);
    let d_offset = put_half(&mut head[2..], offset_max / 63.0);
    let packed = &mut head[4..16];
    for j in 0..4 {
        packed[j] = scales[j] | scales[j + 4] >> 4 << 6;
        packed[j + 4] = offsets[j] | offsets[j + 4] >> 4 << 6;
        packed[j + 8] = scales[j + 4] & 15 | (offsets[j + 4] & 15) << 4;
    }
    from_fn(|i| {
        let j = i / 32;
        let step = d * f32::from(scales[j]);
        if step == 0.0 {
            // Too small a scale for six bits: the codes mean nothing, but the reference keeps those of its search.
            return found.code(j, x[i]);
        }
        nearest((x[i] + d_offset * f32::from(offsets[j])) / step).clamp(0, most) as u8
    })
}

/// 4-bit codes, eight sub-blocks with scale and offset.
pub(super) fn q4_k(x: &[f32; 256], out: &mut [u8; 144]) {
    let codes = affine(x, &mut out[..16], 15, -1.0, 20);
    low_nibbles(&codes, &mut out[16..]);
}

/// 5-bit codes, eight sub-blocks with scale and offset.
pub(super) fn q5_k(x: &[f32; 256], out: &mut [u8; 176]) {
    let codes = affine(x, &mut out[..16], 31, -0.5, 15);
    for l in 0..32 {
        out[16 + l] = (0..8).fold(0, |bits, j| bits | (codes[32 * j + l] >> 4) << j);
    }
    low_nibbles(&codes, &mut out[48..]);
}

/// Sub-blocks 2p and 2p + 1 share the bytes from 32p on.
fn low_nibbles(codes: &[u8; 256], out: &mut [u8]) {
    for (p, out) in out.chunks_exact_mut(32).enumerate() {
        for (l, q) in out.iter_mut().enumerate() {
            *q = codes[64 * p + l] & 15 | (codes[64 * p + 32 + l] & 15) << 4;
        }
    }
}

/// 6-bit codes, sixteen sub-blocks with a signed scale.
pub(super) fn q6_k(x: &[f32; 256], out: &mut [u8; 210]) {
    let found = Symmetric::<16>::search::<16>(&lanes(x), 32);
    let peak = found.scale.iter().fold(0.0f32, |peak, s| if s.abs() > peak.abs() { *s } else { peak });
    if peak.abs() < ZERO_BELOW {
        return out.fill(0);
    }
    let factor = -128.0 / peak;
    let scales = found.scale.map(|scale| nearest(factor * scale).min(127) as i8);
    let d = put_half(&mut out[208..], 1.0 / factor);
    let codes: [u8; 256] = from_fn(|i| {
        let j = i / 16;
        let step = d * f32::from(scales[j]);
        if step == 0.0 {
            return found.code(j, x[i]);
        }
        (nearest(x[i] / step).clamp(-32, 31) + 32) as u8
    });
    for half in 0..2 {
        let code = |quarter: usize, l: usize| codes[128 * half + 32 * quarter + l];
        for l in 0..32 {
            out[64 * half + l] = code(0, l) & 15 | (code(2, l) & 15) << 4;
            out[64 * half + 32 + l] = code(1, l) & 15 | (code(3, l) & 15) << 4;
            out[128 + 32 * half + l] = (0..4).fold(0, |bits, quarter| bits | code(quarter, l) >> 4 << (2 * quarter));
        }
    }
    for (out, scale) in out[192..208].iter_mut().zip(scales) {
        *out = scale as u8;
    }
}
