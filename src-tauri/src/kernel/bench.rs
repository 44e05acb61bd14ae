//! Speed of the exact experts at a real geometry, beside a plain read of the same weights, for people who tune.
//!
//! Experts are taken in turn from more memory than any cache holds, as decoding does, and every figure is the
//! median of rounds in which all paths and the plain read take turns: a busy neighbour slows all of them alike.

use std::collections::BTreeSet;
use std::fmt;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use super::crew::Crew;
use super::numerics::quantise_row;
use super::{CpuKernel, CpuPath, CpuPathError, Expert, ExpertCompute, ExpertSource, KernelError};
use crate::model::{BlockType, ExpertWeights, Matrix};
use crate::types::GateWeight;
use crate::wire::work::{Activations, Assignment, Dispatch, RowHead};

/// Bytes that one thread reads at a time in the plain read.
const READ_PIECE: usize = 1 << 16;

/// What to measure.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// Elements of a hidden state.
    pub hidden: usize,
    /// Inner width of an expert.
    pub intermediate: usize,
    /// Experts in memory.
    pub experts: usize,
    /// Experts per row.
    pub experts_per_row: usize,
    /// Types of all three matrices, one table per entry.
    pub types: Vec<BlockType>,
    /// Rows of a request, one line per entry.
    pub rows: Vec<usize>,
    /// Threads, one line per entry.
    pub threads: Vec<usize>,
    /// Rounds; the median is reported.
    pub rounds: usize,
}

impl Default for BenchOptions {
    /// The geometry of Qwen3.5-122B.
    fn default() -> Self {
        Self {
            hidden: 3072,
            intermediate: 1024,
            experts: 48,
            experts_per_row: 8,
            types: vec![BlockType::Q4_K, BlockType::Q6_K, BlockType::Q8_0],
            rows: vec![1, 8, 32],
            threads: vec![1, 2],
            rounds: 25,
        }
    }
}

/// Figures of one run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExpertsBench {
    /// Elements of a hidden state.
    pub hidden: usize,
    /// Inner width of an expert.
    pub intermediate: usize,
    /// Experts per row.
    pub experts_per_row: usize,
    /// One line per type, rows, threads and path.
    pub lines: Vec<ExpertsLine>,
}

/// Figures of one path at one setting.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExpertsLine {
    /// Type of the weights.
    pub weights: String,
    /// Rows of the request.
    pub rows: usize,
    /// Threads.
    pub threads: usize,
    /// CPU path.
    pub path: String,
    /// Median milliseconds of a request.
    pub ms: f64,
    /// Fastest request, milliseconds.
    pub ms_min: f64,
    /// 10⁹ bytes of weights per second.
    pub gb_per_s: f64,
    /// The same for a plain read of the same weights by the same threads.
    pub read_gb_per_s: f64,
    /// Assignments per second.
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
    Threads(#[from] rayon::ThreadPoolBuildError),
}

/// Measures every CPU path of this machine with the default options (about half a minute).
///
/// # Errors
/// Threads cannot be had.
pub fn bench_experts() -> Result<ExpertsBench, BenchError> {
    measure(&BenchOptions::default())
}

/// Measures every CPU path of this machine.
///
/// # Errors
/// Threads cannot be had, or the shapes are outside the numerics.
pub fn measure(options: &BenchOptions) -> Result<ExpertsBench, BenchError> {
    let mut lines = Vec::new();
    for ty in &options.types {
        let mut workload = Workload::new(*ty, options)?;
        for rows in &options.rows {
            for threads in &options.threads {
                lines.extend(measure_one(&mut workload, *rows, *threads, options)?);
            }
        }
    }
    Ok(ExpertsBench {
        hidden: options.hidden,
        intermediate: options.intermediate,
        experts_per_row: options.experts_per_row,
        lines,
    })
}

