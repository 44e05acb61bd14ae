//! A text file with one entry a line, which an operator can read and may shorten while the hub is stopped.
//!
//! The hub's lists of wallets and devices are kept so. **Promises:** a torn last line after a crash spoils no later one;
//! many lines are replaced whole or not at all.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The file cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {source}")]
pub struct LinesError {
    /// Which file.
    path: PathBuf,
    /// What the system says.
    source: io::Error,
}

/// See the module.
pub struct Lines(Mutex<PathBuf>);

/// The right to change the file; nobody else does meanwhile.
pub struct Pen<'a>(MutexGuard<'a, PathBuf>);

impl Lines {
    /// The file at `path` and what it says, as far as `bytes_max`; an absent one says nothing.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn open(path: &Path, bytes_max: u64) -> Result<(Self, String), LinesError> {
        let mut bytes = Vec::new();
        let read = File::open(path).and_then(|file| file.take(bytes_max).read_to_end(&mut bytes));
        match read {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(LinesError { path: path.to_path_buf(), source });
            }
            _ => {}
        }
        Ok((Self(Mutex::new(path.to_path_buf())), String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// Waits for everybody else's change.
    pub fn pen(&self) -> Pen<'_> {
        // The path never changes.
        Pen(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Pen<'_> {
    /// Adds a line, on disk when this returns.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn append(&self, line: &str) -> Result<(), LinesError> {
        self.write(|path| {
            // The line end comes first, so that a torn line before it cannot spoil this one.
            let mut file = OpenOptions::new().create(true).append(true).open(path)?;
            file.write_all(format!("\n{line}").as_bytes())?;
            file.sync_data()
        })
    }

    /// Puts these lines in place of all others, on disk when this returns.
    ///
    /// # Errors
    /// A file that cannot be replaced; the old one is still there.
    pub fn replace(&self, lines: &[String]) -> Result<(), LinesError> {
        self.write(|path| {
            let new = path.with_extension("new");
            let mut file = File::create(&new)?;
            lines.iter().try_for_each(|line| file.write_all(format!("\n{line}").as_bytes()))?;
            file.sync_data()?;
            std::fs::rename(&new, path)
        })
    }

    fn write(&self, write: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), LinesError> {
        write(&self.0).map_err(|source| LinesError { path: self.0.clone(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_line_spoils_no_later_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("list");
        let (lines, text) = Lines::open(&path, 100).unwrap();
        assert_eq!(text, "");
        lines.pen().append("one").unwrap();
        std::fs::write(&path, "\none\ntw").unwrap();
        lines.pen().append("three").unwrap();
        assert_eq!(Lines::open(&path, 100).unwrap().1, "\none\ntw\nthree");
        lines.pen().replace(&["four".into(), "five".into()]).unwrap();
        assert_eq!(Lines::open(&path, 100).unwrap().1, "\nfour\nfive");
        assert_eq!(Lines::open(&path, 6).unwrap().1, "\nfour\n");
    }

    #[test]
    fn what_cannot_be_written_is_told_with_its_path() {
        let dir = tempfile::tempdir().unwrap();
        let (lines, _) = Lines::open(&dir.path().join("absent/list"), 1).unwrap();
        let appended = lines.pen().append("one");
        let replaced = lines.pen().replace(&[]);
        for told in [appended, replaced] {
            assert!(told.unwrap_err().to_string().contains("absent"));
        }
        assert!(Lines::open(dir.path(), 1).is_err(), "a directory is no list");
    }
}
