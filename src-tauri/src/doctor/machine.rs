//! The machine: what computes, where keys lie, room on the disk, open files. Nothing here asks the network.

use std::io;
use std::path::{Path, PathBuf};

use super::report::Check;
use super::{DISK_FLOOR_BYTES, Options, WalletFound};
use crate::model::room::disk_free;
use crate::net::descriptors::{OpenFiles, open_files};

/// Open files below which a worker with its model, its cache and its links may run out.
const FILES_LEAST: u64 = 256;
/// Below this a server cannot serve the thousand workers that it is built for.
const FILES_OF_A_SERVER: u64 = 4096;

pub(super) const GPU: (&str, &str) = ("gpu", "GPU");
pub(super) const KEYRING: (&str, &str) = ("keyring", "Keyring");
pub(super) const WALLET: (&str, &str) = ("wallet", "Wallet");
pub(super) const DISK: (&str, &str) = ("disk", "Disk");
pub(super) const FILES: (&str, &str) = ("files", "Open files");

/// Whether a GPU computes here; loads drivers, so it blocks.
#[cfg(feature = "gpu")]
pub(super) fn gpu(options: &Options) -> Check {
    use crate::kernel::gpu::listing::{Listed, list};
    let (id, title) = GPU;
    let listing = match list(&options.gpu) {
        Ok(listing) => listing,
        Err(error) => return Check::warn(id, title, error.to_string(), "the CPU computes until that is mended"),
    };
    let tell = |adapter: &Listed| {
        let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
        let memory = match (adapter.heap_bytes, adapter.free_bytes) {
            (Some(all), Some(free)) => format!("{:.1} GiB, {:.1} free", gib(all), gib(free)),
            _ => "memory not told".to_owned(),
        };
        let kind = if adapter.is_software { ", a program on the CPU" } else { "" };
        format!("{}{kind}, driver {}, {memory}", adapter.label, adapter.driver)
    };
    if let Some(lacks) = &listing.lacks {
        let why = |adapter: &Listed| adapter.passed_over.clone().unwrap_or_default();
        let others: Vec<String> =
            listing.adapters.iter().map(|adapter| format!("{} – {}", tell(adapter), why(adapter))).collect();
        let found = if others.is_empty() { "none: the CPU computes".to_owned() } else { others.join("; ") };
        return Check::warn(id, title, found, lacks.advice.clone());
    }
    Check::ok(id, title, listing.usable().map(tell).collect::<Vec<_>>().join("; "))
}

/// Without its feature a program has nothing to look with.
#[cfg(not(feature = "gpu"))]
pub(super) fn gpu(_options: &Options) -> Check {
    let remedy = "use a build with the feature gpu";
    Check::warn(GPU.0, GPU.1, "this program was built without GPU code: the CPU computes", remedy)
}

/// Whether the system keyring answers; it may take its time, so it blocks.
#[cfg(feature = "os-keyring")]
pub(super) fn keyring() -> Check {
    let (id, title) = KEYRING;
    match crate::wallet::OsKeyStore::new("kvasir").check() {
        Ok(()) => Check::ok(id, title, "the system keyring answers"),
        Err(error) => {
            let remedy = "start one (gnome-keyring or KWallet) and log in again; until then the app cannot keep its \
                          wallet there. Headless workers keep theirs in an owner-only file and need none";
            Check::warn(id, title, error.to_string(), remedy)
        }
    }
}

/// A build for servers has none to ask.
#[cfg(not(feature = "os-keyring"))]
pub(super) fn keyring() -> Check {
    let found = "not used by this program: keys lie in owner-only files";
    Check::ok(KEYRING.0, KEYRING.1, found)
}

/// Whether the wallet can be used.
pub(super) fn wallet(found: &WalletFound) -> Check {
    let (id, title) = WALLET;
    match found {
        WalletFound::Here(wallet) => Check::ok(id, title, wallet.address().to_string()),
        WalletFound::None => {
            let remedy = "a first start of the worker makes one; or kvasir wallet create";
            Check::warn(id, title, "none here yet", remedy)
        }
        WalletFound::Trouble(reason) => {
            Check::fail(id, title, reason, "do as it says: no new wallet is made while this one is missing")
        }
    }
}

