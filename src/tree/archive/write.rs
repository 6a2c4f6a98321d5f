//! From a tree to an archive.
//!
//! The tree is walked depth first, each directory before what is in it. A directory is read piece by piece as the work
//! goes on, so that one with a million names takes no more memory than one with a hundred. The one thing that grows with the
//! tree is the table of hard links (links.rs).
//!
//! The tree may change meanwhile. What vanishes before its turn, or becomes something else just then, is left out. A
//! file is archived with the size that it had when it was opened: cut if it grows, filled up with zeroes if it shrinks.

use std::ffi::{CString, OsStr};
use std::io::{self, BufWriter, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use rustix::fs::{AtFlags, FileType, RawDir, SeekFrom, Stat, fstat, readlinkat, statat};
use tar::{EntryType, Header};
use zstd::zstd_safe::CParameter;

use super::chain::Chain;
use super::links::{Links, Name};
use super::sparse::{self, Piece};
use super::{ArchiveError, At as _, BLOCK, CHUNK, DEEPEST, LONGEST_EXTENSION, Reason, number, padding, pax};
use crate::beneath;
use crate::tree::Progress;
use crate::tree::attributes::{Attributes, Xattr, xattrs};

const LEVEL: i32 = 3;
/// Threads that compress, beside the one that reads.
const WORKERS: u32 = 2;
/// What each of them takes at a time, in bytes: a few times as much is held for it.
const SHARE: u32 = 2 * 1024 * 1024;
/// How much of a directory is read at a time, in bytes.
const NAMES: usize = 32 * 1024;
/// What a header's field for a name holds, in bytes.
const SHORT: usize = 100;
/// Numbers from here on do not fit the fields that every tar reads.
const LARGE_SIZE: u64 = 1 << 33;
const LARGE_ID: u32 = 1 << 21;
/// Where a tar that knows no pax puts the records, and one that knows no holes the files with holes.
const RECORDS: &[u8] = b"PaxHeaders/";
const HOLES: &[u8] = b"GNUSparseFile.0/";

/// Archives all that is in the directory `source`, and its own attributes, as one `.tar.zst`. Gives the archive's size
/// in bytes. It is not synced: that is for who opened `output`.
///
/// # Errors
/// [`ArchiveError::Tree`] for what could not be read or written, [`ArchiveError::Unsupported`] for what could not be
/// restored again.
pub fn write(source: impl AsFd, output: impl Write, progress: &Progress) -> Result<u64, ArchiveError> {
    let mut encoder = zstd::Encoder::new(Counted { inner: output, bytes: 0 }, LEVEL).at(WRITE, b"")?;
    encoder.include_checksum(true).at(WRITE, b"")?;
    encoder.multithread(WORKERS).at(WRITE, b"")?;
    encoder.set_parameter(CParameter::JobSize(SHARE)).at(WRITE, b"")?;
    let mut archive = Archive {
        output: BufWriter::with_capacity(CHUNK, encoder),
        links: Links::default(),
        file_system: None,
        buffer: vec![0; CHUNK],
        progress,
    };
    let mut chain = Chain::new(source, Listing::default()).at("open", b"")?;
    archive.root(&mut chain)?;
    let mut names = Vec::with_capacity(NAMES);
    loop {
        match next(&mut chain, &mut names)? {
            Some(name) => archive.entry(&mut chain, &name)?,
            None if chain.leave().is_none() => break,
            None => {}
        }
    }
    archive.put(&[0; 2 * BLOCK])?;
    let encoder = archive.output.into_inner().map_err(io::IntoInnerError::into_error).at(WRITE, b"")?;
    let mut counted = encoder.finish().at(WRITE, b"")?;
    counted.flush().at(WRITE, b"")?;
    Ok(counted.bytes)
}

const WRITE: &str = "write the archive of";

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

/// How far a directory is read.
#[derive(Default)]
struct Listing {
    names: std::vec::IntoIter<(CString, u64)>,
    /// Where the kernel goes on behind the last name that was taken.
    cookie: u64,
    /// It was closed meanwhile, and the names that were read ahead were dropped with it.
    closed: bool,
}

/// The next name in the directory where the work is; `None` at its end, and where it is gone.
fn next(chain: &mut Chain<Listing>, buffer: &mut Vec<u8>) -> Result<Option<CString>, ArchiveError> {
    let listing = chain.state();
    if listing.names.len() == 0 {
        let resume = std::mem::take(&mut listing.closed).then_some(listing.cookie);
        let path = chain.path().to_vec();
        let Some(directory) = unless_gone(chain.here()).at("open", &path)? else { return Ok(None) };
        if let Some(cookie) = resume {
            rustix::fs::seek(directory, SeekFrom::Start(cookie)).at("read", &path)?;
        }
        let names = unless_gone(read_names(directory, buffer)).at("read", &path)?.unwrap_or_default();
        chain.state().names = names.into_iter();
    }
    let listing = chain.state();
    let Some((name, cookie)) = listing.names.next() else { return Ok(None) };
    listing.cookie = cookie;
    Ok(Some(name))
}

/// What the kernel gives of a directory at once; nothing at its end.
fn read_names(directory: impl AsFd, buffer: &mut Vec<u8>) -> rustix::io::Result<Vec<(CString, u64)>> {
    let mut names = Vec::new();
    let mut entries = RawDir::new(directory, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            names.push((name.to_owned(), entry.next_entry_cookie()));
        }
        if entries.is_buffer_empty() && !names.is_empty() {
            break;
        }
    }
    Ok(names)
}

