//! The content of one file: cloned by the server if it can, else copied by the server, else read and written.
//!
//! Holes stay holes. A clone keeps them; a server's copy fills them, so it is asked for the data between them only.
//! Where the blocks that a file has say that there are holes and nobody knows where (NFS before 4.2), the file is read
//! and what is nothing but zeroes is not written.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use rustix::fs::{AtFlags, SeekFrom, Stat, StatxFlags, copy_file_range, fsync, ftruncate, ioctl_ficlone, seek, statx};
use rustix::io::{Errno, pread, pwrite};

use crate::tree::Progress;
use crate::tree::space::{NoSpace, Space, Writing};

/// What the server copies at once: progress is told, and a stop heeded, in between. Each costs two round trips besides.
const PIECE: u64 = 128 * 1024 * 1024;
/// What is read and written at once.
const BUFFER: u64 = 256 * 1024;
/// In a file of this size it costs fewer round trips to read it than to ask where its holes are.
const SMALL: u64 = 64 * 1024;
/// So many zeroes in one place are a hole.
const BLOCK: usize = 4096;

const CLONES_UNKNOWN: u8 = 0;
const CLONES: u8 = 1;
const CLONES_NOT: u8 = 2;

/// The ways that work between the source's file system and the target's, as far as they were tried.
#[derive(Debug, Default)]
pub(in crate::tree) struct Ways {
    clones: AtomicU8,
    no_ranges: AtomicBool,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tree) enum Copied {
    /// All is on the server.
    Done,
    /// The source vanished meanwhile.
    Gone,
    /// It was to stop, and did.
    Stopped,
}

