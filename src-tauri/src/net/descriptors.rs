//! How many files and sockets this process may have open: every connection takes one, a splice two.
//!
//! Systems start programs with a low soft limit for the sake of old ones that count descriptors in bit sets; a server may
//! raise it to the hard limit by itself. Where there is no such limit, nobody is bothered with it.

/// The limit of open files, and what it may be raised to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct OpenFiles {
    /// In force.
    pub soft: u64,
    /// The most that this user may ask for.
    pub hard: u64,
}

/// The limit of this process; `None` where the system has none.
#[must_use]
pub fn open_files() -> Option<OpenFiles> {
    #[cfg(unix)]
    {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let or_none = |bound: Option<u64>| bound.unwrap_or(u64::MAX);
        Some(OpenFiles { soft: or_none(limit.current), hard: or_none(limit.maximum) })
    }
    #[cfg(not(unix))]
    None
}

/// Raises the limit of this process as far as it goes, and tells what is in force then.
pub fn raise() -> Option<OpenFiles> {
    let before = open_files()?;
    #[cfg(unix)]
    if before.soft < before.hard {
        use rustix::process::{Resource, Rlimit, setrlimit};
        // macOS takes no more than this, whatever its hard limit says.
        let most = if cfg!(target_os = "macos") { before.hard.min(10_240) } else { before.hard };
        let maximum = (before.hard != u64::MAX).then_some(before.hard);
        let current = (most != u64::MAX).then_some(most);
        if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current, maximum }) {
            tracing::warn!(%error, soft = before.soft, "the limit of open files was not raised");
        }
    }
    open_files()
}

/// Descriptors that are open now (Linux).
#[must_use]
pub fn open_now() -> Option<u64> {
    let open = std::fs::read_dir("/proc/self/fd").ok()?.count();
    u64::try_from(open).ok()
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn the_limit_goes_up_to_the_hard_one_and_no_further() {
        let before = open_files().unwrap();
        let after = raise().unwrap();
        assert!(after.soft >= before.soft && after.hard == before.hard, "{before:?} {after:?}");
        assert!(cfg!(target_os = "macos") || after.soft == after.hard, "{after:?}");
        assert!(!cfg!(target_os = "linux") || open_now().is_some_and(|open| open > 2));
    }
}