/// Whether there is room for experts and receipts, in every directory that is written to.
pub(super) fn disk(options: &Options) -> Check {
    let (id, title) = DISK;
    let dirs = std::iter::once(&options.state_dir).chain(&options.cache_dir);
    let mut told = Vec::new();
    for dir in dirs {
        let there = nearest(dir);
        let needed = options.disk_needed_bytes.max(DISK_FLOOR_BYTES);
        // A full disk is told before a file is tried there: both would fail.
        let looked = disk_free(&there).and_then(|free| {
            if free >= needed {
                writable(&there)?;
            }
            Ok(free)
        });
        match looked {
            Ok(free) if free < needed => {
                let found = format!("{} free at {}, {} are needed", size(free), dir.display(), size(needed));
                let remedy = "delete something there, or move it with --state and --cache to a larger disk; a smaller \
                              --memory needs less";
                return Check::fail(id, title, found, remedy);
            }
            Ok(free) => told.push(format!("{} free at {}", size(free), dir.display())),
            Err(error) => {
                let remedy = "make it writable for the user who runs this, or choose another with --state or --cache";
                return Check::fail(id, title, format!("{} cannot be used: {error}", dir.display()), remedy);
            }
        }
    }
    Check::ok(id, title, told.join("; "))
}

/// The directory itself, or the nearest one above it: the rest is made at the first start.
fn nearest(dir: &Path) -> PathBuf {
    let full = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    full.ancestors().find(|dir| dir.is_dir()).unwrap_or(Path::new("/")).to_owned()
}

/// Whether a file can be made there; it is gone again afterwards.
fn writable(dir: &Path) -> io::Result<()> {
    tempfile::tempfile_in(dir).map(drop)
}

/// Bytes for people, in GiB or MiB.
fn size(bytes: u64) -> String {
    let mib = bytes as f64 / (1u64 << 20) as f64;
    if mib < 1024.0 { format!("{mib:.0} MiB") } else { format!("{:.1} GiB", mib / 1024.0) }
}

/// Whether enough files may be open at once.
pub(super) fn files() -> Check {
    open_files().map_or_else(|| Check::ok(FILES.0, FILES.1, "no limit on this system"), judge)
}

fn judge(limit: OpenFiles) -> Check {
    let (id, title) = FILES;
    let count = |limit: u64| if limit == u64::MAX { "as many as wished".to_owned() } else { limit.to_string() };
    let found = format!("{} at once, servers raise it to {}", count(limit.soft), count(limit.hard));
    let remedy = "ulimit -n 65536, or LimitNOFILE=65536 in the unit";
    if limit.soft < FILES_LEAST {
        return Check::fail(id, title, found, remedy);
    }
    if limit.hard < FILES_OF_A_SERVER {
        return Check::warn(id, title, format!("{found}: enough for a worker, not for a server"), remedy);
    }
    Check::ok(id, title, found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn few_open_files_fail_a_worker_and_warn_a_server() {
        let verdict = |soft, hard| judge(OpenFiles { soft, hard }).verdict;
        assert_eq!(verdict(1024, 65_536), Verdict::Ok);
        assert_eq!(verdict(1024, 1024), Verdict::Warn);
        assert_eq!(verdict(64, 65_536), Verdict::Fail);
        assert!(judge(OpenFiles { soft: 1024, hard: u64::MAX }).found.ends_with("raise it to as many as wished"));
    }

    #[test]
    fn room_is_looked_for_where_the_directory_will_be() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(nearest(&dir.path().join("a/b")), dir.path());
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert_eq!(nearest(&file.join("b")), dir.path());
    }

    #[test]
    fn a_directory_that_takes_no_file_is_told_from_a_full_one() {
        let dir = tempfile::tempdir().unwrap();
        let options = |needed| Options { disk_needed_bytes: needed, ..Options::new(dir.path().join("state")) };
        assert_eq!(disk(&options(0)).verdict, Verdict::Ok);
        let full = disk(&options(u64::MAX / 2));
        assert!(full.verdict == Verdict::Fail && full.found.contains("are needed"), "{full:?}");
    }
}
