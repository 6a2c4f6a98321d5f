//! The attributes of an entry that are kept wherever it goes: owner, permissions, times, extended attributes.
//!
//! Each change is a round trip to the server, so a value that is right already is left alone. The order matters: a
//! change of owner drops setuid and setgid, so permissions come after it; times come last, because everything else
//! changes them, and so tell of a file that has its right times that it is complete.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{
    AtFlags, Gid, Mode, Stat, Timespec, Timestamps, Uid, XattrFlags, chmodat, chownat, fchmod, fgetxattr, flistxattr,
    fremovexattr, fsetxattr, fstat, futimens, getxattr, statat, utimensat,
};
use rustix::io::{Errno, Result};

use crate::reason::ENOTSUPP;

/// setuid and setgid.
const SET_ID: u32 = 0o6000;
/// The kernel's bounds: a list of names and a value are no longer.
pub(super) const LONGEST_XATTR: usize = 64 * 1024;
/// More than this, in bytes, no entry may carry: a tenant could have it fill the driver's memory.
const MOST_XATTRS: usize = 1024 * 1024;
/// What one takes in memory besides its name and its value, in bytes, about.
const XATTR_OVERHEAD: usize = 64;
/// The users' own extended attributes.
const USER: &[u8] = b"user.";
/// The access control list of NFS version 4.
pub(super) const NFS4: &CStr = c"system.nfs4_acl";
/// A POSIX access control list.
pub(super) const POSIX: &CStr = c"system.posix_acl_access";
/// The POSIX list that a directory passes on to entries that are made in it.
pub(super) const POSIX_DEFAULT: &CStr = c"system.posix_acl_default";

/// Owner, permissions and times.
#[derive(Clone, Copy, Debug)]
pub struct Attributes {
    /// Permission bits with setuid, setgid and sticky: 12 bits.
    pub mode: u32,
    /// The owner's number.
    pub uid: u32,
    /// The group's number.
    pub gid: u32,
    /// When it was last read.
    pub accessed: Timespec,
    /// When it was last changed.
    pub modified: Timespec,
}

/// The owner and the group that an entry is to get; what is none stays.
pub(super) type Owner = (Option<Uid>, Option<Gid>);

/// An extended attribute: its name and its value.
pub type Xattr = (CString, Vec<u8>);

/// The permission bits of an open entry, for the copy to be made with: a guess that saves setting them afterwards, and
/// so none where they are not to be had.
#[must_use]
pub fn permissions(entry: impl AsFd) -> u32 {
    fstat(entry).map_or(0, |stat| stat.st_mode & 0o777)
}

impl Attributes {
    /// What stat(2) tells.
    #[must_use]
    #[allow(clippy::cast_possible_wrap, reason = "nanoseconds are below a thousand millions")]
    pub fn of(stat: &Stat) -> Self {
        let time = |seconds: i64, nanoseconds: u64| Timespec { tv_sec: seconds, tv_nsec: nanoseconds as i64 };
        Self {
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            accessed: time(stat.st_atime, stat.st_atime_nsec),
            modified: time(stat.st_mtime, stat.st_mtime_nsec),
        }
    }

    /// Gives these attributes to an open file or directory that has those of `has`.
    pub fn set(&self, entry: impl AsFd, has: &Stat) -> Result<()> {
        let owned = self.new_owner(has);
        if let Some(owner) = owned {
            set_owner(&entry, c"", owner, AtFlags::EMPTY_PATH)?;
        }
        if self.needs_mode(has, owned.is_some()) {
            fchmod(&entry, Mode::from_raw_mode(self.mode))?;
        }
        futimens(&entry, &self.times())
    }

    /// Gives this owner and these permissions to a directory that is opened as a place only (`O_PATH`).
    pub fn set_directory(&self, directory: impl AsFd, has: &Stat) -> Result<()> {
        let owned = self.new_owner(has);
        if let Some(owner) = owned {
            set_owner(&directory, c"", owner, AtFlags::EMPTY_PATH)?;
        }
        if self.needs_mode(has, owned.is_some()) {
            chmodat(&directory, c".", Mode::from_raw_mode(self.mode), AtFlags::empty())?;
        }
        Ok(())
    }

    /// Gives these times to such a directory: when all else in it is done.
    pub fn set_directory_times(&self, directory: impl AsFd) -> Result<()> {
        // By the descriptor: the permissions may forbid to look up even `.`.
        utimensat(&directory, c"", &self.times(), AtFlags::EMPTY_PATH)
    }

