//! What the agent asks of the kernel: the limit and the use of a project, and the project of a directory.
//!
//! The system calls are those of linux/dqblk_xfs.h and of `struct fsxattr` in linux/fs.h. Both XFS and ext4 take them:
//! the kernel translates for every file system with quotas. quotactl_fd(2) needs no device, but Linux 5.14.
//!
//! A mark is an extended attribute that only root on this host can set or see: NFS has no way to name it. So what has a
//! mark was made by an agent, whatever an NFS client did to its name.
#![allow(unsafe_code, reason = "quotactl_fd(2) and the project's ioctl(2) have no safe wrappers")]

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::Result;
use nix::errno::Errno;
use nix::libc;
use rustix::fs::XattrFlags;

use crate::reason::errno_of;
use crate::volume::quota_files::ProjectId;

/// Hard limits; 0: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// In bytes.
    pub bytes: u64,
    /// In files and directories.
    pub inodes: u64,
}

/// What the kernel knows of a project.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// The bytes that are charged to it.
    pub bytes: u64,
    /// The files and directories that are charged to it.
    pub inodes: u64,
    /// Its hard limits.
    pub limit: Limit,
    /// Whether it has limits of another kind, which the agent never sets.
    pub has_others: bool,
}

impl Quota {
    /// Whether nothing is charged to it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0 && self.inodes == 0
    }

    /// Whether nothing is charged to it and nothing limits it: nobody uses the number.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        *self == Self::default()
    }
}

/// The kernel's side of one file system.
pub trait Kernel {
    /// What is known of a project.
    ///
    /// # Errors
    /// What the kernel gives.
    fn quota(&self, project: ProjectId) -> Result<Quota>;

    /// The first project from this number on of which something is known; none: there is no further one.
    ///
    /// # Errors
    /// What the kernel gives.
    fn next_quota(&self, from: ProjectId) -> Result<Option<(ProjectId, Quota)>>;

    /// Sets both hard limits of a project, and removes its soft ones.
    ///
    /// # Errors
    /// What the kernel gives; ERANGE or EINVAL where the file system cannot count so far.
    fn set_limit(&self, project: ProjectId, limit: Limit) -> Result<()>;

    /// Makes an empty directory one of a project, and all that will be made in it.
    ///
    /// # Errors
    /// What the kernel gives.
    fn assign(&self, directory: &OwnedFd, project: ProjectId) -> Result<()>;

    /// The project of a directory, if what is made in it belongs to that too.
    ///
    /// # Errors
    /// What the kernel gives.
    fn project_of(&self, directory: &OwnedFd) -> Result<Option<ProjectId>>;

    /// Marks a file as the agent's, with its project. The descriptor may be one of `O_PATH`, of a link too.
    ///
    /// # Errors
    /// What the kernel gives.
    fn mark(&self, file: &OwnedFd, project: ProjectId) -> Result<()>;

    /// The project of a mark.
    ///
    /// # Errors
    /// What the kernel gives.
    fn marked(&self, file: &OwnedFd) -> Result<Option<ProjectId>>;
}

/// The attribute that is the mark: its value is the project's number in decimal.
const MARK: &str = "trusted.nfs_csi.project";
/// A value of it is no longer.
const LONGEST_MARK: usize = 16;

/// `PRJQUOTA`.
const PROJECTS: u32 = 2;
/// `Q_XGETQUOTA`, `Q_XSETQLIM`, `Q_XGETQSTATV` and `Q_XGETNEXTQUOTA`.
const GET: u32 = 0x5803;
const SET: u32 = 0x5804;
const STATE: u32 = 0x5808;
const NEXT: u32 = 0x5809;
/// `FS_DQUOT_VERSION` and `FS_PROJ_QUOTA`.
const VERSION: i8 = 1;
const OF_PROJECT: i8 = 2;
/// `FS_DQ_ISOFT`, `FS_DQ_IHARD`, `FS_DQ_BSOFT` and `FS_DQ_BHARD`.
const LIMITS: u16 = 1 | 2 | 4 | 8;
/// The unit of space in `struct fs_disk_quota`.
const SECTOR: u64 = 512;
/// `FS_QUOTA_PDQ_ACCT` and `FS_QUOTA_PDQ_ENFD`.
const ENFORCED: u16 = (1 << 4) | (1 << 5);

/// `FS_IOC_FSGETXATTR` and `FS_IOC_FSSETXATTR`.
const GET_ATTRIBUTES: libc::Ioctl = 0x801c_581f_u32 as libc::Ioctl;
const SET_ATTRIBUTES: libc::Ioctl = 0x401c_5820_u32 as libc::Ioctl;
/// `FS_XFLAG_PROJINHERIT`.
const INHERITED: u32 = 0x200;

/// `struct fs_disk_quota`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct DiskQuota {
    version: i8,
    flags: i8,
    fields: u16,
    id: u32,
    block_hard: u64,
    block_soft: u64,
    inode_hard: u64,
    inode_soft: u64,
    blocks: u64,
    inodes: u64,
    timers: [i32; 2],
    warnings: [u16; 2],
    timers_high: [i8; 4],
    realtime_hard: u64,
    realtime_soft: u64,
    realtime_blocks: u64,
    realtime_timer: i32,
    realtime_warnings: u16,
    padding: [u8; 10],
}

/// `struct fs_quota_statv`, with more space than any version of it needs: of interest are its version, which is the first
/// byte, and its flags, which are the second two.
#[repr(C, align(8))]
struct QuotaState([u8; 256]);

/// `struct fsxattr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Attributes {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    copy_extent_size: u32,
    padding: [u8; 8],
}

const _: () = assert!(size_of::<DiskQuota>() == 112 && size_of::<Attributes>() == 28);

