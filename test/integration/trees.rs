//! Trees with an entry of every kind, and all that is to be kept of them, as the server's own disk shows it.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags, chownat, lgetxattr, llistxattr,
    lsetxattr, makedev, mkdirat, mknodat, utimensat,
};

use crate::kit::server::is_ganesha;

/// All that is kept of an entry besides its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    mode: u32,
    uid: u32,
    gid: u32,
    size: u64,
    device: u64,
    modified: (i64, i64),
    /// The server's disks are mounted so that looking at an entry does not change this.
    accessed: (i64, i64),
    leads_to: Option<PathBuf>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The first path, in order, of the same file.
    first_name: PathBuf,
}

/// Entries by their path below a root.
pub type Entries = BTreeMap<PathBuf, Entry>;

const MIB: u64 = 1 << 20;

/// Fills a directory with entries of every kind and attribute.
pub fn fill(root: &Path) {
    let at = |name: &str| root.join(name);
    let write = |name: &str, bytes: &[u8]| std::fs::write(at(name), bytes).unwrap();
    std::fs::create_dir_all(at("deep/er/still")).unwrap();
    std::fs::create_dir(at("empty")).unwrap();
    write("plain", b"plain");
    write("nothing", b"");
    write("deep/er/still/large", &(0..MIB).map(|byte| (byte % 251) as u8).collect::<Vec<_>>());
    write("setuid", b"#!/bin/sh");
    write("owned", b"of somebody else");
    write("old", b"from long ago");
    write("marked", b"with attributes");
    write("listed", b"with a list");
    write("deep/shared", b"one file, three names");
    std::fs::hard_link(at("deep/shared"), at("deep/er/also")).unwrap();
    std::fs::hard_link(at("deep/shared"), at("and-here")).unwrap();
    symlink("plain", at("link")).unwrap();
    symlink("/nowhere/at/all", at("dangling")).unwrap();
    symlink("../../..", at("deep/up")).unwrap();
    let name = OsStr::from_bytes(b"not-utf8-\xff\xfe");
    std::fs::write(root.join(name), "bytes").unwrap();
    write(&"n".repeat(255), b"a long name");
    write("a name with\nnewline, and 'quotes'", b"odd");
    let sparse = std::fs::File::create(at("sparse")).unwrap();
    sparse.write_all_at(b"begin", 0).unwrap();
    sparse.write_all_at(b"middle", MIB).unwrap();
    sparse.set_len(2 * MIB).unwrap();
    for (name, kind) in [("fifo", FileType::Fifo), ("socket", FileType::Socket)] {
        mknodat(CWD, at(name), kind, Mode::from_raw_mode(0o640), 0).unwrap();
    }
    for (name, kind) in [("character", FileType::CharacterDevice), ("block", FileType::BlockDevice)] {
        mknodat(CWD, at(name), kind, Mode::from_raw_mode(0o604), makedev(7, 42)).unwrap();
    }
    for (name, value) in [("user.colour", &b"blue\0and green"[..]), ("user.empty", b""), ("user.long", &[7; 2000])] {
        lsetxattr(at("marked"), name, value, XattrFlags::empty()).unwrap();
    }
    lsetxattr(at("deep"), "user.on-a-directory", b"yes", XattrFlags::empty()).unwrap();
    if !is_ganesha() {
        lsetxattr(at("listed"), "system.posix_acl_access", &list(), XattrFlags::empty()).unwrap();
    }
    for (name, uid, gid) in [("owned", 1234, 4321), ("link", 17, 18), ("deep/er", 99, 100), ("fifo", 5, 6)] {
        chownat(CWD, at(name), Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)), AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
    for (name, mode) in [
        ("setuid", 0o6755),
        ("owned", 0o4711),
        ("plain", 0o604),
        ("empty", 0o1777),
        ("deep", 0o2775),
        ("deep/er", 0o500),
    ] {
        std::fs::set_permissions(at(name), std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    let files = ["old", "link", "socket", "sparse", "deep/shared", "empty", "deep/er/still", "deep/er", "deep"];
    for (number, name) in files.into_iter().enumerate() {
        let number = i64::try_from(number).unwrap();
        let times = Timestamps {
            last_access: time(1_000_000_000 + number, 123_456_789),
            last_modification: time(900_000_000 + number, 987_654_321),
        };
        utimensat(CWD, at(name), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
}

/// A POSIX access control list, as the kernel stores it: version 2; tag, permissions, id of each entry.
fn list() -> Vec<u8> {
    let entries = [(1, 6, u32::MAX), (2, 4, 1234), (4, 0, u32::MAX), (0x10, 4, u32::MAX), (0x20, 0, u32::MAX)];
    let entries = entries.into_iter().flat_map(|(tag, bits, id): (u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &bits.to_le_bytes(), &id.to_le_bytes()].concat()
    });
    2_u32.to_le_bytes().into_iter().chain(entries).collect()
}

/// All that is below a directory, and the directory itself as the empty path; contents are not read.
pub fn entries(root: &Path) -> Entries {
    let mut paths = vec![PathBuf::new()];
    let mut found = BTreeMap::new();
    let mut first_names: BTreeMap<u64, PathBuf> = BTreeMap::new();
    while let Some(path) = paths.pop() {
        let full = root.join(&path);
        let stat = std::fs::symlink_metadata(&full).unwrap();
        let kind = stat.file_type();
        if kind.is_dir() {
            paths.extend(std::fs::read_dir(&full).unwrap().map(|entry| path.join(entry.unwrap().file_name())));
        }
        let first_name = first_names.entry(stat.ino()).or_insert_with(|| path.clone());
        if path < *first_name {
            first_name.clone_from(&path);
        }
        let is_device = kind.is_block_device() || kind.is_char_device();
        let entry = Entry {
            mode: stat.mode(),
            uid: stat.uid(),
            gid: stat.gid(),
            size: if kind.is_file() || kind.is_symlink() { stat.size() } else { 0 },
            device: if is_device { stat.rdev() } else { 0 },
            modified: (stat.mtime(), stat.mtime_nsec()),
            accessed: (stat.atime(), stat.atime_nsec()),
            leads_to: std::fs::read_link(&full).ok(),
            xattrs: if kind.is_file() || kind.is_dir() { xattrs(&full) } else { BTreeMap::new() },
            first_name: PathBuf::from(stat.ino().to_string()),
        };
        found.insert(path, entry);
    }
    for entry in found.values_mut() {
        let inode: u64 = entry.first_name.to_str().unwrap().parse().unwrap();
        entry.first_name.clone_from(&first_names[&inode]);
    }
    found
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = Vec::with_capacity(65536);
    llistxattr(path, rustix::buffer::spare_capacity(&mut names)).unwrap();
    names
        .split(|&byte| byte == 0)
        .filter(|name| name.starts_with(b"user.") || name.starts_with(b"system.posix_acl"))
        .map(|name| {
            let mut value = Vec::with_capacity(65536);
            let text = CString::new(name).unwrap();
            lgetxattr(path, text.as_c_str(), rustix::buffer::spare_capacity(&mut value)).unwrap();
            (name.to_vec(), value)
        })
        .collect()
}

/// Nothing differs between what a tree was and another one, contents included, but for what the server does not keep.
pub fn assert_same(before: &Entries, source: &Path, target: &Path) {
    assert_same_but(before, source, target, |_| {});
}

/// The same where some of what is kept does not count: `forget` takes that away.
pub fn assert_same_but(before: &Entries, source: &Path, target: &Path, forget: impl Fn(&mut Entry)) {
    let (mut before, mut after) = (before.clone(), entries(target));
    for entry in before.values_mut().chain(after.values_mut()) {
        forget(entry);
        if is_ganesha() {
            entry.xattrs.clear();
            if entry.leads_to.is_some() {
                (entry.modified, entry.accessed) = Default::default();
            }
        }
    }
    let names = |entries: &Entries| entries.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&before), names(&after));
    for (path, entry) in &before {
        assert_eq!(&after[path], entry, "{}", path.display());
        let (from, to) = (source.join(path), target.join(path));
        let (from_stat, to_stat) = (std::fs::symlink_metadata(&from).unwrap(), std::fs::symlink_metadata(&to).unwrap());
        if to_stat.is_file() {
            assert!(std::fs::read(&from).unwrap() == std::fs::read(&to).unwrap(), "{}", path.display());
            // Holes stay holes. (The server may have more blocks than a file needs, for what may come behind its end.)
            if from_stat.blocks() * 512 < from_stat.size() / 2 {
                assert!(to_stat.blocks() * 512 < to_stat.size() / 2, "{}: {} blocks", path.display(), to_stat.blocks());
            }
        }
        let is_special = |kind: std::fs::FileType| kind.is_fifo() || kind.is_socket();
        assert_eq!(is_special(from_stat.file_type()), is_special(to_stat.file_type()));
    }
}

/// Goes down so many directories of one name, each in the one before; makes them if it is to.
pub fn descend(root: &Path, name: &str, depth: usize, make: bool) {
    let mut at = OwnedFd::from(File::open(root).unwrap());
    for _ in 0..depth {
        if make {
            mkdirat(&at, name, Mode::RWXU).unwrap();
        }
        at = nfs_csi::beneath::open_dir(&at, name).unwrap();
    }
}
