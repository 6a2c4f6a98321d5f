//! The worker processes themselves: kept and reused, killed when they miss their deadline. One that the kernel does not
//! let go has its place until it has ended.

use std::io;
use std::pin::pin;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::runtime::Handle;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout, timeout_at};

use super::cgroup;
use crate::mount::protocol::error::MountError;
use crate::mount::protocol::{Reply, Request, framed};
use crate::mount::worker;

/// How long a worker beyond the spare one stays without work.
const IDLE: Duration = Duration::from_mins(1);
/// No more processes than these, whatever happens.
const MOST: usize = 64;
/// How long no worker has come back before a further one is started.
const START_AFTER: Duration = Duration::from_millis(20);
/// How long a call may take before its process is no longer one of the container's (cgroup.rs).
const SLOW: Duration = Duration::from_secs(5);
/// How long a process may take to end that was killed.
const ENDS: Duration = Duration::from_secs(2);

/// The worker processes of this daemon.
#[derive(Debug)]
pub(super) struct WorkerPool {
    idle: Mutex<Vec<Worker>>,
    places: Arc<Semaphore>,
    returned: Notify,
    counts: Arc<Counts>,
}

/// How many processes there are, how many were killed, and how many of these have not ended.
#[derive(Debug, Default)]
struct Counts {
    running: AtomicU64,
    killed: AtomicU64,
    stuck: AtomicU64,
}

/// A process. It is killed when this is dropped.
#[derive(Debug)]
struct Worker {
    requests: ChildStdin,
    replies: BufReader<ChildStdout>,
    /// Whether it is in the middle of a request.
    is_busy: bool,
    /// When the last call came for it.
    asked: Instant,
    /// Whether it is out of this container's control group.
    is_outside: bool,
    counts: Arc<Counts>,
    process: Option<Child>,
    /// Among those of the pool, while it is at work and until it has ended.
    place: Option<OwnedSemaphorePermit>,
}

impl WorkerPool {
    /// With one that waits, so that the first call finds one.
    pub(super) fn start() -> io::Result<Arc<Self>> {
        let counts = Arc::new(Counts::default());
        let spare = Worker::start(&counts)?;
        let idle = Mutex::new(vec![spare]);
        let pool = Arc::new(Self { idle, places: Arc::new(Semaphore::new(MOST)), returned: Notify::new(), counts });
        tokio::spawn(give_back_idle(Arc::downgrade(&pool)));
        Ok(pool)
    }

    /// Asks one of them, as soon as `gate` lets this call through; it is killed if it does not answer within the limit.
    pub(super) async fn ask(
        &self,
        gate: Option<&Semaphore>,
        what: &str,
        request: &Request,
        limit: Duration,
    ) -> Result<Reply, MountError> {
        let seconds = limit.as_secs();
        // The server of a call that only waited here is not to blame.
        let queued = |hint: &str| MountError::Queued { what: what.into(), seconds, hint: hint.into() };
        let failed = |error: io::Error| worker_failed(what, &error);
        let begun = Instant::now();
        let end = begun + limit;
        let _permit = match gate {
            Some(gate) => timeout_at(end, gate.acquire()).await.map(Some).map_err(|_| {
                queued("other calls to the same server are waiting: the server may be overloaded or dead")
            })?,
            None => None,
        };
        let place = timeout_at(end, Arc::clone(&self.places).acquire_owned()).await;
        let place = place.map_err(|_| queued("calls to servers that do not answer take all worker processes"))?;
        let mut worker = self.take().await.map_err(failed)?;
        worker.place = place.ok();
        worker.asked = begun;
        match worker.ask_until(request, end).await {
            Ok(Ok(reply)) => {
                worker.place = None;
                // One that is out of the container is not kept: nothing bounds it there.
                if !worker.is_outside {
                    self.give(worker);
                }
                Ok(reply)
            }
            Ok(Err(error)) => Err(failed(error)),
            Err(_) => {
                let hint = "the server accepts connections but does not answer; its process was ended, try again";
                Err(MountError::TimedOut { what: what.into(), seconds, hint: hint.into() })
            }
        }
    }

    /// How many processes there are.
    pub(super) fn running(&self) -> u64 {
        self.counts.running.load(Ordering::Relaxed)
    }

    /// How many were killed in the middle of a request.
    pub(super) fn killed(&self) -> u64 {
        self.counts.killed.load(Ordering::Relaxed)
    }

    /// How many were killed that the kernel has not let go.
    pub(super) fn stuck(&self) -> u64 {
        self.counts.stuck.load(Ordering::Relaxed)
    }

    /// One that waits for work, or a new one. Most calls take no longer than a process takes to start: so one that is
    /// at work is waited for, as long as others come back.
    async fn take(&self) -> io::Result<Worker> {
        loop {
            let kept = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            if let Some(worker) = kept {
                return Ok(worker);
            }
            if self.running() == 0 || timeout(START_AFTER, self.returned.notified()).await.is_err() {
                return Worker::start(&self.counts);
            }
        }
    }

