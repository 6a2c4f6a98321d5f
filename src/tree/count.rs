//! Counting what is in a tree: a finished snapshot is counted once, and each copy of it is compared with that.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nix::fcntl::OFlag;
use rustix::fs::{AtFlags, FileType, statat};
use rustix::io::{Errno, Result};

use super::TreeError;
use super::effort::{Effort, Work, Worker};
use super::walk::{self, Node};

/// A path for one openat2(2) is shorter than this: the kernel's limit is 4096.
const LONGEST_PATH: usize = 3800;

/// How many entries of whatever kind are in the directory `root`, at any depth; the directory itself is not counted.
///
/// # Errors
/// The first directory that could not be read, and why.
pub fn entries(root: impl AsFd, effort: &Effort) -> std::result::Result<u64, TreeError> {
    let count = Count { root: root.as_fd(), entries: AtomicU64::new(0), failed: Mutex::new(None) };
    effort.run(&count, Node::root(()));
    match count.failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(count.entries.into_inner()),
    }
}

struct Count<'a> {
    root: BorrowedFd<'a>,
    entries: AtomicU64,
    failed: Mutex<Option<TreeError>>,
}

impl Work for Count<'_> {
    type Task = Arc<Node<()>>;

    fn carry_out(&self, directory: Self::Task, worker: &Worker<'_, '_, Self>) {
        let counted = self.directory(&directory, worker);
        if let Err(errno) = counted {
            let errno = nix::errno::Errno::from_raw(errno.raw_os_error());
            let error = TreeError { what: "count what is in", path: directory.path(), errno };
            self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            worker.stop();
        }
    }
}

impl Count<'_> {
    fn directory(&self, directory: &Arc<Node<()>>, worker: &Worker<'_, '_, Self>) -> Result<()> {
        let open = open(self.root, &directory.path())?;
        let mut next = Some(0);
        while let Some(from) = next {
            let batch = walk::read(&open, from, false)?;
            self.entries.fetch_add(batch.entries.len() as u64, Ordering::Relaxed);
            let mut directories: Vec<CString> = Vec::new();
            for entry in batch.entries {
                let kind = match entry.kind {
                    FileType::Unknown => {
                        FileType::from_raw_mode(statat(&open, &entry.name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode)
                    }
                    kind => kind,
                };
                directories.extend((kind == FileType::Directory).then_some(entry.name));
            }
            worker.push(directories.into_iter().map(|name| directory.below(name, ())));
            next = batch.next;
        }
        Ok(())
    }
}

/// Opens a directory by its path from the root, in pieces that the kernel takes.
fn open(root: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd> {
    let (mut at, mut piece) = (None::<OwnedFd>, PathBuf::new());
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
    for name in path {
        if piece.as_os_str().len() + name.len() >= LONGEST_PATH {
            at =
                Some(walk::open(at.as_ref().map_or(root, AsFd::as_fd), &piece, OFlag::O_PATH | OFlag::O_DIRECTORY, 0)?);
            piece.clear();
        }
        piece.push(name);
    }
    if piece.as_os_str().is_empty() {
        piece.push(".");
    }
    match walk::open(at.as_ref().map_or(root, AsFd::as_fd), &piece, flags, 0) {
        Err(Errno::LOOP) => Err(Errno::NOTDIR),
        opened => opened,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_counts_once_however_wide_and_deep_the_tree_is() {
        let folder = tempfile::tempdir().unwrap();
        let root = std::fs::File::open(folder.path()).unwrap();
        assert_eq!(entries(&root, &Effort::new(4)).unwrap(), 0);
        for directory in 0..20 {
            let directory = folder.path().join(directory.to_string());
            std::fs::create_dir(&directory).unwrap();
            for file in 0..300 {
                std::fs::write(directory.join(file.to_string()), "").unwrap();
            }
        }
        std::os::unix::fs::symlink("0", folder.path().join("link")).unwrap();
        let deep: PathBuf = std::iter::repeat_n("a directory with a long name", 200).collect();
        let mut at = OwnedFd::from(root.try_clone().unwrap());
        for name in &deep {
            rustix::fs::mkdirat(&at, name, rustix::fs::Mode::RWXU).unwrap();
            at = walk::open(&at, Path::new(name), OFlag::O_RDONLY | OFlag::O_DIRECTORY, 0).unwrap();
        }
        assert_eq!(entries(&root, &Effort::new(4)).unwrap(), 20 * 301 + 1 + 200);
    }
}
