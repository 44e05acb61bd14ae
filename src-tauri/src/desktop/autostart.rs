//! Whether Kvasir starts with its owner's session: off until asked, by the file that desktops look for.

use std::io;
use std::path::{Path, PathBuf};

use tauri::utils::config::BundleType;
use tauri::utils::platform::{bundle_type, current_exe};
use tauri::{AppHandle, Manager};

/// Its name below the user's `autostart` directory.
const FILE: &str = "net.kvasir.app.desktop";

/// Whether it starts then; `None` where this program cannot arrange it.
pub(super) fn is_on(app: &AppHandle) -> Option<bool> {
    file(app).map(|file| file.exists())
}

/// Arranges it, or not.
///
/// # Errors
/// What keeps the file from being written or removed.
pub(super) fn switch(app: &AppHandle, on: bool) -> io::Result<()> {
    let file = file(app).ok_or(io::ErrorKind::Unsupported)?;
    if !on {
        return match std::fs::remove_file(file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
    }
    if let Some(dir) = file.parent() {
        std::fs::create_dir_all(dir)?;
    }
    let program = program()?;
    let cannot =
        || io::Error::other(format!("a path that a desktop entry can hold is expected, got {}", program.display()));
    std::fs::write(file, entry(&program).ok_or_else(cannot)?)
}

fn file(app: &AppHandle) -> Option<PathBuf> {
    if !cfg!(target_os = "linux") {
        return None;
    }
    app.path().config_dir().ok().map(|dir| dir.join("autostart").join(FILE))
}

/// What to start: an AppImage is the file that it came in, not where it is mounted for now. Any other program may have
/// been started from somebody else's AppImage, and may have been replaced since: its path is that of the start.
fn program() -> io::Result<PathBuf> {
    let image = std::env::var_os("APPIMAGE").filter(|_| bundle_type() == Some(BundleType::AppImage));
    image.map_or_else(current_exe, |image| Ok(PathBuf::from(image)))
}

/// A desktop entry; the program's path is quoted as its specification says. `None` for one that cannot be written there.
fn entry(program: &Path) -> Option<String> {
    let program = program.to_str().filter(|path| !path.contains(char::is_control))?;
    let mut quoted = String::new();
    for letter in program.chars() {
        quoted.push_str(match letter {
            '"' | '`' | '$' => "\\\\",
            '\\' => "\\\\\\",
            '%' => "%",
            _ => "",
        });
        quoted.push(letter);
    }
    Some(format!(
        "[Desktop Entry]\nType=Application\nName=Kvasir\nExec=\"{quoted}\" --hidden\nIcon=kvasir\n\
         X-GNOME-Autostart-enabled=true\n"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_with_odd_letters_is_one_word_of_the_command() {
        let exec = |path: &str| entry(Path::new(path)).unwrap().lines().nth(3).unwrap().to_owned();
        assert_eq!(exec("/usr/bin/kvasir"), "Exec=\"/usr/bin/kvasir\" --hidden");
        assert_eq!(exec("/home/a b/100%/$x"), "Exec=\"/home/a b/100%%/\\\\$x\" --hidden");
        assert_eq!(entry(Path::new("/home/a\nHidden=true")), None, "a line of its own");
    }
}