type Result<T> = std::result::Result<T, (&'static str, Errno)>;

/// What an error says of an entry for which there is no space.
pub(super) fn no_space(reason: NoSpace) -> (&'static str, Errno) {
    match reason {
        NoSpace::Bytes { .. } | NoSpace::Entries => ("find space for", Errno::NOSPC),
        NoSpace::Unknown(errno) => ("ask for the free space for", Errno::from_raw_os_error(errno as i32)),
    }
}

impl Ways {
    /// Copies what `source` holds, as `stat` tells it, into the empty file `target`.
    pub(in crate::tree) fn copy(
        &self,
        source: BorrowedFd<'_>,
        target: BorrowedFd<'_>,
        stat: &Stat,
        (space, progress): (&Space<'_>, &Progress),
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Copied> {
        let size = stat.st_size.unsigned_abs();
        let space = Writing::new(space);
        let content = Content { ways: self, source, target, space, progress, is_stopped };
        let copied = if size == 0 {
            Ok(Copied::Done)
        } else if self.clone(source, target)? {
            progress.add(0, size);
            Ok(Copied::Done)
        } else {
            content.copy(size, stat.st_blocks.unsigned_abs() * 512 < size)
        };
        match copied {
            Err((_, Errno::STALE)) if is_gone(source) => Ok(Copied::Gone),
            copied => copied,
        }
    }

    /// Whether the file was cloned. When the first try says that it is not to be had, no other is made.
    fn clone(&self, source: BorrowedFd<'_>, target: BorrowedFd<'_>) -> Result<bool> {
        if self.clones.load(Ordering::Relaxed) == CLONES_NOT {
            return Ok(false);
        }
        match ioctl_ficlone(target, source) {
            Ok(()) => {
                self.clones.store(CLONES, Ordering::Relaxed);
                Ok(true)
            }
            Err(Errno::OPNOTSUPP | Errno::XDEV | Errno::INVAL | Errno::NOTTY | Errno::NOSYS) => {
                // Where others were cloned it is this one that cannot be.
                let _ = self.clones.compare_exchange(CLONES_UNKNOWN, CLONES_NOT, Ordering::Relaxed, Ordering::Relaxed);
                Ok(false)
            }
            Err(Errno::PERM | Errno::TXTBSY) => Ok(false),
            Err(errno) => Err(("clone", errno)),
        }
    }
}

/// Whether a file is no more; an error of copying does not tell which of the two it means.
fn is_gone(source: BorrowedFd<'_>) -> bool {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    statx(source, c"", flags, StatxFlags::TYPE).is_err_and(|errno| errno == Errno::STALE)
}

struct Content<'a> {
    ways: &'a Ways,
    source: BorrowedFd<'a>,
    target: BorrowedFd<'a>,
    space: Writing<'a>,
    progress: &'a Progress,
    is_stopped: &'a dyn Fn() -> bool,
}

/// How far a copy came before it ended.
enum Reached {
    /// The end that was asked for, or the file's if that came first.
    End(u64),
    Stopped,
}

impl Content<'_> {
    fn copy(&self, size: u64, is_sparse: bool) -> Result<Copied> {
        let reached = match is_sparse {
            false => self.range(0, size)?,
            true if size <= SMALL => self.read_and_write(0, size, true)?,
            true => self.between_holes(size)?,
        };
        match reached {
            Reached::Stopped => Ok(Copied::Stopped),
            Reached::End(end) => {
                if is_sparse {
                    ftruncate(self.target, end).map_err(|errno| ("set the size of", errno))?;
                }
                self.flush().map(|()| Copied::Done)
            }
        }
    }

    /// On a mount that gives up, an error of the server is told here and nowhere else.
    fn flush(&self) -> Result<()> {
        fsync(self.target).map_err(|errno| ("write", errno))?;
        self.space.flushed();
        Ok(())
    }

    fn flush_much(&self) -> Result<()> {
        if self.space.is_much() { self.flush() } else { Ok(()) }
    }

    /// Copies the data between the holes.
    fn between_holes(&self, size: u64) -> Result<Reached> {
        let mut at = 0;
        while at < size {
            let data = match seek(self.source, SeekFrom::Data(at)) {
                Ok(data) => data,
                // Nothing but a hole to the end.
                Err(Errno::NXIO) => break,
                Err(Errno::INVAL | Errno::OPNOTSUPP) => return self.read_and_write(at, size, true),
                Err(errno) => return Err(("look for data in", errno)),
            };
            let hole = seek(self.source, SeekFrom::Hole(data)).map_err(|errno| ("look for holes in", errno))?;
            if data == 0 && hole >= size {
                // There are holes, but the file system cannot tell where.
                return self.read_and_write(0, size, true);
            }
            self.progress.add(0, data.min(size).saturating_sub(at));
            if let Reached::Stopped = self.range(data, hole.min(size))? {
                return Ok(Reached::Stopped);
            }
            at = hole;
        }
        self.progress.add(0, size.saturating_sub(at));
        Ok(Reached::End(size))
    }

    /// Lets the kernel copy, which lets the server copy if it can.
    fn range(&self, from: u64, to: u64) -> Result<Reached> {
        let mut at = from;
        while at < to {
            if (self.is_stopped)() {
                return Ok(Reached::Stopped);
            }
            if self.ways.no_ranges.load(Ordering::Relaxed) {
                return self.read_and_write(at, to, false);
            }
            let (mut read, mut written) = (at, at);
            let length = self.space.some_bytes((to - at).min(PIECE)).map_err(no_space)?;
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            match copy_file_range(self.source, Some(&mut read), self.target, Some(&mut written), length) {
                // The file was cut, or the file system cannot and does not say so: reading tells.
                Ok(0) | Err(Errno::PERM | Errno::TXTBSY) => return self.read_and_write(at, to, false),
                Ok(copied) => {
                    at += copied as u64;
                    self.progress.add(0, copied as u64);
                    self.flush_much()?;
                }
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::XDEV | Errno::INVAL | Errno::NOSYS) => {
                    self.ways.no_ranges.store(true, Ordering::Relaxed);
                }
                Err(errno) => return Err(("copy", errno)),
            }
        }
        Ok(Reached::End(to))
    }

    fn read_and_write(&self, from: u64, to: u64, keep_holes: bool) -> Result<Reached> {
        let mut buffer = vec![0; usize::try_from((to - from).min(BUFFER)).unwrap_or_default()];
        let mut at = from;
        while at < to {
            if (self.is_stopped)() {
                return Ok(Reached::Stopped);
            }
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::os::fd::AsFd;

    #[test]
    fn a_large_file_is_stopped_at_its_next_piece() {
        let (source, target) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        pwrite(&source, &vec![1; 8 * 256 * 1024], 0).unwrap();
        let stat = rustix::fs::fstat(&source).unwrap();
        let ways = Ways { clones: AtomicU8::new(CLONES_NOT), no_ranges: AtomicBool::new(true) };
        let looks = Cell::new(0);
        let is_stopped = || looks.replace(looks.get() + 1) == 3;
        let (space, progress) = (Space::new(target.as_fd()), Progress::default());
        let copied = ways.copy(source.as_fd(), target.as_fd(), &stat, (&space, &progress), &is_stopped);
        assert_eq!(copied, Ok(Copied::Stopped));
        assert!(progress.bytes() > 0 && progress.bytes() < 4 * BUFFER);
    }
}
