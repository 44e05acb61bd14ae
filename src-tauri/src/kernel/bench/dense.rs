//! Speed of dense matrices at a given shape, beside a plain read of the same memory.

use std::fmt;
use std::hint::black_box;
use std::time::Instant;

use serde::Serialize;

use super::workload::{read_once, synthetic};
use super::{BenchError, PATIENCE, median, ms};
use crate::kernel::KernelError;
use crate::kernel::crew::Crew;
use crate::kernel::float::{Dense, Residency};
use crate::model::{BlockType, Matrix};

/// Memory that the matrices of one type take at least: far more than any CPU's cache.
const WALK_BYTES: usize = 512 << 20;

/// What to measure.
#[derive(Clone, Debug)]
pub struct DenseOptions {
    /// Output and input width.
    pub shape: [usize; 2],
    /// Types of the weights.
    pub types: Vec<BlockType>,
    /// Rows that meet a matrix at once.
    pub rows: Vec<usize>,
    /// Most rounds; the median is reported.
    pub rounds: usize,
}

/// Figures of one run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DenseBench {
    /// Output and input width.
    pub shape: [usize; 2],
    /// Threads.
    pub threads: usize,
    /// One line per type and rows.
    pub lines: Vec<DenseLine>,
}

/// Figures at one setting.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DenseLine {
    /// Type of the weights.
    pub weights: String,
    /// Rows that meet the matrix at once.
    pub rows: usize,
    /// Rounds that were measured.
    pub rounds: usize,
    /// Median milliseconds of one matrix.
    pub ms: f64,
    /// Fastest matrix, milliseconds.
    pub ms_min: f64,
    /// 10⁹ bytes of weights per second.
    pub gb_per_s: f64,
    /// The same for a plain read of the same memory by the same threads.
    pub read_gb_per_s: f64,
    /// 10⁹ multiplications per second.
    pub gmac_per_s: f64,
}

/// Measures with the threads of [`Crew::all`]; matrices are taken in turn from more memory than any cache holds.
///
/// # Errors
/// The width is not whole blocks of a type.
pub fn measure_dense(options: &DenseOptions) -> Result<DenseBench, BenchError> {
    let mut lines = Vec::new();
    for ty in &options.types {
        let [rows, cols] = options.shape;
        let (what, expected) = ("columns of the weights, in blocks", ty.block().0);
        let one = synthetic(*ty, rows, cols).ok_or(KernelError::Request { what, expected, got: cols })?;
        let count = WALK_BYTES.div_ceil(one.data.len().max(1)).max(2);
        let mut matrices = vec![one];
        while matrices.len() < count {
            matrices.extend(synthetic(*ty, rows, cols));
        }
        let dense: Vec<Dense> = matrices.iter().map(|m| Dense::new(m, Residency::Exact)).collect();
        for rows in &options.rows {
            lines.push(measure(&matrices, &dense, *rows, options.rounds));
        }
    }
    Ok(DenseBench { shape: options.shape, threads: Crew::all().threads(), lines })
}

fn measure(matrices: &[Matrix], dense: &[Dense], rows: usize, rounds: usize) -> DenseLine {
    let (width, cols) = (dense[0].rows(), dense[0].cols());
    let x: Vec<f32> = (0..rows * cols).map(|i| (i as f32 * 0.7).sin()).collect();
    let mut out = vec![0.0; rows * width];
    // The first use of a matrix reads its scales.
    dense.iter().for_each(|m| m.forward(&x[..cols], 1, &mut out[..width]));
    let (mut reads, mut times) = (Vec::new(), Vec::new());
    let start = Instant::now();
    for i in 0..rounds.max(1) {
        let reading = Instant::now();
        black_box(read_once(Crew::all(), [&matrices[2 * i % matrices.len()]].into_iter()));
        reads.push(ms(reading.elapsed()));
        let computing = Instant::now();
        dense[(2 * i + 1) % dense.len()].forward(&x, rows, black_box(&mut out));
        times.push(ms(computing.elapsed()));
        if start.elapsed() > PATIENCE {
            break;
        }
    }
    let (bytes, ms, read_ms) = (matrices[0].data.len() as f64, median(&mut times), median(&mut reads));
    DenseLine {
        weights: matrices[0].ty.name().to_owned(),
        rows,
        rounds: times.len(),
        ms,
        ms_min: times.first().copied().unwrap_or(ms),
        gb_per_s: bytes / ms / 1e6,
        read_gb_per_s: bytes / read_ms / 1e6,
        gmac_per_s: (rows * width * cols) as f64 / ms / 1e6,
    }
}

impl fmt::Display for DenseBench {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [rows, cols] = self.shape;
        writeln!(f, "cpu: dense matrices {cols} → {rows}, {} threads", self.threads)?;
        writeln!(f, "weights  rows        ms    (min)    GB/s  plain read  GMAC/s")?;
        for l in &self.lines {
            writeln!(
                f,
                "{:<7} {:>5} {:>9.3} {:>8.3} {:>7.1} {:>11.1} {:>7.1}",
                l.weights, l.rows, l.ms, l.ms_min, l.gb_per_s, l.read_gb_per_s, l.gmac_per_s
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_matrix_reports_every_type_and_number_of_rows() {
        let types = vec![BlockType::Q4_0];
        let options = DenseOptions { shape: [64, 256], types, rows: vec![1, 3], rounds: 2 };
        let matrices: Vec<_> = (0..2).filter_map(|_| synthetic(BlockType::Q4_0, 64, 256)).collect();
        let dense: Vec<_> = matrices.iter().map(|m| Dense::new(m, Residency::Exact)).collect();
        let lines: Vec<_> = options.rows.iter().map(|rows| measure(&matrices, &dense, *rows, options.rounds)).collect();
        assert!(lines.iter().all(|l| l.rounds == 2 && l.ms > 0.0 && l.read_gb_per_s > 0.0));
        let bench = DenseBench { shape: options.shape, threads: 1, lines };
        assert!(bench.to_string().contains("256 → 64"));
        let bad = DenseOptions { shape: [1, 100], ..options };
        assert!(measure_dense(&bad).is_err());
    }
}
