//! Copying one entry that is no directory: a file, a symbolic link, a fifo, a socket, a device.
//!
//! What an entry is, its descriptor tells: the type that a directory names is a hint. Fifos and devices are never
//! opened but as a place (`O_PATH`), since to open one may wait for ever or rewind a tape; should one take a file's
//! name in that very moment, `O_NONBLOCK` lets the open return, and the descriptor tells.

use std::os::fd::{AsFd, OwnedFd};

use nix::fcntl::OFlag;
use rustix::fs::{AtFlags, FileType, Mode, Stat, fstat, mknodat, readlinkat, statat, symlinkat, unlinkat};
use rustix::io::Errno;

use super::acl::Given;
use super::data::Copied;
use super::directory::{Entered, State};
use super::earlier::{self, is_copy};
use super::links::{Inode, Taken};
use super::through::no_space;
use super::vanished::{LACKS, is_gone};
use super::{CONTINUE, Copy, Hand, Piece, Spot, Task, cannot_open, links};
use crate::tree::access_list;
use crate::tree::attributes::{Attributes, Xattr, is_user, replace_xattrs, set_xattrs, xattrs};
use crate::tree::{SourceKind, TreeError, walk};

/// How often an entry is looked at that is another thing each time.
const LOOKS: u32 = 8;
/// setuid and setgid: given when the data and the owner are right, for changing either drops them.
const SET_ID: u32 = 0o6000;

/// What came of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// It was copied.
    Copied,
    /// Its name is there already: it was linked, or the source's directory gave it twice.
    There,
    /// It vanished from the source.
    Gone(Errno),
}

impl<'a> Copy<'a> {
    /// Copies an entry; one that turns out to be a directory becomes a task. `listed` is what its directory says of it.
    pub(super) fn entry(&self, spot: &Spot<'_>, listed: FileType, worker: &Hand<'a, '_, '_>) -> Result<(), TreeError> {
        let within = spot.directory.data.entered().map_or(0, Entered::copy);
        let _turn = self.names.take((within, spot.name.to_owned()));
        let mut hint = listed;
        let mut gone = 0;
        for _ in 0..LOOKS {
            let outcome = match self.open_entry(spot, hint) {
                Ok((source, stat)) => {
                    let kind = FileType::from_raw_mode(stat.st_mode);
                    if self.kind == SourceKind::Frozen && listed != FileType::Unknown && kind != listed {
                        return Err(spot.failed(LACKS, Errno::STALE));
                    }
                    if kind == FileType::Directory {
                        spot.directory.data.expect(1);
                        let directory = spot.directory.below(spot.name.to_owned(), State::default());
                        worker.push([Task { directory, piece: Piece::Enter }]);
                        return Ok(());
                    }
                    if (kind == FileType::RegularFile) != (hint == FileType::RegularFile) {
                        hint = kind;
                        continue;
                    }
                    self.with_links(spot, &source, &stat, worker)?
                }
                // A link, a socket, a device without a driver.
                Err((_, Errno::LOOP | Errno::NXIO | Errno::NODEV | Errno::INVAL)) if hint == FileType::RegularFile => {
                    hint = FileType::Unknown;
                    continue;
                }
                Err((_, errno)) if is_gone(errno) => Outcome::Gone(errno),
                Err((what, errno)) => return Err(spot.failed(what, errno)),
            };
            match outcome {
                Outcome::Gone(errno) if self.looks_again(spot, errno, gone)? => gone += 1,
                _ => return Ok(()),
            }
        }
        Err(spot.failed("find out what is", Errno::AGAIN))
    }

    /// Opens an entry of the source: to read it if it is taken for a file, else as a place only.
    fn open_entry(&self, spot: &Spot<'_>, hint: FileType) -> Result<(OwnedFd, Stat), (&'static str, Errno)> {
        let flags = if hint == FileType::RegularFile {
            OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | self.tree.of_files
        } else {
            OFlag::O_PATH
        };
        let source = walk::open(spot.source(), walk::as_path(spot.name), flags, 0)
            .map_err(|errno| (cannot_open(errno), errno))?;
        let stat = fstat(&source).map_err(|errno| ("look at", errno))?;
        Ok((source, stat))
    }

