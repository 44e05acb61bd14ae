//! Metadata keys and places of tensors → the head of a GGUF v3 file.

use crate::model::BlockType;

/// Bytes that every tensor's start is a multiple of.
pub(in crate::model) const ALIGNMENT: usize = 32;

/// Metadata in GGUF's bytes, in the order in which it is added.
#[derive(Default)]
pub(in crate::model) struct Keys {
    count: u64,
    bytes: Vec<u8>,
}

impl Keys {
    /// A key whose value, type first, is bytes of another file.
    pub fn raw(&mut self, key: &str, value: &[u8]) {
        self.count += 1;
        put_text(&mut self.bytes, key);
        self.bytes.extend_from_slice(value);
    }

    pub fn text(&mut self, key: &str, value: &str) {
        let mut bytes = 8u32.to_le_bytes().to_vec();
        put_text(&mut bytes, value);
        self.raw(key, &bytes);
    }

    /// A size, which all readers expect in 32 bits; larger ones than that are none of a model's.
    pub fn size(&mut self, key: &str, value: usize) {
        let value = u32::try_from(value).unwrap_or(u32::MAX);
        self.raw(key, &[4u32.to_le_bytes(), value.to_le_bytes()].concat());
    }

    pub fn float(&mut self, key: &str, value: f32) {
        self.raw(key, &[6u32.to_le_bytes(), value.to_le_bytes()].concat());
    }

    pub fn flag(&mut self, key: &str, value: bool) {
        self.raw(key, &[7, 0, 0, 0, u8::from(value)]);
    }

    pub fn flags(&mut self, key: &str, values: &[bool]) {
        self.array(key, 7, values.len(), |bytes| bytes.extend(values.iter().map(|flag| u8::from(*flag))));
    }

    pub fn integers(&mut self, key: &str, values: &[i32]) {
        self.array(key, 5, values.len(), |bytes| bytes.extend(values.iter().flat_map(|n| n.to_le_bytes())));
    }

    pub fn texts(&mut self, key: &str, values: &[String]) {
        self.array(key, 8, values.len(), |bytes| values.iter().for_each(|text| put_text(bytes, text)));
    }

    fn array(&mut self, key: &str, ty: u32, count: usize, put: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = [9u32.to_le_bytes(), ty.to_le_bytes()].concat();
        bytes.extend((count as u64).to_le_bytes());
        put(&mut bytes);
        self.raw(key, &bytes);
    }
}

/// The head of a file: everything before the data section, and where each tensor's bytes begin in the file.
pub(in crate::model) struct Head {
    pub bytes: Vec<u8>,
    pub starts: Vec<u64>,
    /// Bytes of the whole file.
    pub file_bytes: u64,
}

/// Lays out tensors, `(name, row-major shape, type, bytes)` each, after `keys`.
pub(in crate::model) fn head<'a>(
    keys: &Keys,
    tensors: impl ExactSizeIterator<Item = (&'a str, &'a [usize], BlockType, u64)>,
) -> Head {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3u32.to_le_bytes());
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend(keys.count.to_le_bytes());
    bytes.extend_from_slice(&keys.bytes);
    let (mut starts, mut end) = (Vec::new(), 0);
    for (name, shape, ty, size) in tensors {
        put_text(&mut bytes, name);
        bytes.extend((shape.len() as u32).to_le_bytes());
        shape.iter().rev().for_each(|n| bytes.extend((*n as u64).to_le_bytes()));
        bytes.extend((ty as u32).to_le_bytes());
        bytes.extend(u64::to_le_bytes(end));
        starts.push(end);
        end = (end + size).next_multiple_of(ALIGNMENT as u64);
    }
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
    let data = bytes.len() as u64;
    starts.iter_mut().for_each(|start| *start += data);
    Head { file_bytes: data + end, bytes, starts }
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::gguf::reader;

    #[test]
    fn what_is_written_is_what_the_reader_reads() {
        let mut keys = Keys::default();
        keys.text("general.architecture", "é");
        keys.size("a.size", 7);
        keys.float("a.float", -0.5);
        keys.flag("a.flag", true);
        keys.flags("flags", &[true, false, true]);
        keys.integers("integers", &[-1, 2]);
        keys.texts("texts", &["one".into(), String::new()]);
        let tensors: [(&str, &[usize], _, _); 2] =
            [("first", &[3, 5], BlockType::F16, 30), ("second", &[2, 3, 32], BlockType::Q8_0, 204)];
        let head = head(&keys, tensors.into_iter());
        let mut file = head.bytes;
        file.resize(head.file_bytes as usize, 0);
        let read = reader::read("file", &file).unwrap();
        let shown: Vec<String> = read.metadata.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let expected = [
            "a.flag=true",
            "a.float=-0.5",
            "a.size=7",
            "flags=an array of 3",
            "general.architecture=\"é\"",
            "integers=an array of 2",
            "texts=an array of 2",
        ];
        assert_eq!(shown, expected);
        for ((entry, (name, shape, ty, size)), start) in read.tensors.iter().zip(tensors).zip(&head.starts) {
            assert_eq!((entry.name, &*entry.shape, entry.ty), (name, shape, ty));
            assert_eq!((entry.start as u64, (entry.end - entry.start) as u64), (*start, size));
            assert!(start.is_multiple_of(32));
        }
        let mut copied = Keys::default();
        read.raw.iter().for_each(|(key, value)| copied.raw(key, value));
        assert_eq!(copied.bytes, keys.bytes);
    }
}
