//! The manifest in a file beside its model, so that a restart does not read every expert again.
//!
//! One line, `kvasir-manifest 1 ID KEY`, then the manifest. The key stands for the sizes and times of the model's files,
//! so a file that was replaced is hashed anew. **Promise:** a manifest from disk has the id that its line names and the
//! layers and shapes of the model, or it is made again; it is replaced whole or not at all.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::{MANIFEST_BYTES_MAX, Manifest, ManifestError};
use crate::model::{self, Model, files};
use crate::types::{Digest, Hex};

const MARK: &str = "kvasir-manifest 1";
const ENDING: &str = "kvasir-manifest";
/// Bytes of the first line, at most.
const LINE_BYTES_MAX: usize = 256;

impl Manifest {
    /// The manifest of `model`, which was opened at `path`: from the file beside it or, where that cannot be, in
    /// `spare`; else made now and kept there.
    ///
    /// # Errors
    /// As [`Manifest::of`].
    pub fn beside(model: &Model, path: &Path, spare: &Path) -> Result<Self, ManifestError> {
        let key = key(path);
        let name = path.file_name().map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned());
        let places = [path.with_file_name(format!("{name}.{ENDING}")), spare.join(format!("{name}.{ENDING}"))];
        if let Some(key) = key {
            let read = |place: &PathBuf| read(place, key).filter(|manifest| manifest.describes(model));
            if let Some(manifest) = places.iter().find_map(read) {
                return Ok(manifest);
            }
        }
        let manifest = Self::of(model)?;
        if let Some(key) = key {
            let written = write(&places[0], key, &manifest).or_else(|error| {
                tracing::debug!(path = %places[0].display(), %error, "the manifest cannot be kept beside the model");
                std::fs::create_dir_all(spare)?;
                write(&places[1], key, &manifest)
            });
            if let Err(error) = written {
                let path = places[1].display();
                tracing::warn!(%path, %error, "the manifest is not kept: the next start reads the model again");
            }
        }
        Ok(manifest)
    }
}

/// BLAKE3 over names, sizes and times of a model's files; `None` when one cannot be looked at.
fn key(path: &Path) -> Option<Digest> {
    let mut hasher = blake3::Hasher::new();
    for file in model::files_of(path).ok()? {
        let meta = file.metadata().ok()?;
        let changed = meta.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
        let name = file.file_name()?.to_string_lossy();
        hasher.update(&(name.len() as u64).to_le_bytes());
        hasher.update(name.as_bytes());
        hasher.update(&meta.len().to_le_bytes());
        hasher.update(&changed.as_nanos().to_le_bytes());
    }
    Some(Hex(*hasher.finalize().as_bytes()))
}

fn read(place: &Path, key: Digest) -> Option<Manifest> {
    let bytes = files::read_small(place, (MANIFEST_BYTES_MAX + LINE_BYTES_MAX) as u64).ok()??;
    let end = bytes.iter().take(LINE_BYTES_MAX).position(|byte| *byte == b'\n')?;
    let words = std::str::from_utf8(&bytes[..end]).ok()?.strip_prefix(MARK)?.trim();
    let (id, for_key) = words.split_once(' ')?;
    let manifest = &bytes[end + 1..];
    let id: Digest = id.parse().ok()?;
    if for_key.parse() != Ok(key) || Hex(*blake3::hash(manifest).as_bytes()) != id {
        return None;
    }
    Manifest::from_bytes(manifest).ok()
}

fn write(place: &Path, key: Digest, manifest: &Manifest) -> std::io::Result<()> {
    let dir = place.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    writeln!(file, "{MARK} {} {key}", manifest.id())?;
    file.write_all(manifest.bytes())?;
    file.as_file().sync_all()?;
    file.persist(place)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_manifest_is_made_once_and_again_when_its_file_or_the_model_changed() {
        let (dir, spare) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = dir.path().join("model.gguf");
        fs::write(&path, include_bytes!("../../../assets/kvasir-tiny.gguf")).unwrap();
        let model = model::open(&path).unwrap();
        let fresh = Manifest::of(&model).unwrap();
        let beside = || Manifest::beside(&model, &path, spare.path()).unwrap();
        assert_eq!(beside(), fresh);
        let kept = dir.path().join("model.gguf.kvasir-manifest");
        let good = fs::read(&kept).unwrap();

        // Another manifest under the right key and id is believed: so nothing was hashed.
        let text = String::from_utf8(fresh.bytes().to_vec()).unwrap();
        let digest = fresh.digest(crate::types::ExpertId { layer: 0, expert: 0 }).unwrap().to_string();
        let other = text.replacen(&digest, &"0".repeat(64), 1);
        let planted = |id: Digest, key: Digest| fs::write(&kept, format!("{MARK} {id} {key}\n{other}")).unwrap();
        let other_id = Hex(*blake3::hash(other.as_bytes()).as_bytes());
        planted(other_id, key(&path).unwrap());
        assert_eq!(beside().id(), other_id);
        for (id, key) in [(fresh.id(), key(&path).unwrap()), (other_id, Hex([0; 32]))] {
            planted(id, key);
            assert_eq!(beside(), fresh);
            assert_eq!(fs::read(&kept).unwrap(), good, "replaced");
        }
        for bytes in [&good[..good.len() - 1], &good[..40], b"", b"\n"] {
            fs::write(&kept, bytes).unwrap();
            assert_eq!(beside(), fresh);
        }
        let later = fs::metadata(&path).unwrap().modified().unwrap() + std::time::Duration::from_secs(1);
        fs::File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
        assert_eq!(beside(), fresh);
        assert_ne!(fs::read(&kept).unwrap(), good, "under another key");
    }

    #[test]
    fn where_the_model_lies_may_be_closed() {
        let spare = tempfile::tempdir().unwrap();
        let model = model::embedded().unwrap();
        // A directory that is none: nothing can be kept beside the model, and nothing is known of its files.
        let nowhere = Path::new("/dev/null/model.gguf");
        assert_eq!(Manifest::beside(&model, nowhere, spare.path()).unwrap(), Manifest::of(&model).unwrap());
        let place = spare.path().join("new").join("x");
        assert!(write(&place, Hex([1; 32]), &Manifest::of(&model).unwrap()).is_err());
    }
}
