//! How much an archive may still unpack into.
//!
//! A few kilobytes can unpack into petabytes, so what is free is asked before and again and again while it is written,
//! and a margin is left to others on the same file system. What others take meanwhile is seen at the next asking.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::fstatvfs;

use super::{ArchiveError, At as _};

/// How many bytes are written before it is asked again.
const BYTES: u64 = 64 * 1024 * 1024;
/// How many entries are made before it is asked again.
const ENTRIES: u64 = 4096;
/// The margin: this part of the whole, and no more than these bytes and inodes.
const PART: u64 = 64;
const MARGIN_BYTES: u64 = 64 * 1024 * 1024;
const MARGIN_ENTRIES: u64 = 1024;

/// The free space of a file system, as far as it may be used.
pub(super) struct Space {
    directory: OwnedFd,
    free: Free,
    taken: Free,
}

#[derive(Clone, Copy, Default)]
struct Free {
    bytes: u64,
    entries: u64,
}

impl Space {
    /// Asks for the file system that a directory is on.
    pub(super) fn new(directory: OwnedFd) -> Result<Self, ArchiveError> {
        let free = free(&directory)?;
        Ok(Self { directory, free, taken: Free::default() })
    }

    /// Refuses what has no room, before anything of it is written.
    pub(super) fn ask(&mut self, bytes: u64) -> Result<(), ArchiveError> {
        if bytes > self.free.bytes.saturating_sub(self.taken.bytes) {
            self.ask_again()?;
            if bytes > self.free.bytes {
                return Err(ArchiveError::TooBig { needed: bytes, free: self.free.bytes });
            }
        }
        Ok(())
    }

    /// Takes room for bytes that are about to be written.
    pub(super) fn bytes(&mut self, bytes: u64) -> Result<(), ArchiveError> {
        if self.taken.bytes >= BYTES {
            self.ask_again()?;
        }
        self.ask(bytes)?;
        self.taken.bytes += bytes;
        Ok(())
    }

    /// Takes room for an entry that is about to be made.
    pub(super) fn entry(&mut self) -> Result<(), ArchiveError> {
        if self.taken.entries >= ENTRIES.min(self.free.entries) {
            self.ask_again()?;
        }
        if self.free.entries == 0 {
            return Err(ArchiveError::TooMany { free: self.free.entries });
        }
        self.taken.entries += 1;
        Ok(())
    }

    fn ask_again(&mut self) -> Result<(), ArchiveError> {
        self.free = free(&self.directory)?;
        self.taken = Free::default();
        Ok(())
    }
}

fn free(directory: impl AsFd) -> Result<Free, ArchiveError> {
    let told = fstatvfs(directory).at("ask for the free space of", b"")?;
    let without_margin = |free: u64, total: u64, unit: u64, most: u64| match total {
        // It has no such bound, or does not tell.
        0 => u64::MAX,
        _ => free.saturating_mul(unit).saturating_sub((total.saturating_mul(unit) / PART).min(most)),
    };
    Ok(Free {
        bytes: without_margin(told.f_bavail, told.f_blocks, told.f_frsize, MARGIN_BYTES),
        entries: without_margin(told.f_favail, told.f_files, 1, MARGIN_ENTRIES),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_is_free_is_refused_with_how_much_that_is() {
        let folder = tempfile::tempdir().unwrap();
        let mut space = Space::new(std::fs::File::open(folder.path()).unwrap().into()).unwrap();
        space.ask(1).unwrap();
        match space.ask(u64::MAX - 1) {
            Err(ArchiveError::TooBig { needed, free }) => assert!(needed == u64::MAX - 1 && free > 0 && free < needed),
            other => panic!("{other:?}"),
        }
        space.free = Free { bytes: 10, entries: 0 };
        space.bytes(8).unwrap();
        // It is asked again before anything is refused.
        space.bytes(8).unwrap();
        space.entry().unwrap();
        assert!(space.free.bytes > 10);
    }
}