/// A mounted file system.
#[derive(Debug)]
pub struct Disk(OwnedFd);

impl Disk {
    /// The file system of an open directory.
    #[must_use]
    pub fn of(directory: OwnedFd) -> Self {
        Self(directory)
    }

    /// Whether limits of projects are enforced.
    ///
    /// # Errors
    /// ENOSYS where the kernel or the file system has no quotas or none of projects, and what the kernel gives otherwise.
    pub fn is_enforced(&self) -> Result<bool> {
        let mut state = QuotaState([0; 256]);
        // FS_QSTATV_VERSION1.
        state.0[0] = 1;
        self.call(STATE, 0, &mut state)?;
        Ok(u16::from_ne_bytes([state.0[2], state.0[3]]) & ENFORCED == ENFORCED)
    }

    /// Whether the kernel has quotactl_fd(2).
    #[must_use]
    pub fn has_call() -> bool {
        // SAFETY: without a file system the call reads and writes nothing.
        let status = unsafe { libc::syscall(libc::SYS_quotactl_fd, -1, 0, 0, std::ptr::null_mut::<libc::c_void>()) };
        Errno::result(status) != Err(Errno::ENOSYS)
    }

    fn call<T>(&self, command: u32, project: u32, argument: &mut T) -> Result<()> {
        let command = (command << 8) | PROJECTS;
        // SAFETY: `argument` is a valid, exclusively borrowed value of the type that each of these commands reads or writes.
        let status = unsafe {
            libc::syscall(libc::SYS_quotactl_fd, self.0.as_raw_fd(), command, project, std::ptr::from_mut(argument))
        };
        Errno::result(status).map(drop)
    }
}

/// Makes a file one of a project, with what is charged of it.
///
/// # Errors
/// What the kernel gives.
pub fn assign_file(file: &OwnedFd, project: ProjectId) -> Result<()> {
    set_project(file, project, 0)
}

impl DiskQuota {
    fn quota(&self) -> Quota {
        Quota {
            bytes: self.blocks.saturating_add(self.realtime_blocks).saturating_mul(SECTOR),
            inodes: self.inodes,
            limit: Limit { bytes: self.block_hard.saturating_mul(SECTOR), inodes: self.inode_hard },
            has_others: self.block_soft | self.inode_soft | self.realtime_hard | self.realtime_soft != 0,
        }
    }
}

impl Kernel for Disk {
    fn quota(&self, project: ProjectId) -> Result<Quota> {
        let mut found = DiskQuota::default();
        match self.call(GET, project.get(), &mut found) {
            Err(Errno::ENOENT) => Ok(Quota::default()),
            called => called.map(|()| found.quota()),
        }
    }

    fn next_quota(&self, from: ProjectId) -> Result<Option<(ProjectId, Quota)>> {
        let mut found = DiskQuota::default();
        match self.call(NEXT, from.get(), &mut found) {
            Err(Errno::ENOENT) => Ok(None),
            // No project of the agent has more than 31 bits.
            called => called.map(|()| Some((ProjectId::new(found.id)?, found.quota()))),
        }
    }

    fn set_limit(&self, project: ProjectId, limit: Limit) -> Result<()> {
        let mut wanted = DiskQuota {
            version: VERSION,
            flags: OF_PROJECT,
            fields: LIMITS,
            id: project.get(),
            block_hard: limit.bytes.div_ceil(SECTOR),
            inode_hard: limit.inodes,
            ..DiskQuota::default()
        };
        self.call(SET, project.get(), &mut wanted)
    }

    fn assign(&self, directory: &OwnedFd, project: ProjectId) -> Result<()> {
        set_project(directory, project, INHERITED)
    }

    fn project_of(&self, directory: &OwnedFd) -> Result<Option<ProjectId>> {
        let attributes = attributes(directory)?;
        Ok(ProjectId::new(attributes.project).filter(|_| attributes.flags & INHERITED != 0))
    }

    fn mark(&self, file: &OwnedFd, project: ProjectId) -> Result<()> {
        rustix::fs::setxattr(path_of(file), MARK, project.to_string().as_bytes(), XattrFlags::empty()).map_err(errno_of)
    }

    fn marked(&self, file: &OwnedFd) -> Result<Option<ProjectId>> {
        let mut value = [0; LONGEST_MARK];
        match rustix::fs::getxattr(path_of(file), MARK, &mut value[..]).map_err(errno_of) {
            Err(Errno::ENODATA | Errno::ERANGE) => Ok(None),
            read => Ok(std::str::from_utf8(&value[..read?]).ok().and_then(ProjectId::parse)),
        }
    }
}

fn set_project(file: &OwnedFd, project: ProjectId, flags: u32) -> Result<()> {
    let mut attributes = attributes(file)?;
    if (attributes.project, attributes.flags & flags) == (project.get(), flags) {
        return Ok(());
    }
    attributes.project = project.get();
    attributes.flags |= flags;
    // SAFETY: the kernel reads a `struct fsxattr` here, which this is.
    Errno::result(unsafe { libc::ioctl(file.as_raw_fd(), SET_ATTRIBUTES, &raw const attributes) }).map(drop)
}

fn attributes(directory: &OwnedFd) -> Result<Attributes> {
    let mut attributes = Attributes::default();
    // SAFETY: the kernel writes a `struct fsxattr` here, which this is.
    Errno::result(unsafe { libc::ioctl(directory.as_raw_fd(), GET_ATTRIBUTES, &raw mut attributes) })?;
    Ok(attributes)
}

/// A path to an open file that leads to it whatever its name is, also where it is a link, or open with `O_PATH`.
fn path_of(file: impl AsFd) -> String {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())
}
