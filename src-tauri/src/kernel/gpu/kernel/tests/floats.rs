//! Experts of float weights on the GPU: near the CPU's floats, and the same bits for any batch.

use super::*;

#[test]
fn float_experts_stay_near_the_cpus_floats() {
    let Some(open) = gpu() else { return };
    let cpu = CpuKernel::new(CpuPath::Portable, 1).expect("threads");
    for (ty, hidden, intermediate) in [(BlockType::F32, 70, 44), (BlockType::BF16, 64, 100), (BlockType::F16, 36, 40)] {
        let mut random = Random::new(hidden as u64);
        let mut matrix = |rows, cols| {
            let values = (0..rows * cols).map(|_| random.gaussian() / 8.0);
            let bytes: Vec<u8> = match ty {
                BlockType::F32 => values.flat_map(f32::to_le_bytes).collect(),
                BlockType::BF16 => values.flat_map(|v| half::bf16::from_f32(v).to_le_bytes()).collect(),
                _ => values.flat_map(|v| half::f16::from_f32(v).to_le_bytes()).collect(),
            };
            Matrix::new(ty, rows, cols, bytes.into()).expect("the shape fits")
        };
        let stored: Vec<_> = (0..3)
            .map(|_| ExpertWeights {
                gate: matrix(intermediate, hidden),
                up: matrix(intermediate, hidden),
                down: matrix(hidden, intermediate),
            })
            .collect();
        let gate = GateWeight { mantissa: 0, exponent: 0 };
        let request = Dispatch {
            lease: 0,
            deadline_ms: 0,
            hidden,
            rows: (0..40).map(|r| RowHead { grid: 0, count: 3, first: 3 * r }).collect(),
            activations: Activations::Float((0..40 * hidden).map(|_| random.gaussian()).collect()),
            assignments: (0..120).map(|i| Assignment { expert: i % 3, gate }).collect(),
        };
        let host = (0..).zip(stored.iter().map(|weights| Arc::new(Expert::new(weights).expect("shapes fit"))));
        let expected = cpu.compute(&Layer(host.collect()), 0, std::slice::from_ref(&request)).expect("computed");
        let got = open.compute(&placed(open, &stored), 0, std::slice::from_ref(&request), false).expect("computed").0;
        assert_eq!(got[0].status, expected[0].status);
        let (PartialValues::Float(got), PartialValues::Float(expected)) = (&got[0].values, &expected[0].values) else {
            panic!("float replies")
        };
        let largest = expected.iter().fold(0f32, |m, v| m.max(v.abs()));
        assert!(largest > 0.1);
        assert!(got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5 * largest), "{ty:?}");
    }
}

#[test]
fn a_row_of_floats_has_the_same_bits_alone_and_in_any_batch() {
    let Some(open) = gpu() else { return };
    let mut random = Random::new(11);
    let mut matrix = |rows: usize, cols: usize| {
        let bytes: Vec<u8> = (0..rows * cols).flat_map(|_| (random.gaussian() / 8.0).to_le_bytes()).collect();
        Matrix::new(BlockType::F32, rows, cols, bytes.into()).expect("the shape fits")
    };
    let stored = [ExpertWeights { gate: matrix(52, 100), up: matrix(52, 100), down: matrix(100, 52) }];
    let layer = placed(open, &stored);
    let x: Vec<f32> = (0..21 * 100).map(|i| ((i * 7 % 31) as f32 - 15.0) / 9.0).collect();
    let compute = |x: &[f32]| {
        let rows = x.len() / 100;
        let gate = GateWeight { mantissa: 0, exponent: 0 };
        let request = Dispatch {
            lease: 0,
            deadline_ms: 0,
            hidden: 100,
            rows: (0..rows as u32).map(|r| RowHead { grid: 0, count: 1, first: r }).collect(),
            activations: Activations::Float(x.to_vec()),
            assignments: (0..rows).map(|_| Assignment { expert: 0, gate }).collect(),
        };
        let replies = open.compute(&layer, 0, &[request], false).expect("computed").0;
        let PartialValues::Float(values) = &replies[0].values else { panic!("a float reply") };
        values.iter().map(|v| v.to_bits()).collect::<Vec<u32>>()
    };
    let together = compute(&x);
    assert!(together.iter().any(|bits| *bits != 0));
    for batch in [1, 3, 8] {
        let apart: Vec<u32> = x.chunks(batch * 100).flat_map(&compute).collect();
        assert!(apart == together, "batches of {batch}");
    }
}
