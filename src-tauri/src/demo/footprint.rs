//! What this process holds of the machine, to see that a long run does not grow.

use serde::Serialize;

/// Memory and handles at one moment; `None` where the system does not say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Footprint {
    /// Resident bytes.
    pub rss_bytes: Option<u64>,
    /// Open file descriptors.
    pub open_files: Option<u64>,
}

impl Footprint {
    /// This moment's.
    #[must_use]
    pub fn now() -> Self {
        // On Linux only: elsewhere there is no such file and nothing is said.
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let kib =
            status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix("kB")?.trim().parse().ok());
        let files = std::fs::read_dir("/proc/self/fd").ok();
        Self { rss_bytes: kib.map(|kib: u64| kib * 1024), open_files: files.map(|files| files.count() as u64) }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_a_footprint() {
        let now = Footprint::now();
        assert!(now.rss_bytes > Some(1 << 20) && now.open_files > Some(2), "{now:?}");
    }
}
