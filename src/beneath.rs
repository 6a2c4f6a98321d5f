//! Opening below a directory descriptor without ever leaving it.
//!
//! Tenants write below the export, so no name there can be trusted to be what it was a moment ago. Everything below an
//! export is reached with openat2(2) and the four restrictions here: `BENEATH` refuses `..` and absolute paths,
//! `NO_SYMLINKS` refuses every link (BENEATH alone follows those that stay inside, into a neighbour's volume),
//! `NO_XDEV` refuses another mounted file system, `NO_MAGICLINKS` refuses /proc's.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use nix::Result;
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat2, renameat};
use nix::sys::stat::{Mode, fstatat};

/// How long something is let settle until it is tried again; twice as long each time, but no longer than the last.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LAST_PAUSE: Duration = Duration::from_millis(32);

const RESTRICTIONS: ResolveFlag =
    ResolveFlag::RESOLVE_BENEATH.union(ResolveFlag::RESOLVE_NO_SYMLINKS).union(ResolveFlag::RESOLVE_NO_MAGICLINKS);

/// Opens `path`, relative to `dir`, with the given flags; `mode` counts with `O_CREAT` only.
///
/// # Errors
/// ELOOP where the path meets a symbolic link, EXDEV where it climbs out or meets another file system, and what
/// openat2(2) gives otherwise.
pub fn open(dir: impl AsFd, path: impl AsRef<Path>, flags: OFlag, mode: Mode) -> Result<OwnedFd> {
    let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).mode(mode);
    let how = how.resolve(RESTRICTIONS | ResolveFlag::RESOLVE_NO_XDEV);
    // nfs-ganesha may describe what is removed in this moment as part of another file system.
    again_while(Errno::EXDEV, || openat2(&dir, path.as_ref(), how))
}

/// The same as [`open_dir`] where other file systems on the way are the server's own: those that it exports below a
/// share, which the kernel mounts on the way.
///
/// # Errors
/// As [`open_dir`], but for other file systems.
pub fn open_dir_across(dir: impl AsFd, path: impl AsRef<Path>) -> Result<OwnedFd> {
    let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC);
    openat2(dir, path.as_ref(), how.resolve(RESTRICTIONS))
}

/// Opens a directory as a place to work from (`O_PATH`: costs the server nothing once its name is known).
///
/// # Errors
/// As [`open`]; ENOTDIR if it is something else.
pub fn open_dir(dir: impl AsFd, path: impl AsRef<Path>) -> Result<OwnedFd> {
    open(dir, path, OFlag::O_PATH | OFlag::O_DIRECTORY, Mode::empty())
}

/// Does something with names again of which the kernel says ESTALE.
///
/// It says so of what is gone. But it also says so of a directory that another client has moved, if this one has it
/// under its old name and renames something else meanwhile (`d_splice_alias` does not wait for the other rename).
///
/// # Errors
/// What the last try gives.
pub fn settled<T>(work: impl FnMut() -> Result<T>) -> Result<T> {
    again_while(Errno::ESTALE, work)
}

/// Does something again, for a moment, which gives this error.
fn again_while<T>(passing: Errno, mut work: impl FnMut() -> Result<T>) -> Result<T> {
    let mut pause = FIRST_PAUSE;
    loop {
        match work() {
            Err(errno) if errno == passing && pause <= LAST_PAUSE => {
                std::thread::sleep(pause);
                pause *= 2;
            }
            done => return done,
        }
    }
}

/// renameat(2), also of a directory that another client has moved to this name: the kernel takes note of that when the
/// name is looked up, but not within a rename, which fails with ESTALE.
///
/// # Errors
/// As renameat(2).
pub fn rename(from: impl AsFd, name: &str, to: impl AsFd, new_name: &str) -> Result<()> {
    settled(|| {
        let renamed = renameat(&from, name, &to, new_name);
        if renamed == Err(Errno::ESTALE) {
            let _ = fstatat(&from, name, AtFlags::AT_SYMLINK_NOFOLLOW);
        }
        renamed
    })
}

/// The names in a directory, without `.` and `..`.
///
/// # Errors
/// What opening or reading it gives.
pub fn names(dir: impl AsFd) -> Result<Vec<OsString>> {
    collect_names(dir, |name| Ok(Some(name.to_owned())))
}

/// What `read` makes of the names in a directory, without `.` and `..`; none: nothing.
///
/// # Errors
/// What opening or reading it gives; the first error of `read`.
pub fn collect_names<T>(dir: impl AsFd, mut read: impl FnMut(&OsStr) -> Result<Option<T>>) -> Result<Vec<T>> {
    let mut entries = Dir::from_fd(open(dir, ".", OFlag::O_RDONLY | OFlag::O_DIRECTORY, Mode::empty())?)?;
    let mut all = Vec::new();
    for entry in entries.iter() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            all.extend(read(OsStr::from_bytes(name))?);
        }
    }
    Ok(all)
}

/// Whether an entry of a directory has this inode number.
///
/// # Errors
/// What opening or reading it gives.
pub fn holds_inode(dir: impl AsFd, inode: u64) -> Result<bool> {
    let mut entries = Dir::from_fd(open(dir, ".", OFlag::O_RDONLY | OFlag::O_DIRECTORY, Mode::empty())?)?;
    for entry in entries.iter() {
        let entry = entry?;
        if entry.ino() == inode && entry.file_name().to_bytes() != b"." {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether nothing is in a directory that is open for reading.
///
/// # Errors
/// What reading it gives.
pub fn is_empty(dir: OwnedFd) -> Result<bool> {
    let mut entries = Dir::from_fd(dir)?;
    for entry in entries.iter() {
        let name = entry?.file_name().to_bytes().to_owned();
        if name != b"." && name != b".." {
            return Ok(false);
        }
    }
    Ok(true)
}
