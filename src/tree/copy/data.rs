//! The content of one file: cloned by the server if it can, else copied by the server, else read and written here.
//!
//! Holes stay holes. A clone keeps them; a server's copy fills them, so it is asked for the data between them only.
//! Where the blocks that a file has say that there are holes and nobody knows where, the file is read and what is
//! nothing but zeroes is not written. A file system that compresses has fewer blocks for a file without holes, too: a
//! server that can tell where holes are, and names none, is believed.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::fs::{SeekFrom, Stat, copy_file_range, ioctl_ficlone, seek};
use rustix::io::Errno;

use super::file_systems::FileSystems;
use super::through::{self, Reached, Result, Through, no_space};
use crate::tree::Progress;
use crate::tree::space::Space;
use crate::tree::walk::look_again;

/// What the server copies at once: progress is told, and a stop heeded, in between. Each costs two round trips besides.
const PIECE: u64 = 128 * 1024 * 1024;
/// In a file of this size it costs fewer round trips to read it than to ask where its holes are.
const SMALL: u64 = 64 * 1024;

/// Whether something works, which the first try shows.
#[derive(Debug, Default)]
struct Tried(AtomicU8);

const WORKS: u8 = 1;
const FAILS: u8 = 2;

impl Tried {
    fn known(works: bool) -> Self {
        Self(AtomicU8::new(if works { WORKS } else { FAILS }))
    }

