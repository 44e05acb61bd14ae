//! A float checkpoint of either container → one GGUF file whose routed experts are quantised: `kvasir model convert`.
//!
//! All other tensors keep their types; what GGUF stores in another form (norms, decay, the order of DeltaNet's value
//! heads) is brought into it. The file is written from front to back, a few experts at a time, under a temporary name;
//! it gets its own once it has been read back. **Promise:** at the wanted path there is the old file, or nothing, or
//! the whole new one. Why not in parts that a loader merges: one file of any size can be mapped.

mod body;
mod heads;
mod metadata;
mod plan;

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use super::gguf::{self, writer};
use super::{BlockType, HeadOrder, HyperParameters, Model, ModelError, QuantiseError, TokenizerError, room};

/// Bytes that are collected before they are written.
const BUFFER_BYTES: usize = 1 << 20;

/// What to write, and where.
#[derive(Clone, Copy, Debug)]
pub struct Conversion<'a> {
    /// The GGUF file to write.
    pub out: &'a Path,
    /// Type of the routed experts: one of the exact types.
    pub to: BlockType,
    /// Whether a file at `out` is replaced.
    pub overwrite: bool,
}

/// Why there is no converted file.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// The checkpoint cannot be opened.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Its experts cannot be quantised.
    #[error(transparent)]
    Quantise(#[from] QuantiseError),
    /// Its vocabulary cannot be listed.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// There is something at the path already.
    #[error("{}: expected no such file, got one: name another, or pass --overwrite", .0.display())]
    Exists(PathBuf),
    /// Input and output are one file.
    #[error("{}: expected another file than the model that is read", .0.display())]
    Same(PathBuf),
    /// Somebody else writes the same file.
    #[error("{}: expected nobody to write it, got another conversion under way", .0.display())]
    Busy(PathBuf),
    /// The disk has no room.
    #[error("{}: expected {expected} bytes of free room on its disk, got {got}", .path.display())]
    Room {
        /// The file to write.
        path: PathBuf,
        /// Bytes of the whole file.
        expected: u64,
        /// Bytes that are free.
        got: u64,
    },
    /// GGUF cannot say something about this model, so another one would be read back.
    #[error("{what}: expected {expected}, since GGUF of this family has no word for another, got {got}")]
    Form {
        /// The property.
        what: &'static str,
        /// What GGUF implies.
        expected: String,
        /// The model's.
        got: String,
    },
    /// The operating system refused.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Its reason.
        source: std::io::Error,
    },
}

/// Converts the model at `source`; `progress` is told the bytes written and their total. Gives the file's size.
///
/// # Errors
/// Anything that keeps the whole file from being there; then there is no new file at all.
pub fn convert(source: &Path, order: &Conversion, mut progress: impl FnMut(u64, u64)) -> Result<u64, ConvertError> {
    let Conversion { out, to, overwrite } = *order;
    if out.exists() && !overwrite {
        return Err(ConvertError::Exists(out.into()));
    }
    let model = super::open(source)?;
    let is_read =
        |file: &PathBuf| file.canonicalize().ok().is_some_and(|file| out.canonicalize().is_ok_and(|out| out == file));
    if !source.is_dir() && gguf::part_paths(source).iter().any(is_read) {
        return Err(ConvertError::Same(out.into()));
    }
    check_form(&model.hyper)?;
    let planned = plan::plan(&model, to)?;
    let keys = if source.is_dir() { metadata::of(&model, to)? } else { metadata::copied(source, to)? };
    let entries = planned.iter().map(|tensor| (&*tensor.name, &*tensor.shape, tensor.ty, tensor.bytes()));
    let head = writer::head(&keys, entries);
    check_room(out, head.file_bytes)?;

    let part = Part::create(out)?;
    let io = |source| ConvertError::Io { path: part.path.clone(), source };
    let mut file = BufWriter::with_capacity(BUFFER_BYTES, &part.file);
    file.write_all(&head.bytes).map_err(io)?;
    let mut done = head.bytes.len() as u64;
    for (tensor, start) in planned.iter().zip(&head.starts) {
        pad(&mut file, *start - done).map_err(io)?;
        done = *start;
        tensor
            .write(&mut file, |bytes| {
                done += bytes;
                progress(done, head.file_bytes);
            })
            .map_err(|error| error.at(&part.path))?;
    }
    pad(&mut file, head.file_bytes - done).map_err(io)?;
    file.flush().map_err(io)?;
    drop(file);
    part.file.sync_all().map_err(io)?;
    read_back(&part.path, &model)?;
    part.rename(out)?;
    Ok(head.file_bytes)
}

