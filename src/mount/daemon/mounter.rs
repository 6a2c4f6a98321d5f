//! Mounting, unmounting and looking at mounts, from a daemon that never waits without a deadline.
//!
//! The calls that may block are made by worker processes (`worker_pool`), a bounded number at a time for each server
//! (`servers`), and only for servers that answer (`reach`), so that a dead one takes no more than its share.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Mutex as Turn;
use tokio::time::timeout;

use super::detached::Detached;
use super::ping::Pinger;
use super::private_dir::PrivateDir;
use super::servers::{Manner, NFS_PORT, Server, Servers};
use super::statistics::Statistics;
use super::table_watch::{TableWatch, is_mounted};
use super::worker_pool::{WorkerPool, worker_failed};
use crate::metrics::{self, Metrics, MountTimes};
use crate::mount::options::Version;
use crate::mount::protocol::error::MountError;
use crate::mount::protocol::{MountRequest, Occupant, Reply, Request, ScratchRequest, Usage, Workplace};
use crate::mount::table::{Mount, Table};
use crate::server_map::ServerMap;

/// Why a first mount may have taken too long.
const FIRST_HANGS: &str = "the server accepts connections but does not answer, or the first mount of another server hangs \
                           on this host, for which the kernel lets all others wait; its process was ended, try again";

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
        /// The host name or address at which the server was found: the one asked for, or one of the server map.
        server: String,
    },
    /// Something is mounted there already.
    Before(Occupant),
}

/// All that this daemon does to mounts.
#[derive(Debug)]
pub struct Mounter {
    limits: Limits,
    map: Arc<ServerMap>,
    pool: Arc<WorkerPool>,
    private: PrivateDir,
    times: MountTimes,
    statistics: Statistics,
    /// Folders in it that no mount is being made in, and how many were made.
    workplaces: Mutex<Vec<Workplace>>,
    made_workplaces: AtomicU64,
    pinger: Pinger,
    servers: Servers,
    /// Held by whoever mounts from a server of which nothing is mounted.
    first: Turn<()>,
    table: TableWatch,
    detached: Detached,
}

