//! How experts and rows lie in GPU memory: whole 16-byte vectors, blocks as stored where they are whole vectors already.

use super::compose::Weights;
use super::params::{ExactShape, FloatShape};
use crate::kernel::experts::ExactExpert;
use crate::kernel::numerics::{ExactMatrix, QuantisedRow};
use crate::model::{ExpertWeights, Matrix};
use crate::wire::work::SUPER_BLOCK;

/// Bytes of a vec4<u32>.
pub(super) const VEC4: usize = 16;
/// Blocks of a 32-element type in a super-block.
const SMALL_BLOCKS: usize = 8;
/// Words of a prepared super-block, as `shaders/common.exact.wgsl` says.
const BLOCK_WORDS: usize = 80;
/// Elements to which rows of floats are padded.
const FLOAT_PAD: usize = 8;

/// Experts that share kernels and memory: their types and sizes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) struct ClassKey {
    /// Of gate and up.
    pub outer: Weights,
    /// Of down.
    pub inner: Weights,
    pub hidden: usize,
    pub intermediate: usize,
}

impl ClassKey {
    pub fn is_exact(self) -> bool {
        self.outer.is_exact() && self.inner.is_exact()
    }

    /// Super-blocks of a hidden state and of an inner row.
    pub fn blocks(self) -> [usize; 2] {
        [self.hidden, self.intermediate].map(|n| n.div_ceil(SUPER_BLOCK))
    }

    /// vec4 of a weight row of gate or up, and of down.
    fn row_vec4s(self) -> [usize; 2] {
        [row_vec4s(self.outer, self.hidden), row_vec4s(self.inner, self.intermediate)]
    }

    /// Starts of gate, up, down, and of their row exponents, then the end: in vec4.
    fn starts(self) -> [usize; 7] {
        let [outer, inner] = self.row_vec4s();
        let exponents = |rows: usize| if self.is_exact() { rows.div_ceil(VEC4) } else { 0 };
        let (up, down) = (self.intermediate * outer, 2 * self.intermediate * outer);
        let gate_exponents = down + self.hidden * inner;
        let up_exponents = gate_exponents + exponents(self.intermediate);
        let down_exponents = up_exponents + exponents(self.intermediate);
        [0, up, down, gate_exponents, up_exponents, down_exponents, down_exponents + exponents(self.hidden)]
    }

    /// Bytes of an expert.
    pub fn expert_bytes(self) -> usize {
        self.starts()[6] * VEC4
    }

    /// Bytes of a hidden state as the kernels read it.
    pub fn row_bytes(self) -> usize {
        if self.is_exact() { 4 * prepared_words(self.blocks()[0]) } else { 4 * self.hidden.next_multiple_of(FLOAT_PAD) }
    }

    /// Bytes of an inner row between gate and down.
    pub fn inner_bytes(self) -> usize {
        if self.is_exact() {
            4 * SUPER_BLOCK * self.blocks()[1]
        } else {
            4 * self.intermediate.next_multiple_of(FLOAT_PAD)
        }
    }

    /// Bytes of a prepared inner row; 0 for floats, which need none.
    pub fn prepared_bytes(self) -> usize {
        if self.is_exact() { 4 * prepared_words(self.blocks()[1]) } else { 0 }
    }

    /// The exact kernels' parameters for sums whose status words begin at `status_at`.
    pub fn exact_shape(self, status_at: usize) -> ExactShape {
        let [_, up, down, gate_exponents, up_exponents, down_exponents, _] = self.starts();
        ExactShape {
            outer_blocks: self.blocks()[0] as u32,
            inner_blocks: self.blocks()[1] as u32,
            inner_rows: self.intermediate as u32,
            outer_rows: self.hidden as u32,
            up_at: up as u32,
            down_at: down as u32,
            gate_exponents_at: gate_exponents as u32,
            up_exponents_at: up_exponents as u32,
            down_exponents_at: down_exponents as u32,
            status_at: status_at as u32,
            pad_a: 0,
            pad_b: 0,
        }
    }

    /// The float kernels' parameters.
    pub fn float_shape(self) -> FloatShape {
        let [_, up, down, ..] = self.starts();
        let [outer, inner] = self.row_vec4s();
        FloatShape {
            outer_vec4s: outer as u32,
            inner_vec4s: inner as u32,
            hidden_vec4s: (self.row_bytes() / VEC4) as u32,
            inner_row_vec4s: (self.inner_bytes() / VEC4) as u32,
            inner_rows: self.intermediate as u32,
            outer_rows: self.hidden as u32,
            up_at: up as u32,
            down_at: down as u32,
        }
    }
}

/// Words of a prepared row of `blocks` super-blocks.
fn prepared_words(blocks: usize) -> usize {
    (BLOCK_WORDS * blocks + blocks + 1).next_multiple_of(4)
}

