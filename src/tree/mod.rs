//! Whole trees below an export, by directory descriptor only: no symbolic link is followed and no name is trusted.

pub mod archive;
pub mod attributes;
pub mod make;
pub mod remove;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;
use thiserror::Error;

/// Why the work on a tree ended.
#[derive(Clone, Debug, Error)]
#[error("cannot {what} {}: {}", path.display(), errno.desc())]
pub struct TreeError {
    /// What was tried: `copy`, `read`, `make the directory`, …
    pub what: &'static str,
    /// The entry, from the tree's root.
    pub path: PathBuf,
    /// The kernel's reason.
    pub errno: Errno,
}

/// How far the work on a tree has come. Others read it while the work goes on.
#[derive(Debug, Default)]
pub struct Progress {
    files: AtomicU64,
    bytes: AtomicU64,
}

impl Progress {
    /// Notes entries of whatever kind that are done, and the bytes that were in them.
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
}
