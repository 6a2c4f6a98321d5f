//! The files with several names that an archive holds already, and the paths of their first names.
//!
//! A path is kept as its directory and its name there, and a directory once for all files in it. A directory that
//! changes while it is read may give a name twice. The member that comes later takes the place of the earlier one when
//! the archive is read, so no further name may lead there any more.

use std::collections::hash_map::{Entry, RandomState};
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;

use rustix::fs::Statx;

use crate::tree::memory::{Memory, Part};

/// The number of the tree's root.
const ROOT: u32 = 0;
/// Where a name begins is a multiple of this, in bytes, so that 32 bits suffice for 32 GiB of names.
const STEP: usize = 8;
/// What is kept of a name besides its bytes: its directory's number, and its length.
const NAME_HEAD: usize = 6;
/// So many bytes of names that are not needed any more are worth a copy of the others.
const MANY_UNUSED: usize = 1024 * 1024;

/// What a file and a directory take at most besides their names, in bytes: their places in the maps.
const FILE: usize = 64;
const DIRECTORY: usize = 128;

/// The first name of each file of which further names are to come. Nothing bounds how many there are, but the memory
/// that they may take: a file for which there is none is archived once more under each of its names.
#[derive(Debug)]
pub(super) struct Links {
    files: HashMap<Identity, File>,
    hasher: RandomState,
    /// Names, each behind its head.
    names: Vec<u8>,
    memory: Part,
    /// How many bytes of the names are of files that were forgotten.
    unused: usize,
    directories: Directories,
    /// The hashes of all first names.
    firsts: HashSet<u64>,
    /// The hashes of those whose path another member has.
    replaced: HashSet<u64>,
}

/// What tells a file from all others in the tree, and from one that gets its inode number when it is gone, which some
/// file systems give out again at once: a keyed hash, so that nobody can make two files of one identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Identity(u64);

#[derive(Debug)]
struct File {
    /// Where its name is, in steps.
    name: u32,
    /// How many names are to come.
    left: u32,
}

/// What a name is of.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Name {
    /// The first one of its file.
    First,
    /// One more of the file that was archived under this path.
    Further(Vec<u8>),
}

impl Links {
    pub(super) fn new(memory: &'static Memory) -> Self {
        let hasher = RandomState::new();
        let directories = Directories::new(hasher.clone(), memory);
        Self {
            files: HashMap::new(),
            hasher,
            names: Vec::new(),
            memory: memory.part(),
            unused: 0,
            directories,
            firsts: HashSet::new(),
            replaced: HashSet::new(),
        }
    }

    /// The identity of a file with these attributes: its number, its type, its size, its time of change, and its time of
    /// birth where the server gives one.
    pub(super) fn identity(&self, stat: &Statx) -> Identity {
        let (modified, born) = (stat.stx_mtime, stat.stx_btime);
        let times = (modified.tv_sec, modified.tv_nsec, born.tv_sec, born.tv_nsec);
        Identity(self.hasher.hash_one((stat.stx_ino, stat.stx_mode & 0o170_000, stat.stx_size, times)))
    }

    /// Notes that an entry is about to be archived: what was archived under its path, or below, is replaced by it.
    pub(super) fn replace(&mut self, path: &[u8]) {
        if self.files.is_empty() {
            return;
        }
        let (directory, name) = split(path);
        let Some(directory) = self.directories.find(directory) else { return };
        self.directories.replace(directory, name);
        let hash = self.hasher.hash_one((directory, name));
        if self.firsts.contains(&hash) {
            self.replaced.insert(hash);
        }
    }

    /// Takes note of the name `path` of a file that has `names`.
    pub(super) fn note(&mut self, identity: Identity, names: u64, path: &[u8]) -> Name {
        let Some(file) = self.files.get_mut(&identity) else {
            self.keep(identity, names, path);
            return Name::First;
        };
        file.left -= 1;
        let (at, is_last) = (file.name, file.left == 0);
        let Some(first) = self.path(at) else {
            // The file is archived once more, under this name.
            self.forget(identity);
            self.keep(identity, names, path);
            return Name::First;
        };
        if is_last {
            self.forget(identity);
        }
        Name::Further(first)
    }

