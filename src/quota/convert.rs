//! `nfs-csi quota convert`: a volume that was made without a limit gets one, on its server, while no pod uses it.
//!
//! The volume claims a project from the agent as a new one does; its own entries then become that project's: files
//! first, and a directory after all that is in it, so that the top is last. Until then nothing of it is in a directory of
//! the project that is not of the project itself, and so can be renamed as before. What is no file and no directory
//! cannot be given to a project: it is made again beside itself, in its directory, which gives it the project, and takes
//! its own place. A conversion that was cut short is completed by the next one.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{Mode, futimens};
use nix::sys::time::TimeSpec;
use rustix::fs::{
    AtFlags, FileType, Gid, Mode as Permissions, Timespec, Timestamps, Uid, chownat, mknodat, readlinkat, renameat,
    statat, symlinkat, unlinkat, utimensat,
};
use thiserror::Error;

use super::quotactl::{Disk, Kernel, assign_file};
use crate::beneath;
use crate::export::catalog::Record;
use crate::export::record_lock::RecordLock;
use crate::export::{Export, ExportError};
use crate::reason::errno_of;
use crate::tree::TreeError;
use crate::tree::bottom_up::{self, Visitor};
use crate::volume::quota_files::ProjectId;
use crate::volume::record_key::RecordKey;
use crate::volume::size_limit::{QuotaMode, QuotaPolicy, RecordedQuota};
use crate::volume::subdir::SubDir;

/// The name under which an entry is made again.
const NEW: &CStr = c".nfs-csi-convert";
/// The unit of `st_blocks`.
const SECTOR: u64 = 512;

/// Why a volume was not converted.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "each variant's message says what its fields are")]
pub enum ConvertError {
    #[error("volume {volume} has no size on record: expand its claim first, then convert it")]
    NoSize { volume: String },

