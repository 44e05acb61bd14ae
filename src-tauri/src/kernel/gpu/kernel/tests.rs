//! The GPU's bytes are those of the scalar specification, for plausible and for absurd numbers, in every tiling.
//!
//! Without an adapter these tests say so and pass, unless `KVASIR_REQUIRE_GPU=1`. `KVASIR_GPU_CASES` asks for more.

mod floats;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use super::*;
use crate::kernel::cpu::tests::cases::{Random, RowMode, WeightMode, legal_row, row, weights};
use crate::kernel::gpu::compose::{Op, TileRows, Tiling};
use crate::kernel::numerics::expert::inner_row;
use crate::kernel::numerics::row_dot::Scaled;
use crate::kernel::numerics::{self, ExactMatrix, QuantisedRow, quantise_row};
use crate::kernel::{CpuKernel, CpuPath};
use crate::model::{BlockType, ExpertWeights, Matrix};
use crate::types::GateWeight;
use crate::wire::work::{Activations, Assignment, PartialValues, RowHead, RowStatus};

const EXACT: [BlockType; 5] = [BlockType::Q4_K, BlockType::Q5_K, BlockType::Q6_K, BlockType::Q8_0, BlockType::Q4_0];

fn options(checked: bool) -> GpuOptions {
    GpuOptions { allow_software: true, checked, ..GpuOptions::default() }
}

