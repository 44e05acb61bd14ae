//! Synthetic experts of one layer in more memory than any cache holds, and requests that walk through all of them.

use std::collections::BTreeSet;
use std::hint::black_box;
use std::sync::Arc;

use super::BenchOptions;
use crate::kernel::crew::Crew;
use crate::kernel::numerics::quantise_row;
use crate::kernel::{Expert, ExpertCompute, ExpertSource, KernelError};
use crate::model::{BlockType, ExpertWeights, Matrix};
use crate::types::GateWeight;
use crate::wire::work::{Activations, Assignment, Dispatch, RowHead};

/// Bytes that one thread reads at a time in the plain read.
const READ_PIECE: usize = 1 << 16;

/// Synthetic experts of one layer, and requests of rows that are each routed afresh, as by an untrained router.
pub struct Workload {
    ty: BlockType,
    held: Held,
    options: BenchOptions,
    random: Random,
}

/// Xorshift: the same routes and weights in every run.
#[derive(Clone, Copy)]
struct Random(u64);

impl Random {
    const START: Self = Self(0x9e37_79b9_7f4a_7c15);

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

struct Held(Vec<Arc<Expert>>);

impl ExpertSource for Held {
    fn expert(&self, _layer: u16, expert: u16) -> Option<Arc<Expert>> {
        self.0.get(usize::from(expert)).cloned()
    }
}

impl Workload {
    /// Experts of type `ty`, where `compute` wants them.
    ///
    /// # Errors
    /// The shapes are outside the numerics, or there is no room.
    pub fn new(ty: BlockType, options: &BenchOptions, compute: &dyn ExpertCompute) -> Result<Self, KernelError> {
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
            compute.place(Expert::new(&weights)?).map(Arc::new)
        };
        let held = Held((0..options.experts).map(expert).collect::<Result<_, _>>()?);
        Ok(Self { ty, held, options: options.clone(), random: Random::START })
    }

    /// The experts.
    #[must_use]
    pub fn experts(&self) -> &dyn ExpertSource {
        &self.held
    }

    /// Type of the weights.
    pub(super) fn block_type(&self) -> BlockType {
        self.ty
    }

    /// The next request, of `rows` rows.
    pub fn next(&mut self, rows: usize) -> Dispatch {
        request(self.ty, &mut self.random, rows, &self.options)
    }

    /// Stored bytes of the weights that `part` needs.
    pub(super) fn bytes(&self, part: &Dispatch) -> usize {
        let needed: BTreeSet<u16> = part.assignments.iter().map(|a| a.expert).collect();
        needed.len() * expert_bytes(self.ty, &self.options)
    }

    /// Reads the weights that `part` needs once; returns their bytes.
    pub(super) fn read(&self, crew: Crew, part: &Dispatch) -> usize {
        let needed: BTreeSet<u16> = part.assignments.iter().map(|a| a.expert).collect();
        let weights = needed.iter().filter_map(|e| self.held.0.get(usize::from(*e))).filter_map(|e| e.weights());
        read_once(crew, weights.flat_map(|w| [&w.gate, &w.up, &w.down]))
    }
}

/// Reads the bytes of `matrices` once; returns how many they are.
pub(super) fn read_once<'a>(crew: Crew, matrices: impl Iterator<Item = &'a Matrix>) -> usize {
    let mut pieces: Vec<_> = matrices.flat_map(|m| m.data.chunks(READ_PIECE)).map(|bytes| (bytes, 0)).collect();
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

/// Stored bytes of an expert.
pub(super) fn expert_bytes(ty: BlockType, options: &BenchOptions) -> usize {
    let bytes = |rows: usize, cols| rows * ty.row_bytes(cols).unwrap_or(0);
    2 * bytes(options.intermediate, options.hidden) + bytes(options.hidden, options.intermediate)
}

/// Random bytes under scales near 2^-8, in memory of its own.
pub(super) fn synthetic(ty: BlockType, rows: usize, cols: usize) -> Option<Matrix> {
    let mut random = Random::START;
    let mut data: Vec<u8> = Vec::with_capacity(rows * ty.row_bytes(cols)? + 8);
    while data.len() < rows * ty.row_bytes(cols)? {
        data.extend_from_slice(&random.next().to_le_bytes());
    }
    data.truncate(rows * ty.row_bytes(cols)?);
    for block in data.chunks_exact_mut(ty.block().1) {
        // Floats keep their random sign.
        let (scales, high, kept): (&[usize], u8, u8) = match ty {
            BlockType::F32 => (&[2], 0x3c, 0x80),
            BlockType::BF16 => (&[0], 0x3c, 0x80),
            BlockType::F16 => (&[0], 0x1c, 0x80),
            BlockType::Q4_K | BlockType::Q5_K => (&[0, 2], 0x1c, 0),
            BlockType::Q6_K => (&[208], 0x1c, 0),
            _ => (&[0], 0x1c, 0),
        };
        scales.iter().for_each(|at| block[at + 1] = high | block[at + 1] & kept);
    }
    Matrix::new(ty, rows, cols, data.into())
}

/// A request of `rows` rows, each with its own random experts.
fn request(ty: BlockType, random: &mut Random, rows: usize, options: &BenchOptions) -> Dispatch {
    let (mut wire, mut floats) = (Vec::new(), Vec::new());
    let gate = if ty.is_float() {
        GateWeight { mantissa: 0, exponent: 0 }
    } else {
        GateWeight { mantissa: 32768, exponent: -18 }
    };
    let (mut heads, mut assignments) = (Vec::new(), Vec::new());
    for r in 0..rows {
        let x: Vec<f32> = (0..options.hidden).map(|i| ((i * (2 * r + 3)) as f32 * 0.7).sin()).collect();
        if ty.is_float() {
            floats.extend(x);
        } else {
            // Sines are finite, so that the row always has a quantised form.
            let _ = quantise_row(&x, &mut wire);
        }
        let mut own = BTreeSet::new();
        while own.len() < options.experts_per_row.min(options.experts) {
            own.insert((random.next() % options.experts as u64) as u16);
        }
        heads.push(RowHead { grid: 0, count: own.len() as u16, first: assignments.len() as u32 });
        assignments.extend(own.iter().map(|expert| Assignment { expert: *expert, gate }));
    }
    Dispatch {
        lease: 0,
        deadline_ms: 0,
        hidden: options.hidden,
        rows: heads,
        activations: if ty.is_float() { Activations::Float(floats) } else { Activations::Exact(wire.into()) },
        assignments,
    }
}
