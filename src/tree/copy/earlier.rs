//! What an abandoned attempt of the same copy left: its complete files are moved from its tree into this one.
//!
//! Its owner may be a process that was frozen and wakes up, and then writes on through the descriptors that it holds.
//! So nothing is used in the place where it is: directories are made again, and a file is looked at once more after it
//! was moved, when no name leads there from the earlier tree. Times are set last, so a file with its source's size and
//! time of change is complete, and its owner does not write to it any more. Files with several names are copied again:
//! as long as the earlier tree has one of them, they would have too many.

use std::ffi::CStr;
use std::os::fd::{BorrowedFd, OwnedFd};

use nix::fcntl::OFlag;
use rustix::fs::{AtFlags, FileType, Stat, fstat, renameat, statat, unlinkat};
use rustix::io::{Errno, Result};

use crate::tree::walk;

/// The tree of an abandoned attempt of the same copy, on the target's file system.
#[derive(Clone, Copy, Debug)]
pub struct Earlier<'a> {
    /// The directory that it filled.
    pub directory: BorrowedFd<'a>,
}

/// Whether what has the attributes `has` is a complete copy of what has those of `stat`: its times are set last.
pub(super) fn is_copy(has: &Stat, stat: &Stat) -> bool {
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    FileType::from_raw_mode(has.st_mode) == FileType::from_raw_mode(stat.st_mode)
        && (!is_file || has.st_size == stat.st_size)
        && has.st_rdev == stat.st_rdev
        && (has.st_mtime, has.st_mtime_nsec) == (stat.st_mtime, stat.st_mtime_nsec)
}

/// Moves the file `name` from one directory to another if it is complete, before and after; gives it open, and its
/// attributes. Otherwise there is none of that name in `to` afterwards.
pub(super) fn take(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    name: &CStr,
    is_complete: impl Fn(&Stat) -> bool,
) -> Result<Option<(OwnedFd, Stat)>> {
    if !statat(from, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|has| is_complete(&has)) {
        return Ok(None);
    }
    // A rename that failed may have been carried out: the server's answer may be the second one, to a repeated
    // question.
    if renameat(from, name, to, name).is_ok() {
        // To open a file by its name asks the server for its attributes.
        let flags = OFlag::O_WRONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let moved = walk::open(to, walk::as_path(name), flags, 0).and_then(|file| {
            let has = fstat(&file)?;
            Ok((file, has))
        });
        if let Ok((file, has)) = moved
            && is_complete(&has)
        {
            return Ok(Some((file, has)));
        }
    }
    match unlinkat(to, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}
