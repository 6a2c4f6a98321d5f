//! Counting what is in a tree: a finished snapshot is counted once, and each copy of it is compared with that.
//!
//! A directory stays open for those in it, as long as not too many are; else they are opened by their path from the
//! root.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nix::fcntl::OFlag;
use rustix::fs::{AtFlags, FileType, statat};
use rustix::io::{Errno, Result};

use super::effort::{Effort, Work, Worker};
use super::walk::{self, Node};
use super::{TreeError, shown};
use crate::reason::errno_of;

/// Directories that are open at once, about.
const OPEN: usize = 256;

/// How many entries of whatever kind are in the directory `root`, at any depth; the directory itself is not counted.
///
/// # Errors
/// The first directory that could not be read, and why.
pub fn entries(root: impl AsFd, effort: &Effort) -> std::result::Result<u64, TreeError> {
    let (entries, failed, open) = (AtomicU64::new(0), Mutex::new(None), Arc::new(AtomicUsize::new(0)));
    let count = Count { root: root.as_fd(), entries, failed, open };
    effort.run(&count, Task { directory: Node::root(()), above: None });
    match count.failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(count.entries.into_inner()),
    }
}

struct Count<'a> {
    root: BorrowedFd<'a>,
    entries: AtomicU64,
    failed: Mutex<Option<TreeError>>,
    open: Arc<AtomicUsize>,
}

/// A directory that is to be counted, and the one it is in if that is open.
struct Task {
    directory: Arc<Node<()>>,
    above: Option<Arc<Open>>,
}

/// An open directory, which counts as one.
struct Open {
    directory: OwnedFd,
    open: Arc<AtomicUsize>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Work for Count<'_> {
    type Task = Task;

    fn carry_out(&self, task: Task, worker: &Worker<'_, '_, Self>) {
        let directory = Arc::clone(&task.directory);
        if let Err(errno) = self.directory(task, worker) {
            let errno = errno_of(errno);
            let error = TreeError {
                what: "count what is in",
                path: shown(directory.path().into_os_string().into_vec()),
                errno,
            };
            self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            worker.stop();
        }
    }
}

impl Count<'_> {
    fn directory(&self, Task { directory, above }: Task, worker: &Worker<'_, '_, Self>) -> Result<()> {
        let opened = match &above {
            Some(above) => open(above.directory.as_fd(), walk::as_path(directory.name()))?,
            None => open(self.root, &directory.path())?,
        };
        drop(above);
        self.open.fetch_add(1, Ordering::Relaxed);
        let open = Arc::new(Open { directory: opened, open: Arc::clone(&self.open) });
        let mut next = Some(0);
        while let Some(from) = next {
            let batch = walk::read(&open.directory, from, false)?;
            self.entries.fetch_add(batch.entries.len() as u64, Ordering::Relaxed);
            let mut directories: Vec<CString> = Vec::new();
            for entry in batch.entries {
                let kind = match entry.kind {
                    FileType::Unknown => FileType::from_raw_mode(
                        statat(&open.directory, &entry.name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode,
                    ),
                    kind => kind,
                };
                directories.extend((kind == FileType::Directory).then_some(entry.name));
            }
            let stays_open = self.open.load(Ordering::Relaxed) < OPEN;
            worker.push(directories.into_iter().map(|name| Task {
                directory: directory.below(name, ()),
                above: stays_open.then(|| Arc::clone(&open)),
            }));
            next = batch.next;
        }
        Ok(())
    }
}

/// Opens a directory by its path.
fn open(from: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd> {
    match walk::follow(from, &walk::paths(path.iter().map(Path::new)), OFlag::O_RDONLY) {
        Err(Errno::LOOP) => Err(Errno::NOTDIR),
        opened => opened,
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

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