struct Archive<'a, W: Write> {
    output: BufWriter<zstd::Encoder<'static, Counted<W>>>,
    links: Links,
    /// The device of the root.
    file_system: Option<u64>,
    buffer: Vec<u8>,
    progress: &'a Progress,
}

/// What a header says.
struct Head<'a> {
    path: &'a [u8],
    kind: EntryType,
    attributes: Attributes,
    /// What is stored of it, in bytes.
    size: u64,
    link: &'a [u8],
    device: u64,
    xattrs: &'a [Xattr],
    /// The size of a file with holes.
    real_size: Option<u64>,
    is_socket: bool,
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

    fn entry(&mut self, chain: &mut Chain<Listing>, name: &CString) -> Result<(), ArchiveError> {
        let mut path = chain.path().to_vec();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name.to_bytes());
        let Some(parent) = unless_gone(chain.here()).at("open the directory of", &path)? else {
            return Ok(());
        };
        let stat = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT);
        let Some(stat) = unless_gone(stat).at("read", &path)? else { return Ok(()) };
        let head = |kind| Head::new(&path, kind, &stat);
        let bytes = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => return self.directory(chain, name, path),
            FileType::RegularFile => match open(parent, name, OFlag::O_NONBLOCK).at("open", &path)? {
                Some(file) => self.file(&file, &path)?,
                None => return Ok(()),
            },
            FileType::Symlink => match unless_gone(readlinkat(parent, name, Vec::new())).at("read", &path)? {
                Some(target) => self.other(&Head { link: target.as_bytes(), ..head(EntryType::Symlink) }, &stat)?,
                None => return Ok(()),
            },
            FileType::Fifo => self.other(&head(EntryType::Fifo), &stat)?,
            FileType::Socket => self.other(&Head { is_socket: true, ..head(EntryType::Regular) }, &stat)?,
            FileType::CharacterDevice => self.other(&Head { device: stat.st_rdev, ..head(EntryType::Char) }, &stat)?,
            FileType::BlockDevice => self.other(&Head { device: stat.st_rdev, ..head(EntryType::Block) }, &stat)?,
            FileType::Unknown => return Err(ArchiveError::unsupported(&path, "of a type that is not known")),
        };
        self.progress.add(1, bytes);
        Ok(())
    }

    fn directory(&mut self, chain: &mut Chain<Listing>, name: &CString, mut path: Vec<u8>) -> Result<(), ArchiveError> {
        if chain.depth() + 1 > DEEPEST {
            return Err(ArchiveError::unsupported(&path, "below more directories than an archive may have"));
        }
        let parent = chain.here().at("open the directory of", &path)?;
        let Some(directory) = open(parent, name, OFlag::O_DIRECTORY).at("open", &path)? else { return Ok(()) };
        let stat = fstat(&directory).at("read", &path)?;
        let xattrs = xattrs(&directory).at("read the extended attributes of", &path)?;
        path.push(b'/');
        self.head(&Head { xattrs: &xattrs, ..Head::new(&path, EntryType::Directory, &stat) })?;
        if let Some(closed) = chain.enter(name.to_bytes(), directory, Listing::default()) {
            *closed = Listing { cookie: closed.cookie, closed: true, ..Listing::default() };
        }
        self.progress.add(1, 0);
        Ok(())
    }

    /// Archives an open file; gives its size.
    fn file(&mut self, file: &OwnedFd, path: &[u8]) -> Result<u64, ArchiveError> {
        let stat = fstat(file).at("read", path)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || self.is_linked(path, &stat)? {
            return Ok(0);
        }
        let xattrs = xattrs(file).at("read the extended attributes of", path)?;
        let size = u64::try_from(stat.st_size).unwrap_or_default();
        let whole = [Piece { offset: 0, length: size }];
        let found;
        let mut pieces = &whole[..];
        let blocks = u64::try_from(stat.st_blocks).unwrap_or_default();
        if blocks.saturating_mul(512) < size {
            found = sparse::pieces(file, size).at("find the holes of", path)?;
            pieces = &found;
        }
        let head = Head { xattrs: &xattrs, ..Head::new(path, EntryType::Regular, &stat) };
        if pieces == whole {
            self.head(&Head { size, ..head })?;
        } else {
            let map = sparse::map(pieces, size);
            let stored = pieces.iter().map(|piece| piece.length).sum::<u64>() + map.len() as u64;
            self.head(&Head { size: stored, real_size: Some(size), ..head })?;
            self.put(&map)?;
        }
        for piece in pieces {
            self.piece(file, path, *piece)?;
        }
        self.put(&[0; BLOCK][..padding(pieces.iter().map(|piece| piece.length).sum())])?;
        Ok(size)
    }

    fn piece(&mut self, file: &OwnedFd, path: &[u8], piece: Piece) -> Result<(), ArchiveError> {
        let Piece { mut offset, length: mut left } = piece;
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
            let chunk = &mut self.buffer[..most];
            let read = match rustix::io::pread(file, &mut *chunk, offset) {
                Err(rustix::io::Errno::INTR) => continue,
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
        Ok(())
    }

    /// Archives what has no content.
    fn other(&mut self, head: &Head<'_>, stat: &Stat) -> Result<u64, ArchiveError> {
        if !self.is_linked(head.path, stat)? {
            self.head(head)?;
        }
        Ok(0)
    }

    /// Whether this is one more name of a file that is archived already; that is archived then.
    fn is_linked(&mut self, path: &[u8], stat: &Stat) -> Result<bool, ArchiveError> {
        #[allow(clippy::useless_conversion, reason = "the number of links has another width on other architectures")]
        let names = u64::from(stat.st_nlink);
        if names < 2 {
            return Ok(false);
        }
        // A file of another file system that is mounted on one has no other names here.
        if self.file_system != Some(stat.st_dev) {
            return Ok(false);
        }
        let Name::Further(link) = self.links.note(stat.st_ino, names, path) else { return Ok(false) };
        self.head(&Head { link: &link, ..Head::new(path, EntryType::Link, stat) })?;
        Ok(true)
    }

    fn head(&mut self, head: &Head<'_>) -> Result<(), ArchiveError> {
        let records = head.records();
        if records.len() as u64 > LONGEST_EXTENSION {
            let kind = "an entry with a longer name or more extended attributes than an archive may have";
            return Err(ArchiveError::unsupported(head.path, kind));
        }
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::XHeader);
        put_name(&mut header.as_old_mut().name, &head.own_name_in(RECORDS));
        header.set_mode(0o644);
        header.set_size(records.len() as u64);
        header.set_cksum();
        self.put(header.as_bytes())?;
        self.put(&records)?;
        self.put(&[0; BLOCK][..padding(records.len() as u64)])?;
        self.put(head.header().at(WRITE, head.path)?.as_bytes())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), ArchiveError> {
        self.output.write_all(bytes).at(WRITE, b"")
    }
}

