//! What this machine has left: memory, and room on a disk. Where the system does not tell, nobody is refused for it.

use std::path::Path;

/// Bytes of memory that programs may still take without pushing others out (Linux).
pub(crate) fn memory_free() -> Option<u64> {
    mem_available(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

/// Bytes of `MemAvailable` in the text of `/proc/meminfo`.
fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Bytes that this user may still write to the file system of directory `dir`.
pub(crate) fn disk_free(dir: &Path) -> Option<u64> {
    #[cfg(unix)]
    {
        let told = rustix::fs::statvfs(dir).ok()?;
        told.f_bavail.checked_mul(told.f_frsize)
    }
    #[cfg(not(unix))]
    {
        let _ = dir;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_is_read_as_the_system_writes_it() {
        let meminfo = "MemTotal:       24689764 kB\nMemAvailable:    1024 kB\nBuffers: 3 kB\n";
        assert_eq!(mem_available(meminfo), Some(1 << 20));
        assert_eq!(mem_available("MemAvailable: lots"), None);
    }

    #[cfg(unix)]
    #[test]
    fn a_disk_tells_its_room_and_a_missing_directory_does_not() {
        assert!(disk_free(Path::new("/")).is_some());
        assert_eq!(disk_free(Path::new("/no/such/directory")), None);
    }
}
