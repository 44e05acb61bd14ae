//! A quantised row, laid out for one weight type.

use crate::kernel::numerics::row_dot::GUARD_BITS;
use crate::kernel::numerics::{QuantisedBlock, growth_bits};
use crate::model::BlockType;
use crate::wire::work::{SUPER_BLOCK, SUPER_BLOCK_BYTES};

/// Order of the 32-element blocks that lets 64 bytes of Q4_K or Q5_K nibbles meet 64 consecutive values.
const NIBBLE_ORDER: [usize; 8] = [0, 2, 1, 3, 4, 6, 5, 7];

/// A quantised row for the kernels.
pub(in crate::kernel::cpu) struct Row {
    /// For K-quants: four super-blocks each, the last one padded with zeros.
    pub(super) wide: Vec<WideQuad>,
    /// For Q8_0 and Q4_0: four blocks of 32 each.
    pub(super) small: Vec<SmallQuad>,
    /// For tiles: super-blocks.
    pub(super) steps: Vec<Steps>,
    /// The row's top exponent; 0 when it is all zero.
    pub top: i32,
}

/// A super-block as tiles meet it: every number is broadcast to all lanes.
#[repr(C)]
pub(super) struct Steps {
    /// q, four at a time.
    pub values: [[i32; 4]; 16],
    /// s.
    pub steps: [i32; 16],
    /// Where the sums of sixteen products start: less what storing signed weights plus an offset adds.
    pub starts: [i32; 16],
    /// `s_j · Σ q` of two steps at a time, as i16.
    pub sums: [i32; 8],
    /// 31 − k − L.
    pub up: i32,
    /// 17 + Emax − E.
    pub down: i32,
}

/// Four super-blocks; lanes are in the order `super-block · 4 + weight row`.
#[repr(C, align(64))]
pub(super) struct WideQuad {
    /// q, 64 at a time as the weights' bytes meet them.
    pub values: [[[i8; 64]; 4]; 4],
    /// s, two super-blocks at a time.
    pub steps: [[i16; 32]; 2],
    /// Low bytes of `s_j · Σ q`, as signed numbers: 16 per super-block.
    pub sums_low: [i8; 64],
    /// What is left of them, divided by 256.
    pub sums_high: [i8; 64],
    /// `2^12 · Σ s_j Σ q`: what reading Q6_K's signed factors as unsigned adds.
    pub bias: [i32; 16],
    /// 31 − k − L.
    pub up: [i32; 16],
    /// 17 + Emax − E.
    pub down: [i32; 16],
}

/// Four blocks of 32.
#[repr(C, align(64))]
pub(super) struct SmallQuad {
    /// q, 64 at a time as the weights' bytes meet them.
    pub values: [[i8; 64]; 2],
    /// s for each of the 32 lanes of two products (Q8_0).
    pub lane_steps: [[i32; 16]; 2],
    /// s for each pair of packed lanes (Q4_0).
    pub packed_steps: [i16; 32],
    /// What reading signed weights as unsigned adds; lanes as in [`WideQuad`].
    pub bias: [i32; 16],
    /// 31 − k − L.
    pub up: [i32; 16],
    /// 17 + Emax − E.
    pub down: [i32; 16],
}

/// Numbers of a super-block that every layout needs.
struct Derived {
    block: QuantisedBlock,
    /// Σ q.
    plain_sums: [i32; 16],
    /// s_j · Σ q.
    sums: [i32; 16],
    /// L.
    bits: i32,
}

impl Derived {
    fn new(wire: &[u8; SUPER_BLOCK_BYTES]) -> Self {
        let block = QuantisedBlock::from_wire(wire);
        let (mut plain_sums, mut sums) = ([0; 16], [0; 16]);
        let mut total = 0;
        let groups = block.values.as_chunks::<16>().0.iter().zip(block.steps);
        for ((plain, sum), (values, step)) in plain_sums.iter_mut().zip(&mut sums).zip(groups) {
            let step = i32::from(step);
            *plain = values.iter().map(|q| i32::from(*q)).sum::<i32>();
            *sum = step * *plain;
            total += step * values.iter().map(|q| i32::from(q.unsigned_abs())).sum::<i32>();
        }
        Self { block, plain_sums, sums, bits: 32 - total.leading_zeros() as i32 }
    }

    /// E.
    fn top(&self) -> i32 {
        i32::from(self.block.exponent) + self.bits
    }
}