    /// Forgets a file that is not in the archive after all, or whose names are all there.
    pub(super) fn forget(&mut self, identity: Identity) {
        let Some(file) = self.files.remove(&identity) else { return };
        let (directory, name) = name_at(&self.names, file.name);
        let hash = self.hasher.hash_one((directory, name));
        self.unused += size_of_name(name);
        self.firsts.remove(&hash);
        self.directories.leave(directory);
        self.memory.shrink(FILE);
        if self.files.is_empty() {
            self.memory.shrink(self.names.len());
            self.names = Vec::new();
            self.unused = 0;
        } else if self.unused > MANY_UNUSED && self.unused > self.names.len() / 2 {
            self.compact();
        }
    }

    /// A file that is not kept is archived once more under each name.
    fn keep(&mut self, identity: Identity, names: u64, path: &[u8]) {
        let left = u32::try_from(names.saturating_sub(1)).unwrap_or(u32::MAX);
        let (directory, name) = split(path);
        let (Ok(at), Ok(length)) = (u32::try_from(self.names.len() / STEP), u16::try_from(name.len())) else { return };
        if left == 0 {
            return;
        }
        let bytes = FILE + size_of_name(name);
        if !self.memory.grow(bytes) {
            return;
        }
        let Some(directory) = self.directories.enter(directory) else { return self.memory.shrink(bytes) };
        let hash = self.hasher.hash_one((directory, name));
        if !self.firsts.insert(hash) {
            // A name that comes twice: its first file may still be kept.
            self.directories.leave(directory);
            return self.memory.shrink(bytes);
        }
        self.files.insert(identity, File { name: at, left });
        push_name(&mut self.names, directory, length, name);
    }

    /// The path that a name is of; none if another member has it by now.
    fn path(&self, at: u32) -> Option<Vec<u8>> {
        let (directory, name) = name_at(&self.names, at);
        if !self.replaced.is_empty() && self.replaced.contains(&self.hasher.hash_one((directory, name))) {
            return None;
        }
        let mut path = self.directories.path(directory)?;
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        Some(path)
    }

    fn compact(&mut self) {
        let mut names = Vec::with_capacity(self.names.len() - self.unused);
        for file in self.files.values_mut() {
            let (directory, name) = name_at(&self.names, file.name);
            let (at, length) = (names.len() / STEP, name.len());
            // Both fitted before, and are no larger.
            file.name = u32::try_from(at).unwrap_or_default();
            push_name(&mut names, directory, u16::try_from(length).unwrap_or_default(), name);
        }
        self.names = names;
        self.memory.shrink(self.unused);
        self.unused = 0;
    }
}

/// A path's directory and its name there.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let slash = path.iter().rposition(|&byte| byte == b'/');
    slash.map_or((b"", path), |slash| (&path[..slash], &path[slash + 1..]))
}

fn size_of_name(name: &[u8]) -> usize {
    (NAME_HEAD + name.len()).next_multiple_of(STEP)
}

fn push_name(names: &mut Vec<u8>, directory: u32, length: u16, name: &[u8]) {
    names.extend_from_slice(&directory.to_le_bytes());
    names.extend_from_slice(&length.to_le_bytes());
    names.extend_from_slice(name);
    names.resize(names.len().next_multiple_of(STEP), 0);
}

fn name_at(names: &[u8], at: u32) -> (u32, &[u8]) {
    let rest = names.get(at as usize * STEP..).unwrap_or_default();
    let (directory, rest) = rest.split_first_chunk().unwrap_or((&[0; 4], &[]));
    let (length, rest) = rest.split_first_chunk().unwrap_or((&[0; 2], &[]));
    (u32::from_le_bytes(*directory), rest.get(..u16::from_le_bytes(*length).into()).unwrap_or_default())
}

/// The directories that first names are in, and those above them, by number.
#[derive(Debug)]
struct Directories {
    hasher: RandomState,
    all: Vec<Directory>,
    /// Numbers that no directory has.
    free: Vec<u32>,
    /// The number of each that was not replaced, by the hash of the one above and its name.
    numbers: HashMap<u64, u32>,
    /// The one that was asked for last.
    last: (Vec<u8>, u32),
    memory: Part,
}

#[derive(Debug, Default)]
struct Directory {
    above: u32,
    name: Box<[u8]>,
    /// How many files and directories in it are kept.
    uses: u32,
    is_replaced: bool,
}

