//! Copying a whole tree: what is in one directory into another one, entry by entry, by many workers.
//!
//! A directory is made when it is entered, with permissions to work in it, and gets its attributes when all below it
//! is done. The work on a directory is a stack of small tasks (effort.rs): enter it, read a batch of its entries, copy
//! some of them; so neither its depth nor its width costs more memory than a few batches.
//!
//! The target may hold what an earlier run left that was killed. Times are set last, so a file that has its size and
//! its time of change is complete and is taken; whatever else is there is made anew. A file that vanishes while the
//! tree is walked is left out, and one that changes is copied as it is found.

mod acl;
mod data;
mod directory;
mod entry;
mod links;

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nix::fcntl::OFlag;
use rustix::fs::{AtFlags, FileType, Mode, Stat, StatxFlags, chmodat, fstat, mkdirat, statx};
use rustix::io::Errno;

pub use self::acl::PlainLists;
use self::data::Ways;
use self::directory::{Directory, Entered, Kept, Open, Target, Tree};
pub use self::links::Links;
use super::attributes::{Attributes, xattrs};
use super::effort::{Effort, Work, Worker};
use super::walk::{self, Entry};
use super::{Progress, TreeError};

/// So many entries are worth a worker of their own.
const PART: usize = 8;
/// So many workers are called for each directory: a file's copy takes seven round trips, in one of which (it is made) the
/// kernel keeps its directory locked. More would only wait for each other.
const IN_ONE_DIRECTORY: usize = 8;
/// When so many tasks wait, directories are read in small batches.
const MANY_TASKS: usize = 4096;
/// What a directory needs while its entries are made.
const WORKABLE: u32 = 0o700;

/// Where a copy is made. It must be private until it is done, and so must the place of its links, on the same file
/// system.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The directory that gets what is in the source.
    pub directory: BorrowedFd<'a>,
    /// Whether it was made for this run, so that nothing is in it.
    pub is_new: bool,
    /// The folder for hard links.
    pub links: Links<'a>,
}

/// Copies all that is in the directory `source` to `target`, then gives that directory the attributes of `source`.
/// The folder of links is removed when all is there. `lists` is what is known of the target's file system.
///
/// # Errors
/// The first entry that could not be copied, and why; the others are not waited for. What was copied stays. EXDEV tells
/// of another file system that is mounted in `source`.
pub fn tree(
    source: impl AsFd,
    target: Place<'_>,
    lists: &PlainLists,
    effort: &Effort,
    progress: &Progress,
) -> Result<(), TreeError> {
    let made_links = fill(source, target, lists, effort, progress)?;
    if target.is_new && !made_links { Ok(()) } else { target.links.remove(effort) }
}

/// Copies a tree; whether there is a folder of links in the end.
fn fill(
    source: impl AsFd,
    target: Place<'_>,
    lists: &PlainLists,
    effort: &Effort,
    progress: &Progress,
) -> Result<bool, TreeError> {
    let tree = Tree::new(source.as_fd(), target)?;
    let root = Arc::clone(&tree.root);
    let copy = Copy {
        tree,
        kept: Kept::default(),
        links: links::Folder::new(target.links),
        ways: Ways::default(),
        lists,
        progress,
        busy: AtomicUsize::new(0),
        missed: AtomicBool::new(false),
        failed: Mutex::new(None),
    };
    effort.run(&copy, Task { directory: root, piece: Piece::Read(0) });
    if let Some(error) = copy.failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    if copy.missed.into_inner() {
        // A server that has lost the whole tree says of each of its entries that it is gone.
        statx(&source, c"", AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS)
            .map_err(|errno| failed("look at", ".".into(), errno))?;
    }
    Ok(copy.links.is_made())
}

/// One copying of a tree.
struct Copy<'a> {
    tree: Tree,
    kept: Kept,
    links: links::Folder<'a>,
    ways: Ways,
    lists: &'a PlainLists,
    progress: &'a Progress,
    /// In how many directories there are workers.
    busy: AtomicUsize,
    /// Whether something of the source was gone.
    missed: AtomicBool,
    failed: Mutex<Option<TreeError>>,
}

/// A piece of the copying. Each counts in its directory's [`directory::State::pending`].
struct Task {
    directory: Arc<Directory>,
    piece: Piece,
}

/// What is to be done in it.
enum Piece {
    /// Makes the directory and reads its first batch.
    Enter,
    /// Reads the batch that begins there.
    Read(u64),
    /// Copies entries that are no directories, the last one first.
    Entries(Vec<Entry>),
}

type Hand<'a, 'scope, 'crew> = Worker<'scope, 'crew, Copy<'a>>;

