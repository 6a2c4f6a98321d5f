//! Trees: filling one, all that one holds, and what differs between two.

use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A tree as it is at one moment: each entry by its path below the root, which is the empty path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content(BTreeMap<PathBuf, Entry>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    /// With the kind of the entry.
    mode: u32,
    owner: (u32, u32),
    modified: (i64, i64),
    names: u64,
    /// Of a file, or what a link leads to.
    bytes: Vec<u8>,
}

impl Content {
    /// Reads a tree; an entry that goes meanwhile is left out.
    pub fn of(root: &Path) -> Self {
        let mut paths = vec![PathBuf::new()];
        let mut found = BTreeMap::new();
        while let Some(path) = paths.pop() {
            let full = if path.as_os_str().is_empty() { root.to_owned() } else { root.join(&path) };
            let Ok(stat) = std::fs::symlink_metadata(&full) else { continue };
            let bytes = if stat.is_dir() {
                let entries = std::fs::read_dir(&full).into_iter().flatten().flatten();
                paths.extend(entries.map(|entry| path.join(entry.file_name())));
                Vec::new()
            } else if stat.is_symlink() {
                std::fs::read_link(&full).unwrap_or_default().into_os_string().into_encoded_bytes()
            } else if stat.is_file() {
                std::fs::read(&full).unwrap_or_default()
            } else {
                stat.rdev().to_le_bytes().to_vec()
            };
            let entry = Entry {
                mode: stat.mode(),
                owner: (stat.uid(), stat.gid()),
                modified: (stat.mtime(), stat.mtime_nsec()),
                names: if stat.is_dir() { 0 } else { stat.nlink() },
                bytes,
            };
            found.insert(path, entry);
        }
        Self(found)
    }

    /// How many entries it has below its root.
    pub fn len(&self) -> usize {
        self.0.len().saturating_sub(1)
    }

    /// What is otherwise in a tree that should be like this one; none if nothing is.
    pub fn differences(&self, other: &Self) -> Option<Differences> {
        let mut found = Differences::default();
        for (path, entry) in &self.0 {
            match other.0.get(path) {
                None => found.missing.push(path.clone()),
                Some(is) if is.bytes != entry.bytes => found.other_bytes.push(path.clone()),
                Some(is) if is != entry => found.other_attributes.push(path.clone()),
                Some(_) => {}
            }
        }
        found.too_many.extend(other.0.keys().filter(|path| !self.0.contains_key(*path)).cloned());
        (found != Differences::default()).then_some(found)
    }

    /// Whether a tree on disk has just this; else `what` was compared and what differs.
    pub fn is_at(&self, root: &Path, what: &str) -> Result<(), String> {
        match self.differences(&Self::of(root)) {
            None => Ok(()),
            Some(differences) => Err(format!("{what}: of {} entries {differences}", self.len())),
        }
    }
}

/// The paths at which two trees differ.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Differences {
    pub missing: Vec<PathBuf>,
    pub too_many: Vec<PathBuf>,
    pub other_bytes: Vec<PathBuf>,
    pub other_attributes: Vec<PathBuf>,
}

impl fmt::Display for Differences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = [
            ("are missing", &self.missing),
            ("are too many", &self.too_many),
            ("have other content", &self.other_bytes),
            ("have other attributes", &self.other_attributes),
        ];
        let some = kinds.iter().filter(|(_, paths)| !paths.is_empty());
        for (number, (what, paths)) in some.enumerate() {
            let comma = if number == 0 { "" } else { ", " };
            write!(f, "{comma}{} {what} ({} …)", paths.len(), paths[0].display())?;
        }
        Ok(())
    }
}

/// Fills a directory: so many folders of so many files, of 4 KiB that no other file has, and two names of one file in
/// every second folder; and some files beside the folders.
pub fn fill(root: &Path, folders: usize, files: usize) {
    let in_folders = folders * files;
    for file in 0..in_folders / 4 {
        std::fs::write(root.join(format!("file-{file}")), bytes(in_folders + file)).unwrap();
    }
    for folder in 0..folders {
        let path = root.join(format!("folder-{folder}"));
        std::fs::create_dir(&path).unwrap();
        for file in 0..files {
            std::fs::write(path.join(format!("file-{file}")), bytes(folder * files + file)).unwrap();
        }
        if folder % 2 == 1 {
            let first = root.join(format!("folder-{}/file-0", folder - 1));
            std::fs::hard_link(first, path.join("second-name")).unwrap();
        }
    }
}

/// 4 KiB that nothing compresses, another for each seed.
pub fn bytes(seed: usize) -> Vec<u8> {
    let mut state = seed as u64 + 1;
    std::iter::repeat_with(|| random(&mut state)).take(512).flat_map(u64::to_le_bytes).collect()
}

/// The next of a row of numbers that looks random (SplitMix64).
pub fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut number = *state;
    number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
