//! The members of an archive, as its headers tell them: parsed once, so that nothing behind this trusts a header again.
//!
//! What a header may be preceded by: GNU tar's long names (`L`, `K`), pax records for one member (`x`) and for all that
//! follow (`g`, passed over: nobody writes them for a volume). Each is bounded, and held once for a member.

use std::borrow::Cow;
use std::ffi::CString;

use rustix::fs::{FileType, Timespec};
use tar::{EntryType, Header};

use super::sparse::{self, Piece};
use super::stream::Stream;
use super::{ArchiveError, DEEPEST, LONGEST_EXTENSION, number, padding, pax};
use crate::tree::access_list::POSIX_TEXT;
use crate::tree::attributes::{Attributes, POSIX, Xattr, is_kept};

/// What utimensat(2) takes for a time that shall stay as it is.
const AS_IT_IS: Timespec = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };

/// A member of an archive.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) name: Name,
    pub(super) kind: Kind,
    pub(super) attributes: Attributes,
    pub(super) xattrs: Vec<Xattr>,
}

/// What a member is.
#[derive(Debug)]
pub(super) enum Kind {
    Directory,
    /// The data of its pieces follows in the stream, then what fills up the last block.
    File {
        /// With the holes, in bytes.
        size: u64,
        pieces: Vec<Piece>,
    },
    /// One more name of an earlier member.
    Link(Name),
    Symlink(CString),
    /// A fifo, a socket, or a device with its two numbers.
    Special(FileType, (u32, u32)),
}

/// A name below the root: neither absolute nor climbing, without empty components; empty for the root itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name(Vec<u8>);

impl Name {
    /// `./` and a trailing `/` say nothing and are dropped.
    fn parse(raw: &[u8]) -> Result<Self, ArchiveError> {
        let fail = |reason| Err(ArchiveError::hostile(raw, reason));
        let trimmed = raw.strip_suffix(b"/").unwrap_or(raw);
        if raw.is_empty() {
            return fail("has no name");
        }
        if raw.starts_with(b"/") {
            return fail("has an absolute name");
        }
        if raw.contains(&0) {
            return fail("has a NUL in its name");
        }
        let mut name = Vec::with_capacity(trimmed.len());
        let mut depth = 0;
        for component in trimmed.split(|&byte| byte == b'/') {
            match component {
                b"" => return fail("has a name with an empty component"),
                b".." => return fail("has a name that climbs with .."),
                b"." => {}
                _ => {
                    if !name.is_empty() {
                        name.push(b'/');
                    }
                    name.extend_from_slice(component);
                    depth += 1;
                }
            }
        }
        if depth > DEEPEST {
            return fail("lies below too many directories");
        }
        Ok(Self(name))
    }

    /// The whole, with `/` between its components.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The directory that it is in, and its name there; `None` for the root.
    pub(super) fn split(&self) -> Option<(&[u8], &[u8])> {
        match self.0.iter().rposition(|&byte| byte == b'/') {
            _ if self.0.is_empty() => None,
            None => Some((b"", &self.0)),
            Some(slash) => Some((&self.0[..slash], &self.0[slash + 1..])),
        }
    }
}

/// What precedes a member's header.
#[derive(Default)]
struct Extensions {
    long_name: Option<Vec<u8>>,
    long_link: Option<Vec<u8>>,
    records: Option<Records>,
}

/// The pax records that mean something here.
#[derive(Default)]
struct Records {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    modified: Option<Timespec>,
    accessed: Option<Timespec>,
    xattrs: Vec<Xattr>,
    is_socket: bool,
    sparse: Sparse,
}

#[derive(Default)]
struct Sparse {
    version: Option<(u64, u64)>,
    name: Option<Vec<u8>>,
    size: Option<u64>,
    pieces: Option<Vec<Piece>>,
    offset: Option<u64>,
}

/// The next member; `None` at the archive's end, which is then known to be there. The content of the one before must be
/// read.
pub(super) fn next(stream: &mut Stream<'_>) -> Result<Option<Member>, ArchiveError> {
    let mut extensions = Extensions::default();
    loop {
        let block = stream.block()?;
        if block.iter().all(|&byte| byte == 0) {
            if extensions.long_name.is_some() || extensions.long_link.is_some() || extensions.records.is_some() {
                return Err(ArchiveError::damaged("it ends with the beginning of a member"));
            }
            stream.end()?;
            return Ok(None);
        }
        let mut header = Header::new_old();
        header.as_mut_bytes().copy_from_slice(&block);
        check_sum(&header)?;
        let size = unsigned(&header.as_old().size, "size")?;
        match header.entry_type() {
            EntryType::GNULongName => once(&mut extensions.long_name, long_name(stream, size)?)?,
            EntryType::GNULongLink => once(&mut extensions.long_link, long_name(stream, size)?)?,
            EntryType::XHeader => once(&mut extensions.records, Records::parse(&extension(stream, size)?)?)?,
            EntryType::XGlobalHeader => drop(extension(stream, size)?),
            _ => return member(stream, &header, size, extensions).map(Some),
        }
    }
}

