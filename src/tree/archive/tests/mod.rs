//! Trees to archives and back, archives of other programs, and archives that are out for harm.

mod changing;
mod foreign;
mod hostile;
mod lists;
mod round_trip;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
use tar::{EntryType, Header};

use super::{ArchiveError, BLOCK, DEEPEST, Limits, pax, read, write};
use crate::tree::Progress;
use crate::tree::attributes::xattrs;

const ALL: Limits<'static> = Limits { devices: true, space: None };

fn directory(path: &Path) -> OwnedFd {
    File::open(path).unwrap().into()
}

fn archive(tree: &Path) -> Vec<u8> {
    let mut archive = Vec::new();
    let bytes = write(directory(tree), None, &mut archive, &Progress::default()).unwrap();
    assert_eq!(bytes, archive.len() as u64);
    archive
}

fn unpack(archive: &[u8], target: &Path) -> Result<(), ArchiveError> {
    read(archive, directory(target), ALL, &Progress::default())
}

fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

/// All that is kept of an entry.
#[derive(Debug, PartialEq)]
struct Entry {
    kind: String,
    mode: u32,
    owner: (u32, u32),
    modified: (i64, i64),
    accessed: (i64, i64),
    device: u64,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    content: Vec<u8>,
    /// The first of the entry's names.
    first: PathBuf,
}

/// A tree's entries by their names, with the space that their data takes. Looking at them leaves no trace.
fn entries(tree: &Path) -> (BTreeMap<PathBuf, Entry>, u64) {
    let mut found = BTreeMap::new();
    let mut inodes = BTreeMap::new();
    let mut space = 0;
    let mut waiting = vec![PathBuf::new()];
    while let Some(path) = waiting.pop() {
        let full = tree.join(&path);
        let stat = fs::symlink_metadata(&full).unwrap();
        let kind = stat.file_type();
        let mut content = Vec::new();
        let mut attributes = Vec::new();
        if kind.is_file() || kind.is_dir() {
            let mut file = OpenOptions::new().read(true).custom_flags(nix::libc::O_NOATIME).open(&full).unwrap();
            attributes = xattrs(&file).unwrap().into_iter().map(|(name, value)| (name.into_bytes(), value)).collect();
            attributes.sort();
            if kind.is_file() {
                file.read_to_end(&mut content).unwrap();
                space += stat.blocks() * 512;
            }
        }
        if kind.is_symlink() {
            content = fs::read_link(&full).unwrap().as_os_str().as_bytes().to_vec();
        }
        if kind.is_dir() {
            let mut names: Vec<_> = fs::read_dir(&full).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            waiting.extend(names.into_iter().rev().map(|name| path.join(name)));
        }
        set_times(&full, (stat.atime(), stat.atime_nsec()), (stat.mtime(), stat.mtime_nsec()));
        let first = inodes.entry(stat.ino()).or_insert_with(|| path.clone()).clone();
        let entry = Entry {
            kind: format!("{kind:?} {}", kind.is_socket()),
            mode: stat.mode(),
            owner: (stat.uid(), stat.gid()),
            modified: (stat.mtime(), stat.mtime_nsec()),
            accessed: (stat.atime(), stat.atime_nsec()),
            device: stat.rdev(),
            xattrs: attributes,
            content,
            first,
        };
        found.insert(path, entry);
    }
    (found, space)
}

/// That a tree is what [`entries`] once told.
fn assert_equal((expected, expected_space): &(BTreeMap<PathBuf, Entry>, u64), tree: &Path) {
    let (found, space) = entries(tree);
    for (path, entry) in expected {
        assert_eq!(found.get(path), Some(entry), "{}", path.display());
    }
    assert_eq!(found.len(), expected.len());
    assert!(space <= expected_space + expected_space / 8, "{space} bytes take the place of {expected_space}");
}

fn set_times(path: &Path, accessed: (i64, i64), modified: (i64, i64)) {
    let time = |(tv_sec, tv_nsec)| Timespec { tv_sec, tv_nsec };
    let times = Timestamps { last_access: time(accessed), last_modification: time(modified) };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// A tar archive made by hand, of whatever is asked for.
#[derive(Clone, Default)]
struct Tar(Vec<u8>);

impl Tar {
    fn header(name: &[u8], kind: EntryType) -> Header {
        let mut header = Header::new_ustar();
        header.as_old_mut().name[..name.len()].copy_from_slice(name);
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_000_000_000);
        header.set_size(0);
        header
    }

    fn raw(mut self, header: &Header, content: &[u8]) -> Self {
        let mut header = header.clone();
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(BLOCK), 0);
        self
    }

    fn with_content(self, name: &str, kind: EntryType, content: &[u8]) -> Self {
        let mut header = Self::header(name.as_bytes(), kind);
        header.set_size(content.len() as u64);
        self.raw(&header, content)
    }

    fn file(self, name: &str, content: &str) -> Self {
        self.with_content(name, EntryType::Regular, content.as_bytes())
    }

    fn directory(self, name: &str) -> Self {
        let mut header = Self::header(name.as_bytes(), EntryType::Directory);
        header.set_mode(0o755);
        self.raw(&header, b"")
    }

    fn to(self, name: &str, kind: EntryType, target: &str) -> Self {
        let mut header = Self::header(name.as_bytes(), kind);
        header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
        self.raw(&header, b"")
    }

    fn symlink(self, name: &str, target: &str) -> Self {
        self.to(name, EntryType::Symlink, target)
    }

    fn link(self, name: &str, target: &str) -> Self {
        self.to(name, EntryType::Link, target)
    }

    fn pax(self, records: &[(&[u8], &[u8])]) -> Self {
        let mut content = Vec::new();
        for (key, value) in records {
            pax::push(&mut content, key, value);
        }
        let mut header = Self::header(b"PaxHeaders.0/x", EntryType::XHeader);
        header.set_size(content.len() as u64);
        self.raw(&header, &content)
    }

    fn end(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 2 * BLOCK, 0);
        self.0
    }
}
