//! From a typed configuration to the WGSL of one kernel: the only place where shader text is put together.
//!
//! A kernel is a generated list of constants and whole files of `shaders/`, in a fixed order; nothing inside a file is
//! replaced. WGSL reads declarations in any order, so a file may use what a later one declares.

use std::fmt;
use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::model::BlockType;

/// How a kernel reads weights: one fragment of `shaders/` each.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Weights {
    /// 4.5 bits, with minima.
    #[serde(rename = "q4_k")]
    Q4K,
    /// 5.5 bits, with minima.
    #[serde(rename = "q5_k")]
    Q5K,
    /// 6.6 bits.
    #[serde(rename = "q6_k")]
    Q6K,
    /// 8.5 bits.
    #[serde(rename = "q8_0")]
    Q80,
    /// 4.5 bits.
    #[serde(rename = "q4_0")]
    Q40,
    /// Plain f32.
    F32,
    /// Plain f16.
    F16,
    /// Plain bf16.
    Bf16,
}

impl Weights {
    /// Every one.
    pub const ALL: [Self; 8] =
        [Self::Q4K, Self::Q5K, Self::Q6K, Self::Q80, Self::Q40, Self::F32, Self::F16, Self::Bf16];

    /// Those of the exact function.
    pub const EXACT: [Self; 5] = [Self::Q4K, Self::Q5K, Self::Q6K, Self::Q80, Self::Q40];

    /// How matrices of type `ty` are read; `None` when no kernel reads them.
    #[must_use]
    pub const fn of(ty: BlockType) -> Option<Self> {
        Some(match ty {
            BlockType::Q4_K => Self::Q4K,
            BlockType::Q5_K => Self::Q5K,
            BlockType::Q6_K => Self::Q6K,
            BlockType::Q8_0 => Self::Q80,
            BlockType::Q4_0 => Self::Q40,
            BlockType::F32 => Self::F32,
            BlockType::F16 => Self::F16,
            BlockType::BF16 => Self::Bf16,
            _ => return None,
        })
    }

    /// The type of the matrices.
    #[must_use]
    pub const fn block_type(self) -> BlockType {
        match self {
            Self::Q4K => BlockType::Q4_K,
            Self::Q5K => BlockType::Q5_K,
            Self::Q6K => BlockType::Q6_K,
            Self::Q80 => BlockType::Q8_0,
            Self::Q40 => BlockType::Q4_0,
            Self::F32 => BlockType::F32,
            Self::F16 => BlockType::F16,
            Self::Bf16 => BlockType::BF16,
        }
    }

    /// Whether the exact function covers it.
    #[must_use]
    pub const fn is_exact(self) -> bool {
        self.block_type().is_exact()
    }

    const fn fragment(self) -> &'static str {
        match self {
            Self::Q4K => include_str!("../../../../shaders/weights.q4_k.wgsl"),
            Self::Q5K => include_str!("../../../../shaders/weights.q5_k.wgsl"),
            Self::Q6K => include_str!("../../../../shaders/weights.q6_k.wgsl"),
            Self::Q80 => include_str!("../../../../shaders/weights.q8_0.wgsl"),
            Self::Q40 => include_str!("../../../../shaders/weights.q4_0.wgsl"),
            Self::F32 => include_str!("../../../../shaders/weights.f32.wgsl"),
            Self::F16 => include_str!("../../../../shaders/weights.f16.wgsl"),
            Self::Bf16 => include_str!("../../../../shaders/weights.bf16.wgsl"),
        }
    }
}

impl fmt::Display for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.block_type().name())
    }
}

/// Rows of activations that a tile holds at most; the weights of a tile are read once for all of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TileRows {
    /// One row: decode.
    One,
    /// Up to 4.
    Four,
    /// Up to 8.
    Eight,
    /// Up to 16.
    Sixteen,
}

impl TileRows {
    /// Every one, smallest first.
    pub const ALL: [Self; 4] = [Self::One, Self::Four, Self::Eight, Self::Sixteen];

    /// The number.
    #[must_use]
    pub const fn count(self) -> u32 {
        match self {
            Self::One => 1,
            Self::Four => 4,
            Self::Eight => 8,
            Self::Sixteen => 16,
        }
    }

