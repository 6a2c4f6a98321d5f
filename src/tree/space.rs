//! How much space a copy or an archive may still take on the file system that it is written to.
//!
//! A few kilobytes can unpack into petabytes, and a clone may be of any size, so what is free is asked again and again
//! while there is written, and a margin is left to others on the same file system. What others take meanwhile is seen at
//! the next asking. What this host has not sent yet, the server does not know of: until a file is flushed, its bytes count
//! besides.

use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use rustix::fs::fstatvfs;

use crate::reason::errno_of;

/// How many bytes are written before it is asked again.
const BYTES: u64 = 64 * 1024 * 1024;
/// When so many bytes of a file may not be on the server yet, they are to be flushed, which waits for them: more where
/// there is more space, up to the second.
const MANY_WAITING: u64 = 16 * 1024 * 1024;
const MOST_WAITING: u64 = 256 * 1024 * 1024;
/// A part of what is left goes to each piece of a file, or this, in bytes, and so much waits of one file: workers that
/// meet the end of the space have little on its way then.
const PART_OF_LEFT: u64 = 8;
const SMALLEST_PIECE: u64 = 1024 * 1024;
/// How many entries are made before it is asked again, and for the first time: a small tree costs no round trip.
const ENTRIES: u64 = 4096;
const FIRST_ENTRIES: u64 = 64;
/// The margin: this part of the whole, and no more than these bytes and inodes.
const PART: u64 = 64;
const MARGIN_BYTES: u64 = 64 * 1024 * 1024;
const MARGIN_ENTRIES: u64 = 1024;

/// The free space of a file system, as far as it may be used. Several workers may share it.
#[derive(Debug)]
pub(super) struct Space<'a> {
    directory: BorrowedFd<'a>,
    state: Mutex<State>,
}

/// What the server said last, and what was taken since; bytes and inodes.
#[derive(Debug, Default)]
struct State {
    free: Option<Free>,
    taken: Free,
    /// Bytes of all files that may not be on the server yet.
    waiting: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Free {
    bytes: u64,
    entries: u64,
}

/// Why there is no space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoSpace {
    /// What is wanted and what is free without the margin, in bytes.
    Bytes { needed: u64, free: u64 },
    /// No inode is free but for the margin.
    Entries,
    /// The server does not say.
    Unknown(Errno),
}

impl<'a> Space<'a> {
    /// Of the file system that a directory is on. It is asked for when it matters first.
    pub(super) fn new(directory: BorrowedFd<'a>) -> Self {
        Self { directory, state: Mutex::default() }
    }

    /// Refuses what does not fit, before anything of it is written.
    pub(super) fn ask(&self, bytes: u64) -> Result<(), NoSpace> {
        self.left_for(&mut self.state(), bytes).map(drop)
    }

    /// Takes space for an entry that is about to be made.
    pub(super) fn entry(&self) -> Result<(), NoSpace> {
        let mut state = self.state();
        if state.taken.entries >= state.free.map_or(FIRST_ENTRIES, |free| free.entries.min(ENTRIES)) {
            self.ask_again(&mut state)?;
        }
        if state.free.is_some_and(|free| free.entries == 0) {
            return Err(NoSpace::Entries);
        }
        state.taken.entries += 1;
        Ok(())
    }

    /// How many bytes are free, at least the wanted ones.
    fn left_for(&self, state: &mut State, wanted: u64) -> Result<u64, NoSpace> {
        if state.taken.bytes.saturating_sub(state.waiting) >= BYTES || wanted > state.left() {
            self.ask_again(state)?;
        }
        let free = state.left();
        if wanted > free { Err(NoSpace::Bytes { needed: wanted, free }) } else { Ok(free) }
    }

    fn ask_again(&self, state: &mut State) -> Result<(), NoSpace> {
        let has = fstatvfs(self.directory).map_err(|errno| NoSpace::Unknown(errno_of(errno)))?;
        let without_margin = |free: u64, total: u64, unit: u64, most: u64| match total {
            // It has no such bound, or does not say.
            0 => u64::MAX,
            _ => free.saturating_mul(unit).saturating_sub((total.saturating_mul(unit) / PART).min(most)),
        };
        let free = Free {
            // NFS counts in large units (mostly 1 MiB) and rounds up: of the last one a byte may be free.
            bytes: without_margin(has.f_bavail.saturating_sub(1), has.f_blocks, has.f_frsize, MARGIN_BYTES),
            entries: without_margin(has.f_favail, has.f_files, 1, MARGIN_ENTRIES),
        };
        *state = State { free: Some(free), taken: Free { bytes: state.waiting, entries: 0 }, waiting: state.waiting };
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A file that is being written.
#[derive(Debug)]
pub(super) struct Writing<'a> {
    space: &'a Space<'a>,
    /// Its bytes that may not be on the server yet.
    waiting: Cell<u64>,
}

impl<'a> Writing<'a> {
    pub(super) fn new(space: &'a Space<'a>) -> Self {
        Self { space, waiting: Cell::new(0) }
    }

