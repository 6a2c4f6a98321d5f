//! The directories from a tree's root down to where the work is, whatever their number.
//!
//! Only the last [`OPEN`] of them are kept open. One further up is opened again when the work comes back to it, from
//! the root downwards and never through `..`, so that a directory that is moved meanwhile leads nowhere else.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use nix::Result;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;

use crate::beneath;

/// How many directories are kept open, besides the root.
const OPEN: usize = 64;
/// The longest path that the kernel takes at once, in bytes.
const LONGEST_PATH: usize = 4095;

/// A way down from a root, with something of the caller's at each directory.
pub(super) struct Chain<T> {
    root: OwnedFd,
    at_root: T,
    /// The names from the root, with `/` between them.
    path: Vec<u8>,
    levels: Vec<Level<T>>,
}

struct Level<T> {
    /// Where its name ends in the path.
    end: usize,
    /// Open ones are always the last of the chain.
    directory: Option<OwnedFd>,
    state: T,
}

impl<T> Chain<T> {
    /// A chain that is still at its root.
    pub(super) fn new(root: impl AsFd, at_root: T) -> Result<Self> {
        Ok(Self { root: open(root, b".")?, at_root, path: Vec::new(), levels: Vec::new() })
    }

    /// How many directories below the root the work is.
    pub(super) fn depth(&self) -> usize {
        self.levels.len()
    }

    /// Where the work is, from the root; empty at the root.
    pub(super) fn path(&self) -> &[u8] {
        &self.path
    }

    /// The names of the directories below the root.
    pub(super) fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.path.split(|&byte| byte == b'/').filter(|name| !name.is_empty())
    }

    /// What the caller keeps at the directory where the work is.
    pub(super) fn state(&mut self) -> &mut T {
        self.levels.last_mut().map_or(&mut self.at_root, |level| &mut level.state)
    }

    /// Goes into a directory that is open already. Gives what is kept at the one that had to be closed for it.
    pub(super) fn enter(&mut self, name: &[u8], directory: OwnedFd, state: T) -> Option<&mut T> {
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name);
        self.levels.push(Level { end: self.path.len(), directory: Some(directory), state });
        let outside = self.levels.len().checked_sub(OPEN + 1)?;
        let level = self.levels.get_mut(outside)?;
        level.directory.take().map(|_closed| &mut level.state)
    }

    /// Goes up one directory; `None` at the root.
    pub(super) fn leave(&mut self) -> Option<T> {
        let left = self.levels.pop()?;
        self.path.truncate(self.levels.last().map_or(0, |level| level.end));
        Some(left.state)
    }

    /// The directory where the work is.
    ///
    /// # Errors
    /// What opening it again gives: ENOENT if it was removed or moved.
    pub(super) fn here(&mut self) -> Result<BorrowedFd<'_>> {
        if self.levels.last().is_some_and(|level| level.directory.is_none()) {
            self.open_again()?;
        }
        Ok(self.levels.last().and_then(|level| level.directory.as_ref()).unwrap_or(&self.root).as_fd())
    }

    fn open_again(&mut self) -> Result<()> {
        let first = self.levels.len().saturating_sub(OPEN);
        let mut begin = first.checked_sub(1).and_then(|above| self.levels.get(above)).map_or(0, |level| level.end);
        let above = self.open(&self.path[..begin])?;
        let mut opened = Vec::with_capacity(OPEN);
        for level in &self.levels[first..] {
            let name = &self.path[begin..level.end];
            opened.push(open(opened.last().unwrap_or(&above), name.strip_prefix(b"/").unwrap_or(name))?);
            begin = level.end;
        }
        for (level, directory) in self.levels[first..].iter_mut().zip(opened) {
            level.directory = Some(directory);
        }
        Ok(())
    }

    /// Opens any directory below the root, however long its path, as a place to work from.
    pub(super) fn open(&self, path: &[u8]) -> Result<OwnedFd> {
        self.open_as(path, OFlag::O_PATH)
    }

    /// The same to read it: NFS asks the server for it then.
    pub(super) fn open_to_read(&self, path: &[u8]) -> Result<OwnedFd> {
        self.open_as(path, OFlag::O_RDONLY)
    }

    fn open_as(&self, path: &[u8], flags: OFlag) -> Result<OwnedFd> {
        let flags = flags | OFlag::O_DIRECTORY;
        let mut at = None;
        let mut rest = path;
        while !rest.is_empty() {
            let end = match rest.get(..=LONGEST_PATH) {
                None => rest.len(),
                Some(piece) => piece.iter().rposition(|&byte| byte == b'/').ok_or(Errno::ENAMETOOLONG)?,
            };
            let from = at.as_ref().unwrap_or(&self.root);
            let flags = if end == rest.len() { flags } else { OFlag::O_PATH | OFlag::O_DIRECTORY };
            at = Some(beneath::open(from, OsStr::from_bytes(&rest[..end]), flags, Mode::empty())?);
            rest = rest.get(end + 1..).unwrap_or_default();
        }
        at.map_or_else(|| beneath::open(&self.root, ".", flags, Mode::empty()), Ok)
    }
}

/// Opens a directory to read it and to change its attributes.
pub(super) fn open(directory: impl AsFd, name: &[u8]) -> Result<OwnedFd> {
    beneath::open(directory, OsStr::from_bytes(name), OFlag::O_RDONLY | OFlag::O_DIRECTORY, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::{fstat, mkdirat};

    #[test]
    fn the_way_back_up_leads_through_the_same_directories() {
        let folder = tempfile::tempdir().unwrap();
        let root = std::fs::File::open(folder.path()).unwrap();
        let mut chain = Chain::new(&root, 0).unwrap();
        let depth = 3 * OPEN + 5;
        for level in 1..=depth {
            let name = format!("directory-{level}");
            let here = chain.here().unwrap();
            mkdirat(here, name.as_str(), Mode::S_IRWXU).unwrap();
            let directory = open(here, name.as_bytes()).unwrap();
            let inode = fstat(&directory).unwrap().st_ino;
            let closed = chain.enter(name.as_bytes(), directory, inode).map(|inode| *inode);
            assert_eq!(closed.is_some(), level > OPEN);
        }
        assert!(chain.path().len() > LONGEST_PATH / 2);
        for level in (1..=depth).rev() {
            assert_eq!(chain.depth(), level);
            let inode = fstat(chain.here().unwrap()).unwrap().st_ino;
            assert!(chain.levels.iter().filter(|level| level.directory.is_some()).count() <= OPEN);
            assert_eq!(chain.leave(), Some(inode));
        }
        assert_eq!((chain.leave(), chain.path()), (None, &b""[..]));
    }

    #[test]
    fn a_directory_that_became_a_link_is_not_entered_again() {
        let folder = tempfile::tempdir().unwrap();
        let root = std::fs::File::open(folder.path()).unwrap();
        let mut chain = Chain::new(&root, ()).unwrap();
        for _ in 0..=OPEN {
            let here = chain.here().unwrap();
            mkdirat(here, "d", Mode::S_IRWXU).unwrap();
            let directory = open(here, b"d").unwrap();
            chain.enter(b"d", directory, ());
        }
        std::fs::rename(folder.path().join("d"), folder.path().join("moved")).unwrap();
        std::os::unix::fs::symlink("moved", folder.path().join("d")).unwrap();
        for _ in 0..OPEN {
            chain.leave();
        }
        assert_eq!(chain.here().err(), Some(Errno::ELOOP));
    }
}
