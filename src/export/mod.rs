//! An NFS export as the controller holds it: mounted, its own folder `.nfs-csi` on it, and the records there.
//!
//! It is mounted twice. Through one mount names are looked up, and each time the server is asked (`lookupcache=none`):
//! other controllers work on the same export, and what is decided by must not be what this client remembers. Through
//! the other one trees are copied and removed, where a question for each name would double the work.
//!
//! Every call into an export is synchronous and may wait for its server, so it runs through [`Export::run`]: on a
//! bounded number of threads an export. A server that stops to answer is noticed meanwhile (lost.rs).

mod attempt_name;
pub mod catalog;
pub mod claims;
mod clock;
pub mod contents;
pub mod directories;
mod error;
mod first_version;
pub mod holder;
pub(crate) mod identity;
pub mod invariants;
mod layout;
pub mod limited;
mod lost;
pub mod pages;
pub mod pool;
pub mod record_lock;
mod shared_trees;
mod small_file;
pub mod snapshots;
pub mod staging;
pub mod staging_sweep;
pub mod trash;
pub mod trash_free;
mod trash_name;
pub mod tree_claims;
mod tree_turns;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use tokio::sync::Semaphore;

use self::clock::Clock;
pub use self::error::ExportError;
use self::holder::Holder;
pub use self::layout::Folder;
use self::layout::{Layout, TreeLayout};
use self::limited::{Limits, QuotaFolders};
use self::shared_trees::TreeFolders;
use self::trash::TrashName;
pub use self::tree_turns::TreeWork;
use self::tree_turns::Turns;
use crate::mount::daemon::held::HeldServer;
use crate::mount::options::Options;
use crate::mount::table::Table;
use crate::tree::TreeError;
use crate::tree::archive::ArchiveError;
use crate::tree::attributes::has_user_xattrs;
use crate::tree::copy::FileSystem;
use crate::tree::effort::Effort;
use crate::volume::share::Share;
use crate::volume::subdir::SubDir;

/// Calls under way on one export. The kernel's client serialises what happens within a directory, so more do not help.
const CALLS: usize = 16;
/// Removals under way on one export: behind the calls that somebody waits for.
const BACKGROUND_CALLS: usize = 16;
/// Calls under way on one export that may wait for its quota agent: others do not wait behind them.
const LIMITED_CALLS: usize = 64;
/// Locks that keep operations on one directory apart; two directories seldom share one.
const STRIPES: usize = 256;

/// The work on an export that waits for a place together: no kind keeps another waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// What a caller waits for.
    Calls,
    /// What a caller waits for, and may wait itself for the export's quota agent.
    Limited,
    /// What no caller waits for.
    Background,
}

/// A mounted export.
#[derive(Debug)]
pub struct Export {
    share: Share,
    options: Options,
    version: String,
    /// Where names are looked up.
    names: Mounted,
    /// Where trees are worked on; none: in the same mount.
    trees: Option<Mounted>,
    /// Its server; none where others mounted it.
    server: Option<HeldServer>,
    /// How long its server had not answered when its mounts were given up.
    lost: OnceLock<Duration>,
    layout: OnceLock<Layout>,
    tree_layout: OnceLock<TreeLayout>,
    tree_folders: OnceLock<TreeFolders>,
    quota_folders: OnceLock<QuotaFolders>,
    shared: Arc<Shared>,
    file_system: FileSystem,
    /// Whether it was looked at for extended attributes.
    is_probed: AtomicBool,
    used: Mutex<Instant>,
    is_used: AtomicBool,
}

/// One mount of an export.
#[derive(Debug)]
struct Mounted {
    point: PathBuf,
    root: OwnedFd,
}

/// What all mounts of one share have in common, however they are made.
#[derive(Debug)]
struct Shared {
    calls: Arc<Semaphore>,
    background: Arc<Semaphore>,
    limited: Arc<Semaphore>,
    trees: Arc<Semaphore>,
    turns: Arc<Turns>,
    effort: Effort,
    stripes: Vec<Mutex<()>>,
    clock: Clock,
    limits: Limits,
    holder: Arc<Holder>,
    /// What was moved to the trash and is to be freed.
    garbage: Mutex<Vec<TrashName>>,
}

