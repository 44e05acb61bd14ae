//! Tuning results of earlier runs: one JSON file per piece of hardware, believed only for the same driver and shaders.
//!
//! A file that is damaged, too large or of another driver is passed over with a line in the log, and tuning happens
//! anew; so does a directory that cannot be written. Files are replaced whole, so that a crash leaves the old one.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::adapters::Found;
use super::compose::{MatrixKernel, Op, TileRows, Tiling, Weights, quantise_source};

/// Largest file that is read: a few hundred entries are some 40 kB.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Characters of an identity that are kept in a file's name.
const NAME_CHARS_MAX: usize = 80;

/// What results depend on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Key {
    pub identity: String,
    pub adapter: String,
    pub backend: String,
    pub driver: String,
    pub driver_info: String,
    pub kvasir: String,
    /// BLAKE3 of all shaders.
    pub shaders: String,
}

impl Key {
    /// The key of an adapter and of this program's shaders.
    pub fn new(found: &Found) -> Self {
        Self {
            identity: found.identity.to_string(),
            adapter: found.info.name.clone(),
            backend: format!("{:?}", found.info.backend),
            driver: found.info.driver.clone(),
            driver_info: found.info.driver_info.clone(),
            kvasir: env!("CARGO_PKG_VERSION").to_string(),
            shaders: shaders_digest(),
        }
    }

    fn file(&self, dir: &Path) -> PathBuf {
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' || c == '.' { c } else { '_' };
        let name: String = self.identity.chars().map(plain).take(NAME_CHARS_MAX).collect();
        dir.join(format!("gpu-{name}-{}.json", self.backend.to_ascii_lowercase()))
    }
}

/// The fastest tiling of a kernel for matrices of one shape.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Tuned {
    pub op: Op,
    pub weights: Weights,
    pub tile: TileRows,
    /// Hidden and intermediate size.
    pub sizes: [usize; 2],
    pub tiling: Tiling,
}

impl Tuned {
    fn place(&self) -> (Op, Weights, TileRows, [usize; 2]) {
        (self.op, self.weights, self.tile, self.sizes)
    }
}

#[derive(Serialize, Deserialize)]
struct Stored {
    key: Key,
    tuned: Vec<Tuned>,
}

/// BLAKE3 of every kernel as composed, in one tiling of either kind.
fn shaders_digest() -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(quantise_source().as_bytes());
    for weights in Weights::ALL {
        for tile in TileRows::ALL {
            for op in [Op::GateUp, Op::Down] {
                for shared_blocks in [false, true] {
                    let tiling = Tiling { lanes: 8, rows: 1, shared_blocks };
                    hasher.update(MatrixKernel { op, weights, tile, tiling }.source().as_bytes());
                }
            }
        }
    }
    hasher.finalize().to_hex().to_string()
}

/// What is known for `key`; nothing when the file is missing, damaged or of something else.
pub(super) fn load(dir: &Path, key: &Key) -> Vec<Tuned> {
    let path = key.file(dir);
    match read(&path) {
        Ok(stored) if stored.key == *key => stored.tuned,
        Ok(_) => {
            tracing::info!(path = %path.display(), "another driver or other shaders than at the last tuning: tuning anew");
            Vec::new()
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(e) => {
            tracing::warn!(path = %path.display(), "tuning results are not readable, tuning anew: {e}");
            Vec::new()
        }
    }
}

/// Adds `tuned` to what is stored for `key`, in place of older entries for the same kernels.
pub(super) fn save(dir: &Path, key: &Key, tuned: &[Tuned]) {
    let mut all = load(dir, key);
    all.retain(|old| tuned.iter().all(|new| new.place() != old.place()));
    all.extend_from_slice(tuned);
    let path = key.file(dir);
    if let Err(e) = write(&path, &Stored { key: key.clone(), tuned: all }) {
        tracing::warn!(path = %path.display(), "tuning results are not kept: {e}");
    }
}

fn read(path: &Path) -> io::Result<Stored> {
    let mut text = Vec::new();
    File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        let reason = format!("expected at most {FILE_BYTES_MAX} bytes, got more");
        return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
    }
    Ok(serde_json::from_slice(&text)?)
}

fn write(path: &Path, stored: &Stored) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(dir)?;
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    serde_json::to_writer_pretty(&mut file, stored)?;
    file.flush()?;
    file.persist(path).map_err(|e| e.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key {
            identity: "10de:2684@0000:01:00.0".into(),
            adapter: "NVIDIA GeForce RTX 4090".into(),
            backend: "Vulkan".into(),
            driver: "NVIDIA".into(),
            driver_info: "580.76.05".into(),
            kvasir: "0.1.0".into(),
            shaders: "00".into(),
        }
    }

    fn tuned(op: Op, lanes: u32) -> Tuned {
        let tiling = Tiling { lanes, rows: 4, shared_blocks: false };
        Tuned { op, weights: Weights::Q4K, tile: TileRows::One, sizes: [3072, 1024], tiling }
    }

    #[test]
    fn what_was_stored_comes_back_and_a_newer_result_replaces_the_older() {
        let dir = tempfile::tempdir().expect("a directory");
        let dir = dir.path().join("below").join("another");
        assert_eq!(load(&dir, &key()), []);
        save(&dir, &key(), &[tuned(Op::GateUp, 8), tuned(Op::Down, 8)]);
        save(&dir, &key(), &[tuned(Op::Down, 16)]);
        assert_eq!(load(&dir, &key()), [tuned(Op::GateUp, 8), tuned(Op::Down, 16)]);
    }

    #[test]
    fn another_driver_or_other_shaders_know_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        save(dir.path(), &key(), &[tuned(Op::GateUp, 8)]);
        assert_eq!(load(dir.path(), &Key { driver_info: "590".into(), ..key() }), []);
        assert_eq!(load(dir.path(), &Key { shaders: "01".into(), ..key() }), []);
    }

    #[test]
    fn a_damaged_or_huge_file_is_as_good_as_none_and_is_replaced() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = key().file(dir.path());
        let whole = {
            save(dir.path(), &key(), &[tuned(Op::GateUp, 8)]);
            std::fs::read(&path).expect("stored")
        };
        for damaged in [&whole[..whole.len() / 2], b"\xff\xfe", b"{}", &vec![b' '; FILE_BYTES_MAX as usize + 2]] {
            std::fs::write(&path, damaged).expect("written");
            assert_eq!(load(dir.path(), &key()), []);
        }
        save(dir.path(), &key(), &[tuned(Op::Down, 2)]);
        assert_eq!(load(dir.path(), &key()), [tuned(Op::Down, 2)]);
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_no_error() {
        save(Path::new("/proc/kvasir"), &key(), &[tuned(Op::GateUp, 8)]);
        assert_eq!(load(Path::new("/proc/kvasir"), &key()), []);
    }

    #[test]
    fn identities_make_tame_file_names() {
        let wild = Key { identity: "0000:0000@../../x y/\\\u{e9}".into(), ..key() };
        let name = wild.file(Path::new("d"));
        assert_eq!(name, Path::new("d").join("gpu-0000_0000_.._.._x_y___-vulkan.json"));
    }
}