impl<'a> Head<'a> {
    fn new(path: &'a [u8], kind: EntryType, stat: &Stat) -> Self {
        let attributes = Attributes::of(stat);
        Self { path, kind, attributes, size: 0, link: b"", device: 0, xattrs: &[], real_size: None, is_socket: false }
    }

    fn own_name_in(&self, directory: &[u8]) -> Vec<u8> {
        let name = self.path.rsplit(|&byte| byte == b'/').find(|name| !name.is_empty()).unwrap_or_default();
        [directory, name].concat()
    }

    /// What every tar reads.
    fn header(&self) -> io::Result<Header> {
        let mut header = Header::new_ustar();
        match self.real_size {
            None => put_name(&mut header.as_old_mut().name, self.path),
            Some(_) => put_name(&mut header.as_old_mut().name, &self.own_name_in(HOLES)),
        }
        put_name(&mut header.as_old_mut().linkname, self.link);
        header.set_entry_type(self.kind);
        header.set_mode(self.attributes.mode);
        header.set_uid(self.attributes.uid.into());
        header.set_gid(self.attributes.gid.into());
        header.set_mtime(u64::try_from(self.attributes.modified.tv_sec).unwrap_or_default());
        header.set_size(self.size);
        header.set_device_major(rustix::fs::major(self.device))?;
        header.set_device_minor(rustix::fs::minor(self.device))?;
        header.set_cksum();
        Ok(header)
    }

