//! What the integration tests, the benchmark and the demo share: a driver as a process of its own, clients for it, and
//! the requests an orchestrator would send. All of it runs in the guest, as root.
#![allow(dead_code, reason = "each program uses a part of the kit")]

pub mod check;
pub mod client;
pub mod clock;
pub mod content;
pub mod driver;
pub mod faulty_server;
pub mod http;
pub mod mortal;
pub mod name_server;
pub mod quota;
pub mod records;
pub mod replica;
pub mod requests;
pub mod retried;
pub mod server;
pub mod share;
pub mod system_calls;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Polls until `condition` gives something, for at most `limit`.
///
/// # Panics
/// When it does not in time; `what` says what was waited for.
pub fn wait_for<T>(what: &str, limit: Duration, mut condition: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + limit;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < end, "timed out after {limit:?} waiting for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The same for a test that has calls under way.
///
/// # Panics
/// When it does not in time; `what` says what was waited for.
pub async fn wait_until<T>(what: &str, limit: Duration, mut condition: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + limit;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < end, "timed out after {limit:?} waiting for {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The names in a folder, sorted; none if the folder is missing.
pub fn names_in(folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// A temporary folder for one test; it goes with the value.
pub struct Folder(PathBuf);

impl Folder {
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A killed driver leaves its exports mounted here: they must not be removed with the folder.
        for mounted in mounts_below(&self.0).iter().rev() {
            nix::mount::umount2(mounted, nix::mount::MntFlags::MNT_DETACH).expect("a mount of this test");
        }
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn folder() -> Folder {
    let folder = tempfile::Builder::new().prefix("nfs-csi-test-").tempdir().expect("a temporary folder");
    Folder(folder.keep())
}

/// All mount points below a folder, in the order in which they were mounted.
fn mounts_below(folder: &Path) -> Vec<PathBuf> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").expect("the mount table");
    let points = table.lines().filter_map(|line| line.split(' ').nth(4).map(PathBuf::from));
    points.filter(|point| point.starts_with(folder)).collect()
}

/// The lines of this guest's mount table for a mount point.
pub fn mounts_at(path: &Path) -> Vec<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").expect("the mount table");
    let wanted = path.to_str().expect("a path of a test");
    table.lines().filter(|line| line.split(' ').nth(4) == Some(wanted)).map(str::to_owned).collect()
}

/// The mount points of all NFS mounts below a folder.
pub fn nfs_mounts_below(folder: &Path) -> Vec<PathBuf> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").expect("the mount table");
    let is_nfs = |line: &&str| line.contains(" - nfs4 ") || line.contains(" - nfs ");
    let point = |line: &str| line.split(' ').nth(4).map(PathBuf::from);
    table.lines().filter(is_nfs).filter_map(point).filter(|point| point.starts_with(folder)).collect()
}