/// An entry: the directory it is in, and its name.
#[derive(Clone, Copy)]
struct Spot<'a> {
    directory: &'a Arc<Directory>,
    open: &'a Open,
    name: &'a CStr,
}

impl Spot<'_> {
    fn source(&self) -> BorrowedFd<'_> {
        self.open.source.as_fd()
    }

    fn target(&self) -> BorrowedFd<'_> {
        self.open.target.as_fd()
    }

    fn failed(&self, what: &'static str, errno: Errno) -> TreeError {
        failed(what, self.directory.path_of(self.name), errno)
    }
}

fn failed(what: &'static str, path: std::path::PathBuf, errno: Errno) -> TreeError {
    TreeError { what, path, errno: nix::errno::Errno::from_raw(errno.raw_os_error()) }
}

/// Whether an entry of the source is gone.
fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::STALE)
}

/// What to say where the source cannot be opened.
fn cannot_open(errno: Errno) -> &'static str {
    if errno == Errno::XDEV { "copy another file system, mounted in the tree at" } else { "open" }
}

impl Work for Copy<'_> {
    type Task = Task;

    fn most_workers(&self) -> usize {
        self.busy.load(Ordering::Relaxed).max(1) * IN_ONE_DIRECTORY
    }

    fn carry_out(&self, task: Task, worker: &Worker<'_, '_, Self>) {
        let Task { directory, piece } = task;
        if directory.data.join() {
            self.busy.fetch_add(1, Ordering::Relaxed);
        }
        let done = match piece {
            Piece::Enter => self.enter(&directory, worker),
            Piece::Read(from) => self.go_on(&directory, worker, |open| self.read(&directory, open, from, worker)),
            Piece::Entries(entries) => {
                self.go_on(&directory, worker, |open| self.entries(&directory, open, entries, worker))
            }
        };
        if directory.data.quit() {
            self.busy.fetch_sub(1, Ordering::Relaxed);
        }
        if let Err(error) = done {
            self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            worker.stop();
        }
    }
}

impl<'a> Copy<'a> {
    /// Whether an entry of the source is gone, and notes it.
    fn is_gone(&self, errno: Errno) -> bool {
        let is_gone = is_gone(errno);
        if is_gone {
            self.miss();
        }
        is_gone
    }

    fn miss(&self) {
        self.missed.store(true, Ordering::Relaxed);
    }

    /// Does a piece of a directory that was entered before.
    fn go_on(
        &self,
        directory: &Arc<Directory>,
        worker: &Hand<'a, '_, '_>,
        piece: impl FnOnce(&Arc<Open>) -> Result<(), TreeError>,
    ) -> Result<(), TreeError> {
        let open = self.tree.open(directory, &self.kept)?;
        match &open {
            Some(open) => piece(open)?,
            None => self.miss(),
        }
        if worker.is_stopped() { Ok(()) } else { self.leave(directory, open) }
    }

    fn enter(&self, directory: &Arc<Directory>, worker: &Hand<'a, '_, '_>) -> Result<(), TreeError> {
        let open = match directory.above() {
            Some(above) => match self.tree.open(above, &self.kept)? {
                Some(open) => {
                    self.make(&Spot { directory: above, open: &open, name: directory.name() }, directory, worker)?
                }
                None => None,
            },
            None => None,
        };
        if let Some(open) = &open {
            self.read(directory, open, 0, worker)?;
        }
        if worker.is_stopped() { Ok(()) } else { self.leave(directory, open) }
    }