fn pad(file: &mut impl std::io::Write, bytes: u64) -> std::io::Result<()> {
    std::io::copy(&mut std::io::Read::take(std::io::repeat(0), bytes), file).map(|_| ())
}

/// What GGUF's readers of these families take for granted.
fn check_form(hyper: &HyperParameters) -> Result<(), ConvertError> {
    let form =
        |what, expected: &str, got: &str| Err(ConvertError::Form { what, expected: expected.into(), got: got.into() });
    if !hyper.norm_topk {
        return form("gate weights of the chosen experts (norm_topk_prob)", "divided by their sum", "as they are");
    }
    if hyper.delta_net.is_some() != hyper.gated_attention {
        return form("attention (attn_output_gate)", "an output gate in Qwen3.5 and none in Qwen3", "the contrary");
    }
    Ok(())
}

fn check_room(out: &Path, expected: u64) -> Result<(), ConvertError> {
    let dir = out.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match room::disk_free(dir) {
        Some(got) if got < expected => Err(ConvertError::Room { path: out.into(), expected, got }),
        _ => Ok(()),
    }
}

/// Opens what was written, as every reader will, and compares what it says with what was meant.
fn read_back(part: &Path, model: &Model) -> Result<(), ConvertError> {
    let mut got = super::open(part)?.hyper;
    let mut expected = model.hyper.clone();
    if let Some(net) = &mut expected.delta_net {
        net.order = HeadOrder::Tiled;
    }
    expected.rope_theta = f64::from(expected.rope_theta as f32);
    let lost = expected.eos_token_ids.iter().find(|id| !got.eos_token_ids.contains(id));
    if let Some(lost) = lost {
        let ends = format!("ids among {:?}", got.eos_token_ids);
        return Err(ConvertError::Form { what: "end tokens", expected: ends, got: lost.to_string() });
    }
    got.eos_token_ids.clone_from(&expected.eos_token_ids);
    if got != expected {
        let (expected, got) = (format!("{got:?}"), format!("{expected:?}"));
        return Err(ConvertError::Form { what: "sizes", expected, got });
    }
    Ok(())
}

/// The file under its temporary name; removed unless it was renamed.
struct Part {
    path: PathBuf,
    file: File,
    renamed: bool,
}

impl Part {
    /// `{out}.part`, which a conversion that was killed may have left behind.
    fn create(out: &Path) -> Result<Self, ConvertError> {
        let mut path = out.as_os_str().to_owned();
        path.push(".part");
        let path = PathBuf::from(path);
        let io = |source| ConvertError::Io { path: path.clone(), source };
        // Emptied only under the lock: until then it may be another conversion's.
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path).map_err(io)?;
        // A file system without locks has nobody to ask.
        if let Err(std::fs::TryLockError::WouldBlock) = file.try_lock() {
            return Err(ConvertError::Busy(path));
        }
        file.set_len(0).map_err(io)?;
        Ok(Self { path, file, renamed: false })
    }

    fn rename(mut self, out: &Path) -> Result<(), ConvertError> {
        std::fs::rename(&self.path, out).map_err(|source| ConvertError::Io { path: out.into(), source })?;
        self.renamed = true;
        Ok(())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.renamed {
            // What cannot be removed is found, and emptied, by the next try.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_without_room_is_told_before_anything_is_written() {
        let message = check_room(Path::new("out.gguf"), u64::MAX).unwrap_err().to_string();
        assert!(message.starts_with("out.gguf: expected 18446744073709551615 bytes of free room"), "{message}");
        assert!(check_room(Path::new("out.gguf"), 1).is_ok());
        assert!(check_room(Path::new("no/such/directory/out.gguf"), 1).is_ok(), "the error is the file's");
    }

    #[test]
    fn what_gguf_cannot_say_is_refused() {
        let hyper = crate::model::embedded().unwrap().hyper;
        assert!(check_form(&hyper).is_ok());
        let unscaled = check_form(&HyperParameters { norm_topk: false, ..hyper.clone() }).unwrap_err().to_string();
        assert!(unscaled.contains("norm_topk_prob") && unscaled.contains("got as they are"), "{unscaled}");
        let ungated = check_form(&HyperParameters { gated_attention: false, ..hyper }).unwrap_err().to_string();
        assert!(ungated.contains("attn_output_gate"), "{ungated}");
    }
}
