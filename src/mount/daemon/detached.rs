//! Mounts that are out of the table, while the kernel may hold their file systems: somebody has a file open, or writes
//! what a server does not take.

use std::sync::{Mutex, PoisonError};

use crate::mount::table::Table;

/// The file systems of NFS servers that the kernel holds for this network namespace, mounted or not.
const VOLUMES: &str = "/proc/fs/nfsfs/volumes";

/// The file systems whose mounts this daemon took away.
#[derive(Debug, Default)]
pub(super) struct Detached(Mutex<Vec<FileSystem>>);

#[derive(Clone, Debug)]
struct FileSystem {
    device: (u32, u32),
    server: String,
}

impl Detached {
    /// Notes one.
    pub(super) fn add(&self, device: (u32, u32), server: &str) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.iter().any(|one| one.device == device) {
            all.push(FileSystem { device, server: server.to_owned() });
        }
    }

    /// The servers of those that the kernel holds still; the others are forgotten.
    pub(super) fn servers(&self) -> Vec<String> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.is_empty() {
            let held = std::fs::read_to_string(VOLUMES).unwrap_or_default();
            let table = Table::read().unwrap_or_default();
            all.retain(|one| is_held(&held, one.device) && !table.iter().any(|mount| mount.device == one.device));
        }
        all.iter().map(|one| one.server.clone()).collect()
    }
}

/// Whether a device is in the kernel's list: `NV SERVER PORT DEV FSID FSC`.
fn is_held(list: &str, (major, minor): (u32, u32)) -> bool {
    let device = format!("{major}:{minor}");
    list.lines().any(|line| line.split_whitespace().nth(3) == Some(device.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_is_known_by_its_device() {
        let list = "NV SERVER   PORT DEV          FSID                              FSC
v3 0a006301  801 0:40         6d1f2a1b:0                        no
v4 0a006301  801 0:43         1:0                               no
";
        assert!(is_held(list, (0, 40)) && is_held(list, (0, 43)) && !is_held(list, (0, 4)) && !is_held(list, (0, 7)));
    }
}
