//! Access control lists that say no more than the permission bits do.
//!
//! A server that has lists shows one for every entry, and nearly all of them only repeat the permissions. To set such a
//! list is a round trip for nothing, and to compare it with what the copy has is another. So what a new entry with
//! certain permissions has by itself is remembered, and only other lists are looked at again. What is true of one new
//! directory is true of all on its file system that are made in the driver's own folders, since lists that entries
//! would inherit are set when all is in place.

use std::collections::HashSet;
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};

use rustix::fs::fgetxattr;
use rustix::io::{Errno, Result};

use crate::tree::access_list;
use crate::tree::attributes::{NFS4, Xattr};

/// There are not many permissions that differ; the bound is for a tree made to differ.
const MOST: usize = 1024;

/// Permissions of a file or a directory, and the list that goes with them by itself.
type Plain = (u32, bool, Vec<u8>);

/// What came of giving an entry a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Given {
    /// It had it already.
    Had,
    Set,
    /// Its file system takes none of the kind.
    Refused,
}

/// What is known of one file system: the lists that need no setting there, and the version of NFS.
#[derive(Debug, Default)]
pub struct FileSystem {
    plain: Mutex<HashSet<Plain>>,
    nfs: Option<(u32, u32)>,
}

impl FileSystem {
    /// One that is mounted with this version of NFS (`3`, `4.0`, `4.1`, `4.2`). An empty text is that of a file system
    /// that is no NFS.
    #[must_use]
    pub fn mounted_with(version: &str) -> Self {
        let (major, minor) = version.split_once('.').unwrap_or((version, "0"));
        Self { nfs: major.parse().ok().zip(minor.parse().ok()), ..Self::default() }
    }

    /// The version of NFS, major and minor, that it is mounted with; none where it is no NFS.
    pub(super) fn nfs(&self) -> Option<(u32, u32)> {
        self.nfs
    }

    /// Whether a new entry with these permissions has this list by itself, as far as is known.
    pub(super) fn is_plain(&self, mode: u32, is_directory: bool, (_, list): &Xattr) -> bool {
        self.known().contains(&(mode, is_directory, list.clone()))
    }

    /// Gives an open `entry` with these permissions this list, if it lacks it.
    pub(super) fn give(
        &self,
        entry: impl AsFd,
        mode: u32,
        is_directory: bool,
        list: &Xattr,
        is_new: bool,
    ) -> Result<Given> {
        // No new entry has a POSIX list, for there is none to inherit.
        let may_have = !is_new || list.0.as_c_str() == NFS4;
        if may_have && !self.lacks(&entry, mode, is_directory, list, is_new)? {
            return Ok(Given::Had);
        }
        Ok(if access_list::set(entry, list)? { Given::Set } else { Given::Refused })
    }

    /// Whether an open `entry` with these permissions lacks this list. One that `is_new` is remembered.
    fn lacks(
        &self,
        entry: impl AsFd,
        mode: u32,
        is_directory: bool,
        (name, list): &Xattr,
        is_new: bool,
    ) -> Result<bool> {
        let mut has = Vec::with_capacity(64 * 1024);
        match fgetxattr(entry, name, rustix::buffer::spare_capacity(&mut has)) {
            Ok(_) if has == *list => {}
            Ok(_) | Err(Errno::NODATA | Errno::NOTSUP) => return Ok(true),
            Err(errno) => return Err(errno),
        }
        let mut known = self.known();
        if is_new && known.len() < MOST {
            known.insert((mode, is_directory, has));
        }
        Ok(false)
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashSet<Plain>> {
        self.plain.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
