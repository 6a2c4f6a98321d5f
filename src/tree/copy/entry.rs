//! Copying one entry that is no directory: a file, a symbolic link, a fifo, a socket, a device.
//!
//! What an entry is, its descriptor tells: the type that a directory names is a hint. Fifos and devices are never
//! opened but as a place (`O_PATH`), since to open one may wait for ever or rewind a tape; should one take a file's
//! name in that very moment, `O_NONBLOCK` lets the open return, and the descriptor tells.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::fcntl::OFlag;
use rustix::fs::{AtFlags, FileType, Mode, Stat, fstat, fsync, mknodat, readlinkat, statat, symlinkat, unlinkat};
use rustix::io::Errno;

use super::acl::is_list;
use super::data::Copied;
use super::directory::State;
use super::{Copy, Hand, Piece, Spot, Task, cannot_open, links};
use crate::tree::TreeError;
use crate::tree::attributes::{Attributes, set_xattrs, xattrs};
use crate::tree::walk;

/// How often an entry is looked at that is another thing each time.
const LOOKS: u32 = 8;
/// setuid and setgid: given when the data and the owner are right, for changing either drops them.
const SET_ID: u32 = 0o6000;

/// What came of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It is there.
    Copied,
    /// It vanished from the source.
    Gone,
}

impl<'a> Copy<'a> {
    /// Copies an entry; one that turns out to be a directory becomes a task.
    pub(super) fn entry(&self, spot: &Spot<'_>, hint: FileType, worker: &Hand<'a, '_, '_>) -> Result<(), TreeError> {
        let mut hint = hint;
        for _ in 0..LOOKS {
            let flags = if hint == FileType::RegularFile {
                OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | self.tree.of_files
            } else {
                OFlag::O_PATH
            };
            let source = match walk::open(spot.source(), walk::as_path(spot.name), flags, 0) {
                Ok(source) => source,
                Err(errno) if self.is_gone(errno) => return Ok(()),
                // A link, a socket, a device without a driver.
                Err(Errno::LOOP | Errno::NXIO | Errno::NODEV | Errno::INVAL) if hint == FileType::RegularFile => {
                    hint = FileType::Unknown;
                    continue;
                }
                Err(errno) => return Err(spot.failed(cannot_open(errno), errno)),
            };
            let stat = match fstat(&source) {
                Ok(stat) => stat,
                Err(errno) if self.is_gone(errno) => return Ok(()),
                Err(errno) => return Err(spot.failed("look at", errno)),
            };
            let kind = FileType::from_raw_mode(stat.st_mode);
            if kind == FileType::Directory {
                spot.directory.data.expect(1);
                let directory = spot.directory.below(spot.name.to_owned(), State::default());
                worker.push([Task { directory, piece: Piece::Enter }]);
                return Ok(());
            }
            if (kind == FileType::RegularFile) == (hint == FileType::RegularFile) {
                return self.with_links(spot, &source, &stat, worker);
            }
            hint = kind;
        }
        Err(spot.failed("find out what is", Errno::AGAIN))
    }

    /// Copies an entry, or makes one more name for the copy if it has several names.
    fn with_links(
        &self,
        spot: &Spot<'_>,
        source: &OwnedFd,
        stat: &Stat,
        worker: &Hand<'a, '_, '_>,
    ) -> Result<(), TreeError> {
        if stat.st_nlink < 2 {
            return self.one(spot, source, stat, worker).map(|_| ());
        }
        let inode = links::inode(spot, source, stat)?;
        let _turn = self.links.turn(&inode);
        if self.take_link(spot, &inode)? {
            self.progress.add(1, 0);
            return Ok(());
        }
        match self.one(spot, source, stat, worker)? {
            Outcome::Copied if !worker.is_stopped() => self.links.keep(spot, &inode),
            _ => Ok(()),
        }
    }

    fn take_link(&self, spot: &Spot<'_>, inode: &links::Inode) -> Result<bool, TreeError> {
        loop {
            match self.links.take(spot, inode)? {
                links::Taken::Yes => return Ok(true),
                links::Taken::No => return Ok(false),
                links::Taken::InTheWay => self.clear(spot)?,
            }
        }
    }

