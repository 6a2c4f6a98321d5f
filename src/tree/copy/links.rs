//! Hard links within a tree, without a list of the files that have several names: there may be millions.
//!
//! The first copy of such a file gets one more name, by its inode, in a private folder; the others are links to that.
//! The folder is made when the first such file is met. What an earlier attempt kept in its own is moved to this one, if
//! it is still what the source has.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use nix::fcntl::OFlag;
use rustix::fs::{AtFlags, Mode, Stat, StatxFlags, linkat, mkdirat, statx, unlinkat};
use rustix::io::{Errno, Result};

use super::Spot;
use super::turns::{Turn, Turns};
use crate::tree::effort::Effort;
use crate::tree::{Progress, TreeError, remove, walk};

/// Where the folder of links may be made: a private directory on the target's file system, and the folder's name there.
#[derive(Clone, Copy, Debug)]
pub struct Links<'a> {
    place: BorrowedFd<'a>,
    name: &'a CStr,
}

impl<'a> Links<'a> {
    /// The folder `name` in `place`, which is not there yet.
    #[must_use]
    pub fn new(place: BorrowedFd<'a>, name: &'a CStr) -> Self {
        Self { place, name }
    }

    /// Removes the folder.
    pub(super) fn remove(&self, effort: &Effort) -> std::result::Result<(), TreeError> {
        let name = self.name.to_string_lossy();
        // The first one that cannot be removed ends the copy.
        let removed = remove::tree_unless(self.place, &name, effort, &Progress::default(), &|| true);
        removed.map_err(|(entry, errno)| TreeError { what: "remove the links of", path: entry.into(), errno })
    }
}

/// What tells a file with several names from all others in the tree, and from those that had or get its inode number.
#[derive(Debug)]
pub(super) struct Inode {
    number: u64,
    name: CString,
}

/// Whether an entry was made by linking it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// It was.
    Yes,
    /// There is no copy of its file yet.
    No,
    /// Its name is there already.
    There,
}

/// What is known of a file's inode. Its device's number is not in it: a tree is on one file system, which gets
/// another number whenever it is mounted. In its place there is the time of birth, so that a number that is used
/// again is another inode; where there is none, the time of the last change and the size.
pub(super) fn inode(spot: &Spot<'_>, source: impl AsFd, stat: &Stat) -> std::result::Result<Inode, TreeError> {
    let more = statx(source, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME);
    let more = more.map_err(|errno| spot.failed("look at", errno))?;
    let name = if more.stx_mask & StatxFlags::BTIME.bits() == 0 {
        format!("{:x}.m{:x}.{:x}.{:x}", stat.st_ino, stat.st_mtime, stat.st_mtime_nsec, stat.st_size)
    } else {
        format!("{:x}.b{:x}.{:x}", stat.st_ino, more.stx_btime.tv_sec, more.stx_btime.tv_nsec)
    };
    let name = CString::new(name).map_err(|_| spot.failed("link", Errno::INVAL))?;
    Ok(Inode { number: stat.st_ino, name })
}

#[derive(Debug)]
pub(super) struct Folder<'a> {
    links: Links<'a>,
    open: Mutex<Option<Arc<OwnedFd>>>,
    turns: Turns<u64>,
}

impl<'a> Folder<'a> {
    pub(super) fn new(links: Links<'a>) -> Self {
        Self { links, open: Mutex::default(), turns: Turns::default() }
    }

    /// Whether something was put there.
    pub(super) fn is_made(&self) -> bool {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Waits until no other worker copies this file.
    pub(super) fn turn(&self, inode: &Inode) -> Turn<'_, u64> {
        self.turns.take(inode.number)
    }

    /// Links an entry to the copy of its file.
    pub(super) fn take(&self, spot: &Spot<'_>, inode: &Inode) -> std::result::Result<Taken, TreeError> {
        let folder = self.folder().map_err(|errno| spot.failed("make the folder for links of", errno))?;
        let failed = |errno| spot.failed("link", errno);
        match linkat(&folder, &inode.name, spot.target(), spot.name, AtFlags::empty()) {
            Ok(()) => Ok(Taken::Yes),
            Err(Errno::NOENT) => Ok(Taken::No),
            // As many names as its file system allows, of which one is here: the rest link to another copy.
            Err(Errno::MLINK) => unlinkat(&folder, &inode.name, AtFlags::empty()).map(|()| Taken::No).map_err(failed),
            // The source's directory gave the name twice. Some servers look at the new name first.
            Err(Errno::EXIST) => Ok(Taken::There),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// Keeps a copy for the other names of its file.
    pub(super) fn keep(&self, spot: &Spot<'_>, inode: &Inode) -> std::result::Result<(), TreeError> {
        let failed = |errno| spot.failed("link", errno);
        let folder = self.folder().map_err(failed)?;
        match linkat(spot.target(), spot.name, &folder, &inode.name, AtFlags::empty()) {
            Ok(()) | Err(Errno::EXIST | Errno::MLINK) => Ok(()),
            Err(errno) => Err(failed(errno)),
        }
    }

    fn folder(&self) -> Result<Arc<OwnedFd>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(folder) = &*open {
            return Ok(Arc::clone(folder));
        }
        mkdirat(self.links.place, self.links.name, Mode::RWXU)?;
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
        let folder = Arc::new(walk::open(self.links.place, walk::as_path(self.links.name), flags, 0)?);
        *open = Some(Arc::clone(&folder));
        Ok(folder)
    }
}
