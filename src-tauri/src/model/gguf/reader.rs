//! Bytes of one GGUF file → its metadata and the places of its tensors.
//!
//! Everything borrows from the file: no count or length in it leads to an allocation before the bytes that it
//! speaks of have been seen. **Invariant:** tensors lie inside the data section and do not overlap.

use std::collections::BTreeMap;

use super::value::{Array, Value};
use crate::model::{BlockType, ModelError};

/// Keys and tensors a file may have; real files stay below a tenth of it.
const ENTRIES_MAX: u64 = 65_536;
/// Bytes of a key or a tensor's name; GGUF's own limits are 65,535 and 64.
const NAME_BYTES_MAX: usize = 1_024;
/// ggml's limit.
const DIMENSIONS_MAX: u32 = 4;
/// Alignment of the data section when the file names none.
const ALIGNMENT_DEFAULT: u64 = 32;
const ALIGNMENT_MAX: u64 = 1 << 16;

/// A parsed header.
pub(super) struct Header<'a> {
    pub metadata: BTreeMap<&'a str, Value<'a>>,
    /// Keys and the bytes of their values, type first, as they stand in the file.
    pub raw: Vec<(&'a str, &'a [u8])>,
    pub tensors: Vec<Entry<'a>>,
}

/// One tensor: `shape` is row-major, `start..end` its bytes in the file.
pub(super) struct Entry<'a> {
    pub name: &'a str,
    pub ty: BlockType,
    pub shape: Vec<usize>,
    pub start: usize,
    pub end: usize,
}

/// Reads the header of `bytes`; `file` names it in errors.
pub(super) fn read<'a>(file: &str, bytes: &'a [u8]) -> Result<Header<'a>, ModelError> {
    let mut at = Cursor { file, bytes, at: 0 };
    let magic = at.take(4, "the magic")?;
    if magic != b"GGUF" {
        return Err(ModelError::field(file, "magic", "\"GGUF\"", format!("{magic:02x?}")));
    }
    let version = at.u32("the version")?;
    if version != 3 {
        return Err(ModelError::field(file, "version", "3, little-endian", version));
    }
    let tensor_count = at.count("tensor count")?;
    let key_count = at.count("metadata count")?;
    let mut metadata = BTreeMap::new();
    let mut raw = Vec::new();
    for _ in 0..key_count {
        let key = at.name("a key")?;
        let from = at.at;
        let value = at.value(key)?;
        raw.push((key, &bytes[from..at.at]));
        if metadata.insert(key, value).is_some() {
            return Err(ModelError::field(file, key, "the key once", "a second value"));
        }
    }
    let alignment = alignment(file, &metadata)?;
    let mut tensors = Vec::new();
    for _ in 0..tensor_count {
        tensors.push(at.entry()?);
    }
    place(file, bytes.len(), at.at.next_multiple_of(alignment as usize), alignment, &mut tensors)?;
    Ok(Header { metadata, raw, tensors })
}

fn alignment(file: &str, metadata: &BTreeMap<&str, Value>) -> Result<u64, ModelError> {
    match metadata.get("general.alignment") {
        None => Ok(ALIGNMENT_DEFAULT),
        Some(Value::Unsigned(n)) if n.is_power_of_two() && *n <= ALIGNMENT_MAX => Ok(*n),
        Some(other) => Err(ModelError::field(file, "general.alignment", "a power of two up to 65536", other)),
    }
}

/// Turns offsets within the data section into checked ranges of the file.
fn place(
    file: &str,
    file_bytes: usize,
    data_start: usize,
    alignment: u64,
    tensors: &mut [Entry],
) -> Result<(), ModelError> {
    for tensor in &mut *tensors {
        let fail = |expected: String, got: String| ModelError::tensor(file, tensor.name, expected, got);
        let offset = tensor.start;
        if !(offset as u64).is_multiple_of(alignment) {
            return Err(fail(format!("an offset aligned to {alignment}"), offset.to_string()));
        }
        let (Some(cols), Some(rows)) = (tensor.shape.last(), product(&tensor.shape[..tensor.shape.len() - 1])) else {
            return Err(fail("a size below 2^63 bytes".into(), format!("{:?}", tensor.shape)));
        };
        let Some(row_bytes) = tensor.ty.row_bytes(*cols) else {
            let (block, _) = tensor.ty.block();
            return Err(fail(format!("rows of whole {} blocks of {block}", tensor.ty.name()), cols.to_string()));
        };
        let Some(end) = row_bytes.checked_mul(rows).and_then(|n| n.checked_add(offset)?.checked_add(data_start)) else {
            return Err(fail("a size below 2^63 bytes".into(), format!("{:?}", tensor.shape)));
        };
        if end > file_bytes {
            return Err(fail(format!("an end within the file's {file_bytes} bytes"), end.to_string()));
        }
        (tensor.start, tensor.end) = (data_start + offset, end);
    }
    let mut order: Vec<&Entry> = tensors.iter().collect();
    order.sort_unstable_by_key(|tensor| tensor.start);
    match order.windows(2).find(|pair| pair[0].end > pair[1].start) {
        None => Ok(()),
        Some(pair) => {
            let expected = format!("a start at or after {}, the end of {}", pair[0].end, pair[0].name);
            Err(ModelError::tensor(file, pair[1].name, expected, pair[1].start))
        }
    }
}

