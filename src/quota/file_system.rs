//! Whether limits can be set on an export's file system, and how they hold there.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::stat::fstat;
use nix::sys::statfs::{
    BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, FsType, NFS_SUPER_MAGIC, OVERLAYFS_SUPER_MAGIC, TMPFS_MAGIC, XFS_SUPER_MAGIC,
    fstatfs,
};
use nix::sys::statvfs::fstatvfs;

use super::error::QuotaError;
use super::quotactl::{Disk, Kernel};
use crate::reason::errno_of;
use crate::volume::quota_files::ProjectId;

/// ZFS has its number from its own sources.
const ZFS_SUPER_MAGIC: i64 = 0x2fc1_2fc1;

/// A kind of file system on which limits hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// XFS.
    Xfs,
    /// ext4.
    Ext4,
}

impl Kind {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Xfs => "xfs",
            Self::Ext4 => "ext4",
        }
    }

    /// Whether limits hold for root too. ext4 exempts processes with CAP_SYS_RESOURCE, which the NFS server has while it
    /// works for root.
    #[must_use]
    pub fn limits_root(self) -> bool {
        self == Self::Xfs
    }
}

/// An export whose file system enforces limits of projects.
#[derive(Debug)]
pub struct Checked {
    /// Its top directory.
    pub export: OwnedFd,
    /// The file system.
    pub kind: Kind,
    /// The file system's number: exports with the same one share the projects.
    pub device: u64,
    /// The size of a block in bytes.
    pub block: u64,
}

/// Opens an export, and makes sure that limits of projects are enforced there.
///
/// # Errors
/// See [`QuotaError`]: each says what to do.
pub fn check(path: &Path) -> Result<Checked, QuotaError> {
    let opened = |errno| QuotaError::Export { path: path.into(), errno };
    let export = OwnedFd::from(File::open(path).map_err(|error| opened(errno_of(error)))?);
    let stat = fstat(&export).map_err(opened)?;
    if !matches!(stat.st_mode & nix::libc::S_IFMT, nix::libc::S_IFDIR) {
        return Err(opened(Errno::ENOTDIR));
    }
    let kind = kind(path, fstatfs(&export).map_err(opened)?.filesystem_type())?;
    let disk = Disk::of(export.try_clone()?);
    let not_enforced = || match kind {
        Kind::Xfs => QuotaError::NotEnforcedOnXfs { path: path.into() },
        Kind::Ext4 => QuotaError::NotEnforcedOnExt4 { path: path.into() },
    };
    match disk.is_enforced() {
        Ok(true) => {}
        Err(Errno::ENOSYS) if !Disk::has_call() => return Err(QuotaError::Kernel),
        // Where none are on, the kernel says ENOSYS too.
        Ok(false) | Err(Errno::ESRCH | Errno::EINVAL | Errno::ENOSYS) => return Err(not_enforced()),
        Err(errno) => return Err(QuotaError::Quotas { path: path.into(), errno }),
    }
    // What the agent does all the time: whether it may.
    if let Some(any) = ProjectId::new(1) {
        disk.quota(any).map_err(|errno| QuotaError::Quotas { path: path.into(), errno })?;
    }
    let block = fstatvfs(&export).map_err(opened)?.fragment_size();
    Ok(Checked { export, kind, device: stat.st_dev, block })
}

fn kind(path: &Path, magic: FsType) -> Result<Kind, QuotaError> {
    let kind = match magic {
        XFS_SUPER_MAGIC => return Ok(Kind::Xfs),
        EXT4_SUPER_MAGIC => return Ok(Kind::Ext4),
        BTRFS_SUPER_MAGIC => "btrfs".to_owned(),
        NFS_SUPER_MAGIC => "NFS (run the agent on the server)".to_owned(),
        OVERLAYFS_SUPER_MAGIC => "overlayfs (mount a disk there, or name the directory below it)".to_owned(),
        TMPFS_MAGIC => "tmpfs".to_owned(),
        FsType(ZFS_SUPER_MAGIC) => "ZFS".to_owned(),
        FsType(magic) => format!("a file system of type {magic:#x}"),
    };
    Err(QuotaError::FileSystem { path: path.into(), kind })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_without_limits_is_refused_by_its_name() {
        for (magic, named) in [
            (BTRFS_SUPER_MAGIC, "btrfs"),
            (FsType(ZFS_SUPER_MAGIC), "ZFS"),
            (NFS_SUPER_MAGIC, "on the server"),
            (OVERLAYFS_SUPER_MAGIC, "overlayfs"),
            (FsType(0x1234), "0x1234"),
        ] {
            let error = kind(Path::new("/srv/nfs"), magic).unwrap_err().to_string();
            assert!(error.contains(named) && error.contains("/srv/nfs") && error.contains("XFS or ext4"), "{error}");
        }
        assert!(kind(Path::new("/"), XFS_SUPER_MAGIC).unwrap().limits_root());
        assert!(!kind(Path::new("/"), EXT4_SUPER_MAGIC).unwrap().limits_root());
    }

    #[test]
    fn an_export_that_is_missing_or_no_directory_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        for path in [file, folder.path().join("missing")] {
            let error = check(&path).unwrap_err().to_string();
            assert!(error.contains(path.to_str().unwrap()), "{error}");
        }
    }
}
