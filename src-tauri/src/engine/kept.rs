//! Small files of the state directory that outlive the program: JSON with a version, replaced whole or not at all.
//!
//! **Promise:** a file that cannot be read is never overwritten: it is put aside as `<name>.bad`, and defaults hold.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::worker::replace_file;

/// Longest such file: far more than settings take.
const FILE_BYTES_MAX: u64 = 256 * 1024;
const VERSION: u32 = 1;

/// Why a kept file is not what it was, or cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum KeptError {
    /// It holds something else.
    #[error("{path}: expected {what}, got {got}. It was put aside as {aside}, and defaults hold")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
        /// What it holds.
        got: String,
        /// Where it is now.
        aside: PathBuf,
    },
    /// Reading or writing failed.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl KeptError {
    /// A stable code for the user interface.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Damaged { .. } => "state_damaged",
            Self::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => "disk_full",
            Self::Io { .. } => "state_file",
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Versioned<T> {
    version: u32,
    content: T,
}

/// A kind of kept file.
pub(super) struct Kept {
    pub name: &'static str,
    /// What it holds, for people.
    pub what: &'static str,
}

impl Kept {
    /// What is kept in `dir`, or the default and, where there was something else, why.
    pub fn read<T: DeserializeOwned + Default>(&self, dir: &Path) -> (T, Option<KeptError>) {
        let path = dir.join(self.name);
        let got = match read(&path) {
            Ok(None) => return (T::default(), None),
            Ok(Some(text)) => match serde_json::from_slice::<Versioned<T>>(&text) {
                Ok(Versioned { version: VERSION, content }) => return (content, None),
                Ok(Versioned { version, .. }) => format!("version {version}, of another program"),
                Err(error) => error.to_string(),
            },
            Err(source) => source.to_string(),
        };
        let aside = path.with_added_extension("bad");
        let error = match fs::rename(&path, &aside) {
            Ok(()) => KeptError::Damaged { path, what: self.what, got, aside },
            Err(source) => KeptError::Io { path, source },
        };
        (T::default(), Some(error))
    }

    /// Keeps `content` in `dir`.
    pub fn write<T: Serialize>(&self, dir: &Path, content: &T) -> Result<(), KeptError> {
        let path = dir.join(self.name);
        let text = serde_json::to_vec_pretty(&Versioned { version: VERSION, content }).map_err(io::Error::from);
        let written = text.and_then(|text| {
            fs::create_dir_all(dir)?;
            replace_file(&path, &text)
        });
        written.map_err(|source| KeptError::Io { path, source })
    }
}

/// The bytes of a file; one that is too long is cut, and then no JSON any more.
fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::settings::{SETTINGS, Settings};
    use crate::types::Rules;

    #[test]
    fn settings_come_back_and_a_damaged_file_is_put_aside_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let read = || SETTINGS.read::<Settings>(dir.path());
        assert!(matches!(read(), (settings, None) if settings == Settings::default()));
        let chosen = Settings {
            rules: Rules { duty_percent: 40, pause_for_apps: vec!["game".into()], ..Rules::default() },
            ..Settings::default()
        };
        SETTINGS.write(dir.path(), &chosen).unwrap();
        assert!(matches!(read(), (settings, None) if settings == chosen));
        let path = dir.path().join(SETTINGS.name);
        let text = fs::read_to_string(&path).unwrap();
        for damaged in ["", "{", &text.replace("\"version\": 1", "\"version\": 9"), &text.replace("duty_percent", "x")]
        {
            fs::write(&path, damaged).unwrap();
            let (settings, error) = read();
            assert_eq!(settings, Settings::default());
            let Some(KeptError::Damaged { aside, .. }) = &error else { panic!("{damaged}: {error:?}") };
            assert_eq!(fs::read_to_string(aside).unwrap(), damaged, "nothing is lost");
            assert!(!path.exists());
        }
        // What cannot be read at all is put aside as well, and not written over.
        fs::remove_file(path.with_added_extension("bad")).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(matches!(read(), (_, Some(KeptError::Damaged { .. }))));
        assert!(path.with_added_extension("bad").is_dir());
    }

    #[test]
    fn a_full_disk_leaves_the_file_of_before_and_is_named() {
        let full = Path::new("/dev/full");
        if !full.exists() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        SETTINGS.write(dir.path(), &Settings::default()).unwrap();
        let before = fs::read(dir.path().join(SETTINGS.name)).unwrap();
        // The new file is written beside the old one: there everything is full.
        let fresh = dir.path().join(SETTINGS.name).with_extension("new");
        std::os::unix::fs::symlink(full, fresh).unwrap();
        let error = SETTINGS.write(dir.path(), &Settings { disk_cap_bytes: 1, ..Settings::default() }).unwrap_err();
        assert_eq!(error.code(), "disk_full", "{error}");
        assert_eq!(fs::read(dir.path().join(SETTINGS.name)).unwrap(), before);
    }
}