    /// None: nothing was tried.
    fn works(&self) -> Option<bool> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            state => Some(state == WORKS),
        }
    }

    /// It works no more, or never did.
    fn fail(&self) {
        self.0.store(FAILS, Ordering::Relaxed);
    }

    /// Notes what came of a try; the first one counts.
    fn note(&self, works: bool) {
        let state = if works { WORKS } else { FAILS };
        let _ = self.0.compare_exchange(0, state, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// The ways that work between the source's file system and the target's, as far as they were tried.
#[derive(Debug, Default)]
pub(in crate::tree) struct Ways {
    clones: Tried,
    /// copy_file_range(2).
    ranges: Tried,
    /// It is the server that copies then. The kernel does it here where the server cannot, and does not say so.
    copies: Tried,
    /// The target's server tells where the holes of a file are.
    tells_holes: Tried,
    /// Files of the source are opened to be read past this host's cache.
    is_direct: bool,
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

impl Ways {
    /// Those between two file systems, as far as their versions of NFS tell.
    pub(super) fn between(file_systems: FileSystems<'_>) -> Self {
        let is_direct = !file_systems.of_files().is_empty();
        let known = || if file_systems.may_copy() { Tried::default() } else { Tried::known(false) };
        Self { clones: known(), ranges: Tried::default(), copies: known(), tells_holes: known(), is_direct }
    }

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
        let through = Through::new([source, target], stat, self.is_direct, (space, progress), is_stopped);
        let content = Content { ways: self, through };
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
        if self.clones.works() == Some(false) {
            return Ok(false);
        }
        match ioctl_ficlone(target, source) {
            Ok(()) => {
                self.clones.note(true);
                Ok(true)
            }
            Err(Errno::OPNOTSUPP | Errno::XDEV | Errno::INVAL | Errno::NOTTY | Errno::NOSYS) => {
                // Where others were cloned it is this one that cannot be.
                self.clones.note(false);
                Ok(false)
            }
            // Near a limit a clone is refused although there is space for it: a copy tells.
            Err(Errno::PERM | Errno::TXTBSY | Errno::NOSPC | Errno::DQUOT) => Ok(false),
            Err(errno) => Err(("clone", errno)),
        }
    }
}

/// Whether a file is no more; an error of copying does not tell which of the two it means.
fn is_gone(source: BorrowedFd<'_>) -> bool {
    look_again(source).is_err_and(|errno| errno == Errno::STALE)
}

/// How many bytes this thread has put into this host's cache to be written, as the kernel counts them: what a server
/// copies is not among them. None where it does not count.
fn dirtied() -> Option<u64> {
    let counts = std::fs::read_to_string("/proc/thread-self/io").ok()?;
    counts.lines().find_map(|line| line.strip_prefix("write_bytes: ")?.parse().ok())
}

struct Content<'a> {
    ways: &'a Ways,
    through: Through<'a>,
}

impl Content<'_> {
    fn copy(&self, size: u64, is_sparse: bool) -> Result<Copied> {
        let reached = match is_sparse {
            false => self.range(0, size)?,
            true if size <= SMALL => self.through.read_and_write(0, size, true)?,
            true => self.between_holes(size)?,
        };
        match reached {
            Reached::Stopped => Ok(Copied::Stopped),
            Reached::End(end) => {
                let length = self.through.length(end)?;
                if is_sparse || length < end {
                    self.through.set_size(length)?;
                }
                self.through.flush().map(|()| Copied::Done)
            }
        }
    }

    /// Copies the data between the holes.
    fn between_holes(&self, size: u64) -> Result<Reached> {
        let mut at = 0;
        while at < size {
            if self.ways.tells_holes.works() == Some(false) {
                return self.through.read_and_write(at, size, true);
            }
            let data = match seek(self.through.source, SeekFrom::Data(at)) {
                Ok(data) => data,
                // Nothing but a hole to the end.
                Err(Errno::NXIO) => break,
                Err(Errno::INVAL | Errno::OPNOTSUPP) => return self.through.read_and_write(at, size, true),
                Err(errno) => return Err(("look for data in", errno)),
            };
            let hole = seek(self.through.source, SeekFrom::Hole(data)).map_err(|errno| ("look for holes in", errno))?;
            if data == 0 && hole >= size && !self.tells_holes(size)? {
                // There are holes, but the file system cannot tell where.
                return self.through.read_and_write(0, size, true);
            }
            self.through.progress.add(0, data.min(size).saturating_sub(at));
            if let Reached::Stopped = self.range(data, hole.min(size))? {
                return Ok(Reached::Stopped);
            }
            at = hole;
        }
        self.through.progress.add(0, size.saturating_sub(at));
        Ok(Reached::End(size))
    }

    /// Whether the target's server knows a hole: without that, the kernel answers that there is none. The target itself
    /// shows it, which is nothing but a hole once it has its size.
    fn tells_holes(&self, size: u64) -> Result<bool> {
        if let Some(tells) = self.ways.tells_holes.works() {
            return Ok(tells);
        }
        self.through.set_size(size)?;
        let tells = seek(self.through.target, SeekFrom::Data(0)) == Err(Errno::NXIO);
        self.ways.tells_holes.note(tells);
        Ok(tells)
    }

    /// Lets the kernel copy, which lets the server copy if it can.
    fn range(&self, from: u64, to: u64) -> Result<Reached> {
        let through = &self.through;
        let mut at = from;
        while at < to {
            if (through.is_stopped)() {
                return Ok(Reached::Stopped);
            }
            if self.ways.ranges.works() == Some(false) {
                return through.read_and_write(at, to, false);
            }
            let by_server = self.ways.copies.works();
            let (is_try, is_here) = (by_server.is_none() && to - at > SMALL, by_server == Some(false));
            let most = if is_try || is_here { through::PIECE } else { PIECE };
            let length = through.space.some_bytes((to - at).min(most)).map_err(no_space)?;
            if is_here {
                through.ask_ahead(at, to)?;
            }
            let before = if is_try { dirtied() } else { None };
            match self.copy_range(at, length) {
                // The file was cut, or the file system cannot and does not say so: reading tells.
                Ok(0) | Err(Errno::PERM | Errno::TXTBSY) => return through.read_and_write(at, to, false),
                Ok(copied) => {
                    self.ways.ranges.note(true);
                    if is_try {
                        self.ways.copies.note(before.is_none() || before == dirtied());
                    }
                    if is_here {
                        through.send(at, copied)?;
                    }
                    at += copied;
                    through.progress.add(0, copied);
                    through.flush_much()?;
                }
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::XDEV | Errno::INVAL | Errno::NOSYS) => self.ways.ranges.fail(),
                Err(errno) => return Err(("copy", errno)),
            }
        }
        Ok(Reached::End(to))
    }

    fn copy_range(&self, at: u64, length: u64) -> rustix::io::Result<u64> {
        let (mut read, mut written) = (at, at);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let Through { source, target, .. } = self.through;
        copy_file_range(source, Some(&mut read), target, Some(&mut written), length).map(|copied| copied as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::io::pwrite;
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_large_file_is_stopped_at_its_next_piece() {
        let (source, target) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        pwrite(&source, &vec![1; 8 << 20], 0).unwrap();
        let stat = rustix::fs::fstat(&source).unwrap();
        let ways = Ways { clones: Tried::known(false), ranges: Tried::known(false), ..Ways::default() };
        let looks = Cell::new(0);
        let is_stopped = || looks.replace(looks.get() + 1) == 3;
        let (space, progress) = (Space::new(target.as_fd()), Progress::default());
        let copied = ways.copy(source.as_fd(), target.as_fd(), &stat, (&space, &progress), &is_stopped);
        assert_eq!(copied, Ok(Copied::Stopped));
        assert!(progress.bytes() > 0 && progress.bytes() < 8 << 20);
    }
}