fn member(stream: &mut Stream<'_>, header: &Header, size: u64, extensions: Extensions) -> Result<Member, ArchiveError> {
    let Extensions { long_name, long_link, records } = extensions;
    let mut records = records.unwrap_or_default();
    let raw = records.sparse.name.take().or(records.path.take()).or(long_name);
    let raw = raw.unwrap_or_else(|| header.path_bytes().into_owned());
    let name = Name::parse(&raw)?;
    let link = records.link.take().or(long_link);
    let link = link.or_else(|| header.link_name_bytes().map(Cow::into_owned)).unwrap_or_default();
    let attributes = attributes(header, &records)?;
    let mut xattrs = std::mem::take(&mut records.xattrs);
    if xattrs.iter().any(|(name, _)| name.as_c_str() == POSIX) {
        xattrs.retain(|(name, _)| name.as_c_str() != POSIX_TEXT);
    }
    let size = records.size.unwrap_or(size);
    let kind = match header.entry_type() {
        EntryType::Directory => Kind::Directory,
        // Before tar had a type for directories, a slash said it, and some still write it so.
        EntryType::Regular if raw.ends_with(b"/") && size == 0 => Kind::Directory,
        EntryType::Regular if records.is_socket => Kind::Special(FileType::Socket, (0, 0)),
        EntryType::Regular | EntryType::Continuous => file(stream, &raw, size, records.sparse)?,
        EntryType::GNUSparse => old_sparse_file(stream, header, size)?,
        EntryType::Link => Kind::Link(Name::parse(&link).map_err(|_| {
            ArchiveError::hostile(&raw, "is a hard link to a name that is absolute, climbs, or is none")
        })?),
        EntryType::Symlink => Kind::Symlink(match CString::new(link) {
            Ok(target) if !target.is_empty() => target,
            _ => return Err(ArchiveError::hostile(&raw, "is a symbolic link to no name")),
        }),
        EntryType::Fifo => Kind::Special(FileType::Fifo, (0, 0)),
        EntryType::Char => Kind::Special(FileType::CharacterDevice, device(header)?),
        EntryType::Block => Kind::Special(FileType::BlockDevice, device(header)?),
        _ => return Err(ArchiveError::unsupported(&raw, "of a type that only some tars know")),
    };
    if name.bytes().is_empty() && !matches!(kind, Kind::Directory) {
        return Err(ArchiveError::hostile(&raw, "would take the place of the whole volume"));
    }
    Ok(Member { name, kind, attributes, xattrs })
}

fn file(stream: &mut Stream<'_>, name: &[u8], stored: u64, sparse: Sparse) -> Result<Kind, ArchiveError> {
    if name.ends_with(b"/") {
        return Err(ArchiveError::hostile(name, "is a file with the name of a directory"));
    }
    let (pieces, stored) = match (sparse.version, sparse.pieces) {
        (Some((1, 0)), _) => {
            let (pieces, taken) = sparse::read_map(stream)?;
            let stored =
                stored.checked_sub(taken).ok_or_else(|| ArchiveError::damaged("a map is longer than its file"))?;
            (pieces, stored)
        }
        (None | Some((0, _)), Some(pieces)) => (pieces, stored),
        (None, None) => {
            let all = Piece { offset: 0, length: stored };
            return Ok(Kind::File { size: stored, pieces: vec![all] });
        }
        _ => return Err(ArchiveError::unsupported(name, "a file with holes in a form that only some tars know")),
    };
    let Some(size) = sparse.size else { return Err(ArchiveError::damaged("a file with holes has no size")) };
    Ok(Kind::File { size, pieces: sparse::check(pieces, size, stored)? })
}

