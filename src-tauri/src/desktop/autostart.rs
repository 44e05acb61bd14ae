//! Whether Kvasir starts with its owner's session: off until asked, by the file that desktops look for.

use std::io;
use std::path::{Path, PathBuf};

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
    std::fs::write(file, entry(&program()?))
}

fn file(app: &AppHandle) -> Option<PathBuf> {
    if !cfg!(target_os = "linux") {
        return None;
    }
    app.path().config_dir().ok().map(|dir| dir.join("autostart").join(FILE))
}

/// What to start: an AppImage is the file that it came in, not where it is mounted for now.
fn program() -> io::Result<PathBuf> {
    std::env::var_os("APPIMAGE").map_or_else(std::env::current_exe, |image| Ok(PathBuf::from(image)))
}

/// A desktop entry; the program's path is quoted as its specification says.
fn entry(program: &Path) -> String {
    let mut quoted = String::new();
    for letter in program.display().to_string().chars() {
        quoted.push_str(match letter {
            '"' | '`' | '$' => "\\\\",
            '\\' => "\\\\\\",
            '%' => "%",
            _ => "",
        });
        quoted.push(letter);
    }
    format!(
        "[Desktop Entry]\nType=Application\nName=Kvasir\nExec=\"{quoted}\" --hidden\nIcon=kvasir\n\
         X-GNOME-Autostart-enabled=true\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_with_odd_letters_is_one_word_of_the_command() {
        let exec = |path: &str| entry(Path::new(path)).lines().nth(3).unwrap_or_default().to_owned();
        assert_eq!(exec("/usr/bin/kvasir"), "Exec=\"/usr/bin/kvasir\" --hidden");
        assert_eq!(exec("/home/a b/100%/$x"), "Exec=\"/home/a b/100%%/\\\\$x\" --hidden");
    }
}
