//! Owner-only files: made whole or not at all, never overwritten, and not used when others can read them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use crate::types::{Hex, PublicKey};

/// Beginning of the names of files that are not whole yet.
const UNFINISHED: &str = ".new-";
/// Largest owner-only file: a key, sealed or not, or an address with a line end, and nothing else.
const FILE_BYTES_MAX: u64 = 256;

/// Why an owner-only file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PrivateFileError {
    /// Others may read it, so it is no secret any more.
    #[error("{path} can be read by others (mode {mode:04o}): run `chmod 600 {path}`, and think about who saw it")]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// It holds something else.
    #[error("{path}: expected {expected}")]
    Content {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        expected: &'static str,
    },
    /// There is one already, with other content.
    #[error("{path} exists and is not overwritten")]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The file system refused.
    #[error("{path}: {source}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> PrivateFileError + '_ {
    move |source| PrivateFileError::Io { path: path.to_owned(), source }
}

/// The text of an owner-only file, `None` when there is none.
pub(super) fn read_secret(path: &Path) -> Result<Option<Zeroizing<String>>, PrivateFileError> {
    let Some(file) = open(path)? else { return Ok(None) };
    check_owner_only(path, &file)?;
    read(path, file).map(Some)
}

/// The bytes of an owner-only file, `None` when there is none.
pub(super) fn read_secret_bytes(path: &Path) -> Result<Option<Zeroizing<Vec<u8>>>, PrivateFileError> {
    let Some(file) = open(path)? else { return Ok(None) };
    check_owner_only(path, &file)?;
    let mut bytes = Zeroizing::new(Vec::with_capacity(FILE_BYTES_MAX as usize + 1));
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(io_error(path))?;
    Ok(Some(bytes))
}

/// The addresses in the names of the files in `dir` with this ending; none when there is no such directory.
pub(super) fn addresses_in(dir: &Path, ending: &str) -> Result<Vec<PublicKey>, PrivateFileError> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(io_error(dir))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let name = entry.map_err(io_error(dir))?.file_name();
        let address = name.to_str().and_then(|name| name.strip_suffix(ending));
        found.extend(address.and_then(|text| text.parse::<PublicKey>().ok()));
    }
    found.sort_unstable();
    Ok(found)
}

/// The text of a small file that is no secret, `None` when there is none.
pub(super) fn read_plain(path: &Path) -> Result<Option<Zeroizing<String>>, PrivateFileError> {
    open(path)?.map(|file| read(path, file)).transpose()
}

fn open(path: &Path) -> Result<Option<File>, PrivateFileError> {
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some).map_err(io_error(path)),
    }
}

fn read(path: &Path, file: File) -> Result<Zeroizing<String>, PrivateFileError> {
    let mut text = Zeroizing::new(String::with_capacity(FILE_BYTES_MAX as usize + 1));
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(io_error(path))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(PrivateFileError::Content { path: path.to_owned(), expected: "at most 256 bytes" });
    }
    Ok(text)
}

#[cfg(unix)]
fn check_owner_only(path: &Path, file: &File) -> Result<(), PrivateFileError> {
    use std::os::unix::fs::PermissionsExt;
    let mode = file.metadata().map_err(io_error(path))?.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(PrivateFileError::Exposed { path: path.to_owned(), mode });
    }
    Ok(())
}

/// Elsewhere a user's own directories are private by default, and there are no such bits to check.
#[cfg(not(unix))]
fn check_owner_only(_path: &Path, _file: &File) -> Result<(), PrivateFileError> {
    Ok(())
}

/// Writes a new owner-only file: whole and on disk, or not there. Its directory is made when missing.
///
/// # Errors
/// [`PrivateFileError::Exists`] when there is one, whatever it holds.
pub(super) fn write_new(path: &Path, content: &[u8]) -> Result<(), PrivateFileError> {
    beside(path, content, |temporary| {
        // A link, not a rename: it fails when the name is taken, so two processes cannot overwrite each other.
        fs::hard_link(temporary, path).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => PrivateFileError::Exists { path: path.to_owned() },
            _ => io_error(path)(error),
        })
    })
}

/// Writes an owner-only file in place of the one before: the new one whole, or the old one.
pub(super) fn replace(path: &Path, content: &[u8]) -> Result<(), PrivateFileError> {
    beside(path, content, |temporary| fs::rename(temporary, path).map_err(io_error(path)))
}

/// Writes a file beside `path`, has it put in its place, and leaves no other trace.
fn beside(
    path: &Path,
    content: &[u8],
    put: impl FnOnce(&Path) -> Result<(), PrivateFileError>,
) -> Result<(), PrivateFileError> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    make_private_dir(dir).map_err(io_error(dir))?;
    let mut random = [0u8; 8];
    getrandom::fill(&mut random).map_err(|e| io_error(path)(io::Error::other(e.to_string())))?;
    let temporary = dir.join(format!("{UNFINISHED}{}", Hex(random)));
    let written = write_synced(&temporary, content).and_then(|()| put(&temporary));
    // The content is under its name by now, or was refused.
    let _ = fs::remove_file(&temporary);
    written?;
    sync_dir(dir)
}

/// Files in `dir` that a crash left unfinished: copies of keys, perhaps.
pub(crate) fn unfinished_in(dir: &Path) -> Vec<PathBuf> {
    let is_unfinished = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix(UNFINISHED));
        name.is_some_and(|random| random.parse::<Hex<8>>().is_ok())
    };
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).filter(is_unfinished).collect()
}

/// Removes a file, if there is one.
pub(super) fn remove(path: &Path) -> Result<(), PrivateFileError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_error(path)(error)),
        _ => Ok(()),
    }
}

fn write_synced(path: &Path, content: &[u8]) -> Result<(), PrivateFileError> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path).map_err(io_error(path))?;
    file.write_all(content).and_then(|()| file.sync_all()).map_err(io_error(path))
}

/// Makes a directory, and those above it, that only its owner may look into.
pub(crate) fn make_private_dir(dir: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)
}

/// Makes the new name itself survive a power cut.
fn sync_dir(dir: &Path) -> Result<(), PrivateFileError> {
    if cfg!(unix) {
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(io_error(dir))?;
    }
    Ok(())
}

/// The bytes that a key file's text stands for: so many twice as lower-case hex digits, perhaps line ends.
pub(super) fn bytes_of<const N: usize>(text: &str) -> Option<Zeroizing<[u8; N]>> {
    text.trim_end_matches(['\r', '\n']).parse::<Hex<N>>().ok().map(|bytes| Zeroizing::new(bytes.0))
}

/// The text of a key file for `bytes`, wiped when dropped.
pub(super) fn hex_line(bytes: &[u8]) -> Zeroizing<String> {
    let mut out = Zeroizing::new(String::with_capacity(2 * bytes.len() + 1));
    for nibble in bytes.iter().flat_map(|byte| [byte >> 4, byte & 0xf]) {
        out.push(char::from(b"0123456789abcdef"[usize::from(nibble)]));
    }
    out.push('\n');
    out
}