    /// Copies an entry, or makes one more name for the copy if it has several names.
    fn with_links(
        &self,
        spot: &Spot<'_>,
        source: &OwnedFd,
        stat: &Stat,
        worker: &Hand<'a, '_, '_>,
    ) -> Result<Outcome, TreeError> {
        if stat.st_nlink < 2 {
            return self.one(spot, source, stat, None, worker);
        }
        let inode = links::inode(spot, source, stat)?;
        let _turn = self.links.turn(&inode);
        if self.link(spot, &inode)? {
            return Ok(Outcome::There);
        }
        let outcome = self.one(spot, source, stat, Some(&inode), worker)?;
        if outcome == Outcome::Copied {
            self.links.keep(spot, &inode)?;
        }
        Ok(outcome)
    }

    /// Makes an entry one more name of its file's copy. False if there is no copy yet.
    fn link(&self, spot: &Spot<'_>, inode: &Inode) -> Result<bool, TreeError> {
        let taken = self.links.take(spot, inode)?;
        self.progress.add(u64::from(taken == Taken::Yes), 0);
        Ok(taken != Taken::No)
    }

    fn one(
        &self,
        spot: &Spot<'_>,
        source: &OwnedFd,
        stat: &Stat,
        inode: Option<&Inode>,
        worker: &Hand<'a, '_, '_>,
    ) -> Result<Outcome, TreeError> {
        self.take_space(spot)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
            self.file(spot, source, stat, inode, worker)
        } else {
            self.special(spot, source, stat)
        }
    }

    /// Takes space for an entry that is about to be made.
    pub(super) fn take_space(&self, spot: &Spot<'_>) -> Result<(), TreeError> {
        self.space.entry().map_err(|reason| {
            let (what, errno) = no_space(reason);
            spot.failed(what, errno)
        })
    }

    fn file(
        &self,
        spot: &Spot<'_>,
        source: &OwnedFd,
        stat: &Stat,
        inode: Option<&Inode>,
        worker: &Hand<'a, '_, '_>,
    ) -> Result<Outcome, TreeError> {
        let xattrs = match xattrs(source) {
            Ok(xattrs) => xattrs,
            Err(errno) if is_gone(errno) => return Ok(Outcome::Gone(errno)),
            Err(errno) => return Err(spot.failed("read the extended attributes of", errno)),
        };
        if let Some((target, has)) = if inode.is_none() { earlier_copy(spot, stat)? } else { None } {
            self.set_attributes(spot, &target, (stat, &xattrs), has, false)?;
            self.progress.add(1, stat.st_size.unsigned_abs());
            return Ok(Outcome::Copied);
        }
        let Some((target, has)) = make_file(spot, stat)? else { return Ok(Outcome::There) };
        let with = (&self.space, self.progress);
        let copied = self.ways.copy(source.as_fd(), target.as_fd(), stat, with, &|| self.is_stopped(worker));
        match copied {
            Ok(Copied::Done) => {}
            Ok(Copied::Stopped) => return Err(spot.failed(CONTINUE, Errno::CANCELED)),
            Ok(Copied::Gone) => {
                return match unlinkat(spot.target(), spot.name, AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => Ok(Outcome::Gone(Errno::STALE)),
                    Err(errno) => Err(spot.failed("remove the part that was copied of", errno)),
                };
            }
            Err((what, errno)) => return Err(spot.failed(what, errno)),
        }
        self.set_attributes(spot, &target, (stat, &xattrs), has, true)?;
        self.progress.add(1, 0);
        Ok(Outcome::Copied)
    }

    /// Gives a copy, which has the attributes `has`, those of its source. One that is not new may have others.
    fn set_attributes(
        &self,
        spot: &Spot<'_>,
        target: &OwnedFd,
        (stat, xattrs): (&Stat, &[Xattr]),
        mut has: Stat,
        is_new: bool,
    ) -> Result<(), TreeError> {
        let failed = |what| move |errno| spot.failed(what, errno);
        let mut attributes = Attributes::of(stat);
        let mode = attributes.mode;
        if !is_new {
            replace_xattrs(target, xattrs).map_err(failed("set the extended attributes of"))?;
        }
        for xattr in xattrs {
            if is_user(xattr) {
                if is_new {
                    set_xattrs(target, [xattr]).map_err(failed("set the extended attributes of"))?;
                }
            } else if !(is_new && self.file_system.is_plain(mode, false, xattr)) {
                let given = self.file_system.give(target, mode, false, xattr, is_new);
                match given.map_err(failed("set the access control list of"))? {
                    // A list says nothing of setuid and setgid, and may drop them.
                    Given::Set if !is_new => has = fstat(target).map_err(failed("look at the copy of"))?,
                    Given::Had | Given::Set => {}
                    Given::Refused => attributes.mode = access_list::give_up(attributes.mode, xattr, self.progress),
                }
            }
        }
        attributes.set(target, &has).map_err(failed("set the attributes of"))
    }

    fn special(&self, spot: &Spot<'_>, source: &OwnedFd, stat: &Stat) -> Result<Outcome, TreeError> {
        let kind = FileType::from_raw_mode(stat.st_mode);
        let leads_to = match kind {
            FileType::Symlink => match readlinkat(source, c"", Vec::new()) {
                Ok(leads_to) => Some(leads_to),
                Err(errno) if is_gone(errno) => return Ok(Outcome::Gone(errno)),
                Err(errno) => return Err(spot.failed("read", errno)),
            },
            _ => None,
        };
        let failed = |what| move |errno| spot.failed(what, errno);
        let mut attributes = Attributes::of(stat);
        if kind != FileType::Symlink {
            match access_list::mode_of_special(source, attributes.mode, self.progress) {
                Ok(mode) => attributes.mode = mode,
                Err(errno) if is_gone(errno) => return Ok(Outcome::Gone(errno)),
                Err(errno) => return Err(spot.failed("read the access control list of", errno)),
            }
        }
        let create = || {
            if let Some(leads_to) = &leads_to {
                return symlinkat(leads_to, spot.target(), spot.name);
            }
            let mode = Mode::from_raw_mode(attributes.mode & !SET_ID);
            mknodat(spot.target(), spot.name, kind, mode, stat.st_rdev)
        };
        let mut made = create();
        let is_new = made != Err(Errno::EXIST);
        if !is_new {
            // The source's directory gave the name twice, or the server was asked twice.
            match unlinkat(spot.target(), spot.name, AtFlags::empty()) {
                Err(Errno::ISDIR | Errno::PERM) => return Ok(Outcome::There),
                removed => removed.map_err(failed("remove a first copy of"))?,
            }
            made = create();
        }
        made.map_err(failed("make"))?;
        let set = || {
            let has = statat(spot.target(), spot.name, AtFlags::SYMLINK_NOFOLLOW)?;
            attributes.set_at(spot.target(), spot.name, &has)
        };
        set().map_err(failed("set the attributes of"))?;
        self.progress.add(u64::from(is_new), 0);
        Ok(Outcome::Copied)
    }
}

