//! Trees that change while they are archived: every archive can be read, and holds what was in the tree.

use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

use super::super::write::write_plain;
use super::*;

const DIRECTORIES: [&str; 4] = ["d", "d/e", "d/e/f", "g"];
const NAMES: usize = 6;

/// A change of the tree. Places are numbers of [`place`].
#[derive(Clone, Debug)]
enum Change {
    Write(usize),
    /// Makes a file with two names.
    Pair(usize, usize),
    Symlink(usize),
    Link(usize, usize),
    Rename(usize, usize),
    Remove(usize),
    Directory(usize),
    /// Renames a directory away and back.
    Turn(usize),
    /// Puts a file in the place of a directory.
    Bury(usize),
}

fn change() -> impl Strategy<Value = Change> {
    let place = 0..NAMES * (DIRECTORIES.len() + 1);
    let directory = 0..DIRECTORIES.len();
    prop_oneof![
        2 => place.clone().prop_map(Change::Write),
        3 => (place.clone(), place.clone()).prop_map(|(first, second)| Change::Pair(first, second)),
        1 => place.clone().prop_map(Change::Symlink),
        1 => (place.clone(), place.clone()).prop_map(|(from, to)| Change::Link(from, to)),
        2 => (place.clone(), place.clone()).prop_map(|(from, to)| Change::Rename(from, to)),
        3 => place.prop_map(Change::Remove),
        2 => directory.clone().prop_map(Change::Directory),
        1 => directory.clone().prop_map(Change::Turn),
        1 => directory.prop_map(Change::Bury),
    ]
}

fn place(number: usize) -> PathBuf {
    let directory = (number / NAMES).checked_sub(1).map_or("", |directory| DIRECTORIES[directory]);
    Path::new(directory).join(format!("file-{}", number % NAMES))
}

/// Changes a tree, and knows what each of its names ever led to.
struct Changing<'a> {
    tree: &'a Path,
    /// On the same file system, beside the tree: what is made there comes into the tree whole.
    aside: PathBuf,
    made: usize,
    is_at: BTreeMap<PathBuf, String>,
    was_at: BTreeSet<(PathBuf, String)>,
}

impl<'a> Changing<'a> {
    fn new(tree: &'a Path) -> Self {
        let aside = tree.with_file_name("aside");
        fs::create_dir(&aside).unwrap();
        Self { tree, aside, made: 0, is_at: BTreeMap::new(), was_at: BTreeSet::new() }
    }

    fn next(&mut self) -> String {
        self.made += 1;
        // All are of one length: only the file itself tells which one it is.
        format!("content {:08}", self.made)
    }

    /// Notes beforehand what a name will lead to, since the archive may be quicker.
    fn note(&mut self, path: &Path, content: &str) {
        self.was_at.insert((path.to_owned(), content.to_owned()));
    }

    fn put(&mut self, path: &Path, make: impl Fn(&Path, &str)) {
        let (content, aside) = (self.next(), self.aside.join("new"));
        make(&aside, &content);
        self.note(path, &content);
        if fs::rename(&aside, self.tree.join(path)).is_ok() {
            self.is_at.insert(path.to_owned(), content);
        } else {
            fs::remove_file(&aside).unwrap();
        }
    }

    fn apply(&mut self, change: &Change) {
        let write = |path: &Path, content: &str| {
            fs::write(path, content).unwrap();
            // As package managers do: the times do not tell one file from another.
            set_times(path, (1, 0), (1, 0));
        };
        match *change {
            Change::Write(at) => self.put(&place(at), write),
            Change::Pair(first, second) => {
                self.apply(&Change::Write(first));
                self.apply(&Change::Link(first, second));
            }
            Change::Symlink(at) => self.put(&place(at), |path, content| {
                std::os::unix::fs::symlink(content, path).unwrap();
            }),
            Change::Link(from, to) | Change::Rename(from, to) => {
                let (from, to) = (place(from), place(to));
                let Some(content) = self.is_at.get(&from).cloned() else { return };
                self.note(&to, &content);
                let (source, target) = (self.tree.join(&from), self.tree.join(&to));
                if matches!(change, Change::Link(..)) {
                    let aside = self.aside.join("link");
                    fs::hard_link(source, &aside).unwrap();
                    if fs::rename(&aside, target).is_ok() {
                        self.is_at.insert(to, content);
                    }
                    // It stays there where the target was another name of the file already.
                    let _ = fs::remove_file(aside);
                } else if from != to && fs::rename(source, target).is_ok() {
                    self.is_at.insert(to, content);
                    if fs::symlink_metadata(self.tree.join(&from)).is_err() {
                        self.is_at.remove(&from);
                    }
                }
            }
            Change::Remove(at) => {
                let path = place(at);
                if fs::remove_file(self.tree.join(&path)).is_ok() {
                    self.is_at.remove(&path);
                }
            }
            Change::Directory(directory) => {
                let path = Path::new(DIRECTORIES[directory]);
                if self.is_at.remove(path).is_some() {
                    fs::remove_file(self.tree.join(path)).unwrap();
                }
                // The one above may be missing.
                let _ = fs::create_dir(self.tree.join(path));
            }
            Change::Turn(directory) => {
                let (path, aside) = (self.tree.join(DIRECTORIES[directory]), self.aside.join("turned"));
                if fs::rename(&path, &aside).is_ok() {
                    fs::rename(&aside, &path).unwrap();
                }
            }
            Change::Bury(directory) => {
                let path = Path::new(DIRECTORIES[directory]);
                if !self.tree.join(path).is_dir() {
                    return;
                }
                self.is_at.retain(|at, _| !at.starts_with(path));
                fs::rename(self.tree.join(path), self.aside.join("buried")).unwrap();
                fs::remove_dir_all(self.aside.join("buried")).unwrap();
                self.put(path, write);
            }
        }
    }
}

/// An archive during which the tree changes whenever something of it is written.
struct Output<'a> {
    archive: Vec<u8>,
    changing: Changing<'a>,
    changes: std::vec::IntoIter<Change>,
}

impl Write for Output<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.archive.extend_from_slice(bytes);
        if let Some(change) = self.changes.next() {
            self.changing.apply(&change);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

proptest! {
    #[test]
    fn an_archive_of_a_tree_that_changes_is_read_and_each_name_has_what_it_once_led_to(
        before in proptest::collection::vec(change(), 0..60),
        meanwhile in proptest::collection::vec(change(), 0..120),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let (tree, target) = (folder.path().join("tree"), folder.path().join("target"));
        fs::create_dir(&tree).unwrap();
        fs::create_dir(&target).unwrap();
        let mut changing = Changing::new(&tree);
        for change in (0..DIRECTORIES.len()).map(Change::Directory).chain(before) {
            changing.apply(&change);
        }
        let output = Output { archive: Vec::new(), changing, changes: meanwhile.into_iter() };
        let output = write_plain(directory(&tree), None, output, &Progress::default()).unwrap();
        unpack(&output.archive, &target).unwrap();
        for (path, entry) in entries(&target).0 {
            let content = String::from_utf8(entry.content).unwrap();
            prop_assert!(
                entry.kind.contains("is_dir: true") || output.changing.was_at.contains(&(path.clone(), content.clone())),
                "{} has {content:?}", path.display()
            );
        }
    }
}
