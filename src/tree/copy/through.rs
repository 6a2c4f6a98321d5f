//! The content of a file by way of this host, where no server copies it.
//!
//! It goes through the kernel's cache, which asks a server for much at once. What comes next is asked for ahead of its
//! turn, and what is written is sent at once, so that the server reads and writes at the same time. How much of a file
//! is on its way is bounded in both directions, and so is what this process holds: the kernel moves the bytes from one
//! file to the other itself, but for a file whose holes are looked for, or that is on another mount than its copy.

use std::cell::Cell;
use std::num::NonZeroU64;
use std::os::fd::BorrowedFd;

use rustix::fs::{Advice, OFlags, Stat, fadvise, fcntl_getfl, fcntl_setfl, fsync, ftruncate};
use rustix::io::{Errno, pread, pwrite};

use crate::reason::rustix_errno;
use crate::tree::Progress;
use crate::tree::memory::TREES;
use crate::tree::space::{NoSpace, Space, Writing};
use crate::tree::walk::look_again;

/// What is copied at once, in bytes.
pub(super) const PIECE: u64 = 1024 * 1024;
/// The buffer for it, and the one where trees have no memory left, or a file is not larger.
const BUFFER: usize = 1024 * 1024;
const SMALL_BUFFER: usize = 64 * 1024;
/// So much of a file is asked for before its turn, in bytes. Not of one that a single call gets.
const AHEAD: u64 = 16 * 1024 * 1024;
const SMALL: u64 = 64 * 1024;
/// So much is written before it is sent, in bytes.
const SENT_AT_ONCE: u64 = 16 * 1024 * 1024;
/// What the kernel asks a server for by one advice, in bytes: at most what the server gives at once, which is the
/// file's preferred size for reading, and at least this.
const LEAST_ADVICE: u64 = 128 * 1024;
/// So many zeroes in one place are a hole.
const BLOCK: usize = 4096;

/// Two open files, of which one is copied to the other.
pub(super) struct Through<'a> {
    pub(super) source: BorrowedFd<'a>,
    pub(super) target: BorrowedFd<'a>,
    pub(super) space: Writing<'a>,
    pub(super) progress: &'a Progress,
    pub(super) is_stopped: &'a dyn Fn() -> bool,
    /// Whether the source is read past the cache: it was opened so (`O_DIRECT`).
    is_direct: Cell<bool>,
    size: u64,
    /// What one advice asks for.
    step: u64,
    /// So far it was asked ahead.
    asked: Cell<u64>,
    /// What was written and not sent yet: from where, and up to where.
    sent: Cell<(u64, u64)>,
}

/// How far a copy came before it ended.
pub(super) enum Reached {
    /// The end that was asked for, or the file's if that came first.
    End(u64),
    Stopped,
}

