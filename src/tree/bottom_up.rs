//! A walk through a tree that comes to a directory after all that is in it. One thread does it; the tree may be deep: a
//! directory is open only while it is read, and when it is left.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use rustix::fs::{AtFlags, FileType, statat};
use rustix::io;

use super::walk::{self, Node};
use super::{TreeError, shown};
use crate::reason::errno_of;

/// What is done with a tree.
pub trait Visitor {
    /// An entry that is no directory.
    ///
    /// # Errors
    /// Ends the walk.
    fn entry(&mut self, directory: BorrowedFd<'_>, name: &CStr, kind: FileType) -> nix::Result<()>;

    /// A directory, open for reading, after all that is in it.
    ///
    /// # Errors
    /// Ends the walk.
    fn leave(&mut self, directory: &OwnedFd) -> nix::Result<()>;
}

/// A directory, and those in it that are still to be walked through.
struct Entered {
    directory: Arc<Node<()>>,
    left: Vec<CString>,
}

/// Walks through the tree in `root`, and comes to `root` last. What vanishes meanwhile is passed over.
///
/// # Errors
/// The first entry that could not be visited, and why.
pub fn walk(root: impl AsFd, visitor: &mut impl Visitor) -> Result<(), TreeError> {
    let root = root.as_fd();
    let mut way = Vec::new();
    way.extend(enter(root, Node::root(()), visitor)?);
    while let Some(last) = way.last_mut() {
        if let Some(name) = last.left.pop() {
            let directory = last.directory.below(name, ());
            way.extend(enter(root, directory, visitor)?);
            continue;
        }
        let directory = Arc::clone(&last.directory);
        way.pop();
        let failed = |errno| failed("visit", &directory, c"", errno);
        match open(root, &directory) {
            Ok(open) => visitor.leave(&open).map_err(failed)?,
            Err(io::Errno::NOENT) => {}
            Err(errno) => return Err(failed(errno_of(errno))),
        }
    }
    Ok(())
}

/// Visits what is in a directory and is none. None if it has vanished.
fn enter(
    root: BorrowedFd<'_>,
    directory: Arc<Node<()>>,
    visitor: &mut impl Visitor,
) -> Result<Option<Entered>, TreeError> {
    let failed_here = |errno| failed("read", &directory, c"", errno_of(errno));
    let open = match open(root, &directory) {
        Err(io::Errno::NOENT) => return Ok(None),
        opened => opened.map_err(failed_here)?,
    };
    let (mut left, mut next) = (Vec::new(), Some(0));
    while let Some(from) = next {
        let batch = walk::read(&open, from, false).map_err(failed_here)?;
        for entry in batch.entries {
            let kind = match entry.kind {
                FileType::Unknown => match statat(&open, &entry.name, AtFlags::SYMLINK_NOFOLLOW) {
                    Err(io::Errno::NOENT) => continue,
                    stat => FileType::from_raw_mode(stat.map_err(failed_here)?.st_mode),
                },
                kind => kind,
            };
            if kind == FileType::Directory {
                left.push(entry.name);
                continue;
            }
            match visitor.entry(open.as_fd(), &entry.name, kind) {
                Ok(()) | Err(Errno::ENOENT) => {}
                Err(errno) => return Err(failed("visit", &directory, &entry.name, errno)),
            }
        }
        next = batch.next;
    }
    Ok(Some(Entered { directory, left }))
}

fn open(root: BorrowedFd<'_>, directory: &Node<()>) -> io::Result<OwnedFd> {
    walk::follow(root, &walk::paths(directory.path().iter().map(Path::new)), OFlag::O_RDONLY)
}

fn failed(what: &'static str, directory: &Node<()>, name: &CStr, errno: Errno) -> TreeError {
    TreeError { what, path: shown(directory.path_of(name).into_os_string().into_vec()), errno }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[derive(Default)]
    struct Seen {
        entries: usize,
        left: Vec<u64>,
    }

    impl Visitor for Seen {
        fn entry(&mut self, directory: BorrowedFd<'_>, name: &CStr, kind: FileType) -> nix::Result<()> {
            let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map_err(errno_of)?;
            assert_eq!(FileType::from_raw_mode(stat.st_mode), kind);
            self.entries += 1;
            Ok(())
        }

        fn leave(&mut self, directory: &OwnedFd) -> nix::Result<()> {
            self.left.push(nix::sys::stat::fstat(directory)?.st_ino);
            Ok(())
        }
    }

    #[test]
    fn a_directory_comes_after_all_that_is_in_it_however_deep_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let mut expected = vec![fs::metadata(folder.path()).unwrap().ino()];
        let mut at = OwnedFd::from(fs::File::open(folder.path()).unwrap());
        for _ in 0..500 {
            rustix::fs::mkdirat(&at, "a directory with a long name", rustix::fs::Mode::RWXU).unwrap();
            rustix::fs::symlinkat("nowhere", &at, "link").unwrap();
            at = walk::open(&at, "a directory with a long name", OFlag::O_RDONLY | OFlag::O_DIRECTORY, 0).unwrap();
            expected.push(nix::sys::stat::fstat(&at).unwrap().st_ino);
        }
        let mut seen = Seen::default();
        walk_all(folder.path(), &mut seen);
        expected.reverse();
        assert_eq!((seen.entries, seen.left), (500, expected));
    }

    #[test]
    fn wide_directories_are_visited_whole() {
        let folder = tempfile::tempdir().unwrap();
        for directory in ["a", "b"] {
            fs::create_dir(folder.path().join(directory)).unwrap();
            for file in 0..1000 {
                fs::write(folder.path().join(directory).join(file.to_string()), "").unwrap();
            }
        }
        let mut seen = Seen::default();
        walk_all(folder.path(), &mut seen);
        assert_eq!((seen.entries, seen.left.len()), (2000, 3));
    }

    fn walk_all(path: &Path, seen: &mut Seen) {
        super::walk(fs::File::open(path).unwrap(), seen).unwrap();
    }
}