    /// Takes space for bytes that are about to be written.
    pub(super) fn bytes(&self, bytes: u64) -> Result<(), NoSpace> {
        let mut state = self.space.state();
        self.space.left_for(&mut state, bytes)?;
        self.take(&mut state, bytes);
        Ok(())
    }

    /// Takes space for so many bytes or fewer, and gives how many: at least one. What a server copies may take no space
    /// at all, so the whole of a file need not be free.
    pub(super) fn some_bytes(&self, most: u64) -> Result<u64, NoSpace> {
        let mut state = self.space.state();
        let left = self.space.left_for(&mut state, 1)?;
        let bytes = left.min((left / PART_OF_LEFT).max(SMALLEST_PIECE)).min(most);
        self.take(&mut state, bytes);
        Ok(bytes)
    }

    /// Whether so much is on its way that it is to be flushed.
    pub(super) fn is_much(&self) -> bool {
        let waiting = self.waiting.get();
        waiting >= MANY_WAITING
            && waiting >= (self.space.state().left() / PART_OF_LEFT).clamp(MANY_WAITING, MOST_WAITING)
    }

    /// All that was written is on the server.
    pub(super) fn flushed(&self) {
        self.space.state().waiting -= self.waiting.take();
    }

    fn take(&self, state: &mut State, bytes: u64) {
        state.taken.bytes += bytes;
        state.waiting += bytes;
        self.waiting.set(self.waiting.get() + bytes);
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.flushed();
    }
}

impl State {
    fn left(&self) -> u64 {
        self.free.map_or(0, |free| free.bytes.saturating_sub(self.taken.bytes))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn more_than_is_free_is_refused_with_how_much_that_is() {
        let folder = tempfile::tempdir().unwrap();
        let directory = File::open(folder.path()).unwrap();
        let space = Space::new(directory.as_fd());
        space.ask(1).unwrap();
        match space.ask(u64::MAX - 1) {
            Err(NoSpace::Bytes { needed, free }) => assert!(needed == u64::MAX - 1 && free > 0 && free < needed),
            other => panic!("{other:?}"),
        }
        *space.state() = State { free: Some(Free { bytes: 10, entries: 0 }), ..State::default() };
        let file = Writing::new(&space);
        file.bytes(8).unwrap();
        assert_eq!(file.some_bytes(8), Ok(2));
        // It is asked again before anything is refused.
        file.bytes(8).unwrap();
        space.entry().unwrap();
        assert!(space.state().left() > 10);
    }

    #[test]
    fn the_server_is_asked_when_bytes_are_written_or_many_entries_made() {
        let folder = tempfile::tempdir().unwrap();
        let directory = File::open(folder.path()).unwrap();
        let space = Space::new(directory.as_fd());
        for _ in 0..FIRST_ENTRIES {
            space.entry().unwrap();
            assert!(space.state().free.is_none());
        }
        space.entry().unwrap();
        assert!(space.state().free.is_some());
        space.state().taken.bytes = BYTES;
        let file = Writing::new(&space);
        file.bytes(1).unwrap();
        assert_eq!(space.state().taken.bytes, 1);
    }

    #[test]
    fn what_is_not_flushed_counts_besides_what_the_server_says() {
        let folder = tempfile::tempdir().unwrap();
        let directory = File::open(folder.path()).unwrap();
        let space = Space::new(directory.as_fd());
        let (one, other) = (Writing::new(&space), Writing::new(&space));
        let free = |bytes| Some(Free { bytes, entries: 0 });
        space.state().free = free(u64::MAX);
        one.bytes(MANY_WAITING).unwrap();
        other.bytes(1).unwrap();
        assert!(!one.is_much());
        space.state().free = free(4 * MANY_WAITING);
        assert!(one.is_much() && !other.is_much());
        space.ask_again(&mut space.state()).unwrap();
        assert_eq!(space.state().taken.bytes, MANY_WAITING + 1);
        one.flushed();
        drop(other);
        space.ask_again(&mut space.state()).unwrap();
        assert_eq!((space.state().taken.bytes, one.is_much()), (0, false));
    }
}