impl Directories {
    fn new(hasher: RandomState, memory: &'static Memory) -> Self {
        let (all, last, memory) = (vec![Directory::default()], (Vec::new(), ROOT), memory.part());
        Self { hasher, all, free: Vec::new(), numbers: HashMap::new(), last, memory }
    }

    fn hash(&self, above: u32, name: &[u8]) -> u64 {
        self.hasher.hash_one((above, name))
    }

    /// The number of the directory `name` in another one.
    fn below(&self, above: u32, name: &[u8]) -> Option<u32> {
        let number = *self.numbers.get(&self.hash(above, name))?;
        let directory = self.all.get(number as usize)?;
        (directory.above == above && *directory.name == *name).then_some(number)
    }

    /// The number of the directory with this path.
    fn find(&mut self, path: &[u8]) -> Option<u32> {
        if self.last.0 != path {
            let number = names(path).try_fold(ROOT, |at, name| self.below(at, name))?;
            self.last = (path.to_vec(), number);
        }
        Some(self.last.1)
    }

    /// Counts a file in the directory with this path; none if it cannot be kept.
    fn enter(&mut self, path: &[u8]) -> Option<u32> {
        let mut at = self.find(path).unwrap_or(ROOT);
        if at == ROOT {
            for name in names(path) {
                let Some(next) = self.below(at, name).or_else(|| self.make(at, name)) else {
                    self.sweep(at);
                    return None;
                };
                at = next;
            }
        }
        self.all.get_mut(at as usize)?.uses += 1;
        Some(at)
    }

    fn make(&mut self, above: u32, name: &[u8]) -> Option<u32> {
        let hash = self.hash(above, name);
        let number = match self.free.last() {
            Some(&number) => number,
            None => u32::try_from(self.all.len()).ok()?,
        };
        if !self.memory.grow(DIRECTORY + name.len()) {
            return None;
        }
        match self.numbers.entry(hash) {
            // Of another name.
            Entry::Occupied(_) => {
                self.memory.shrink(DIRECTORY + name.len());
                return None;
            }
            Entry::Vacant(place) => place.insert(number),
        };
        let directory = Directory { above, name: name.into(), uses: 0, is_replaced: false };
        if self.free.pop().is_none() {
            self.all.push(directory);
        } else if let Some(place) = self.all.get_mut(number as usize) {
            *place = directory;
        }
        self.all.get_mut(above as usize)?.uses += 1;
        Some(number)
    }

    /// Counts one less in a directory.
    fn leave(&mut self, directory: u32) {
        if let Some(left) = self.all.get_mut(directory as usize) {
            left.uses -= 1;
        }
        self.sweep(directory);
    }

    /// Forgets a directory if nothing is in it any more, and so perhaps those above it.
    fn sweep(&mut self, directory: u32) {
        let mut at = directory;
        while let Some(directory) = self.all.get_mut(at as usize) {
            if at == ROOT || directory.uses > 0 {
                return;
            }
            let Directory { above, name, is_replaced, .. } = std::mem::take(directory);
            if !is_replaced {
                self.numbers.remove(&self.hash(above, &name));
            }
            self.memory.shrink(DIRECTORY + name.len());
            self.free.push(at);
            self.last = (Vec::new(), ROOT);
            if let Some(above) = self.all.get_mut(above as usize) {
                above.uses -= 1;
            }
            at = above;
        }
    }

    /// Notes that another member has a directory's path: none in it is at its place any more.
    fn replace(&mut self, above: u32, name: &[u8]) {
        let Some(number) = self.below(above, name) else { return };
        self.numbers.remove(&self.hash(above, name));
        if let Some(directory) = self.all.get_mut(number as usize) {
            directory.is_replaced = true;
        }
        self.last = (Vec::new(), ROOT);
    }

    /// A directory's path; none if it was replaced, or one above it.
    fn path(&self, number: u32) -> Option<Vec<u8>> {
        let mut names = Vec::new();
        let mut at = number;
        while at != ROOT {
            let directory = self.all.get(at as usize).filter(|directory| !directory.is_replaced)?;
            names.push(&*directory.name);
            at = directory.above;
        }
        names.reverse();
        Some(names.join(&b'/'))
    }
}

fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(links: &mut Links, file: u64, names: u64, path: &str) -> Name {
        links.note(Identity(file), names, path.as_bytes())
    }

    fn links() -> Links {
        static ENOUGH: Memory = Memory::new(usize::MAX / 2);
        Links::new(&ENOUGH)
    }

    fn further(path: &str) -> Name {
        Name::Further(path.into())
    }

    #[test]
    fn each_further_name_is_told_the_first_one() {
        let mut links = links();
        assert_eq!(note(&mut links, 1, 1, "single"), Name::First);
        assert_eq!(note(&mut links, 1, 3, "a"), Name::First);
        assert_eq!(links.note(Identity(2), 2, b"directory/\xff"), Name::First);
        assert_eq!(note(&mut links, 1, 3, "b"), further("a"));
        assert_eq!(note(&mut links, 2, 2, "c"), Name::Further(b"directory/\xff".into()));
        assert_eq!(note(&mut links, 1, 3, "d"), further("a"));
        assert!(links.files.is_empty() && links.names.is_empty() && links.firsts.is_empty());
        assert_eq!(links.directories.all.len() - links.directories.free.len(), 1);
        // A name that came meanwhile: of what was archived no more is known.
        assert_eq!(note(&mut links, 1, 4, "e"), Name::First);
        links.forget(Identity(1));
        assert_eq!(note(&mut links, 1, 4, "f"), Name::First);
    }

    #[test]
    fn no_further_name_leads_to_a_path_that_another_member_has() {
        for replaced in ["a", "a/b", "a/b/file"] {
            let mut links = links();
            assert_eq!(note(&mut links, 1, 4, "a/b/file"), Name::First);
            links.replace(b"a/b/other");
            links.replace(b"a/c");
            links.replace(b"file");
            assert_eq!(note(&mut links, 1, 4, "further"), further("a/b/file"));
            links.replace(replaced.as_bytes());
            assert_eq!(note(&mut links, 1, 4, "again"), Name::First, "{replaced}");
            assert_eq!(note(&mut links, 1, 4, "more"), further("again"));
            // A directory that comes again is another one.
            assert_eq!(note(&mut links, 2, 2, "a/b/new"), Name::First);
            assert_eq!(note(&mut links, 2, 2, "more/new"), further("a/b/new"));
        }
    }

    #[test]
    fn names_that_are_needed_no_more_take_no_memory() {
        let mut links = links();
        note(&mut links, 0, 2, "stays/here");
        for file in 1..200_000 {
            note(&mut links, file, 2, &format!("directory-{}/file-{file}", file / 100));
            if file > 50 {
                let gone = file - 50;
                let first = format!("directory-{}/file-{gone}", gone / 100);
                assert_eq!(note(&mut links, gone, 2, "second"), further(&first));
            }
        }
        assert!(links.names.capacity() <= 4 * MANY_UNUSED && links.directories.all.len() < 10);
        assert_eq!(note(&mut links, 0, 2, "second"), further("stays/here"));
    }

    #[test]
    fn a_file_for_which_there_is_no_memory_is_archived_again_and_all_memory_comes_back() {
        static FEW: Memory = Memory::new(1 << 20);
        let mut links = Links::new(&FEW);
        let path = |file: u64| format!("{}{file}", "a directory with a long name/".repeat((file % 500) as usize));
        for file in 0..100_000 {
            assert_eq!(note(&mut links, file, 2, &path(file)), Name::First);
        }
        let mut linked = 0;
        for file in 0..100_000 {
            let name = note(&mut links, file, 2, "second");
            linked += u64::from(name == further(&path(file)));
            assert!(name == Name::First || name == further(&path(file)));
        }
        assert!((1000..90_000).contains(&linked), "{linked}");
        drop(links);
        assert!(FEW.take(1 << 20).is_some());
    }

    #[test]
    fn half_a_million_files_take_little_memory() {
        let mut links = links();
        for file in 0..500_000 {
            note(&mut links, file, 2, &format!("file-{file}"));
        }
        // The maps' own sizes are not to be had; a place in one has a byte more, and at most 8 of 7 are used.
        let of_files = links.files.capacity() * 8 / 7 * (size_of::<(Identity, File)>() + 1);
        let bytes = links.names.capacity() + of_files + links.firsts.capacity() * 8 / 7 * (size_of::<u64>() + 1);
        assert!(bytes < 44 << 20, "{bytes} bytes");
        for file in 0..500_000 {
            assert_eq!(note(&mut links, file, 2, "second"), further(&format!("file-{file}")));
        }
        assert!(links.files.is_empty());
    }
}
