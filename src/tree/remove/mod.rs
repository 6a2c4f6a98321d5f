//! Removing a whole tree with few descriptors open, however deep and wide it is.
//!
//! A directory waits, open, for those in it, which are emptied where they are. What is deeper is first moved up beside
//! the tree, under names of its own, and then emptied in its turn: so no path grows, no chain of directories waits, and
//! what a crash leaves is a few smaller trees in the same place. Links are removed, never followed, and another file
//! system mounted inside is never entered.
//!
//! Workers share the directories, never one directory: the kernel lets only one name of a directory change at a time.

use std::ffi::{CStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use nix::Result;
use nix::errno::Errno;
use nix::fcntl::{OFlag, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};
use rustix::fs::{AtFlags, FileType, RawDir, SeekFrom, StatxFlags, seek, statx, tell};

use super::effort::{Effort, Work, Worker};
use super::walk::{Node, as_path};
use super::{Progress, shown};
use crate::beneath;
use crate::reason::errno_of;

/// How often a directory that fills up while it is emptied is emptied again.
const ROUNDS: u32 = 8;
/// Room for the names that are read at once.
const BUFFER: usize = 128 * 1024;
/// Room for two names at least, of 255 bytes, and the dots.
const GLANCE: usize = 1024;
/// When so many names of those that are read at once were removed, more are likely to follow.
const MANY_NAMES: usize = 1000;
/// When so many directories wait, few more are moved up at once from each.
const MANY_WAITING: usize = 4096;
const FEW: usize = 64;
/// How many directories may wait for those in them, each with a descriptor.
const PARENTS: usize = 64;
/// So many removals a second are enough, for the server has others to serve: where answers come quickly, few workers do
/// that.
const ENOUGH: u64 = 15_000;
/// So many workers are right for any server: while one of its threads waits for the disk another goes on.
const FEWEST: usize = 2;
/// So many answers the first worker times alone, to know how quickly the server gives them.
const TIMED: usize = 4;

/// Removes `name` and all below it from the directory `place`. Where it is gone already, that is success.
///
/// `place` also takes directories that were deep below, as `<name>.<number>`, until they are removed too. Those that a
/// killed run left there are trees for further calls.
///
/// # Errors
/// The first entry that could not be removed, as a path from the tree (`.` is the tree itself), and why; everything
/// that could be removed is.
pub fn tree(place: impl AsFd, name: &str, effort: &Effort) -> std::result::Result<(), (OsString, Errno)> {
    tree_unless(place, name, effort, &Progress::default(), &|| false)
}

/// The same; what is removed is counted, and when an entry cannot be removed and `is_in_vain` says so, the rest is not
/// tried: on a server that is gone each would wait in the kernel for itself.
///
/// # Errors
/// As [`tree`], but that more may be left.
pub fn tree_unless(
    place: impl AsFd,
    name: &str,
    effort: &Effort,
    progress: &Progress,
    is_in_vain: &(dyn Fn() -> bool + Sync),
) -> std::result::Result<(), (OsString, Errno)> {
    // Most volumes are empty when they go: one round trip.
    match unlinkat(&place, name, UnlinkatFlags::RemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => return Ok(()),
        Err(Errno::ENOTDIR) => return remove_file(&place, name).map_err(|errno| (".".into(), errno)),
        Err(_) => {}
    }
    let removal = Removal::new(place.as_fd(), name, progress, is_in_vain);
    effort.run(&removal, Tree { at: At::Top, origin: Node::root(()), again: false });
    removal.failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

fn remove_file(place: impl AsFd, name: impl AsRef<Path>) -> Result<()> {
    match unlinkat(place, name.as_ref(), UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

struct Removal<'a> {
    place: BorrowedFd<'a>,
    top: &'a str,
    progress: &'a Progress,
    /// Whether to end when an entry cannot be removed.
    is_in_vain: &'a (dyn Fn() -> bool + Sync),
    moved: AtomicU64,
    failed: Mutex<Option<Failure>>,
    /// What was used to read a directory and is for the next one: fresh memory costs more than a few removals.
    buffers: Mutex<Vec<Vec<MaybeUninit<u8>>>>,
    /// How many directories wait for those in them.
    parents: AtomicUsize,
    /// How many answers were timed.
    timed: AtomicUsize,
    /// The quickest of them, in nanoseconds.
    quickest: AtomicU64,
}

type Failure = (OsString, Errno);

/// A directory that is to be emptied and removed.
#[derive(Clone)]
struct Tree {
    at: At,
    /// Where it was at first.
    origin: Arc<Node<()>>,
    /// Whether it was to go already: nothing is to wait in it any more.
    again: bool,
}

/// Where a directory is now.
#[derive(Clone)]
enum At {
    /// In the place, as the tree itself.
    Top,
    /// In the place, moved up under this number.
    Moved(u64),
    /// Where it was at first, in a directory that waits for it.
    Within(Arc<Parent>),
}

/// A directory that is read, and waits for those in it.
struct Parent {
    directory: OwnedFd,
    tree: Tree,
    /// How many are in it, and one more while it is read.
    pending: AtomicUsize,
}

impl Parent {
    /// Counts one less; whether that was the last one.
    fn was_last(&self) -> bool {
        self.pending.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

/// What is left of a directory.
enum Left {
    /// Nothing, or what came meanwhile.
    Nothing,
    /// What cannot be removed, the first of it.
    Entry(Failure),
    /// Directories in it, for a later visit.
    Directories,
    /// Directories in it that it waits for.
    Pending,
}

impl Work for Removal<'_> {
    type Task = Tree;

    fn most_workers(&self) -> usize {
        if self.timed.load(Ordering::Relaxed) < TIMED {
            return 1;
        }
        let second = 1_000_000_000;
        let workers = self.quickest.load(Ordering::Relaxed).saturating_mul(ENOUGH).saturating_add(second / 2) / second;
        usize::try_from(workers).unwrap_or(usize::MAX).max(FEWEST)
    }

    fn carry_out(&self, tree: Tree, worker: &Worker<'_, '_, Self>) {
        match self.directory(&tree, worker) {
            Left::Directories => return worker.push_last(tree),
            Left::Pending => return,
            Left::Entry(failure) => {
                self.gives_up(worker);
                self.fail(failure);
            }
            Left::Nothing => {}
        }
        if let At::Within(parent) = &tree.at
            && parent.was_last()
            && !worker.is_stopped()
        {
            self.finish(parent, worker);
        }
    }
}

impl<'a> Removal<'a> {
    fn new(
        place: BorrowedFd<'a>,
        top: &'a str,
        progress: &'a Progress,
        is_in_vain: &'a (dyn Fn() -> bool + Sync),
    ) -> Self {
        Self {
            place,
            top,
            progress,
            is_in_vain,
            moved: AtomicU64::new(0),
            failed: Mutex::new(None),
            buffers: Mutex::default(),
            parents: AtomicUsize::new(0),
            timed: AtomicUsize::new(0),
            quickest: AtomicU64::new(u64::MAX),
        }
    }

    /// Empties and removes a directory, as far as that can be done now.
    fn directory(&self, tree: &Tree, worker: &Worker<'_, '_, Self>) -> Left {
        let failed = |errno| Left::Entry((path(&tree.origin), errno));
        for _ in 0..ROUNDS {
            let left = match self.empty(tree, worker) {
                Ok(left @ (Left::Directories | Left::Pending)) => return left,
                // The last: or so it seems. Whether it is gone is told when it is removed.
                Ok(Left::Nothing) | Err(Errno::ESTALE) => None,
                Ok(left @ Left::Entry(_)) if worker.is_stopped() => return left,
                Ok(Left::Entry(failure)) => Some(failure),
                // It was no directory when it was found.
                Err(Errno::ENOTDIR | Errno::ELOOP) => {
                    let removed = self.at(tree, |place, name| remove_file(place, name));
                    return removed.map_or_else(failed, |()| Left::Nothing);
                }
                // Another controller removes the same tree.
                Err(Errno::ENOENT) => return Left::Nothing,
                Err(errno) => return failed(errno),
            };
            match (self.remove(tree, worker), left) {
                (Ok(()) | Err(Errno::ENOENT), _) => return Left::Nothing,
                // So is what it was in.
                (Err(Errno::ESTALE), _) if matches!(tree.at, At::Within(_)) => return Left::Nothing,
                (Err(_), Some(failure)) => return Left::Entry(failure),
                // Something was added meanwhile.
                (Err(Errno::ENOTEMPTY | Errno::EEXIST | Errno::ESTALE), None) => {}
                (Err(errno), None) => return failed(errno),
            }
        }
        failed(Errno::ENOTEMPTY)
    }

    /// Removes a directory when all are gone that it waited for. What is in it now is for another visit.
    fn finish(&self, parent: &Parent, worker: &Worker<'_, '_, Self>) {
        self.parents.fetch_sub(1, Ordering::Relaxed);
        if !matches!(self.remove(&parent.tree, worker), Ok(()) | Err(Errno::ENOENT)) {
            worker.push([Tree { again: true, ..parent.tree.clone() }]);
        }
    }

    /// Does something with a directory: with the one it is in, and its name there.
    fn at<T>(&self, tree: &Tree, act: impl FnOnce(BorrowedFd<'_>, &Path) -> T) -> T {
        match &tree.at {
            At::Top => act(self.place, Path::new(self.top)),
            At::Moved(number) => act(self.place, Path::new(&self.name(*number))),
            At::Within(parent) => act(parent.directory.as_fd(), as_path(tree.origin.name())),
        }
    }

    fn remove(&self, tree: &Tree, worker: &Worker<'_, '_, Self>) -> Result<()> {
        let removed =
            self.at(tree, |place, name| self.timed(worker, || unlinkat(place, name, UnlinkatFlags::RemoveDir)));
        if removed.is_ok() {
            self.progress.add(1, 0);
        }
        removed
    }

    /// Removes a directory's entries. The directories among them become tasks.
    fn empty(&self, tree: &Tree, worker: &Worker<'_, '_, Self>) -> Result<Left> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
        let open = || self.at(tree, |place, name| beneath::open(place, name, flags, Mode::empty()));
        let directory = match beneath::settled(open) {
            Ok(directory) => directory,
            Err(Errno::ENOENT) => return Ok(Left::Nothing),
            Err(errno) => return Err(errno),
        };
        let parent = Arc::new(Parent { directory, tree: tree.clone(), pending: AtomicUsize::new(1) });
        let mut waits = false;
        let mut buffer = self.buffers().pop().unwrap_or_else(|| vec![MaybeUninit::uninit(); BUFFER]);
        let left = self.entries(&parent, &mut buffer, &mut waits, worker);
        self.buffers().push(buffer);
        if !waits || worker.is_stopped() {
            return left;
        }
        // Whatever else is left is found again when those are gone.
        if parent.was_last() {
            self.finish(&parent, worker);
        }
        Ok(Left::Pending)
    }

    /// Whether those in a directory may be emptied where they are. One level waits for the next, and that for no other.
    fn may_wait(&self, parent: &Parent, waits: &mut bool) -> bool {
        if parent.tree.again || matches!(parent.tree.at, At::Within(_)) {
            return false;
        }
        if !*waits {
            *waits = self.parents.fetch_add(1, Ordering::Relaxed) < PARENTS;
            if !*waits {
                self.parents.fetch_sub(1, Ordering::Relaxed);
            }
        }
        *waits
    }

    fn entries(
        &self,
        parent: &Arc<Parent>,
        buffer: &mut [MaybeUninit<u8>],
        waits: &mut bool,
        worker: &Worker<'_, '_, Self>,
    ) -> Result<Left> {
        let (directory, origin) = (&parent.directory, &parent.tree.origin);
        let mut failed = None;
        let mut directories = 0;
        let mut next = Some(0);
        // Removed while they are read, so that a million names need no memory: what a server's cookies then skip, the
        // next round finds.
        'names: while let Some(from) = next.take() {
            if !prepare(directory, from)? {
                break;
            }
            let mut removed = 0;
            let mut entries = RawDir::new(directory, buffer);
            while let Some(entry) = entries.next() {
                let entry = entry.map_err(errno_of)?;
                let (name, kind, cookie) = (entry.file_name(), entry.file_type(), entry.next_entry_cookie());
                if !is_dots(name) {
                    match self.entry(parent, (name, kind), waits, worker) {
                        Ok(None) => {
                            removed += 1;
                            self.progress.add(1, 0);
                        }
                        Ok(Some(at)) => {
                            worker.push([Tree { at, origin: origin.below(name.to_owned(), ()), again: false }]);
                            directories += 1;
                        }
                        Err(errno) => {
                            failed.get_or_insert_with(|| {
                                (shown(origin.path_of(name).into_os_string().into_vec()).into(), errno)
                            });
                            if self.gives_up(worker) {
                                break 'names;
                            }
                        }
                    }
                }
                if entries.is_buffer_empty() {
                    // After many it goes on at the beginning, if all before are gone: only there does NFS ask the
                    // server for the names with all that is known of them.
                    let all_gone = failed.is_none() && !*waits;
                    next = Some(if removed >= MANY_NAMES && all_gone { 0 } else { cookie });
                    break;
                }
                if directories >= FEW && worker.waiting() >= MANY_WAITING {
                    return Ok(Left::Directories);
                }
            }
        }
        Ok(failed.map_or(Left::Nothing, Left::Entry))
    }

    /// Removes an entry of a directory. One that may be a directory stays, or is moved up: where it is then.
    fn entry(
        &self,
        parent: &Arc<Parent>,
        (entry, kind): (&CStr, FileType),
        waits: &mut bool,
        worker: &Worker<'_, '_, Self>,
    ) -> Result<Option<At>> {
        let directory = &parent.directory;
        if kind != FileType::Directory {
            match self.timed(worker, || unlinkat(directory, entry, UnlinkatFlags::NoRemoveDir)) {
                Ok(()) | Err(Errno::ENOENT) => return Ok(None),
                // The server did not say the type, or it changed.
                Err(Errno::EISDIR | Errno::EPERM) => {}
                Err(errno) => return Err(errno),
            }
        } else if self.may_wait(parent, waits) {
            parent.pending.fetch_add(1, Ordering::Relaxed);
            return Ok(Some(At::Within(Arc::clone(parent))));
        }
        loop {
            let number = self.moved.fetch_add(1, Ordering::Relaxed);
            match self.timed(worker, || renameat(directory, entry, self.place, self.name(number).as_str())) {
                Ok(()) => return Ok(Some(At::Moved(number))),
                Err(Errno::ENOENT) => return Ok(None),
                // A killed run left something of this name.
                Err(Errno::EEXIST | Errno::ENOTEMPTY | Errno::ENOTDIR | Errno::EISDIR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Asks the server for something. The first answers are timed; then the others are called.
    fn timed<T>(&self, worker: &Worker<'_, '_, Self>, call: impl FnOnce() -> T) -> T {
        if self.timed.load(Ordering::Relaxed) >= TIMED {
            return call();
        }
        let begun = Instant::now();
        let outcome = call();
        let answer = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.quickest.fetch_min(answer, Ordering::Relaxed);
        if self.timed.fetch_add(1, Ordering::Relaxed) + 1 == TIMED {
            worker.call_another();
        }
        outcome
    }

    fn name(&self, number: u64) -> String {
        format!("{}.{number}", self.top)
    }

    fn buffers(&self) -> MutexGuard<'_, Vec<Vec<MaybeUninit<u8>>>> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the removal where the rest of it is in vain: asked when an entry could not be removed.
    fn gives_up(&self, worker: &Worker<'_, '_, Self>) -> bool {
        let is_in_vain = (self.is_in_vain)();
        if is_in_vain {
            worker.stop();
        }
        is_in_vain
    }

    fn fail(&self, failure: Failure) {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
    }
}

/// Makes the names from `from` on, as many as fit, cheap to remove: NFS looks every name up before it removes it,
/// unless the directory was found unchanged since it was read. Whether there are any.
fn prepare(directory: &OwnedFd, from: u64) -> Result<bool> {
    let mut buffer = [MaybeUninit::uninit(); GLANCE];
    if tell(directory).map_err(errno_of)? != from {
        seek(directory, SeekFrom::Start(from)).map_err(errno_of)?;
    }
    let mut entries = RawDir::new(directory, &mut buffer);
    let mut several = 0;
    while several < 2 {
        match entries.next() {
            Some(entry) => several += u32::from(!is_dots(entry.map_err(errno_of)?.file_name())),
            None => break,
        }
        if several > 0 && entries.is_buffer_empty() {
            break;
        }
    }
    if several > 1 {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
        statx(directory, c"", flags, StatxFlags::BASIC_STATS).map_err(errno_of)?;
    }
    if several > 0 {
        seek(directory, SeekFrom::Start(from)).map_err(errno_of)?;
    }
    Ok(several > 0)
}

fn path(origin: &Node<()>) -> OsString {
    shown(origin.path().into_os_string().into_vec()).into()
}

fn is_dots(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}

#[cfg(test)]
mod tests;