    /// Gives these attributes to an entry that is not opened: a link (whose permissions nobody asks for), a fifo, a
    /// socket, a device. It is the entry itself that gets them, never what it leads to.
    pub fn set_at(&self, directory: impl AsFd, name: &CStr, has: &Stat) -> Result<()> {
        let owned = self.new_owner(has);
        if let Some(owner) = owned {
            set_owner(&directory, name, owner, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        let is_link = has.st_mode & 0o170_000 == 0o120_000;
        if !is_link && self.needs_mode(has, owned.is_some()) {
            chmodat(&directory, name, Mode::from_raw_mode(self.mode), AtFlags::empty())?;
        }
        utimensat(&directory, name, &self.times(), AtFlags::SYMLINK_NOFOLLOW)
    }

    fn new_owner(&self, has: &Stat) -> Option<Owner> {
        let uid = (self.uid != has.st_uid).then(|| Uid::from_raw(self.uid));
        let gid = (self.gid != has.st_gid).then(|| Gid::from_raw(self.gid));
        (uid.is_some() || gid.is_some()).then_some((uid, gid))
    }

    fn needs_mode(&self, has: &Stat, owned: bool) -> bool {
        self.mode != has.st_mode & 0o7777 || (owned && self.mode & SET_ID != 0)
    }

    fn times(&self) -> Timestamps {
        Timestamps { last_access: self.accessed, last_modification: self.modified }
    }
}

/// Changes the owner of an entry, and makes sure that it is changed: a server that maps root to another user may map the
/// new owner as well, and report success (nfs-ganesha).
pub(super) fn set_owner(directory: impl AsFd, name: &CStr, (uid, gid): Owner, flags: AtFlags) -> Result<()> {
    chownat(&directory, name, uid, gid, flags)?;
    let has = statat(&directory, name, flags)?;
    let is_set = uid.is_none_or(|uid| uid.as_raw() == has.st_uid) && gid.is_none_or(|gid| gid.as_raw() == has.st_gid);
    if is_set { Ok(()) } else { Err(Errno::PERM) }
}

/// Whether the file system has nothing of the kind.
fn is_unsupported(errno: Errno) -> bool {
    errno == Errno::NOTSUP || errno == Errno::from_raw_os_error(ENOTSUPP)
}

/// The extended attributes of an open file or directory that are kept; none where the file system has none.
///
/// # Errors
/// E2BIG where they are more than an entry may carry; what the server gives.
pub fn xattrs(entry: impl AsFd) -> Result<Vec<Xattr>> {
    let mut list = Vec::with_capacity(LONGEST_XATTR);
    match flistxattr(&entry, rustix::buffer::spare_capacity(&mut list)) {
        Ok(_) => {}
        Err(errno) if is_unsupported(errno) => return Ok(Vec::new()),
        Err(errno) => return Err(errno),
    }
    let mut xattrs = Vec::new();
    let mut bytes = 0;
    let names = list.split_inclusive(|&byte| byte == 0).flat_map(CStr::from_bytes_with_nul);
    // NFS 3 leaves out a list that it could not ask for. To ask for it by name says why, and is no further round trip.
    for name in names.filter(|&name| is_kept(name) && name != POSIX).chain([POSIX]) {
        let mut value = Vec::with_capacity(LONGEST_XATTR);
        match fgetxattr(&entry, name, rustix::buffer::spare_capacity(&mut value)) {
            Ok(_) => {
                bytes += value.len();
                if bytes > MOST_XATTRS {
                    return Err(Errno::TOOBIG);
                }
                value.shrink_to_fit();
                xattrs.push((name.to_owned(), value));
            }
            // Removed meanwhile, or listed and not to be had.
            Err(Errno::NODATA) => {}
            Err(errno) if is_unsupported(errno) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(xattrs)
}

/// Whether the file system of a directory that is opened as a place only (`O_PATH`) has users' extended attributes. NFS
/// has them from version 4.2 on, if the server has them; without them, the list of an entry's attributes is no error.
///
/// # Errors
/// What the server gives.
pub fn has_user_xattrs(directory: impl AsFd) -> Result<bool> {
    let path = format!("/proc/self/fd/{}", directory.as_fd().as_raw_fd());
    match getxattr(path, c"user.nfs-csi", &mut [0_u8; 0]) {
        Ok(_) | Err(Errno::NODATA) => Ok(true),
        Err(errno) if is_unsupported(errno) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Gives users' extended attributes to an open file or directory; where its file system has none, that is no error.
pub fn set_xattrs<'a>(entry: impl AsFd, xattrs: impl IntoIterator<Item = &'a Xattr>) -> Result<()> {
    for (name, value) in xattrs {
        match fsetxattr(&entry, name, value, XattrFlags::empty()) {
            Ok(()) => {}
            Err(errno) if is_unsupported(errno) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Gives an open file these users' attributes and no others, and removes its POSIX lists if they are not `wanted`.
pub fn replace_xattrs(file: impl AsFd, wanted: &[Xattr]) -> Result<()> {
    let has = xattrs(&file)?;
    for (name, _) in has.iter().filter(|(name, _)| name.as_c_str() != NFS4) {
        if !wanted.iter().any(|(other, _)| other == name) {
            match fremovexattr(&file, name.as_c_str()) {
                Ok(()) | Err(Errno::NODATA) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
    set_xattrs(file, wanted.iter().filter(|xattr| is_user(xattr) && !has.contains(xattr)))
}

/// What extended attributes take in memory, in bytes, about.
#[must_use]
pub fn size_of_xattrs(xattrs: &[Xattr]) -> usize {
    xattrs.iter().map(|(name, value)| name.as_bytes().len() + value.len() + XATTR_OVERHEAD).sum()
}

/// Whether it is a user's own; all others that are kept are access control lists.
#[must_use]
pub fn is_user((name, _): &Xattr) -> bool {
    name.to_bytes().starts_with(USER)
}

/// Whether an extended attribute goes where its entry goes.
#[must_use]
pub fn is_kept(name: &CStr) -> bool {
    name.to_bytes().starts_with(USER) || [NFS4, POSIX, POSIX_DEFAULT].contains(&name)
}
