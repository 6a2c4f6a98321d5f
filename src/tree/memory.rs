//! What trees make this process keep in memory: one limit for all of them at once.
//!
//! Most of the work on a tree needs the same few buffers whatever the tree is. What grows with it, because a later part
//! of the work needs what an earlier one found, is counted here in bytes, about. Who gets no more keeps it out of memory
//! in some way that costs time: each place that asks says which.

use std::sync::atomic::{AtomicUsize, Ordering};

/// For all trees of the process, in bytes. The zstd encoder and the buffers of some workers take twice as much.
pub(super) static TREES: Memory = Memory::new(16 * 1024 * 1024);

/// An amount of memory that several users share.
#[derive(Debug)]
pub(super) struct Memory {
    free: AtomicUsize,
}

impl Memory {
    pub(super) const fn new(bytes: usize) -> Self {
        Self { free: AtomicUsize::new(bytes) }
    }

    /// A part of it, of no bytes yet.
    pub(super) fn part(&'static self) -> Part {
        Part { of: self, bytes: 0 }
    }

    /// A part of so many bytes; none where they are not free.
    pub(super) fn take(&'static self, bytes: usize) -> Option<Part> {
        let mut part = self.part();
        part.grow(bytes).then_some(part)
    }
}

/// What one user has of it, until it is dropped.
#[derive(Debug)]
pub(super) struct Part {
    of: &'static Memory,
    bytes: usize,
}

impl Part {
    /// Takes more; whether it was free.
    pub(super) fn grow(&mut self, bytes: usize) -> bool {
        let less = |free: usize| free.checked_sub(bytes);
        let is_free = self.of.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok();
        self.bytes += if is_free { bytes } else { 0 };
        is_free
    }

    /// Gives some of it back.
    pub(super) fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.of.free.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_together_are_never_more_than_the_whole_and_come_back() {
        static ALL: Memory = Memory::new(10);
        let mut first = ALL.take(4).unwrap();
        let second = ALL.take(5).unwrap();
        assert!(ALL.take(2).is_none() && !first.grow(2) && first.grow(1));
        drop(second);
        assert!(first.grow(5) && ALL.take(1).is_none());
        first.shrink(3);
        assert!(ALL.take(3).is_some());
        drop(first);
        assert!(ALL.take(10).is_some());
    }
}
