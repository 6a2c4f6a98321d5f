//! Removing a whole tree with two descriptors open, however deep and wide it is.
//!
//! Every directory below the tree is first moved up beside it, under a name of its own, and then emptied in its turn:
//! no path grows, no descriptor waits for its children, and what a crash leaves is a few smaller trees in the same
//! place. Links are removed, never followed, and another file system mounted inside is never entered.

use std::ffi::{CStr, OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use nix::Result;
use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{OFlag, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::beneath;

/// How often a directory that fills up while it is emptied is emptied again.
const ROUNDS: u32 = 8;

/// Removes `name` and all below it from the directory `place`. Where it is gone already, that is success.
///
/// `place` also takes the directories that were below, as `<name>.<number>`, until they are removed too.
///
/// # Errors
/// The entry that could not be removed, and why; everything that could be removed is.
pub fn tree(place: impl AsFd, name: &str) -> std::result::Result<(), (OsString, Errno)> {
    // Most volumes are empty when they go: one round trip.
    match unlinkat(&place, name, UnlinkatFlags::RemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => return Ok(()),
        Err(Errno::ENOTDIR) => return remove_file(&place, name),
        Err(_) => {}
    }
    let mut removal =
        Removal { place: place.as_fd(), top: name, moved: 0, waiting: vec![name.to_owned()], failed: None };
    while let Some(next) = removal.waiting.pop() {
        removal.directory(&next);
    }
    removal.failed.map_or(Ok(()), Err)
}

fn remove_file(place: impl AsFd, name: &str) -> std::result::Result<(), (OsString, Errno)> {
    match unlinkat(place, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err((name.into(), errno)),
    }
}

struct Removal<'a> {
    place: BorrowedFd<'a>,
    top: &'a str,
    moved: u64,
    waiting: Vec<String>,
    failed: Option<(OsString, Errno)>,
}

impl Removal<'_> {
    fn directory(&mut self, name: &str) {
        for _ in 0..ROUNDS {
            if let Err(errno) = self.empty(name) {
                return self.fail(name.into(), errno);
            }
            match unlinkat(self.place, name, UnlinkatFlags::RemoveDir) {
                Ok(()) | Err(Errno::ENOENT) => return,
                // Something was added meanwhile, or could not be removed.
                Err(Errno::ENOTEMPTY | Errno::EEXIST) if self.failed.is_none() => {}
                Err(errno) => return self.fail(name.into(), errno),
            }
        }
        self.fail(name.into(), Errno::ENOTEMPTY);
    }

    fn empty(&mut self, name: &str) -> Result<()> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
        let directory = match beneath::open(self.place, name, flags, Mode::empty()) {
            Ok(directory) => directory,
            Err(Errno::ENOENT) => return Ok(()),
            Err(errno) => return Err(errno),
        };
        let mut entries = Dir::from_fd(directory.try_clone().map_err(|_| Errno::EMFILE)?)?;
        // Removed while they are read, so that a million names need no memory: what a server's cookies then skip, the
        // next round finds.
        for entry in entries.iter() {
            let entry = entry?;
            let name = entry.file_name();
            if name.to_bytes() != b"."
                && name.to_bytes() != b".."
                && let Err(errno) = self.entry(&directory, name, entry.file_type())
            {
                self.fail(OsStr::from_bytes(name.to_bytes()).to_owned(), errno);
            }
        }
        Ok(())
    }

    fn entry(&mut self, parent: &OwnedFd, entry: &CStr, kind: Option<Type>) -> Result<()> {
        if kind != Some(Type::Directory) {
            match unlinkat(parent, entry, UnlinkatFlags::NoRemoveDir) {
                Ok(()) | Err(Errno::ENOENT) => return Ok(()),
                // The server did not say the type, or it changed.
                Err(Errno::EISDIR | Errno::EPERM) => {}
                Err(errno) => return Err(errno),
            }
        }
        let moved = format!("{}.{}", self.top, self.moved);
        self.moved += 1;
        match renameat(parent, entry, self.place, moved.as_str()) {
            Ok(()) => self.waiting.push(moved),
            Err(Errno::ENOENT) => {}
            Err(errno) => return Err(errno),
        }
        Ok(())
    }

    fn fail(&mut self, entry: OsString, errno: Errno) {
        self.failed.get_or_insert((entry, errno));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    fn place(path: &Path) -> OwnedFd {
        OwnedFd::from(std::fs::File::open(path).unwrap())
    }

    #[test]
    fn a_tree_goes_with_all_kinds_of_entries_and_its_neighbours_stay() {
        let folder = tempfile::tempdir().unwrap();
        let tree_path = folder.path().join("t");
        std::fs::create_dir_all(tree_path.join("a/b/c")).unwrap();
        std::fs::write(tree_path.join("a/file"), "x").unwrap();
        std::fs::write(folder.path().join("outside"), "kept").unwrap();
        symlink("../outside", tree_path.join("link")).unwrap();
        symlink("/", tree_path.join("a/root")).unwrap();
        nix::unistd::mkfifo(&tree_path.join("a/fifo"), Mode::S_IRWXU).unwrap();
        tree(place(folder.path()), "t").unwrap();
        let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["outside"]);
    }

    #[test]
    fn a_tree_far_deeper_than_a_path_may_be_long_goes() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("t")).unwrap();
        let mut at = place(&folder.path().join("t"));
        for _ in 0..3000 {
            nix::sys::stat::mkdirat(&at, "directory", Mode::S_IRWXU).unwrap();
            at = beneath::open_dir(&at, "directory").unwrap();
        }
        drop(at);
        tree(place(folder.path()), "t").unwrap();
        assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none());
    }

    #[test]
    fn what_is_gone_already_and_what_is_no_directory_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        tree(place(folder.path()), "missing").unwrap();
        symlink("/", folder.path().join("link")).unwrap();
        tree(place(folder.path()), "link").unwrap();
        assert!(std::fs::symlink_metadata(folder.path().join("link")).is_err());
    }
}
