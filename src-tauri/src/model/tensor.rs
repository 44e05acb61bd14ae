//! Element types as they are stored, and a matrix of them.

use super::Data;

/// How a tensor's elements are stored. The numbers are ggml's type ids.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
#[repr(u32)]
#[expect(non_camel_case_types, missing_docs, reason = "the names are the field's own")]
pub enum BlockType {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q5_0 = 6,
    Q5_1 = 7,
    Q8_0 = 8,
    Q2_K = 10,
    Q3_K = 11,
    Q4_K = 12,
    Q5_K = 13,
    Q6_K = 14,
    IQ4_NL = 20,
    IQ4_XS = 23,
    BF16 = 30,
    MXFP4 = 39,
    NVFP4 = 40,
}

impl BlockType {
    /// Every type that can be read.
    pub const ALL: [Self; 17] = [
        Self::F32,
        Self::F16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2_K,
        Self::Q3_K,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::IQ4_NL,
        Self::IQ4_XS,
        Self::BF16,
        Self::MXFP4,
        Self::NVFP4,
    ];

    /// The type with ggml id `id`.
    #[must_use]
    pub fn from_ggml(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|t| *t as u32 == id)
    }

    /// Elements and bytes of a block.
    #[must_use]
    pub const fn block(self) -> (usize, usize) {
        match self {
            Self::F32 => (1, 4),
            Self::F16 | Self::BF16 => (1, 2),
            Self::Q4_0 | Self::IQ4_NL => (32, 18),
            Self::Q4_1 => (32, 20),
            Self::Q5_0 => (32, 22),
            Self::Q5_1 => (32, 24),
            Self::Q8_0 => (32, 34),
            Self::Q2_K => (256, 84),
            Self::Q3_K => (256, 110),
            Self::Q4_K => (256, 144),
            Self::Q5_K => (256, 176),
            Self::Q6_K => (256, 210),
            Self::IQ4_XS => (256, 136),
            Self::MXFP4 => (32, 17),
            Self::NVFP4 => (64, 36),
        }
    }

    /// Bytes of a row of `cols` elements; `None` when the row is not whole blocks or the size overflows.
    #[must_use]
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        let (elements, bytes) = self.block();
        if !cols.is_multiple_of(elements) { None } else { (cols / elements).checked_mul(bytes) }
    }

    /// Whether routed experts of this type go through the exact integer function.
    #[must_use]
    pub const fn is_exact(self) -> bool {
        matches!(self, Self::Q4_K | Self::Q5_K | Self::Q6_K | Self::Q8_0 | Self::Q4_0)
    }

    /// The field's name of the type, as messages and manifests write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q2_K => "Q2_K",
            Self::Q3_K => "Q3_K",
            Self::Q4_K => "Q4_K",
            Self::Q5_K => "Q5_K",
            Self::Q6_K => "Q6_K",
            Self::IQ4_NL => "IQ4_NL",
            Self::IQ4_XS => "IQ4_XS",
            Self::BF16 => "BF16",
            Self::MXFP4 => "MXFP4",
            Self::NVFP4 => "NVFP4",
        }
    }

    /// The type called `name`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|ty| ty.name() == name)
    }

    /// `bytes` of a float type as f32 values; `None` for quantised types.
    #[must_use]
    pub fn floats(self, bytes: &[u8]) -> Option<Vec<f32>> {
        let (singles, _) = bytes.as_chunks::<4>();
        let (halves, _) = bytes.as_chunks::<2>();
        match self {
            Self::F32 => Some(singles.iter().map(|b| f32::from_le_bytes(*b)).collect()),
            Self::F16 => Some(halves.iter().map(|b| half::f16::from_le_bytes(*b).to_f32()).collect()),
            Self::BF16 => Some(halves.iter().map(|b| half::bf16::from_le_bytes(*b).to_f32()).collect()),
            _ => None,
        }
    }

    /// Whether the elements are floats as stored.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::BF16)
    }
}

/// A row-major matrix `[rows, cols]` as stored.
///
/// **Invariant:** `data.len() == rows * ty.row_bytes(cols)`.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// Element type.
    pub ty: BlockType,
    /// Output size.
    pub rows: usize,
    /// Input size.
    pub cols: usize,
    /// The bytes.
    pub data: Data,
}

impl Matrix {
    /// A matrix over `data`; `None` when the length is not the one that type and shape imply.
    #[must_use]
    pub fn new(ty: BlockType, rows: usize, cols: usize, data: Data) -> Option<Self> {
        let expected = ty.row_bytes(cols)?.checked_mul(rows)?;
        (data.len() == expected).then_some(Self { ty, rows, cols, data })
    }

    /// Bytes of one row.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.data.len().checked_div(self.rows).unwrap_or(0)
    }

    /// The bytes of row `r`.
    #[must_use]
    pub fn row(&self, r: usize) -> &[u8] {
        let n = self.row_bytes();
        &self.data[r * n..(r + 1) * n]
    }

    /// Whether this is `other` once more, as a tied head is its embedding: the same bytes, not equal ones.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        std::ptr::eq(self.data.as_ptr(), other.data.as_ptr())
    }

    /// Rows `start..start + count` as a matrix that shares the bytes.
    #[must_use]
    pub fn row_range(&self, start: usize, count: usize) -> Option<Self> {
        let n = self.row_bytes();
        let end = start.checked_add(count)?;
        Some(Self {
            rows: count,
            data: self.data.slice(start.checked_mul(n)?..end.checked_mul(n)?)?,
            ty: self.ty,
            cols: self.cols,
        })
    }
}
