//! Counting what is in a tree: a finished snapshot is counted once, and each copy of it is compared with that; what a
//! volume uses is added up, no faster than is asked for.
//!
//! A directory stays open for those in it, as long as not too many are; else they are opened by their path from the
//! root.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use rustix::fs::{AtFlags, FileType, Stat, statat};
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
    count(root.as_fd(), effort, None).map(|usage| usage.entries)
}

/// What is used by all that is in the directory `root` and by the directory itself. Entries are asked for at `pace`. What
/// cannot be read, what vanishes meanwhile, and other file systems are left out and counted.
///
/// # Errors
/// Where `root` itself cannot be read.
pub fn usage(root: impl AsFd, effort: &Effort, pace: &Pace) -> std::result::Result<Usage, TreeError> {
    let root = root.as_fd();
    let own = statat(root, c"", AtFlags::EMPTY_PATH).map_err(|errno| TreeError {
        what: "look at",
        path: shown(Vec::new()),
        errno: errno_of(errno),
    })?;
    let usage = count(root, effort, Some(pace))?;
    Ok(Usage { bytes: usage.bytes + bytes_of(&own), ..usage })
}

/// What a tree uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes on the server's disk. A file with several names counts with each name in equal parts: no list of the files
    /// seen is kept.
    pub bytes: u64,
    /// Entries of whatever kind below the root.
    pub entries: u64,
    /// Entries and directories that could not be read.
    pub unread: u64,
}

/// At most so many entries a second, over all threads that have it.
#[derive(Debug)]
pub struct Pace {
    /// How long one entry takes; zero: as quickly as it goes.
    entry: Duration,
    next: Mutex<Instant>,
}

impl Pace {
    /// A pace; 0: as quickly as it goes.
    #[must_use]
    pub fn new(entries_per_second: u32) -> Self {
        let entry = Duration::from_secs(1).checked_div(entries_per_second).unwrap_or_default();
        Self { entry, next: Mutex::new(Instant::now()) }
    }

    /// Waits until so many entries may be asked for.
    fn wait(&self, entries: usize) {
        let pause = self.turn(entries, Instant::now());
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
    }

    /// How long it is until the turn of so many entries, which is taken.
    fn turn(&self, entries: usize, now: Instant) -> Duration {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = (*next).max(now);
        *next = begin + self.entry.saturating_mul(u32::try_from(entries).unwrap_or(u32::MAX));
        begin.duration_since(now)
    }
}

fn count(root: BorrowedFd<'_>, effort: &Effort, pace: Option<&Pace>) -> std::result::Result<Usage, TreeError> {
    let [entries, bytes, unread] = [const { AtomicU64::new(0) }; 3];
    let count = Count { root, pace, entries, bytes, unread, failed: Mutex::new(None), open: Arc::default() };
    effort.run(&count, Task { directory: Node::root(()), above: None });
    let Count { entries, bytes, unread, failed, .. } = count;
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(Usage { bytes: bytes.into_inner(), entries: entries.into_inner(), unread: unread.into_inner() }),
    }
}

/// The bytes on disk of an entry, its part of them where it has several names.
#[allow(clippy::cast_sign_loss, reason = "no file has a negative number of blocks")]
#[allow(clippy::useless_conversion, reason = "there are processors with smaller numbers of names")]
fn bytes_of(stat: &Stat) -> u64 {
    let names = if FileType::from_raw_mode(stat.st_mode) == FileType::Directory { 1 } else { stat.st_nlink.max(1) };
    // st_blocks has units of 512 bytes on every file system.
    stat.st_blocks as u64 * 512 / u64::from(names)
}

struct Count<'a> {
    root: BorrowedFd<'a>,
    /// The pace at which usage is measured; none: entries are only counted.
    pace: Option<&'a Pace>,
    entries: AtomicU64,
    bytes: AtomicU64,
    unread: AtomicU64,
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
            if self.pace.is_some() && directory.above().is_some() && is_passed_over(errno) {
                self.unread.fetch_add(1, Ordering::Relaxed);
                return;
            }
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
            if let Some(pace) = self.pace {
                pace.wait(batch.entries.len());
            }
            let mut directories: Vec<CString> = Vec::new();
            for entry in batch.entries {
                let kind = match (entry.kind, self.pace) {
                    (FileType::Unknown, _) | (_, Some(_)) => match self.look(&open.directory, &entry.name) {
                        Err(errno) if self.pace.is_some() && is_passed_over(errno) => {
                            self.unread.fetch_add(1, Ordering::Relaxed);
                            continue;
                        }
                        kind => kind?,
                    },
                    (kind, None) => kind,
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

impl Count<'_> {
    /// What kind of entry it is; what it uses is added.
    fn look(&self, directory: &OwnedFd, name: &CStr) -> Result<FileType> {
        let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if self.pace.is_some() {
            self.bytes.fetch_add(bytes_of(&stat), Ordering::Relaxed);
        }
        Ok(FileType::from_raw_mode(stat.st_mode))
    }
}

/// Whether an error is one entry's alone: it may not be read, it is gone, or it is another file system's.
fn is_passed_over(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::STALE | Errno::ACCESS | Errno::PERM | Errno::XDEV | Errno::NOTDIR)
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

    #[test]
    fn usage_is_that_of_all_entries_without_what_links_lead_to() {
        let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(other.path().join("large"), vec![1; 4 << 20]).unwrap();
        std::fs::create_dir_all(folder.path().join("a/b")).unwrap();
        std::os::unix::fs::symlink(other.path(), folder.path().join("a/link")).unwrap();
        std::fs::write(folder.path().join("a/file"), vec![1; 100_000]).unwrap();
        std::fs::hard_link(folder.path().join("a/file"), folder.path().join("a/b/file")).unwrap();
        let root = std::fs::File::open(folder.path()).unwrap();
        let usage = usage(&root, &Effort::new(4), &Pace::new(0)).unwrap();
        assert_eq!((usage.entries, usage.unread), (5, 0));
        assert!((100_000..2 << 20).contains(&usage.bytes), "{usage:?}");
        let linked = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(folder.path().join("a/file")).unwrap());
        std::fs::remove_file(folder.path().join("a/b/file")).unwrap();
        let alone = super::usage(&root, &Effort::new(4), &Pace::new(0)).unwrap();
        assert!(usage.bytes.abs_diff(alone.bytes) < linked * 512 / 2, "{usage:?} {alone:?}");
    }

    #[test]
    fn a_pace_gives_each_thread_its_turn_behind_the_others() {
        let pace = Pace::new(100);
        let now = *pace.next.lock().unwrap();
        assert_eq!(pace.turn(50, now), Duration::ZERO);
        assert_eq!(pace.turn(100, now), Duration::from_millis(500));
        assert_eq!(pace.turn(1, now + Duration::from_secs(1)), Duration::from_millis(500));
        assert_eq!(pace.turn(1, now + Duration::from_mins(1)), Duration::ZERO);
        assert_eq!(Pace::new(0).turn(usize::MAX, now + Duration::from_mins(1)), Duration::ZERO);
    }
}