/// GNU tar's older form: the map stands in the header and in blocks behind it.
fn old_sparse_file(stream: &mut Stream<'_>, header: &Header, stored: u64) -> Result<Kind, ArchiveError> {
    let Some(gnu) = header.as_gnu() else {
        return Err(ArchiveError::damaged("a file with holes has a header of another tar"));
    };
    let size = unsigned(&gnu.realsize, "size")?;
    let mut pieces = Vec::new();
    let mut take = |offset: &[u8], length: &[u8]| {
        if offset.first() == Some(&0) || length.first() == Some(&0) {
            return Ok(());
        }
        sparse::push(&mut pieces, Piece { offset: unsigned(offset, "map")?, length: unsigned(length, "map")? })
    };
    for piece in &gnu.sparse {
        take(&piece.offset, &piece.numbytes)?;
    }
    let mut more = gnu.is_extended();
    while more {
        // 21 pieces of two fields of 12 bytes, then whether another block follows.
        let block = stream.block()?;
        for piece in block[..504].chunks_exact(24) {
            take(&piece[..12], &piece[12..])?;
        }
        more = block[504] == 1;
    }
    Ok(Kind::File { size, pieces: sparse::check(pieces, size, stored)? })
}

fn attributes(header: &Header, records: &Records) -> Result<Attributes, ArchiveError> {
    let old = header.as_old();
    let id = |record: Option<u64>, field: &[u8]| {
        let id = record.map_or_else(|| unsigned(field, "owner"), Ok)?;
        // The last number means "nobody" to the kernel.
        u32::try_from(id).ok().filter(|&id| id != u32::MAX).ok_or_else(|| wrong("owner"))
    };
    let mode = unsigned(&old.mode, "permissions")?;
    let modified = match records.modified {
        Some(time) => time,
        None => Timespec { tv_sec: number::field(&old.mtime).ok_or_else(|| wrong("time"))?, tv_nsec: 0 },
    };
    Ok(Attributes {
        mode: u32::try_from(mode & 0o7777).map_err(|_| wrong("permissions"))?,
        uid: id(records.uid, &old.uid)?,
        gid: id(records.gid, &old.gid)?,
        accessed: records.accessed.unwrap_or(AS_IT_IS),
        modified,
    })
}

fn device(header: &Header) -> Result<(u32, u32), ArchiveError> {
    let (major, minor) = match (header.as_ustar(), header.as_gnu()) {
        (Some(ustar), _) => (&ustar.dev_major, &ustar.dev_minor),
        (_, Some(gnu)) => (&gnu.dev_major, &gnu.dev_minor),
        _ => return Err(wrong("device number")),
    };
    let number = |field| u32::try_from(unsigned(field, "device number")?).map_err(|_| wrong("device number"));
    Ok((number(major)?, number(minor)?))
}

fn check_sum(header: &Header) -> Result<(), ArchiveError> {
    let bytes = header.as_bytes();
    let stored = &header.as_old().cksum;
    let sum: i64 = bytes.iter().map(|&byte| i64::from(byte)).sum();
    let of_field: i64 = stored.iter().map(|&byte| i64::from(byte)).sum();
    let spaces = i64::from(b' ') * 8;
    if number::field(stored) == Some(sum - of_field + spaces) {
        Ok(())
    } else {
        Err(ArchiveError::damaged("it is no tar archive, or a header's checksum is wrong"))
    }
}

/// A header's field that cannot be below zero.
fn unsigned(field: &[u8], what: &str) -> Result<u64, ArchiveError> {
    number::field(field).and_then(|number| u64::try_from(number).ok()).ok_or_else(|| wrong(what))
}

fn wrong(what: &str) -> ArchiveError {
    ArchiveError::damaged(format!("a member's {what} is no number that makes sense"))
}

fn once<T>(place: &mut Option<T>, value: T) -> Result<(), ArchiveError> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(ArchiveError::damaged("a member has two headers of a kind")),
    }
}

fn extension(stream: &mut Stream<'_>, size: u64) -> Result<Vec<u8>, ArchiveError> {
    if size > LONGEST_EXTENSION {
        return Err(ArchiveError::damaged(format!("a member's name or attributes are of {size} bytes")));
    }
    stream.content(size)
}

fn long_name(stream: &mut Stream<'_>, size: u64) -> Result<Vec<u8>, ArchiveError> {
    let mut name = extension(stream, size)?;
    if name.last() == Some(&0) {
        name.pop();
    }
    Ok(name)
}

impl Records {
    fn parse(content: &[u8]) -> Result<Self, ArchiveError> {
        let mut records = Self::default();
        for record in pax::records(content) {
            let Some((key, value)) = record else {
                return Err(ArchiveError::damaged("a member's pax records are none"));
            };
            records.take(key, value)?;
        }
        Ok(records)
    }

