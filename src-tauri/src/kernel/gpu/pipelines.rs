//! Compiled kernels of one device: the tiling chosen for each, compiled at first use and kept.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use super::GpuError;
use super::compose::{MatrixKernel, Op, TileRows, Tiling, Weights, quantise_source};
use super::device::Device;

/// Threads that compile at once.
const COMPILERS_MAX: usize = 8;

/// A group's layout and the pipeline layout around it.
pub(super) type Layout = (wgpu::BindGroupLayout, wgpu::PipelineLayout);

/// What each kernel binds, in the order of its shader.
pub(super) struct Layouts {
    pub exact_gate_up: Layout,
    pub exact_down: Layout,
    pub quantise: Layout,
    pub float_gate_up: Layout,
    pub float_down: Layout,
}

impl Layouts {
    fn new(device: &Device) -> Self {
        const PARAMETERS: Option<bool> = None;
        const READ: Option<bool> = Some(false);
        const WRITE: Option<bool> = Some(true);
        let layout = |label, bindings: &[_], tiles| device.layout(label, bindings, Some(tiles));
        Self {
            exact_gate_up: layout("gate_up", &[PARAMETERS, READ, READ, READ, READ, READ, WRITE, READ], 4),
            exact_down: layout("down", &[PARAMETERS, READ, READ, READ, READ, READ, WRITE], 4),
            quantise: layout("quantise", &[PARAMETERS, READ, READ, WRITE, WRITE, READ], 5),
            float_gate_up: layout("float gate_up", &[PARAMETERS, READ, READ, READ, READ, WRITE], 3),
            float_down: layout("float down", &[PARAMETERS, READ, READ, READ, WRITE], 3),
        }
    }

    fn of(&self, kernel: MatrixKernel) -> &wgpu::PipelineLayout {
        match (kernel.op, kernel.weights.is_exact()) {
            (Op::GateUp, true) => &self.exact_gate_up.1,
            (Op::Down, true) => &self.exact_down.1,
            (Op::GateUp, false) => &self.float_gate_up.1,
            (Op::Down, false) => &self.float_down.1,
        }
    }
}

/// A place for which a tiling is chosen.
pub(super) type Choice = (Op, Weights, TileRows);

/// Tiling of a place that nobody has tuned: right on every adapter, good on none in particular. Floats have as many
/// lanes in every tile, so that a row's sum does not depend on how many rows share its expert.
#[must_use]
pub(super) const fn untuned(weights: Weights, tile: TileRows) -> Tiling {
    let (lanes, rows) = match (weights.is_exact(), tile) {
        (true, TileRows::One) => (4, 16),
        (true, TileRows::Four) => (2, 32),
        (true, TileRows::Eight) => (1, 32),
        (true, TileRows::Sixteen) => (1, 16),
        (false, TileRows::One) => (4, 16),
        (false, TileRows::Four) => (4, 8),
        (false, TileRows::Eight) => (4, 4),
        (false, TileRows::Sixteen) => (4, 2),
    };
    Tiling { lanes, rows, shared_blocks: false }
}

/// See the module.
pub(super) struct Pipelines {
    device: Arc<Device>,
    pub layouts: Layouts,
    quantise: wgpu::ComputePipeline,
    chosen: Mutex<HashMap<Choice, Tiling>>,
    compiled: Mutex<HashMap<MatrixKernel, wgpu::ComputePipeline>>,
}

impl Pipelines {
    /// The kernels of `device`.
    ///
    /// # Errors
    /// The quantiser does not compile.
    pub fn new(device: Arc<Device>) -> Result<Self, GpuError> {
        let layouts = Layouts::new(&device);
        let quantise = device.pipeline("quantise", &quantise_source(), &layouts.quantise.1)?;
        Ok(Self { device, layouts, quantise, chosen: Mutex::default(), compiled: Mutex::default() })
    }

    /// The kernel of a place, with its tiling.
    pub fn kernel(&self, (op, weights, tile): Choice) -> MatrixKernel {
        let chosen = self.chosen.lock().unwrap_or_else(PoisonError::into_inner);
        let tiling = chosen.get(&(op, weights, tile)).copied().unwrap_or(untuned(weights, tile));
        MatrixKernel { op, weights, tile, tiling }
    }

    /// Chooses the tiling of a place.
    pub fn choose(&self, choice: Choice, tiling: Tiling) {
        self.chosen.lock().unwrap_or_else(PoisonError::into_inner).insert(choice, tiling);
    }

    /// The compiled kernel.
    ///
    /// # Errors
    /// It does not compile on this adapter.
    pub fn compiled(&self, kernel: MatrixKernel) -> Result<wgpu::ComputePipeline, GpuError> {
        let known = |all: &HashMap<MatrixKernel, wgpu::ComputePipeline>| all.get(&kernel).cloned();
        if let Some(pipeline) = known(&self.compiled.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(pipeline);
        }
        // Without the lock, so that several threads compile at once.
        let pipeline = self.device.pipeline(&kernel.to_string(), &kernel.source(), self.layouts.of(kernel))?;
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(compiled.entry(kernel).or_insert(pipeline).clone())
    }

    /// Compiles kernels on several threads; one that does not compile says so when it is used.
    pub fn compile_ahead(&self, kernels: &[MatrixKernel]) {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(COMPILERS_MAX);
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..threads.min(kernels.len()) {
                scope.spawn(|| {
                    while let Some(kernel) = kernels.get(next.fetch_add(1, Relaxed)) {
                        let _ = self.compiled(*kernel);
                    }
                });
            }
        });
    }

    /// The quantiser.
    pub fn quantise(&self) -> &wgpu::ComputePipeline {
        &self.quantise
    }
}