/// Makes an empty file, with the right permissions at once. None if its name is there already.
fn make_file(spot: &Spot<'_>, stat: &Stat) -> Result<Option<(OwnedFd, Stat)>, TreeError> {
    // NFS makes a file exclusively with a round trip more. Only a name that the source's directory gave twice can be
    // there: it is not cut off, for it is complete, and may be a file with several names.
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let permissions = stat.st_mode & 0o7777 & !SET_ID;
    let made = walk::open(spot.target(), walk::as_path(spot.name), flags, permissions).and_then(|target| {
        let has = fstat(&target)?;
        Ok((target, has))
    });
    match made {
        Ok((target, has)) => {
            let is_file = FileType::from_raw_mode(has.st_mode) == FileType::RegularFile;
            Ok((is_file && has.st_size == 0 && has.st_nlink == 1).then_some((target, has)))
        }
        Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO) => Ok(None),
        Err(errno) => Err(spot.failed("make", errno)),
    }
}

/// Takes a file's complete copy from an earlier attempt's tree to its place.
fn earlier_copy(spot: &Spot<'_>, stat: &Stat) -> Result<Option<(OwnedFd, Stat)>, TreeError> {
    let Some(earlier) = &spot.open.earlier else { return Ok(None) };
    // With a further name it would be one file with another entry.
    let is_complete = |has: &Stat| has.st_nlink == 1 && is_copy(has, stat);
    earlier::take(earlier.as_fd(), spot.target(), spot.name, is_complete)
        .map_err(|errno| spot.failed("remove an incomplete copy of", errno))
}
