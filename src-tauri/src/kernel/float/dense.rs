//! A matrix prepared for `x Wᵀ`, with one dot product per output and no dependence between them.

use super::bands::bands;
use super::exact::{Exact, ExactInput, ExactRoom};
use super::floats::{FloatRoom, Floats};
use crate::kernel::cpu::engine::{Engine, OnEngine, piece_rows};
use crate::kernel::cpu::on_the_best_engine;
use crate::kernel::crew::Crew;
use crate::kernel::numerics::ExactMatrix;
use crate::kernel::quant::dequantise;
use crate::model::{BlockType, Matrix};

/// Most memory that a set of weights may take as f32.
const RESIDENT_BYTES_MAX: usize = 512 << 20;

/// Where a matrix's values live, and with it how they are multiplied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Residency {
    /// In memory as f32: four bytes a weight, for small models.
    Resident,
    /// As stored, brought to f32 each time they are read.
    Stored,
    /// As stored; types with an exact form are met as integers, the others as [`Residency::Stored`].
    Exact,
}

impl Residency {
    /// For a backbone: resident when all of `matrices` fit into 512 MiB as f32, exact otherwise.
    pub fn for_weights<'a>(matrices: impl IntoIterator<Item = &'a Matrix>) -> Self {
        if fit(matrices) { Self::Resident } else { Self::Exact }
    }

    /// For what must be computed in f32: resident when all of `matrices` fit into 512 MiB as f32, stored otherwise.
    pub fn for_floats<'a>(matrices: impl IntoIterator<Item = &'a Matrix>) -> Self {
        if fit(matrices) { Self::Resident } else { Self::Stored }
    }
}

fn fit<'a>(matrices: impl IntoIterator<Item = &'a Matrix>) -> bool {
    matrices.into_iter().map(|m| m.rows * m.cols * size_of::<f32>()).sum::<usize>() <= RESIDENT_BYTES_MAX
}

/// A weight matrix `[rows, cols]`, ready to multiply.
#[derive(Debug)]
pub struct Dense {
    rows: usize,
    cols: usize,
    exact: Option<Box<Exact>>,
    /// What the exact form does not cover is met here.
    floats: Floats,
}

impl Dense {
    /// Prepares `matrix`; the caller decides by the size of the whole model.
    #[must_use]
    pub fn new(matrix: &Matrix, residency: Residency) -> Self {
        let (exact, floats) = match residency {
            Residency::Exact => (Exact::new(matrix).map(Box::new), Floats::Stored(matrix.clone())),
            Residency::Stored => (None, Floats::Stored(matrix.clone())),
            Residency::Resident => {
                let mut values = vec![0.0; matrix.rows * matrix.cols];
                dequantise(matrix.ty, &matrix.data, &mut values);
                (None, Floats::Resident(values))
            }
        };
        Self { rows: matrix.rows, cols: matrix.cols, exact, floats }
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
        Self::forward_many(&[self], x, rows, &mut [out]);
    }

    /// [`forward`](Self::forward) of several matrices that read the same rows: `outs[i]` is `[rows, matrices[i].rows()]`.
    ///
    /// The rows are quantised once, and the threads meet once.
    pub fn forward_many(matrices: &[&Self], x: &[f32], rows: usize, outs: &mut [&mut [f32]]) {
        debug_assert_eq!(matrices.len(), outs.len());
        debug_assert!(matrices.iter().all(|m| m.cols * rows == x.len()));
        debug_assert!(matrices.iter().zip(&*outs).all(|(m, out)| m.rows * rows == out.len()));
        on_the_best_engine(Forward { matrices, x, rows, outs, crew: Crew::all() });
    }
}

/// Matrices, what they read and where it goes.
struct Forward<'a, 'o> {
    matrices: &'a [&'a Dense],
    x: &'a [f32],
    rows: usize,
    outs: &'a mut [&'o mut [f32]],
    crew: Crew,
}

/// A thread's own memory.
#[derive(Default)]
struct Room {
    exact: ExactRoom,
    floats: FloatRoom,
}

impl OnEngine for Forward<'_, '_> {
    type Out = ();

