//! Files of a model on disk: mapped when large, read within a bound when small.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::{Data, ModelError};

fn fail(path: &Path) -> impl Fn(std::io::Error) -> ModelError + use<> {
    let file = path.display().to_string();
    move |source| ModelError::Io { file: file.clone(), source }
}

/// Maps the whole of `path` read-only. An empty file maps to no bytes.
pub(super) fn map(path: &Path) -> Result<Data, ModelError> {
    let file = File::open(path).map_err(fail(path))?;
    let meta = file.metadata().map_err(fail(path))?;
    if !meta.is_file() {
        return Err(ModelError::field(&path.display().to_string(), "kind", "a regular file", "another kind"));
    }
    if meta.len() == 0 {
        return Ok(Data::from(Vec::new()));
    }
    // SAFETY: the map is only ever read as bytes. Model files are not written while they are open: whoever replaces
    // one does so by renaming, which leaves the mapped file alone; truncating one ends the process, as for any reader
    // that maps its model.
    #[expect(unsafe_code, reason = "mapping a file has no safe form")]
    let map = unsafe { memmap2::Mmap::map(&file) }.map_err(fail(path))?;
    Ok(Data::mapped(file, map))
}

/// Reads `path` of at most `max` bytes; `None` when there is no such file.
pub(super) fn read_small(path: &Path, max: u64) -> Result<Option<Vec<u8>>, ModelError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(fail(path)(e)),
    };
    let mut bytes = Vec::new();
    let read = file.take(max + 1).read_to_end(&mut bytes).map_err(fail(path))?;
    if read as u64 > max {
        let name = path.display().to_string();
        return Err(ModelError::field(&name, "size", format!("at most {max} bytes"), "more"));
    }
    Ok(Some(bytes))
}
