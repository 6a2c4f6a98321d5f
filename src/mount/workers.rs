//! The daemon's side of the worker processes: a few a server, kept and reused, killed when they miss their deadline.
//!
//! Nothing here blocks and nothing waits without a deadline. The number of calls under way towards one server is
//! bounded, so that a dead one takes no more than its share.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::sync::Semaphore;
use tokio::time::timeout_at;

use super::error::MountError;
use super::request::{MountRequest, Occupant, Reply, Request, Usage};
use super::table::{Table, TableError};
use super::worker;

/// How long a worker beyond the spare one stays without work.
const IDLE: Duration = Duration::from_mins(1);
/// The place of calls that no server has to answer.
const NO_SERVER: &str = "";
/// More mounts than this on one path are somebody's mistake; the next call goes on with them.
const MOST_STACKED: usize = 100;
/// How soon, and then how often, the mount table is asked whether a mount that takes its time to go is gone.
const GONE_CHECK: Duration = Duration::from_millis(100);

/// The bounds of what workers may do.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Calls under way towards one server.
    pub per_server: usize,
    /// How long a mount or an unmount may take.
    pub mount: Duration,
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
    },
    /// Something is mounted there already.
    Before(Occupant),
}

/// The worker processes of this daemon.
#[derive(Debug)]
pub struct Workers {
    limits: Limits,
    idle: Mutex<Vec<(Worker, Instant)>>,
    servers: Mutex<HashMap<String, Arc<Semaphore>>>,
}

#[derive(Debug)]
struct Worker {
    socket: BufReader<UnixStream>,
    /// Killed when dropped, and reaped by the runtime.
    _process: Child,
}

impl Workers {
    /// The pool; it starts its first worker at once, so that the first mount finds one.
    ///
    /// # Errors
    /// Where this binary cannot be started again as a worker.
    pub fn start(limits: Limits) -> io::Result<Arc<Self>> {
        let spare = Worker::start()?;
        let workers =
            Arc::new(Self { limits, idle: Mutex::new(vec![(spare, Instant::now())]), servers: Mutex::default() });
        tokio::spawn(give_back_idle(Arc::downgrade(&workers)));
        Ok(workers)
    }