    fn take(&mut self, key: &[u8], value: &[u8]) -> Result<(), ArchiveError> {
        let text = || (!value.is_empty()).then(|| value.to_vec());
        // The kernel counts bytes below 2^63.
        let number = number::decimal(value).filter(|&number| i64::try_from(number).is_ok());
        let number = || number.ok_or_else(|| wrong("pax record"));
        let time = || number::time(value).ok_or_else(|| wrong("time"));
        match key {
            pax::PATH => self.path = text(),
            pax::LINK => self.link = text(),
            pax::SIZE => self.size = Some(number()?),
            pax::UID => self.uid = Some(number()?),
            pax::GID => self.gid = Some(number()?),
            pax::MODIFIED => self.modified = Some(time()?),
            pax::ACCESSED => self.accessed = Some(time()?),
            pax::TYPE => self.is_socket = value == pax::SOCKET,
            pax::SPARSE_MAJOR => self.sparse.version.get_or_insert_default().0 = number()?,
            pax::SPARSE_MINOR => self.sparse.version.get_or_insert_default().1 = number()?,
            pax::SPARSE_NAME => self.sparse.name = text(),
            pax::SPARSE_REAL_SIZE | pax::SPARSE_SIZE => self.sparse.size = Some(number()?),
            pax::SPARSE_MAP => self.sparse.pieces = Some(sparse_map(value)?),
            pax::SPARSE_OFFSET => self.sparse.offset = Some(number()?),
            pax::SPARSE_LENGTH => {
                let offset = self.sparse.offset.take().ok_or_else(|| wrong("map"))?;
                let pieces = self.sparse.pieces.get_or_insert_default();
                sparse::push(pieces, Piece { offset, length: number()? })?;
            }
            _ => self.take_xattr(key, value),
        }
        Ok(())
    }

    fn take_xattr(&mut self, key: &[u8], value: &[u8]) {
        let name = pax::xattr_name(key).and_then(|name| CString::new(name).ok());
        if let Some(name) = name.filter(|name| is_kept(name)) {
            self.xattrs.push((name, value.to_vec()));
        } else if key == POSIX_TEXT.to_bytes() {
            self.xattrs.push((POSIX_TEXT.to_owned(), value.to_vec()));
        }
    }
}

/// The map of version 0.1: offsets and lengths, with commas between them.
fn sparse_map(text: &[u8]) -> Result<Vec<Piece>, ArchiveError> {
    let mut pieces = Vec::new();
    let mut numbers = text.split(|&byte| byte == b',').map(number::decimal);
    while let Some(offset) = numbers.next() {
        let (Some(offset), Some(Some(length))) = (offset, numbers.next()) else { return Err(wrong("map")) };
        sparse::push(&mut pieces, Piece { offset, length })?;
    }
    Ok(pieces)
}

/// Passes over what fills up the last block of a file's pieces.
pub(super) fn skip_filling(stream: &mut Stream<'_>, pieces: &[Piece]) -> Result<(), ArchiveError> {
    let stored = pieces.iter().map(|piece| piece.length).sum();
    stream.skip(padding(stored) as u64)
}

#[cfg(test)]
mod tests {
    use super::super::BLOCK;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_that_could_lead_elsewhere_are_refused() {
        for good in ["a", "a/b/", "./a", ".", "./", "a/./b", "...", "a..b", "\\..\\a"] {
            Name::parse(good.as_bytes()).unwrap();
        }
        for bad in ["", "/", "/a", "..", "a/..", "../a", "a/../b", "a//b", "a//", "//", "a\0b", "./../a"] {
            assert!(matches!(Name::parse(bad.as_bytes()), Err(ArchiveError::Hostile { .. })), "{bad:?}");
        }
        assert!(Name::parse("a/".repeat(DEEPEST + 1).as_bytes()).is_err());
        assert_eq!(Name::parse(b"./a/./b/").unwrap().split(), Some((&b"a"[..], &b"b"[..])));
        assert_eq!(Name::parse(b"./").unwrap().split(), None);
    }

    proptest! {
        #[test]
        fn a_header_of_any_bytes_never_panics(mut bytes in proptest::collection::vec(any::<u8>(), 2048), kind: u8) {
            for block in bytes.chunks_exact_mut(BLOCK) {
                block[156] = kind;
                let mut header = Header::new_old();
                header.as_mut_bytes().copy_from_slice(block);
                header.set_cksum();
                block.copy_from_slice(header.as_bytes());
            }
            let _ = next(&mut Stream::plain(&bytes));
        }
    }
}
