//! What the server can do with files besides reading and writing: copy them, and keep extended attributes and access
//! control lists.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use rustix::fs::{XattrFlags, copy_file_range, fsetxattr, getxattr, ioctl_ficlone};

use super::check::{Check, Planned};
use super::files::{LENGTH, Work, content};
use super::mounting::Mounted;
use crate::beneath;
use crate::mount::options::Version;
use crate::reason::{ENOTSUPP, errno_of};

const IF_LATE: &str = "look at the load of the NFS server: it stopped to answer in the middle of a call";

pub(super) const CLONE: Planned = Planned { name: "clone", if_late: IF_LATE };
pub(super) const COPY: Planned = Planned { name: "copy", if_late: IF_LATE };
pub(super) const XATTRS: Planned = Planned { name: "xattrs", if_late: IF_LATE };
pub(super) const ACLS: Planned = Planned { name: "acls", if_late: IF_LATE };

/// The kernel's statistics name the call so.
const COPY_CALL: &str = "COPY";
const TO_NFS_4_2: &str = "NFS 4.2 has it, and the share is mounted with NFS";

/// Whether the server makes clones that share their blocks.
pub(super) fn clone(mounted: &Mounted, work: &Work, file: &OwnedFd) -> Check {
    if mounted.version < Version::V4_2 {
        return CLONE.skip(format!("{TO_NFS_4_2} {}", mounted.version));
    }
    let cloned = target(work, "clone").and_then(|clone| {
        ioctl_ficlone(&clone, file).map_err(errno_of)?;
        holds(clone)
    });
    match cloned {
        Ok(true) => CLONE.pass("clones share their blocks (CLONE)"),
        Ok(false) => CLONE.fail("a clone has other data than its source", "update the kernel of the NFS server"),
        Err(Errno::EOPNOTSUPP | Errno::EINVAL) => CLONE.warn(
            "the server has no CLONE here: clones, snapshots and restores copy all data",
            "export a file system with reflinks, such as XFS (mkfs.xfs -m reflink=1) or btrfs, where that matters",
        ),
        Err(errno) => CLONE.fail(format!("a file cannot be cloned: {}", errno.desc()), IF_LATE),
    }
}

/// Whether the server copies by itself.
pub(super) fn copy(mounted: &Mounted, work: &Work, file: &OwnedFd) -> Check {
    if mounted.version < Version::V4_2 {
        return COPY.skip(format!("{TO_NFS_4_2} {}", mounted.version));
    }
    let before = mounted.calls(COPY_CALL);
    let copied = target(work, "copy").and_then(|copy| {
        let mut done = 0;
        while done < LENGTH {
            let (mut from, mut to) = (done as u64, done as u64);
            match copy_file_range(file, Some(&mut from), &copy, Some(&mut to), LENGTH - done).map_err(errno_of)? {
                0 => return Ok(false),
                length => done += length,
            }
        }
        holds(copy)
    });
    match copied {
        Ok(true) if before.is_some() && mounted.calls(COPY_CALL) == before => COPY.warn(
            "the server does not copy by itself (COPY): data passes through the controller",
            "run an NFS server with COPY, such as Linux 5.6 or newer, where that matters",
        ),
        Ok(true) if before.is_some() => COPY.pass("the server copies by itself (COPY)"),
        Ok(true) => COPY.pass("a file can be copied (whether by the server itself is not known here)"),
        Ok(false) => COPY.fail("a copy has other data than its source", "update the kernel of the NFS server"),
        Err(errno) => COPY.fail(format!("a file cannot be copied: {}", errno.desc()), IF_LATE),
    }
}

fn target(work: &Work, name: &str) -> nix::Result<OwnedFd> {
    let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL;
    beneath::open(&work.scratch.directory, name, flags, Mode::S_IRUSR | Mode::S_IWUSR)
}

/// Whether a file holds what was written to the first one.
fn holds(file: OwnedFd) -> nix::Result<bool> {
    let mut data = vec![0; LENGTH];
    let read = File::from(file).read_exact_at(&mut data, 0);
    match read {
        Ok(()) => Ok(data == content()),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(errno_of(error)),
    }
}

/// Whether users' extended attributes are kept.
pub(super) fn xattrs(mounted: &Mounted, file: &OwnedFd) -> Check {
    if mounted.version < Version::V4_2 {
        return XATTRS.skip(format!("{TO_NFS_4_2} {}", mounted.version));
    }
    match fsetxattr(file, c"user.nfs-csi", b"doctor", XattrFlags::empty()).map_err(errno_of) {
        Ok(()) => XATTRS.pass("users' extended attributes are kept"),
        Err(errno) if errno == Errno::EOPNOTSUPP || errno == Errno::from_raw(ENOTSUPP) => XATTRS.warn(
            "the server keeps no extended attributes of users: clones and snapshots lose none, since there are none",
            "export a file system with extended attributes from a server with Linux 5.9 or newer, where programs need them",
        ),
        Err(errno) => XATTRS.fail(format!("an extended attribute cannot be set: {}", errno.desc()), IF_LATE),
    }
}

/// Whether there are access control lists.
pub(super) fn acls(mounted: &Mounted, file: &OwnedFd) -> Check {
    let (name, kind) = match mounted.version {
        Version::V3 => (c"system.posix_acl_access", "POSIX"),
        _ => (c"system.nfs4_acl", "NFS 4"),
    };
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    match getxattr(path, name, &mut [0_u8; 0]).map_err(errno_of) {
        Ok(_) | Err(Errno::ENODATA) => ACLS.pass(format!("the server has access control lists ({kind})")),
        Err(Errno::EOPNOTSUPP) => ACLS.warn(
            "the server has no access control lists here",
            "mount the exported file system with the option acl on the server, where programs need them",
        ),
        Err(errno) => ACLS.fail(format!("a list cannot be read: {}", errno.desc()), IF_LATE),
    }
}
