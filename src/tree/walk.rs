//! Walking a tree by descriptors: where a directory stands in it, and what is in it, a batch at a time.

use std::ffi::{CStr, CString, OsStr};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use rustix::fs::{AtFlags, FileType, RawDir, SeekFrom, Statx, StatxFlags, seek, statx, tell};
use rustix::io::Result;

use crate::beneath;
use crate::reason::rustix_errno;

/// Entries in a batch, about.
const BATCH: usize = 256;
/// Room for what getdents(2) gives at once: a batch of names of ordinary length.
const BUFFER: usize = 8 * 1024;

/// A directory's place in a tree: its name and the directory above. It knows no descriptor, so a tree may be deep.
#[derive(Debug)]
pub(super) struct Node<T> {
    above: Option<Arc<Node<T>>>,
    name: CString,
    /// What else is known of it.
    pub(super) data: T,
}

impl<T> Node<T> {
    /// The directory where the tree begins.
    pub(super) fn root(data: T) -> Arc<Self> {
        Arc::new(Self { above: None, name: CString::default(), data })
    }

    /// A directory in this one.
    pub(super) fn below(self: &Arc<Self>, name: CString, data: T) -> Arc<Self> {
        Arc::new(Self { above: Some(Arc::clone(self)), name, data })
    }

    /// The directory above; none for the root.
    pub(super) fn above(&self) -> Option<&Arc<Self>> {
        self.above.as_ref()
    }

    /// Its name in the directory above.
    pub(super) fn name(&self) -> &CStr {
        &self.name
    }

    /// The path of its entry `name`, from the root.
    pub(super) fn path_of(&self, name: &CStr) -> PathBuf {
        let mut names = vec![name];
        let mut at = self;
        while let Some(above) = &at.above {
            names.push(&at.name);
            at = above;
        }
        names.iter().rev().map(|name| as_path(name)).collect()
    }

    /// Its path from the root.
    pub(super) fn path(&self) -> PathBuf {
        self.above.as_ref().map_or_else(PathBuf::new, |above| above.path_of(&self.name))
    }
}

/// One after the other: a call within a call for each level would need a stack as deep as the tree.
impl<T> Drop for Node<T> {
    fn drop(&mut self) {
        let mut next = self.above.take();
        while let Some(mut last) = next.and_then(Arc::into_inner) {
            next = last.above.take();
        }
    }
}

/// Asks the server for what is known of an open entry, whatever this client remembers.
///
/// # Errors
/// Where the server fails; ESTALE where the entry is gone.
pub fn look_again(entry: impl AsFd) -> Result<Statx> {
    statx(entry, c"", AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS)
}

/// A path for one openat2(2) is shorter than this: the kernel's limit is 4096.
const LONGEST_PATH: usize = 3800;

/// The way that names lead, in paths that the kernel takes.
pub(super) fn paths<'a>(names: impl IntoIterator<Item = &'a Path>) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = Vec::new();
    for name in names {
        match paths.last_mut() {
            Some(path) if path.as_os_str().len() + name.as_os_str().len() < LONGEST_PATH => path.push(name),
            _ => paths.push(name.to_owned()),
        }
    }
    paths
}

/// Opens the directory that [`paths`] lead to.
pub(super) fn follow(from: BorrowedFd<'_>, paths: &[PathBuf], flags: OFlag) -> Result<OwnedFd> {
    let Some((last, before)) = paths.split_last() else { return open(from, ".", flags | OFlag::O_DIRECTORY, 0) };
    let mut at: Option<OwnedFd> = None;
    for path in before {
        at = Some(open(at.as_ref().map_or(from, AsFd::as_fd), path, OFlag::O_PATH | OFlag::O_DIRECTORY, 0)?);
    }
    open(at.as_ref().map_or(from, AsFd::as_fd), last, flags | OFlag::O_DIRECTORY, 0)
}

/// A name as a path.
pub(super) fn as_path(name: &CStr) -> &Path {
    Path::new(OsStr::from_bytes(name.to_bytes()))
}

/// [`beneath::open`] for the names and errors of this module.
pub(super) fn open(directory: impl AsFd, name: impl AsRef<Path>, flags: OFlag, mode: u32) -> Result<OwnedFd> {
    beneath::open(directory, name, flags | OFlag::O_NOFOLLOW, Mode::from_bits_truncate(mode)).map_err(rustix_errno)
}

/// An entry of a directory, and what the directory says of its type: a hint only, for it may be another by now.
pub(super) struct Entry {
    pub(super) name: CString,
    pub(super) kind: FileType,
}

/// Some of a directory's entries.
pub(super) struct Batch {
    pub(super) entries: Vec<Entry>,
    /// Where the next batch begins; none at the end.
    pub(super) next: Option<u64>,
}

/// Reads a batch; `from` is where it begins, 0 for the first one. A `narrow` one has few entries.
pub(super) fn read(directory: impl AsFd, from: u64, narrow: bool) -> Result<Batch> {
    // A seek to where it stands already is no change, and not every file system's positions can be sought.
    if tell(&directory)? != from {
        seek(&directory, SeekFrom::Start(from))?;
    }
    let (size, enough) = if narrow { (BUFFER / 16, 1) } else { (BUFFER, BATCH) };
    let mut buffer = vec![MaybeUninit::uninit(); size];
    let mut raw = RawDir::new(&directory, &mut buffer);
    let mut entries = Vec::new();
    while let Some(entry) = raw.next() {
        let entry = entry?;
        let (name, kind, next) = (entry.file_name().to_owned(), entry.file_type(), entry.next_entry_cookie());
        if name.as_bytes() != b"." && name.as_bytes() != b".." {
            entries.push(Entry { name, kind });
        }
        if entries.len() >= enough && raw.is_buffer_empty() {
            return Ok(Batch { entries, next: Some(next) });
        }
    }
    Ok(Batch { entries, next: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::fs::File;

    #[test]
    fn every_entry_is_in_one_batch_also_when_the_directory_is_opened_anew() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..1000 {
            File::create(folder.path().join(format!("file {number}"))).unwrap();
        }
        for narrow in [false, true] {
            let mut names = HashSet::new();
            let mut next = Some(0);
            while let Some(from) = next {
                let batch = read(File::open(folder.path()).unwrap(), from, narrow).unwrap();
                assert!(batch.entries.len() < if narrow { 50 } else { 600 });
                assert!(batch.entries.into_iter().all(|entry| names.insert(entry.name)));
                next = batch.next;
            }
            assert_eq!(names.len(), 1000);
        }
    }

    #[test]
    fn a_node_a_million_deep_knows_its_path_and_goes() {
        let mut node = Node::root(());
        for _ in 0..1_000_000 {
            node = node.below(c"d".into(), ());
        }
        assert_eq!(node.path_of(c"f").as_os_str().len(), 2 * 1_000_000 + 1);
        drop(node);
    }
}
