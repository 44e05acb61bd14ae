//! Numbers for the properties: rows and weights from plausible to absurd, all from one seed.

use std::ops::Range;

use proptest::prelude::*;

use crate::kernel::numerics::{QuantisedBlock, quantise_row};
use crate::model::{BlockType, Matrix};

/// SplitMix64: small, and the same everywhere.
pub(crate) struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// An integer whose magnitude is as likely to need one bit as thirty-one.
    pub fn any_magnitude(&mut self) -> i32 {
        let shift = self.below(32) as u32;
        (self.next() as i32) >> shift
    }

    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Roughly normal: the sum of twelve uniforms.
    pub fn gaussian(&mut self) -> f32 {
        (0..12).map(|_| self.unit()).sum::<f32>() - 6.0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// What a row of hidden state looks like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RowMode {
    Gaussian,
    HeavyTails,
    Outliers,
    Bits,
    Saturated,
    Sparse,
    OneHot,
    Tiny,
    Huge,
    MixedExponents,
}

impl RowMode {
    pub const ALL: [Self; 10] = [
        Self::Gaussian,
        Self::HeavyTails,
        Self::Outliers,
        Self::Bits,
        Self::Saturated,
        Self::Sparse,
        Self::OneHot,
        Self::Tiny,
        Self::Huge,
        Self::MixedExponents,
    ];
}

pub(crate) fn row(mode: RowMode, len: usize, random: &mut Random) -> Vec<f32> {
    let hot = random.below(len.max(1) as u64) as usize;
    let mut exponent = 0;
    let mut one = |i: usize| match mode {
        RowMode::Gaussian => random.gaussian(),
        RowMode::HeavyTails => random.gaussian() / (random.unit() + 0.01),
        RowMode::Outliers => random.gaussian() * if i % 61 == 7 { 1000.0 } else { 1.0 },
        RowMode::Bits => f32::from_bits(random.next() as u32),
        RowMode::Saturated => {
            let bits = (1905f32 / random.pick(&[1.0, 2.0, 127.0])).to_bits();
            f32::from_bits(bits + random.below(3) as u32 - 1) * random.pick(&[1.0, -1.0])
        }
        RowMode::Sparse => {
            if random.below(20) == 0 {
                random.gaussian()
            } else {
                0.0
            }
        }
        RowMode::OneHot => {
            if i == hot {
                random.gaussian()
            } else {
                0.0
            }
        }
        RowMode::Tiny => random.gaussian() * 2f32.powi(-99),
        RowMode::Huge => random.gaussian() * 2f32.powi(97),
        RowMode::MixedExponents => {
            if i.is_multiple_of(32) {
                exponent = random.below(80) as i32 - 40;
            }
            random.gaussian() * 2f32.powi(exponent)
        }
    };
    (0..len).map(&mut one).collect()
}

/// What weights look like.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WeightMode {
    /// Any bytes under any finite scale.
    Bytes,
    /// Every byte of a block the same extreme, scales extreme.
    Extreme,
    /// Scales near one power of two.
    Even,
}

/// Places of the f16 scales in a block.
fn scale_places(ty: BlockType) -> &'static [usize] {
    match ty {
        BlockType::Q4_K | BlockType::Q5_K => &[0, 2],
        BlockType::Q6_K => &[208],
        _ => &[0],
    }
}

pub(crate) fn weights(ty: BlockType, mode: WeightMode, rows: usize, cols: usize, random: &mut Random) -> Matrix {
    let mut data = vec![0u8; rows * ty.row_bytes(cols).expect("whole blocks")];
    for block in data.chunks_exact_mut(ty.block().1) {
        let fill = random.pick(&[0, 0x7f, 0x80, 0xff]);
        block.fill_with(|| if let WeightMode::Extreme = mode { fill } else { random.next() as u8 });
        for at in scale_places(ty) {
            let scale = match mode {
                WeightMode::Bytes => random.below(0x7c00) as u16 | random.pick(&[0, 0x8000]),
                WeightMode::Extreme => random.pick(&[0, 1, 0x8001, 0x3ff, 0x400, 0x3c00, 0x7bff, 0xfbff]),
                WeightMode::Even => 0x1c00 + random.below(0x800) as u16,
            };
            block[*at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
    }
    Matrix::new(ty, rows, cols, data.into()).expect("the shape fits")
}

/// Some weight rows against some quantised rows.
#[derive(Clone, Debug)]
pub(crate) struct DotCase {
    pub ty: BlockType,
    cols: usize,
    rows: usize,
    first: usize,
    xs: usize,
    row_mode: Option<RowMode>,
    weight_mode: WeightMode,
    seed: u64,
}

impl DotCase {
    pub fn weights(&self) -> Matrix {
        weights(self.ty, self.weight_mode, self.rows, self.cols, &mut Random::new(self.seed))
    }

    pub fn range(&self) -> Range<usize> {
        self.first.min(self.rows)..self.rows
    }

    /// Rows in wire form; without a mode any legal bytes, however absurd.
    pub fn wires(&self) -> Vec<Vec<u8>> {
        let mut random = Random::new(!self.seed);
        let one = |_| match self.row_mode {
            Some(mode) => {
                let mut wire = Vec::new();
                let x = row(mode, self.cols, &mut random);
                if quantise_row(&x, &mut wire).is_err() {
                    let small: Vec<f32> = x.iter().map(|v| if v.abs() < 1e30 { *v } else { 1.0 }).collect();
                    quantise_row(&small, &mut wire).expect("finite now");
                }
                wire
            }
            None => legal_row(self.cols, &mut random),
        };
        (0..self.xs).map(one).collect()
    }
}

pub(crate) fn legal_row(cols: usize, random: &mut Random) -> Vec<u8> {
    let mut wire = Vec::new();
    for start in (0..cols).step_by(256) {
        let present = (cols - start).min(256);
        let mut block = QuantisedBlock::ZERO;
        let saturated = random.below(3) == 0;
        if random.below(8) != 0 {
            block.exponent = (random.below(202) as i32 - 110) as i8;
            for step in &mut block.steps[..present.div_ceil(16)] {
                *step = if saturated { 15 } else { random.below(16) as u8 };
            }
            for value in &mut block.values[..present] {
                *value = if saturated { 127 } else { (random.below(255) as i32 - 127) as i8 };
            }
        }
        wire.extend_from_slice(&block.to_wire());
    }
    wire
}

pub(crate) fn dot_case(xs_max: usize) -> impl Strategy<Value = DotCase> {
    let types = [BlockType::Q4_K, BlockType::Q5_K, BlockType::Q6_K, BlockType::Q8_0, BlockType::Q4_0];
    let shape = prop::sample::select(types.to_vec()).prop_flat_map(|ty| {
        let cols: &[usize] = if ty.block().0 == 32 {
            &[32, 96, 256, 288, 512, 1024, 3072, 8192]
        } else {
            &[256, 512, 768, 1024, 1280, 3072, 8192]
        };
        (Just(ty), prop::sample::select(cols))
    });
    let row_mode = prop::option::of(prop::sample::select(&RowMode::ALL[..]));
    let modes = [WeightMode::Bytes, WeightMode::Extreme, WeightMode::Even];
    (shape, 1usize..40, 0usize..3, 1..=xs_max, row_mode, prop::sample::select(modes.to_vec()), any::<u64>()).prop_map(
        |((ty, cols), rows, first, xs, row_mode, weight_mode, seed)| DotCase {
            ty,
            cols,
            rows,
            first,
            xs,
            row_mode,
            weight_mode,
            seed,
        },
    )
}
