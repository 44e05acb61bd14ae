//! Makes an opened adapter ready for a class of experts: kernels that passed the self-test, in their fastest tiling.
//!
//! It happens when the first expert of a type is placed, before any request can need it. Tilings come from the cache or
//! from tuning; a tiling that fails known work is dropped and named, and when none is right the type is refused.
//! **Invariant:** no request runs through a kernel that has not passed in this process.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::cache::{self, Key, Tuned};
use super::compose::{MatrixKernel, Op, TileRows, Tiling, Weights};
use super::kernel::Open;
use super::layout::ClassKey;
use super::pipelines::untuned;
use super::selftest::{Fault, SelfTest};
use super::tune::{Bounds, Course, Effort, candidates};
use super::{GpuError, adapters::Found, subgroups::Subgroups};
use crate::kernel::experts::KernelError;

/// A kernel in one tiling, and what became of it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Variant {
    /// Operation, weights, rows of a tile and tiling.
    pub kernel: String,
    /// Microseconds of the timed request, gate, up and down together; `None` when it was not timed.
    pub request_us: Option<f64>,
    /// Whether requests run through it.
    pub chosen: bool,
    /// Why it was dropped.
    pub fault: Option<String>,
}

/// See the module.
pub(super) struct Readiness {
    key: Key,
    cache: Option<PathBuf>,
    effort: Effort,
    shared_blocks: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    ready: BTreeSet<(Op, Weights)>,
    refused: Vec<(Weights, String)>,
    variants: Vec<(MatrixKernel, Variant)>,
}

impl Readiness {
    /// Nothing is ready yet.
    pub fn new(found: &Found, subgroups: Option<Subgroups>, cache: Option<PathBuf>) -> Self {
        let is_software = found.is_software();
        Self {
            key: Key::new(found),
            cache,
            effort: if is_software { Effort::SMALL } else { Effort::FULL },
            shared_blocks: subgroups.is_some_and(|s| s.eight_lanes_ok),
            state: Mutex::default(),
        }
    }

    /// How thoroughly the adapter is tuned.
    pub fn effort(&self) -> Effort {
        self.effort
    }

    /// Every tiling that was tried, by type, operation and size of tile.
    pub fn variants(&self) -> Vec<Variant> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = state.variants.iter().collect();
        all.sort_by_key(|(kernel, _)| (kernel.weights, kernel.op, kernel.tile));
        all.into_iter().map(|(_, variant)| variant.clone()).collect()
    }

    /// Makes the kernels of class `key` ready; blocks for the time of a self-test, the first time for a few seconds.
    ///
    /// # Errors
    /// [`KernelError::Wrong`] when no tiling is right, or the device is lost.
    pub fn prepare(&self, open: &Open, key: ClassKey) -> Result<(), KernelError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let places = [(Op::GateUp, key.outer), (Op::Down, key.inner)];
        let missing: Vec<_> = places.into_iter().filter(|place| !state.ready.contains(place)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let types: BTreeSet<Weights> = missing.iter().map(|(_, weights)| *weights).collect();
        for weights in types {
            if let Some((_, reason)) = state.refused.iter().find(|(refused, _)| *refused == weights) {
                return Err(KernelError::Wrong { device: open.device.name.clone(), reason: reason.clone() });
            }
            let ops: Vec<Op> = missing.iter().filter(|(_, w)| *w == weights).map(|(op, _)| *op).collect();
            let mut trial = Trial { readiness: self, open, key, weights, state: &mut state };
            match trial.run(&ops) {
                Ok(()) => state.ready.extend(ops.into_iter().map(|op| (op, weights))),
                Err(Fault::Device(error)) => return Err(error),
                Err(Fault::Wrong(reason)) => {
                    let (adapter, variant) = (open.device.name.clone(), format!("the kernels for {weights}"));
                    let error = GpuError::SelfTest { adapter, variant, reason };
                    tracing::error!("{error}");
                    state.refused.push((weights, error.to_string()));
                    return Err(KernelError::Wrong { device: open.device.name.clone(), reason: error.to_string() });
                }
            }
        }
        Ok(())
    }
}

