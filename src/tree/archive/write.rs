//! From a tree to an archive.
//!
//! The tree is walked depth first, each directory before what is in it. A directory is read piece by piece as the work
//! goes on, so that one with a million names takes no more memory than one with a hundred. The one thing that grows
//! with the tree is the table of hard links (links.rs).
//!
//! The tree may change meanwhile. What vanishes before its turn is left out and counted, once the server was asked for
//! it again; the tree's root may not vanish. A file is archived with the size that it had when it was opened: cut if it
//! grows, filled up with zeroes if it shrinks. One that is removed while it is read is filled up too, and counted; if
//! another file has its name by then, that one is archived as well, and takes its place when the archive is read.

use std::ffi::{CStr, CString, OsStr};
use std::io::{self, BufWriter, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use rustix::fs::{AtFlags, FileType, Stat, StatxFlags, fstat, readlinkat, statat, statx};
use tar::EntryType;
use zstd::zstd_safe::CParameter;

use super::chain::Chain;
use super::head::Head;
use super::link_table::{Identity, Links, Name};
use super::listing::{self, Listing, is_gone, is_lost, is_there};
use super::sparse::{self, Piece};
use super::{ArchiveError, At as _, BLOCK, CHUNK, DEEPEST, LONGEST_EXTENSION, Reason, check, padding};
use crate::beneath;
use crate::tree::access_list;
use crate::tree::attributes::xattrs;
use crate::tree::memory::TREES;
use crate::tree::walk::look_again;
use crate::tree::{Progress, is_own};

const LEVEL: i32 = 3;
/// Threads that compress, beside the one that reads.
const WORKERS: u32 = 2;
/// What each of them takes at a time, in bytes: a few times as much is held for it.
const SHARE: u32 = 2 * 1024 * 1024;

/// Archives all that is in the directory `source`, and its own attributes, as one `.tar.zst`. Gives the archive's size
/// in bytes. It is not synced: that is for who opened `output`. `own` is the inode number of the driver's own folder on
/// the share where the archive is kept: inside of `source` it is left out, for it holds this very archive.
///
/// # Errors
/// [`ArchiveError::Tree`] for what could not be read or written: ESTALE or ENOENT if `source` itself is gone, ECANCELED
/// if `progress` was stopped. [`ArchiveError::Unsupported`] for what could not be restored again.
pub fn write(
    source: impl AsFd,
    own: Option<u64>,
    output: impl Write,
    progress: &Progress,
) -> Result<u64, ArchiveError> {
    let mut encoder = zstd::Encoder::new(Counted { inner: output, bytes: 0 }, LEVEL).at(WRITE, b"")?;
    encoder.include_checksum(true).at(WRITE, b"")?;
    encoder.multithread(WORKERS).at(WRITE, b"")?;
    encoder.set_parameter(CParameter::JobSize(SHARE)).at(WRITE, b"")?;
    let output = write_plain(source, own, BufWriter::with_capacity(CHUNK, encoder), progress)?;
    let encoder = output.into_inner().map_err(io::IntoInnerError::into_error).at(WRITE, b"")?;
    let mut counted = encoder.finish().at(WRITE, b"")?;
    counted.flush().at(WRITE, b"")?;
    Ok(counted.bytes)
}

/// The same without compression and in small pieces; gives `output` back.
pub(super) fn write_plain<W: Write>(
    source: impl AsFd,
    own: Option<u64>,
    output: W,
    progress: &Progress,
) -> Result<W, ArchiveError> {
    let links = Links::new(&TREES);
    let mut archive = Archive { output, own, links, file_system: None, buffer: vec![0; CHUNK], progress };
    let mut chain = Chain::new(source, Listing::default()).at("open", b"")?;
    archive.root(&mut chain)?;
    let mut names = Vec::with_capacity(listing::NAMES);
    loop {
        match archive.next(&mut chain, &mut names)? {
            Some(name) => archive.entry(&mut chain, &name)?,
            None if chain.leave().is_none() => break,
            None => {}
        }
    }
    // Of a tree that is lost as a whole the server says of each entry that it is gone.
    let root = look_again(chain.here().at("open", b"")?).at("look at", b"")?;
    if root.stx_nlink == 0 {
        return Err(ArchiveError::tree("look at", b"", Errno::ESTALE));
    }
    archive.put(&[0; 2 * BLOCK])?;
    Ok(archive.output)
}

const WRITE: &str = "write the archive of";
const CONTINUE: &str = "continue archiving";
/// How often an entry is looked up that is gone, or another one, each time.
const LOOKS: u32 = 3;

struct Counted<W> {
    inner: W,
    bytes: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

struct Archive<'a, W: Write> {
    output: W,
    /// The driver's own folder.
    own: Option<u64>,
    links: Links,
    /// The device of the root.
    file_system: Option<u64>,
    buffer: Vec<u8>,
    progress: &'a Progress,
}

impl<W: Write> Archive<'_, W> {
    fn root(&mut self, chain: &mut Chain<Listing>) -> Result<(), ArchiveError> {
        let root = chain.here().at("open", b"")?;
        let stat = fstat(root).at("read", b"")?;
        self.file_system = Some(stat.st_dev);
        let xattrs = xattrs(root).at("read the extended attributes of", b"")?;
        self.head(&Head { xattrs: &xattrs, ..Head::new(b"./", EntryType::Directory, &stat) })?;
        self.progress.add(1, 0);
        Ok(())
    }

    /// The next name in the directory where the work is; `None` at its end, and where it is gone.
    fn next(&mut self, chain: &mut Chain<Listing>, buffer: &mut Vec<u8>) -> Result<Option<CString>, ArchiveError> {
        check(self.progress, CONTINUE, chain.path())?;
        if chain.state().names.len() == 0 {
            match listing::read_on(chain, buffer) {
                Ok(names) => chain.state().names = names.into_iter(),
                Err(errno) if is_gone(errno) && is_lost(chain)? => self.progress.miss(),
                Err(errno) => return Err(ArchiveError::tree("read", chain.path(), errno)),
            }
        }
        let listing = chain.state();
        let Some((name, cookie)) = listing.names.next() else { return Ok(None) };
        listing.cookie = cookie;
        Ok(Some(name))
    }

    /// Archives an entry, or leaves it out if it is gone.
    fn entry(&mut self, chain: &mut Chain<Listing>, name: &CString) -> Result<(), ArchiveError> {
        let mut path = chain.path().to_vec();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name.to_bytes());
        if chain.depth() + 1 > DEEPEST {
            let kind = "below more directories than an archive may have";
            return Err(ArchiveError::unsupported(&path, kind));
        }
        self.links.replace(&path);
        let mut before = None;
        for _ in 0..LOOKS {
            let gone = match self.entry_as_it_is(chain, name, &path) {
                Ok(()) => return Ok(()),
                Err(Unarchived::Gone(errno)) => errno,
                Err(Unarchived::Failed(error)) => return Err(error),
            };
            if before.replace(gone) == Some(Errno::ENOENT) || !is_there(chain)? {
                before = Some(Errno::ENOENT);
                break;
            }
        }
        if before == Some(Errno::ESTALE) {
            // The name is there: it may not be left out.
            return Err(ArchiveError::tree("look at", &path, Errno::ESTALE));
        }
        self.progress.miss();
        Ok(())
    }

    fn entry_as_it_is(&mut self, chain: &mut Chain<Listing>, name: &CString, path: &[u8]) -> Result<(), Unarchived> {
        let parent = chain.here().unless_gone("open the directory of", path)?;
        let mut stat =
            statat(parent, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT).unless_gone("read", path)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if !matches!(kind, FileType::Directory | FileType::RegularFile | FileType::Symlink) {
            let place = open(parent, name, OFlag::O_PATH).unless_gone("open", path)?;
            stat.st_mode = access_list::mode_of_special(place, stat.st_mode, self.progress)
                .unless_gone("read the access control list of", path)?;
        }
        let head = |kind| Head::new(path, kind, &stat);
        let is_file = matches!(kind, FileType::Directory | FileType::RegularFile);
        let identity = if is_file { None } else { self.identity(parent, name, path, &stat)? };
        let bytes = match kind {
            FileType::Directory => return self.directory(chain, name, path.to_vec()),
            FileType::RegularFile => {
                let file = open(parent, name, OFlag::O_NONBLOCK).unless_gone("open", path)?;
                self.file(&file, path)?
            }
            FileType::Symlink => {
                let target = readlinkat(parent, name, Vec::new()).unless_gone("read", path)?;
                self.other(&Head { link: target.as_bytes(), ..head(EntryType::Symlink) }, &stat, identity)?
            }
            FileType::Fifo => self.other(&head(EntryType::Fifo), &stat, identity)?,
            FileType::Socket => self.other(&Head { is_socket: true, ..head(EntryType::Regular) }, &stat, identity)?,
            FileType::CharacterDevice => {
                self.other(&Head { device: stat.st_rdev, ..head(EntryType::Char) }, &stat, identity)?
            }
            FileType::BlockDevice => {
                self.other(&Head { device: stat.st_rdev, ..head(EntryType::Block) }, &stat, identity)?
            }
            FileType::Unknown => return Err(ArchiveError::unsupported(path, "of a type that is not known").into()),
        };
        self.progress.add(1, bytes);
        Ok(())
    }

    fn directory(&mut self, chain: &mut Chain<Listing>, name: &CString, mut path: Vec<u8>) -> Result<(), Unarchived> {
        let parent = chain.here().unless_gone("open the directory of", &path)?;
        let directory = open(parent, name, OFlag::O_DIRECTORY).unless_gone("open", &path)?;
        let stat = fstat(&directory).unless_gone("read", &path)?;
        if is_own(name, &stat, self.own) {
            return Ok(());
        }
        let xattrs = xattrs(&directory).unless_gone("read the extended attributes of", &path)?;
        path.push(b'/');
        self.head(&Head { xattrs: &xattrs, ..Head::new(&path, EntryType::Directory, &stat) })?;
        let listing = Listing { inode: stat.st_ino, ..Listing::default() };
        if let Some(closed) = chain.enter(name.to_bytes(), directory, listing) {
            *closed = Listing { closed: true, inode: closed.inode, cookie: closed.cookie, ..Listing::default() };
        }
        self.progress.add(1, 0);
        Ok(())
    }

    /// Archives an open file; gives its size.
    fn file(&mut self, file: &OwnedFd, path: &[u8]) -> Result<u64, Unarchived> {
        let stat = fstat(file).unless_gone("read", path)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Unarchived::Gone(Errno::ENOENT));
        }
        let identity = self.identity(file, c"", path, &stat)?;
        if self.is_linked(path, &stat, identity)? {
            return Ok(0);
        }
        let archived = self.content(file, path, &stat);
        if let (Err(_), Some(identity)) = (&archived, identity) {
            // Its further names may lead to no member that is not whole.
            self.links.forget(identity);
        }
        archived
    }

    fn content(&mut self, file: &OwnedFd, path: &[u8], stat: &Stat) -> Result<u64, Unarchived> {
        let xattrs = xattrs(file).unless_gone("read the extended attributes of", path)?;
        let size = u64::try_from(stat.st_size).unwrap_or_default();
        let whole = [Piece { offset: 0, length: size }];
        let found;
        let mut pieces = &whole[..];
        let blocks = u64::try_from(stat.st_blocks).unwrap_or_default();
        if blocks.saturating_mul(512) < size {
            found = sparse::pieces(file, size).unless_gone("find the holes of", path)?;
            pieces = &found;
        }
        let head = Head { xattrs: &xattrs, ..Head::new(path, EntryType::Regular, stat) };
        if pieces == whole {
            self.head(&Head { size, ..head })?;
        } else {
            let map = sparse::map(pieces, size);
            let stored = pieces.iter().map(|piece| piece.length).sum::<u64>() + map.len() as u64;
            self.head(&Head { size: stored, real_size: Some(size), ..head })?;
            self.put(&map)?;
        }
        let mut is_whole = true;
        for piece in pieces {
            is_whole = self.piece(file, path, *piece, is_whole)?;
        }
        self.put(&[0; BLOCK][..padding(pieces.iter().map(|piece| piece.length).sum())])?;
        if is_whole { Ok(size) } else { Err(Unarchived::Gone(Errno::ENOENT)) }
    }

    /// Archives a piece of a file that is there, or as many zeroes; whether it is still there.
    fn piece(&mut self, file: &OwnedFd, path: &[u8], piece: Piece, is_there: bool) -> Result<bool, ArchiveError> {
        let mut is_there = is_there;
        let Piece { mut offset, length: mut left } = piece;
        while left > 0 {
            check(self.progress, CONTINUE, path)?;
            let most = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
            let chunk = &mut self.buffer[..most];
            let read = if is_there { rustix::io::pread(file, &mut *chunk, offset) } else { Ok(0) };
            let read = match read {
                Err(rustix::io::Errno::INTR) => continue,
                // NFS 3 has no file that is open and has no name.
                Err(rustix::io::Errno::STALE) if look_again(file).is_err_and(is_gone) => {
                    is_there = false;
                    0
                }
                read => read.at("read", path)?,
            };
            // It became shorter.
            let length = if read == 0 {
                chunk.fill(0);
                most
            } else {
                read
            };
            self.output.write_all(&self.buffer[..length]).at(WRITE, path)?;
            offset += length as u64;
            left -= length as u64;
        }
        Ok(is_there)
    }

    /// Archives what has no content.
    fn other(&mut self, head: &Head<'_>, stat: &Stat, identity: Option<Identity>) -> Result<u64, ArchiveError> {
        if !self.is_linked(head.path, stat, identity)? {
            self.head(head)?;
        }
        Ok(0)
    }

    /// What tells an entry with several names, or the open file if `name` is empty; `None` for one with a single name.
    fn identity(&self, at: impl AsFd, name: &CStr, path: &[u8], stat: &Stat) -> Result<Option<Identity>, Unarchived> {
        // A file of another file system that is mounted on one has no other names here.
        if stat.st_nlink < 2 || self.file_system != Some(stat.st_dev) {
            return Ok(None);
        }
        let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let again = statx(at, name, flags, wanted).unless_gone("read", path)?;
        if again.stx_ino == stat.st_ino {
            Ok(Some(self.links.identity(&again)))
        } else {
            Err(Unarchived::Gone(Errno::ENOENT))
        }
    }

    /// Whether this is one more name of a file that is archived already; that is archived then.
    fn is_linked(&mut self, path: &[u8], stat: &Stat, identity: Option<Identity>) -> Result<bool, ArchiveError> {
        let Some(identity) = identity else { return Ok(false) };
        #[allow(clippy::useless_conversion, reason = "the number of links has another width on other architectures")]
        let names = u64::from(stat.st_nlink);
        let Name::Further(link) = self.links.note(identity, names, path) else { return Ok(false) };
        self.head(&Head { link: &link, ..Head::new(path, EntryType::Link, stat) })?;
        Ok(true)
    }

    fn head(&mut self, head: &Head<'_>) -> Result<(), ArchiveError> {
        let records = head.records();
        if records.len() as u64 > LONGEST_EXTENSION {
            let kind = "an entry with a longer name or more extended attributes than an archive may have";
            return Err(ArchiveError::unsupported(head.path, kind));
        }
        self.put(head.extension_header(records.len()).as_bytes())?;
        self.put(&records)?;
        self.put(&[0; BLOCK][..padding(records.len() as u64)])?;
        self.put(head.header().at(WRITE, head.path)?.as_bytes())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), ArchiveError> {
        self.output.write_all(bytes).at(WRITE, b"")
    }
}

