//! The directories of a copy: what is known of them, and which of them are open.
//!
//! A directory keeps its descriptors while tasks for it wait, if it is among the last few that asked to; those that do
//! not are opened again by their path from the next one above that is open. A tree of any depth and width so needs
//! only [`KEPT`] pairs of descriptors and one for each worker; with an earlier attempt's tree each pair is three.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use nix::fcntl::OFlag;
use rustix::fs::{AtFlags, Mode, OFlags, SeekFrom, Stat, chmodat, fchmod, fstat, mkdirat, openat, seek};
use rustix::io::{Errno, Result, fcntl_dupfd_cloexec};

use super::acl::Given;
use super::file_systems::FileSystems;
use super::{Copy, Place, Spot, failed};
use crate::tree::TreeError;
use crate::tree::access_list;
use crate::tree::attributes::{Attributes, Xattr, is_user, set_xattrs, size_of_xattrs, xattrs};
use crate::tree::memory::{Memory, Part, TREES};
use crate::tree::walk::{self, Node};

/// Directories that are kept open: two descriptors each, or three.
const KEPT: usize = 48;
/// What a directory needs while its entries are made.
const WORKABLE: u32 = 0o700;

/// A directory of the source and its copy.
pub(super) type Directory = Node<State>;

/// What a directory's tasks share.
#[derive(Debug)]
pub(super) struct State {
    /// Tasks that are not done yet, its own and those of the directories in it.
    pending: AtomicUsize,
    /// Workers that are busy with one of its own.
    workers: AtomicUsize,
    open: Mutex<Option<Arc<Open>>>,
    entered: OnceLock<Box<Entered>>,
}

/// Its descriptors.
#[derive(Debug)]
pub(super) struct Open {
    /// Readable.
    pub(super) source: OwnedFd,
    /// A place only (`O_PATH`).
    pub(super) target: OwnedFd,
    /// The same directory in the tree of an earlier attempt, as a place only. None where that tree has no such
    /// directory.
    pub(super) earlier: Option<OwnedFd>,
}

/// What is known once it is made.
#[derive(Debug)]
pub(super) struct Entered {
    source: (u64, u64),
    /// Made just now; not one that was there because the directory above gave its name twice.
    is_new: bool,
    attributes: Attributes,
    /// They are set last, for what is made in the directory might inherit them.
    lists: Lists,
    /// The copy as it was made.
    has: Stat,
}

/// The access control lists of a directory until it is finished.
#[derive(Clone, Debug)]
pub(super) enum Lists {
    None,
    /// A directory that has those of the one above, because it inherited them, shares them.
    Held(Arc<(Vec<Xattr>, Part)>),
    /// There is no memory for them: they are read once more.
    InSource,
}

impl Lists {
    /// Holds a directory's lists, in the memory that is left; `above` is the directory it is in.
    pub(super) fn new(lists: Vec<Xattr>, above: Option<&Entered>, memory: &'static Memory) -> Self {
        if lists.is_empty() {
            return Self::None;
        }
        match above.map(|above| &above.lists) {
            Some(Self::Held(held)) if held.0 == lists => Self::Held(Arc::clone(held)),
            _ => match memory.take(size_of_xattrs(&lists)) {
                Some(part) => Self::Held(Arc::new((lists, part))),
                None => Self::InSource,
            },
        }
    }
}

impl Entered {
    /// `has` is the copy as it was made.
    pub(super) fn new(source: &Stat, attributes: Attributes, has: Stat, is_new: bool, lists: Lists) -> Self {
        Self { source: id(source), is_new, attributes, lists, has }
    }

    /// Whether it counts: a name that was given twice is one directory.
    pub(super) fn is_new(&self) -> bool {
        self.is_new
    }

    /// The number of its copy.
    pub(super) fn copy(&self) -> u64 {
        self.has.st_ino
    }
}