    /// What a header has no room for.
    fn records(&self) -> Vec<u8> {
        let mut records = Vec::new();
        let mut push = |key, value: &[u8]| pax::push(&mut records, key, value);
        push(pax::MODIFIED, number::time_text(self.attributes.modified).as_bytes());
        push(pax::ACCESSED, number::time_text(self.attributes.accessed).as_bytes());
        if let Some(size) = self.real_size {
            push(pax::SPARSE_MAJOR, b"1");
            push(pax::SPARSE_MINOR, b"0");
            push(pax::SPARSE_NAME, self.path);
            push(pax::SPARSE_REAL_SIZE, size.to_string().as_bytes());
        } else if self.path.len() > SHORT {
            push(pax::PATH, self.path);
        }
        if self.link.len() > SHORT {
            push(pax::LINK, self.link);
        }
        if self.size >= LARGE_SIZE {
            push(pax::SIZE, self.size.to_string().as_bytes());
        }
        for (key, id) in [(pax::UID, self.attributes.uid), (pax::GID, self.attributes.gid)] {
            if id >= LARGE_ID {
                push(key, id.to_string().as_bytes());
            }
        }
        if self.is_socket {
            push(pax::TYPE, pax::SOCKET);
        }
        for (name, value) in self.xattrs {
            pax::push(&mut records, &[pax::XATTR, name.to_bytes()].concat(), value);
        }
        records
    }
}

/// Fills a header's field with a name, or its beginning.
fn put_name(field: &mut [u8; SHORT], name: &[u8]) {
    for (place, &byte) in field.iter_mut().zip(name) {
        *place = byte;
    }
}

/// Opens an entry to read it; `None` where it is gone, or has become something else.
fn open(directory: impl AsFd, name: &CString, flags: OFlag) -> nix::Result<Option<OwnedFd>> {
    let name = OsStr::from_bytes(name.to_bytes());
    match beneath::open(directory, name, flags | OFlag::O_RDONLY | OFlag::O_NOFOLLOW, Mode::empty()) {
        Ok(opened) => Ok(Some(opened)),
        Err(Errno::ENOENT | Errno::ESTALE | Errno::ELOOP | Errno::ENOTDIR | Errno::ENXIO) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// What vanishes is no error.
fn unless_gone<T, E: Reason>(result: Result<T, E>) -> nix::Result<Option<T>> {
    match result.map_err(Reason::errno) {
        Ok(value) => Ok(Some(value)),
        Err(Errno::ENOENT | Errno::ESTALE) => Ok(None),
        Err(errno) => Err(errno),
    }
}