    fn give(&self, worker: Worker) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(worker);
        self.returned.notify_one();
    }

    /// Ends the workers that had nothing to do for long, but one.
    fn trim(&self) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        // The longest unused stand first: work goes to the last.
        while idle.len() > 1 && idle.first().is_some_and(|worker| worker.asked.elapsed() > IDLE) {
            idle.remove(0);
        }
    }
}

async fn give_back_idle(pool: std::sync::Weak<WorkerPool>) {
    loop {
        tokio::time::sleep(IDLE / 2).await;
        let Some(pool) = pool.upgrade() else { return };
        pool.trim();
    }
}

impl Worker {
    fn start(counts: &Arc<Counts>) -> io::Result<Self> {
        let mut process = Command::new("/proc/self/exe")
            .arg(worker::COMMAND)
            .arg(std::process::id().to_string())
            // A dead name server costs a second, not the five that the resolver waits by default (resolv.conf(5)).
            .env("RES_OPTIONS", "timeout:1 attempts:2")
            // Pipes, not a socket: with one, this daemon would be woken when the worker reads a request.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A terminal's interrupt is for the daemon, which then ends its workers in order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let (Some(requests), Some(replies)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(io::Error::other("a worker has no pipes"));
        };
        counts.running.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            requests,
            replies: BufReader::new(replies),
            is_busy: false,
            asked: Instant::now(),
            is_outside: false,
            counts: Arc::clone(counts),
            process: Some(process),
            place: None,
        })
    }

    async fn ask_until(&mut self, request: &Request, end: Instant) -> Result<io::Result<Reply>, Elapsed> {
        let process = self.process.as_ref().and_then(Child::id);
        let slow = end.min(self.asked + SLOW);
        let answer = {
            let mut call = pin!(self.ask(request));
            let answer = timeout_at(slow, &mut call).await;
            if answer.is_ok() || slow == end {
                return answer;
            }
            leave_cgroup(process);
            timeout_at(end, call).await
        };
        self.is_outside = true;
        answer
    }

    async fn ask(&mut self, request: &Request) -> io::Result<Reply> {
        self.is_busy = true;
        self.requests.write_all(&framed(&serde_json::to_vec(request)?)).await?;
        let length = self.replies.read_u32().await?;
        let mut reply = vec![0; length as usize];
        self.replies.read_exact(&mut reply).await?;
        self.is_busy = false;
        Ok(serde_json::from_slice(&reply)?)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.is_busy {
            self.counts.killed.fetch_add(1, Ordering::Relaxed);
        }
        let Some(mut process) = self.process.take() else { return };
        // At once: it is to do nothing more. One that has ended already is reaped all the same.
        let _ = process.start_kill();
        // Without a runtime this process ends, and its workers with it.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(end(process, Arc::clone(&self.counts), self.place.take()));
        }
    }
}

/// Waits for the end of a process that was killed, which keeps its place until then.
async fn end(mut process: Child, counts: Arc<Counts>, _place: Option<OwnedSemaphorePermit>) {
    let id = process.id();
    if timeout(ENDS, process.wait()).await.is_err() {
        counts.stuck.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(
            process = id,
            "a worker process was killed and does not end: its call waits in the kernel (cat /proc/PID/stack)"
        );
        leave_cgroup(id);
        let _ = process.wait().await;
        counts.stuck.fetch_sub(1, Ordering::Relaxed);
        tracing::info!(process = id, "the worker process has ended");
    }
    counts.running.fetch_sub(1, Ordering::Relaxed);
}

/// Makes the end of this daemon's container independent of a process.
fn leave_cgroup(process: Option<u32>) {
    let Some(process) = process else { return };
    // A thread of its own, for it changes its namespace.
    std::thread::spawn(move || {
        if let Err(error) = cgroup::leave(process) {
            tracing::debug!(process, %error, "cannot move a worker process out of this container's control group");
        }
    });
}

pub(super) fn worker_failed(what: &str, reason: &dyn ToString) -> MountError {
    MountError::Worker { what: what.into(), reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With no process, and places for none.
    fn full() -> WorkerPool {
        WorkerPool {
            idle: Mutex::default(),
            places: Arc::new(Semaphore::new(0)),
            returned: Notify::new(),
            counts: Arc::default(),
        }
    }

    #[tokio::test]
    async fn a_call_that_waited_for_others_all_the_time_says_so() {
        let request = Request::Resolve { server: "files".into(), port: 2049 };
        for gate in [None, Some(&Semaphore::new(0)), Some(&Semaphore::new(1))] {
            let error = full().ask(gate, "the lookup of files", &request, Duration::from_millis(20)).await.unwrap_err();
            assert!(matches!(error, MountError::Queued { .. }), "{error}");
        }
    }
}
