//! The system calls that mount and unmount. Only worker processes call those that ask a server: each may block for as
//! long as it is silent.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::mount::{MntFlags, MsFlags, umount2};
use nix::sys::stat::Mode;
use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};
use sys_mount::{Mount, MountFlags};

use crate::mount::protocol::Usage;
use crate::reason::errno_of;

/// A copy of a mount, which is nowhere in the tree and goes with its descriptor.
const CLONE: OpenTreeFlags = OpenTreeFlags::OPEN_TREE_CLONE.union(OpenTreeFlags::OPEN_TREE_CLOEXEC);

/// Mounts `source` (`server:/path`) on `target`; `data` is the kernel's option string.
pub(super) fn mount(source: &str, target: &Path, fs_type: &str, flags: MsFlags, data: &str) -> io::Result<()> {
    Mount::builder().fstype(fs_type).flags(same(flags)).data(data).mount(source, target).map(drop)
}

/// Changes the flags of one mount, not of the superblock that it shares with others.
pub(super) fn remount(target: &Path, flags: MsFlags) -> io::Result<()> {
    let flags = same(flags | MsFlags::MS_REMOUNT | MsFlags::MS_BIND);
    Mount::builder().fstype("none").flags(flags).mount("none", target).map(drop)
}

/// Mounts a directory of a file system that is mounted, a second time.
pub(super) fn mount_again(directory: &OwnedFd, place: &Path) -> nix::Result<()> {
    let clone = open_tree(directory, "", CLONE | OpenTreeFlags::AT_EMPTY_PATH).map_err(errno_of)?;
    move_mount(&clone, "", CWD, place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).map_err(errno_of)
}

/// Moves the mount on `place` to `target`, with the flags that it has: whom the target's mounts are handed on to (from
/// a container to its host, who hands them to pods) gets them too, which he would not by a remount afterwards.
pub(super) fn move_to(place: &Path, target: &Path) -> nix::Result<()> {
    match move_mount(CWD, place, CWD, target, MoveMountFlags::empty()).map_err(errno_of) {
        // From a mount that is handed on itself nothing can be moved.
        Err(Errno::EINVAL) => {}
        moved => return moved,
    }
    // A clone can. It keeps the superblock, so that no server is asked when the other goes.
    let clone = open_tree(CWD, place, CLONE | OpenTreeFlags::AT_SYMLINK_NOFOLLOW).map_err(errno_of)?;
    detach(place)?;
    move_mount(&clone, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).map_err(errno_of)
}

/// Unmounts the topmost mount on `target`; lazily when something still uses it. Never by force: MNT_FORCE aborts the
/// calls of every mount that shares the superblock (measured: neighbours get errno 512).
pub(super) fn unmount(target: &Path) -> nix::Result<()> {
    match umount2(target, MntFlags::UMOUNT_NOFOLLOW) {
        Err(Errno::EBUSY) => detach(target),
        other => other,
    }
}

/// Ends the calls that wait for the server of the topmost mount on `target`: with errno 512 (ERESTARTSYS), those on all
/// mounts that share its superblock. It is unmounted only if nothing uses it.
pub(super) fn abort(target: &Path) -> nix::Result<()> {
    match umount2(target, MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_FORCE) {
        Err(Errno::EBUSY) => Ok(()),
        other => other,
    }
}

/// Takes the topmost mount on `target` out of the tree; who has it open keeps it.
pub(super) fn detach(target: &Path) -> nix::Result<()> {
    // By nix: the flag that sys-mount 3.1 has for NOFOLLOW is open(2)'s, which umount2(2) refuses.
    umount2(target, MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH)
}

/// Where `target` really is: its parent with every link resolved, as the mount table will name it (a kubelet directory
/// may be a link to another disk).
pub(super) fn real_path(target: &Path) -> io::Result<PathBuf> {
    let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    };
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    // Mostly the path has no links, and to know that takes one system call less than to read where it leads.
    let without_links = OpenHow::new().flags(flags).resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
    if parent.components().all(|part| part != Component::ParentDir) && openat2(AT_FDCWD, parent, without_links).is_ok()
    {
        return Ok(parent.components().collect::<PathBuf>().join(name));
    }
    Ok(path_of(&open(parent, flags, Mode::empty())?)?.join(name))
}

fn path_of(descriptor: &OwnedFd) -> io::Result<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd()))
}

/// What the file system behind `descriptor` holds, as its server tells.
pub(super) fn usage(descriptor: impl AsFd) -> io::Result<Usage> {
    let stat = nix::sys::statvfs::fstatvfs(descriptor)?;
    let unit = stat.fragment_size();
    Ok(Usage {
        total_bytes: stat.blocks() * unit,
        available_bytes: stat.blocks_available() * unit,
        used_bytes: stat.blocks().saturating_sub(stat.blocks_free()) * unit,
        total_inodes: stat.files(),
        available_inodes: stat.files_free(),
    })
}

/// sys-mount and nix each have a type for the same bits.
fn same(flags: MsFlags) -> MountFlags {
    MountFlags::from_bits_retain(flags.bits())
}
