//! The bytes of one tensor of the converted file, made when they are written.

use std::io::Write;
use std::path::Path;

use rayon::prelude::*;

use super::ConvertError;
use super::heads::Stretches;
use crate::model::names::GGUF_EXPERTS;
use crate::model::quantise::{matrix, parts};
use crate::model::{BlockType, ExpertWeights, Matrix, QuantiseError};

/// Experts that are quantised side by side by each thread before they are written: more would only take memory.
const EXPERTS_PER_THREAD: usize = 2;

/// A tensor to be written.
pub(super) struct Planned<'a> {
    pub name: String,
    /// Row-major.
    pub shape: Vec<usize>,
    pub ty: BlockType,
    pub body: Body<'a>,
}

/// Where its bytes come from.
pub(super) enum Body<'a> {
    /// They are small and ready.
    Bytes(Vec<u8>),
    /// Rows of a matrix as stored, in another order.
    Rows(&'a Matrix, Stretches),
    /// A matrix as stored with its columns in another order.
    Columns(&'a Matrix, Stretches),
    /// Matrix `part` of every expert of a layer, quantised.
    Experts { layer: usize, part: usize, experts: &'a [ExpertWeights] },
}

/// Why a tensor could not be written.
pub(super) enum WriteError {
    Io(std::io::Error),
    Quantise(QuantiseError),
}

impl WriteError {
    /// The same, in a conversion that writes `path`.
    pub fn at(self, path: &Path) -> ConvertError {
        match self {
            Self::Io(source) => ConvertError::Io { path: path.into(), source },
            Self::Quantise(error) => error.into(),
        }
    }
}

impl From<std::io::Error> for WriteError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

impl Planned<'_> {
    /// Bytes in the file, without padding.
    pub fn bytes(&self) -> u64 {
        let (cols, rows) =
            self.shape.split_last().map_or((0, 0), |(cols, rows)| (*cols, rows.iter().product::<usize>()));
        self.ty.row_bytes(cols).unwrap_or(0) as u64 * rows as u64
    }

    /// Writes them; `progress` is told each number of bytes. Memory that the source took in this process is given back.
    pub fn write(&self, file: &mut impl Write, mut progress: impl FnMut(u64)) -> Result<(), WriteError> {
        match &self.body {
            Body::Bytes(bytes) => {
                file.write_all(bytes)?;
                progress(bytes.len() as u64);
            }
            Body::Rows(stored, order) => {
                let row_bytes = stored.row_bytes();
                for stretch in order {
                    let bytes = &stored.data[stretch.start * row_bytes..stretch.end * row_bytes];
                    file.write_all(bytes)?;
                    progress(bytes.len() as u64);
                }
                stored.data.release();
            }
            Body::Columns(stored, order) => {
                for row in (0..stored.rows).map(|r| stored.row(r)) {
                    for stretch in order {
                        let [start, end] = [stretch.start, stretch.end].map(|at| stored.ty.row_bytes(at).unwrap_or(0));
                        file.write_all(&row[start..end])?;
                    }
                    progress(row.len() as u64);
                }
                stored.data.release();
            }
            Body::Experts { layer, part, experts } => {
                let batch = EXPERTS_PER_THREAD * rayon::current_num_threads();
                for (i, some) in experts.chunks(batch).enumerate() {
                    let quantised = some.par_iter().enumerate().map(|(e, expert)| {
                        let stored = parts(expert)[*part];
                        let mut out = vec![0; self.ty.row_bytes(stored.cols).unwrap_or(0) * stored.rows];
                        matrix(*layer, GGUF_EXPERTS[*part], i * batch + e, stored, self.ty, &mut out)?;
                        stored.data.release();
                        Ok(out)
                    });
                    let quantised: Vec<Vec<u8>> = quantised.collect::<Result<_, _>>().map_err(WriteError::Quantise)?;
                    for bytes in quantised {
                        file.write_all(&bytes)?;
                        progress(bytes.len() as u64);
                    }
                }
            }
        }
        Ok(())
    }
}