/// The adapter that all tests share.
fn gpu() -> Option<&'static Open> {
    static OPEN: OnceLock<Result<Arc<Open>, GpuError>> = OnceLock::new();
    match OPEN.get_or_init(|| Open::new(&options(false), Duration::ZERO)) {
        Ok(open) => Some(open),
        Err(error) if std::env::var_os("KVASIR_REQUIRE_GPU").is_some_and(|v| v == "1") => panic!("{error}"),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

/// How many times a test's usual number of cases.
fn cases(usual: u64) -> u64 {
    std::env::var("KVASIR_GPU_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(usual)
}

struct Layer(BTreeMap<u16, Arc<Expert>>);

impl ExpertSource for Layer {
    fn expert(&self, _layer: u16, expert: u16) -> Option<Arc<Expert>> {
        self.0.get(&expert).cloned()
    }
}

/// An expert as the specification reads it.
struct Spec {
    gate: ExactMatrix,
    up: ExactMatrix,
    down: ExactMatrix,
}

impl Spec {
    fn new(stored: &ExpertWeights) -> Self {
        let [gate, up, down] = [&stored.gate, &stored.up, &stored.down].map(|m| ExactMatrix::new(m).expect("finite"));
        Self { gate, up, down }
    }

    /// Outputs before weighting; `None` = poison.
    fn dots(&self, wire: &[u8]) -> Option<Vec<Scaled>> {
        let inner = inner_row(&self.gate, &self.up, &QuantisedRow::from_wire(wire));
        let inner = QuantisedRow::quantise(&inner).ok()?;
        Some((0..self.down.rows()).map(|r| numerics::row_dot(&self.down, r, &inner)).collect())
    }
}

/// A grid on which the dots are neither all zero nor all out of range, most of the time.
fn fitted_grid(dots: &[Scaled], gate: GateWeight, random: &mut Random) -> i8 {
    let bits = |dot: &Scaled| 32 - dot.value.unsigned_abs().leading_zeros() as i32 + dot.exponent;
    let largest = dots.iter().filter(|dot| dot.value != 0).map(bits).max().unwrap_or(0);
    let fitted = largest + i32::from(gate.exponent) + 16 - 27 + random.below(12) as i32 - 1;
    fitted.clamp(-128, 127) as i8
}

/// Experts, a request over them, and what the specification answers.
struct Case {
    stored: Vec<ExpertWeights>,
    request: Dispatch,
    status: Vec<RowStatus>,
    sums: Vec<i32>,
}

fn any_row(hidden: usize, random: &mut Random) -> Vec<u8> {
    let mode = random.below(RowMode::ALL.len() as u64 + 1) as usize;
    let mut wire = Vec::new();
    match RowMode::ALL.get(mode) {
        Some(mode) if quantise_row(&row(*mode, hidden, random), &mut wire).is_ok() => wire,
        _ => legal_row(hidden, random),
    }
}

fn any_gate(random: &mut Random) -> GateWeight {
    GateWeight { mantissa: 32768 + random.below(32768) as u16, exponent: random.below(40) as i8 - 30 }
}

/// `rows` rows over `experts` experts of type `outer` / `inner`.
fn case(
    [outer, inner]: [BlockType; 2],
    [hidden, intermediate]: [usize; 2],
    experts: u16,
    rows: usize,
    seed: u64,
) -> Case {
    let mut random = Random::new(seed);
    let mode = random.pick(&[WeightMode::Even, WeightMode::Even, WeightMode::Bytes, WeightMode::Extreme]);
    let mut matrix = |ty, rows, cols| weights(ty, mode, rows, cols, &mut random);
    let stored: Vec<ExpertWeights> = (0..experts)
        .map(|_| ExpertWeights {
            gate: matrix(outer, intermediate, hidden),
            up: matrix(outer, intermediate, hidden),
            down: matrix(inner, hidden, intermediate),
        })
        .collect();
    let specs: Vec<Spec> = stored.iter().map(Spec::new).collect();
    let (mut wire, mut heads, mut assignments) = (Vec::new(), Vec::new(), Vec::<Assignment>::new());
    let (mut status, mut sums) = (Vec::new(), Vec::new());
    for _ in 0..rows {
        let x = any_row(hidden, &mut random);
        let first = assignments.len();
        let own: Vec<u16> = (0..experts).filter(|_| random.below(3) > 0).collect();
        let mut grid = None;
        let (mut worst, mut sum) = (RowStatus::Ok, vec![0i32; hidden]);
        for expert in own {
            let gate = any_gate(&mut random);
            assignments.push(Assignment { expert, gate });
            let Some(dots) = specs[usize::from(expert)].dots(&x) else {
                worst = RowStatus::Poison;
                continue;
            };
            let grid = *grid.get_or_insert_with(|| fitted_grid(&dots, gate, &mut random));
            for (sum, dot) in sum.iter_mut().zip(dots) {
                match numerics::output(dot, gate, grid) {
                    Ok(value) => *sum = sum.wrapping_add(value),
                    Err(_) if worst == RowStatus::Ok => worst = RowStatus::Range,
                    Err(_) => {}
                }
            }
        }
        if worst != RowStatus::Ok {
            sum.fill(0);
        }
        let count = (assignments.len() - first) as u16;
        heads.push(RowHead { grid: grid.unwrap_or(0), count, first: first as u32 });
        wire.extend_from_slice(&x);
        status.push(worst);
        sums.extend(sum);
    }
    let activations = Activations::Exact(wire.into());
    let request = Dispatch { lease: 0, deadline_ms: 0, hidden, rows: heads, activations, assignments };
    Case { stored, request, status, sums }
}

fn placed(open: &Open, stored: &[ExpertWeights]) -> Layer {
    let place = |weights: &ExpertWeights| {
        let expert = Expert::new(weights).expect("shapes fit");
        Arc::new(open.place(&expert).expect("room"))
    };
    Layer((0..).zip(stored.iter().map(place)).collect())
}

/// Assignments compared.
fn compare(open: &Open, case: &Case, label: &str) -> usize {
    compare_with(open, &placed(open, &case.stored), case, label)
}

fn compare_with(open: &Open, layer: &Layer, case: &Case, label: &str) -> usize {
    let (replies, _) = open.compute(layer, 0, std::slice::from_ref(&case.request), false).expect("computed");
    assert_eq!(replies[0].status, case.status, "{label}");
    let PartialValues::Exact(sums) = &replies[0].values else { panic!("an exact reply") };
    if *sums != case.sums {
        let at = sums.iter().zip(&case.sums).position(|(a, b)| a != b).expect("a difference");
        panic!(
            "{label}: row {} column {}: {} instead of {}",
            at / case.request.hidden,
            at % case.request.hidden,
            sums[at],
            case.sums[at]
        );
    }
    case.request.assignments.len()
}

#[test]
fn every_type_gives_the_bytes_of_the_specification() {
    let Some(unchecked) = gpu() else { return };
    let checked = Open::new(&options(true), Duration::ZERO).expect("an adapter");
    for (t, ty) in EXACT.into_iter().enumerate() {
        let (mut compared, mut non_zero, mut rows) = (0, 0, 0);
        for seed in 0..cases(24) {
            let mut random = Random::new(seed ^ 0x5eed);
            let step = if ty.block().0 == 32 { 32 } else { 256 };
            let size = |random: &mut Random| step * (1 + random.below(1 + 768 / step as u64) as usize);
            let shape = [size(&mut random), size(&mut random)];
            // Every fourth case mixes types, as files do; gate and up share theirs.
            let inner = if seed % 4 == 3 && shape[1] % 256 == 0 { random.pick(&EXACT) } else { ty };
            let n = 1 + random.below(20) as usize;
            let case = case([ty, inner], shape, 1 + random.below(3) as u16, n, 1000 * seed + t as u64);
            let open = if seed % 3 == 2 { &checked } else { unchecked };
            compared += compare(open, &case, &format!("{ty:?}/{inner:?} {shape:?} seed {seed}"));
            non_zero += case.sums.chunks(shape[0]).filter(|row| row.iter().any(|v| *v != 0)).count();
            rows += n;
        }
        println!("{ty:?}: {compared} assignments equal, {non_zero} of {rows} rows with values");
        assert!(3 * non_zero > rows, "{ty:?}: too few rows have values to tell anything");
    }
}

/// Tilings that a tuner may choose; those whose lanes share a super-block need subgroups of at least eight lanes.
fn tilings(open: &Open) -> Vec<Tiling> {
    let lanes = open.device.raw.adapter_info().subgroup_min_size;
    let shared = open.device.features.contains(wgpu::Features::SUBGROUP) && lanes >= 8;
    let all =
        [(1, 4, false), (1, 32, false), (2, 8, false), (8, 4, false), (16, 1, false), (8, 4, true), (16, 2, true)];
    let all = all.into_iter().map(|(lanes, rows, shared_blocks)| Tiling { lanes, rows, shared_blocks });
    all.filter(|tiling| shared || !tiling.shared_blocks).collect()
}

#[test]
fn every_tiling_gives_the_same_bytes() {
    if gpu().is_none() {
        return;
    }
    let open = Open::new(&options(true), Duration::ZERO).expect("an adapter");
    for (t, ty) in EXACT.into_iter().enumerate() {
        let case = case([ty; 2], [512, 256], 2, 21, 7 + t as u64);
        for tiling in tilings(&open) {
            for tile in TileRows::ALL {
                for op in [Op::GateUp, Op::Down] {
                    let weights = Weights::of(ty).expect("exact");
                    open.pipelines.choose((op, weights, tile), tiling);
                }
            }
            compare(&open, &case, &format!("{ty:?} {tiling:?}"));
        }
    }
}

#[test]
fn large_experts_give_the_bytes_of_the_cpu_kernel() {
    let Some(open) = gpu() else { return };
    let cpu = CpuKernel::new(CpuPath::detect().expect("a path"), 2).expect("threads");
    for (t, ty) in EXACT.into_iter().enumerate() {
        let mut random = Random::new(t as u64);
        let mut matrix = |rows, cols| weights(ty, WeightMode::Even, rows, cols, &mut random);
        let stored: Vec<_> = (0..2)
            .map(|_| ExpertWeights { gate: matrix(1024, 3072), up: matrix(1024, 3072), down: matrix(3072, 1024) })
            .collect();
        let (mut wire, mut heads, mut assignments) = (Vec::new(), Vec::new(), Vec::new());
        for r in 0..16 {
            let x = row(RowMode::Outliers, 3072, &mut random);
            quantise_row(&x, &mut wire).expect("finite");
            heads.push(RowHead { grid: 0, count: 2, first: 2 * r });
            assignments.extend((0..2).map(|expert| Assignment { expert, gate: any_gate(&mut random) }));
        }
        let activations = Activations::Exact(wire.into());
        let mut request = Dispatch { lease: 0, deadline_ms: 0, hidden: 3072, rows: heads, activations, assignments };
        let host = (0..).zip(stored.iter().map(|weights| Arc::new(Expert::new(weights).expect("shapes fit"))));
        let host = Layer(host.collect());
        // The finest grid that holds every row.
        let expected = (-30..60).find_map(|grid| {
            request.rows.iter_mut().for_each(|row| row.grid = grid);
            let replies = cpu.compute(&host, 0, std::slice::from_ref(&request)).expect("computed");
            replies[0].status.iter().all(|status| *status == RowStatus::Ok).then_some(replies)
        });
        let expected = expected.expect("some grid holds them");
        let got = open.compute(&placed(open, &stored), 0, std::slice::from_ref(&request), false).expect("computed").0;
        assert!(got == expected, "{ty:?}");
        let PartialValues::Exact(sums) = &expected[0].values else { panic!("an exact reply") };
        assert!(sums.iter().filter(|v| **v != 0).count() > sums.len() / 4, "{ty:?}");
    }
}

#[test]
fn a_given_back_gpu_is_lost_until_it_is_opened_anew() {
    if gpu().is_none() {
        return;
    }
    let kernel = GpuKernel::open(&options(false)).expect("an adapter");
    let case = case([BlockType::Q8_0; 2], [64, 32], 1, 3, 5);
    let place = |kernel: &GpuKernel| {
        let expert = Expert::new(&case.stored[0]).expect("shapes fit");
        kernel.place(expert).map(|expert| Layer(BTreeMap::from([(0, Arc::new(expert))])))
    };
    let held = place(&kernel).expect("room");
    let request = std::slice::from_ref(&case.request);
    assert!(kernel.compute(&held, 0, request).is_ok());
    kernel.release();
    assert!(matches!(kernel.compute(&held, 0, request), Err(KernelError::Lost { .. })));
    assert!(matches!(place(&kernel), Err(KernelError::Lost { .. })));
    kernel.recover(Duration::ZERO).expect("the adapter is still there");
    // What was placed before is gone, and said to be.
    assert!(matches!(kernel.compute(&held, 0, request), Err(KernelError::Lost { .. })));
    let held = place(&kernel).expect("room");
    let replies = kernel.compute(&held, 0, request).expect("computed");
    assert_eq!(replies[0].status, case.status);
}

#[test]
fn memory_is_bounded_and_free_again_when_the_last_holder_lets_go() {
    if gpu().is_none() {
        return;
    }
    let stored = case([BlockType::Q4_0; 2], [256, 256], 1, 1, 9).stored.remove(0);
    let expert = || Expert::new(&stored).expect("shapes fit");
    let (key, bytes) = pack(&expert(), "a GPU").expect("exact");
    assert_eq!(bytes.len(), key.expert_bytes());
    let cap = 5 * bytes.len() as u64 + 17;
    let kernel = GpuKernel::open(&GpuOptions { memory_bytes: Some(cap), ..options(false) }).expect("an adapter");
    assert!(kernel.memory_bytes().expect("its own memory") <= cap);
    let mut held: Vec<Expert> = (0..5).map(|_| kernel.place(expert()).expect("room")).collect();
    assert!(matches!(kernel.place(expert()), Err(KernelError::Full { .. })));
    held.pop();
    held.push(kernel.place(expert()).expect("room again"));
    assert_eq!(kernel.now().store.taken(), 5 * bytes.len() as u64);
    drop(held);
    assert_eq!(kernel.now().store.taken(), 0);
}

#[test]
fn experts_of_types_that_no_kernel_reads_together_are_refused_by_name() {
    let matrix = |ty: BlockType| weights(ty, WeightMode::Even, 32, 32, &mut Random::new(1));
    let mixed =
        ExpertWeights { gate: matrix(BlockType::Q8_0), up: matrix(BlockType::Q4_0), down: matrix(BlockType::Q8_0) };
    let error = pack(&Expert::new(&mixed).expect("shapes fit"), "a GPU").expect_err("two types");
    let types = [BlockType::Q8_0, BlockType::Q4_0, BlockType::Q8_0];
    assert_eq!(error, KernelError::Types { device: "a GPU".to_owned(), types });
}

#[test]
fn an_expert_that_is_placed_while_another_computes_keeps_its_weights() {
    let Some(open) = gpu() else { return };
    let [one, two] = [31, 32].map(|seed| case([BlockType::Q8_0; 2], [64, 32], 1, 6, seed));
    for round in 0..cases(60) {
        // A new chunk, which nothing has read yet.
        let store = Store::new(Arc::clone(&open.device), Box::new(|_| u64::MAX));
        let place = |case: &Case| {
            let expert = Expert::new(&case.stored[0]).expect("shapes fit");
            Layer(BTreeMap::from([(0, Arc::new(open.place_in(&store, &expert).expect("room")))]))
        };
        let first = place(&one);
        let second = std::thread::scope(|scope| {
            scope.spawn(|| compare_with(open, &first, &one, "the expert that computes"));
            place(&two)
        });
        compare_with(open, &second, &two, &format!("round {round}: the expert that was placed meanwhile"));
    }
}

#[test]
fn two_threads_share_a_gpu_and_each_gets_its_own_bytes() {
    let Some(open) = gpu() else { return };
    let small: Vec<Case> = (0..12).map(|seed| case([BlockType::Q4_0; 2], [64, 32], 2, 2, seed)).collect();
    // Larger from case to case, so that buffers grow while the other thread's jobs are under way.
    let growing: Vec<Case> =
        (0..6).map(|n| case([BlockType::Q8_0; 2], [96 + 64 * n, 64], 2, 3 + 9 * n, 50 + n as u64)).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| small.iter().cycle().take(60).for_each(|case| _ = compare(open, case, "small")));
        scope.spawn(|| growing.iter().for_each(|case| _ = compare(open, case, "growing")));
    });
}
