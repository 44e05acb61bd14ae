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

use super::gguf::writer;
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
    /// The path is a directory's.
    #[error("{}: expected the name of a file, got a directory", .0.display())]
    Directory(PathBuf),
    /// Input and output are one file.
    #[error("{}: expected another file than those of the model that is read", .0.display())]
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
    let Conversion { out, to, .. } = *order;
    check_paths(source, order)?;
    let model = super::open(source)?;
    check_form(&model.hyper)?;
    let planned = plan::plan(&model, to)?;
    let keys = if source.is_dir() { metadata::of(&model, to)? } else { metadata::copied(source, to)? };
    let entries = planned.iter().map(|tensor| (&*tensor.name, &*tensor.shape, tensor.ty, tensor.bytes()));
    let head = writer::head(&keys, entries);

    // What an earlier try left behind is emptied before its room is counted.
    let part = Part::create(out)?;
    check_room(out, head.file_bytes)?;
    let io = |source| ConvertError::Io { path: part.path.clone(), source };
    let mut file = BufWriter::with_capacity(BUFFER_BYTES, &part.file);
    file.write_all(&head.bytes).map_err(io)?;
    file.flush().map_err(io)?;
    // With a hole in place of its weights the file says already what GGUF cannot say, before hours of work.
    part.file.set_len(head.file_bytes).map_err(io)?;
    read_back(&part.path, &model)?;
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
    part.publish(order)?;
    Ok(head.file_bytes)
}

/// Refuses a path that a file must not be written to.
fn check_paths(source: &Path, order: &Conversion) -> Result<(), ConvertError> {
    let out = order.out;
    if out.is_dir() {
        return Err(ConvertError::Directory(out.into()));
    }
    let io = |error| ConvertError::Io { path: source.into(), source: error };
    let read = super::files_of(source).map_err(io)?;
    let read: Vec<PathBuf> = read.iter().filter_map(|file| file.canonicalize().ok()).collect();
    for written in [out.to_path_buf(), Part::path(out)] {
        if written.canonicalize().is_ok_and(|written| read.contains(&written)) {
            return Err(ConvertError::Same(written));
        }
    }
    if out.exists() && !order.overwrite {
        return Err(ConvertError::Exists(out.into()));
    }
    Ok(())
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
    match room::disk_free(directory(out)) {
        Ok(got) if got < expected => Err(ConvertError::Room { path: out.into(), expected, got }),
        _ => Ok(()),
    }
}

/// Where a file is.
fn directory(file: &Path) -> &Path {
    file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
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
    /// A name beside `out` that no other program uses: what is found there was left behind by a conversion.
    fn path(out: &Path) -> PathBuf {
        let mut name = std::ffi::OsString::from(".");
        name.push(out.file_name().unwrap_or_default());
        name.push(".kvasir-part");
        out.with_file_name(name)
    }

    fn create(out: &Path) -> Result<Self, ConvertError> {
        let path = Self::path(out);
        let io = |source| ConvertError::Io { path: path.clone(), source };
        // Emptied only under the lock: until then it may be another conversion's.
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path).map_err(io)?;
        // A file system without locks has nobody to ask.
        if let Err(std::fs::TryLockError::WouldBlock) = file.try_lock() {
            return Err(ConvertError::Busy(path));
        }
        // Between opening and locking it may have got its own name.
        if !is_at(&file, &path).map_err(io)? {
            return Err(ConvertError::Busy(path));
        }
        file.set_len(0).map_err(io)?;
        Ok(Self { path, file, renamed: false })
    }

    /// Gives the file its own name; a file that got there meanwhile is replaced only if that is wanted.
    fn publish(mut self, order: &Conversion) -> Result<(), ConvertError> {
        let io = |source| ConvertError::Io { path: order.out.into(), source };
        if order.overwrite {
            std::fs::rename(&self.path, order.out).map_err(io)?;
            self.renamed = true;
        } else {
            match std::fs::hard_link(&self.path, order.out) {
                Ok(()) => {}
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
                    return Err(ConvertError::Exists(order.out.into()));
                }
                // A file system without links: the check at the start has to do.
                Err(_) => {
                    std::fs::rename(&self.path, order.out).map_err(io)?;
                    self.renamed = true;
                }
            }
        }
        #[cfg(unix)]
        File::open(directory(order.out)).and_then(|dir| dir.sync_all()).map_err(io)?;
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

/// Whether an open file is the one at `path`.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> std::io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let (open, named) = (file.metadata()?, path.metadata()?);
    Ok((open.dev(), open.ino()) == (named.dev(), named.ino()))
}

/// An open file cannot lose its name here.
#[cfg(not(unix))]
fn is_at(_file: &File, _path: &Path) -> std::io::Result<bool> {
    Ok(true)
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
