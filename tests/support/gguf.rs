//! Writes small GGUF v3 files, so that tests can run geometries that no committed model has.

use kvasir::model::BlockType;

const ALIGNMENT: usize = 32;

/// Collects metadata and tensors, then gives the file's bytes.
#[derive(Default)]
pub struct GgufWriter {
    metadata: Vec<u8>,
    keys: u64,
    infos: Vec<u8>,
    data: Vec<u8>,
    tensors: u64,
}

fn text(out: &mut Vec<u8>, value: &str) {
    out.extend_from_slice(&(value.len() as u64).to_le_bytes());
    out.extend_from_slice(value.as_bytes());
}

impl GgufWriter {
    fn key(&mut self, key: &str, kind: u32) {
        text(&mut self.metadata, key);
        self.metadata.extend_from_slice(&kind.to_le_bytes());
        self.keys += 1;
    }

    /// A u32 value.
    pub fn u32(&mut self, key: &str, value: u32) -> &mut Self {
        self.key(key, 4);
        self.metadata.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// An f32 value.
    pub fn f32(&mut self, key: &str, value: f32) -> &mut Self {
        self.key(key, 6);
        self.metadata.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// A bool value.
    pub fn bool(&mut self, key: &str, value: bool) -> &mut Self {
        self.key(key, 7);
        self.metadata.push(value.into());
        self
    }

    /// A string value.
    pub fn string(&mut self, key: &str, value: &str) -> &mut Self {
        self.key(key, 8);
        text(&mut self.metadata, value);
        self
    }

    /// An array of strings.
    pub fn strings(&mut self, key: &str, values: &[String]) -> &mut Self {
        self.key(key, 9);
        self.metadata.extend_from_slice(&8u32.to_le_bytes());
        self.metadata.extend_from_slice(&(values.len() as u64).to_le_bytes());
        values.iter().for_each(|v| text(&mut self.metadata, v));
        self
    }

    /// An array of i32.
    pub fn i32s(&mut self, key: &str, values: &[i32]) -> &mut Self {
        self.key(key, 9);
        self.metadata.extend_from_slice(&5u32.to_le_bytes());
        self.metadata.extend_from_slice(&(values.len() as u64).to_le_bytes());
        values.iter().for_each(|v| self.metadata.extend_from_slice(&v.to_le_bytes()));
        self
    }

    /// A tensor; `ne` has the fastest dimension first.
    pub fn tensor(&mut self, name: &str, ne: &[usize], ty: BlockType, bytes: &[u8]) -> &mut Self {
        text(&mut self.infos, name);
        self.infos.extend_from_slice(&(ne.len() as u32).to_le_bytes());
        ne.iter().for_each(|n| self.infos.extend_from_slice(&(*n as u64).to_le_bytes()));
        self.infos.extend_from_slice(&(ty as u32).to_le_bytes());
        self.infos.extend_from_slice(&(self.data.len() as u64).to_le_bytes());
        self.data.extend_from_slice(bytes);
        self.data.resize(self.data.len().next_multiple_of(ALIGNMENT), 0);
        self.tensors += 1;
        self
    }

    /// The file.
    pub fn finish(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend_from_slice(&3u32.to_le_bytes());
        out.extend_from_slice(&self.tensors.to_le_bytes());
        out.extend_from_slice(&self.keys.to_le_bytes());
        out.extend_from_slice(&self.metadata);
        out.extend_from_slice(&self.infos);
        out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        out.extend_from_slice(&self.data);
        out
    }
}
