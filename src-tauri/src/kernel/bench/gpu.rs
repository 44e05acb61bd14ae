//! The same requests on the GPU: experts in its memory, times by its own clock beside those from asking to answer.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::workload::expert_bytes;
use super::{BenchError, BenchOptions, ExpertsBench, PATIENCE, Samples, Workload, median, ms};
use crate::kernel::ExpertCompute;
use crate::kernel::gpu::{GpuKernel, GpuOptions, adapters, bandwidth};

/// Memory that the requests of one type walk through: far more than any GPU's cache.
const WALK_BYTES: usize = 1 << 30;
/// Fewer for a GPU that is a program: its caches are the CPU's, and its time is long.
const WALK_BYTES_SOFTWARE: usize = 128 << 20;

/// Measures the GPU that `gpu` chooses.
///
/// # Errors
/// There is none, it has no room, or it is lost.
pub fn measure_gpu(options: &BenchOptions, gpu: &GpuOptions) -> Result<ExpertsBench, BenchError> {
    let found = adapters::detect(gpu, Duration::ZERO)?;
    let read = bandwidth::measure(&found)?;
    let walk = if found.is_software() { WALK_BYTES_SOFTWARE } else { WALK_BYTES };
    let kernel = GpuKernel::open(gpu)?;
    let mut lines = Vec::new();
    for ty in &options.types {
        let bytes = expert_bytes(*ty, options).max(1);
        let room = kernel.memory_bytes().map_or(usize::MAX, |free| usize::try_from(free).unwrap_or(usize::MAX));
        let experts = walk.div_ceil(bytes).min(room / bytes).clamp(options.experts_per_row, usize::from(u16::MAX));
        let options = BenchOptions { experts, ..options.clone() };
        let mut workload = Workload::new(*ty, &options, &kernel)?;
        for rows in &options.rows {
            let (mut samples, mut kernel_times) = (Samples::default(), Vec::new());
            let start = Instant::now();
            // One round more, for warming up, where there is time for it.
            for round in 0..=options.rounds {
                let part = [workload.next(*rows)];
                let asked = Instant::now();
                let (partials, on_the_gpu) = kernel.compute_timed(workload.experts(), 0, &part)?;
                black_box(partials);
                let took = ms(asked.elapsed());
                let is_last = start.elapsed() > PATIENCE;
                if round > 0 || is_last {
                    samples.push(took, on_the_gpu.map(ms), workload.bytes(&part[0]));
                    kernel_times.extend(on_the_gpu.map(ms));
                }
                if is_last {
                    break;
                }
            }
            let kernel_ms = (!kernel_times.is_empty()).then(|| median(&mut kernel_times));
            let path = ("gpu".to_owned(), None);
            lines.push(options.line(*ty, *rows, path, samples, kernel_ms, read.gb_per_s));
        }
    }
    Ok(options.report(kernel.device(), lines))
}
