//! Entries put in a directory of the target, in the place of what has their names.

use std::ffi::CString;
use std::os::fd::{BorrowedFd, OwnedFd};

use nix::errno::Errno;
use rustix::fs::{AtFlags, FileType, Mode, mkdirat, renameat, statat, unlinkat};

use super::chain;
use crate::reason::Reason;
use crate::tree::attributes::Attributes;
use crate::tree::effort::Effort;
use crate::tree::remove;

/// A directory's owner, who may be the driver, must get into it while it is filled.
pub(super) const OWNER: u32 = 0o700;
/// The permissions that an entry is made with. setuid and setgid come when its owner is right.
pub(super) const PERMISSIONS: u32 = 0o777;
/// A directory that is removed, in one made for that.
const REPLACED: &str = "replaced";

/// Makes an entry; what has its name already is removed first.
pub(super) fn replacing<T, E: Reason>(
    directory: BorrowedFd<'_>,
    name: &[u8],
    make: impl Fn() -> Result<T, E>,
) -> nix::Result<T> {
    match make().map_err(Reason::errno) {
        Err(Errno::EEXIST | Errno::ELOOP) => {
            remove_entry(directory, name)?;
            make().map_err(Reason::errno)
        }
        result => result,
    }
}

/// Removes an entry of any kind, with all that is in it.
pub(super) fn remove_entry(directory: BorrowedFd<'_>, name: &[u8]) -> nix::Result<()> {
    match unlinkat(directory, name, AtFlags::empty()).map_err(Reason::errno) {
        Err(Errno::EISDIR | Errno::EPERM) => {}
        removed => return removed,
    }
    match unlinkat(directory, name, AtFlags::REMOVEDIR).map_err(Reason::errno) {
        Err(Errno::ENOTEMPTY | Errno::EEXIST) => remove_tree(directory, name),
        removed => removed,
    }
}

/// Removes a directory with something in it, from within one of its own: what is deep in it is moved up beside it.
fn remove_tree(directory: BorrowedFd<'_>, name: &[u8]) -> nix::Result<()> {
    let mut number = 0_u64;
    let aside = loop {
        let aside = format!("replaced.{number}");
        match mkdirat(directory, &aside, Mode::RWXU).map_err(Reason::errno) {
            Err(Errno::EEXIST) => number += 1,
            made => break made.map(|()| aside)?,
        }
    };
    let place = chain::open(directory, aside.as_bytes())?;
    renameat(directory, name, &place, REPLACED).map_err(Reason::errno)?;
    remove::tree(&place, REPLACED, &Effort::new(1)).map_err(|(_, errno)| errno)?;
    unlinkat(directory, &aside, AtFlags::REMOVEDIR).map_err(Reason::errno)
}

/// Gives an entry that is not opened its attributes.
pub(super) fn finish(directory: BorrowedFd<'_>, name: &[u8], attributes: &Attributes) -> rustix::io::Result<()> {
    let has = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let name = CString::new(name).map_err(|_| rustix::io::Errno::INVAL)?;
    attributes.set_at(directory, &name, &has)
}

pub(super) fn is_directory(directory: &OwnedFd, name: &[u8]) -> bool {
    statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}