pub(super) type Result<T> = std::result::Result<T, (&'static str, Errno)>;

/// What an error says of an entry for which there is no space.
pub(super) fn no_space(reason: NoSpace) -> (&'static str, Errno) {
    match reason {
        NoSpace::Bytes { .. } | NoSpace::Entries => ("find space for", Errno::NOSPC),
        NoSpace::Unknown(errno) => ("ask for the free space for", rustix_errno(errno)),
    }
}

impl<'a> Through<'a> {
    /// `stat` is the source's.
    pub(super) fn new(
        [source, target]: [BorrowedFd<'a>; 2],
        stat: &Stat,
        is_direct: bool,
        (space, progress): (&'a Space<'a>, &'a Progress),
        is_stopped: &'a dyn Fn() -> bool,
    ) -> Self {
        Self {
            source,
            target,
            space: Writing::new(space),
            progress,
            is_stopped,
            is_direct: Cell::new(is_direct),
            size: stat.st_size.unsigned_abs(),
            step: stat.st_blksize.unsigned_abs().clamp(LEAST_ADVICE, PIECE),
            asked: Cell::new(0),
            sent: Cell::default(),
        }
    }

    /// Asks the source's server for what comes at a place and soon after it, up to `to`.
    pub(super) fn ask_ahead(&self, at: u64, to: u64) -> Result<()> {
        if self.size <= SMALL {
            return Ok(());
        }
        if self.is_direct.replace(false) {
            let flags = fcntl_getfl(self.source).and_then(|has| fcntl_setfl(self.source, has - OFlags::DIRECT));
            flags.map_err(|errno| ("read ahead in", errno))?;
        }
        let mut from = self.asked.get().max(at);
        let end = (at + AHEAD).min(to);
        while from < end {
            let step = self.step.min(end - from);
            advise(self.source, from, step, Advice::WillNeed)?;
            from += step;
        }
        self.asked.set(from);
        Ok(())
    }

    /// Sends what was written to a part of the target, without waiting for it: much at a time, for each time the kernel
    /// looks through all of that.
    pub(super) fn send(&self, at: u64, length: u64) -> Result<()> {
        let sent = self.sent.get();
        let from = if (sent.0..=sent.1).contains(&at) { sent.0 } else { at };
        let end = at + length;
        if end - from < SENT_AT_ONCE {
            self.sent.set((from, end));
            return Ok(());
        }
        self.sent.set((end, end));
        // The pages that this is to drop are written first: here they all are, and stay.
        advise(self.target, from, end - from, Advice::DontNeed)
    }

    /// How long a copy is that came to `end`. Of a file that was cut meanwhile, the cache shows zeroes behind its end.
    pub(super) fn length(&self, end: u64) -> Result<u64> {
        if self.asked.get() == 0 {
            return Ok(end);
        }
        let now = look_again(self.source).map_err(|errno| ("look again at", errno))?;
        Ok(end.min(now.stx_size))
    }

    /// Copies what is between two places in the file. With `keep_holes`, what is nothing but zeroes is not written.
    pub(super) fn read_and_write(&self, from: u64, to: u64, keep_holes: bool) -> Result<Reached> {
        // Held as long as the buffer.
        let memory = if self.size > SMALL { TREES.take(BUFFER) } else { None };
        let most = if memory.is_some() { BUFFER } else { SMALL_BUFFER };
        let mut buffer = vec![0; usize::try_from(to - from).map_or(most, |length| length.min(most))];
        let mut at = from;
        while at < to {
            if (self.is_stopped)() {
                return Ok(Reached::Stopped);
            }
            self.ask_ahead(at, to)?;
            let length = usize::try_from(to - at).map_or(buffer.len(), |left| left.min(buffer.len()));
            let read = match pread(self.source, &mut buffer[..length], at) {
                Ok(0) => break,
                Ok(read) => read,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(("read", errno)),
            };
            let data = &buffer[..read];
            if keep_holes {
                self.write_data(data, at)?;
            } else {
                self.write(data, at)?;
            }
            self.send(at, read as u64)?;
            at += read as u64;
            self.progress.add(0, read as u64);
            self.flush_much()?;
        }
        Ok(Reached::End(at))
    }

    /// Writes what is not nothing but zeroes.
    fn write_data(&self, data: &[u8], at: u64) -> Result<()> {
        let mut begin = None;
        for (number, block) in data.chunks(BLOCK).enumerate() {
            let is_hole = block.iter().all(|&byte| byte == 0);
            match (begin, is_hole) {
                (None, false) => begin = Some(number * BLOCK),
                (Some(first), true) => {
                    self.write(&data[first..number * BLOCK], at + first as u64)?;
                    begin = None;
                }
                _ => {}
            }
        }
        begin.map_or(Ok(()), |first| self.write(&data[first..], at + first as u64))
    }

    fn write(&self, data: &[u8], at: u64) -> Result<()> {
        self.space.bytes(data.len() as u64).map_err(no_space)?;
        let mut written = 0;
        while written < data.len() {
            match pwrite(self.target, &data[written..], at + written as u64) {
                Ok(0) => return Err(("write", Errno::IO)),
                Ok(more) => written += more,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(("write", errno)),
            }
        }
        Ok(())
    }

    /// On a mount that gives up, an error of the server is told here and nowhere else.
    pub(super) fn flush(&self) -> Result<()> {
        fsync(self.target).map_err(|errno| ("write", errno))?;
        self.space.flushed();
        Ok(())
    }

    pub(super) fn flush_much(&self) -> Result<()> {
        if self.space.is_much() { self.flush() } else { Ok(()) }
    }

    pub(super) fn set_size(&self, size: u64) -> Result<()> {
        ftruncate(self.target, size).map_err(|errno| ("set the size of", errno))
    }
}

fn advise(file: BorrowedFd<'_>, at: u64, length: u64, advice: Advice) -> Result<()> {
    fadvise(file, at, NonZeroU64::new(length), advice).map_err(|errno| ("read ahead or write behind in", errno))
}