/// The search for one type's kernels.
struct Trial<'a> {
    readiness: &'a Readiness,
    open: &'a Open,
    key: ClassKey,
    weights: Weights,
    state: &'a mut State,
}

impl<'a> Trial<'a> {
    fn run(&mut self, ops: &[Op]) -> Result<(), Fault> {
        let start = Instant::now();
        let test = SelfTest::new(self.open, self.weights).map_err(Fault::Device)?;
        let bases: Vec<_> = TileRows::ALL
            .iter()
            .flat_map(|tile| [Op::GateUp, Op::Down].map(|op| self.kernel(op, *tile, untuned(self.weights, *tile))))
            .collect();
        self.open.pipelines.compile_ahead(&bases);
        for tile in TileRows::ALL {
            self.find_base(&test, tile, ops)?;
        }
        let cached = self.readiness.cache.as_ref().map(|dir| cache::load(dir, &self.readiness.key)).unwrap_or_default();
        let mut fresh = Vec::new();
        let mut course = None;
        // Floats are for tests and small models: right is enough.
        let tiles = if self.weights.is_exact() { self.readiness.effort.tiles } else { &[] };
        for tile in tiles.iter().copied() {
            for op in ops {
                match cached.iter().find(|tuned| self.fits(tuned, *op, tile)) {
                    Some(tuned) => _ = self.take(&test, *op, tile, tuned.tiling)?,
                    None => fresh.extend(self.tune(&test, &mut course, *op, tile, start)?),
                }
            }
        }
        if let Some(dir) = self.readiness.cache.as_ref().filter(|_| !fresh.is_empty()) {
            cache::save(dir, &self.readiness.key, &fresh);
        }
        let ms = start.elapsed().as_millis();
        tracing::info!(device = %self.open.device.name, weights = %self.weights, ms, "GPU kernels passed the self-test");
        Ok(())
    }

    fn sizes(&self) -> [usize; 2] {
        [self.key.hidden, self.key.intermediate]
    }

    /// Whether a result from a file is one that tuning could give here: nothing else may become a shader.
    fn fits(&self, tuned: &Tuned, op: Op, tile: TileRows) -> bool {
        let place = (tuned.op, tuned.weights, tuned.tile, tuned.sizes);
        let mut known = candidates(op, self.weights, tile, self.bounds(op), usize::MAX);
        known.push(untuned(self.weights, tile));
        place == (op, self.weights, tile, self.sizes()) && known.contains(&tuned.tiling)
    }

    fn bounds(&self, op: Op) -> Bounds {
        let [outer, inner] = self.key.blocks();
        Bounds {
            blocks: if op == Op::GateUp { outer } else { inner },
            shared_blocks: self.readiness.shared_blocks && self.weights.is_exact(),
            threads_max: self.open.device.limits.max_compute_invocations_per_workgroup,
        }
    }

    fn kernel(&self, op: Op, tile: TileRows, tiling: Tiling) -> MatrixKernel {
        MatrixKernel { op, weights: self.weights, tile, tiling }
    }

    /// Chooses a tiling for both kernels of `tile` that passes: the untuned one, or else any other.
    fn find_base(&mut self, test: &SelfTest<'_>, tile: TileRows, ops: &[Op]) -> Result<(), Fault> {
        let others = candidates(Op::Down, self.weights, tile, self.bounds(Op::Down), usize::MAX);
        let mut first = None;
        for tiling in std::iter::once(untuned(self.weights, tile)).chain(others) {
            // A kernel that already serves requests stays as it is.
            for op in ops {
                self.open.pipelines.choose((*op, self.weights, tile), tiling);
            }
            let fault = match test.check(tile) {
                Ok(()) => None,
                Err(Fault::Wrong(reason)) => Some(reason),
                Err(fault) => return Err(fault),
            };
            for op in ops {
                self.note(self.kernel(*op, tile, tiling), None, fault.clone());
            }
            match fault {
                None => {
                    ops.iter().for_each(|op| self.settle(*op, tile, tiling));
                    return Ok(());
                }
                Some(reason) => _ = first.get_or_insert(reason),
            }
        }
        Err(Fault::Wrong(first.unwrap_or_default()))
    }

