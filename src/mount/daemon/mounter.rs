//! Mounting, unmounting and looking at mounts, from a daemon that never waits without a deadline.
//!
//! The calls that may block are made by worker processes (`worker_pool`), a bounded number at a time for each server
//! (`servers`), and only for servers that answer (`reach`), so that a dead one takes no more than its share.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Mutex as Turn;
use tokio::time::timeout;

use super::ping::Pinger;
use super::private_dir::PrivateDir;
use super::servers::{Manner, Server, Servers};
use super::worker_pool::{WorkerPool, worker_failed};
use crate::metrics::{self, Metrics};
use crate::mount::nfs_volumes::NfsVolumes;
use crate::mount::options::{Transport, Version};
use crate::mount::protocol::error::MountError;
use crate::mount::protocol::{MountRequest, Occupant, Reply, Request, ScratchRequest, Usage, Workplace};
use crate::mount::table::{Mount, Table, TableError, split_source};

/// The place of calls that no server has to answer.
const NO_SERVER: &str = "";
/// NFS's own port.
const NFS_PORT: u16 = 2049;
/// More mounts than this on one path are somebody's mistake; the next call goes on with them.
const MOST_STACKED: usize = 100;
/// How soon, and then how often, the mount table is asked whether a mount that takes its time to go is gone.
const GONE_CHECK: Duration = Duration::from_millis(100);
/// How long the call that took a mount out of the table may go on talking to its server.
const FAREWELL: Duration = Duration::from_secs(2);

/// The bounds of what is asked of workers and servers.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Calls under way towards one server.
    pub per_server: usize,
    /// How long a mount or an unmount may take.
    pub mount: Duration,
    /// How long the first mount of a server may take: while it hangs, no other server can be mounted for the first
    /// time.
    pub first_mount: Duration,
    /// How long a server may take to answer RPC NULL.
    pub ping: Duration,
    /// How long a look at a mounted file system may take.
    pub stats: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            per_server: 4,
            mount: Duration::from_secs(30),
            first_mount: Duration::from_secs(15),
            ping: Duration::from_secs(2),
            stats: Duration::from_secs(2),
        }
    }
}

/// What a mount came to.
#[derive(Debug, PartialEq, Eq)]
pub enum Mounted {
    /// It was made, on the path that the mount table names, with the NFS version named.
    Now {
        /// The mount point with every link in its parents resolved.
        target: String,
        /// The NFS version that was agreed on.
        version: String,
        /// The source as the mount table has it.
        source: String,
    },
    /// Something is mounted there already.
    Before(Occupant),
}

/// All that this daemon does to mounts.
#[derive(Debug)]
pub struct Mounter {
    limits: Limits,
    pool: Arc<WorkerPool>,
    private: PrivateDir,
    /// Folders in it that no mount is being made in, and how many were made.
    workplaces: Mutex<Vec<Workplace>>,
    made_workplaces: AtomicU64,
    pinger: Pinger,
    servers: Servers,
    /// Held by whoever mounts from a server of which nothing is mounted.
    first: Turn<()>,
    detached: Mutex<Vec<Detached>>,
}

/// A mount that is out of the table while the kernel may keep its file system.
#[derive(Clone, Debug)]
struct Detached {
    device: (u32, u32),
    server: String,
}

