//! Removing a whole tree with few descriptors open, however deep and wide it is.
//!
//! Every directory below the tree is first moved up beside it, under a name of its own, and then emptied in its turn:
//! no path grows, no descriptor waits for its children, and what a crash leaves is a few smaller trees in the same
//! place. Links are removed, never followed, and another file system mounted inside is never entered.
//!
//! Workers share the directories, never one directory: the kernel lets only one name of a directory change at a time.

use std::ffi::{CStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nix::Result;
use nix::errno::Errno;
use nix::fcntl::{OFlag, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};
use rustix::fs::{AtFlags, FileType, RawDir, SeekFrom, StatxFlags, seek, statx, tell};

use super::effort::{Effort, Work, Worker};
use super::walk::Node;
use crate::beneath;

/// How often a directory that fills up while it is emptied is emptied again.
const ROUNDS: u32 = 8;
/// Room for the names that are read at once.
const BUFFER: usize = 128 * 1024;
/// When so many names of those that are read at once were removed, more are likely to follow.
const MANY_NAMES: usize = 1000;
/// When so many directories wait, few more are moved up at once from each.
const MANY_WAITING: usize = 4096;
const FEW: usize = 64;

/// Removes `name` and all below it from the directory `place`. Where it is gone already, that is success.
///
/// `place` also takes the directories that were below, as `<name>.<number>`, until they are removed too. Those that a
/// killed run left there are trees for further calls.
///
/// # Errors
/// The first entry that could not be removed, as a path from the tree (`.` is the tree itself), and why; everything
/// that could be removed is.
pub fn tree(place: impl AsFd, name: &str, effort: &Effort) -> std::result::Result<(), (OsString, Errno)> {
    // Most volumes are empty when they go: one round trip.
    match unlinkat(&place, name, UnlinkatFlags::RemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => return Ok(()),
        Err(Errno::ENOTDIR) => return remove_file(&place, name).map_err(|errno| (".".into(), errno)),
        Err(_) => {}
    }
    let removal = Removal { place: place.as_fd(), top: name, moved: AtomicU64::new(0), failed: Mutex::new(None) };
    effort.run(&removal, Tree { number: None, origin: Node::root(()) });
    removal.failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

fn remove_file(place: impl AsFd, name: &str) -> Result<()> {
    match unlinkat(place, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

struct Removal<'a> {
    place: BorrowedFd<'a>,
    top: &'a str,
    moved: AtomicU64,
    failed: Mutex<Option<Failure>>,
}

type Failure = (OsString, Errno);

/// A directory in the place, to be emptied and removed.
struct Tree {
    /// What it was moved up as; none for the tree itself.
    number: Option<u64>,
    /// Where it was before.
    origin: Arc<Node<()>>,
}

/// What is left of a directory's entries.
enum Left {
    /// None, or what came meanwhile.
    Nothing,
    /// What cannot be removed, the first of it.
    Entry(Failure),
    /// Directories, for a later visit.
    Directories,
}

impl Work for Removal<'_> {
    type Task = Tree;

    fn carry_out(&self, tree: Tree, worker: &Worker<'_, '_, Self>) {
        let name = tree.number.map_or_else(|| self.top.to_owned(), |number| self.name(number));
        let fail = |errno| self.fail((path(&tree.origin), errno));
        for _ in 0..ROUNDS {
            let left = match self.empty(&name, &tree.origin, worker) {
                Ok(Left::Directories) => return worker.push_last(tree),
                Ok(Left::Nothing) => None,
                Ok(Left::Entry(failure)) => Some(failure),
                // It was no directory when it was moved.
                Err(Errno::ENOTDIR | Errno::ELOOP) => return remove_file(self.place, &name).unwrap_or_else(fail),
                Err(errno) => return fail(errno),
            };
            match (unlinkat(self.place, name.as_str(), UnlinkatFlags::RemoveDir), left) {
                (Ok(()) | Err(Errno::ENOENT), _) => return,
                (Err(_), Some(failure)) => return self.fail(failure),
                // Something was added meanwhile.
                (Err(Errno::ENOTEMPTY | Errno::EEXIST), None) => {}
                (Err(errno), None) => return fail(errno),
            }
        }
        fail(Errno::ENOTEMPTY);
    }
}

impl Removal<'_> {
    /// Removes a directory's entries, and moves the directories among them up.
    fn empty(&self, name: &str, origin: &Arc<Node<()>>, worker: &Worker<'_, '_, Self>) -> Result<Left> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
        let directory = match beneath::open(self.place, name, flags, Mode::empty()) {
            Ok(directory) => directory,
            Err(Errno::ENOENT) => return Ok(Left::Nothing),
            Err(errno) => return Err(errno),
        };
        let mut buffer = vec![MaybeUninit::uninit(); BUFFER];
        let mut failed = None;
        let mut directories = 0;
        let mut next = Some(0);
        // Removed while they are read, so that a million names need no memory: what a server's cookies then skip, the
        // next round finds.
        while let Some(from) = next.take() {
            prepare(&directory, from, &mut buffer)?;
            let mut removed = 0;
            let mut entries = RawDir::new(&directory, &mut buffer);
            while let Some(entry) = entries.next() {
                let entry = entry.map_err(from_rustix)?;
                let (name, cookie) = (entry.file_name(), entry.next_entry_cookie());
                if !is_dots(name) {
                    match self.entry(&directory, name, entry.file_type()) {
                        Ok(None) => removed += 1,
                        Ok(Some(number)) => {
                            worker.push([Tree { number: Some(number), origin: origin.below(name.to_owned(), ()) }]);
                            directories += 1;
                        }
                        Err(errno) => {
                            failed.get_or_insert_with(|| (origin.path_of(name).into_os_string(), errno));
                        }
                    }
                }
                if entries.is_buffer_empty() {
                    // After many it goes on at the beginning, if all before are gone: only there does NFS ask the server
                    // for the names with all that is known of them.
                    next = Some(if removed >= MANY_NAMES && failed.is_none() { 0 } else { cookie });
                    break;
                }
                if directories >= FEW && worker.waiting() >= MANY_WAITING {
                    return Ok(Left::Directories);
                }
            }
        }
        Ok(failed.map_or(Left::Nothing, Left::Entry))
    }

    /// Removes an entry; one that may be a directory is moved up, and its number told.
    fn entry(&self, parent: &OwnedFd, entry: &CStr, kind: FileType) -> Result<Option<u64>> {
        if kind != FileType::Directory {
            match unlinkat(parent, entry, UnlinkatFlags::NoRemoveDir) {
                Ok(()) | Err(Errno::ENOENT) => return Ok(None),
                // The server did not say the type, or it changed.
                Err(Errno::EISDIR | Errno::EPERM) => {}
                Err(errno) => return Err(errno),
            }
        }
        loop {
            let number = self.moved.fetch_add(1, Ordering::Relaxed);
            match renameat(parent, entry, self.place, self.name(number).as_str()) {
                Ok(()) => return Ok(Some(number)),
                Err(Errno::ENOENT) => return Ok(None),
                // A killed run left something of this name.
                Err(Errno::EEXIST | Errno::ENOTEMPTY | Errno::ENOTDIR | Errno::EISDIR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    fn name(&self, number: u64) -> String {
        format!("{}.{number}", self.top)
    }

    fn fail(&self, failure: Failure) {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
    }
}

/// Makes the names from `from` on, as many as fit, cheap to remove: NFS looks every name up before it removes it, unless
/// the directory was found unchanged since it was read.
fn prepare(directory: &OwnedFd, from: u64, buffer: &mut [MaybeUninit<u8>]) -> Result<()> {
    if tell(directory).map_err(from_rustix)? != from {
        seek(directory, SeekFrom::Start(from)).map_err(from_rustix)?;
    }
    let mut entries = RawDir::new(directory, buffer);
    let mut several = 0;
    while several < 2 {
        match entries.next() {
            Some(entry) => several += u32::from(!is_dots(entry.map_err(from_rustix)?.file_name())),
            None => break,
        }
        if entries.is_buffer_empty() {
            break;
        }
    }
    if several > 1 {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
        statx(directory, c"", flags, StatxFlags::BASIC_STATS).map_err(from_rustix)?;
    }
    seek(directory, SeekFrom::Start(from)).map(|_| ()).map_err(from_rustix)
}

fn path(origin: &Node<()>) -> OsString {
    let path = origin.path().into_os_string();
    if path.is_empty() { ".".into() } else { path }
}

fn is_dots(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}

fn from_rustix(errno: rustix::io::Errno) -> Errno {
    Errno::from_raw(errno.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    fn place(path: &Path) -> OwnedFd {
        OwnedFd::from(std::fs::File::open(path).unwrap())
    }

    #[test]
    fn a_tree_goes_with_all_kinds_of_entries_and_its_neighbours_stay() {
        let folder = tempfile::tempdir().unwrap();
        let tree_path = folder.path().join("t");
        std::fs::create_dir_all(tree_path.join("a/b/c")).unwrap();
        std::fs::write(tree_path.join("a/file"), "x").unwrap();
        std::fs::write(folder.path().join("outside"), "kept").unwrap();
        symlink("../outside", tree_path.join("link")).unwrap();
        symlink("/", tree_path.join("a/root")).unwrap();
        nix::unistd::mkfifo(&tree_path.join("a/fifo"), Mode::S_IRWXU).unwrap();
        tree(place(folder.path()), "t", &Effort::default()).unwrap();
        let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["outside"]);
    }

    #[test]
    fn a_tree_far_deeper_than_a_path_may_be_long_goes() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("t")).unwrap();
        let mut at = place(&folder.path().join("t"));
        for _ in 0..3000 {
            nix::sys::stat::mkdirat(&at, "directory", Mode::S_IRWXU).unwrap();
            at = beneath::open_dir(&at, "directory").unwrap();
        }
        drop(at);
        tree(place(folder.path()), "t", &Effort::default()).unwrap();
        assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none());
    }

    #[test]
    fn what_is_gone_already_and_what_is_no_directory_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        tree(place(folder.path()), "missing", &Effort::default()).unwrap();
        symlink("/", folder.path().join("link")).unwrap();
        tree(place(folder.path()), "link", &Effort::default()).unwrap();
        assert!(std::fs::symlink_metadata(folder.path().join("link")).is_err());
    }

    fn names(path: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// A file that cannot be removed until it is dropped.
    struct Immutable(std::fs::File);

    impl Immutable {
        fn make(path: &Path) -> Self {
            let file = std::fs::File::create(path).unwrap();
            rustix::fs::ioctl_setflags(&file, rustix::fs::IFlags::IMMUTABLE).unwrap();
            Self(file)
        }
    }

    impl Drop for Immutable {
        fn drop(&mut self) {
            rustix::fs::ioctl_setflags(&self.0, rustix::fs::IFlags::empty()).unwrap();
        }
    }

    #[test]
    fn what_cannot_be_removed_is_told_with_its_path_and_all_else_goes() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..200 {
            std::fs::create_dir_all(folder.path().join(format!("t/a/b/{number}"))).unwrap();
            std::fs::write(folder.path().join(format!("t/a/b/{number}/file")), "x").unwrap();
        }
        let immutable = Immutable::make(&folder.path().join("t/a/b/7/kept"));
        let failed = tree(place(folder.path()), "t", &Effort::new(4)).unwrap_err();
        assert_eq!(failed, ("a/b/7/kept".into(), Errno::EPERM));
        let left = names(folder.path());
        assert_eq!(left.len(), 1, "{left:?}");
        assert_eq!(names(&folder.path().join(&left[0])), ["kept"]);
        drop(immutable);
        tree(place(folder.path()), &left[0], &Effort::default()).unwrap();
        assert!(names(folder.path()).is_empty());
    }

    #[test]
    fn what_an_earlier_run_left_is_in_no_ones_way() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["t.0/full", "t.1", "t/a/b", "t/c"] {
            std::fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        std::fs::write(folder.path().join("t.2"), "x").unwrap();
        tree(place(folder.path()), "t", &Effort::default()).unwrap();
        // An empty one is replaced by what takes its name.
        assert_eq!(names(folder.path()), ["t.0", "t.2"]);
        for name in ["t.0", "t.2"] {
            tree(place(folder.path()), name, &Effort::default()).unwrap();
        }
        assert!(names(folder.path()).is_empty());
    }

    #[test]
    fn more_directories_than_may_wait_go_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..2 * MANY_WAITING {
            std::fs::create_dir_all(folder.path().join(format!("t/{number}"))).unwrap();
        }
        tree(place(folder.path()), "t", &Effort::new(2)).unwrap();
        assert!(names(folder.path()).is_empty());
    }

    #[test]
    fn a_directory_that_fills_up_meanwhile_goes_when_that_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t");
        std::fs::create_dir(&path).unwrap();
        for number in 0..5000 {
            std::fs::write(path.join(format!("old {number}")), "").unwrap();
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..200 {
                    if std::fs::write(path.join(format!("new {number}")), "").is_err() {
                        break;
                    }
                }
            });
            let ended = tree(place(folder.path()), "t", &Effort::default());
            assert!(matches!(&ended, Ok(()) | Err((_, Errno::ENOTEMPTY))), "{ended:?}");
        });
        tree(place(folder.path()), "t", &Effort::default()).unwrap();
        assert!(names(folder.path()).is_empty());
    }
}
