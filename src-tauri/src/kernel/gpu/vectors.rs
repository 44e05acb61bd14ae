//! Known work and what its results must be: whether kernels compute what the numerics define.
//!
//! Experts and rows are random bytes of one seed, small, and reach what real ones seldom do: subnormal and zero scales,
//! outliers, zero blocks, a row whose sums do not fit and one that no quantised row holds. The digests are those of
//! the scalar specification, which a test below compares; they stand here so that a machine need not run it. Floats
//! promise no bits and have no digest.

use crate::kernel::experts::{Expert, KernelError};
use crate::kernel::numerics::quantise_row;
use crate::model::{ExpertWeights, Matrix};
use crate::types::GateWeight;
use crate::wire::work::{Activations, Assignment, Dispatch, PartialValues, Partials, RowHead};

use super::compose::{TileRows, Weights};

/// Experts of a vector; every row needs all of them.
const EXPERTS: u16 = 2;
/// Seed of everything random.
const SEED: u64 = 0x6b76_6173_6972;

/// BLAKE3 of the results for each type and each size of tile, smallest first.
const DIGESTS: [(Weights, [&str; 4]); 5] = [
    (
        Weights::Q4K,
        [
            "e4297b2bf5e9419ef1f7576e722d976b",
            "666f2b92762dcfd74aa55f88f0fd9212",
            "e3c43f0b3411572af4e1da6ab5eca45a",
            "2e7668f892f87771d3e266bc67c6d202",
        ],
    ),
    (
        Weights::Q5K,
        [
            "7a341178ecf7a46ef506328a95ebe53a",
            "b50cbe88d290b101c621e6f001b11e72",
            "9e03f779af2967c8c5c1021db462c315",
            "d7335b17fce9fb9347157cec1ccd9b70",
        ],
    ),
    (
        Weights::Q6K,
        [
            "fa8d40d4cf6a554805c61f10d1fdbf86",
            "b68dcf6e89afe1b8c645318ec15e722d",
            "df41eaee1a130e273de4b4092f79e9aa",
            "124107d9a25e4e1c86beae0876e01b19",
        ],
    ),
    (
        Weights::Q80,
        [
            "c76afca2861a71995edd592a159cbb9a",
            "2af36299a5618f14e75fe31e207e584a",
            "4ac6e9e5d0b184b5dcd9a2d4f04af288",
            "85903d11bb94b24bb47242c71a7d87c7",
        ],
    ),
    (
        Weights::Q40,
        [
            "541a3eaaeb71d4f0f8fc727bc4707bac",
            "28194fa7cdfb7aed43ab7d7d25b6ed41",
            "29aaa754af9fbf7d44b6d8d41cf64c08",
            "490d0e137d51b8d8ea9ed073c5b75f78",
        ],
    ),
];

/// The digest that the results for `weights` and `tile` must have; `None` for floats, which promise no bits.
pub(super) fn expected(weights: Weights, tile: TileRows) -> Option<&'static str> {
    let place = TileRows::ALL.iter().position(|t| *t == tile)?;
    DIGESTS.iter().find(|(w, _)| *w == weights).map(|(_, digests)| digests[place])
}

/// The digest of results: statuses, then sums.
pub(super) fn digest(partials: &Partials) -> String {
    let mut hasher = blake3::Hasher::new();
    partials.status.iter().for_each(|status| _ = hasher.update(&[*status as u8]));
    match &partials.values {
        PartialValues::Exact(sums) => sums.iter().for_each(|sum| _ = hasher.update(&sum.to_le_bytes())),
        PartialValues::Float(values) => values.iter().for_each(|value| _ = hasher.update(&value.to_le_bytes())),
    }
    hasher.finalize().to_hex()[..32].to_string()
}

/// Hidden and intermediate size: several super-blocks, the last one short where the type allows it.
pub(super) const fn sizes(weights: Weights) -> [usize; 2] {
    match weights {
        Weights::Q80 | Weights::Q40 => [800, 288],
        _ => [768, 512],
    }
}

/// The experts of a type.
///
/// # Errors
/// The sizes do not fit the type.
pub(super) fn experts(weights: Weights) -> Result<Vec<Expert>, KernelError> {
    let [hidden, intermediate] = sizes(weights);
    let mut random = SplitMix(SEED ^ weights.block_type() as u64);
    let mut matrix = |rows, cols| synthetic(weights, rows, cols, &mut random);
    let mut expert = |_| {
        Expert::new(&ExpertWeights {
            gate: matrix(intermediate, hidden)?,
            up: matrix(intermediate, hidden)?,
            down: matrix(hidden, intermediate)?,
        })
    };
    (0..EXPERTS).map(&mut expert).collect()
}

