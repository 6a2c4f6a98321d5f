//! An archive's bytes, decompressed, in tar's blocks, to an end that must be there.
//!
//! An archive of which the end is missing looks whole to who reads it member by member. So the two blocks of zeroes
//! that end every archive are asked for, and all is read behind them, until the decompressor has checked its sums.

use std::io::{self, BufRead, BufReader, Cursor, Read};

use flate2::bufread::MultiGzDecoder;

use super::{ArchiveError, BLOCK, CHUNK, Reason as _, padding};

const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// How far back zstd may refer, as a power of two, in bytes: it is held in memory. Level 3 takes 21, level 19 takes 23.
const ZSTD_WINDOW: u32 = 24;
/// How many bytes of zeroes may follow the archive's end: tar fills up its last record, of 10 KiB by default.
const MOST_FILLING: u64 = 4 * 1024 * 1024;

/// The bytes of an archive.
pub(super) struct Stream<'a> {
    inner: Box<dyn BufRead + 'a>,
}

impl<'a> Stream<'a> {
    /// Begins an archive; whether and how it is compressed is seen from its first bytes.
    pub(super) fn new(mut archive: impl Read + 'a) -> Result<Self, ArchiveError> {
        let mut beginning = Vec::with_capacity(ZSTD.len());
        archive.by_ref().take(ZSTD.len() as u64).read_to_end(&mut beginning).map_err(failed)?;
        let zstd = beginning == ZSTD;
        let gzip = beginning.starts_with(&GZIP);
        let archive = BufReader::with_capacity(CHUNK, Cursor::new(beginning).chain(archive));
        if zstd {
            let mut decoder = zstd::Decoder::with_buffer(archive).map_err(failed)?;
            decoder.window_log_max(ZSTD_WINDOW).map_err(failed)?;
            Ok(Self { inner: Box::new(BufReader::with_capacity(CHUNK, decoder)) })
        } else if gzip {
            Ok(Self { inner: Box::new(BufReader::with_capacity(CHUNK, MultiGzDecoder::new(archive))) })
        } else {
            Ok(Self { inner: Box::new(archive) })
        }
    }

    /// Bytes as they are.
    #[cfg(test)]
    pub(super) fn plain(bytes: &'a [u8]) -> Self {
        Self { inner: Box::new(bytes) }
    }

    /// The next block.
    pub(super) fn block(&mut self) -> Result<[u8; BLOCK], ArchiveError> {
        let mut block = [0; BLOCK];
        self.fill(&mut block)?;
        Ok(block)
    }

    /// The next bytes, as many as there is room for.
    pub(super) fn fill(&mut self, bytes: &mut [u8]) -> Result<(), ArchiveError> {
        self.inner.read_exact(bytes).map_err(failed)
    }

    /// Passes over bytes.
    pub(super) fn skip(&mut self, count: u64) -> Result<(), ArchiveError> {
        let skipped = io::copy(&mut self.inner.by_ref().take(count), &mut io::sink()).map_err(failed)?;
        if skipped == count { Ok(()) } else { Err(ArchiveError::Truncated) }
    }

    /// A small content with what fills up its last block. The caller bounds `size`.
    pub(super) fn content(&mut self, size: u64) -> Result<Vec<u8>, ArchiveError> {
        let mut content = Vec::new();
        self.inner.by_ref().take(size).read_to_end(&mut content).map_err(failed)?;
        if content.len() as u64 != size {
            return Err(ArchiveError::Truncated);
        }
        self.skip(padding(size) as u64)?;
        Ok(content)
    }

    /// Reads what follows the first block of zeroes: a second one, and nothing else.
    pub(super) fn end(&mut self) -> Result<(), ArchiveError> {
        let is_zero = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0);
        let mut zero = is_zero(&self.block()?);
        let mut followed = 0;
        while zero {
            let rest = match self.inner.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                rest => rest.map_err(failed)?,
            };
            if rest.is_empty() {
                return Ok(());
            }
            let length = rest.len();
            followed += length as u64;
            zero = is_zero(rest) && followed <= MOST_FILLING;
            self.inner.consume(length);
        }
        Err(ArchiveError::damaged("something follows its end"))
    }
}

impl Read for Stream<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.inner.read(bytes)
    }
}

impl BufRead for Stream<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.inner.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        self.inner.consume(amount);
    }
}

/// What it means that an archive could not be read on.
#[allow(clippy::needless_pass_by_value, reason = "it is what map_err gives")]
pub(super) fn failed(error: io::Error) -> ArchiveError {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        ArchiveError::Truncated
    } else if error.raw_os_error().is_some() {
        ArchiveError::tree("read", b"the archive", error.errno())
    } else {
        ArchiveError::damaged(error.to_string())
    }
}
