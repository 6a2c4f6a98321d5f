//! What this host must have before volumes are mounted on it. Without it a mount fails, or works and is seen by nobody:
//! what is missing is told at the start, with its remedy.

use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, openat2};
use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};
use thiserror::Error;

use super::table::{Mount, Table, TableError};
use crate::reason::errno_of;

const STATUS: &str = "/proc/self/status";
const FILE_SYSTEMS: &str = "/proc/filesystems";
/// The number of the capability in capabilities(7).
const CAP_SYS_ADMIN: u32 = 21;
/// The folder in the kubelet's directory that has one for each pod, and in that the mounts of its volumes.
const PODS: &str = "pods";
/// The file systems of NFS 4 and 3; either will do for a start.
const NFS: [&str; 2] = ["nfs4", "nfs"];

/// What this host lacks.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "each variant's message says what its fields are")]
pub enum HostError {
    #[error(
        "this process lacks the capability CAP_SYS_ADMIN, which mounting needs: run the node plugin as root, in a \
         container with securityContext.privileged: true"
    )]
    NoCapability,

    #[error("this host's kernel has no {call}(2): the driver needs Linux 5.6 or newer")]
    OldKernel { call: &'static str },

    #[error(
        "NFS is missing from this host's kernel, and no module for it could be loaded: run modprobe nfs on the node, or \
         install its kernel's NFS client"
    )]
    NoNfs,

    #[error(
        "the kubelet directory {path} is not there ({reason}): mount the node's own {path}/pods at the same path into \
         the node plugin's container, or name another directory with --kubelet-dir"
    )]
    NoKubeletDir { path: PathBuf, reason: String },

    #[error(
        "the kubelet directory {path} lies on the mount {mount_point}, which is not shared: pods would not see the \
         volumes mounted there and write to the node's own disk instead; set mountPropagation: Bidirectional where the \
         node plugin's container mounts it (outside of containers: mount --make-rshared {mount_point})"
    )]
    NotShared { path: PathBuf, mount_point: PathBuf },

    #[error(transparent)]
    Table(#[from] TableError),

    #[error("cannot see what this host has: {path}: {error}; mount /proc")]
    Unreadable { path: &'static str, error: io::Error },
}

/// Makes sure that the kernel has the system calls without which nothing here works.
///
/// # Errors
/// [`HostError::OldKernel`].
pub fn is_new_enough() -> Result<(), HostError> {
    // None of them does anything with such arguments.
    let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC);
    let opened = openat2(nix::fcntl::AT_FDCWD, "/", how).map(drop);
    let tree = open_tree(CWD, "/", OpenTreeFlags::OPEN_TREE_CLOEXEC).map(drop);
    let moved = move_mount(CWD, "", CWD, "", MoveMountFlags::empty());
    lacking(&[("openat2", opened), ("open_tree", tree.map_err(errno_of)), ("move_mount", moved.map_err(errno_of))])
}