    /// The bounds that these workers keep.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Mounts what the request names, unless something is mounted on its target.
    pub async fn mount(self: &Arc<Self>, request: MountRequest) -> Result<Mounted, MountError> {
        let what = format!("the mount of {}", request.source());
        let server = request.server.clone();
        let target = request.target.clone();
        match self.ask(&server, &what, &Request::Mount(request), self.limits.mount).await {
            Ok(Reply::Mounted { target, version }) => Ok(Mounted::Now { target, version }),
            Ok(Reply::Occupied(occupant)) => Ok(Mounted::Before(occupant)),
            Ok(Reply::Failed(error)) => Err(error),
            Ok(reply) => Err(unexpected(&what, &reply)),
            Err(error @ MountError::TimedOut { .. }) => {
                // The killed call may have done its work, or half of it: nothing half-made stays behind.
                if is_mounted(&target) {
                    self.unmount(&server, &target, true).await?;
                }
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    /// Unmounts whatever is on the target; with `remove`, the empty mount point goes too. Nothing there is success.
    ///
    /// Each step is a request of its own: a worker that is left behind with a dead server must do nothing more to a path
    /// that may carry a new mount when it goes on.
    pub async fn unmount(self: &Arc<Self>, server: &str, target: &str, remove: bool) -> Result<(), MountError> {
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
    /// a dead server. That call then ends in the background, or is killed at its deadline.
    async fn take_off(self: &Arc<Self>, server: &str, target: &str) -> Result<bool, MountError> {
        let before = topmost(target).ok().flatten();
        let is_gone = || before.is_some() && topmost(target).is_ok_and(|now| now != before);
        let what = format!("the unmount of {target}");
        let mut call = tokio::spawn({
            let (workers, server, target, what) =
                (Arc::clone(self), server.to_owned(), target.to_owned(), what.clone());
            async move { workers.ask(&server, &what, &Request::Unmount { target }, workers.limits.mount).await }
        });
        loop {
            tokio::select! {
                ended = &mut call => {
                    return match ended.unwrap_or_else(|error| Err(worker_failed(&what, &error))) {
                        Ok(Reply::Unmounted) => Ok(true),
                        Ok(Reply::NotMounted) => Ok(false),
                        Ok(Reply::Failed(error)) => Err(error),
                        Ok(reply) => Err(unexpected(&what, &reply)),
                        Err(MountError::TimedOut { .. }) if is_gone() => Ok(true),
                        Err(error) => Err(error),
                    };
                }
                () = tokio::time::sleep(GONE_CHECK) => {
                    if is_gone() {
                        return Ok(true);
                    }
                }
            }
        }
    }

    /// Removes an empty mount point; false where something is mounted on it. No server is asked.
    async fn remove(&self, target: &str) -> Result<bool, MountError> {
        let what = format!("the removal of {target}");
        match self.ask(NO_SERVER, &what, &Request::Remove { target: target.into() }, self.limits.mount).await? {
            Reply::Removed => Ok(true),
            Reply::StillMounted => Ok(false),
            Reply::Failed(error) => Err(error),
            reply => Err(unexpected(&what, &reply)),
        }
    }

    /// How full the volume mounted on the target is.
    pub async fn usage(&self, server: &str, target: &str) -> Result<Usage, MountError> {
        let what = format!("the look at {target}");
        match self.ask(server, &what, &Request::Usage { target: target.into() }, self.limits.stats).await? {
            Reply::Usage(usage) => Ok(usage),
            Reply::Failed(error) => Err(error),
            reply => Err(unexpected(&what, &reply)),
        }
    }

    pub(super) async fn ask(
        &self,
        server: &str,
        what: &str,
        request: &Request,
        limit: Duration,
    ) -> Result<Reply, MountError> {
        let late = |hint: &str| MountError::TimedOut { what: what.into(), seconds: limit.as_secs(), hint: hint.into() };
        let failed = |error: io::Error| worker_failed(what, &error);
        let end = tokio::time::Instant::now() + limit;
        let gate = self.gate(server);
        let _permit = timeout_at(end, gate.acquire_owned())
            .await
            .map_err(|_| late("other calls to the same server are waiting: the server may be overloaded or dead"))?;
        let mut worker = self.take().map_err(failed)?;
        match timeout_at(end, worker.ask(request)).await {
            Ok(Ok(reply)) => {
                self.give(worker);
                Ok(reply)
            }
            Ok(Err(error)) => Err(failed(error)),
            Err(_) => Err(late("the server accepts connections but does not answer; its process was ended, try again")),
        }
    }

    fn gate(&self, server: &str) -> Arc<Semaphore> {
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        let gate = || Arc::new(Semaphore::new(self.limits.per_server));
        Arc::clone(servers.entry(server.to_owned()).or_insert_with(gate))
    }

    fn take(&self) -> io::Result<Worker> {
        let kept = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match kept {
            Some((worker, _)) => Ok(worker),
            None => Worker::start(),
        }
    }

    fn give(&self, worker: Worker) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push((worker, Instant::now()));
    }

    /// Ends the workers that had nothing to do for long, but one.
    fn trim(&self) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        // The longest unused stand first: work goes to the last.
        while idle.len() > 1 && idle.first().is_some_and(|(_, since)| since.elapsed() > IDLE) {
            idle.remove(0);
        }
    }
}

async fn give_back_idle(workers: std::sync::Weak<Workers>) {
    loop {
        tokio::time::sleep(IDLE / 2).await;
        let Some(workers) = workers.upgrade() else { return };
        workers.trim();
    }
}

impl Worker {
    fn start() -> io::Result<Self> {
        let (ours, theirs) = StdUnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let process = Command::new("/proc/self/exe")
            .arg(worker::COMMAND)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            // A terminal's interrupt is for the daemon, which then ends its workers in order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        Ok(Self { socket: BufReader::new(UnixStream::from_std(ours)?), _process: process })
    }

    async fn ask(&mut self, request: &Request) -> io::Result<Reply> {
        self.socket.write_all(&framed(&serde_json::to_vec(request)?)).await?;
        let length = self.socket.read_u32().await?;
        let mut reply = vec![0; length as usize];
        self.socket.read_exact(&mut reply).await?;
        Ok(serde_json::from_slice(&reply)?)
    }
}

/// A message behind its length in four bytes, in one piece.
pub(super) fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes(), message].concat()
}

fn is_mounted(target: &str) -> bool {
    // A table that cannot be read says nothing; then the mount counts as there.
    topmost(target).map_or(true, |mount| mount.is_some())
}

/// The number of the topmost mount on the target, if there is one.
fn topmost(target: &str) -> Result<Option<u64>, TableError> {
    Ok(Table::read()?.at(Path::new(target)).map(|mount| mount.id))
}

fn unexpected(what: &str, reply: &Reply) -> MountError {
    worker_failed(what, &format!("unexpected answer {reply:?}"))
}

fn worker_failed(what: &str, reason: &dyn ToString) -> MountError {
    MountError::Worker { what: what.into(), reason: reason.to_string() }
}
