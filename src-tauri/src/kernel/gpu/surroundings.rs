//! What a machine without a usable GPU lacks, so that the error says what to install or which group to join.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

/// Most bytes of a system file that are read.
const SYSTEM_FILE_BYTES_MAX: u64 = 1 << 20;

/// What the machine shows of its GPUs outside the graphics drivers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Surroundings {
    /// Whether a Vulkan loader answers.
    pub vulkan: bool,
    /// Device files of GPUs (Linux).
    pub nodes: Vec<Node>,
}

/// A device file through which programs reach a GPU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Where it stands.
    pub path: PathBuf,
    /// The group that may use it, when this user may not.
    pub closed_to_all_but: Option<String>,
}

impl Surroundings {
    /// Looks around; `vulkan` is whether the loader answered.
    #[must_use]
    pub fn look(vulkan: bool) -> Self {
        let nodes = if cfg!(target_os = "linux") { nodes(Path::new("/dev")) } else { Vec::new() };
        Self { vulkan, nodes }
    }

    /// What to do, for somebody who has no usable adapter.
    #[must_use]
    pub fn advice(&self) -> String {
        if let Some((node, group)) = self.nodes.iter().find_map(|n| Some((n, n.closed_to_all_but.as_ref()?))) {
            let path = node.path.display();
            return format!(
                "you are not in group {group}, which owns {path}: sudo usermod -aG {group} $USER, log in again"
            );
        }
        if cfg!(target_vendor = "apple") {
            return "macOS shows every GPU that has Metal: there is none here".into();
        }
        if cfg!(windows) {
            return "install the driver of the GPU's maker".into();
        }
        let drivers = "mesa-vulkan-drivers for AMD and Intel, NVIDIA's own driver for NVIDIA";
        match (self.vulkan, self.nodes.is_empty()) {
            (vulkan, true) => {
                let vulkan = if vulkan { String::new() } else { format!("; no Vulkan either (libvulkan1, {drivers})") };
                format!(
                    "this machine shows no GPU (neither /dev/dri/renderD* nor /dev/nvidia0 nor /dev/dxg); \
                     a container must be started with the GPU passed in{vulkan}"
                )
            }
            (false, false) => format!("there is a GPU but no Vulkan: install libvulkan1 and a driver ({drivers})"),
            (true, false) => format!("there is a GPU but no Vulkan driver for it: install {drivers}"),
        }
    }
}

/// The device files of GPUs below `dev`.
fn nodes(dev: &Path) -> Vec<Node> {
    let entries = std::fs::read_dir(dev.join("dri")).into_iter().flatten().flatten().map(|entry| entry.path());
    let render = |path: &PathBuf| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("renderD"));
    let mut paths: Vec<PathBuf> = entries.filter(render).collect();
    paths.sort();
    // NVIDIA's driver, and Windows' GPUs in a Linux of its own.
    paths.extend(["nvidia0", "dxg"].map(|name| dev.join(name)).into_iter().filter(|node| node.exists()));
    paths.into_iter().map(node).collect()
}

fn node(path: PathBuf) -> Node {
    let closed = match OpenOptions::new().read(true).write(true).open(&path) {
        Err(e) if e.kind() == ErrorKind::PermissionDenied => Some(group_of(&path).unwrap_or_else(|| "render".into())),
        _ => None,
    };
    Node { path, closed_to_all_but: closed }
}

#[cfg(unix)]
fn group_of(path: &Path) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let id = std::fs::metadata(path).ok()?.gid();
    group_name(&read_system_file(Path::new("/etc/group"))?, id)
}

#[cfg(not(unix))]
fn group_of(_path: &Path) -> Option<String> {
    None
}

/// The name of group `id` in the text of `/etc/group`.
#[cfg(unix)]
fn group_name(groups: &str, id: u32) -> Option<String> {
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        (number.parse() == Ok(id)).then(|| name.to_string())
    })
}

/// A file of the operating system as text, its first megabyte; `None` when it cannot be read.
pub(super) fn read_system_file(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(SYSTEM_FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(group: Option<&str>) -> Node {
        Node { path: "/dev/dri/renderD128".into(), closed_to_all_but: group.map(Into::into) }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn advice_names_the_group_the_package_or_the_missing_hardware() {
        let advice = |vulkan, nodes| Surroundings { vulkan, nodes }.advice();
        let closed = advice(true, vec![node(None), node(Some("video"))]);
        assert!(closed.starts_with("you are not in group video"), "{closed}");
        assert!(advice(false, vec![node(None)]).contains("libvulkan1"));
        assert!(advice(true, vec![node(None)]).contains("mesa-vulkan-drivers"));
        assert!(advice(true, vec![]).contains("shows no GPU") && !advice(true, vec![]).contains("libvulkan1"));
        assert!(advice(false, vec![]).contains("libvulkan1"));
    }

    #[test]
    #[cfg(unix)]
    fn a_group_is_found_by_its_number() {
        let groups = "root:x:0:\nvideo:x:44:ann,bob\nrender:x:106:ann\nbroken";
        assert_eq!(group_name(groups, 106).as_deref(), Some("render"));
        assert_eq!(group_name(groups, 44).as_deref(), Some("video"));
        assert_eq!(group_name(groups, 7), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn device_files_that_can_be_opened_are_open() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(dir.path().join("dri")).expect("a directory");
        for name in ["card0", "renderD129", "renderD128"] {
            std::fs::write(dir.path().join("dri").join(name), "").expect("a file");
        }
        let found = nodes(dir.path());
        let names: Vec<_> = found.iter().filter_map(|n| n.path.file_name()).collect();
        assert_eq!(names, ["renderD128", "renderD129"]);
        assert!(found.iter().all(|n| n.closed_to_all_but.is_none()));
    }
}