/// vec4 of a weight row of `cols` elements.
fn row_vec4s(weights: Weights, cols: usize) -> usize {
    let blocks = cols.div_ceil(SUPER_BLOCK);
    match weights {
        Weights::Q4K | Weights::Q40 => 9 * blocks,
        Weights::Q5K => 11 * blocks,
        Weights::Q6K => 13 * blocks + blocks.div_ceil(8),
        Weights::Q80 => 17 * blocks,
        Weights::F32 => cols.div_ceil(4),
        Weights::F16 | Weights::Bf16 => cols.div_ceil(8),
    }
}

/// The bytes of an exact expert of class `key`.
pub(super) fn pack_exact(key: ClassKey, expert: &ExactExpert) -> Vec<u8> {
    let mut out = Vec::with_capacity(key.expert_bytes());
    let matrices = [(key.outer, &expert.gate), (key.outer, &expert.up), (key.inner, &expert.down)];
    for (weights, matrix) in matrices {
        for r in 0..matrix.rows() {
            let end = out.len() + VEC4 * row_vec4s(weights, matrix.cols());
            pack_row(weights, matrix.row(r), &mut out);
            out.resize(end, 0);
        }
    }
    for (_, matrix) in matrices {
        pack_exponents(matrix, &mut out);
    }
    out
}

fn pack_exponents(matrix: &ExactMatrix, out: &mut Vec<u8>) {
    out.extend(matrix.exponents().iter().map(|e| *e as u8));
    out.resize(out.len().next_multiple_of(VEC4), 0);
}

/// The bytes of an expert of class `key` stored as floats.
pub(super) fn pack_float(key: ClassKey, weights: &ExpertWeights) -> Vec<u8> {
    let mut out = Vec::with_capacity(key.expert_bytes());
    for matrix in [&weights.gate, &weights.up, &weights.down] {
        pack_float_rows(matrix, &mut out);
    }
    out
}

fn pack_float_rows(matrix: &Matrix, out: &mut Vec<u8>) {
    for r in 0..matrix.rows {
        out.extend_from_slice(matrix.row(r));
        out.resize(out.len().next_multiple_of(VEC4), 0);
    }
}

/// One weight row; what is missing to whole vectors is added by the caller, as zeros.
fn pack_row(weights: Weights, row: &[u8], out: &mut Vec<u8>) {
    match weights {
        // The scales follow all super-blocks: 210 bytes are no whole vectors.
        Weights::Q6K => {
            let (blocks, _) = row.as_chunks::<210>();
            blocks.iter().for_each(|block| out.extend_from_slice(&block[..208]));
            blocks.iter().for_each(|block| out.extend_from_slice(&block[208..]));
        }
        Weights::Q80 => pack_small_blocks(row, 34, out),
        Weights::Q40 => pack_small_blocks(row, 18, out),
        _ => out.extend_from_slice(row),
    }
}

/// Eight blocks at a time: their scales, then their weights; a short last super-block is filled with zeros.
fn pack_small_blocks(row: &[u8], block_bytes: usize, out: &mut Vec<u8>) {
    for blocks in row.chunks(SMALL_BLOCKS * block_bytes) {
        let end = out.len() + SMALL_BLOCKS * block_bytes;
        let scales = out.len();
        blocks.chunks_exact(block_bytes).for_each(|block| out.extend_from_slice(&block[..2]));
        out.resize(scales + 2 * SMALL_BLOCKS, 0);
        blocks.chunks_exact(block_bytes).for_each(|block| out.extend_from_slice(&block[2..]));
        out.resize(end, 0);
    }
}

/// Appends a quantised row in the form that the kernels read.
pub(super) fn prepare_row(wire: &[u8], out: &mut Vec<u8>) {
    let row = QuantisedRow::from_wire(wire);
    let blocks = row.blocks.len();
    let end = out.len() + 4 * prepared_words(blocks);
    let top = row.top().unwrap_or(0);
    for block in &row.blocks {
        out.extend(block.values.iter().map(|q| *q as u8));
        for (j, step) in block.steps.iter().enumerate() {
            let sum = block.step_sum(j) as i16;
            out.extend_from_slice(&u16::from(*step).to_le_bytes());
            out.extend_from_slice(&sum.to_le_bytes());
        }
    }
    for block in &row.blocks {
        let bits = block.bits();
        let drop = if bits > 0 { (top - block.top()).min(255) } else { 0 };
        out.extend_from_slice(&((bits | drop << 8) as u32).to_le_bytes());
    }
    out.extend_from_slice(&top.to_le_bytes());
    out.resize(end, 0);
}

/// Appends a row of floats, padded with zeros.
pub(super) fn prepare_float_row(row: &[f32], out: &mut Vec<u8>) {
    row.iter().for_each(|v| out.extend_from_slice(&v.to_le_bytes()));
    out.resize(out.len() + 4 * (row.len().next_multiple_of(FLOAT_PAD) - row.len()), 0);
}
