//! Dense matrices of exact types in the integers of `kernel::numerics`: quantised rows, integer dots, then one rounding.
//!
//! An output is [`Scaled::to_f32`] of [`row_dot`], so it depends on its weight row and its input row alone. A row that
//! the quantiser refuses (NaN, infinite or huge values) is computed in f32 instead, where such values take their course.
//!
//! [`Scaled::to_f32`]: crate::kernel::numerics::Scaled::to_f32
//! [`row_dot`]: crate::kernel::numerics::row_dot()

use std::sync::OnceLock;

use super::bands::Band;
use crate::kernel::cpu::engine::{Dots, Engine, Pass, ROWS_PER_PASS};
use crate::kernel::crew::Crew;
use crate::kernel::numerics::ExactMatrix;
use crate::model::{BlockType, Matrix};

/// Preparing an element costs about as much as so many multiplications.
const PREPARE_WORK: usize = 8;

/// A stored matrix of an exact type; its scales are read when it is first used, so that loading reads no weights.
#[derive(Debug)]
pub(super) struct Exact {
    stored: Matrix,
    checked: OnceLock<Option<ExactMatrix>>,
}

impl Exact {
    /// `None` for a matrix of another type.
    pub fn new(stored: &Matrix) -> Option<Self> {
        stored.ty.is_exact().then(|| Self { stored: stored.clone(), checked: OnceLock::new() })
    }

    /// The matrix; `None` when the numerics do not cover it: infinite scales or very long rows.
    pub fn matrix(&self) -> Option<&ExactMatrix> {
        self.checked.get_or_init(|| ExactMatrix::new(&self.stored).ok()).as_ref()
    }
}

/// Input rows, prepared for every type of weights that reads them; `None` = the quantiser refuses the row.
pub(super) struct ExactInput<R> {
    by_type: Vec<(BlockType, Vec<Option<R>>)>,
}

/// Room for a piece of work, kept from piece to piece.
#[derive(Default)]
pub(super) struct ExactRoom {
    dots: Vec<i32>,
}

impl<R: Send + Sync> ExactInput<R> {
    /// Quantises the rows of `x` (`[_, cols]`) once and lays them out for each of `types`.
    pub fn new<E: Engine<Row = R>>(engine: E, crew: Crew, x: &[f32], cols: usize, types: &[BlockType]) -> Self {
        let rows = x.len() / cols;
        let mut by_type: Vec<_> = types.iter().map(|ty| (*ty, (0..rows).map(|_| None).collect())).collect();
        if types.is_empty() {
            return Self { by_type };
        }
        let mut prepared: Vec<(&[f32], Vec<R>)> = x.chunks_exact(cols).map(|x| (x, Vec::new())).collect();
        crew.each(PREPARE_WORK * x.len(), &mut prepared, Vec::new, |wire, (x, prepared)| {
            wire.clear();
            if engine.quantise(x, wire).is_ok() {
                prepared.extend(types.iter().map(|ty| engine.row(*ty, wire)));
            }
        });
        for (r, (_, prepared)) in prepared.into_iter().enumerate() {
            for ((_, rows), row) in by_type.iter_mut().zip(prepared) {
                rows[r] = Some(row);
            }
        }
        Self { by_type }
    }

    /// The band's columns of every row that has a quantised form; `refused` is called for the others. `next`: bytes
    /// that this thread is likely to read next.
    pub fn multiply<E: Engine<Row = R>>(
        &self,
        engine: E,
        weights: &ExactMatrix,
        next: &[u8],
        band: &mut Band<'_>,
        room: &mut ExactRoom,
        mut refused: impl FnMut(usize, &mut Band<'_>),
    ) {
        let Some((ty, rows)) = self.by_type.iter().find(|(ty, _)| *ty == weights.ty()) else { return };
        let (columns, n) = (band.columns(), band.columns().len());
        let exponents = &weights.exponents()[columns.clone()];
        let pass = Pass { weights, rows: columns, next };
        for (rows, first) in rows.chunks(ROWS_PER_PASS).zip((0..).step_by(ROWS_PER_PASS)) {
            let mut present = [None; ROWS_PER_PASS];
            let mut count = 0;
            for (i, row) in rows.iter().enumerate() {
                match row {
                    Some(row) => {
                        present[count] = Some((i, row));
                        count += 1;
                    }
                    None => refused(first + i, band),
                }
            }
            let Some(any) = present[0] else { continue };
            let xs: [&R; ROWS_PER_PASS] = present.map(|row| row.unwrap_or(any).1);
            room.dots.resize(ROWS_PER_PASS * n, 0);
            engine.dots(&pass, &xs[..count], &mut room.dots[..count * n]);
            for ((i, row), values) in present.iter().flatten().zip(room.dots.chunks_exact(n)) {
                let dots = Dots { values, exponents, base: Dots::base(E::top(row), *ty) };
                engine.reals(dots, band.row_mut(first + i));
            }
        }
    }
}