impl Mounter {
    /// Starts the first worker at once, so that the first mount finds one. What is mounted for this process itself is
    /// mounted in `private`.
    ///
    /// # Errors
    /// Where this binary cannot be started again as a worker.
    pub fn start(limits: Limits, private: PrivateDir) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            limits,
            private,
            workplaces: Mutex::default(),
            made_workplaces: AtomicU64::new(0),
            pool: WorkerPool::start()?,
            pinger: Pinger::default(),
            servers: Servers::new(limits.per_server),
            first: Turn::default(),
            detached: Mutex::default(),
        }))
    }

    /// The bounds that it keeps.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// The folder in which mounts of this process's own are made.
    #[must_use]
    pub fn private(&self) -> &PrivateDir {
        &self.private
    }

    pub(super) fn pool(&self) -> &WorkerPool {
        &self.pool
    }

    pub(super) fn servers(&self) -> &Servers {
        &self.servers
    }

    pub(super) fn pinger(&self) -> &Pinger {
        &self.pinger
    }

    /// Mounts what the request names, unless something is mounted on its target.
    pub async fn mount(self: &Arc<Self>, request: MountRequest) -> Result<Mounted, MountError> {
        let table = Table::read()?;
        if let Some(mount) = table.at(Path::new(&request.target)) {
            return Ok(Mounted::Before(Occupant::of(mount)));
        }
        self.check_way(&table, &request.target).await?;
        let is_first = !table.iter().any(|mount| mount.is_nfs() && is_of_server(mount, &request.server));
        drop(table);
        let server = self.servers.get(&request.server, request.options.port(), request.options.transport());
        let candidates = server.not_lacking(request.options.candidates());
        let (newer, older): (Vec<Version>, Vec<Version>) =
            candidates.into_iter().partition(|version| *version > Version::V3);
        let (first, then) = if newer.is_empty() { (older, newer) } else { (newer, older) };
        let refusal = match self.mount_as(&server, &request, &first, is_first).await {
            Err(error) if !then.is_empty() && is_reason_for_older(&error) => error,
            mounted => return mounted,
        };
        self.mount_as(&server, &request, &then, is_first).await.map_err(|error| match (refusal, error) {
            (MountError::VersionNotServed { .. }, MountError::VersionNotServed { .. }) => {
                request.version_not_served(&[first, then].concat())
            }
            (MountError::VersionNotServed { .. }, error) => error,
            // What the newer version said was the reason to try the older one.
            (refusal, _) => refusal,
        })
    }

    /// Mounts with one of these versions, which are of one major version.
    async fn mount_as(
        self: &Arc<Self>,
        server: &Arc<Server>,
        request: &MountRequest,
        candidates: &[Version],
        is_first: bool,
    ) -> Result<Mounted, MountError> {
        let major = candidates.first().map_or(4, |version| version.major());
        let manner = Manner { major, security: request.options.security() };
        server.check_mount(&manner)?;
        let reached = self.reach(server, request, candidates, major).await?;
        let what = format!("the mount of {}", request.source());
        let _turn = if is_first { Some(self.take_turn(&what).await?) } else { None };
        // Whoever had the turn before may have found out that it hangs.
        server.check_mount(&manner)?;
        let limit = if is_first { self.limits.first_mount.min(self.limits.mount) } else { self.limits.mount };
        let workplace = self.take_workplace().map_err(|error| worker_failed(&what, &error))?;
        let asked = Request::Mount { request: request.clone(), server: reached, workplace: workplace.clone() };
        let reply = self.pool.ask(Some(&server.calls), &what, &asked, limit).await;
        if let Ok(Reply::Mounted { target, version, refused, source }) = reply {
            self.workplaces().push(workplace);
            server.worked(&manner, &refused);
            return Ok(Mounted::Now { target, version: version.to_string(), source });
        }
        // A worker that died left it as it was then.
        self.clear(&server.name, workplace).await;
        let failed = match reply {
            Ok(Reply::Occupied(occupant)) => return Ok(Mounted::Before(occupant)),
            Ok(Reply::Failed(error)) | Err(error) => error,
            Ok(reply) => unexpected(&what, &reply),
        };
        self.blame(server, &failed, major);
        if matches!(failed, MountError::TimedOut { .. }) {
            server.hung(&manner, &failed);
            if is_mounted(&request.target) {
                // The killed call came to its end: who is told of an error finds nothing there.
                self.unmount(&server.name, &request.target, true).await?;
            }
        }
        Err(failed)
    }

    /// Folders of this process's own, on which nothing is mounted.
    fn take_workplace(&self) -> io::Result<Workplace> {
        if let Some(workplace) = self.workplaces().pop() {
            return Ok(workplace);
        }
        let number = self.made_workplaces.fetch_add(1, Ordering::Relaxed);
        let make = |what: &str| {
            let point = self.private.mount_point(&format!("{what}-{number}"))?;
            Ok::<_, io::Error>(point.to_string_lossy().into_owned())
        };
        Ok(Workplace { volume: make("volume")?, share: make("share")? })
    }

    /// Unmounts what a mount that failed left in its workplace. One that cannot be cleared is not used again: the next
    /// process finds it.
    async fn clear(self: &Arc<Self>, server: &str, workplace: Workplace) {
        for place in [&workplace.volume, &workplace.share] {
            if is_mounted(place)
                && let Err(error) = self.unmount(server, place, false).await
            {
                return tracing::warn!(place, %error, "cannot unmount what a mount that failed left");
            }
        }
        self.workplaces().push(workplace);
    }

    fn workplaces(&self) -> MutexGuard<'_, Vec<Workplace>> {
        self.workplaces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes sure that the way to a target path leads over no NFS mount that is dead: a walk there would not end.
    async fn check_way(self: &Arc<Self>, table: &Table, target: &str) -> Result<(), MountError> {
        let over = Path::new(target).parent().and_then(|parent| table.holding(parent)).filter(|mount| mount.is_nfs());
        let Some(mount) = over else { return Ok(()) };
        self.usage(mount).await.map(drop).map_err(|error| MountError::Target {
            target: target.into(),
            reason: format!(
                "it is below {}, a mount of {} that cannot be used ({error}): unmount that first",
                mount.mount_point.display(),
                mount.source.display()
            ),
        })
    }

    /// Whether the server has lost the export of a mount.
    pub async fn is_stale(self: &Arc<Self>, target: &str) -> bool {
        let Ok(table) = Table::read() else { return false };
        let Some(mount) = table.at(Path::new(target)) else { return false };
        matches!(self.usage(mount).await, Err(MountError::Stale { .. }))
    }

    /// Waits until no other first mount is under way: the kernel lets each of them wait for a server that hangs.
    async fn take_turn(&self, what: &str) -> Result<tokio::sync::MutexGuard<'_, ()>, MountError> {
        let limit = self.limits.mount;
        timeout(limit, self.first.lock()).await.map_err(|_| MountError::Worker {
            what: what.into(),
            reason: format!("first mounts of other servers took all of {} s", limit.as_secs()),
        })
    }

    /// Unmounts whatever is on the target; with `remove`, the empty mount point goes too. Nothing there is success.
    ///
    /// Each step is a request of its own: a worker that is left behind with a dead server must do nothing more to a
    /// path that may carry a new mount when it goes on.
    pub async fn unmount(self: &Arc<Self>, server: &str, target: &str, remove: bool) -> Result<(), MountError> {
        self.check_way(&Table::read()?, target).await?;
        for _ in 0..MOST_STACKED {
            let was_mounted = self.take_off(server, target).await?;
            // The kernel removes no directory that has a further mount on it.
            if if remove { self.remove(target).await? } else { !was_mounted } {
                return Ok(());
            }
        }
        Err(worker_failed(&format!("the unmount of {target}"), &format!("more than {MOST_STACKED} mounts are on it")))
    }

    /// Takes the topmost mount off the target; false where there is none.
    ///
    /// The mount table decides: a mount that is out of it is gone, even where the call that took it out still waits for
    /// a dead server. That call gets a little time to take leave, and is then killed.
    async fn take_off(self: &Arc<Self>, server: &str, target: &str) -> Result<bool, MountError> {
        let before = topmost(target).ok().flatten();
        let is_gone = || before.is_some() && topmost(target).is_ok_and(|now| now != before);
        let keep = || self.keep_in_mind(before, server);
        let what = format!("the unmount of {target}");
        let mut call = tokio::spawn({
            let (mounter, target, what) = (Arc::clone(self), target.to_owned(), what.clone());
            let server = self.servers.get(server, NFS_PORT, Transport::Tcp);
            async move {
                let limit = mounter.limits.mount;
                mounter.pool.ask(Some(&server.unmounts), &what, &Request::Unmount { target }, limit).await
            }
        });
        loop {
            tokio::select! {
                ended = &mut call => {
                    return match ended.unwrap_or_else(|error| Err(worker_failed(&what, &error))) {
                        Ok(Reply::Unmounted) => {
                            keep();
                            Ok(true)
                        }
                        Ok(Reply::NotMounted) => Ok(false),
                        Ok(Reply::Failed(error)) => Err(error),
                        Ok(reply) => Err(unexpected(&what, &reply)),
                        Err(MountError::TimedOut { .. }) if is_gone() => {
                            keep();
                            Ok(true)
                        }
                        Err(error) => Err(error),
                    };
                }
                () = tokio::time::sleep(GONE_CHECK) => {
                    if is_gone() {
                        keep();
                        tokio::spawn(async move {
                            if timeout(FAREWELL, &mut call).await.is_err() {
                                call.abort();
                            }
                        });
                        return Ok(true);
                    }
                }
            }
        }
    }

    /// Removes an empty mount point; false where something is mounted on it. No server is asked.
    async fn remove(&self, target: &str) -> Result<bool, MountError> {
        let what = format!("the removal of {target}");
        let request = Request::Remove { target: target.into() };
        match self.pool.ask(None, &what, &request, self.limits.mount).await? {
            Reply::Removed => Ok(true),
            Reply::StillMounted => Ok(false),
            Reply::Failed(error) => Err(error),
            reply => Err(unexpected(&what, &reply)),
        }
    }

    /// How full the volume mounted on the target is. While its server is known not to answer, that is an error at once.
    pub async fn usage(self: &Arc<Self>, mount: &Mount) -> Result<Usage, MountError> {
        let target = mount.mount_point.to_string_lossy().into_owned();
        let (name, port) = (server_of(mount), mount.port().unwrap_or(NFS_PORT));
        let server = self.servers.get(name, port, mount.transport());
        server.check()?;
        let what = format!("the look at {target}");
        let limit = self.limits.stats;
        match self.pool.ask(Some(&server.calls), &what, &Request::Usage { target }, limit).await {
            Ok(Reply::Usage(usage)) => Ok(usage),
            Ok(Reply::Failed(error)) => Err(error),
            Ok(reply) => Err(unexpected(&what, &reply)),
            Err(error @ MountError::TimedOut { .. }) => {
                // Slow, or dead? The next call is to know.
                let (mounter, server, major) = (Arc::clone(self), Arc::clone(&server), mount.major_version());
                let reason = error.clone();
                tokio::spawn(async move { mounter.make_sure(&server, &reason, major).await });
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    /// Makes a scratch directory, or removes it with all that is in it. What is done already is success. A removal that
    /// takes too long breaks off, and goes on with the next one.
    pub async fn scratch(&self, server: &str, request: ScratchRequest) -> Result<(), MountError> {
        let work = if request.make.is_some() { "making" } else { "removal" };
        let what = format!("the {work} of the scratch directory {} on NFS server {server}", request.outer);
        match self.ask(server, &what, &Request::Scratch(request), self.limits().mount).await? {
            Reply::Done => Ok(()),
            Reply::Failed(error) => Err(error),
            reply => Err(unexpected(&what, &reply)),
        }
    }

    /// Asks a worker, when not too many others are asked about the same server.
    pub(super) async fn ask(
        &self,
        server: &str,
        what: &str,
        request: &Request,
        limit: Duration,
    ) -> Result<Reply, MountError> {
        self.pool.ask(Some(&self.servers.get(server, NFS_PORT, Transport::Tcp).calls), what, request, limit).await
    }

    /// Tells the metrics how workers and servers fare.
    pub fn observe(self: &Arc<Self>, metrics: &Metrics) {
        let observe = |reading, state: fn(&Self) -> Vec<(String, u64)>| {
            let mounter = Arc::downgrade(self);
            metrics.read(reading, move || mounter.upgrade().map(|mounter| state(&mounter)).unwrap_or_default());
        };
        observe(metrics::WORKERS, |mounter| vec![(String::new(), mounter.pool.running())]);
        observe(metrics::WORKERS_KILLED, |mounter| vec![(String::new(), mounter.pool.killed())]);
        observe(metrics::REFUSED, |mounter| {
            mounter.servers.refused().into_iter().map(|(server, is_refused)| (server, u64::from(is_refused))).collect()
        });
        observe(metrics::EXPORT_CALLS, |mounter| {
            mounter.servers.works().into_iter().map(|(server, (running, _))| (server, running)).collect()
        });
        observe(metrics::EXPORT_CALLS_HANGING, |mounter| {
            mounter.servers.works().into_iter().map(|(server, (_, hanging))| (server, hanging)).collect()
        });
        observe(metrics::MOUNTS, |_| {
            let table = Table::read().unwrap_or_default();
            count(table.iter().filter(|mount| mount.is_nfs()).map(|mount| server_of(mount).to_owned()))
        });
        observe(metrics::DETACHED, Self::detached);
    }

    /// Mounts that were taken out of the table, and whose file systems the kernel holds still, by server: somebody has
    /// a file open, or writes what a server does not take.
    fn detached(&self) -> Vec<(String, u64)> {
        let mut detached = self.detached.lock().unwrap_or_else(PoisonError::into_inner);
        if detached.is_empty() {
            return Vec::new();
        }
        let volumes = NfsVolumes::read().unwrap_or_default();
        let table = Table::read().unwrap_or_default();
        detached.retain(|mount| volumes.has(mount.device) && !table.iter().any(|other| other.device == mount.device));
        count(detached.iter().map(|mount| mount.server.clone()))
    }

    fn keep_in_mind(&self, mount: Option<Top>, server: &str) {
        let Some(Top { device, .. }) = mount else { return };
        let mut detached = self.detached.lock().unwrap_or_else(PoisonError::into_inner);
        if !detached.iter().any(|mount| mount.device == device) {
            detached.push(Detached { device, server: server.to_owned() });
        }
    }
}

fn count(servers: impl Iterator<Item = String>) -> Vec<(String, u64)> {
    let mut counts = HashMap::new();
    for server in servers {
        *counts.entry(server).or_default() += 1;
    }
    counts.into_iter().collect()
}

fn server_of(mount: &Mount) -> &str {
    split_source(&mount.source).map_or(NO_SERVER, |(server, _)| server)
}

fn is_of_server(mount: &Mount, server: &str) -> bool {
    server_of(mount) == server
}

fn is_mounted(target: &str) -> bool {
    // A table that cannot be read says nothing; then the mount counts as there.
    topmost(target).map_or(true, |mount| mount.is_some())
}

/// Whether a refusal of version 4 is a reason to try version 3: the server has no version 4, or the share is exported
/// for version 3 only, and so is not in version 4's tree of exports.
fn is_reason_for_older(error: &MountError) -> bool {
    matches!(
        error,
        MountError::VersionNotServed { .. } | MountError::NoSuchShare { .. } | MountError::NotPermitted { .. }
    )
}

/// What is mounted on a target: the mount's number, and its file system's device.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Top {
    id: u64,
    device: (u32, u32),
}

/// The topmost mount on the target, if there is one.
fn topmost(target: &str) -> Result<Option<Top>, TableError> {
    Ok(Table::read()?.at(Path::new(target)).map(|mount| Top { id: mount.id, device: mount.device }))
}

pub(super) fn unexpected(what: &str, reply: &Reply) -> MountError {
    worker_failed(what, &format!("unexpected answer {reply:?}"))
}
