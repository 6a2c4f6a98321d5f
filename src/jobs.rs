//! Running operations by key: the same request joins the one that runs, a different one for the same key is refused.
//!
//! The CSI specification lets an orchestrator repeat a call whose answer it did not get, and asks for ABORTED where an
//! operation on the same volume is pending. A job outlives the RPC that started it: it runs to its end although nobody
//! waits any more, and the retry gets its result. Long work for which nobody has asked again for a while (its claim was
//! deleted) is told to end.

use std::any::Any;
use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use thiserror::Error;
use tokio::sync::watch;

use crate::tree::Progress;

type Outcome = Arc<dyn Any + Send + Sync>;

/// How often a job that takes long says how far it is.
const REPORT: Duration = Duration::from_secs(30);

/// Why a job was not run or gave no result.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum JobError {
    /// Another operation runs under this key.
    #[error("{running} is still running for {key}: try again when it has ended")]
    Busy {
        /// What the operations contend for.
        key: String,
        /// The operation that runs.
        running: &'static str,
    },
    /// Another operation reads what this one is for.
    #[error("{user} is still reading {key}: try again when it has ended")]
    InUse {
        /// What the operations contend for.
        key: String,
        /// The operation that reads it.
        user: &'static str,
    },
    /// The operation goes on; who asks again joins it.
    #[error("{method} for {key} is still running ({progress}); ask again to wait for it")]
    Unfinished {
        /// What the operation works on.
        key: String,
        /// The operation.
        method: &'static str,
        /// How far it is.
        progress: String,
    },
    /// The operation ended without a result: a defect of the driver.
    #[error("the operation for {key} broke off: try again, and report it with the driver's log")]
    Broken {
        /// What the operation worked on.
        key: String,
    },
}

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Job {
    /// What it works on: nobody else does meanwhile.
    pub key: String,
    /// What it is, as its RPC is called.
    pub method: &'static str,
    /// A text that is equal for equal requests.
    pub request: String,
    /// What it reads: nothing that removes that may run meanwhile.
    pub reads: Option<String>,
    /// Whether it removes what others may be reading.
    pub removes: bool,
    /// How long the caller waits for it; for ever without.
    pub patience: Option<Duration>,
    /// How long it goes on after the last caller has gone; for ever without.
    pub abandoned_after: Option<Duration>,
    /// How far it is.
    pub progress: Arc<Progress>,
}

impl Job {
    /// A job that ends soon and reads nothing else's data.
    #[must_use]
    pub fn short(key: String, method: &'static str, request: String) -> Self {
        let (reads, removes, patience, abandoned_after) = (None, false, None, None);
        Self { key, method, request, reads, removes, patience, abandoned_after, progress: Arc::default() }
    }
}

/// The operations that run now.
#[derive(Debug, Default)]
pub struct Jobs {
    running: Mutex<HashMap<String, Running>>,
}

#[derive(Debug)]
struct Running {
    job: Job,
    done: watch::Receiver<Option<Outcome>>,
    callers: Arc<Callers>,
}

/// Who waits for a job.
#[derive(Debug, Default)]
struct Callers {
    waiting: AtomicUsize,
    /// Whether somebody has come, or asked in another way, since this was looked at last.
    asked: AtomicBool,
}

impl Callers {
    fn ask(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }

    /// Whether somebody waits, or did since the last look.
    fn want(&self) -> bool {
        self.asked.swap(false, Ordering::Relaxed) || self.waiting.load(Ordering::Relaxed) > 0
    }
}

/// One who waits, until this is dropped.
struct Caller(Arc<Callers>);