    fn on<E: Engine>(self, engine: E) {
        let Self { matrices, x, rows, outs, crew } = self;
        let Some(cols) = matrices.first().map(|m| m.cols).filter(|cols| *cols > 0 && rows > 0) else {
            return outs.iter_mut().for_each(|out| out.fill(0.0));
        };
        let met: Vec<(&Dense, Option<&ExactMatrix>)> =
            matrices.iter().map(|m| (*m, m.exact.as_deref().and_then(Exact::matrix))).collect();
        let mut types: Vec<BlockType> = met.iter().filter_map(|(_, exact)| Some((*exact)?.ty())).collect();
        types.sort_unstable();
        types.dedup();
        let input = ExactInput::new(engine, crew, x, cols, &types);
        let work = |(m, exact): &(&Dense, Option<&ExactMatrix>)| {
            let unpacking = if exact.is_some() { 0 } else { m.floats.unpacking() };
            m.rows * m.cols * (rows + unpacking)
        };
        let size = met.iter().map(work).sum();
        let each = piece_rows(met.iter().map(|(m, _)| m.rows).sum(), rows, crew.threads());
        let pieces = met
            .iter()
            .zip(outs.iter_mut())
            .flat_map(|((dense, exact), out)| bands(out, dense.rows, each).map(move |band| (*dense, *exact, band)));
        crew.each(size, pieces, Room::default, |Room { exact: dots, floats }, (dense, exact, mut band)| match exact {
            None => dense.floats.multiply(x, cols, 0, &mut band, floats),
            Some(weights) => {
                // The threads take turns, more or less.
                let turn = band.columns().start + crew.threads() * each;
                let next = weights.some_rows(turn..turn + each);
                input.multiply(engine, weights, next, &mut band, dots, |r, band| {
                    dense.floats.multiply(&x[r * cols..(r + 1) * cols], cols, r, band, floats);
                });
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::cpu::tests::cases::{Random, RowMode, WeightMode, row, weights};
    use crate::kernel::cpu::{CpuPath, on_path};
    use crate::kernel::float::products;
    use crate::kernel::numerics::{QuantisedRow, row_dot};

    const EXACT: [BlockType; 5] = [BlockType::Q4_K, BlockType::Q5_K, BlockType::Q6_K, BlockType::Q8_0, BlockType::Q4_0];

    fn floats(rows: usize, cols: usize) -> Matrix {
        let bytes = (0..rows * cols).flat_map(|i| (((i * 7919) % 997) as f32 / 500.0 - 1.0).to_le_bytes());
        Matrix::new(BlockType::F32, rows, cols, bytes.collect::<Vec<u8>>().into()).expect("the shape")
    }

    /// All outputs, by the instructions of `path` and `threads` threads.
    fn on(path: CpuPath, threads: usize, matrices: &[&Dense], x: &[f32], rows: usize) -> Vec<Vec<u32>> {
        let mut outs: Vec<Vec<f32>> = matrices.iter().map(|m| vec![f32::NAN; rows * m.rows()]).collect();
        let mut outs_mut: Vec<&mut [f32]> = outs.iter_mut().map(Vec::as_mut_slice).collect();
        let crew = Crew::new(threads).expect("threads");
        on_path(path, Forward { matrices, x, rows, outs: &mut outs_mut, crew });
        outs.iter().map(|out| out.iter().map(|v| v.to_bits()).collect()).collect()
    }

    /// Dequantise, multiply and add in f32.
    fn in_floats(matrix: &Matrix, x: &[f32]) -> Vec<u32> {
        let mut values = vec![0.0; matrix.rows * matrix.cols];
        dequantise(matrix.ty, &matrix.data, &mut values);
        let mut out = vec![0.0; matrix.rows];
        products(&values, x, matrix.cols, &mut out);
        out.iter().map(|v| v.to_bits()).collect()
    }

    /// The definition of an exact dense row.
    fn by_definition(matrix: &Matrix, x: &[f32]) -> Vec<u32> {
        let exact = ExactMatrix::new(matrix).expect("finite scales");
        match QuantisedRow::quantise(x) {
            Ok(x) => (0..matrix.rows).map(|r| row_dot(&exact, r, &x).to_f32().to_bits()).collect(),
            Err(_) => in_floats(matrix, x),
        }
    }

    #[test]
    fn exact_rows_equal_their_definition_on_every_path_beside_any_others() {
        let mut random = Random::new(7);
        for (ty, (out_width, cols)) in
            EXACT.into_iter().flat_map(|ty| [(1, 256), (70, 768), (131, 1280)].map(|s| (ty, s)))
        {
            let rows = 1 + random.below(40) as usize;
            let mode = random.pick(&[WeightMode::Even, WeightMode::Bytes, WeightMode::Extreme]);
            let matrix = weights(ty, mode, out_width, cols, &mut random);
            let dense = Dense::new(&matrix, Residency::Exact);
            let x: Vec<f32> = (0..rows).flat_map(|r| row(RowMode::ALL[r % 10], cols, &mut random)).collect();
            let expected: Vec<u32> = x.chunks(cols).flat_map(|x| by_definition(&matrix, x)).collect();
            for path in CpuPath::supported() {
                for threads in [1, 3] {
                    let got = on(path, threads, &[&dense], &x, rows);
                    assert_eq!(got.concat(), expected, "{ty:?} {mode:?} {out_width} x {cols}, {rows} rows, {path}");
                }
                let alone: Vec<u32> = x.chunks(cols).flat_map(|x| on(path, 2, &[&dense], x, 1).concat()).collect();
                assert_eq!(alone, expected, "{ty:?} {mode:?} {out_width} x {cols}, one by one, {path}");
            }
        }
    }

    #[test]
    fn integers_are_as_near_to_the_weights_as_eight_bits_allow() {
        let mut random = Random::new(12);
        let square = |v: f64| v * v;
        for ty in EXACT {
            let matrix = weights(ty, WeightMode::Even, 64, 1024, &mut random);
            let x = row(RowMode::Gaussian, 1024, &mut random);
            let floats = |bits: Vec<u32>| bits.into_iter().map(|v| f64::from(f32::from_bits(v))).collect::<Vec<_>>();
            let (exact, float) = (floats(by_definition(&matrix, &x)), floats(in_floats(&matrix, &x)));
            let error: f64 = exact.iter().zip(&float).map(|(a, b)| square(a - b)).sum();
            let size: f64 = float.iter().copied().map(square).sum();
            // Measured: 4 to 5 in a thousand, which is 0.8 of what a step per 32 or 256 elements leaves.
            assert!((error / size).sqrt() < 0.01, "{ty:?}: {}", (error / size).sqrt());
        }
    }

    #[test]
    fn small_blocks_may_end_within_a_super_block_and_rows_may_be_as_long_as_the_proofs() {
        let mut random = Random::new(8);
        for (ty, cols) in
            [(BlockType::Q8_0, 288), (BlockType::Q4_0, 96), (BlockType::Q8_0, 8192), (BlockType::Q4_K, 8192)]
        {
            let matrix = weights(ty, WeightMode::Even, 37, cols, &mut random);
            let dense = Dense::new(&matrix, Residency::Exact);
            let x: Vec<f32> = (0..11).flat_map(|_| row(RowMode::HeavyTails, cols, &mut random)).collect();
            let expected: Vec<u32> = x.chunks(cols).flat_map(|x| by_definition(&matrix, x)).collect();
            for path in CpuPath::supported() {
                assert_eq!(on(path, 2, &[&dense], &x, 11).concat(), expected, "{ty:?} {cols} {path}");
            }
        }
    }

    #[test]
    fn matrices_that_share_their_input_give_what_each_gives_alone() {
        let mut random = Random::new(9);
        let cols = 512;
        let mut matrices: Vec<Matrix> =
            EXACT.into_iter().map(|ty| weights(ty, WeightMode::Even, 90, cols, &mut random)).collect();
        matrices.push(floats(65, cols));
        let dense: Vec<Dense> = matrices.iter().map(|m| Dense::new(m, Residency::Exact)).collect();
        let together: Vec<&Dense> = dense.iter().collect();
        let x: Vec<f32> = (0..9).flat_map(|_| row(RowMode::Outliers, cols, &mut random)).collect();
        for path in CpuPath::supported() {
            let alone: Vec<_> = dense.iter().flat_map(|m| on(path, 1, &[m], &x, 9)).collect();
            assert_eq!(on(path, 2, &together, &x, 9), alone, "{path}");
        }
        assert_eq!(on(CpuPath::Portable, 2, &[], &x, 9), Vec::<Vec<u32>>::new());
    }

    #[test]
    fn what_the_integers_cannot_hold_takes_its_course_in_floats() {
        let mut random = Random::new(10);
        let mut x = row(RowMode::Gaussian, 256, &mut random);
        x[3] = f32::NAN;
        let matrix = weights(BlockType::Q8_0, WeightMode::Even, 5, 256, &mut random);
        let dense = Dense::new(&matrix, Residency::Exact);
        let mut out = [0.0; 5];
        dense.forward(&x, 1, &mut out);
        assert!(out.iter().all(|v| v.is_nan()));
        // An infinite scale takes the whole matrix out of the exact form.
        let mut data = matrix.data.to_vec();
        data[..2].copy_from_slice(&0x7c00u16.to_le_bytes());
        let matrix = Matrix::new(BlockType::Q8_0, 5, 256, data.into()).expect("the shape");
        let dense = Dense::new(&matrix, Residency::Exact);
        x[3] = 1.0;
        dense.forward(&x, 1, &mut out);
        assert_eq!(out.map(f32::to_bits), in_floats(&matrix, &x)[..]);
        assert!(!out[0].is_finite() && out[1].is_finite());
    }

    #[test]
    fn rows_threads_and_residency_do_not_change_a_bit_of_floats() {
        let (out_width, cols, rows) = (1030, 300, 37);
        let matrix = floats(out_width, cols);
        let x: Vec<f32> = (0..rows * cols).map(|i| ((i * 104_729) % 1013) as f32 / 500.0 - 1.0).collect();
        let resident = Dense::new(&matrix, Residency::Resident);
        let all = on(CpuPath::Portable, 1, &[&resident], &x, rows);
        for residency in [Residency::Stored, Residency::Exact] {
            assert_eq!(all, on(CpuPath::Portable, 2, &[&Dense::new(&matrix, residency)], &x, rows));
        }
        for (r, row) in x.chunks_exact(cols).enumerate() {
            let alone = on(CpuPath::Portable, 3, &[&resident], row, 1);
            assert_eq!(all[0][r * out_width..(r + 1) * out_width], alone[0]);
        }
        let mut random = Random::new(11);
        let quantised = weights(BlockType::Q6_K, WeightMode::Even, 21, 512, &mut random);
        let x = row(RowMode::Gaussian, 512 * 20, &mut random);
        let stored = on(CpuPath::Portable, 2, &[&Dense::new(&quantised, Residency::Stored)], &x, 20);
        assert_eq!(stored[0], x.chunks(512).flat_map(|x| in_floats(&quantised, x)).collect::<Vec<_>>());
    }
}