fn lacking(calls: &[(&'static str, nix::Result<()>)]) -> Result<(), HostError> {
    match calls.iter().find(|(_, done)| *done == Err(Errno::ENOSYS)) {
        Some(&(call, _)) => Err(HostError::OldKernel { call }),
        None => Ok(()),
    }
}

/// Makes sure that volumes can be mounted: this process may, and the kernel knows how.
///
/// # Errors
/// See [`HostError`].
pub fn can_mount() -> Result<(), HostError> {
    if !has_capability()? {
        return Err(HostError::NoCapability);
    }
    if knows_nfs(&read(FILE_SYSTEMS)?) {
        return Ok(());
    }
    // The kernel loads a file system's module when it is asked for by name; nothing is mounted.
    let is_missing = |fs_type: &&str| find_file_system(fs_type) == Err(Errno::ENODEV);
    if NFS.iter().all(is_missing) { Err(HostError::NoNfs) } else { Ok(()) }
}

/// Whether this process has the capability that mounting needs.
///
/// # Errors
/// [`HostError::Unreadable`].
pub fn has_capability() -> Result<bool, HostError> {
    read(STATUS).map(|status| holds_capability(&status))
}

/// Makes sure that what is mounted for pods below the kubelet's directory is seen by them. A container needs no more of
/// that directory than its folder for pods. A container's runtime makes a directory that is not there, but it is empty.
///
/// # Errors
/// See [`HostError`].
pub fn is_kubelet_dir(path: &Path) -> Result<(), HostError> {
    let missing = |reason: String| HostError::NoKubeletDir { path: path.into(), reason };
    // The directory may be a link to another disk; the mount table names where it leads.
    let pods = path.join(PODS).canonicalize().and_then(|real| Ok((real.read_dir()?.next().is_none(), real)));
    let (is_empty, real) = pods.map_err(|error| missing(format!("{PODS}: {error}")))?;
    if is_empty {
        return Err(missing(format!("its folder {PODS} is empty, and a node has one in it for each pod")));
    }
    match Table::read()?.holding(&real) {
        Some(mount) if Mount::shared(mount) => Ok(()),
        mount => Err(HostError::NotShared {
            path: path.into(),
            mount_point: mount.map_or_else(|| "/".into(), |mount| mount.mount_point.clone()),
        }),
    }
}

fn read(path: &'static str) -> Result<String, HostError> {
    std::fs::read_to_string(path).map_err(|error| HostError::Unreadable { path, error })
}

/// Asks the kernel for a file system by name, which loads its module; nothing is mounted. ENODEV: there is none.
fn find_file_system(fs_type: &str) -> nix::Result<()> {
    let found = rustix::mount::fsopen(fs_type, rustix::mount::FsOpenFlags::FSOPEN_CLOEXEC);
    found.map(drop).map_err(errno_of)
}

/// Whether the effective capabilities in the text of `/proc/self/status` hold CAP_SYS_ADMIN.
fn holds_capability(status: &str) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).is_some_and(|set| set & 1 << CAP_SYS_ADMIN != 0)
}

/// Whether the text of `/proc/filesystems` names NFS.
fn knows_nfs(file_systems: &str) -> bool {
    file_systems.lines().any(|line| line.rsplit('\t').next().is_some_and(|name| NFS.contains(&name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_capability_is_one_bit_of_the_effective_set() {
        let status = |set: &str| format!("Name:\tnfs-csi\nCapPrm:\t000001ffffffffff\nCapEff:\t{set}\nCapBnd:\t0\n");
        assert!(holds_capability(&status("000001ffffffffff")));
        assert!(holds_capability(&status("0000000000200000")));
        for without in ["000001ffffdfffff", "0000000000000000", "", "nothing"] {
            assert!(!holds_capability(&status(without)), "{without}");
        }
        assert!(!holds_capability(""));
    }

    #[test]
    fn a_kernel_without_a_call_is_told_and_this_one_has_all() {
        is_new_enough().unwrap();
        let error =
            lacking(&[("openat2", Ok(())), ("open_tree", Err(Errno::EPERM)), ("move_mount", Err(Errno::ENOSYS))]);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("move_mount(2)") && error.contains("Linux 5.6"), "{error}");
    }

    #[test]
    fn the_kernel_s_client_is_a_file_system_and_its_server_is_none() {
        assert!(knows_nfs("nodev\tsysfs\n\text4\nnodev\tnfs4\n"));
        assert!(knows_nfs("nodev\tnfs\n"));
        assert!(!knows_nfs("nodev\tsysfs\n\text4\nnodev\tnfsd\nnodev\trpc_pipefs\n"));
    }

    #[test]
    fn a_kubelet_directory_that_is_missing_or_no_directory_or_has_no_pods_is_reported_by_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let (file, made) = (folder.path().join("file"), folder.path().join("made"));
        std::fs::write(&file, "").unwrap();
        std::fs::create_dir_all(made.join(PODS)).unwrap();
        for path in [folder.path().join("missing"), file, made] {
            let error = is_kubelet_dir(&path).unwrap_err();
            assert!(matches!(error, HostError::NoKubeletDir { .. }), "{error}");
            assert!(error.to_string().contains(&path.display().to_string()), "{error}");
        }
    }
}
