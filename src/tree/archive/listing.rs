//! A directory that is being archived: how far it is read, and whether it is still in its place.

use std::ffi::CString;
use std::os::fd::AsFd;

use nix::errno::Errno;
use rustix::fs::{RawDir, SeekFrom, fstat};

use super::chain::Chain;
use super::{ArchiveError, Reason};
use crate::tree::walk::look_again;

/// How much of a directory is read at a time, in bytes.
pub(super) const NAMES: usize = 32 * 1024;

/// How far a directory is read.
#[derive(Default)]
pub(super) struct Listing {
    /// The directory's number.
    pub(super) inode: u64,
    pub(super) names: std::vec::IntoIter<(CString, u64)>,
    /// Where the kernel goes on behind the last name that was taken.
    pub(super) cookie: u64,
    /// It was closed meanwhile, and the names that were read ahead were dropped with it.
    pub(super) closed: bool,
}

/// Reads on in the directory where the work is.
pub(super) fn read_on(chain: &mut Chain<Listing>, buffer: &mut Vec<u8>) -> nix::Result<Vec<(CString, u64)>> {
    let listing = chain.state();
    let closed = std::mem::take(&mut listing.closed).then_some((listing.cookie, listing.inode));
    let directory = chain.here()?;
    if let Some((cookie, inode)) = closed {
        // Another one may have its name by now.
        if fstat(directory).map_err(Reason::errno)?.st_ino != inode {
            return Err(Errno::ENOENT);
        }
        rustix::fs::seek(directory, SeekFrom::Start(cookie)).map_err(Reason::errno)?;
    }
    read_names(directory, buffer).map_err(Reason::errno)
}

/// What the kernel gives of a directory at once; nothing at its end.
fn read_names(directory: impl AsFd, buffer: &mut Vec<u8>) -> rustix::io::Result<Vec<(CString, u64)>> {
    let mut names = Vec::new();
    let mut entries = RawDir::new(directory, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            names.push((name.to_owned(), entry.next_entry_cookie()));
        }
        if entries.is_buffer_empty() && !names.is_empty() {
            break;
        }
    }
    Ok(names)
}

/// Whether an entry of the source is gone.
pub(super) fn is_gone(reason: impl Reason) -> bool {
    matches!(reason.errno(), Errno::ENOENT | Errno::ESTALE)
}

/// Whether the directory where the work is is still in its place, as the server says.
pub(super) fn is_there(chain: &mut Chain<Listing>) -> Result<bool, ArchiveError> {
    match chain.here().and_then(|here| look_again(here).map_err(Reason::errno)) {
        Ok(_) => Ok(true),
        Err(errno) if is_gone(errno) && is_lost(chain)? => Ok(false),
        Err(errno) => Err(ArchiveError::tree("look at", chain.path(), errno)),
    }
}

/// Whether the directory where the work is was removed or moved away. The root is never.
pub(super) fn is_lost(chain: &mut Chain<Listing>) -> Result<bool, ArchiveError> {
    if chain.depth() == 0 {
        return Ok(false);
    }
    let inode = chain.state().inode;
    match chain.open_to_read(chain.path()).and_then(|found| fstat(found).map_err(Reason::errno)) {
        Ok(stat) => Ok(stat.st_ino != inode),
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => Ok(true),
        Err(errno) => Err(ArchiveError::tree("look at", chain.path(), errno)),
    }
}