fn id(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

impl Default for State {
    /// With one task: to enter it.
    fn default() -> Self {
        Self {
            pending: AtomicUsize::new(1),
            workers: AtomicUsize::new(0),
            open: Mutex::default(),
            entered: OnceLock::new(),
        }
    }
}

impl State {
    /// Notes that it was made.
    pub(super) fn enter(&self, entered: Entered) {
        let _ = self.entered.set(Box::new(entered));
    }

    /// None if it was not made: it vanished before.
    pub(super) fn entered(&self) -> Option<&Entered> {
        self.entered.get().map(Box::as_ref)
    }

    /// Notes further tasks.
    pub(super) fn expect(&self, tasks: usize) {
        self.pending.fetch_add(tasks, Ordering::Relaxed);
    }

    /// Notes that a task is done; whether it was the last.
    pub(super) fn is_done(&self) -> bool {
        self.pending.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Notes that a worker begins one; whether it is alone.
    pub(super) fn join(&self) -> bool {
        self.workers.fetch_add(1, Ordering::Relaxed) == 0
    }

    /// Notes that a worker is done with one; whether no other is left.
    pub(super) fn quit(&self) -> bool {
        self.workers.fetch_sub(1, Ordering::Relaxed) == 1
    }

    fn open(&self) -> Option<Arc<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Gives its descriptors up.
    pub(super) fn close(&self) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// The directories that keep their descriptors, the last one last.
#[derive(Debug, Default)]
pub(super) struct Kept(Mutex<VecDeque<Weak<Directory>>>);

impl Kept {
    /// Lets a directory keep its descriptors; another one gives its up for it.
    pub(super) fn put(&self, directory: &Arc<Directory>, open: &Arc<Open>) {
        let mut own = directory.data.open.lock().unwrap_or_else(PoisonError::into_inner);
        if own.is_some() {
            return;
        }
        *own = Some(Arc::clone(open));
        drop(own);
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back(Arc::downgrade(directory));
        let first = if kept.len() > KEPT { kept.pop_front() } else { None };
        drop(kept);
        if let Some(first) = first.and_then(|first| first.upgrade()) {
            first.data.close();
        }
    }
}

/// The two roots.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) root: Arc<Directory>,
    open: Arc<Open>,
    /// How files of the source are opened besides.
    pub(super) of_files: OFlag,
}

impl Tree {
    pub(super) fn new(
        source: BorrowedFd<'_>,
        target: Place<'_>,
        file_systems: FileSystems<'_>,
    ) -> std::result::Result<Self, TreeError> {
        let failed = |what| move |errno| failed(what, PathBuf::new(), errno);
        // The same as the caller's, not opened again: that would be a call to the server each.
        let source = own(source).map_err(failed("open"))?;
        let place = own(target.directory).map_err(failed("open the copy of"))?;
        seek(&source, SeekFrom::Start(0)).map_err(failed("read"))?;
        let stat = fstat(&source).map_err(failed("look at"))?;
        let xattrs = xattrs(&source).map_err(failed("read the extended attributes of"))?;
        let earlier = target.earlier.and_then(|earlier| earlier_directory(earlier.directory, c"."));
        let (users, lists): (Vec<_>, _) = xattrs.into_iter().partition(is_user);
        set_users(&place, &users).map_err(failed("set the extended attributes of"))?;
        access_list::remove_inherited(&place)
            .map_err(failed("remove the inherited access control list of the copy of"))?;
        let has = fstat(&place).map_err(failed("enter the copy of"))?;
        let lists = Lists::new(lists, None, &TREES);
        let entered = Entered::new(&stat, Attributes::of(&stat), has, true, lists);
        let root = Node::root(State::default());
        root.data.enter(entered);
        let open = Arc::new(Open { source, target: place, earlier });
        Ok(Self { root, open, of_files: file_systems.of_files() })
    }

    /// The source's root.
    pub(super) fn source(&self) -> BorrowedFd<'_> {
        self.open.source.as_fd()
    }

    /// A directory's descriptors; none if the source's was removed or moved away.
    pub(super) fn open(
        &self,
        directory: &Arc<Directory>,
        kept: &Kept,
    ) -> std::result::Result<Option<Arc<Open>>, TreeError> {
        if let Some(open) = self.is_open(directory) {
            return Ok(Some(open));
        }
        let (from, paths) = self.way_to(directory);
        let failed = |what, errno| failed(what, directory.path(), errno);
        let source = match walk::follow(from.source.as_fd(), &paths, OFlag::O_RDONLY) {
            // The server has lost the one that the way begins at, or only its handle.
            Err(Errno::STALE) => self.follow_from_root(directory),
            source => source,
        };
        let source = match source {
            Ok(source) => source,
            // It was moved away, or a link or a file put in its place.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
            Err(errno) => return Err(failed(super::cannot_open(errno), errno)),
        };
        let stat = fstat(&source).map_err(|errno| failed("look at", errno))?;
        if directory.data.entered().is_some_and(|entered| entered.source != id(&stat)) {
            return Ok(None);
        }
        let target = walk::follow(from.target.as_fd(), &paths, OFlag::O_PATH)
            .map_err(|errno| failed("enter the copy of", errno))?;
        let earlier =
            from.earlier.as_ref().and_then(|earlier| walk::follow(earlier.as_fd(), &paths, OFlag::O_PATH).ok());
        let open = Arc::new(Open { source, target, earlier });
        kept.put(directory, &open);
        Ok(Some(open))
    }

    /// Whether a directory that was entered is no longer in its place in the source, as the server says.
    pub(super) fn has_lost(&self, directory: &Arc<Directory>) -> std::result::Result<bool, TreeError> {
        match self.follow_from_root(directory).and_then(fstat) {
            Ok(stat) => Ok(directory.data.entered().is_some_and(|entered| entered.source != id(&stat))),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(true),
            Err(errno) => Err(failed("look at", directory.path(), errno)),
        }
    }

    /// Opens a directory of the source by its whole path: to open it for reading asks the server for it.
    fn follow_from_root(&self, directory: &Arc<Directory>) -> Result<OwnedFd> {
        let (from, paths) = self.way(directory, |at| at.above().is_none().then(|| Arc::clone(&self.open)));
        walk::follow(from.source.as_fd(), &paths, OFlag::O_RDONLY)
    }

    /// A directory's copy only.
    pub(super) fn open_target(&self, directory: &Arc<Directory>) -> std::result::Result<Target, TreeError> {
        if let Some(open) = self.is_open(directory) {
            return Ok(Target::Open(open));
        }
        let (from, paths) = self.way_to(directory);
        let target = walk::follow(from.target.as_fd(), &paths, OFlag::O_PATH);
        target.map(Target::Place).map_err(|errno| failed("enter the copy of", directory.path(), errno))
    }

    fn is_open(&self, directory: &Arc<Directory>) -> Option<Arc<Open>> {
        if directory.above().is_none() { Some(Arc::clone(&self.open)) } else { directory.data.open() }
    }

    /// The next directory above that is open, and the way from it in pieces that the kernel takes.
    fn way_to(&self, directory: &Arc<Directory>) -> (Arc<Open>, Vec<PathBuf>) {
        self.way(directory, |at| self.is_open(at))
    }

    fn way(
        &self,
        directory: &Arc<Directory>,
        begins_at: impl Fn(&Arc<Directory>) -> Option<Arc<Open>>,
    ) -> (Arc<Open>, Vec<PathBuf>) {
        let mut names: Vec<&CStr> = Vec::new();
        let mut at = directory;
        let from = loop {
            if let Some(open) = begins_at(at) {
                break open;
            }
            names.push(at.name());
            match at.above() {
                Some(above) => at = above,
                None => break Arc::clone(&self.open),
            }
        };
        let paths = walk::paths(names.into_iter().rev().map(walk::as_path));
        (from, paths)
    }
}

/// Makes a directory in the target: the directory, as it is, and whether it is new. One that is there has a name that
/// was given twice, or was made by a question that was repeated; none if it is no directory.
pub(super) fn make(spot: &Spot<'_>, mode: u32) -> std::result::Result<Option<(OwnedFd, Stat, bool)>, TreeError> {
    let mode = Mode::from_raw_mode(mode & 0o777 | WORKABLE);
    let cannot_enter = |errno| spot.failed("enter the copy of", errno);
    let is_new = match mkdirat(spot.target(), spot.name, mode) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(errno) => return Err(spot.failed("make", errno)),
    };
    let target = match walk::open(spot.target(), walk::as_path(spot.name), OFlag::O_PATH | OFlag::O_DIRECTORY, 0) {
        Err(Errno::NOTDIR | Errno::LOOP) if !is_new => return Ok(None),
        opened => opened.map_err(cannot_enter)?,
    };
    let mut has = fstat(&target).map_err(cannot_enter)?;
    // It may be finished already.
    if has.st_mode & WORKABLE != WORKABLE {
        chmodat(spot.target(), spot.name, mode, AtFlags::empty()).map_err(cannot_enter)?;
        has = fstat(&target).map_err(cannot_enter)?;
    }
    Ok(Some((target, has, is_new)))
}

