//! Speed of experts at a real geometry, beside a plain read of the same memory, for people who tune and compare.
//!
//! Every row is routed afresh over more experts than any cache holds, as decoding does, and every figure is the median
//! of rounds; on the CPU all paths and the plain read take turns in them, so that a busy neighbour slows all of them
//! alike.

mod dense;
#[cfg(feature = "gpu")]
mod gpu;
mod workload;

use std::fmt;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::crew::{Crew, NoThreads};
use super::{CpuKernel, CpuPath, CpuPathError, ExpertCompute, KernelError};
use crate::model::BlockType;
pub use dense::{DenseBench, DenseLine, DenseOptions, measure_dense};
#[cfg(feature = "gpu")]
pub use gpu::measure_gpu;
pub use workload::Workload;

/// A figure whose rounds take longer than this in all gets fewer of them.
const PATIENCE: Duration = Duration::from_secs(5);

/// What to measure.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// Elements of a hidden state.
    pub hidden: usize,
    /// Inner width of an expert.
    pub intermediate: usize,
    /// Experts in memory; a GPU takes as many as make a gigabyte instead, where it has the room.
    pub experts: usize,
    /// Experts per row.
    pub experts_per_row: usize,
    /// Types of all three matrices, one table per entry.
    pub types: Vec<BlockType>,
    /// Rows of a request, one line per entry.
    pub rows: Vec<usize>,
    /// Threads of the CPU, one line per entry.
    pub threads: Vec<usize>,
    /// CPU paths, one line per entry.
    pub paths: Vec<CpuPath>,
    /// Most rounds; the median is reported.
    pub rounds: usize,
}

impl Default for BenchOptions {
    /// The geometry of Qwen3.5-122B, on every CPU path.
    fn default() -> Self {
        Self {
            hidden: 3072,
            intermediate: 1024,
            experts: 256,
            experts_per_row: 8,
            types: vec![BlockType::Q4_K, BlockType::Q6_K, BlockType::Q8_0],
            rows: vec![1, 8, 32, 64, 128, 512],
            threads: vec![std::thread::available_parallelism().map_or(1, std::num::NonZero::get)],
            paths: CpuPath::supported(),
            rounds: 25,
        }
    }
}

/// Figures of one run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExpertsBench {
    /// What computed.
    pub device: String,
    /// Elements of a hidden state.
    pub hidden: usize,
    /// Inner width of an expert.
    pub intermediate: usize,
    /// Experts per row.
    pub experts_per_row: usize,
    /// One line per type, rows, threads and path.
    pub lines: Vec<ExpertsLine>,
}

/// Figures at one setting.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExpertsLine {
    /// Type of the weights.
    pub weights: String,
    /// Experts that the requests walk through.
    pub experts: usize,
    /// Rows of the request.
    pub rows: usize,
    /// Threads of the CPU.
    pub threads: Option<usize>,
    /// CPU path, or `gpu`.
    pub path: String,
    /// Rounds that were measured.
    pub rounds: usize,
    /// Median milliseconds of a request, from asking to the partials in host memory.
    pub ms: f64,
    /// Fastest request, milliseconds.
    pub ms_min: f64,
    /// Median milliseconds of it that the kernels take by the device's own clock, if it has one.
    pub kernel_ms: Option<f64>,
    /// 10⁹ bytes of weights per second of the kernels.
    pub gb_per_s: f64,
    /// The same for a plain read of the same memory: by the same threads, or by the GPU.
    pub read_gb_per_s: f64,
    /// Assignments per second of whole requests.
    pub assignments_per_s: f64,
}

