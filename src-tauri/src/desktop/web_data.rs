//! What the web view keeps on the disk beside the engine's files, although the page asks it to keep nothing.
//!
//! It is removed with everything else, by name, once the web view is over: while it runs, it would write it again.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// Of WebKit on Linux, and of WebView2 on Windows.
const NAMES: [&str; 8] = [
    "CacheStorage",
    "EBWebView",
    "WebKitCache",
    "deviceidhashsalts",
    "hsts-storage.sqlite",
    "localstorage",
    "mediakeys",
    "storage",
];

/// Removes it from the app's directory.
pub(super) fn remove(dir: &Path) {
    for path in NAMES.map(|name| dir.join(name)) {
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        if let Err(error) = removed
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(path = %path.display(), %error, "the web view's files stay");
        }
    }
}