impl Mounter {
    /// Starts the first worker at once, so that the first mount finds one. What is mounted for this process itself is
    /// mounted in `private`. Servers are where `map` says.
    ///
    /// # Errors
    /// Where this binary cannot be started again as a worker.
    pub fn start(limits: Limits, private: PrivateDir, times: MountTimes, map: Arc<ServerMap>) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            limits,
            map,
            private,
            times,
            statistics: Statistics::default(),
            workplaces: Mutex::default(),
            made_workplaces: AtomicU64::new(0),
            pool: WorkerPool::start()?,
            pinger: Pinger::default(),
            servers: Servers::new(limits.per_server),
            first: Turn::default(),
            table: TableWatch::start()?,
            detached: Detached::default(),
        }))
    }

    /// The bounds that it keeps.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Where servers are, by their names.
    #[must_use]
    pub fn map(&self) -> &ServerMap {
        &self.map
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

    pub(super) fn table(&self) -> &TableWatch {
        &self.table
    }

    pub(super) fn detached(&self) -> &Detached {
        &self.detached
    }

    pub(super) fn pinger(&self) -> &Pinger {
        &self.pinger
    }

    /// Mounts what the request names, unless something is mounted on its target. A server that the map has is looked
    /// for at each of its addresses, until one answers.
    pub async fn mount(self: &Arc<Self>, request: MountRequest) -> Result<Mounted, MountError> {
        let addresses = self.map.addresses(&request.server);
        let mut silence = None;
        for address in &addresses {
            match self.mount_at(MountRequest { server: address.clone(), ..request.clone() }).await {
                Err(error) if error.is_silence() => silence = silence.or(Some(error)),
                mounted => return mounted.map_err(|error| mapped_error(&request.server, &addresses, error)),
            }
        }
        let silence = silence.unwrap_or_else(|| worker_failed("the mount", &"the server has no address"));
        Err(mapped_error(&request.server, &addresses, silence))
    }

    async fn mount_at(self: &Arc<Self>, request: MountRequest) -> Result<Mounted, MountError> {
        let begun = Instant::now();
        let mounted = self.try_to_mount(&request).await;
        match &mounted {
            Ok(Mounted::Now { version, .. }) => self.times.made(&request.server, version, begun.elapsed()),
            Ok(Mounted::Before(_)) => {}
            Err(error) => self.times.failed(&request.server, error.cause()),
        }
        mounted
    }

    async fn try_to_mount(self: &Arc<Self>, request: &MountRequest) -> Result<Mounted, MountError> {
        let table = Table::read_near(Path::new(&request.target))?;
        if let Some(mount) = table.at(Path::new(&request.target)) {
            return Ok(Mounted::Before(Occupant::of(mount)));
        }
        self.check_way(&table, &request.target).await?;
        let server = self.servers.get(&request.server, request.options.port(), request.options.transport());
        let candidates = server.not_lacking(request.options.candidates());
        let (newer, older): (Vec<Version>, Vec<Version>) =
            candidates.into_iter().partition(|version| *version > Version::V3);
        let (first, then) = if newer.is_empty() { (older, newer) } else { (newer, older) };
        let refusal = match self.mount_as(&server, request, &first, &table).await {
            Err(error) if !then.is_empty() && is_reason_for_older(&error) => error,
            mounted => return mounted,
        };
        self.mount_as(&server, request, &then, &table).await.map_err(|error| match (refusal, error) {
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
        table: &Table,
    ) -> Result<Mounted, MountError> {
        let major = candidates.first().map_or(4, |version| version.major());
        let manner = Manner { major, security: request.options.security() };
        server.check_mount(&manner)?;
        let reached = self.reach(server, request, candidates, major).await?;
        let what = format!("the mount of {}", request.source());
        let is_first = !has_client(table, reached.address, major);
        let _turn = if is_first {
            let turn = self.take_turn(&what).await?;
            // Whoever had the turn before may have found out that it hangs.
            server.check_mount(&manner)?;
            Some(turn)
        } else {
            None
        };
        let limit = if is_first { self.limits.first_mount.min(self.limits.mount) } else { self.limits.mount };
        let workplace = self.take_workplace().map_err(|error| worker_failed(&what, &error))?;
        let asked = Request::Mount { request: request.clone(), server: reached, workplace: workplace.clone() };
        let reply = self.pool.ask(Some(&server.calls), &what, &asked, limit).await;
        if let Ok(Reply::Mounted { target, version, refused, source }) = reply {
            self.workplaces().push(workplace);
            server.worked(&manner, &refused);
            let (version, server) = (version.to_string(), request.server.clone());
            return Ok(Mounted::Now { target, version, source, server });
        }
        // A worker that died left it as it was then.
        self.clear(&server.name, workplace).await;
        let mut failed = match reply {
            Ok(Reply::Occupied(occupant)) => return Ok(Mounted::Before(occupant)),
            Ok(Reply::Failed(error)) | Err(error) => error,
            Ok(reply) => unexpected(&what, &reply),
        };
        self.blame(server, &failed, major);
        if let MountError::TimedOut { hint, .. } = &mut failed {
            if is_first {
                FIRST_HANGS.clone_into(hint);
            }
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
    pub(super) async fn check_way(self: &Arc<Self>, table: &Table, target: &str) -> Result<(), MountError> {
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
        let target = Path::new(target);
        let Ok(table) = Table::read_on(&[target]) else { return false };
        let Some(mount) = table.at(target) else { return false };
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

    /// How full the volume mounted on the target is. While its server is known not to answer, that is an error at once.
    pub async fn usage(self: &Arc<Self>, mount: &Mount) -> Result<Usage, MountError> {
        let target = mount.mount_point.to_string_lossy().into_owned();
        let server = self.servers.of(mount);
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
        self.pool.ask(Some(&self.servers.named(server).calls), what, request, limit).await
    }

    /// Tells the metrics how workers and servers fare.
    pub fn observe(self: &Arc<Self>, metrics: &Metrics) {
        let observe = |reading, state: fn(&Self) -> Vec<(String, u64)>| {
            let mounter = Arc::downgrade(self);
            metrics.read(reading, move || mounter.upgrade().map(|mounter| state(&mounter)).unwrap_or_default());
        };
        observe(metrics::WORKERS, |mounter| vec![(String::new(), mounter.pool.running())]);
        observe(metrics::WORKERS_KILLED, |mounter| vec![(String::new(), mounter.pool.killed())]);
        observe(metrics::WORKERS_STUCK, |mounter| vec![(String::new(), mounter.pool.stuck())]);
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
            count(table.iter().filter(|mount| mount.is_nfs()).map(|mount| mount.server().to_owned()))
        });
        observe(metrics::NFS_CALLS, |mounter| mounter.statistics.read(|calls| calls.made));
        observe(metrics::NFS_RETRANSMISSIONS, |mounter| mounter.statistics.read(|calls| calls.retransmissions));
        observe(metrics::NFS_TIMEOUTS, |mounter| mounter.statistics.read(|calls| calls.timeouts));
        observe(metrics::NFS_ROUND_TRIPS, |mounter| mounter.statistics.read(|calls| calls.round_trips));
        observe(metrics::DETACHED, |mounter| count(mounter.detached.servers().into_iter()));
    }
}

/// Whether the kernel has a client of a server already. It tells them apart by address, port and major version, not by
/// the server's name.
fn has_client(table: &Table, server: SocketAddr, major: u32) -> bool {
    table.iter().any(|mount| {
        mount.is_nfs()
            && mount.major_version() == major
            && mount.address(mount.port().unwrap_or(NFS_PORT)) == Some(server)
    })
}

fn count(servers: impl Iterator<Item = String>) -> Vec<(String, u64)> {
    let mut counts = HashMap::new();
    for server in servers {
        *counts.entry(server).or_default() += 1;
    }
    counts.into_iter().collect()
}

/// Whether a refusal of version 4 is a reason to try version 3: the server has no version 4, or the share is exported
/// for version 3 only, and so is not in version 4's tree of exports.
fn is_reason_for_older(error: &MountError) -> bool {
    matches!(
        error,
        MountError::VersionNotServed { .. } | MountError::NoSuchShare { .. } | MountError::NotPermitted { .. }
    )
}

/// An error of a server, with what the map says of it where it has the server elsewhere.
pub(super) fn mapped_error(server: &str, addresses: &[String], error: MountError) -> MountError {
    if addresses == [server] {
        return error;
    }
    MountError::Mapped { server: server.to_owned(), addresses: addresses.join(", "), error: Box::new(error) }
}

pub(super) fn unexpected(what: &str, reply: &Reply) -> MountError {
    worker_failed(what, &format!("unexpected answer {reply:?}"))
}
