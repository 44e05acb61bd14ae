//! A matrix prepared for `x Wᵀ`, with one dot product per output and no dependence between them.

use super::product::products;
use crate::kernel::quant::dequantise;
use crate::model::Matrix;
use rayon::prelude::*;

/// Multiplications below which threads cost more than they save (about 0.05 ms on one core).
const PARALLEL_WORK_MIN: usize = 1 << 20;
/// Work of dequantising one weight, in multiplications.
const DEQUANTISE_WORK: usize = 16;
/// Most memory that a set of weights may take as f32.
const RESIDENT_BYTES_MAX: usize = 512 << 20;
/// Rows that are dequantised together; a multiple of every register tile.
const STORED_ROWS: usize = 8;

/// Where a matrix's f32 values live.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Residency {
    /// In memory as f32: four bytes a weight, fast.
    Resident,
    /// As stored; rows are dequantised each time they are read.
    Stored,
}

impl Residency {
    /// Resident when all of `matrices` fit into 512 MiB as f32, stored otherwise.
    pub fn for_weights<'a>(matrices: impl IntoIterator<Item = &'a Matrix>) -> Self {
        let bytes: usize = matrices.into_iter().map(|m| m.rows * m.cols * size_of::<f32>()).sum();
        if bytes <= RESIDENT_BYTES_MAX { Self::Resident } else { Self::Stored }
    }
}

/// A weight matrix `[rows, cols]`, ready to multiply.
#[derive(Debug)]
pub struct Dense {
    rows: usize,
    cols: usize,
    weights: Weights,
}

#[derive(Debug)]
enum Weights {
    Resident(Vec<f32>),
    Stored(Matrix),
}

impl Dense {
    /// Prepares `matrix`; the caller decides by the size of the whole model.
    #[must_use]
    pub fn new(matrix: &Matrix, residency: Residency) -> Self {
        let weights = match residency {
            Residency::Stored => Weights::Stored(matrix.clone()),
            Residency::Resident => {
                let mut values = vec![0.0; matrix.rows * matrix.cols];
                dequantise(matrix.ty, &matrix.data, &mut values);
                Weights::Resident(values)
            }
        };
        Self { rows: matrix.rows, cols: matrix.cols, weights }
    }

    /// Output width.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input width.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// `out[r] = W x[r]` for `rows` rows: `x` is `[rows, self.cols()]`, `out` `[rows, self.rows()]`.
    pub fn forward(&self, x: &[f32], rows: usize, out: &mut [f32]) {
        debug_assert_eq!((x.len(), out.len()), (rows * self.cols, rows * self.rows));
        if rows == 1 {
            return self.by_output(x, 1, out);
        }
        let mut by_output = vec![0.0; out.len()];
        self.by_output(x, rows, &mut by_output);
        for (r, row) in out.chunks_exact_mut(self.rows).enumerate() {
            row.iter_mut().zip(by_output[r..].iter().step_by(rows)).for_each(|(to, from)| *to = *from);
        }
    }

    /// The outputs as `[self.rows, rows]`.
    fn by_output(&self, x: &[f32], rows: usize, out: &mut [f32]) {
        let dequantise_work = if matches!(self.weights, Weights::Stored(_)) { DEQUANTISE_WORK } else { 0 };
        if self.rows * self.cols * (rows + dequantise_work) < PARALLEL_WORK_MIN {
            return self.some_outputs(0, x, rows, out);
        }
        let share = self.rows.div_ceil(4 * rayon::current_num_threads()).next_multiple_of(STORED_ROWS);
        out.par_chunks_mut(share * rows).enumerate().for_each(|(i, out)| self.some_outputs(i * share, x, rows, out));
    }

    /// Outputs from `first` on, as many as `out` holds.
    fn some_outputs(&self, first: usize, x: &[f32], rows: usize, out: &mut [f32]) {
        match &self.weights {
            Weights::Resident(values) => {
                products(&values[first * self.cols..][..out.len() / rows * self.cols], x, self.cols, out);
            }
            Weights::Stored(matrix) => {
                let mut values = vec![0.0; STORED_ROWS * self.cols];
                for (i, out) in out.chunks_mut(STORED_ROWS * rows).enumerate() {
                    let count = out.len() / rows;
                    let (values, start) = (&mut values[..count * self.cols], first + i * STORED_ROWS);
                    let row_bytes = matrix.row_bytes();
                    dequantise(matrix.ty, &matrix.data[start * row_bytes..(start + count) * row_bytes], values);
                    products(values, x, self.cols, out);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::BlockType;

    fn matrix(rows: usize, cols: usize) -> Matrix {
        let bytes = (0..rows * cols).flat_map(|i| (((i * 7919) % 997) as f32 / 500.0 - 1.0).to_le_bytes());
        Matrix::new(BlockType::F32, rows, cols, bytes.collect::<Vec<u8>>().into()).unwrap()
    }

    #[test]
    fn rows_threads_and_residency_do_not_change_a_bit() {
        let (out_width, in_width, rows) = (1030, 300, 13);
        let matrix = matrix(out_width, in_width);
        let x: Vec<f32> = (0..rows * in_width).map(|i| ((i * 104_729) % 1013) as f32 / 500.0 - 1.0).collect();
        let forward = |dense: &Dense, rows: usize, x: &[f32]| {
            let mut out = vec![0.0; rows * out_width];
            dense.forward(x, rows, &mut out);
            out
        };
        let resident = Dense::new(&matrix, Residency::Resident);
        let all = forward(&resident, rows, &x);
        assert_eq!(all, forward(&Dense::new(&matrix, Residency::Stored), rows, &x));
        for (r, row) in x.chunks_exact(in_width).enumerate() {
            assert_eq!(all[r * out_width..(r + 1) * out_width], forward(&resident, 1, row));
        }
        let one_thread = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        assert_eq!(all, one_thread.install(|| forward(&resident, rows, &x)));
    }
}
