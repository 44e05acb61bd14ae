//! Every engine returns the bytes of the specification, for realistic and for absurd numbers.

pub(crate) mod cases;

use proptest::prelude::*;

use super::engine::{Dots, Engine, Pass, ROWS_PER_PASS};
use super::portable::Portable;
use super::{CpuPath, CpuPathError};
#[cfg(target_arch = "x86_64")]
use super::{avx2::Avx2, avx512::Avx512};
use crate::kernel::numerics::row_dot::Scaled;
use crate::kernel::numerics::{self, ExactMatrix, QuantisedRow};
use crate::types::GateWeight;
use cases::{DotCase, Random, RowMode, row};

/// Dot `i`.
fn dot(dots: Dots<'_>, i: usize) -> Scaled {
    Scaled { value: dots.values[i], exponent: dots.base + i32::from(dots.exponents[i]) }
}

/// Runs a check that is generic over engines on every engine of this machine.
macro_rules! on_every_engine {
    ($check:ident, $case:expr) => {
        $check(Portable, $case);
        #[cfg(target_arch = "x86_64")]
        if let Some(engine) = Avx2::detect() {
            $check(engine, $case);
        }
        #[cfg(target_arch = "x86_64")]
        if let Some(engine) = Avx512::detect() {
            $check(engine, $case);
        }
    };
}

fn dots_are_exact<E: Engine>(engine: E, case: &DotCase) {
    let weights = ExactMatrix::new(&case.weights()).expect("finite scales");
    let wires = case.wires();
    let rows = case.range();
    let prepared: Vec<E::Row> = wires.iter().map(|wire| engine.row(case.ty, wire)).collect();
    let mut got = vec![0x5555; wires.len() * rows.len()];
    let pass = Pass { weights: &weights, rows: rows.clone(), next: weights.bytes() };
    engine.dots(&pass, &prepared.iter().collect::<Vec<_>>(), &mut got);
    for (x, wire) in wires.iter().enumerate() {
        let quantised = QuantisedRow::from_wire(wire);
        let values = &got[x * rows.len()..(x + 1) * rows.len()];
        let base = Dots::base(E::top(&prepared[x]), case.ty);
        let dots = Dots { values, exponents: &weights.exponents()[rows.clone()], base };
        for (i, r) in rows.clone().enumerate() {
            let expected = numerics::row_dot(&weights, r, &quantised);
            if expected == Scaled::default() {
                assert_eq!(dots.values[i], 0, "{case:?} row {r}");
            } else {
                assert_eq!(dot(dots, i), expected, "{case:?} row {r}");
            }
        }
    }
}

fn swiglu_is_exact<E: Engine>(engine: E, seed: u64) {
    let mut random = Random::new(seed);
    let n = random.below(100) as usize;
    let mut side = || {
        let values: Vec<i32> = (0..n).map(|_| random.any_magnitude()).collect();
        let exponents: Vec<i8> = (0..n).map(|_| random.below(30) as i8 - 24).collect();
        (values, exponents, random.below(300) as i32 - 180)
    };
    let (gate, up) = (side(), side());
    let gate = Dots { values: &gate.0, exponents: &gate.1, base: gate.2 };
    let up = Dots { values: &up.0, exponents: &up.1, base: up.2 };
    let mut got = vec![0.0; n];
    engine.swiglu(gate, up, &mut got);
    for (i, got) in got.iter().enumerate() {
        let expected = numerics::swiglu(dot(gate, i), dot(up, i));
        assert_eq!(got.to_bits(), expected.to_bits(), "{:?} {:?}", dot(gate, i), dot(up, i));
    }
}

fn outputs_are_exact<E: Engine>(engine: E, seed: u64) {
    let mut random = Random::new(seed);
    let n = random.below(100) as usize;
    let values: Vec<i32> = (0..n).map(|_| random.any_magnitude()).collect();
    let exponents: Vec<i8> = (0..n).map(|_| random.below(6) as i8 - 3).collect();
    let dots = Dots { values: &values, exponents: &exponents, base: random.below(200) as i32 - 100 };
    let gate = GateWeight { mantissa: 32768 + random.below(32768) as u16, exponent: random.below(256) as u8 as i8 };
    let shift = random.below(70) as i32 - 4;
    let grid = (dots.base + i32::from(gate.exponent) + shift).clamp(-128, 127) as i8;
    let expected: Result<Vec<i32>, _> = (0..n).map(|i| numerics::output(dot(dots, i), gate, grid)).collect();
    let mut sums = vec![1; n];
    let got = engine.add_outputs(dots, gate, grid, &mut sums);
    match expected {
        Err(e) => assert_eq!(got, Err(e)),
        Ok(expected) => {
            assert_eq!(got, Ok(()));
            assert!(sums.iter().zip(&expected).all(|(got, e)| *got == e + 1), "{sums:?} {expected:?}");
        }
    }
}

fn quantising_is_exact<E: Engine>(engine: E, (mode, len, seed): (RowMode, usize, u64)) {
    let x = row(mode, len, &mut Random::new(seed));
    let (mut expected, mut got) = (vec![9], vec![9]);
    assert_eq!(engine.quantise(&x, &mut got), numerics::quantise_row(&x, &mut expected));
    assert_eq!(got, expected, "{mode:?} {len} {seed}");
}

#[test]
fn every_supported_path_can_be_named() {
    for path in CpuPath::supported() {
        assert_eq!(CpuPath::named(path.name()), Ok(path));
    }
}

#[test]
fn an_unknown_path_is_refused_by_name() {
    assert_eq!(CpuPath::named("sse9"), Err(CpuPathError::Unknown { got: "sse9".into() }));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn dots_equal_the_specification(case in cases::dot_case(ROWS_PER_PASS)) {
        on_every_engine!(dots_are_exact, &case);
    }

    #[test]
    fn swiglu_equals_the_specification(seed: u64) {
        on_every_engine!(swiglu_is_exact, seed);
    }

    #[test]
    fn outputs_equal_the_specification(seed: u64) {
        on_every_engine!(outputs_are_exact, seed);
    }

    #[test]
    fn quantised_rows_equal_the_specification(
        mode in prop::sample::select(&RowMode::ALL[..]),
        len in prop::sample::select(&[0usize, 1, 32, 96, 255, 256, 288, 512, 1024, 3072][..]),
        seed: u64,
    ) {
        on_every_engine!(quantising_is_exact, (mode, len, seed));
    }
}
