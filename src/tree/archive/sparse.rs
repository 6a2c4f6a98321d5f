//! Files with holes: where their data is, and how tar says it.
//!
//! Written is GNU tar's version 1.0: the map of the data stands before the data, in decimal lines. Read are 0.0, 0.1
//! and 1.0, and the map in the headers of GNU tar's older format. All of them leave it open whether a piece of data
//! in the middle is filled up to a block; here it always ends at one, so that there is one way to read it.

use std::fmt::Write as _;
use std::io::{self, BufRead as _};
use std::os::fd::AsFd;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::stream::Stream;
use super::{ArchiveError, BLOCK, number, padding};

/// A file in more pieces is archived with its last holes as zeroes, which the reader makes holes of again.
const MOST_WRITTEN: usize = 64 * 1024;
/// A file in more pieces is not restored: the map must be held in memory.
const MOST_READ: usize = 1024 * 1024;
/// The longest line of a map, in bytes: a number of 64 bits.
const LONGEST_LINE: u64 = 24;

/// A piece of a file's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Where in the file it begins, in bytes.
    pub(super) offset: u64,
    /// In bytes.
    pub(super) length: u64,
}

/// Where the data of an open file of `size` bytes is. Where the file system does not tell, all of it is data.
pub(super) fn pieces(file: impl AsFd, size: u64) -> rustix::io::Result<Vec<Piece>> {
    let block = BLOCK as u64;
    let mut pieces: Vec<Piece> = Vec::new();
    let mut at = 0;
    while at < size {
        let data = match rustix::fs::seek(&file, SeekFrom::Data(at)) {
            Ok(data) => data.max(at),
            Err(Errno::INVAL | Errno::NOTSUP) => at,
            // Nothing but a hole from here.
            Err(Errno::NXIO) => break,
            Err(errno) => return Err(errno),
        };
        if data >= size {
            break;
        }
        let last = pieces.len() + 1 == MOST_WRITTEN;
        let end = match rustix::fs::seek(&file, SeekFrom::Hole(data)) {
            Ok(end) if !last => end.max(data + 1).checked_next_multiple_of(block).unwrap_or(size).min(size),
            Ok(_) | Err(Errno::INVAL | Errno::NOTSUP | Errno::NXIO) => size,
            Err(errno) => return Err(errno),
        };
        let begin = data / block * block;
        match pieces.last_mut() {
            Some(before) if before.offset + before.length == begin => before.length = end - before.offset,
            _ => pieces.push(Piece { offset: begin, length: end - begin }),
        }
        at = end;
    }
    Ok(pieces)
}

/// The map as it stands before the data, filled up to a block.
pub(super) fn map(pieces: &[Piece], size: u64) -> Vec<u8> {
    let end = pieces.last().map_or(0, |piece| piece.offset + piece.length);
    // GNU tar ends a map with an empty piece where the file ends with a hole.
    let hole = (end < size).then_some(Piece { offset: size, length: 0 });
    let mut text = format!("{}\n", pieces.len() + usize::from(hole.is_some()));
    for piece in pieces.iter().chain(&hole) {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}\n{}", piece.offset, piece.length);
    }
    let mut map = text.into_bytes();
    map.resize(map.len().next_multiple_of(BLOCK), 0);
    map
}

/// Reads the map that stands before the data. Gives it with the number of bytes that it took.
pub(super) fn read_map(stream: &mut Stream<'_>) -> Result<(Vec<Piece>, u64), ArchiveError> {
    let mut taken = 0;
    let mut line = || -> Result<u64, ArchiveError> {
        let mut line = Vec::new();
        io::Read::take(&mut *stream, LONGEST_LINE).read_until(b'\n', &mut line).map_err(super::stream::failed)?;
        taken += line.len() as u64;
        match line.strip_suffix(b"\n") {
            Some(digits) => number::decimal(digits).ok_or_else(no_map),
            None if line.len() as u64 == LONGEST_LINE => Err(no_map()),
            None => Err(ArchiveError::Truncated),
        }
    };
    let count = line()?;
    let mut pieces = Vec::new();
    for _ in 0..count {
        let (offset, length) = (line()?, line()?);
        push(&mut pieces, Piece { offset, length })?;
    }
    let filling = padding(taken);
    stream.skip(filling as u64)?;
    Ok((pieces, taken + filling as u64))
}

/// Adds a piece as an archive tells it.
pub(super) fn push(pieces: &mut Vec<Piece>, piece: Piece) -> Result<(), ArchiveError> {
    if pieces.len() == MOST_READ {
        return Err(ArchiveError::damaged("a file with holes is in more than a million pieces"));
    }
    pieces.push(piece);
    Ok(())
}

/// Takes pieces from an archive for good: in order, apart from each other, within the file, and together just what is
/// stored of it.
pub(super) fn check(mut pieces: Vec<Piece>, size: u64, stored: u64) -> Result<Vec<Piece>, ArchiveError> {
    pieces.retain(|piece| piece.length != 0);
    let mut end = 0;
    let mut total = 0_u64;
    for piece in &pieces {
        if piece.offset < end || !total.is_multiple_of(BLOCK as u64) {
            return Err(no_map());
        }
        end = piece.offset.checked_add(piece.length).filter(|&end| end <= size).ok_or_else(no_map)?;
        total += piece.length;
    }
    if total == stored { Ok(pieces) } else { Err(no_map()) }
}

fn no_map() -> ArchiveError {
    ArchiveError::damaged("the map of a file with holes does not fit its data")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    fn piece(offset: u64, length: u64) -> Piece {
        Piece { offset, length }
    }

    #[test]
    fn holes_are_found_where_they_are() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(10 << 20).unwrap();
        assert_eq!(pieces(&file, 10 << 20).unwrap(), []);
        file.write_all_at(&[1; 4096], 1 << 20).unwrap();
        file.write_all_at(&[1; 10], 9 << 20).unwrap();
        let found = pieces(&file, 10 << 20).unwrap();
        assert_eq!(found, [piece(1 << 20, 4096), piece(9 << 20, 4096)]);
        // Cut off at what its size was said to be.
        assert_eq!(pieces(&file, (9 << 20) + 10).unwrap()[1], piece(9 << 20, 10));
        assert_eq!(pieces(&file, 1 << 20).unwrap(), []);
    }

    #[test]
    fn a_map_is_read_as_it_was_written() {
        let pieces = vec![piece(0, 512), piece(4096, 1024), piece(1 << 40, 3)];
        let map = map(&pieces, 1 << 41);
        let mut stream = Stream::plain(map.as_slice());
        let (read, taken) = read_map(&mut stream).unwrap();
        assert_eq!(taken, map.len() as u64);
        assert_eq!(check(read, 1 << 41, 512 + 1024 + 3).unwrap(), pieces);
    }

    #[test]
    fn maps_that_lie_are_refused() {
        let fails = |pieces: &[Piece], size, stored| check(pieces.to_vec(), size, stored).is_err();
        assert!(fails(&[piece(0, 512), piece(100, 512)], 4096, 1024));
        assert!(fails(&[piece(0, 512)], 511, 512));
        assert!(fails(&[piece(u64::MAX, 512)], u64::MAX, 512));
        assert!(fails(&[piece(0, 100), piece(512, 512)], 4096, 612));
        assert!(fails(&[piece(0, 512)], 4096, 1024));
        for text in ["", "x\n", "2\n0\n512\n", "18446744073709551616\n", "99999999999999999999999999999999\n"] {
            assert!(read_map(&mut Stream::plain(text.as_bytes())).is_err(), "{text}");
        }
    }
}