    #[error(
        "volume {volume} holds {used} bytes, more than its size of {size}: expand its claim first, then convert it"
    )]
    TooLarge { volume: String, used: u64, size: u64 },

    #[error(
        "{directory} is used by {others} volumes or is in another volume: a limit would hold for all of them; give each a \
         directory of its own"
    )]
    Shared { directory: String, others: usize },

    #[error("volume {volume} cannot be converted: {error}; what was done stays, and another try completes it")]
    Tree { volume: String, error: TreeError },

    #[error("volume {volume} was changed by a controller meanwhile: try again")]
    Contended { volume: String },

    #[error(transparent)]
    Export(#[from] ExportError),
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Converted {
    /// The volume's project.
    pub project: Option<ProjectId>,
    /// Files, directories and other entries that are the project's now.
    pub entries: u64,
    /// Entries that have several names and are no files: they could not be made again.
    pub left: u64,
    /// What is charged to the project, in bytes.
    pub used: u64,
}

/// Gives a volume a limit.
///
/// # Errors
/// See [`ConvertError`].
pub fn convert(
    export: &Export,
    disk: &Disk,
    key: &RecordKey,
    record: &Record,
    mode: QuotaMode,
) -> Result<Converted, ConvertError> {
    let volume = || record.name.clone();
    if let Some(project) = record.project() {
        return Ok(Converted { project: Some(project), ..Converted::default() });
    }
    let policy = QuotaPolicy {
        mode,
        inodes_per_gib: record.quota.and_then(|quota| quota.inodes_per_gib),
        root_exempt: true,
        overcommit: None,
    };
    let Some(size) = std::num::NonZeroU64::new(record.capacity_bytes) else {
        return Err(ConvertError::NoSize { volume: volume() });
    };
    check_alone(export, key, &record.subdir)?;
    let (directory, inode) = export.open_directory(&record.subdir)?;
    let failed = |error| ConvertError::Tree { volume: volume(), error };
    let mut count = Count::default();
    bottom_up::walk(&directory, &mut count).map_err(failed)?;
    if count.bytes > size.get() {
        return Err(ConvertError::TooLarge { volume: volume(), used: count.bytes, size: size.get() });
    }

    let limit = crate::volume::size_limit::SizeLimit::new(size, policy.inodes_per_gib);
    let project = match export.claimed_for(key)? {
        Some(project) => {
            export.change_limit(project, key, limit)?;
            project
        }
        None => export.limited(&export.claim_limit(key, limit, None, &policy)?)?.project,
    };
    let mut tagging = Tagging { disk, project, entries: 0, left: 0 };
    bottom_up::walk(&directory, &mut tagging).map_err(failed)?;

    let quota = RecordedQuota { mode, project: Some(project), inodes_per_gib: policy.inodes_per_gib };
    let converted = Record { inode: Some(inode), ..record.clone() }.with_quota(quota);
    let replace = |lock: &RecordLock<'_>| Ok(lock.is_still(record)? && lock.replace(&converted)?);
    let is_replaced = export.with_record_locked(key, std::time::Duration::MAX, replace)?.unwrap_or(false);
    if !is_replaced || export.inode_of(&record.subdir)? != Some(inode) {
        return Err(ConvertError::Contended { volume: volume() });
    }
    // The volume's own directory has the project now.
    export.release_limited(project);
    let used = disk.quota(project).map_or(0, |quota| quota.bytes);
    Ok(Converted { project: Some(project), entries: tagging.entries, left: tagging.left, used })
}

/// A limit is of a whole directory: no other volume may be in it, nor it in another one's.
fn check_alone(export: &Export, key: &RecordKey, subdir: &SubDir) -> Result<(), ConvertError> {
    let mut others = 0;
    for other in export.keys::<Record>()? {
        let Some(record) = export.record(&other)? else { continue };
        let is_within = |inner: &SubDir, outer: &SubDir| {
            inner.as_str().strip_prefix(outer.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if other != *key && (is_within(&record.subdir, subdir) || is_within(subdir, &record.subdir)) {
            others += 1;
        }
    }
    if others == 0 { Ok(()) } else { Err(ConvertError::Shared { directory: subdir.to_string(), others }) }
}

/// How many bytes a tree takes.
#[derive(Default)]
struct Count {
    bytes: u64,
}

impl Visitor for Count {
    fn entry(&mut self, directory: BorrowedFd<'_>, name: &CStr, _: FileType) -> nix::Result<()> {
        let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map_err(errno_of)?;
        // A file of several names counts for each in part.
        self.bytes += stat.st_blocks.unsigned_abs() * SECTOR / stat.st_nlink.max(1);
        Ok(())
    }

    fn leave(&mut self, directory: &OwnedFd) -> nix::Result<()> {
        self.bytes += nix::sys::stat::fstat(directory)?.st_blocks.unsigned_abs() * SECTOR;
        Ok(())
    }
}

/// Gives all of a tree to a project.
struct Tagging<'a> {
    disk: &'a Disk,
    project: ProjectId,
    entries: u64,
    left: u64,
}

impl Visitor for Tagging<'_> {
    fn entry(&mut self, directory: BorrowedFd<'_>, name: &CStr, kind: FileType) -> nix::Result<()> {
        if kind != FileType::RegularFile {
            // When the directory is the project's.
            return Ok(());
        }
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let file = beneath::open(directory, std::path::Path::new(as_text(name)), flags, Mode::empty())?;
        assign_file(&file, self.project)?;
        self.entries += 1;
        Ok(())
    }

    fn leave(&mut self, directory: &OwnedFd) -> nix::Result<()> {
        self.disk.assign(directory, self.project)?;
        let (before, made) = (nix::sys::stat::fstat(directory)?, self.entries);
        self.entries += 1;
        for name in beneath::names(directory)? {
            let name =
                std::ffi::CString::new(std::os::unix::ffi::OsStringExt::into_vec(name)).map_err(|_| Errno::EINVAL)?;
            match self.make_again(directory.as_fd(), &name) {
                Ok(()) | Err(Errno::ENOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
        if self.entries > made + 1 {
            let access = TimeSpec::new(before.st_atime, before.st_atime_nsec);
            let modification = TimeSpec::new(before.st_mtime, before.st_mtime_nsec);
            futimens(directory, &access, &modification)?;
        }
        Ok(())
    }
}

impl Tagging<'_> {
    /// Makes an entry again that is no file and no directory, with all that it has.
    fn make_again(&mut self, directory: BorrowedFd<'_>, name: &CStr) -> nix::Result<()> {
        let work = || -> rustix::io::Result<Option<bool>> {
            let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
            let kind = FileType::from_raw_mode(stat.st_mode);
            if matches!(kind, FileType::RegularFile | FileType::Directory) {
                return Ok(None);
            }
            if stat.st_nlink > 1 {
                return Ok(Some(false));
            }
            match unlinkat(directory, NEW, AtFlags::empty()) {
                Ok(()) | Err(rustix::io::Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
            if kind == FileType::Symlink {
                symlinkat(readlinkat(directory, name, Vec::new())?, directory, NEW)?;
            } else {
                mknodat(directory, NEW, kind, Permissions::from_raw_mode(stat.st_mode), stat.st_rdev)?;
            }
            let (owner, group) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
            chownat(directory, NEW, Some(owner), Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
            if kind != FileType::Symlink {
                rustix::fs::chmodat(directory, NEW, Permissions::from_raw_mode(stat.st_mode), AtFlags::empty())?;
            }
            let time = |seconds: i64, nanoseconds: u64| Timespec {
                tv_sec: seconds,
                tv_nsec: i64::try_from(nanoseconds).unwrap_or_default(),
            };
            let times = Timestamps {
                last_access: time(stat.st_atime, stat.st_atime_nsec),
                last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
            };
            utimensat(directory, NEW, &times, AtFlags::SYMLINK_NOFOLLOW)?;
            renameat(directory, NEW, directory, name)?;
            Ok(Some(true))
        };
        match work().map_err(errno_of)? {
            Some(true) => self.entries += 1,
            Some(false) => self.left += 1,
            None => {}
        }
        Ok(())
    }
}

fn as_text(name: &CStr) -> &std::ffi::OsStr {
    std::os::unix::ffi::OsStrExt::from_bytes(name.to_bytes())
}
