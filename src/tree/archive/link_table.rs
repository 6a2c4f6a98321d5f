//! The files with several names that an archive holds already.

use std::collections::HashMap;

/// Where a file's path begins is a multiple of this, in bytes: so a number of 32 bits tells it, in 32 GiB of them.
const STEP: usize = 8;

/// The first name of each file of which further names are to come. It is kept small, for nothing bounds how many there
/// are: some forty bytes and the path.
#[derive(Debug, Default)]
pub(super) struct Links {
    files: HashMap<u64, File>,
    /// Paths, each behind its length.
    paths: Vec<u8>,
}

#[derive(Debug)]
struct File {
    /// Where its path is, in steps.
    path: u32,
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
    /// Takes note of the name `path` of the file `inode`, which has `names`.
    pub(super) fn note(&mut self, inode: u64, names: u64, path: &[u8]) -> Name {
        let Some(file) = self.files.get_mut(&inode) else {
            self.keep(inode, names, path);
            return Name::First;
        };
        file.left -= 1;
        let (at, is_last) = (file.path, file.left == 0);
        let first = self.path(at).to_vec();
        if is_last {
            self.forget(inode);
        }
        Name::Further(first)
    }

    /// Forgets a file that is not in the archive after all.
    pub(super) fn forget(&mut self, inode: u64) {
        self.files.remove(&inode);
        if self.files.is_empty() {
            self.paths.clear();
        }
    }

    /// A file whose path has no place any more is archived once more under each name.
    fn keep(&mut self, inode: u64, names: u64, path: &[u8]) {
        let left = u32::try_from(names.saturating_sub(1)).unwrap_or(u32::MAX);
        let Ok(at) = u32::try_from(self.paths.len() / STEP) else { return };
        if left > 0 {
            self.files.insert(inode, File { path: at, left });
            self.paths.extend_from_slice(&path.len().to_le_bytes());
            self.paths.extend_from_slice(path);
            self.paths.resize(self.paths.len().next_multiple_of(STEP), 0);
        }
    }

    fn path(&self, at: u32) -> &[u8] {
        let path = &self.paths[at as usize * STEP..];
        let (length, path) = path.split_first_chunk().unwrap_or((&[0; size_of::<usize>()], &[]));
        &path[..usize::from_le_bytes(*length)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_further_name_is_told_the_first_one() {
        let mut links = Links::default();
        assert_eq!(links.note(1, 1, b"single"), Name::First);
        assert_eq!(links.note(1, 3, b"a"), Name::First);
        assert_eq!(links.note(2, 2, b"directory/\xff"), Name::First);
        assert_eq!(links.note(1, 3, b"b"), Name::Further(b"a".into()));
        assert_eq!(links.note(2, 2, b"c"), Name::Further(b"directory/\xff".into()));
        assert_eq!(links.note(1, 3, b"d"), Name::Further(b"a".into()));
        assert!(links.files.is_empty() && links.paths.is_empty());
        // A name that came meanwhile: of what was archived no more is known.
        assert_eq!(links.note(1, 4, b"e"), Name::First);
        links.forget(1);
        assert_eq!(links.note(1, 4, b"f"), Name::First);
    }

    #[test]
    fn half_a_million_files_take_little_memory() {
        let mut links = Links::default();
        for inode in 0..500_000 {
            links.note(inode, 2, format!("file-{inode}").as_bytes());
        }
        // The map's own size is not to be had; a place in it is 17 bytes, and at most 8 of 7 are used.
        let bytes = links.paths.capacity() + links.files.capacity() * 8 / 7 * (size_of::<(u64, File)>() + 1);
        assert!(bytes < 40 << 20, "{bytes} bytes");
        for inode in 0..500_000 {
            assert_eq!(links.note(inode, 2, b""), Name::Further(format!("file-{inode}").into_bytes()));
        }
        assert!(links.files.is_empty());
    }
}
