//! Access control lists: which there are, and the permissions of an entry that loses its own.
//!
//! Where an entry has a list, the group's bits of its mode are the most that any user or group in the list may do, and
//! not what the owning group may do. So a copy with the same mode and without the list would be open to the owning group.
//! And the others' bits are for all users that the list does not name: it may give less to those that it names. The mode
//! of an entry that loses its list is narrowed to what the list gives to all of a class.
//!
//! POSIX lists are seen over NFS 3 (a side protocol, which Linux servers have) and on local file systems, lists of
//! version 4 over NFS 4. A server keeps one kind, and shows it as the other.

mod nfs4;
mod posix;

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{XattrFlags, fsetxattr, getxattr, removexattr};
use rustix::io::{Errno, Result};

use super::Progress;
use super::attributes::{LONGEST_XATTR, NFS4, POSIX, POSIX_DEFAULT, Xattr};

/// The record of an archive for a POSIX list as text: with the names of users and groups, not their numbers.
pub(super) const POSIX_TEXT: &CStr = c"SCHILY.acl.access";

/// The group's and the others' permission bits.
const NOT_OWNER: u32 = 0o077;

/// What a list gives to all of a class, as permission bits (0 to 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Given {
    /// To every member of the owning group.
    group: u32,
    /// To every user who is neither the owner nor in that group.
    other: u32,
    /// Whether the list names users or groups.
    names_some: bool,
}

/// The mode (12 bits) of an entry with `mode` that loses this list. None where nothing is lost: the list adds nothing
/// to the mode, or is one to be inherited. A list that cannot be understood leaves the owner's bits only.
#[must_use]
pub(super) fn mode_without(mode: u32, (name, list): &Xattr) -> Option<u32> {
    if name.as_c_str() == POSIX_DEFAULT {
        return None;
    }
    let given = match name {
        name if name.as_c_str() == POSIX => posix::given(list),
        name if name.as_c_str() == POSIX_TEXT => posix::given_by_text(list),
        _ => nfs4::given(list),
    };
    let given = given.unwrap_or(Given { group: 0, other: 0, names_some: true });
    let narrowed = mode & (!NOT_OWNER | given.group << 3 | given.other);
    (given.names_some || narrowed != mode).then_some(narrowed)
}

/// The same, where an entry without a list is to be counted in `progress`.
#[must_use]
pub(super) fn give_up(mode: u32, list: &Xattr, progress: &Progress) -> u32 {
    match mode_without(mode, list) {
        Some(narrowed) => {
            progress.narrow();
            narrowed
        }
        None => mode,
    }
}

/// Gives an open file or directory a list. False where its file system takes none of this kind.
pub(super) fn set(entry: impl AsFd, (name, list): &Xattr) -> Result<bool> {
    if name.as_c_str() == POSIX_TEXT {
        return Ok(false);
    }
    match fsetxattr(entry, name, list, XattrFlags::empty()) {
        Ok(()) => Ok(true),
        Err(Errno::NOTSUP) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Gives an open file or directory with `mode` its lists; the mode that it is to have afterwards.
pub(super) fn set_all(entry: impl AsFd, lists: &[Xattr], mut mode: u32, progress: &Progress) -> Result<u32> {
    for list in lists {
        if !set(&entry, list)? {
            mode = give_up(mode, list, progress);
        }
    }
    Ok(mode)
}

/// Takes the POSIX lists from an empty directory, which it may have inherited: all that is made in it would have such
/// lists too.
pub(super) fn remove_inherited(directory: impl AsFd) -> Result<()> {
    let path = attributes_of(&directory);
    for name in [POSIX_DEFAULT, POSIX] {
        match getxattr(&path, name, &mut [0_u8; 0]) {
            Ok(_) => removexattr(&path, name)?,
            Err(Errno::NODATA | Errno::NOTSUP) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// The mode (12 bits) of the copy of a fifo, a socket or a device, which is opened as a place only (`O_PATH`), and has
/// `mode`: such a copy gets no list.
pub(super) fn mode_of_special(entry: impl AsFd, mut mode: u32, progress: &Progress) -> Result<u32> {
    let path = attributes_of(&entry);
    for name in [POSIX, NFS4] {
        let mut list = Vec::with_capacity(LONGEST_XATTR);
        match getxattr(&path, name, rustix::buffer::spare_capacity(&mut list)) {
            Ok(_) => mode = give_up(mode, &(name.to_owned(), list), progress),
            Err(Errno::NODATA | Errno::NOTSUP) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(mode)
}

/// The path by which an entry that is opened as a place only (`O_PATH`) gives its attributes: by its descriptor it gives
/// none, and to open it for reading would be a call to the server.
fn attributes_of(entry: impl AsFd) -> String {
    format!("/proc/self/fd/{}", entry.as_fd().as_raw_fd())
}

#[cfg(test)]
pub(super) mod tests;