fn measure_one(
    workload: &mut Workload,
    rows: usize,
    threads: usize,
    options: &BenchOptions,
) -> Result<Vec<ExpertsLine>, BenchError> {
    let kernels: Vec<_> =
        CpuPath::supported().into_iter().map(|path| CpuKernel::new(path, threads)).collect::<Result<_, _>>()?;
    let crew = Crew::new(threads)?;
    let (mut reads, mut times) = (Vec::new(), vec![Vec::new(); kernels.len()]);
    let mut bytes = 0;
    for _ in 0..options.rounds {
        let part = workload.next(rows);
        let start = Instant::now();
        bytes = workload.read(&crew, &part);
        reads.push(start.elapsed().as_secs_f64() * 1e3);
        for (kernel, times) in kernels.iter().zip(&mut times) {
            let part = workload.next(rows);
            let start = Instant::now();
            black_box(kernel.compute(workload.experts(), 0, &[part])?);
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    let read_ms = median(&mut reads);
    let line = |(kernel, times): (&CpuKernel, &mut Vec<f64>)| {
        let ms = median(times);
        ExpertsLine {
            weights: format!("{:?}", workload.ty),
            rows,
            threads,
            path: kernel.path().to_string(),
            ms,
            ms_min: times.first().copied().unwrap_or(ms),
            gb_per_s: bytes as f64 / ms / 1e6,
            read_gb_per_s: bytes as f64 / read_ms / 1e6,
            assignments_per_s: (rows * options.experts_per_row) as f64 / ms * 1e3,
        }
    };
    Ok(kernels.iter().zip(&mut times).map(line).collect())
}

/// The median; sorts `times`.
fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Synthetic experts of one layer, and requests that walk through all of them.
pub struct Workload {
    ty: BlockType,
    held: Held,
    options: BenchOptions,
    turn: usize,
}

struct Held(Vec<Arc<Expert>>);

impl ExpertSource for Held {
    fn expert(&self, _layer: u16, expert: u16) -> Option<Arc<Expert>> {
        self.0.get(usize::from(expert)).cloned()
    }
}

impl Workload {
    /// Experts of type `ty`.
    ///
    /// # Errors
    /// The shapes are outside the numerics.
    pub fn new(ty: BlockType, options: &BenchOptions) -> Result<Self, KernelError> {
        let matrix = |rows, cols| {
            let (what, expected) = ("columns of the weights, in blocks", ty.block().0);
            synthetic(ty, rows, cols).ok_or(KernelError::Request { what, expected, got: cols })
        };
        let expert = |_| {
            let weights = ExpertWeights {
                gate: matrix(options.intermediate, options.hidden)?,
                up: matrix(options.intermediate, options.hidden)?,
                down: matrix(options.hidden, options.intermediate)?,
            };
            Expert::new(&weights).map(Arc::new)
        };
        let held = Held((0..options.experts).map(expert).collect::<Result<_, _>>()?);
        Ok(Self { ty, held, options: options.clone(), turn: 0 })
    }

    /// The experts.
    #[must_use]
    pub fn experts(&self) -> &dyn ExpertSource {
        &self.held
    }

    /// The next request, of `rows` rows.
    pub fn next(&mut self, rows: usize) -> Dispatch {
        self.turn += self.options.experts_per_row;
        request(self.turn, rows, &self.options)
    }

    /// Reads the weights that `part` needs once; returns their bytes.
    fn read(&self, crew: &Crew, part: &Dispatch) -> usize {
        let needed: BTreeSet<u16> = part.assignments.iter().map(|a| a.expert).collect();
        let weights = needed.iter().filter_map(|e| self.held.0.get(usize::from(*e))).filter_map(|e| e.weights());
        let mut pieces: Vec<_> = weights
            .flat_map(|w| [&w.gate, &w.up, &w.down])
            .flat_map(|m| m.data.chunks(READ_PIECE).map(|bytes| (bytes, 0)))
            .collect();
        crew.each(
            usize::MAX,
            &mut pieces,
            || (),
            |(), (bytes, sum)| {
                let lines = bytes.as_chunks::<64>().0.iter().map(|line| line.as_chunks::<8>().0);
                let sums = lines.fold([0u64; 8], |sums, words| {
                    std::array::from_fn(|i| sums[i] ^ words.get(i).map_or(0, |w| u64::from_le_bytes(*w)))
                });
                *sum = sums.into_iter().fold(0, |a, b| a ^ b);
            },
        );
        black_box(pieces.iter().fold(0, |sum, (_, piece)| sum ^ piece));
        pieces.iter().map(|(bytes, _)| bytes.len()).sum()
    }
}

/// Random bytes under scales near 2^-8, in memory of its own.
fn synthetic(ty: BlockType, rows: usize, cols: usize) -> Option<Matrix> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut data: Vec<u8> = Vec::with_capacity(rows * ty.row_bytes(cols)? + 8);
    while data.len() < rows * ty.row_bytes(cols)? {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        data.extend_from_slice(&state.to_le_bytes());
    }
    data.truncate(rows * ty.row_bytes(cols)?);
    for block in data.chunks_exact_mut(ty.block().1) {
        let scales: &[usize] = match ty {
            BlockType::Q4_K | BlockType::Q5_K => &[0, 2],
            BlockType::Q6_K => &[208],
            _ => &[0],
        };
        scales.iter().for_each(|at| block[at + 1] = 0x1c);
    }
    Matrix::new(ty, rows, cols, data.into())
}

/// A request of `rows` rows that starts at expert `turn`.
fn request(turn: usize, rows: usize, options: &BenchOptions) -> Dispatch {
    let mut wire = Vec::new();
    let (mut heads, mut assignments) = (Vec::new(), Vec::new());
    for r in 0..rows {
        let x: Vec<f32> = (0..options.hidden).map(|i| ((i * (2 * r + 3)) as f32 * 0.7).sin()).collect();
        // Sines are finite, so that the row always has a quantised form.
        let _ = quantise_row(&x, &mut wire);
        let count = options.experts_per_row;
        let own: BTreeSet<u16> = (0..count).map(|j| ((turn + 11 * r + j) % options.experts) as u16).collect();
        heads.push(RowHead { grid: 0, count: own.len() as u16, first: assignments.len() as u32 });
        let gate = GateWeight { mantissa: 32768, exponent: -18 };
        assignments.extend(own.iter().map(|expert| Assignment { expert: *expert, gate }));
    }
    Dispatch {
        lease: 0,
        deadline_ms: 0,
        hidden: options.hidden,
        rows: heads,
        activations: Activations::Exact(wire.into()),
        assignments,
    }
}

impl fmt::Display for ExpertsBench {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "experts {} × {}, {} per row", self.hidden, self.intermediate, self.experts_per_row)?;
        writeln!(f, "weights  rows  threads  path         ms   (min)    GB/s  plain read  assignments/s")?;
        for l in &self.lines {
            writeln!(
                f,
                "{:<7} {:>5} {:>8}  {:<8} {:>8.3} {:>7.3} {:>7.1} {:>11.1} {:>14.0}",
                l.weights, l.rows, l.threads, l.path, l.ms, l.ms_min, l.gb_per_s, l.read_gb_per_s, l.assignments_per_s
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
            rows: vec![1, 3],
            rounds: 2,
            ..BenchOptions::default()
        };
        let bench = measure(&options).expect("threads");
        assert_eq!(bench.lines.len(), 3 * 2 * 2 * CpuPath::supported().len());
        assert!(bench.lines.iter().all(|l| l.ms > 0.0 && l.read_gb_per_s > 0.0));
        assert!(bench.to_string().contains("Q8_0"));
    }
}