/// Rows that fill a tile, but for three where it holds eight or more.
const fn rows_in(tile: TileRows) -> usize {
    match tile {
        TileRows::One => 1,
        TileRows::Four => 4,
        TileRows::Eight => 7,
        TileRows::Sixteen => 13,
    }
}

/// The request that fills tiles of one size.
pub(super) fn request(weights: Weights, tile: TileRows) -> Dispatch {
    let hidden = sizes(weights)[0];
    let mut random = SplitMix(SEED ^ (u64::from(tile.count()) << 32));
    if !weights.is_exact() {
        return float_request(hidden, rows_in(tile), &mut random);
    }
    let (mut wire, mut rows, mut assignments) = (Vec::new(), Vec::new(), Vec::new());
    for r in 0..rows_in(tile) {
        let kind = Kind::ALL[r % Kind::ALL.len()];
        let x: Vec<f32> = (0..hidden).map(|i| kind.element(i, &mut random)).collect();
        // Far below 2^101, so that the row always has a quantised form; its inner row may have none.
        let _ = quantise_row(&x, &mut wire);
        rows.push(RowHead { grid: kind.grid(weights), count: EXPERTS, first: assignments.len() as u32 });
        assignments.extend((0..EXPERTS).map(|expert| {
            let mantissa = 32768 + (random.next() >> 49) as u16;
            Assignment { expert, gate: GateWeight { mantissa, exponent: -(16 + (random.next() >> 61) as i8) } }
        }));
    }
    Dispatch { lease: 0, deadline_ms: 0, hidden, rows, activations: Activations::Exact(wire.into()), assignments }
}

/// Even rows of floats.
fn float_request(hidden: usize, count: usize, random: &mut SplitMix) -> Dispatch {
    let gate = GateWeight { mantissa: 0, exponent: 0 };
    let head = |r| RowHead { grid: 0, count: EXPERTS, first: r * u32::from(EXPERTS) };
    Dispatch {
        lease: 0,
        deadline_ms: 0,
        hidden,
        rows: (0..count as u32).map(head).collect(),
        activations: Activations::Float((0..count * hidden).map(|_| even(random.next())).collect()),
        assignments: (0..count).flat_map(|_| (0..EXPERTS).map(|expert| Assignment { expert, gate })).collect(),
    }
}

/// What a row is like.
#[derive(Clone, Copy)]
enum Kind {
    Even,
    Outliers,
    Sparse,
    Tiny,
    /// Sums that do not fit the grid.
    Range,
    /// An inner row that cannot be quantised.
    Poison,
}

impl Kind {
    const ALL: [Self; 6] = [Self::Even, Self::Outliers, Self::Sparse, Self::Tiny, Self::Range, Self::Poison];

    fn element(self, i: usize, random: &mut SplitMix) -> f32 {
        let bits = random.next();
        let even = even(bits);
        match self {
            Self::Even | Self::Range => even,
            Self::Outliers if bits.is_multiple_of(61) => even * 512.0,
            Self::Outliers => even,
            Self::Sparse if (i / 40).is_multiple_of(3) => even,
            Self::Sparse => 0.0,
            Self::Tiny => even / (1 << 20) as f32,
            Self::Poison => even * 2f32.powi(70),
        }
    }

    /// A grid on which the largest sums have some twenty bits.
    const fn grid(self, weights: Weights) -> i8 {
        // The largest outputs of even rows have so many bits above 2^0.
        let even = match weights {
            Weights::Q4K => 17,
            Weights::Q5K => 20,
            Weights::Q6K => 23,
            Weights::Q80 => 11,
            _ => -2,
        };
        match self {
            Self::Even | Self::Sparse | Self::Poison => even - 24,
            Self::Outliers => even - 11,
            Self::Tiny => even - 64,
            Self::Range => -100,
        }
    }
}

/// Random bytes under scales of a few powers of two, some of them subnormal or zero; random numbers as floats.
pub(super) fn synthetic(
    weights: Weights,
    rows: usize,
    cols: usize,
    random: &mut SplitMix,
) -> Result<Matrix, KernelError> {
    let ty = weights.block_type();
    let wrong = KernelError::Request { what: "columns, in blocks", expected: ty.block().0, got: cols };
    let bytes = rows * ty.row_bytes(cols).ok_or_else(|| wrong.clone())?;
    let mut data = Vec::with_capacity(bytes + 8);
    while data.len() < bytes {
        match weights {
            Weights::F32 => data.extend_from_slice(&random.small().to_le_bytes()),
            Weights::F16 => data.extend_from_slice(&half::f16::from_f32(random.small()).to_le_bytes()),
            Weights::Bf16 => data.extend_from_slice(&half::bf16::from_f32(random.small()).to_le_bytes()),
            _ => data.extend_from_slice(&random.next().to_le_bytes()),
        }
    }
    data.truncate(bytes);
    let scales: &[usize] = match weights {
        Weights::Q4K | Weights::Q5K => &[0, 2],
        Weights::Q6K => &[208],
        Weights::Q80 | Weights::Q40 => &[0],
        Weights::F32 | Weights::F16 | Weights::Bf16 => &[],
    };
    for block in data.chunks_exact_mut(ty.block().1) {
        for at in scales {
            block[*at..at + 2].copy_from_slice(&random.scale().to_le_bytes());
        }
    }
    Matrix::new(ty, rows, cols, data.into()).ok_or(wrong)
}