/// Lays out whole super-blocks in wire form for weights of type `ty`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx512vbmi,avx512vnni")]
pub(super) fn prepare(ty: BlockType, wire: &[u8]) -> Row {
    let blocks: Vec<Derived> = wire.as_chunks::<SUPER_BLOCK_BYTES>().0.iter().map(Derived::new).collect();
    let top = blocks.iter().filter(|b| b.bits > 0).map(Derived::top).max().unwrap_or(0);
    let (mut wide, mut small) = (Vec::new(), Vec::new());
    if ty.block().0 == SUPER_BLOCK {
        wide.extend(blocks.chunks(4).map(|four| wide_quad(ty, four, top)));
    } else {
        small.reserve(2 * blocks.len());
        for block in &blocks {
            small.extend([small_quad(ty, block, 0, top), small_quad(ty, block, 1, top)]);
        }
    }
    let steps = blocks.iter().map(|block| steps(ty, block, top)).collect();
    Row { wide, small, steps, top }
}

#[inline]
fn steps(ty: BlockType, block: &Derived, top: i32) -> Steps {
    let offset = match ty {
        BlockType::Q4_K | BlockType::Q5_K => 0,
        BlockType::Q6_K => 32,
        BlockType::Q4_0 => 8,
        _ => 128,
    };
    let (up, down) = shifts(ty, block, top);
    let fours = block.block.values.as_chunks::<4>().0;
    let four = |i: usize| i32::from_le_bytes(fours[i].map(|q| q as u8));
    let sums = block.sums.as_chunks::<2>().0;
    Steps {
        values: std::array::from_fn(|j| std::array::from_fn(|c| four(4 * j + c))),
        steps: block.block.steps.map(i32::from),
        starts: block.plain_sums.map(|sum| -offset * sum),
        sums: std::array::from_fn(|p| (sums[p][0] & 0xffff) | sums[p][1] << 16),
        up,
        down,
    }
}

fn shifts(ty: BlockType, block: &Derived, top: i32) -> (i32, i32) {
    let down = if block.bits == 0 { GUARD_BITS } else { GUARD_BITS + top - block.top() };
    (31 - growth_bits(ty) - block.bits, down)
}

#[inline]
fn wide_quad(ty: BlockType, four: &[Derived], top: i32) -> WideQuad {
    let mut quad = WideQuad {
        values: [[[0; 64]; 4]; 4],
        steps: [[0; 32]; 2],
        sums_low: [0; 64],
        sums_high: [0; 64],
        bias: [0; 16],
        up: [0; 16],
        down: [GUARD_BITS; 16],
    };
    for (i, block) in four.iter().enumerate() {
        for (place, target) in quad.values[i].as_flattened_mut().as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let source = if ty == BlockType::Q6_K { place } else { NIBBLE_ORDER[place] };
            *target = block.block.values.as_chunks::<32>().0[source];
        }
        for j in 0..16 {
            quad.steps[i / 2][i % 2 * 16 + j] = i16::from(block.block.steps[j]);
            let low = block.sums[j] as i8;
            quad.sums_low[i * 16 + j] = low;
            quad.sums_high[i * 16 + j] = ((block.sums[j] - i32::from(low)) >> 8) as i8;
        }
        let (up, down) = shifts(ty, block, top);
        quad.bias[4 * i..4 * i + 4].fill(block.sums.iter().sum::<i32>() << 12);
        quad.up[4 * i..4 * i + 4].fill(up);
        quad.down[4 * i..4 * i + 4].fill(down);
    }
    quad
}

#[inline]
fn small_quad(ty: BlockType, block: &Derived, half: usize, top: i32) -> SmallQuad {
    let (up, down) = shifts(ty, block, top);
    let values = &block.block.values.as_chunks::<128>().0[half];
    let steps = &block.block.steps.as_chunks::<8>().0[half];
    let sums = &block.sums.as_chunks::<8>().0[half];
    let nibbles = ty == BlockType::Q4_0;
    let offset = if nibbles { 8 } else { 128 };
    // Q4_0: low nibbles of four blocks, then their high nibbles.
    let place = |i: usize| if nibbles { i / 16 % 4 * 32 + i / 64 * 16 + i % 16 } else { i };
    SmallQuad {
        values: std::array::from_fn(|v| std::array::from_fn(|i| values[place(v * 64 + i)])),
        lane_steps: std::array::from_fn(|v| std::array::from_fn(|lane| i32::from(steps[v * 4 + lane / 4]))),
        packed_steps: std::array::from_fn(|lane| i16::from(steps[lane / 8 * 2 + lane % 8 / 4])),
        bias: std::array::from_fn(|lane| offset * (sums[lane / 4 * 2] + sums[lane / 4 * 2 + 1])),
        up: [up; 16],
        down: [down; 16],
    }
}