impl Shared {
    fn new(effort: Effort, holder: Arc<Holder>, turns: Arc<Turns>) -> Arc<Self> {
        Arc::new(Self {
            calls: Arc::new(Semaphore::new(CALLS)),
            background: Arc::new(Semaphore::new(BACKGROUND_CALLS)),
            limited: Arc::new(Semaphore::new(LIMITED_CALLS)),
            trees: Turns::of_share(),
            turns,
            effort,
            stripes: (0..STRIPES).map(|_| Mutex::new(())).collect(),
            clock: Clock::default(),
            limits: Limits::default(),
            holder,
            garbage: Mutex::default(),
        })
    }
}

impl Export {
    fn new(
        share: Share,
        options: Options,
        version: String,
        names: Mounted,
        trees: Option<Mounted>,
        server: Option<HeldServer>,
        shared: Arc<Shared>,
    ) -> Self {
        let file_system = FileSystem::mounted_with(&version);
        Self {
            share,
            options,
            version,
            names,
            trees,
            server,
            lost: OnceLock::new(),
            layout: OnceLock::new(),
            tree_layout: OnceLock::new(),
            tree_folders: OnceLock::new(),
            quota_folders: OnceLock::new(),
            shared,
            file_system,
            is_probed: AtomicBool::new(false),
            used: Mutex::new(Instant::now()),
            is_used: AtomicBool::new(false),
        }
    }

    /// An export that is mounted on this host already, at `path`.
    ///
    /// # Errors
    /// Where nothing of NFS is mounted at just this path.
    pub fn mounted_at(path: &Path, holder: Arc<Holder>) -> std::io::Result<Self> {
        let not_nfs = || std::io::Error::other("no NFS export is mounted at this path: name its mount point");
        let table = Table::read().map_err(std::io::Error::other)?;
        let mount = table.at(path).filter(|mount| mount.is_nfs()).ok_or_else(not_nfs)?;
        let share = mount.source.to_str().and_then(|source| source.parse().ok()).ok_or_else(not_nfs)?;
        let names = Mounted::open(path.to_owned())?;
        Ok(Self::new(
            share,
            Options::default(),
            String::new(),
            names,
            None,
            None,
            Shared::new(Effort::default(), holder, Turns::new()),
        ))
    }

    /// The directory of an export on its own server. In messages it is this host's.
    ///
    /// # Errors
    /// Where it cannot be opened, or its path is none that an export can have.
    pub fn on_server(path: &Path, holder: Arc<Holder>) -> std::io::Result<Self> {
        let share = format!("localhost:{}", path.display()).parse().map_err(std::io::Error::other)?;
        let names = Mounted::open(path.to_owned())?;
        let shared = Shared::new(Effort::default(), holder, Turns::new());
        Ok(Self::new(share, Options::default(), String::new(), names, None, None, shared))
    }

    /// Whether this is the first call of this function: the moment to look what an earlier process left.
    pub fn first_use(&self) -> bool {
        !self.is_used.swap(true, Ordering::Relaxed)
    }

    /// Where the export is on the network.
    #[must_use]
    pub fn share(&self) -> &Share {
        &self.share
    }

    /// The options it is mounted with.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The NFS version it is mounted with.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Logs, once, where the export has no users' extended attributes: they are in no copy from or to it.
    pub fn log_missing_attributes(&self) {
        if !self.is_probed.swap(true, Ordering::Relaxed) && has_user_xattrs(self.tree_root()) == Ok(false) {
            tracing::warn!(
                share = %self.share,
                version = self.version,
                "this server has no extended attributes with this version of NFS: those of users (user.*) are not copied \
                 from or to this share"
            );
        }
    }

