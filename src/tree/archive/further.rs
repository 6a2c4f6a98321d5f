//! One more copy of an entry that has as many names as the target's file system allows (65,000 on ext4).

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

use nix::fcntl::OFlag;
use rustix::fs::{AtFlags, FileType, Mode, fstat, linkat, mknodat, readlinkat, statat, symlinkat};
use rustix::io::Errno;

use super::chain::Chain;
use super::member::Name;
use super::placing::{OWNER, PERMISSIONS, finish};
use super::{ArchiveError, At as _};
use crate::reason::errno_of;
use crate::tree::attributes::{Attributes, set_xattrs, xattrs};
use crate::tree::copy::{Copied, Ways};
use crate::tree::space::Space;
use crate::tree::{Progress, walk};

/// The last entry that has as many names as its file system allows, and the further copy of it, by its name and its
/// inode's number: the rest of the names lead there.
#[derive(Debug, Default)]
pub(super) struct Further(Option<(Name, Name, u64)>);

impl Further {
    /// Makes `name`, which is `own` in the chain's directory, one more name of the entry `first`, which can have no more:
    /// of its further copy, which is made if there is none. `first` is its name, its directory, and its name there.
    pub(super) fn link<T>(
        &mut self,
        chain: &mut Chain<T>,
        (name, own): (&Name, &[u8]),
        (first, place, target): (&Name, BorrowedFd<'_>, &[u8]),
        space: &Space<'_>,
        progress: &Progress,
    ) -> std::result::Result<(), ArchiveError> {
        let known = self.0.as_ref().filter(|(of, ..)| of == first).and_then(|(_, copy, inode)| {
            let (parent, copy) = copy.split()?;
            let parent = chain.open(parent).ok()?;
            let is_there = statat(&parent, copy, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| stat.st_ino == *inode);
            is_there.then_some((parent, copy))
        });
        let here = chain.here().at("open the directory of", name.bytes())?;
        if let Some((parent, copy)) = known {
            match linkat(&parent, copy, here, own, AtFlags::empty()) {
                Err(Errno::MLINK) => {}
                made => return made.at("make the hard link", name.bytes()),
            }
        }
        copy((place, target), (here, own), space, progress)
            .map_err(|(what, errno)| ArchiveError::tree(what, name.bytes(), errno_of(errno)))?;
        let made = statat(here, own, AtFlags::SYMLINK_NOFOLLOW).at("look at", name.bytes())?;
        self.0 = Some((first.clone(), name.clone(), made.st_ino));
        Ok(())
    }
}

type Result<T> = std::result::Result<T, (&'static str, Errno)>;

/// Copies the entry `from`, which is no directory, to `to`: directories and names in them. Nothing has the new name.
fn copy(
    from: (BorrowedFd<'_>, &[u8]),
    to: (BorrowedFd<'_>, &[u8]),
    space: &Space<'_>,
    progress: &Progress,
) -> Result<()> {
    let stat =
        statat(from.0, from.1, AtFlags::SYMLINK_NOFOLLOW).map_err(|errno| ("look at the first name of", errno))?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    let mode = Mode::from_raw_mode(stat.st_mode & PERMISSIONS);
    match kind {
        FileType::RegularFile => return copy_file(from, to, space, progress),
        FileType::Symlink => readlinkat(from.0, from.1, Vec::new()).and_then(|to_path| symlinkat(to_path, to.0, to.1)),
        _ => mknodat(to.0, to.1, kind, mode, stat.st_rdev),
    }
    .map_err(|errno| ("make", errno))?;
    finish(to.0, to.1, &Attributes::of(&stat)).map_err(|errno| ("set the attributes of", errno))
}

fn copy_file(
    from: (BorrowedFd<'_>, &[u8]),
    to: (BorrowedFd<'_>, &[u8]),
    space: &Space<'_>,
    progress: &Progress,
) -> Result<()> {
    let open = |(directory, name): (BorrowedFd<'_>, &[u8]), flags, mode| {
        walk::open(directory, OsStr::from_bytes(name), flags | OFlag::O_NOFOLLOW, mode)
    };
    let source =
        open(from, OFlag::O_RDONLY | OFlag::O_NONBLOCK, 0).map_err(|errno| ("open the first name of", errno))?;
    let stat = fstat(&source).map_err(|errno| ("look at the first name of", errno))?;
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL;
    let target = open(to, flags, stat.st_mode & PERMISSIONS | OWNER).map_err(|errno| ("make", errno))?;
    let xattrs = xattrs(&source).map_err(|errno| ("read the extended attributes of", errno))?;
    set_xattrs(&target, &xattrs).map_err(|errno| ("set the extended attributes of", errno))?;
    let has = fstat(&target).map_err(|errno| ("look at", errno))?;
    match Ways::default().copy(source.as_fd(), target.as_fd(), &stat, (space, progress), &|| progress.is_stopped())? {
        Copied::Done => {}
        Copied::Stopped => return Err(("continue unpacking", Errno::CANCELED)),
        Copied::Gone => return Err(("read the first name of", Errno::STALE)),
    }
    Attributes::of(&stat).set(&target, &has).map_err(|errno| ("set the attributes of", errno))
}