impl Caller {
    fn new(callers: Arc<Callers>) -> Self {
        callers.waiting.fetch_add(1, Ordering::Relaxed);
        Self(callers)
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.0.ask();
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Jobs {
    /// Runs `work`, or waits for the job that runs under its key for the same method and request.
    ///
    /// # Errors
    /// [`JobError::Busy`] if something else runs under the key, [`JobError::InUse`] if one removes what the other
    /// reads, and [`JobError::Unfinished`] when the caller's patience is over.
    pub async fn run<T, F>(self: &Arc<Self>, job: Job, work: F) -> Result<T, JobError>
    where
        T: Clone + Send + Sync + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let (key, method, patience) = (job.key.clone(), job.method, job.patience);
        let (mut done, progress, _caller) = self.join_or_start(job, work)?;
        let ended = done.wait_for(Option::is_some);
        let ended = match patience {
            Some(patience) => tokio::time::timeout(patience, ended).await,
            None => Ok(ended.await),
        };
        let outcome = match ended {
            Ok(Ok(outcome)) => outcome.as_ref().map(Arc::clone),
            Ok(Err(_)) => None,
            Err(_) => return Err(JobError::Unfinished { key, method, progress: progress.to_string() }),
        };
        outcome.and_then(|outcome| outcome.downcast_ref::<T>().cloned()).ok_or(JobError::Broken { key })
    }

    fn join_or_start<T, F>(self: &Arc<Self>, job: Job, work: F) -> Result<Joined, JobError>
    where
        T: Send + Sync + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(other) = running.get(&job.key) {
            return if other.job.method == job.method && other.job.request == job.request {
                let caller = Caller::new(Arc::clone(&other.callers));
                Ok((other.done.clone(), Arc::clone(&other.job.progress), caller))
            } else {
                Err(JobError::Busy { key: job.key, running: other.job.method })
            };
        }
        let removed = job.reads.as_ref().and_then(|source| running.get(source)).filter(|other| other.job.removes);
        if let Some(other) = removed {
            return Err(JobError::Busy { key: other.job.key.clone(), running: other.job.method });
        }
        let read = running.values().find(|other| job.removes && other.job.reads.as_ref() == Some(&job.key));
        if let Some(other) = read {
            return Err(JobError::InUse { key: job.key, user: other.job.method });
        }
        let (finish, done) = watch::channel(None);
        let progress = Arc::clone(&job.progress);
        let place = Place { jobs: Arc::clone(self), key: job.key.clone() };
        let callers = Arc::<Callers>::default();
        let caller = Caller::new(Arc::clone(&callers));
        let followed = (job.clone(), Arc::clone(&callers));
        running.insert(job.key.clone(), Running { job, done: done.clone(), callers });
        tokio::spawn(async move {
            let outcome: Outcome = Arc::new(following(followed, work).await);
            // First the place is free, then the answer goes out: who got it may ask for the next thing at once.
            drop(place);
            finish.send_replace(Some(outcome));
        });
        Ok((done, progress, caller))
    }