    fn one(
        &self,
        spot: &Spot<'_>,
        source: &OwnedFd,
        stat: &Stat,
        worker: &Hand<'a, '_, '_>,
    ) -> Result<Outcome, TreeError> {
        if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
            self.file(spot, source, stat, worker)
        } else {
            self.special(spot, source, stat)
        }
    }

    fn file(
        &self,
        spot: &Spot<'_>,
        source: &OwnedFd,
        stat: &Stat,
        worker: &Hand<'a, '_, '_>,
    ) -> Result<Outcome, TreeError> {
        let failed = |what| move |errno| spot.failed(what, errno);
        let attributes = Attributes::of(stat);
        let xattrs = match xattrs(source) {
            Ok(xattrs) => xattrs,
            Err(errno) if self.is_gone(errno) => return Ok(Outcome::Gone),
            Err(errno) => return Err(spot.failed("read the extended attributes of", errno)),
        };
        let Some((target, has)) = self.make_file(spot, stat)? else {
            self.progress.add(1, stat.st_size.unsigned_abs());
            return Ok(Outcome::Copied);
        };
        let copied = self.ways.copy(source.as_fd(), target.as_fd(), stat, self.progress, &|| worker.is_stopped());
        match copied {
            Ok(Copied::Cloned) => {}
            // On a mount that gives up, an error of the server is told here and nowhere else.
            Ok(Copied::Written) => fsync(&target).map_err(failed("write"))?,
            Ok(Copied::Stopped) => return Ok(Outcome::Copied),
            Ok(Copied::Gone) => {
                self.miss();
                return self.clear(spot).map(|()| Outcome::Gone);
            }
            Err((what, errno)) => return Err(spot.failed(what, errno)),
        }
        let is_new = spot.directory.data.is_new();
        for xattr in &xattrs {
            if !is_list(xattr) {
                set_xattrs(&target, std::slice::from_ref(xattr)).map_err(failed("set the extended attributes of"))?;
            } else if !(is_new && self.lists.is_plain(attributes.mode, false, xattr))
                && self
                    .lists
                    .lacks(&target, attributes.mode, false, xattr, is_new)
                    .map_err(failed("read the access control list of the copy of"))?
            {
                set_xattrs(&target, std::slice::from_ref(xattr)).map_err(failed("set the access control list of"))?;
            }
        }
        attributes.set(&target, &has).map_err(failed("set the attributes of"))?;
        self.progress.add(1, 0);
        Ok(Outcome::Copied)
    }

    /// Makes an empty file, with the right permissions at once. None if a complete copy is there already.
    fn make_file(&self, spot: &Spot<'_>, stat: &Stat) -> Result<Option<(OwnedFd, Stat)>, TreeError> {
        let create = |further: OFlag| {
            let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_NONBLOCK | further;
            let target = walk::open(spot.target(), walk::as_path(spot.name), flags, stat.st_mode & 0o7777 & !SET_ID)?;
            let has = fstat(&target)?;
            Ok((target, has))
        };
        // NFS makes a file exclusively with a round trip more, and in a directory of this run only a name that the
        // source's directory gave twice can be there.
        let made = create(if spot.directory.data.is_new() { OFlag::O_TRUNC } else { OFlag::O_EXCL });
        let made = match made {
            Err(Errno::EXIST | Errno::LOOP | Errno::ISDIR | Errno::NXIO) => {
                if has_copy(spot.target(), spot, stat)? {
                    return Ok(None);
                }
                self.clear(spot)?;
                create(OFlag::O_EXCL)
            }
            made => made,
        };
        made.map(Some).map_err(|errno| spot.failed("make", errno))
    }

    fn special(&self, spot: &Spot<'_>, source: &OwnedFd, stat: &Stat) -> Result<Outcome, TreeError> {
        let kind = FileType::from_raw_mode(stat.st_mode);
        let leads_to = match kind {
            FileType::Symlink => match readlinkat(source, c"", Vec::new()) {
                Ok(leads_to) => Some(leads_to),
                Err(errno) if self.is_gone(errno) => return Ok(Outcome::Gone),
                Err(errno) => return Err(spot.failed("read", errno)),
            },
            _ => None,
        };
        let create = || {
            if let Some(leads_to) = &leads_to {
                return symlinkat(leads_to, spot.target(), spot.name);
            }
            let mode = Mode::from_raw_mode(stat.st_mode & 0o7777 & !SET_ID);
            mknodat(spot.target(), spot.name, kind, mode, stat.st_rdev)
        };
        let made = match create() {
            Err(Errno::EXIST) => {
                if has_copy(spot.target(), spot, stat)? {
                    self.progress.add(1, 0);
                    return Ok(Outcome::Copied);
                }
                self.clear(spot)?;
                create()
            }
            made => made,
        };
        made.map_err(|errno| spot.failed("make", errno))?;
        let set = || {
            let has = statat(spot.target(), spot.name, AtFlags::SYMLINK_NOFOLLOW)?;
            Attributes::of(stat).set_at(spot.target(), spot.name, &has)
        };
        set().map_err(|errno| spot.failed("set the attributes of", errno))?;
        self.progress.add(1, 0);
        Ok(Outcome::Copied)
    }

    /// Makes way for an entry: removes what has its name in the target.
    pub(super) fn clear(&self, spot: &Spot<'_>) -> Result<(), TreeError> {
        match unlinkat(spot.target(), spot.name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::ISDIR | Errno::PERM) => self.links.discard(spot),
            Err(errno) => Err(spot.failed("remove an earlier copy of", errno)),
        }
    }
}

/// Whether what has the entry's name in the target is a complete copy: its times are set last.
fn has_copy(target: BorrowedFd<'_>, spot: &Spot<'_>, stat: &Stat) -> Result<bool, TreeError> {
    let has = statat(target, spot.name, AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|errno| spot.failed("look at an earlier copy of", errno))?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    Ok(FileType::from_raw_mode(has.st_mode) == FileType::from_raw_mode(stat.st_mode)
        && (!is_file || has.st_size == stat.st_size)
        && has.st_rdev == stat.st_rdev
        && (has.st_mtime, has.st_mtime_nsec) == (stat.st_mtime, stat.st_mtime_nsec))
}