/// The directory of an earlier attempt's tree, as a place only. What is missing there or cannot be opened, or is a
/// link, is none: nothing depends on it.
pub(super) fn earlier_directory(above: impl AsFd, name: &CStr) -> Option<OwnedFd> {
    walk::open(above, walk::as_path(name), OFlag::O_PATH | OFlag::O_DIRECTORY, 0).ok()
}

fn own(descriptor: BorrowedFd<'_>) -> Result<OwnedFd> {
    fcntl_dupfd_cloexec(descriptor, 0)
}

/// Sets the users' extended attributes of a directory that is opened as a place only.
pub(super) fn set_users(target: impl AsFd, users: &[Xattr]) -> Result<()> {
    if users.is_empty() { Ok(()) } else { set_xattrs(readable(target)?, users) }
}

/// Only a directory that is opened for reading gives and takes extended attributes.
fn readable(target: impl AsFd) -> Result<OwnedFd> {
    walk::open(target, ".", OFlag::O_RDONLY | OFlag::O_DIRECTORY, 0)
}

/// A directory's copy, opened.
pub(super) enum Target {
    Open(Arc<Open>),
    Place(OwnedFd),
}

impl Target {
    /// The copy of the directory above, if it is the one that was entered: by its path the way would be long in a deep
    /// tree.
    pub(super) fn above(&self, entered: &Entered) -> Option<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let above = openat(self.as_fd(), c"..", flags, Mode::empty()).ok()?;
        let stat = fstat(&above).ok()?;
        (id(&entered.has) == id(&stat)).then_some(Self::Place(above))
    }
}

