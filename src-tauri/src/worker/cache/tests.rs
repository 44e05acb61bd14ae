//! A directory of experts between workers, damage, and a disk that is full.

use super::*;
use crate::clock::SystemClock;
use crate::worker::WorkerStatus;
use tokio::sync::watch;

struct Worker {
    cache: Arc<Cache>,
    status: watch::Receiver<WorkerStatus>,
}

fn worker(config: CacheConfig) -> Worker {
    let (sender, status) = watch::channel(WorkerStatus::default());
    let board = Arc::new(Board::new(sender));
    let cache = Cache::open(config, Arc::new(SystemClock::default()), board).unwrap();
    Worker { cache: Arc::new(cache), status }
}

fn config(dir: &Path, bytes_max: u64) -> CacheConfig {
    CacheConfig { dir: dir.to_owned(), bytes_max: Some(bytes_max), floor_bytes: 0 }
}

/// Bytes of an expert and their digest.
fn expert(n: u8) -> (Vec<u8>, Digest) {
    let bytes: Vec<u8> = (0..100u8).map(|i| i ^ n.wrapping_mul(17)).collect();
    let digest = Hex(*blake3::hash(&bytes).as_bytes());
    (bytes, digest)
}

impl Worker {
    fn part(&self, n: u8) -> Part {
        match self.cache.part(expert(n).1, 100) {
            Opened::Part(part) => part,
            Opened::Whole => panic!("expert {n} is whole"),
            Opened::Busy => panic!("expert {n} is busy"),
        }
    }

    fn fetch(&self, n: u8) {
        let mut part = self.part(n);
        let rest = expert(n).0[part.bytes().len()..].to_vec();
        part.append(&rest);
        assert_eq!(part.bytes(), expert(n).0);
        part.keep();
    }

    fn has(&self, n: u8) -> bool {
        self.cache.read(expert(n).1).is_some()
    }
}

#[test]
fn what_was_kept_is_there_for_the_next_until_it_is_damaged_or_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let first = worker(config(dir.path(), 1000));
    first.fetch(1);
    drop(first);
    let next = worker(config(dir.path(), 1000));
    assert!(next.has(1) && !next.has(2));
    assert!(matches!(next.cache.part(expert(1).1, 100), Opened::Whole));
    let path = next.cache.whole(expert(1).1);
    let mut bytes = fs::read(&path).unwrap();
    bytes[50] ^= 1;
    fs::write(&path, bytes).unwrap();
    assert!(!next.has(1) && !path.exists(), "deleted, to be fetched again");
    next.fetch(1);
    fs::remove_dir_all(dir.path()).unwrap();
    assert!(!next.has(1));
    next.fetch(1);
    assert!(next.has(1), "the directory is made again");
}

#[test]
fn a_part_goes_on_where_it_was_left_and_has_one_writer() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (worker(config(dir.path(), 1000)), worker(config(dir.path(), 1000)));
    let mut part = one.part(1);
    part.append(&expert(1).0[..40]);
    assert!(matches!(two.cache.part(expert(1).1, 100), Opened::Busy) && two.cache.is_busy(expert(1).1));
    drop(part);
    assert!(!two.cache.is_busy(expert(1).1));
    assert_eq!(two.part(1).bytes(), &expert(1).0[..40]);
    two.fetch(1);
    assert!(one.has(1));

    // Longer than the expert can be: nothing of it is believed.
    fs::write(dir.path().join(format!("{}.part", expert(2).1)), [7; 300]).unwrap();
    let mut part = one.part(2);
    assert!(part.bytes().is_empty());
    part.append(&[9; 100]);
    part.discard();
    one.fetch(2);
    assert!(one.has(2));
}

#[test]
fn what_was_used_longest_ago_goes_first_and_never_what_a_running_worker_needs() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (worker(config(dir.path(), 350)), worker(config(dir.path(), 350)));
    for n in 1..=3 {
        one.fetch(n);
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(n.into());
        fs::File::options().write(true).open(one.cache.whole(expert(n).1)).unwrap().set_modified(at).unwrap();
    }
    two.cache.need([expert(1).1].into_iter());
    one.cache.need([expert(9).1].into_iter());
    one.fetch(4);
    assert_eq!([1, 2, 3, 4].map(|n| one.has(n)), [true, false, true, true], "the oldest that nobody needs");
    // A worker that was killed leaves its file behind, but no lock.
    fs::write(dir.path().join("dead.holder"), [0; 32]).unwrap();
    one.cache.need([3, 4].map(|n| expert(n).1).into_iter());
    one.fetch(5);
    assert!(!dir.path().join("dead.holder").exists());
    assert_eq!([1, 3, 4, 5].map(|n| one.has(n)), [true, true, true, false], "all is needed, so nothing more is kept");
    assert!(one.status.borrow().disk_trouble.as_ref().is_some_and(|why| why.contains("--cache-size")));
    drop(two);
    one.fetch(5);
    assert_eq!([1, 3, 4, 5].map(|n| one.has(n)), [false, true, true, true]);
    assert_eq!(one.status.borrow().disk_trouble, None);
}

#[test]
fn a_full_disk_costs_no_byte_and_is_said_once() {
    let dir = tempfile::tempdir().unwrap();
    let full = worker(CacheConfig { floor_bytes: u64::MAX, ..config(dir.path(), 1000) });
    let mut status = full.status.clone();
    full.fetch(1);
    assert!(!full.has(1) && status.has_changed().unwrap());
    assert!(status.borrow_and_update().disk_trouble.as_ref().is_some_and(|why| why.contains("bytes free")));
    full.fetch(2);
    assert!(!status.has_changed().unwrap(), "said once");
    full.cache.put(expert(3).1, &expert(3).0);
    assert!(!full.has(3));
}

/// A file system of its own, of 64 KiB; gone when dropped.
#[cfg(target_os = "linux")]
struct Tiny(tempfile::TempDir);

#[cfg(target_os = "linux")]
impl Tiny {
    /// `None` for anybody but root.
    fn mount() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mount = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=64k", "none"])
            .arg(dir.path())
            .output();
        mount.is_ok_and(|done| done.status.success()).then_some(Self(dir))
    }
}

#[cfg(target_os = "linux")]
impl Drop for Tiny {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0.path()).output();
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_disk_that_fills_in_the_middle_of_an_expert_costs_no_byte_of_it() {
    // Whoever may not mount has no disk to fill; the floor's test has the same end.
    let Some(disk) = Tiny::mount() else { return };
    let dir = disk.0.path();
    let full = worker(config(dir, 1 << 20));
    let bytes = vec![5; 40_000];
    let digest = Hex(*blake3::hash(&bytes).as_bytes());
    let open = || match full.cache.part(digest, 40_000) {
        Opened::Part(part) => part,
        _ => panic!("a part"),
    };
    let mut part = open();
    part.append(&bytes[..10_000]);
    fs::write(dir.join("somebody else's"), vec![1; 40_000]).unwrap();
    part.append(&bytes[10_000..]);
    assert_eq!(part.bytes(), bytes);
    part.keep();
    assert!(full.cache.read(digest).is_none() && full.status.borrow().disk_trouble.is_some());
    fs::remove_file(dir.join("somebody else's")).unwrap();
    let mut part = open();
    assert!(part.bytes().is_empty());
    part.append(&bytes);
    part.keep();
    assert!(full.cache.read(digest).is_some() && full.status.borrow().disk_trouble.is_none());
}