fn product(sizes: &[usize]) -> Option<usize> {
    sizes.iter().try_fold(1usize, |all, n| all.checked_mul(*n))
}

/// A position in the file's bytes.
struct Cursor<'a, 'f> {
    file: &'f str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a, '_> {
    fn take(&mut self, count: u64, what: &'static str) -> Result<&'a [u8], ModelError> {
        let left = &self.bytes[self.at..];
        match usize::try_from(count).ok().and_then(|n| left.get(..n)) {
            Some(part) => {
                self.at += part.len();
                Ok(part)
            }
            None => Err(ModelError::Truncated {
                file: self.file.into(),
                what,
                at: self.at,
                expected: count,
                got: left.len(),
            }),
        }
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], ModelError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, what)?);
        Ok(out)
    }

    fn u32(&mut self, what: &'static str) -> Result<u32, ModelError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    fn u64(&mut self, what: &'static str) -> Result<u64, ModelError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    fn count(&mut self, what: &'static str) -> Result<u64, ModelError> {
        let count = self.u64(what)?;
        if count > ENTRIES_MAX {
            return Err(ModelError::field(self.file, what, format!("at most {ENTRIES_MAX}"), count));
        }
        Ok(count)
    }

    fn text(&mut self, what: &'static str) -> Result<&'a str, ModelError> {
        let at = self.at;
        let length = self.u64(what)?;
        let bytes = self.take(length, what)?;
        std::str::from_utf8(bytes)
            .map_err(|e| ModelError::field(self.file, format!("{what} at offset {at}"), "UTF-8", e))
    }

    fn name(&mut self, what: &'static str) -> Result<&'a str, ModelError> {
        let name = self.text(what)?;
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            let expected = format!("1 to {NAME_BYTES_MAX} bytes");
            return Err(ModelError::field(self.file, format!("length of {what}"), expected, name.len()));
        }
        Ok(name)
    }

    fn value(&mut self, key: &str) -> Result<Value<'a>, ModelError> {
        let ty = self.u32("a value's type")?;
        match ty {
            8 => Ok(Value::Text(self.text("a text value")?)),
            9 => self.array_value(key),
            _ => {
                let Some(size) = Value::scalar_bytes(ty) else {
                    return Err(ModelError::field(self.file, key, "a value type from 0 to 12", ty));
                };
                let bytes = self.take(size as u64, "a value")?;
                Value::scalar(ty, bytes)
                    .ok_or_else(|| ModelError::field(self.file, key, "0 or 1", format!("{bytes:?}")))
            }
        }
    }

    fn array_value(&mut self, key: &str) -> Result<Value<'a>, ModelError> {
        let ty = self.u32("an array's type")?;
        let count = self.u64("an array's length")?;
        let start = self.at;
        if ty == 8 {
            for _ in 0..count {
                self.text("a text in an array")?;
            }
        } else {
            let Some(size) = Value::scalar_bytes(ty) else {
                return Err(ModelError::field(self.file, key, "an array of numbers, booleans or texts", ty));
            };
            self.take(count.saturating_mul(size as u64), "an array")?;
        }
        let bytes = &self.bytes[start..self.at];
        Ok(Value::Array(Array::new(ty, count as usize, bytes)))
    }

    /// One tensor's description; `start` is still the offset within the data section.
    fn entry(&mut self) -> Result<Entry<'a>, ModelError> {
        let name = self.name("a tensor's name")?;
        let dimensions = self.u32("a tensor's dimensions")?;
        if !(1..=DIMENSIONS_MAX).contains(&dimensions) {
            return Err(ModelError::tensor(self.file, name, "1 to 4 dimensions", dimensions));
        }
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            let size = self.u64("a tensor's size")?;
            let size = usize::try_from(size).ok().filter(|n| *n > 0);
            let Some(size) = size else {
                return Err(ModelError::tensor(self.file, name, "sizes above 0", "0"));
            };
            shape.insert(0, size);
        }
        let id = self.u32("a tensor's type")?;
        let Some(ty) = BlockType::from_ggml(id) else {
            let known = BlockType::ALL.map(BlockType::name).join(", ");
            return Err(ModelError::tensor(self.file, name, format!("one of {known}"), format!("ggml type {id}")));
        };
        let offset = self.u64("a tensor's offset")?;
        let Ok(start) = usize::try_from(offset) else {
            return Err(ModelError::tensor(self.file, name, "an offset within the file", offset));
        };
        Ok(Entry { name, ty, shape, start, end: start })
    }
}
