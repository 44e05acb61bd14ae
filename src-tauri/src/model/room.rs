//! What this machine has left: memory, and room on a disk. Where the system does not tell, nobody is refused for it.

use std::path::Path;

/// Where Linux shows its control groups (version 2).
const CONTROL_GROUPS: &str = "/sys/fs/cgroup";

/// Bytes of memory that this program may still take without pushing others out (Linux): what the machine has left,
/// and no more than the limits of the control groups that it runs in.
pub(crate) fn memory_free() -> Option<u64> {
    let machine = mem_available(&std::fs::read_to_string("/proc/meminfo").ok()?)?;
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let root = Path::new(CONTROL_GROUPS);
    let groups = root.join(own);
    let groups = groups.ancestors().take_while(|group| group.starts_with(root));
    Some(groups.filter_map(group_free).fold(machine, u64::min))
}

/// Bytes that the processes of control group `dir` may still take; `None` where it has no limit.
fn group_free(dir: &Path) -> Option<u64> {
    let read = |name: &str| std::fs::read_to_string(dir.join(name)).ok();
    let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
    let (limit, taken) = (number("memory.max")?, number("memory.current")?);
    let stat = read("memory.stat").unwrap_or_default();
    // Pages of files that nobody reads now are given up before anybody is refused.
    let idle = stat.lines().find_map(|line| line.strip_prefix("inactive_file ")?.parse().ok()).unwrap_or(0);
    Some(limit.saturating_sub(taken.saturating_sub(idle)))
}

/// Bytes of `MemAvailable` in the text of `/proc/meminfo`.
fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Bytes that this user may still write to the file system of directory `dir`.
///
/// # Errors
/// A directory that cannot be asked.
pub(crate) fn disk_free(dir: &Path) -> std::io::Result<u64> {
    fs4::available_space(dir)
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

    #[test]
    fn a_control_group_with_a_limit_leaves_what_its_processes_did_not_take() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        assert_eq!(group_free(dir.path()), None);
        write("memory.max", "max\n");
        write("memory.current", "600\n");
        assert_eq!(group_free(dir.path()), None);
        write("memory.max", "1000\n");
        assert_eq!(group_free(dir.path()), Some(400));
        write("memory.stat", "active_file 70\ninactive_file 50\n");
        assert_eq!(group_free(dir.path()), Some(450));
        write("memory.current", "2000\n");
        assert_eq!(group_free(dir.path()), Some(0));
    }

    #[test]
    fn a_disk_tells_its_room_and_a_missing_directory_does_not() {
        let dir = tempfile::tempdir().unwrap();
        assert!(disk_free(dir.path()).is_ok());
        assert!(disk_free(&dir.path().join("absent")).is_err());
    }
}