/// A number in −2..2, of 24 bits.
fn even(bits: u64) -> f32 {
    ((bits >> 40) as f32 - (1 << 23) as f32) / (1 << 22) as f32
}

/// Steele, Lea and Flood's generator.
pub(super) struct SplitMix(pub u64);

impl SplitMix {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A weight of a float matrix.
    fn small(&mut self) -> f32 {
        even(self.next()) / 16.0
    }

    /// The bits of an f16 between 2^-11 and 2^-7, of either sign; one of sixteen is subnormal, one zero.
    fn scale(&mut self) -> u16 {
        let bits = self.next();
        let (sign, mantissa) = ((bits >> 48) as u16 & 0x8000, bits as u16 & 0x3ff);
        match (bits >> 16) & 15 {
            0 => sign,
            1 => sign | mantissa,
            _ => sign | (4 + (bits >> 24) as u16 % 4) << 10 | mantissa,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::numerics::{self, ExactMatrix, QuantisedRow, WeighedError};
    use crate::wire::work::{RowStatus, SUPER_BLOCK_BYTES, super_blocks};

    /// The scalar specification's answer.
    fn specified(weights: Weights, tile: TileRows) -> Partials {
        let experts = experts(weights).expect("exact");
        let request = request(weights, tile);
        let Activations::Exact(wire) = &request.activations else { panic!("exact rows") };
        let row_bytes = super_blocks(request.hidden) * SUPER_BLOCK_BYTES;
        let (mut status, mut sums) = (Vec::new(), Vec::new());
        for (head, wire) in request.rows.iter().zip(wire.chunks_exact(row_bytes)) {
            let x = QuantisedRow::from_wire(wire);
            let (mut worst, mut sum) = (RowStatus::Ok, vec![0i32; request.hidden]);
            for assignment in &request.assignments[head.first as usize..][..usize::from(head.count)] {
                let stored = experts[usize::from(assignment.expert)].weights().expect("in host memory");
                let [gate, up, down] =
                    [&stored.gate, &stored.up, &stored.down].map(|m| ExactMatrix::new(m).expect("finite"));
                match numerics::expert([&gate, &up, &down], &x, assignment.gate, head.grid) {
                    Ok(outputs) => sum.iter_mut().zip(outputs).for_each(|(s, o)| *s = s.wrapping_add(o)),
                    Err(WeighedError::Poison(_)) => worst = RowStatus::Poison,
                    Err(WeighedError::Range(_)) if worst == RowStatus::Ok => worst = RowStatus::Range,
                    Err(WeighedError::Range(_)) => {}
                }
            }
            if worst != RowStatus::Ok {
                sum.fill(0);
            }
            status.push(worst);
            sums.extend(sum);
        }
        Partials { status, values: PartialValues::Exact(sums) }
    }

    #[test]
    fn the_specification_gives_the_pinned_digests() {
        let mut wrong = Vec::new();
        for weights in Weights::EXACT {
            for tile in TileRows::ALL {
                let got = digest(&specified(weights, tile));
                if expected(weights, tile) != Some(&got) {
                    wrong.push(format!("{weights} × {}: {got}", tile.count()));
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn the_vectors_reach_every_status_and_have_sums_of_many_bits() {
        for weights in Weights::EXACT {
            let answer = specified(weights, TileRows::Sixteen);
            let PartialValues::Exact(sums) = &answer.values else { panic!("exact sums") };
            let hidden = request(weights, TileRows::Sixteen).hidden;
            for (r, (status, sums)) in answer.status.iter().zip(sums.chunks(hidden)).enumerate() {
                let large = sums.iter().filter(|sum| sum.unsigned_abs() > 1 << 10).count();
                match r % Kind::ALL.len() {
                    4 => assert_eq!(*status, RowStatus::Range, "{weights} row {r}"),
                    5 => assert_eq!(*status, RowStatus::Poison, "{weights} row {r}"),
                    _ => {
                        assert_eq!(*status, RowStatus::Ok, "{weights} row {r}");
                        assert!(2 * large > hidden, "{weights} row {r}: {large} large sums");
                    }
                }
            }
        }
    }

    #[test]
    fn floats_have_no_pinned_digest() {
        assert_eq!(expected(Weights::Bf16, TileRows::One), None);
    }
}
