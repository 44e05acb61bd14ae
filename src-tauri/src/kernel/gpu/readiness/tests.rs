//! Kernels are tested before they serve, and what is wrong is dropped and named.

use super::*;
use crate::kernel::experts::{Expert, ExpertCompute};
use crate::kernel::gpu::tests::adapter_for_tests;
use crate::kernel::gpu::vectors;
use crate::kernel::gpu::{GpuKernel, GpuOptions};

fn options(cache: Option<PathBuf>) -> GpuOptions {
    GpuOptions { allow_software: true, cache, ..GpuOptions::default() }
}

fn expert(weights: Weights) -> Expert {
    vectors::experts(weights).expect("exact").remove(0)
}

#[test]
fn kernels_are_tested_and_tuned_once_and_then_come_from_the_cache() {
    if adapter_for_tests().is_none() {
        return;
    }
    let cache = tempfile::tempdir().expect("a directory");
    let place = || {
        let kernel = GpuKernel::open(&options(Some(cache.path().to_path_buf()))).expect("an adapter");
        kernel.place(expert(Weights::Q40)).expect("ready");
        kernel.now().readiness.variants()
    };
    let first = place();
    let chosen = first.iter().filter(|v| v.chosen).count();
    assert_eq!(chosen, 2 * TileRows::ALL.len(), "{first:#?}");
    assert!(first.iter().all(|v| v.fault.is_none()), "{first:#?}");
    assert!(first.iter().any(|v| v.request_us.is_some_and(|us| us > 0.0)), "{first:#?}");
    let again = place();
    assert!(again.iter().all(|v| v.request_us.is_none()), "{again:#?}");
    let names = |all: &[Variant]| {
        let mut names: Vec<String> = all.iter().filter(|v| v.chosen).map(|v| v.kernel.clone()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&first), names(&again));
}

#[test]
fn a_tiling_from_a_file_that_tuning_would_not_give_is_not_taken() {
    let Some(found) = adapter_for_tests() else { return };
    let open = Open::on(found, &options(None)).expect("a device");
    let weights = Weights::Q80;
    let key = ClassKey { outer: weights, inner: weights, hidden: 512, intermediate: 512 };
    let mut state = State::default();
    let trial = Trial { readiness: &open.readiness, open: &open, key, weights, state: &mut state };
    let (op, tile) = (Op::GateUp, TileRows::One);
    let fits = |lanes, rows, shared_blocks| {
        let tiling = Tiling { lanes, rows, shared_blocks };
        trial.fits(&Tuned { op, weights, tile, sizes: [512, 512], tiling }, op, tile)
    };
    let Tiling { lanes, rows, shared_blocks } = untuned(weights, tile);
    assert!(fits(lanes, rows, shared_blocks));
    // Lanes that share super-blocks by eight cannot be four: such a loop would never end.
    assert!(!fits(4, 16, true) && !fits(3, 16, false) && !fits(0, 16, false) && !fits(1 << 31, 1 << 31, false));
}

#[test]
fn a_kernel_that_does_not_compile_or_computes_wrongly_is_dropped_and_named() {
    let Some(found) = adapter_for_tests() else { return };
    let open = Open::on(found, &options(None)).expect("a device");
    let weights = Weights::Q80;
    let [hidden, intermediate] = vectors::sizes(weights);
    let key = ClassKey { outer: weights, inner: weights, hidden, intermediate };
    let test = SelfTest::new(&open, weights).expect("room");
    let mut state = State::default();
    let mut trial = Trial { readiness: &open.readiness, open: &open, key, weights, state: &mut state };
    trial.find_base(&test, TileRows::One, &[Op::GateUp, Op::Down]).expect("a base");
    // Of three lanes one is left out when they add up; none are no workgroup at all.
    for lanes in [3, 0] {
        let tiling = Tiling { lanes, rows: 4, shared_blocks: false };
        assert!(!trial.take(&test, Op::GateUp, TileRows::One, tiling).expect("the device is there"), "{lanes} lanes");
        let kernel = trial.kernel(Op::GateUp, TileRows::One, tiling).to_string();
        let variant = trial.state.variants.iter().find(|(_, v)| v.kernel == kernel).map(|(_, v)| v.clone());
        assert!(variant.is_some_and(|v| v.fault.is_some() && !v.chosen), "{kernel}");
        let chosen = open.pipelines.kernel((Op::GateUp, weights, TileRows::One)).tiling;
        assert_eq!(chosen, untuned(weights, TileRows::One));
    }
    test.check(TileRows::One).expect("the base still passes");
}

#[test]
fn kernels_for_floats_are_compared_with_the_cpu() {
    let Some(found) = adapter_for_tests() else { return };
    let open = Open::on(found, &options(None)).expect("a device");
    for weights in [Weights::F32, Weights::F16, Weights::Bf16] {
        let key = ClassKey { outer: weights, inner: weights, hidden: 64, intermediate: 32 };
        assert_eq!(open.readiness.prepare(&open, key), Ok(()), "{weights}");
    }
    assert_eq!(open.readiness.variants().iter().filter(|v| v.chosen).count(), 3 * 2 * TileRows::ALL.len());
}

#[test]
fn a_type_is_refused_when_no_kernel_is_right_and_others_are_not() {
    let Some(found) = adapter_for_tests() else { return };
    let open = Open::on(found, &options(None)).expect("a device");
    let key = |weights| ClassKey { outer: weights, inner: weights, hidden: 256, intermediate: 256 };
    let refused = (Weights::Q4K, "a test".to_string());
    open.readiness.state.lock().expect("no panic").refused.push(refused);
    assert!(matches!(open.readiness.prepare(&open, key(Weights::Q4K)), Err(KernelError::Wrong { .. })));
    assert_eq!(open.readiness.prepare(&open, key(Weights::Q80)), Ok(()));
}
