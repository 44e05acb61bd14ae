//! Plain Rust that compilers vectorise: the path of every CPU without a path of its own.
//!
//! Weights are unpacked once per pass to sixteen bits and then met by all rows of the pass.

mod unpack;

use super::engine::{Engine, Pass, ROWS_PER_PASS};
use crate::kernel::numerics::row_dot::GUARD_BITS;
use crate::kernel::numerics::{QuantisedBlock, QuantisedRow, growth_bits};
use crate::model::BlockType;
use crate::wire::work::SUPER_BLOCK;
use unpack::{SuperBlock, unpack};

/// The engine that needs nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Portable;

/// A quantised row, unpacked.
pub(super) struct Row {
    blocks: Vec<Block>,
    top: i32,
}

struct Block {
    /// q.
    values: [i16; SUPER_BLOCK],
    /// s_j.
    steps: [i32; 16],
    /// s_j · Σ q.
    sums: [i32; 16],
    /// 31 − L: with k less, how far a sum can be shifted up.
    room: i32,
    /// 17 + Emax − E; any legal number for a block without values.
    down: i32,
}

impl Row {
    fn new(row: &QuantisedRow) -> Self {
        let top = row.top().unwrap_or(0);
        let block = |b: &QuantisedBlock| Block {
            values: b.values.map(i16::from),
            steps: b.steps.map(i32::from),
            sums: std::array::from_fn(|j| b.step_sum(j) as i32),
            room: 31 - b.bits(),
            down: if b.bits() == 0 { GUARD_BITS } else { GUARD_BITS + top - b.top() },
        };
        Self { blocks: row.blocks.iter().map(block).collect(), top }
    }
}

impl Engine for Portable {
    type Row = Row;

    fn row(self, _ty: BlockType, wire: &[u8]) -> Row {
        Row::new(&QuantisedRow::from_wire(wire))
    }

    fn top(row: &Row) -> i32 {
        row.top
    }

    fn dots(self, pass: &Pass<'_>, xs: &[&Row], out: &mut [i32]) {
        let Pass { weights, rows, .. } = pass.clone();
        let (ty, n) = (weights.ty(), rows.len());
        let growth = growth_bits(ty);
        let bytes_per_block = SUPER_BLOCK / ty.block().0 * ty.block().1;
        let mut unpacked = SuperBlock::default();
        for (r, row) in rows.enumerate() {
            let exponent = i32::from(weights.exponents()[row]);
            let mut sums = [0i32; ROWS_PER_PASS];
            for (b, bytes) in weights.row(row).chunks(bytes_per_block).enumerate() {
                unpack(ty, bytes, &mut unpacked);
                for (sum, x) in sums.iter_mut().zip(xs) {
                    *sum = sum.wrapping_add(unpacked.times(&x.blocks[b], growth, exponent));
                }
            }
            for (x, sum) in sums.iter().enumerate().take(xs.len()) {
                out[x * n + r] = *sum;
            }
        }
    }
}

impl SuperBlock {
    /// The rounded terms of all units with one block of a row.
    fn times(&self, x: &Block, growth: i32, row_exponent: i32) -> i32 {
        let mut products = [0i32; 16];
        let pairs = self.weights.as_chunks::<16>().0.iter().zip(x.values.as_chunks::<16>().0);
        for ((product, (weights, values)), (factor, step)) in
            products.iter_mut().zip(pairs).zip(self.factors.iter().zip(&x.steps))
        {
            let dot: i32 = weights.iter().zip(values).map(|(w, q)| i32::from(*w) * i32::from(*q)).sum();
            *product = dot * factor * step;
        }
        let (up, down) = (x.room - growth, x.down + row_exponent);
        if let Some(minimum) = &self.minimum {
            let total: i32 = products.iter().sum();
            let less: i32 = minimum.factors.iter().zip(&x.sums).map(|(m, s)| m * s).sum();
            return self.scales[0].term(total, up, down) - minimum.scale.term(less, up, down);
        }
        let per_unit = products.chunks(16 / self.units).zip(&self.scales);
        per_unit.map(|(products, scale)| scale.term(products.iter().sum(), up, down)).sum()
    }
}
