//! A matrix whose weights are met as f32: resident, or brought to f32 a few at a time while they are read.

use std::ops::Range;

use super::bands::Band;
use super::product::{products, products_brain, products_half, products_single};
use crate::kernel::quant::dequantise;
use crate::model::{BlockType, Matrix};

/// Input rows that meet a band's weights before the next ones do: they stay in a core's own cache.
const INPUT_ROWS: usize = 16;
/// Weight rows that are dequantised together; a multiple of every register tile.
const STORED_ROWS: usize = 8;

/// Where the values are.
#[derive(Debug)]
pub(super) enum Floats {
    /// Dequantised, in memory of our own.
    Resident(Vec<f32>),
    /// As stored.
    Stored(Matrix),
}

/// Room for a piece of work, kept from piece to piece.
#[derive(Default)]
pub(super) struct FloatRoom {
    weights: Vec<f32>,
    outputs: Vec<f32>,
}

impl Floats {
    /// Multiplications that take as long as meeting one weight once, beside those with the rows.
    pub fn unpacking(&self) -> usize {
        match self {
            Self::Stored(matrix) if !matrix.ty.is_float() => 16,
            _ => 0,
        }
    }

    /// The band's columns of the rows from `first` on, as many as `x` (`[_, cols]`) has.
    pub fn multiply(&self, x: &[f32], cols: usize, first: usize, band: &mut Band<'_>, room: &mut FloatRoom) {
        let columns = band.columns();
        let each = if self.unpacking() > 0 { STORED_ROWS } else { columns.len() };
        for start in columns.clone().step_by(each) {
            let some = start..(start + each).min(columns.end);
            let weights = self.weights(&some, cols, &mut room.weights);
            for (x, first) in x.chunks(INPUT_ROWS * cols).zip((first..).step_by(INPUT_ROWS)) {
                let rows = x.len() / cols;
                room.outputs.resize(some.len() * rows, 0.0);
                weights.times(x, cols, &mut room.outputs);
                for r in 0..rows {
                    let to = &mut band.row_mut(first + r)[some.start - columns.start..some.end - columns.start];
                    to.iter_mut().zip(room.outputs[r..].iter().step_by(rows)).for_each(|(to, from)| *to = *from);
                }
            }
        }
    }

    /// Weight rows `some`; `room` takes the values of those that must be dequantised.
    fn weights<'a>(&'a self, some: &Range<usize>, cols: usize, room: &'a mut Vec<f32>) -> Weights<'a> {
        match self {
            Self::Resident(values) => Weights::Values(&values[some.start * cols..some.end * cols]),
            Self::Stored(matrix) => {
                let row_bytes = matrix.row_bytes();
                let bytes = &matrix.data[some.start * row_bytes..some.end * row_bytes];
                match matrix.ty {
                    BlockType::F32 => Weights::Single(bytes.as_chunks().0),
                    BlockType::F16 => Weights::Half(bytes.as_chunks().0),
                    BlockType::BF16 => Weights::Brain(bytes.as_chunks().0),
                    ty => {
                        room.resize(some.len() * cols, 0.0);
                        dequantise(ty, bytes, room);
                        Weights::Values(room)
                    }
                }
            }
        }
    }
}

/// Some weight rows.
#[derive(Clone, Copy)]
enum Weights<'a> {
    Values(&'a [f32]),
    Single(&'a [[u8; 4]]),
    Half(&'a [[u8; 2]]),
    Brain(&'a [[u8; 2]]),
}

impl Weights<'_> {
    /// Every weight row times every row of `x`: `out[i · x_rows + j]`.
    fn times(self, x: &[f32], cols: usize, out: &mut [f32]) {
        match self {
            Self::Values(weights) => products(weights, x, cols, out),
            Self::Single(weights) => products_single(weights, x, cols, out),
            Self::Half(weights) => products_half(weights, x, cols, out),
            Self::Brain(weights) => products_brain(weights, x, cols, out),
        }
    }
}