    /// Whether an operation with this key runs.
    #[must_use]
    pub fn is_running(&self, key: &str) -> bool {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).contains_key(key)
    }

    /// How many operations run.
    #[must_use]
    pub fn count(&self) -> usize {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

type Joined = (watch::Receiver<Option<Outcome>>, Arc<Progress>, Caller);

/// Waits for the work, logs now and then how far it is, and tells it to end when nobody has asked for it for too long.
async fn following<T>((job, callers): (Job, Arc<Callers>), work: impl Future<Output = T>) -> T {
    let Job { key, method, progress, abandoned_after, .. } = job;
    let look = abandoned_after.map_or(REPORT, |after| REPORT.min(after / 4));
    let (mut unreported, mut unwanted) = (Duration::ZERO, Duration::ZERO);
    let mut work = std::pin::pin!(work);
    loop {
        if let Ok(result) = tokio::time::timeout(look, &mut work).await {
            return result;
        }
        unreported += look;
        if unreported >= REPORT {
            tracing::info!(method, key, %progress, "still running");
            unreported = Duration::ZERO;
        }
        if progress.take_asked() {
            callers.ask();
        }
        unwanted = if callers.want() { Duration::ZERO } else { unwanted + look };
        if abandoned_after.is_some_and(|after| unwanted >= after) && !progress.is_stopped() {
            tracing::info!(method, key, %progress, "nobody has asked for this for a while: it is ended");
            progress.stop();
        }
    }
}

/// A key that is taken until this is dropped, also by a panic of the work.
struct Place {
    jobs: Arc<Jobs>,
    key: String,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.jobs.running.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use tokio::sync::oneshot;

    fn job(method: &'static str) -> Job {
        Job::short("v".into(), method, "a".into())
    }

    #[tokio::test]
    async fn the_same_request_joins_the_running_job_and_gets_its_result() {
        let jobs = Arc::new(Jobs::default());
        let (begin, beginning) = oneshot::channel::<()>();
        let count = Arc::new(AtomicU32::new(0));
        let work = |wait: Option<oneshot::Receiver<()>>| {
            let count = Arc::clone(&count);
            async move {
                if let Some(wait) = wait {
                    let _ = wait.await;
                }
                count.fetch_add(1, Ordering::SeqCst)
            }
        };
        let first = jobs.run(job("Create"), work(Some(beginning)));
        let second = jobs.run(job("Create"), work(None));
        let release = async {
            tokio::task::yield_now().await;
            begin.send(()).unwrap();
        };
        let (first, second, ()) = tokio::join!(first, second, release);
        assert_eq!((first, second), (Ok(0), Ok(0)));
        assert_eq!(count.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn a_different_request_for_the_same_key_is_refused_while_the_first_runs() {
        let jobs = Arc::new(Jobs::default());
        let (begin, beginning) = oneshot::channel::<()>();
        let first = jobs.run(job("Create"), async move { beginning.await.is_ok() });
        let second = async {
            tokio::task::yield_now().await;
            let refused = jobs.run(job("Delete"), async { true }).await;
            begin.send(()).unwrap();
            refused
        };
        let (first, second) = tokio::join!(first, second);
        assert_eq!(first, Ok(true));
        assert_eq!(second, Err(JobError::Busy { key: "v".into(), running: "Create" }));
        assert_eq!(jobs.run(job("Delete"), async { true }).await, Ok(true));
    }

    #[tokio::test]
    async fn a_job_outlives_the_call_that_started_it() {
        let jobs = Arc::new(Jobs::default());
        let (begin, beginning) = oneshot::channel::<()>();
        let (end, ended) = oneshot::channel::<()>();
        {
            let call = jobs.run(job("Create"), async move {
                let _ = beginning.await;
                end.send(()).is_ok()
            });
            let given_up = tokio::time::timeout(std::time::Duration::from_millis(1), call).await;
            assert!(given_up.is_err());
        }
        begin.send(()).unwrap();
        assert_eq!(ended.await, Ok(()));
    }

    #[tokio::test]
    async fn a_job_that_panics_gives_its_key_back() {
        let jobs = Arc::new(Jobs::default());
        let broken = jobs.run::<bool, _>(job("Create"), async { panic!("a defect") }).await;
        assert_eq!(broken, Err(JobError::Broken { key: "v".into() }));
        assert_eq!(jobs.count(), 0);
    }

    #[tokio::test]
    async fn who_loses_patience_is_told_how_far_the_job_is_and_the_retry_gets_its_result() {
        let jobs = Arc::new(Jobs::default());
        let (begin, beginning) = oneshot::channel::<()>();
        let hasty = Job { patience: Some(Duration::from_millis(1)), ..job("Create") };
        hasty.progress.add(7, 4096);
        let given_up = jobs.run(hasty, async move { beginning.await.is_ok() }).await.unwrap_err();
        assert!(
            matches!(&given_up, JobError::Unfinished { progress, .. } if progress.contains("7 files")),
            "{given_up}"
        );
        let again = jobs.run(job("Create"), async { false });
        begin.send(()).unwrap();
        assert_eq!(again.await, Ok(true));
    }

    #[tokio::test]
    async fn work_that_nobody_asks_for_any_more_is_told_to_end_and_work_that_is_asked_for_is_not() {
        let jobs = Arc::new(Jobs::default());
        let after = Some(Duration::from_millis(40));
        let wanted = Job { abandoned_after: after, ..job("Create") };
        let progress = Arc::clone(&wanted.progress);
        let done = jobs.run(wanted, async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            true
        });
        assert_eq!(done.await, Ok(true));
        assert!(!progress.is_stopped());

        let unwanted = Job { abandoned_after: after, ..job("Create") };
        let progress = Arc::clone(&unwanted.progress);
        let seen = Arc::clone(&progress);
        let call = jobs.run(unwanted, async move {
            while !seen.is_stopped() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        assert!(tokio::time::timeout(Duration::from_millis(1), call).await.is_err());
        while jobs.count() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(progress.is_stopped());
    }

    #[tokio::test]
    async fn what_a_job_reads_is_not_removed_meanwhile() {
        let delete = || Job { removes: true, ..job("Delete") };
        let jobs = Arc::new(Jobs::default());
        let (begin, beginning) = oneshot::channel::<()>();
        let clone = Job { key: "clone".into(), reads: Some("v".into()), ..job("Create") };
        let clone = jobs.run(clone, async move { beginning.await.is_ok() });
        let others = async {
            tokio::task::yield_now().await;
            let refused = jobs.run(delete(), async { true }).await;
            let expand = jobs.run(job("Expand"), async { true }).await;
            begin.send(()).unwrap();
            (refused, expand)
        };
        let (clone, (refused, expand)) = tokio::join!(clone, others);
        assert_eq!((clone, expand), (Ok(true), Ok(true)));
        assert_eq!(refused, Err(JobError::InUse { key: "v".into(), user: "Create" }));
        assert_eq!(jobs.run(delete(), async { true }).await, Ok(true));
    }
}
