//! A routed expert as bytes: what travels to a worker and what its digest covers.

use std::io;

use super::{BlockType, Data, ExpertWeights, LayerWeights, Matrix, Weights};
use crate::types::{Digest, Hex};

/// How the experts of a layer are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExpertShape {
    /// Element type of gate_proj `[intermediate, hidden]`.
    pub gate: BlockType,
    /// Element type of up_proj `[intermediate, hidden]`.
    pub up: BlockType,
    /// Element type of down_proj `[hidden, intermediate]`.
    pub down: BlockType,
    /// Elements of a hidden state.
    pub hidden: usize,
    /// Inner width.
    pub intermediate: usize,
}

/// Bytes that are not an expert of the expected shape.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("expected {expected} bytes for an expert, got {got}")]
pub struct ExpertBytesError {
    /// Bytes that the shape implies.
    pub expected: usize,
    /// Bytes given.
    pub got: usize,
}

impl ExpertShape {
    /// Bytes of gate, up and down; `None` when a row is not whole blocks or the sum overflows.
    #[must_use]
    pub fn part_bytes(&self) -> Option<[usize; 3]> {
        let inner = |ty: BlockType| ty.row_bytes(self.hidden)?.checked_mul(self.intermediate);
        let down = self.down.row_bytes(self.intermediate)?.checked_mul(self.hidden)?;
        let parts = [inner(self.gate)?, inner(self.up)?, down];
        parts.iter().try_fold(0usize, |sum, n| sum.checked_add(*n))?;
        Some(parts)
    }

    /// Bytes of a whole expert; 0 for a shape that cannot exist.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.part_bytes().map_or(0, |parts| parts.iter().sum())
    }
}

impl ExpertWeights {
    /// Cuts `data`, gate ‖ up ‖ down as stored, into an expert of `shape` that shares the bytes.
    ///
    /// # Errors
    /// Another number of bytes than the shape implies.
    pub fn from_bytes(shape: &ExpertShape, data: &Data) -> Result<Self, ExpertBytesError> {
        let fail = || ExpertBytesError { expected: shape.bytes(), got: data.len() };
        let [gate, up, down] = shape.part_bytes().ok_or_else(fail)?;
        if data.len() != gate + up + down {
            return Err(fail());
        }
        let cut = |ty, rows, cols, start: usize, bytes: usize| {
            let data = data.slice(start..start + bytes)?;
            Matrix::new(ty, rows, cols, data)
        };
        let (hidden, inner) = (shape.hidden, shape.intermediate);
        Ok(Self {
            gate: cut(shape.gate, inner, hidden, 0, gate).ok_or_else(fail)?,
            up: cut(shape.up, inner, hidden, gate, up).ok_or_else(fail)?,
            down: cut(shape.down, hidden, inner, gate + up, down).ok_or_else(fail)?,
        })
    }

    /// gate ‖ up ‖ down as stored: the bytes that are served, and that the manifest's digest covers.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        [&*self.gate.data, &*self.up.data, &*self.down.data].concat()
    }

    fn parts(&self) -> [&Data; 3] {
        [&self.gate.data, &self.up.data, &self.down.data]
    }

    /// BLAKE3 of gate ‖ up ‖ down as stored; of a file no page becomes resident.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn digest(&self) -> io::Result<Digest> {
        let mut hasher = blake3::Hasher::new();
        for part in self.parts() {
            part.visit(|bytes| {
                hasher.update(bytes);
            })?;
        }
        Ok(Hex(*hasher.finalize().as_bytes()))
    }

    /// The bytes `start..start + length` of gate ‖ up ‖ down, as many of them as there are; of a file no page becomes
    /// resident.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn read(&self, start: usize, length: usize) -> io::Result<Vec<u8>> {
        let (mut bytes, mut start, mut length) = (Vec::new(), start, length);
        for part in self.parts() {
            let here = part.read(start..start.saturating_add(length))?;
            start = start.saturating_sub(part.len());
            length -= here.len();
            if bytes.is_empty() { bytes = here } else { bytes.extend_from_slice(&here) }
        }
        Ok(bytes)
    }

    /// The same expert over a copy of its bytes, so that no page of its file is held.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn copied(&self) -> io::Result<Self> {
        let own = |matrix: &Matrix| Ok::<_, io::Error>(Matrix { data: matrix.data.copied()?, ..*matrix });
        Ok(Self { gate: own(&self.gate)?, up: own(&self.up)?, down: own(&self.down)? })
    }

    /// Gives back the memory that its file's pages take in this process.
    pub fn release(&self) {
        self.parts().into_iter().for_each(Data::release);
    }

    /// How this expert is stored.
    #[must_use]
    pub fn shape(&self) -> ExpertShape {
        ExpertShape {
            gate: self.gate.ty,
            up: self.up.ty,
            down: self.down.ty,
            hidden: self.gate.cols,
            intermediate: self.gate.rows,
        }
    }
}

impl Weights {
    /// The layers that have experts, by the layer index of [`crate::types::ExpertId`]: the trunk's, then MTP's.
    pub fn moe_layers(&self) -> impl Iterator<Item = &LayerWeights> + Clone {
        self.layers.iter().chain(self.mtp.iter().map(|mtp| &mtp.layer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expert_survives_its_bytes_and_other_lengths_are_refused() {
        let model = crate::model::embedded().unwrap();
        let expert = &model.weights.layers[0].experts[5];
        let bytes = expert.to_bytes();
        let again = ExpertWeights::from_bytes(&expert.shape(), &Data::from(bytes.clone())).unwrap();
        assert_eq!(again.to_bytes(), bytes);
        assert_eq!(again.shape(), expert.shape());
        assert_eq!(expert.shape().bytes(), bytes.len());
        assert_eq!(expert.digest().unwrap().0, *blake3::hash(&bytes).as_bytes());
        assert_eq!(expert.copied().unwrap().to_bytes(), bytes);
        let (gate, all) = (expert.gate.data.len(), bytes.len());
        for (start, length) in [(0, all), (0, 2 * all), (gate - 3, 7), (gate, 1), (all - 2, 9), (usize::MAX, 9)] {
            let expected = &bytes[start.min(all)..start.saturating_add(length).min(all)];
            assert_eq!(expert.read(start, length).unwrap(), expected, "{start} {length}");
        }
        let short = ExpertWeights::from_bytes(&expert.shape(), &Data::from(bytes[1..].to_vec())).unwrap_err();
        assert_eq!(short, ExpertBytesError { expected: bytes.len(), got: bytes.len() - 1 });
    }

    #[test]
    fn a_shape_of_broken_blocks_has_no_bytes() {
        let q4 = BlockType::Q4_K;
        let shape = ExpertShape { gate: q4, up: q4, down: q4, hidden: 100, intermediate: 256 };
        assert_eq!(shape.part_bytes(), None);
        assert!(ExpertWeights::from_bytes(&shape, &Data::from(Vec::new())).is_err());
    }
}
