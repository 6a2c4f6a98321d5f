//! Whole trees below an export, by directory descriptor only: no symbolic link is followed and no name is trusted.

mod access_list;
pub mod archive;
pub mod attributes;
pub mod bottom_up;
pub mod copy;
pub mod count;
pub mod effort;
pub mod make;
mod memory;
pub mod remove;
mod space;
mod walk;

pub use self::walk::look_again;

use std::ffi::{CStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nix::errno::Errno;
use rustix::fs::Stat;
use thiserror::Error;

use crate::volume::path::RESERVED;

/// How much of a path an error shows, in bytes.
const LONGEST_SHOWN: usize = 512;

/// Why the work on a tree ended.
#[derive(Clone, Debug, Error)]
#[error("cannot {what} {}: {}", path.display(), errno.desc())]
pub struct TreeError {
    /// What was tried: `copy`, `read`, `make the directory`, …
    pub what: &'static str,
    /// The entry, from the tree's root, or the beginning of its path if that is long.
    pub path: PathBuf,
    /// The kernel's reason.
    pub errno: Errno,
}

impl TreeError {
    /// Whether a source that does not change lacks an entry.
    #[must_use]
    pub fn is_lack(&self) -> bool {
        self.what == copy::LACKS
    }

    /// Whether a file system is full, or a quota used up.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self.errno, Errno::ENOSPC | Errno::EDQUOT)
    }
}

/// A path as an error shows it: in a deep tree it may be megabytes long.
fn shown(path: impl Into<Vec<u8>>) -> PathBuf {
    let mut path = path.into();
    if path.is_empty() {
        path.push(b'.');
    } else if path.len() > LONGEST_SHOWN {
        path.truncate(LONGEST_SHOWN);
        path.extend_from_slice("…".as_bytes());
        path.shrink_to_fit();
    }
    OsString::from_vec(path).into()
}

/// Whether a directory of a source is the driver's own folder on the target's share, which has the number `own`.
fn is_own(name: &CStr, stat: &Stat, own: Option<u64>) -> bool {
    own == Some(stat.st_ino) && name.to_bytes() == RESERVED.as_bytes()
}

/// Whether the source of a copy may change while it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceKind {
    /// A volume in use: an entry that is removed before its turn is left out and counted ([`Progress::miss`]).
    Live,
    /// A snapshot, which never changes: an entry that is missing is an error.
    Frozen,
}

/// How far the work on a tree has come, and whether to stop it. Other threads read and stop it while the work runs.
#[derive(Debug, Default)]
pub struct Progress {
    files: AtomicU64,
    bytes: AtomicU64,
    vanished: AtomicU64,
    narrowed: AtomicU64,
    /// What is expected to be done in the end; 0: not known.
    expected_files: AtomicU64,
    expected_bytes: AtomicU64,
    stopped: AtomicBool,
    asked: AtomicBool,
}

impl Progress {
    /// Notes that the work was asked for, by whoever cannot wait for it here.
    pub fn ask(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }

    /// Whether it was since this was asked last.
    #[must_use]
    pub fn take_asked(&self) -> bool {
        self.asked.swap(false, Ordering::Relaxed)
    }

    /// Notes how many entries and bytes there will be in the end, about; none: not known.
    pub fn expect(&self, files: Option<u64>, bytes: Option<u64>) {
        self.expected_files.store(files.unwrap_or_default(), Ordering::Relaxed);
        self.expected_bytes.store(bytes.unwrap_or_default(), Ordering::Relaxed);
    }

    /// How many entries and bytes there will be in the end, about; none: not known.
    #[must_use]
    pub fn expected(&self) -> (Option<u64>, Option<u64>) {
        let known = |number: &AtomicU64| Some(number.load(Ordering::Relaxed)).filter(|number| *number > 0);
        (known(&self.expected_files), known(&self.expected_bytes))
    }

    /// Adds entries of whatever kind that are done, and the bytes that were in them.
    pub fn add(&self, files: u64, bytes: u64) {
        self.files.fetch_add(files, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Entries that are done.
    #[must_use]
    pub fn files(&self) -> u64 {
        self.files.load(Ordering::Relaxed)
    }

    /// Bytes in them.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Counts an entry of the source that was gone when its turn came. A directory counts at
    /// least once, whatever was in it.
    pub fn miss(&self) {
        self.vanished.fetch_add(1, Ordering::Relaxed);
    }

    /// Entries of the source that were gone when their turn came.
    #[must_use]
    pub fn vanished(&self) -> u64 {
        self.vanished.load(Ordering::Relaxed)
    }

    /// Counts an entry that is copied without the access control list of its source.
    pub fn narrow(&self) {
        self.narrowed.fetch_add(1, Ordering::Relaxed);
    }

    /// Entries that were copied without the access control lists of their sources.
    #[must_use]
    pub fn narrowed(&self) -> u64 {
        self.narrowed.load(Ordering::Relaxed)
    }

    /// Ends the work at its next entry or its next piece of a file, with ECANCELED.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Whether the work is to end.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}

impl fmt::Display for Progress {
    #[allow(clippy::cast_precision_loss, reason = "for people")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} files, {:.1} MiB so far", self.files(), self.bytes() as f64 / f64::from(1 << 20))?;
        match self.vanished() {
            0 => Ok(()),
            vanished => write!(f, ", {vanished} vanished before their turn"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_shows_at_most_512_bytes_of_a_path() {
        let shown = |length| shown(vec![b'p'; length]).into_os_string();
        assert_eq!((shown(0), shown(512)), (".".into(), "p".repeat(512).into()));
        assert_eq!(shown(513).into_string().unwrap(), "p".repeat(512) + "…");
        let (mut long, mut directory) = (PathBuf::new(), walk::Node::root(()));
        for _ in 0..10_000 {
            directory = directory.below(c"directory".into(), ());
            long.push("directory");
        }
        let error = copy::failed("copy", directory.path(), rustix::io::Errno::IO);
        assert!(error.path.as_os_str().len() <= 515 && error.to_string().len() < 600, "{error}");
        assert!(long.to_string_lossy().starts_with(error.path.to_str().unwrap().trim_end_matches('…')));
    }

    #[test]
    fn progress_names_what_vanished_only_if_something_did() {
        let progress = Progress::default();
        progress.add(2, 3 << 19);
        assert_eq!(progress.to_string(), "2 files, 1.5 MiB so far");
        progress.miss();
        progress.miss();
        assert_eq!(progress.to_string(), "2 files, 1.5 MiB so far, 2 vanished before their turn");
        assert!(!progress.is_stopped());
        progress.stop();
        assert!(progress.is_stopped());
    }
}