impl AsFd for Target {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Open(open) => open.target.as_fd(),
            Self::Place(place) => place.as_fd(),
        }
    }
}

impl Copy<'_> {
    /// The access control lists of a directory of the source. One that is gone meanwhile is an error: without its lists
    /// its copy might be open to others than it was.
    fn lists_again(&self, directory: &Arc<Directory>) -> std::result::Result<Vec<Xattr>, TreeError> {
        let failed = |errno| failed("read the access control list of", directory.path(), errno);
        let open = self.tree.open(directory, &self.kept)?.ok_or_else(|| failed(Errno::STALE))?;
        Ok(xattrs(&open.source).map_err(failed)?.into_iter().filter(|xattr| !is_user(xattr)).collect())
    }

    /// Gives a directory's copy its attributes: nothing in it changes any more.
    pub(super) fn finish(
        &self,
        directory: &Arc<Directory>,
        entered: &Entered,
        target: &Target,
    ) -> std::result::Result<(), TreeError> {
        let failed = |what| move |errno| failed(what, directory.path(), errno);
        let Entered { attributes, has, is_new, lists, .. } = entered;
        let read_again;
        let lists = match lists {
            Lists::None => &[],
            Lists::Held(held) => held.0.as_slice(),
            Lists::InSource => {
                read_again = self.lists_again(directory)?;
                read_again.as_slice()
            }
        };
        let is_plain = |list: &&Xattr| *is_new && self.file_system.is_plain(attributes.mode, true, list);
        let lists: Vec<&Xattr> = lists.iter().filter(|list| !is_plain(list)).collect();
        // Before it has its permissions, which may forbid it.
        let opened = if lists.is_empty() { None } else { Some(readable(target).map_err(failed("open the copy of"))?) };
        attributes.set_directory(target, has).map_err(failed("set the owner and the permissions of"))?;
        let mut mode = attributes.mode;
        for (list, opened) in lists.into_iter().zip(opened.iter().cycle()) {
            let given = self.file_system.give(opened, attributes.mode, true, list, *is_new);
            match given.map_err(failed("set the access control list of"))? {
                Given::Had => continue,
                // It says nothing of setgid and the sticky bit, and may drop them.
                Given::Set => {}
                Given::Refused => match access_list::give_up(mode, list, self.progress) {
                    narrowed if narrowed == mode => continue,
                    narrowed => mode = narrowed,
                },
            }
            fchmod(opened, Mode::from_raw_mode(mode)).map_err(failed("set the permissions of"))?;
        }
        attributes.set_directory_times(target).map_err(failed("set the times of"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_that_are_inherited_are_held_once_and_others_within_the_limit() {
        static MEMORY: Memory = Memory::new(1 << 20);
        let folder = tempfile::tempdir().unwrap();
        let stat = fstat(std::fs::File::open(folder.path()).unwrap()).unwrap();
        let lists = |byte: u8| vec![(c"system.nfs4_acl".to_owned(), vec![byte; 50_000])];
        let enter = |lists| Entered::new(&stat, Attributes::of(&stat), stat, true, lists);
        let mut chain = vec![enter(Lists::new(lists(0), None, &MEMORY))];
        for _ in 0..8000 {
            chain.push(enter(Lists::new(lists(0), chain.last(), &MEMORY)));
        }
        assert!(chain.iter().all(|entered| matches!(entered.lists, Lists::Held(_))));
        for depth in 0..100 {
            chain.push(enter(Lists::new(lists(1 + depth % 2), chain.last(), &MEMORY)));
        }
        let held = chain[8001..].iter().filter(|entered| matches!(entered.lists, Lists::Held(_))).count();
        assert_eq!(held, 19);
        drop(chain);
        assert!(MEMORY.take(1 << 20).is_some());
    }
}