    /// The share's top directory, where names are looked up.
    #[must_use]
    pub fn root(&self) -> BorrowedFd<'_> {
        self.names.root.as_fd()
    }

    /// The share's top directory, where trees are worked on: names may be answered from what this client remembers.
    fn tree_root(&self) -> BorrowedFd<'_> {
        self.trees.as_ref().unwrap_or(&self.names).root.as_fd()
    }

    /// Runs work that may wait for the server, when a place is free.
    ///
    /// # Errors
    /// What the work gives, [`ExportError::Defect`] if it panicked, or that the server does not answer.
    pub async fn run<T, E, F>(self: &Arc<Self>, work: F) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<ExportError> + Send + 'static,
        F: FnOnce(&Self) -> Result<T, E> + Send + 'static,
    {
        self.run_behind(Queue::Calls, work).await
    }

    /// The same behind other work of its kind.
    ///
    /// # Errors
    /// As [`Export::run`].
    pub async fn run_behind<T, E, F>(self: &Arc<Self>, queue: Queue, work: F) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<ExportError> + Send + 'static,
        F: FnOnce(&Self) -> Result<T, E> + Send + 'static,
    {
        let places = match queue {
            Queue::Calls => &self.shared.calls,
            Queue::Limited => &self.shared.limited,
            Queue::Background => &self.shared.background,
        };
        let place = Arc::clone(places).acquire_owned().await.map_err(|_| self.defect())?;
        self.run_with(place, work).await
    }

    /// The same for work that nobody waits for.
    ///
    /// # Errors
    /// As [`Export::run`].
    pub async fn run_in_background<T, E, F>(self: &Arc<Self>, work: F) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<ExportError> + Send + 'static,
        F: FnOnce(&Self) -> Result<T, E> + Send + 'static,
    {
        self.run_behind(Queue::Background, work).await
    }

    /// The same for work on a whole tree, which may take hours.
    ///
    /// # Errors
    /// As [`Export::run`].
    pub async fn run_on_tree<T, E, F>(self: &Arc<Self>, kind: TreeWork, work: F) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<ExportError> + Send + 'static,
        F: FnOnce(&Self) -> Result<T, E> + Send + 'static,
    {
        let turn = self.shared.turns.take(kind, &self.shared.trees).await.map_err(|_| self.defect())?;
        self.run_with(turn, work).await
    }

    fn defect<E: From<ExportError>>(&self) -> E {
        E::from(ExportError::Defect { share: self.share.to_string() })
    }

    async fn run_with<T, E, F, P>(self: &Arc<Self>, place: P, work: F) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<ExportError> + Send + 'static,
        F: FnOnce(&Self) -> Result<T, E> + Send + 'static,
        P: Send + 'static,
    {
        self.check_server()?;
        let (export, counted) = (Arc::clone(self), self.count_work());
        let work = move || {
            // The work's place and not the caller's, who may go away before the work ends.
            let _held = (place, counted);
            let ended = work(&export);
            export.touch();
            ended
        };
        self.watched(async { tokio::task::spawn_blocking(work).await.map_err(|_| self.defect())? }).await
    }

    /// How much is done at once on this export's trees.
    #[must_use]
    pub fn effort(&self) -> &Effort {
        &self.shared.effort
    }

    /// What is known of its file system.
    #[must_use]
    pub fn file_system(&self) -> &FileSystem {
        &self.file_system
    }

    /// Runs work on a directory while no other operation of this process that asks for the same runs on it.
    pub fn alone<T>(&self, subdir: &SubDir, work: impl FnOnce() -> T) -> T {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        subdir.hash(&mut hasher);
        let stripe = usize::try_from(hasher.finish() % STRIPES as u64).unwrap_or_default();
        let _alone = self.shared.stripes[stripe].lock().unwrap_or_else(PoisonError::into_inner);
        work()
    }

    /// Bytes that a new volume may still use, as the server tells.
    ///
    /// # Errors
    /// Where the server does not answer.
    pub fn available_bytes(&self) -> Result<u64, ExportError> {
        let stat = nix::sys::statvfs::fstatvfs(&self.names.root)
            .map_err(|errno| self.failed("ask for the free space of", ".", errno))?;
        Ok(stat.blocks_available() * stat.fragment_size())
    }

    /// The driver's own folder, made on first use.
    fn layout(&self) -> Result<&Layout, ExportError> {
        if let Some(layout) = self.layout.get() {
            return Ok(layout);
        }
        let layout = Layout::open(self)?;
        Ok(self.layout.get_or_init(|| layout))
    }

    /// The folders of the driver's own in which trees are worked on.
    fn tree_layout(&self) -> Result<&TreeLayout, ExportError> {
        if let Some(layout) = self.tree_layout.get() {
            return Ok(layout);
        }
        self.layout()?;
        let layout = TreeLayout::open(self)?;
        Ok(self.tree_layout.get_or_init(|| layout))
    }

    /// The folders for snapshots that volumes read, made on first use.
    fn tree_folders(&self) -> Result<&TreeFolders, ExportError> {
        if let Some(folders) = self.tree_folders.get() {
            return Ok(folders);
        }
        let folders = TreeFolders::open(self)?;
        Ok(self.tree_folders.get_or_init(|| folders))
    }

    /// What calls moved to the trash since this was asked last: it can be freed.
    #[must_use]
    pub fn take_garbage(&self) -> Vec<TrashName> {
        std::mem::take(&mut *self.shared.garbage.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes that something in the trash is to be freed.
    pub fn leave_to_reaper(&self, name: TrashName) {
        self.shared.garbage.lock().unwrap_or_else(PoisonError::into_inner).push(name);
    }

    /// The error of work that another controller has undone or done first: a retry finds how things are then.
    #[must_use]
    pub fn contended(&self, what: &'static str, path: impl Into<String>) -> ExportError {
        ExportError::Contended { what, path: path.into(), share: self.share.to_string() }
    }

    /// The error of a call on `path` below the share.
    #[must_use]
    pub fn failed(&self, what: &'static str, path: impl Into<String>, errno: Errno) -> ExportError {
        ExportError::Io { what, path: path.into(), share: self.share.to_string(), errno }
    }

    /// The same of work on the tree at `path`.
    #[must_use]
    pub fn tree_failed(&self, path: &dyn std::fmt::Display, error: &TreeError) -> ExportError {
        let errno = match error.errno {
            // What vanishes from a source is left out, so it is the tree in staging that somebody took away.
            Errno::ENOENT => Errno::ESTALE,
            errno => errno,
        };
        self.failed(error.what, format!("{path}/{}", error.path.display()), errno)
    }

    /// There is no space for a copy of `what`, for the kernel's reason `errno`.
    #[must_use]
    pub fn full(&self, what: &str, errno: Errno) -> ExportError {
        match self.available_bytes() {
            Ok(free) => ExportError::Full { what: what.into(), share: self.share.to_string(), errno, free },
            Err(error) => error,
        }
    }

    /// The same of work with the archive of `what`.
    #[must_use]
    pub fn archive_failed(&self, what: &str, error: ArchiveError) -> ExportError {
        ExportError::Archive { what: what.into(), share: self.share.to_string(), error }
    }

    /// Where it is mounted.
    fn mount_points(&self) -> Vec<PathBuf> {
        [Some(&self.names), self.trees.as_ref()].into_iter().flatten().map(|mounted| mounted.point.clone()).collect()
    }

    fn touch(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn idle(&self) -> Duration {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }
}

impl Mounted {
    /// The mount at `point`. No server is asked (`O_PATH`), so this process does not wait here.
    fn open(point: PathBuf) -> std::io::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let root = nix::fcntl::open(&point, flags, nix::sys::stat::Mode::empty())?;
        Ok(Self { point, root })
    }
}

#[cfg(test)]
impl Export {
    /// A folder of this host as an export: what does not depend on a server works there too.
    pub(crate) fn local(folder: &Path) -> Arc<Self> {
        let names = Mounted::open(folder.to_owned()).unwrap();
        let share = "nas:/export".parse().unwrap();
        let shared =
            Shared::new(Effort::default(), Arc::new(Holder::open(Path::new("/no/such/folder"), None)), Turns::new());
        Arc::new(Self::new(share, Options::default(), String::new(), names, None, None, shared))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn work_whose_caller_went_away_has_its_place_until_it_ends() {
        let folder = tempfile::tempdir().unwrap();
        let export = Export::local(folder.path());
        let (end, ended) = mpsc::channel::<()>();
        let (starts, mut started) = tokio::sync::mpsc::channel(1);
        let caller = tokio::spawn({
            let export = Arc::clone(&export);
            async move {
                export
                    .run(move |_| {
                        starts.try_send(()).unwrap();
                        ended.recv().unwrap();
                        Ok::<_, ExportError>(())
                    })
                    .await
            }
        });
        started.recv().await.unwrap();
        caller.abort();
        assert!(caller.await.unwrap_err().is_cancelled());
        assert_eq!(export.shared.calls.available_permits(), CALLS - 1);
        end.send(()).unwrap();
        // All places are free when the work has ended.
        let all = u32::try_from(CALLS).unwrap();
        drop(export.shared.calls.acquire_many(all).await.unwrap());
    }
}