    /// The smallest that holds `rows`; the largest when none does.
    #[must_use]
    pub fn holding(rows: usize) -> Self {
        Self::ALL.into_iter().find(|t| t.count() as usize >= rows).unwrap_or(Self::Sixteen)
    }
}

/// How a kernel's work is dealt to threads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Tiling {
    /// Threads that share a weight row; a power of two.
    pub lanes: u32,
    /// Weight rows of a workgroup.
    pub rows: u32,
    /// Whether eight neighbouring lanes share a super-block and add up by subgroup shuffles: needs at least 8 lanes, and
    /// subgroups whose lanes are neighbours.
    pub shared_blocks: bool,
}

/// The two kernels that read weights.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// gate_proj and up_proj, and their SwiGLU.
    GateUp,
    /// down_proj, weighted and added up; for float weights neither.
    Down,
}

/// A kernel that reads weights.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct MatrixKernel {
    /// What it computes.
    pub op: Op,
    /// What it reads.
    pub weights: Weights,
    /// Rows of activations of a tile.
    pub tile: TileRows,
    /// Its threads.
    pub tiling: Tiling,
}

impl MatrixKernel {
    /// Columns that one thread computes: activations that share an unpacked weight.
    const fn width(self) -> u32 {
        if self.weights.is_exact() && !matches!(self.tile, TileRows::One) { 4 } else { 1 }
    }

    /// Threads beside each other that compute different columns of a weight row.
    const fn sets(self) -> u32 {
        self.tile.count() / self.width()
    }

    /// Threads of a workgroup.
    #[must_use]
    pub const fn workgroup(self) -> u32 {
        self.tiling.lanes * self.sets() * self.tiling.rows
    }

    /// The WGSL; its entry point is `main`.
    #[must_use]
    pub fn source(self) -> String {
        let Tiling { lanes, rows, shared_blocks } = self.tiling;
        let mut out = String::with_capacity(1 << 14);
        let _ = writeln!(
            out,
            "const LANES: u32 = {lanes}u;\nconst ROWS: u32 = {rows}u;\nconst SETS: u32 = {}u;\nconst WORKGROUP: u32 = {}u;",
            self.sets(),
            self.workgroup()
        );
        let fragments: &[&str] = if self.weights.is_exact() {
            &[
                include_str!("../../../../shaders/common.exact.wgsl"),
                if self.width() == 1 {
                    include_str!("../../../../shaders/columns.one.wgsl")
                } else {
                    include_str!("../../../../shaders/columns.four.wgsl")
                },
                if shared_blocks {
                    include_str!("../../../../shaders/split.eight.wgsl")
                } else {
                    include_str!("../../../../shaders/split.none.wgsl")
                },
                self.weights.fragment(),
                include_str!("../../../../shaders/unit.exact.wgsl"),
                match self.op {
                    Op::GateUp => include_str!("../../../../shaders/swiglu.exact.wgsl"),
                    Op::Down => include_str!("../../../../shaders/output.exact.wgsl"),
                },
                match self.op {
                    Op::GateUp => include_str!("../../../../shaders/gate_up.exact.wgsl"),
                    Op::Down => include_str!("../../../../shaders/down.exact.wgsl"),
                },
            ]
        } else {
            &[
                include_str!("../../../../shaders/common.float.wgsl"),
                self.weights.fragment(),
                match self.op {
                    Op::GateUp => include_str!("../../../../shaders/gate_up.float.wgsl"),
                    Op::Down => include_str!("../../../../shaders/down.float.wgsl"),
                },
            ]
        };
        out.extend(fragments.iter().copied());
        out
    }
}

impl fmt::Display for MatrixKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = match self.op {
            Op::GateUp => "gate_up",
            Op::Down => "down",
        };
        let Tiling { lanes, rows, shared_blocks } = self.tiling;
        let shared = if shared_blocks { ", shared blocks" } else { "" };
        write!(f, "{op} {} × {} rows ({lanes} lanes × {rows} weight rows{shared})", self.weights, self.tile.count())
    }
}

/// The WGSL that turns inner rows into prepared rows; its entry point is `main`.
#[must_use]
pub fn quantise_source() -> String {
    [include_str!("../../../../shaders/common.exact.wgsl"), include_str!("../../../../shaders/quantise.exact.wgsl")]
        .concat()
}
