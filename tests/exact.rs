//! The exact expert function seen from outside: independent vectors, batches, grouping, statuses, accuracy.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvasir::kernel::numerics::{self, ExactMatrix, QuantisedRow, expert::inner_row, quantise_row};
use kvasir::kernel::quant::dequantise;
use kvasir::kernel::{CpuKernel, CpuPath, Expert, ExpertCompute, ExpertSource, KernelError};
use kvasir::model::{BlockType, ExpertWeights, Matrix};
use kvasir::types::GateWeight;
use kvasir::wire::work::{Activations, Assignment, Dispatch, PartialValues, RowHead, RowStatus};
use safetensors::SafeTensors;

const TYPES: [BlockType; 5] = [BlockType::Q4_K, BlockType::Q5_K, BlockType::Q6_K, BlockType::Q8_0, BlockType::Q4_0];

fn splitmix(seed: u64, n: usize) -> impl Iterator<Item = u64> {
    (1..=n as u64).map(move |i| {
        let z = seed.wrapping_add(i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

/// The weights of `tests/data/exact_vectors.py`.
fn weights(ty: BlockType, seed: u64, rows: usize, cols: usize) -> Matrix {
    let bytes = rows * ty.row_bytes(cols).unwrap();
    let mut data: Vec<u8> = splitmix(seed, bytes).map(|z| (z >> 56) as u8).collect();
    let scales: &[usize] = match ty {
        BlockType::Q4_K | BlockType::Q5_K => &[0, 2],
        BlockType::Q6_K => &[208],
        _ => &[0],
    };
    for block in data.chunks_exact_mut(ty.block().1) {
        scales.iter().for_each(|at| block[at + 1] = 0x18 | (block[at + 1] & 0x87));
    }
    Matrix::new(ty, rows, cols, data.into()).unwrap()
}

fn expert(ty: BlockType, seed: u64, hidden: usize, intermediate: usize) -> ExpertWeights {
    ExpertWeights {
        gate: weights(ty, seed, intermediate, hidden),
        up: weights(ty, seed + 1, intermediate, hidden),
        down: weights(ty, seed + 2, hidden, intermediate),
    }
}

/// The rows of `tests/data/exact_vectors.py`.
fn row(seed: u64, n: usize) -> Vec<f32> {
    let value = |(i, z): (usize, u64)| {
        let small = ((z >> 40) as i64 - (1 << 23)) as f32 / (1 << 20) as f32;
        if i % 61 == 7 { small * 64.0 } else { small }
    };
    splitmix(seed, n).enumerate().map(value).collect()
}

/// Experts of one layer, by id.
struct Layer(BTreeMap<u16, Arc<Expert>>);

impl ExpertSource for Layer {
    fn expert(&self, _layer: u16, expert: u16) -> Option<Arc<Expert>> {
        self.0.get(&expert).cloned()
    }
}

impl Layer {
    fn new(ty: BlockType, experts: u16, hidden: usize, intermediate: usize) -> Self {
        let one =
            |id: u16| (id, Arc::new(Expert::new(&expert(ty, u64::from(id) * 1000, hidden, intermediate)).unwrap()));
        Self((0..experts).map(one).collect())
    }
}

/// A request: per row its values, its grid and its experts.
fn request(rows: &[(Vec<f32>, i8, Vec<u16>)]) -> Dispatch {
    let (mut wire, mut heads, mut assignments) = (Vec::new(), Vec::new(), Vec::new());
    for (x, grid, experts) in rows {
        quantise_row(x, &mut wire).unwrap();
        heads.push(RowHead { grid: *grid, count: experts.len() as u16, first: assignments.len() as u32 });
        let gate = |e: u16| GateWeight { mantissa: 40_000 + e, exponent: -17 };
        assignments.extend(experts.iter().map(|e| Assignment { expert: *e, gate: gate(*e) }));
    }
    let hidden = rows[0].0.len();
    let activations = Activations::Exact(wire.into());
    Dispatch { lease: 0, deadline_ms: 0, hidden, rows: heads, activations, assignments }
}

fn kernels() -> Vec<CpuKernel> {
    CpuPath::supported().into_iter().flat_map(|path| [1, 3].map(|n| CpuKernel::new(path, n).unwrap())).collect()
}

fn compute(kernel: &CpuKernel, layer: &Layer, part: &Dispatch) -> (Vec<RowStatus>, Vec<i32>) {
    let partials = kernel.compute(layer, 0, std::slice::from_ref(part)).unwrap().remove(0);
    let PartialValues::Exact(sums) = partials.values else { panic!("an exact request has an exact reply") };
    (partials.status, sums)
}

/// Rows of different widths of choice among `experts` experts, on a grid that holds them.
fn mixed_rows(n: usize, hidden: usize, experts: u16) -> Vec<(Vec<f32>, i8, Vec<u16>)> {
    let own = |r: usize| (0..experts).filter(|e| (usize::from(*e) * 7 + r * 3) % 5 < 3).collect();
    (0..n).map(|r| (row(500 + r as u64, hidden), 0, own(r))).collect()
}

#[test]
fn specification_and_every_path_equal_the_independent_vectors() {
    let file = std::fs::read(super::support::data("exact_vectors.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&file).unwrap();
    let words = |name: &str| -> Vec<u32> {
        file.tensor(name).unwrap().data().as_chunks().0.iter().map(|w| u32::from_le_bytes(*w)).collect()
    };
    for (t, ty) in TYPES.into_iter().enumerate() {
        let stored = expert(ty, 1000 * t as u64, 256, 256);
        let [gate, up, down] = [&stored.gate, &stored.up, &stored.down].map(|m| ExactMatrix::new(m).unwrap());
        let layer = Layer(BTreeMap::from([(0, Arc::new(Expert::new(&stored).unwrap()))]));
        for r in 0..3u16 {
            let name = |what: &str| format!("{ty:?}.{r}.{what}");
            let mut wire = Vec::new();
            let x = row(77 + u64::from(r), 256);
            quantise_row(&x, &mut wire).unwrap();
            assert_eq!(wire, file.tensor(&name("row")).unwrap().data(), "{ty:?} row {r}");
            let quantised = QuantisedRow::from_wire(&wire);
            let inner: Vec<u32> = inner_row(&gate, &up, &quantised).iter().map(|h| h.to_bits()).collect();
            assert_eq!(inner, words(&name("inner")), "{ty:?} inner row {r}");
            let grid = words(&name("grid"))[0] as i32 as i8;
            let weight = GateWeight { mantissa: 40_000 + r, exponent: -17 };
            let expected: Vec<i32> = words(&name("outputs")).into_iter().map(|v| v as i32).collect();
            assert_eq!(numerics::expert([&gate, &up, &down], &quantised, weight, grid).unwrap(), expected);
            let mut part = request(&[(x, grid, vec![0])]);
            part.assignments[0].gate = weight;
            for kernel in kernels() {
                let (status, sums) = compute(&kernel, &layer, &part);
                assert_eq!((status, sums), (vec![RowStatus::Ok], expected.clone()), "{ty:?} {}", kernel.device());
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_in_any_batch() {
    for (ty, hidden, intermediate) in [(BlockType::Q4_K, 512, 256), (BlockType::Q8_0, 288, 96)] {
        let layer = Layer::new(ty, 6, hidden, intermediate);
        let rows = mixed_rows(64, hidden, 6);
        let mut reference: Option<Vec<i32>> = None;
        for kernel in kernels() {
            for batch in [1, 7, 64] {
                let parts = rows.chunks(batch).map(|rows| compute(&kernel, &layer, &request(rows)));
                let sums: Vec<i32> = parts.flat_map(|(_, sums)| sums).collect();
                assert!(sums.iter().any(|v| *v != 0));
                assert_eq!(&sums, reference.get_or_insert_with(|| sums.clone()), "{} {batch}", kernel.device());
            }
        }
    }
}

#[test]
fn parts_are_one_batch_and_answered_part_by_part() {
    let layer = Layer::new(BlockType::Q6_K, 6, 256, 256);
    let rows = mixed_rows(9, 256, 6);
    for kernel in kernels() {
        let parts: Vec<Dispatch> = rows.chunks(4).map(request).collect();
        let replies = kernel.compute(&layer, 0, &parts).unwrap();
        for (part, reply) in parts.iter().zip(replies) {
            let (status, sums) = compute(&kernel, &layer, part);
            assert_eq!((reply.status, reply.values), (status, PartialValues::Exact(sums)));
        }
    }
}

#[test]
fn any_grouping_of_experts_over_workers_adds_to_the_same_sums() {
    let layer = Layer::new(BlockType::Q5_K, 8, 256, 256);
    let x = row(9, 256);
    for kernel in kernels() {
        let sums_of = |experts: Vec<u16>| compute(&kernel, &layer, &request(&[(x.clone(), 0, experts)])).1;
        let all = sums_of((0..8).collect());
        for split in 1..8u16 {
            let (a, b) = (sums_of((0..split).collect()), sums_of((split..8).collect()));
            assert!(all.iter().zip(a.iter().zip(&b)).all(|(all, (a, b))| *all == a + b));
        }
    }
}

#[test]
fn poison_outranks_range_and_both_carry_zeros() {
    let mut layer = Layer::new(BlockType::Q8_0, 2, 256, 256);
    // The largest f16 scales everywhere: the inner row of a huge hidden state leaves the quantiser's range.
    let mut huge = expert(BlockType::Q8_0, 5, 256, 256);
    for matrix in [&mut huge.gate, &mut huge.up] {
        let mut bytes = matrix.data.to_vec();
        bytes.chunks_exact_mut(34).for_each(|block| block[..2].copy_from_slice(&0x7bffu16.to_le_bytes()));
        matrix.data = bytes.into();
    }
    layer.0.insert(2, Arc::new(Expert::new(&huge).unwrap()));
    let loud: Vec<f32> = row(3, 256).iter().map(|v| v * 2f32.powi(60)).collect();
    let quiet = row(3, 256);
    let part = request(&[
        (quiet.clone(), 0, vec![0, 1]),
        (quiet, -60, vec![0, 1]),
        (loud.clone(), -60, vec![0, 2]),
        (loud, -60, vec![]),
    ]);
    for kernel in kernels() {
        let (status, sums) = compute(&kernel, &layer, &part);
        assert_eq!(status, [RowStatus::Ok, RowStatus::Range, RowStatus::Poison, RowStatus::Ok]);
        assert!(sums[..256].iter().any(|v| *v != 0));
        assert!(sums[256..].iter().all(|v| *v == 0));
    }
}

#[test]
fn what_cannot_be_computed_exactly_is_refused_by_name() {
    let kernel = CpuKernel::new(CpuPath::Portable, 1).unwrap();
    let other = |ty: BlockType| Matrix::new(ty, 32, 32, vec![0; 32 * ty.row_bytes(32).unwrap()].into()).unwrap();
    let square = |ty| ExpertWeights { gate: other(ty), up: other(ty), down: other(ty) };
    let local = Layer(BTreeMap::from([(0, Arc::new(Expert::new(&square(BlockType::Q5_0)).unwrap()))]));
    let part = request(&[(vec![1.0; 32], 0, vec![0])]);
    let error = kernel.compute(&local, 0, std::slice::from_ref(&part)).unwrap_err();
    assert_eq!(error, KernelError::LocalOnly { expert: 0, types: [BlockType::Q5_0; 3] });
    let error = kernel.compute(&Layer(BTreeMap::new()), 4, &[part]).unwrap_err();
    assert_eq!(error, KernelError::NoExpert { layer: 4, expert: 0 });
}

/// `matrix · x` in f64 over exactly dequantised weights.
fn float_product(matrix: &Matrix, x: &[f64]) -> Vec<f64> {
    let mut values = vec![0f32; matrix.rows * matrix.cols];
    dequantise(matrix.ty, &matrix.data, &mut values);
    values.chunks_exact(matrix.cols).map(|w| w.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum()).collect()
}

/// Weights centred on zero, as a quantiser makes them: minima equal scales and weigh half the largest weight.
fn centred(mut matrix: Matrix) -> Matrix {
    let minimum: u16 = match matrix.ty {
        BlockType::Q4_K => 0x2380,
        BlockType::Q5_K => 0x27c0,
        _ => return matrix,
    };
    let mut bytes = matrix.data.to_vec();
    for block in bytes.chunks_exact_mut(matrix.ty.block().1) {
        block[..2].copy_from_slice(&0x1800u16.to_le_bytes());
        block[2..4].copy_from_slice(&minimum.to_le_bytes());
        block.copy_within(4..8, 8);
        block[12..16].iter_mut().for_each(|both| *both = *both & 15 | *both << 4);
    }
    matrix.data = bytes.into();
    matrix
}

/// Relative error and cosine of a whole expert for one outlier-heavy row.
fn accuracy(stored: &ExpertWeights, x: Vec<f32>) -> (f64, f64) {
    let layer = Layer(BTreeMap::from([(0, Arc::new(Expert::new(stored).unwrap()))]));
    let wide: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
    let (gate, up) = (float_product(&stored.gate, &wide), float_product(&stored.up, &wide));
    let inner: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
    let expected: Vec<f64> = float_product(&stored.down, &inner).iter().map(|v| v * 40_000.0 / 131_072.0).collect();
    let largest = expected.iter().fold(0f64, |m, v| m.max(v.abs()));
    let grid = (largest.log2().ceil() as i32 - 26) as i8;
    let kernel = CpuKernel::new(CpuPath::detect().unwrap(), 1).unwrap();
    let (status, sums) = compute(&kernel, &layer, &request(&[(x, grid, vec![0])]));
    assert_eq!(status, [RowStatus::Ok]);
    let got: Vec<f64> = sums.iter().map(|v| f64::from(*v) * f64::from(grid).exp2()).collect();
    let norm = |v: &[f64]| v.iter().map(|v| v * v).sum::<f64>().sqrt();
    let difference: Vec<f64> = got.iter().zip(&expected).map(|(g, e)| g - e).collect();
    let cosine = got.iter().zip(&expected).map(|(g, e)| g * e).sum::<f64>() / norm(&got) / norm(&expected);
    (norm(&difference) / norm(&expected), cosine)
}

#[test]
fn the_whole_expert_stays_near_float64_even_with_outliers() {
    for ty in TYPES {
        let ExpertWeights { gate, up, down } = expert(ty, 40, 1024, 512);
        let stored = ExpertWeights { gate: centred(gate), up: centred(up), down: centred(down) };
        let figures: Vec<_> = (0..4).map(|seed| accuracy(&stored, row(12 + seed, 1024))).collect();
        let error = figures.iter().map(|(error, _)| error).sum::<f64>() / 4.0;
        let cosine = figures.iter().map(|(_, cosine)| cosine).sum::<f64>() / 4.0;
        // The largest error of the numerics' accuracy table is 0.0199; 1.6 times that allows for these weights.
        assert!(error < 0.032 && cosine > 0.9998, "{ty:?}: error {error}, cosine {cosine}");
    }
}
