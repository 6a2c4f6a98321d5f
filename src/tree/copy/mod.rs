//! Copying a whole tree: what is in one directory into another one, entry by entry, by many workers.
//!
//! A directory is made when it is entered, with permissions to work in it, and gets its attributes when all below it
//! is done. The work on a directory is a stack of small tasks (effort.rs): enter it, read a batch of its entries, copy
//! some of them; so neither its depth nor its width costs more memory than a few batches.
//!
//! The target is empty at first, and nothing else writes there. Complete files of an earlier attempt are moved in
//! (earlier.rs). A source in use may change while it is walked: what vanishes is left out and counted, once the server
//! was asked for its name again; what changes is copied as it is found; what comes may be missed. Of a snapshot
//! everything must be there. A changing directory may give a name twice: the first entry that is copied stays.

mod acl;
mod data;
mod directory;
mod earlier;
mod entry;
mod file_systems;
mod links;
mod through;
mod turns;
mod vanished;

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nix::fcntl::OFlag;
use rustix::fs::{FileType, Stat, fstat};
use rustix::io::Errno;

pub use self::acl::FileSystem;
pub(super) use self::data::{Copied, Ways};
use self::directory::{Directory, Entered, Kept, Lists, Open, Target, Tree};
pub use self::earlier::Earlier;
pub use self::file_systems::FileSystems;
pub use self::links::Links;
use self::turns::Turns;
pub(super) use self::vanished::LACKS;
use self::vanished::is_gone;
use super::attributes::{Attributes, Xattr, is_user, xattrs};
use super::effort::{Effort, Work, Worker};
use super::memory::TREES;
use super::space::Space;
use super::walk::{self, Entry};
use super::{Progress, SourceKind, TreeError, is_own, shown};
use crate::reason::errno_of;

/// So many entries are worth a worker of their own.
const PART: usize = 8;
/// So many workers are called for each directory: a file's copy takes seven round trips, in one of which (it is made)
/// the kernel keeps its directory locked. More would only wait for each other.
const IN_ONE_DIRECTORY: usize = 8;
/// When so many tasks wait, directories are read in small batches.
const MANY_TASKS: usize = 4096;
/// What an error says of where the work was stopped.
const CONTINUE: &str = "continue copying";

/// Where a copy is made. It must be private until it is done, and so must the place of its links, on the same file
/// system.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The directory that gets what is in the source: made for this copy, and empty.
    pub directory: BorrowedFd<'a>,
    /// A directory of the same file system whose free space is all that there is: the one above may have a limit.
    pub space: BorrowedFd<'a>,
    /// The folder for hard links.
    pub links: Links<'a>,
    /// What an abandoned attempt of the same copy left.
    pub earlier: Option<Earlier<'a>>,
    /// The inode number of the driver's own folder on the target's share. Where that share is inside of the source, the
    /// folder is left out: it holds this very copy.
    pub own: Option<u64>,
}

/// Copies all that is in the directory `source` to `target`, then gives that directory the attributes of `source`.
/// `source` is open for reading, and from its beginning; its position moves. The folder of links is removed when all is
/// there. `file_systems` are those of both. A margin of the target's free space is left to others.
///
/// # Errors
/// The first entry that could not be copied, and why; the others are not waited for. What was copied stays. EXDEV:
/// another file system is mounted in `source`. ENOENT or ESTALE: a frozen source lacks an entry, or the source or the
/// target is gone as a whole. ECANCELED: `progress` was stopped.
pub fn tree(
    source: impl AsFd,
    kind: SourceKind,
    target: Place<'_>,
    file_systems: FileSystems<'_>,
    effort: &Effort,
    progress: &Progress,
) -> Result<(), TreeError> {
    let copy = Copy::new(source.as_fd(), kind, target, file_systems, progress)?;
    let first = Task { directory: Arc::clone(&copy.tree.root), piece: Piece::Read(0) };
    let made_links = copy.run(effort, first)?;
    if made_links { target.links.remove(effort) } else { Ok(()) }
}

/// One copying of a tree.
struct Copy<'a> {
    tree: Tree,
    kind: SourceKind,
    /// The driver's own folder.
    own: Option<u64>,
    kept: Kept,
    /// The entries that are being copied: each by the number of its directory's copy, and its name.
    names: Turns<(u64, CString)>,
    links: links::Folder<'a>,
    space: Space<'a>,
    ways: Ways,
    /// The target's.
    file_system: &'a FileSystem,
    progress: &'a Progress,
    /// In how many directories there are workers.
    busy: AtomicUsize,
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
    /// Copies entries, the last one first. Those that are directories after all become tasks.
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

pub(super) fn failed(what: &'static str, path: PathBuf, errno: Errno) -> TreeError {
    TreeError { what, path: shown(path.into_os_string().into_vec()), errno: errno_of(errno) }
}

