//! A request on the CPU: group rows by expert, run gate and up, re-quantise, run down, add on each row's grid.
//!
//! Experts go in waves that bound what is kept between gate and down; `pieces` cuts a wave's work for the threads.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use super::engine::{Engine, OnEngine};
use super::pieces::{Columns, Inner, Inputs};
use super::portable::Portable;
use super::{CpuPath, CpuPathError};
#[cfg(target_arch = "x86_64")]
use super::{avx2::Avx2, avx512::Avx512};
use crate::kernel::batch::{self, ExactBatch, Group};
use crate::kernel::crew::Crew;
use crate::kernel::experts::{ExactExpert, ExpertCompute, ExpertSource, KernelError};
use crate::kernel::float_form;
use crate::wire::work::{Dispatch, Partials, RowStatus};

/// Assignments of a wave: their inner rows (4 KiB each at width 1024) stay in a shared cache.
const WAVE_ASSIGNMENTS: usize = 1024;

/// A batch whose experts are in host memory.
pub(super) type CpuBatch<'a> = ExactBatch<'a, Arc<ExactExpert>>;
/// One of its experts and the rows that need it.
pub(super) type CpuGroup = Group<Arc<ExactExpert>>;

/// Computes experts on the CPU.
#[derive(Debug)]
pub struct CpuKernel {
    path: CpuPath,
    engine: AnyEngine,
    crew: Crew,
}

impl CpuKernel {
    /// A kernel on `path` with `threads` threads, the calling one included (at least one).
    ///
    /// # Errors
    /// This CPU does not support the path, or the threads cannot be had.
    pub fn new(path: CpuPath, threads: usize) -> Result<Self, CpuPathError> {
        let engine = AnyEngine::new(path).ok_or_else(|| path.unsupported())?;
        let crew = Crew::new(threads).map_err(|e| CpuPathError::Threads { threads, reason: e.reason })?;
        Ok(Self { path, engine, crew })
    }

    /// The instructions it uses.
    #[must_use]
    pub fn path(&self) -> CpuPath {
        self.path
    }
}

impl ExpertCompute for CpuKernel {
    fn compute(
        &self,
        experts: &dyn ExpertSource,
        layer: u16,
        parts: &[Dispatch],
    ) -> Result<Vec<Partials>, KernelError> {
        if parts.first().is_some_and(Dispatch::is_float) {
            return float_form::compute(experts, layer, parts);
        }
        let batch = ExactBatch::new(experts, layer, parts, |id, expert| {
            let here = expert.exact().cloned();
            here.ok_or_else(|| KernelError::NotPlaced { expert: id, device: self.device() })
        })?;
        let (sums, status) = self.engine.run(Run { crew: self.crew, batch: &batch });
        Ok(batch::into_parts(parts, &status, sums, batch.hidden))
    }

    fn device(&self) -> String {
        format!("cpu ({}, {} threads)", self.path, self.crew.threads())
    }
}

/// The engine of a path that this machine supports.
#[derive(Clone, Copy, Debug)]
pub(super) enum AnyEngine {
    Portable(Portable),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

impl AnyEngine {
    pub fn new(path: CpuPath) -> Option<Self> {
        match path {
            CpuPath::Portable => Some(Self::Portable(Portable)),
            #[cfg(target_arch = "x86_64")]
            CpuPath::Avx2 => Avx2::detect().map(Self::Avx2),
            #[cfg(target_arch = "x86_64")]
            CpuPath::Avx512 => Avx512::detect().map(Self::Avx512),
            #[cfg(not(target_arch = "x86_64"))]
            CpuPath::Avx2 | CpuPath::Avx512 => None,
        }
    }

    /// Runs `job` with its instructions.
    pub fn run<J: OnEngine>(self, job: J) -> J::Out {
        match self {
            Self::Portable(engine) => job.on(engine),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(engine) => job.on(engine),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(engine) => job.on(engine),
        }
    }
}

/// Runs `job` with the instructions of [`CpuPath::detect`]; with plain Rust where that is refused, because the bits
/// are the same.
pub(in crate::kernel) fn on_the_best_engine<J: OnEngine>(job: J) -> J::Out {
    static BEST: OnceLock<AnyEngine> = OnceLock::new();
    let best = || CpuPath::detect().ok().and_then(AnyEngine::new).unwrap_or(AnyEngine::Portable(Portable));
    BEST.get_or_init(best).run(job)
}

/// How the batch's rows went so far; a worse status stays.
struct Statuses(Vec<AtomicU8>);

impl Statuses {
    fn raise(&self, row: usize, status: RowStatus) {
        self.0[row].fetch_max(status as u8, Ordering::Relaxed);
    }

    fn finish(self) -> Vec<RowStatus> {
        let read = |s: AtomicU8| match s.into_inner() {
            0 => RowStatus::Ok,
            1 => RowStatus::Range,
            _ => RowStatus::Poison,
        };
        self.0.into_iter().map(read).collect()
    }
}

/// Runs `job` with the instructions of `path`, which this machine must support.
#[cfg(test)]
pub(in crate::kernel) fn on_path<J: OnEngine>(path: CpuPath, job: J) -> J::Out {
    AnyEngine::new(path).expect("a supported path").run(job)
}

/// A batch and the threads for it.
struct Run<'a> {
    crew: Crew,
    batch: &'a CpuBatch<'a>,
}

impl OnEngine for Run<'_> {
    /// Sums (`rows × hidden`, meaningless where the status is not `Ok`) and statuses.
    type Out = (Vec<i32>, Vec<RowStatus>);

    fn on<E: Engine>(self, engine: E) -> Self::Out {
        run(engine, self.crew, self.batch)
    }
}

fn run<E: Engine>(engine: E, crew: Crew, batch: &CpuBatch<'_>) -> (Vec<i32>, Vec<RowStatus>) {
    let statuses = Statuses(batch.rows.iter().map(|_| AtomicU8::new(0)).collect());
    let inputs = Inputs::new(engine, crew, batch);
    let mut sums = Columns::new(crew, batch);
    let mut rest = batch.groups.as_slice();
    while !rest.is_empty() {
        let mut assignments = 0;
        let fits = |group: &&CpuGroup| {
            assignments += group.slots.len();
            assignments <= WAVE_ASSIGNMENTS
        };
        let (wave, later) = rest.split_at(rest.iter().take_while(fits).count().max(1));
        let inner = Inner::new(engine, crew, wave, &inputs);
        let rows = inner.quantise(engine, crew, |slot| statuses.raise(slot.row, RowStatus::Poison));
        sums.add_down(engine, crew, batch, wave, &rows, |slot| statuses.raise(slot.row, RowStatus::Range));
        rest = later;
    }
    (sums.into_rows(), statuses.finish())
}