/// Opens an entry to read it. One that has become something else is looked up again, as one that is gone.
fn open(directory: impl AsFd, name: &CString, flags: OFlag) -> nix::Result<OwnedFd> {
    let name = OsStr::from_bytes(name.to_bytes());
    match beneath::open(directory, name, flags | OFlag::O_RDONLY | OFlag::O_NOFOLLOW, Mode::empty()) {
        Err(Errno::ELOOP | Errno::ENOTDIR | Errno::ENXIO) => Err(Errno::ENOENT),
        opened => opened,
    }
}

/// Why an entry is not in the archive as it is.
enum Unarchived {
    /// It was gone.
    Gone(Errno),
    Failed(ArchiveError),
}

impl From<ArchiveError> for Unarchived {
    fn from(error: ArchiveError) -> Self {
        Self::Failed(error)
    }
}

/// Says for a failed call on the source what was tried on which entry.
trait UnlessGone<T> {
    fn unless_gone(self, what: &'static str, path: &[u8]) -> Result<T, Unarchived>;
}

impl<T, E: Reason> UnlessGone<T> for Result<T, E> {
    fn unless_gone(self, what: &'static str, path: &[u8]) -> Result<T, Unarchived> {
        self.map_err(|reason| match reason.errno() {
            errno if is_gone(errno) => Unarchived::Gone(errno),
            errno => Unarchived::Failed(ArchiveError::tree(what, path, errno)),
        })
    }
}