    /// Chooses `tiling` if it passes; otherwise the tiling before stays. Whether it passed.
    fn take(&mut self, test: &SelfTest<'_>, op: Op, tile: TileRows, tiling: Tiling) -> Result<bool, Fault> {
        let place = (op, self.weights, tile);
        let before = self.open.pipelines.kernel(place).tiling;
        self.open.pipelines.choose(place, tiling);
        let fault = match test.check(tile) {
            Ok(()) => None,
            Err(Fault::Wrong(reason)) => Some(reason),
            Err(fault) => return Err(fault),
        };
        let passed = fault.is_none();
        if !passed {
            self.open.pipelines.choose(place, before);
        }
        self.note(self.kernel(op, tile, tiling), None, fault);
        if passed {
            self.settle(op, tile, tiling);
        }
        Ok(passed)
    }

    /// Times the candidates that pass and chooses the fastest; `None` when there is no room to time anything.
    fn tune(
        &mut self,
        test: &SelfTest<'_>,
        course: &mut Option<Course<'a>>,
        op: Op,
        tile: TileRows,
        start: Instant,
    ) -> Result<Option<Tuned>, Fault> {
        let effort = self.readiness.effort;
        if course.is_none() {
            match Course::new(self.open, self.key, effort) {
                Ok(new) => *course = Some(new),
                Err(KernelError::Full { .. }) => tracing::info!("no room for tuning: GPU kernels stay as they are"),
                Err(error) => return Err(Fault::Device(error)),
            }
        }
        let Some(course) = course else { return Ok(None) };
        let place = (op, self.weights, tile);
        let base = self.open.pipelines.kernel(place).tiling;
        let mut best = (self.time(course, self.kernel(op, tile, base))?, base);
        let tilings = candidates(op, self.weights, tile, self.bounds(op), effort.candidates);
        let kernels: Vec<_> = tilings.iter().map(|tiling| self.kernel(op, tile, *tiling)).collect();
        self.open.pipelines.compile_ahead(&kernels);
        for tiling in tilings {
            if start.elapsed() > effort.limit {
                tracing::debug!(?op, weights = %self.weights, "no time for more candidates");
                break;
            }
            if tiling != base && self.take(test, op, tile, tiling)? {
                let time = self.time(course, self.kernel(op, tile, tiling))?;
                best = best.min((time, tiling));
            }
        }
        let tiling = best.1;
        self.open.pipelines.choose(place, tiling);
        self.settle(op, tile, tiling);
        Ok(Some(Tuned { op, weights: self.weights, tile, sizes: self.sizes(), tiling }))
    }

    /// Times a request through the kernels that are chosen now, among them `kernel`.
    fn time(&mut self, course: &Course<'_>, kernel: MatrixKernel) -> Result<Duration, Fault> {
        let time = course.time(kernel.tile).map_err(Fault::Device)?;
        self.note(kernel, Some(time.as_secs_f64() * 1e6), None);
        Ok(time)
    }

    fn note(&mut self, kernel: MatrixKernel, request_us: Option<f64>, fault: Option<String>) {
        if let Some(reason) = &fault {
            tracing::warn!(device = %self.open.device.name, %kernel, reason, "a GPU kernel failed the self-test and is dropped");
        }
        let known = self.state.variants.iter_mut().find(|(known, _)| *known == kernel);
        match known {
            Some((_, variant)) => {
                variant.request_us = request_us.or(variant.request_us);
                variant.fault = fault.or(variant.fault.take());
            }
            None => {
                let variant = Variant { kernel: kernel.to_string(), request_us, chosen: false, fault };
                self.state.variants.push((kernel, variant));
            }
        }
    }

    /// Notes that `tiling` is the one that requests run through.
    fn settle(&mut self, op: Op, tile: TileRows, tiling: Tiling) {
        for (kernel, variant) in &mut self.state.variants {
            if (kernel.op, kernel.weights, kernel.tile) == (op, self.weights, tile) {
                variant.chosen = kernel.tiling == tiling;
            }
        }
    }
}

#[cfg(test)]
mod tests;
