//! Whole trees to and from tar archives.
//!
//! [`write()`] makes one `.tar.zst` of a tree. [`read()`] restores it, and the `.tar.gz` and `.tar` that Go's
//! archive/tar and GNU tar make. An archive lies where others can write, so nothing in it is trusted: not its names,
//! its links, its sizes, nor its end.
//!
//! The format is POSIX's pax with the extensions of GNU tar and star that every tar knows: `SCHILY.xattr.*` for
//! extended attributes, access control lists among them, and `GNU.sparse.*` (version 1.0) for files with holes. A socket
//! has no type in tar: it is an empty file with the record `NFSCSI.type=socket`, which other programs pass over.

mod chain;
mod further;
mod head;
mod link_table;
mod listing;
mod member;
mod number;
mod pax;
mod placing;
mod read;
mod sparse;
mod stream;
#[cfg(test)]
mod tests;
mod write;

use std::path::PathBuf;

use nix::errno::Errno;
use thiserror::Error;

pub use self::read::{Limits, read};
pub use self::write::write;
use crate::reason::Reason;
use crate::tree::space::NoSpace;
use crate::tree::{Progress, TreeError, shown};

/// The unit of a tar archive, in bytes.
const BLOCK: usize = 512;
/// How many directories lie above each other in an archive at most.
const DEEPEST: usize = 16 * 1024;
/// How many bytes the records of one entry take at most: its name, the target of its link, its extended attributes.
const LONGEST_EXTENSION: u64 = 4 * 1024 * 1024;
/// What is read and written at a time, in bytes.
const CHUNK: usize = 128 * 1024;

/// Why an archive was not made or not restored.
#[derive(Clone, Debug, Error)]
pub enum ArchiveError {
    /// The file system refused something.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// A member that reaches for what is not its own.
    #[error("the archive's member {} {reason}: an archive of a volume has no such member, do not trust it", member.display())]
    Hostile {
        /// The member's name.
        member: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The archive's end is missing.
    #[error("the archive ends too early: it was not written or copied to its end, restore from another")]
    Truncated,
    /// The archive is not one, or was changed after it was made.
    #[error("the archive is damaged: {reason}; restore from another")]
    Damaged {
        /// What does not fit.
        reason: String,
    },
    /// The file system has not the space that the archive takes when it is unpacked.
    #[error(
        "the archive needs {needed} bytes more at least, and {free} are free: make room on the export and try again"
    )]
    TooBig {
        /// Bytes that were asked for.
        needed: u64,
        /// Bytes that are free, without a margin that is left to others.
        free: u64,
    },
    /// The file system has not the inodes that the archive takes when it is unpacked.
    #[error("the archive needs more inodes, and none is free: make room on the export and try again")]
    TooMany,
    /// An entry that cannot be archived or restored.
    #[error("{} is {kind}: remove it from the volume, or restore the archive with tar(1)", member.display())]
    Unsupported {
        /// The entry's name.
        member: PathBuf,
        /// What it is.
        kind: &'static str,
    },
}

impl ArchiveError {
    fn tree(what: &'static str, path: &[u8], errno: Errno) -> Self {
        Self::Tree(TreeError { what, path: shown(path), errno })
    }

    fn hostile(member: &[u8], reason: &'static str) -> Self {
        Self::Hostile { member: shown(member), reason }
    }

    fn damaged(reason: impl Into<String>) -> Self {
        Self::Damaged { reason: reason.into() }
    }

    fn unsupported(member: &[u8], kind: &'static str) -> Self {
        Self::Unsupported { member: shown(member), kind }
    }
}

impl From<NoSpace> for ArchiveError {
    fn from(reason: NoSpace) -> Self {
        match reason {
            NoSpace::Bytes { needed, free } => Self::TooBig { needed, free },
            NoSpace::Entries => Self::TooMany,
            NoSpace::Unknown(errno) => Self::tree("ask for the free space of", b"", errno),
        }
    }
}

/// Says for a failed call what was tried on which entry.
trait At<T> {
    fn at(self, what: &'static str, path: &[u8]) -> Result<T, ArchiveError>;
}

impl<T, E: Reason> At<T> for Result<T, E> {
    fn at(self, what: &'static str, path: &[u8]) -> Result<T, ArchiveError> {
        self.map_err(|reason| ArchiveError::tree(what, path, reason.errno()))
    }
}

/// Ends the work at an entry if it was stopped.
fn check(progress: &Progress, what: &'static str, path: &[u8]) -> Result<(), ArchiveError> {
    if progress.is_stopped() { Err(ArchiveError::tree(what, path, Errno::ECANCELED)) } else { Ok(()) }
}

/// How many bytes fill the last block of `size` bytes.
fn padding(size: u64) -> usize {
    let block = BLOCK as u64;
    usize::try_from(size.next_multiple_of(block) - size).unwrap_or_default()
}