/// Why nothing could be measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A path or its threads.
    #[error(transparent)]
    Path(#[from] CpuPathError),
    /// A request.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// Threads of the plain read.
    #[error(transparent)]
    Threads(#[from] NoThreads),
    /// The GPU.
    #[cfg(feature = "gpu")]
    #[error(transparent)]
    Gpu(#[from] super::gpu::GpuError),
}

/// Measures CPU paths of this machine.
///
/// # Errors
/// Threads cannot be had, or the shapes are outside the numerics.
pub fn measure_cpu(options: &BenchOptions) -> Result<ExpertsBench, BenchError> {
    let mut lines = Vec::new();
    for ty in &options.types {
        let mut workload = Workload::new(*ty, options, &CpuKernel::new(CpuPath::Portable, 1)?)?;
        for rows in &options.rows {
            for threads in &options.threads {
                lines.extend(measure_paths(&mut workload, *rows, *threads, options)?);
            }
        }
    }
    Ok(options.report("cpu".to_owned(), lines))
}

fn measure_paths(
    workload: &mut Workload,
    rows: usize,
    threads: usize,
    options: &BenchOptions,
) -> Result<Vec<ExpertsLine>, BenchError> {
    let kernels: Vec<_> = options.paths.iter().map(|path| CpuKernel::new(*path, threads)).collect::<Result<_, _>>()?;
    let crew = Crew::new(threads)?;
    let mut read_rates = Vec::new();
    let mut samples = vec![Samples::default(); kernels.len()];
    let start = Instant::now();
    for _ in 0..options.rounds {
        let part = workload.next(rows);
        let reading = Instant::now();
        let bytes = workload.read(crew, &part);
        read_rates.push(bytes as f64 / ms(reading.elapsed()) / 1e6);
        for (kernel, samples) in kernels.iter().zip(&mut samples) {
            let part = [workload.next(rows)];
            let computing = Instant::now();
            std::hint::black_box(kernel.compute(workload.experts(), 0, &part)?);
            samples.push(ms(computing.elapsed()), None, workload.bytes(&part[0]));
        }
        if start.elapsed() > PATIENCE {
            break;
        }
    }
    let read_rate = median(&mut read_rates);
    let line = |(kernel, samples): (&CpuKernel, Samples)| {
        let path = (kernel.path().to_string(), Some(threads));
        options.line(workload.block_type(), rows, path, samples, None, read_rate)
    };
    Ok(kernels.iter().zip(samples).map(line).collect())
}

/// What the requests of one setting took.
#[derive(Clone, Debug, Default)]
struct Samples {
    ms: Vec<f64>,
    gb_per_s: Vec<f64>,
}

impl Samples {
    /// A request that read `bytes` of weights, in `kernel_ms` where the device has a clock.
    fn push(&mut self, ms: f64, kernel_ms: Option<f64>, bytes: usize) {
        self.ms.push(ms);
        self.gb_per_s.push(bytes as f64 / kernel_ms.unwrap_or(ms) / 1e6);
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The median; sorts `times`.
fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

impl BenchOptions {
    fn report(&self, device: String, lines: Vec<ExpertsLine>) -> ExpertsBench {
        let Self { hidden, intermediate, experts_per_row, .. } = *self;
        ExpertsBench { device, hidden, intermediate, experts_per_row, lines }
    }

    fn line(
        &self,
        ty: BlockType,
        rows: usize,
        (path, threads): (String, Option<usize>),
        mut samples: Samples,
        kernel_ms: Option<f64>,
        read_gb_per_s: f64,
    ) -> ExpertsLine {
        let ms = median(&mut samples.ms);
        ExpertsLine {
            weights: ty.name().to_owned(),
            experts: self.experts,
            rows,
            threads,
            path,
            rounds: samples.ms.len(),
            ms,
            ms_min: samples.ms.first().copied().unwrap_or(ms),
            kernel_ms,
            gb_per_s: median(&mut samples.gb_per_s),
            read_gb_per_s,
            assignments_per_s: (rows * self.experts_per_row) as f64 / ms * 1e3,
        }
    }
}

impl fmt::Display for ExpertsBench {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, hidden, intermediate, experts_per_row, lines } = self;
        writeln!(f, "{device}: experts {hidden} × {intermediate}, {experts_per_row} per row")?;
        writeln!(f, "weights  rows  threads  path           ms    (min)   kernel    GB/s  plain read  assignments/s")?;
        for l in lines {
            let threads = l.threads.map_or("-".to_owned(), |threads| threads.to_string());
            let kernel = l.kernel_ms.map_or("-".to_owned(), |ms| format!("{ms:.3}"));
            writeln!(
                f,
                "{:<7} {:>5} {:>8}  {:<8} {:>9.3} {:>8.3} {:>8} {:>7.1} {:>11.1} {:>14.0}",
                l.weights,
                l.rows,
                threads,
                l.path,
                l.ms,
                l.ms_min,
                kernel,
                l.gb_per_s,
                l.read_gb_per_s,
                l.assignments_per_s
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_run_reports_every_path_and_setting() {
        let options = BenchOptions {
            hidden: 256,
            intermediate: 256,
            experts: 4,
            experts_per_row: 2,
            types: vec![BlockType::Q4_K, BlockType::Q8_0, BlockType::BF16],
            rows: vec![1, 3],
            threads: vec![1, 2],
            rounds: 2,
            ..BenchOptions::default()
        };
        let bench = measure_cpu(&options).expect("threads");
        assert_eq!(bench.lines.len(), 3 * 2 * 2 * CpuPath::supported().len());
        assert!(bench.lines.iter().all(|l| l.ms > 0.0 && l.read_gb_per_s > 0.0 && l.rounds == 2));
        assert!(bench.to_string().contains("BF16"));
    }
}
