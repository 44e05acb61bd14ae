//! A metadata value of a GGUF file, borrowed from its bytes.

use std::fmt;

/// One value; the integer kinds are widened.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'a> {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(&'a str),
    Array(Array<'a>),
}

impl Value<'_> {
    /// Bytes of a scalar of GGUF's value type `ty`; `None` for texts, arrays and unknown types.
    pub fn scalar_bytes(ty: u32) -> Option<usize> {
        match ty {
            0 | 1 | 7 => Some(1),
            2 | 3 => Some(2),
            4..=6 => Some(4),
            10..=12 => Some(8),
            _ => None,
        }
    }

    /// The scalar in exactly `scalar_bytes(ty)` bytes; `None` for a boolean that is neither 0 nor 1.
    pub fn scalar(ty: u32, bytes: &[u8]) -> Option<Self> {
        let mut wide = [0; 8];
        wide.get_mut(..bytes.len())?.copy_from_slice(bytes);
        let bits = u64::from_le_bytes(wide);
        Some(match ty {
            0 | 2 | 4 | 10 => Self::Unsigned(bits),
            1 => Self::Signed(i64::from(bits as i8)),
            3 => Self::Signed(i64::from(bits as i16)),
            5 => Self::Signed(i64::from(bits as i32)),
            11 => Self::Signed(bits as i64),
            6 => Self::Float(f64::from(f32::from_bits(bits as u32))),
            12 => Self::Float(f64::from_bits(bits)),
            7 if bits <= 1 => Self::Bool(bits == 1),
            _ => return None,
        })
    }

    /// The value as a size, whatever integer kind it was written as.
    pub fn size(&self) -> Option<usize> {
        match *self {
            Self::Unsigned(n) => usize::try_from(n).ok(),
            Self::Signed(n) => usize::try_from(n).ok(),
            _ => None,
        }
    }
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsigned(n) => write!(f, "{n}"),
            Self::Signed(n) => write!(f, "{n}"),
            Self::Float(x) => write!(f, "{x}"),
            Self::Bool(b) => write!(f, "{b}"),
            Self::Text(text) => write!(f, "{text:?}"),
            Self::Array(array) => write!(f, "an array of {}", array.count),
        }
    }
}

/// An array whose elements are read when asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Array<'a> {
    ty: u32,
    count: usize,
    bytes: &'a [u8],
}

impl<'a> Array<'a> {
    /// `count` elements of value type `ty`, which the reader has found whole in `bytes`.
    pub fn new(ty: u32, count: usize, bytes: &'a [u8]) -> Self {
        Self { ty, count, bytes }
    }

    pub fn len(&self) -> usize {
        self.count
    }

    /// The elements as texts; `None` when they are something else.
    pub fn texts(&self) -> Option<impl Iterator<Item = &'a str> + use<'a>> {
        let mut left = self.bytes;
        (self.ty == 8).then(|| {
            std::iter::from_fn(move || {
                let (length, rest) = left.split_first_chunk::<8>()?;
                let (text, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
                left = rest;
                std::str::from_utf8(text).ok()
            })
        })
    }

    /// The elements as scalars; empty when they are texts.
    pub fn scalars(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let ty = self.ty;
        let size = Value::scalar_bytes(ty);
        let bytes = if size.is_some() { self.bytes } else { &[] };
        bytes.chunks_exact(size.unwrap_or(1)).filter_map(move |bytes| Value::scalar(ty, bytes))
    }
}