/// Opens a directory of the source, with what is kept of it.
fn look_at_directory(spot: &Spot<'_>) -> Result<(OwnedFd, Stat, Vec<Xattr>), (&'static str, Errno)> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
    let source =
        walk::open(spot.source(), walk::as_path(spot.name), flags, 0).map_err(|errno| (cannot_open(errno), errno))?;
    let stat = fstat(&source).map_err(|errno| ("look at", errno))?;
    let xattrs = xattrs(&source).map_err(|errno| ("read the extended attributes of", errno))?;
    Ok((source, stat, xattrs))
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
            _ if self.progress.is_stopped() => Err(failed(CONTINUE, directory.path(), Errno::CANCELED)),
            Piece::Enter => self.enter(&directory, worker),
            Piece::Read(from) => self.resume(&directory, worker, |open| self.read(&directory, open, from, worker)),
            Piece::Entries(entries) => {
                self.resume(&directory, worker, |open| self.entries(&directory, open, entries, worker))
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
    fn new(
        source: BorrowedFd<'_>,
        kind: SourceKind,
        target: Place<'a>,
        file_systems: FileSystems<'a>,
        progress: &'a Progress,
    ) -> Result<Self, TreeError> {
        Ok(Self {
            tree: Tree::new(source, target, file_systems)?,
            kind,
            own: target.own,
            kept: Kept::default(),
            names: Turns::default(),
            links: links::Folder::new(target.links),
            space: Space::new(target.space),
            ways: Ways::between(file_systems),
            file_system: file_systems.target,
            progress,
            busy: AtomicUsize::new(0),
            failed: Mutex::new(None),
        })
    }

    /// Does the first task and all that comes of it; whether there is a folder of links in the end.
    fn run(self, effort: &Effort, first: Task) -> Result<bool, TreeError> {
        let before = self.progress.vanished();
        effort.run(&self, first);
        if let Some(error) = self.failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(error);
        }
        if self.progress.vanished() > before {
            // A server that has lost the whole tree says of each of its entries that it is gone.
            vanished::make_sure(&self.tree)?;
        }
        Ok(self.links.is_made())
    }

    fn is_stopped(&self, worker: &Hand<'a, '_, '_>) -> bool {
        worker.is_stopped() || self.progress.is_stopped()
    }

    /// Does a piece of a directory that was entered before.
    fn resume(
        &self,
        directory: &Arc<Directory>,
        worker: &Hand<'a, '_, '_>,
        piece: impl FnOnce(&Arc<Open>) -> Result<(), TreeError>,
    ) -> Result<(), TreeError> {
        let open = self.tree.open(directory, &self.kept)?;
        match &open {
            Some(open) => piece(open)?,
            None => self.miss(Errno::NOENT, || directory.path())?,
        }
        if worker.is_stopped() { Ok(()) } else { self.leave(directory, open) }
    }

    fn enter(&self, directory: &Arc<Directory>, worker: &Hand<'a, '_, '_>) -> Result<(), TreeError> {
        let mut open = None;
        if let Some(above) = directory.above() {
            match self.tree.open(above, &self.kept)? {
                Some(above_open) => {
                    let spot = Spot { directory: above, open: &above_open, name: directory.name() };
                    open = self.make(&spot, directory, worker)?;
                }
                None => self.miss(Errno::NOENT, || directory.path())?,
            }
        }
        if let Some(open) = &open {
            self.read(directory, open, 0, worker)?;
        }
        if worker.is_stopped() { Ok(()) } else { self.leave(directory, open) }
    }

    /// Makes the directory that `spot` names. None if it is left out: it is gone, or the driver's own.
    fn make(
        &self,
        spot: &Spot<'_>,
        directory: &Arc<Directory>,
        worker: &Hand<'a, '_, '_>,
    ) -> Result<Option<Arc<Open>>, TreeError> {
        let mut gone = 0;
        let (source, stat, xattrs) = loop {
            match look_at_directory(spot) {
                Ok(found) => break found,
                Err((_, errno)) if is_gone(errno) => {
                    if !self.looks_again(spot, errno, gone)? {
                        return Ok(None);
                    }
                    gone += 1;
                }
                Err((_, errno @ (Errno::NOTDIR | Errno::LOOP))) => {
                    return match self.kind {
                        SourceKind::Live => self.entry(spot, FileType::Unknown, worker).map(|()| None),
                        SourceKind::Frozen => Err(spot.failed(LACKS, errno)),
                    };
                }
                Err((what, errno)) => return Err(spot.failed(what, errno)),
            }
        };
        if is_own(spot.name, &stat, self.own) {
            return Ok(None);
        }
        self.take_space(spot)?;
        let attributes = Attributes::of(&stat);
        let Some((target, has, is_new)) = directory::make(spot, attributes.mode)? else { return Ok(None) };
        let (users, lists): (Vec<_>, _) = xattrs.into_iter().partition(is_user);
        directory::set_users(&target, &users).map_err(|errno| spot.failed("set the extended attributes of", errno))?;
        let lists = Lists::new(lists, spot.directory.data.entered(), &TREES);
        directory.data.enter(Entered::new(&stat, attributes, has, is_new, lists));
        let earlier = spot.open.earlier.as_ref().and_then(|earlier| directory::earlier_directory(earlier, spot.name));
        Ok(Some(Arc::new(Open { source, target, earlier })))
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
            Err(errno) if is_gone(errno) && self.tree.has_lost(directory)? => {
                return self.miss(errno, || directory.path());
            }
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
            if self.is_stopped(worker) {
                return Err(failed(CONTINUE, directory.path_of(&name), Errno::CANCELED));
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
                self.progress.add(u64::from(last.above().is_some() && entered.is_new()), 0);
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