    /// Makes the directory that `spot` names. None if it is gone, or is no directory any more.
    fn make(
        &self,
        spot: &Spot<'_>,
        directory: &Arc<Directory>,
        worker: &Hand<'a, '_, '_>,
    ) -> Result<Option<Arc<Open>>, TreeError> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
        let source = match walk::open(spot.source(), walk::as_path(spot.name), flags, 0) {
            Ok(source) => source,
            Err(errno) if self.is_gone(errno) => return Ok(None),
            Err(Errno::NOTDIR | Errno::LOOP) => {
                let entry = Entry { name: spot.name.to_owned(), kind: FileType::Unknown };
                return self.entry(spot, entry.kind, worker).map(|()| None);
            }
            Err(errno) => return Err(spot.failed(cannot_open(errno), errno)),
        };
        let stat = fstat(&source).map_err(|errno| spot.failed("look at", errno))?;
        let attributes = Attributes::of(&stat);
        let xattrs = match xattrs(&source) {
            Ok(xattrs) => xattrs,
            Err(errno) if self.is_gone(errno) => return Ok(None),
            Err(errno) => return Err(spot.failed("read the extended attributes of", errno)),
        };
        let (target, has, is_new) = self.make_directory(spot, attributes.mode)?;
        let (lists, users): (_, Vec<_>) = xattrs.into_iter().partition(acl::is_list);
        directory::set_users(&target, &users).map_err(|errno| spot.failed("set the extended attributes of", errno))?;
        directory.data.enter(Entered::new(&stat, attributes, has, is_new, lists));
        Ok(Some(Arc::new(Open { source, target })))
    }

    /// Makes a directory in the target, or takes the one that is there: the directory, as it is, and whether it is new.
    fn make_directory(&self, spot: &Spot<'_>, mode: u32) -> Result<(OwnedFd, Stat, bool), TreeError> {
        let mode = Mode::from_raw_mode(mode & 0o777 | WORKABLE);
        let make = || mkdirat(spot.target(), spot.name, mode);
        let open = || walk::open(spot.target(), walk::as_path(spot.name), OFlag::O_PATH | OFlag::O_DIRECTORY, 0);
        let cannot_enter = |errno| spot.failed("enter the copy of", errno);
        let is_new = match make() {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(spot.failed("make", errno)),
        };
        let target = match open() {
            Err(Errno::NOTDIR | Errno::LOOP) => {
                self.clear(spot)?;
                make().map_err(|errno| spot.failed("make", errno))?;
                open()
            }
            opened => opened,
        }
        .map_err(cannot_enter)?;
        let mut has = fstat(&target).map_err(cannot_enter)?;
        // An earlier run may have finished it.
        if has.st_mode & WORKABLE != WORKABLE {
            chmodat(spot.target(), spot.name, mode, AtFlags::empty()).map_err(cannot_enter)?;
            has = fstat(&target).map_err(cannot_enter)?;
        }
        Ok((target, has, is_new))
    }

    /// Reads a batch: its files are copied here, unless there are workers for them, its directories become tasks.
    fn read(
        &self,
        directory: &Arc<Directory>,
        open: &Arc<Open>,
        from: u64,
        worker: &Hand<'a, '_, '_>,
    ) -> Result<(), TreeError> {
        let batch = match walk::read(&open.source, from, worker.waiting() >= MANY_TASKS) {
            Ok(batch) => batch,
            Err(errno) if self.is_gone(errno) && directory.above().is_some() => return Ok(()),
            Err(errno) => return Err(failed("read", directory.path(), errno)),
        };
        let (directories, mut entries): (Vec<_>, Vec<_>) =
            batch.entries.into_iter().partition(|entry| entry.kind == FileType::Directory);
        let further = batch.next.map(|next| Task { directory: Arc::clone(directory), piece: Piece::Read(next) });
        if further.is_some() || !directories.is_empty() {
            self.kept.put(directory, open);
            directory.data.expect(usize::from(further.is_some()) + directories.len());
            let enter = |entry: Entry| Task {
                directory: directory.below(entry.name, directory::State::default()),
                piece: Piece::Enter,
            };
            worker.push(further.into_iter().chain(directories.into_iter().map(enter)));
        }
        entries.reverse();
        self.entries(directory, open, entries, worker)
    }

    /// Copies entries; gives half of those that are left away whenever another worker has nothing to do.
    fn entries(
        &self,
        directory: &Arc<Directory>,
        open: &Arc<Open>,
        mut entries: Vec<Entry>,
        worker: &Hand<'a, '_, '_>,
    ) -> Result<(), TreeError> {
        while let Some(Entry { name, kind }) = entries.pop() {
            if worker.is_stopped() {
                return Ok(());
            }
            if entries.len() >= PART && worker.has_help() {
                let rest = entries.split_off(entries.len() / 2);
                let given = std::mem::replace(&mut entries, rest);
                self.kept.put(directory, open);
                directory.data.expect(1);
                worker.push([Task { directory: Arc::clone(directory), piece: Piece::Entries(given) }]);
            }
            self.entry(&Spot { directory, open, name: &name }, kind, worker)?;
        }
        Ok(())
    }

    /// A piece of a directory is done: if it was the last, the directory is, and so perhaps the ones above.
    fn leave(&self, directory: &Arc<Directory>, open: Option<Arc<Open>>) -> Result<(), TreeError> {
        let mut own = open.map(Target::Open);
        let mut below: Option<Target> = None;
        let mut last = directory;
        while last.data.is_done() {
            if let Some(entered) = last.data.entered() {
                let from_below = || below.as_ref().and_then(|below| below.above(entered));
                let target = match own.take().or_else(from_below) {
                    Some(target) => target,
                    None => self.tree.open_target(last)?,
                };
                self.finish(last, entered, &target)?;
                self.progress.add(u64::from(last.above().is_some()), 0);
                below = Some(target);
            }
            last.data.close();
            let Some(above) = last.above() else { break };
            last = above;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
