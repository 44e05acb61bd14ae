//! The blocks against those that ggml's reference quantisers made (`tests/data/quantised_blocks.py`), and refusals.

use safetensors::SafeTensors;
use sha2::{Digest as _, Sha256};

use super::*;

const EXACT: [BlockType; 5] = [BlockType::Q4_0, BlockType::Q8_0, BlockType::Q4_K, BlockType::Q5_K, BlockType::Q6_K];

fn golden() -> Vec<u8> {
    std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/quantised_blocks.safetensors")).unwrap()
}

fn blocks(ty: BlockType, x: &[f32]) -> Vec<u8> {
    let mut out = vec![0xAA; ty.row_bytes(x.len()).unwrap()];
    assert!(quantise(ty, x, &mut out));
    out
}

/// The rows that the script's `stream` computes: sums of four draws of a linear congruential generator.
fn stream() -> Vec<f32> {
    let mut state = 1u64;
    let mut draw = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as i64 - (1 << 30)
    };
    (0..1024 * 256).map(|_| ((0..4).map(|_| draw()).sum::<i64>() as f64 * 2f64.powi(-36)) as f32).collect()
}

#[test]
fn blocks_are_the_reference_quantisers_byte_for_byte() {
    let golden = golden();
    let golden = SafeTensors::deserialize(&golden).unwrap();
    let x = BlockType::F32.floats(golden.tensor("x").unwrap().data()).unwrap();
    for ty in EXACT {
        let expected = golden.tensor(&format!("{}.blocks", ty.name())).unwrap();
        let rows = expected.data().chunks(ty.row_bytes(256).unwrap());
        assert_eq!(rows.len(), 26);
        for (r, (x, expected)) in x.chunks(256).zip(rows).enumerate() {
            assert_eq!(blocks(ty, x), expected, "{} row {r}", ty.name());
        }
    }
}

#[test]
fn a_thousand_further_rows_have_the_references_hash() {
    let golden = golden();
    let golden = SafeTensors::deserialize(&golden).unwrap();
    let x = stream();
    for ty in EXACT {
        let expected = golden.tensor(&format!("{}.sha256", ty.name())).unwrap();
        assert_eq!(Sha256::digest(blocks(ty, &x))[..], *expected.data(), "{}", ty.name());
    }
}

#[test]
fn weights_too_small_for_a_scale_become_zeros() {
    for ty in EXACT {
        for x in [[f32::MIN_POSITIVE / 4.0; 256], [0.0; 256], [-0.0; 256]] {
            let mut out = [f32::NAN; 256];
            crate::kernel::quant::dequantise(ty, &blocks(ty, &x), &mut out);
            assert_eq!(out, [0.0; 256], "{}", ty.name());
        }
    }
}

/// Bits of any kind, but for what is refused before.
#[test]
fn any_weights_that_are_taken_become_blocks_of_numbers() {
    let mut state = 7u64;
    let mut draw = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 32) as u32
    };
    for round in 0..284 {
        // Magnitudes over the whole range, then all within a factor of two.
        let bits = |bits: u32| if round % 2 == 0 { bits } else { bits & 0x807F_FFFF | (round / 2) << 23 };
        let mut weights = std::iter::repeat_with(|| f32::from_bits(bits(draw()))).filter(|x| x.abs() <= WEIGHT_MAX);
        let x: Vec<f32> = weights.by_ref().take(256).collect();
        for ty in EXACT {
            let mut out = [f32::NAN; 256];
            crate::kernel::quant::dequantise(ty, &blocks(ty, &x), &mut out);
            assert!(out.iter().all(|x| x.is_finite()), "{} round {round}", ty.name());
        }
    }
}

fn expert(rows: usize, cols: usize, values: &[f32]) -> ExpertWeights {
    let matrix = |rows: usize, cols: usize| {
        let bytes = values.iter().cycle().take(rows * cols).flat_map(|x| x.to_le_bytes());
        Matrix::new(BlockType::F32, rows, cols, bytes.collect::<Vec<u8>>().into()).unwrap()
    };
    ExpertWeights { gate: matrix(rows, cols), up: matrix(rows, cols), down: matrix(cols, rows) }
}

#[test]
fn experts_that_blocks_cannot_hold_are_refused_by_name() {
    let refusal = |experts: &[ExpertWeights], ty| quantised(3, experts, ty).unwrap_err().to_string();
    let small = expert(32, 64, &[0.5]);
    let message = refusal(std::slice::from_ref(&small), BlockType::Q4_K);
    assert!(
        message.starts_with("tensor blk.3.ffn_gate_exps.weight: expected rows of whole Q4_K blocks of 256, got 64")
    );
    let message = refusal(std::slice::from_ref(&small), BlockType::MXFP4);
    assert_eq!(message, "expected one of q4_0, q8_0, q4_k, q5_k, q6_k, got MXFP4");
    let done = quantised(3, std::slice::from_ref(&small), BlockType::Q8_0).unwrap();
    assert_eq!((done[0].gate.ty, done[0].down.cols), (BlockType::Q8_0, 32));
    assert!(refusal(&done, BlockType::Q8_0).contains("blk.3.ffn_gate_exps.weight: expected float weights"));
    for (bad, shown) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (-7e4, "-70000")] {
        let message = refusal(&[small.clone(), expert(32, 64, &[0.5, bad])], BlockType::Q8_0);
        assert!(message.contains("at most 65504 in magnitude, got") && message.contains(shown), "{message}");
        assert!(message.ends_with("for expert 1"), "{message}");
    }
}
