//! Running operations by key: the same request joins the one that runs, a different one for the same key is refused.
//!
//! The CSI specification lets an orchestrator repeat a call whose answer it did not get, and asks for ABORTED where an
//! operation on the same volume is pending. A job outlives the RPC that started it: it runs to its end although nobody
//! waits any more, and the retry gets its result.

use std::any::Any;
use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use thiserror::Error;
use tokio::sync::watch;

type Outcome = Arc<dyn Any + Send + Sync>;

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
    /// The operation ended without a result: a defect of the driver.
    #[error("the operation for {key} broke off: try again, and report it with the driver's log")]
    Broken {
        /// What the operation worked on.
        key: String,
    },
}

/// The operations that run now.
#[derive(Debug, Default)]
pub struct Jobs {
    running: Mutex<HashMap<String, Running>>,
}

#[derive(Debug)]
struct Running {
    method: &'static str,
    request: String,
    done: watch::Receiver<Option<Outcome>>,
}

impl Jobs {
    /// Runs `work` under `key`, or waits for the job that runs there for the same `method` and `request`.
    ///
    /// `request` is a text that is equal for equal requests.
    ///
    /// # Errors
    /// [`JobError::Busy`] if something else runs under the key.
    pub async fn run<T, F>(
        self: &Arc<Self>,
        key: String,
        method: &'static str,
        request: String,
        work: F,
    ) -> Result<T, JobError>
    where
        T: Clone + Send + Sync + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let mut done = self.join_or_start(&key, method, request, work)?;
        let outcome = match done.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.as_ref().map(Arc::clone),
            Err(_) => None,
        };
        outcome.and_then(|outcome| outcome.downcast_ref::<T>().cloned()).ok_or(JobError::Broken { key })
    }

    fn join_or_start<T, F>(
        self: &Arc<Self>,
        key: &str,
        method: &'static str,
        request: String,
        work: F,
    ) -> Result<watch::Receiver<Option<Outcome>>, JobError>
    where
        T: Send + Sync + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(job) = running.get(key) {
            return if job.method == method && job.request == request {
                Ok(job.done.clone())
            } else {
                Err(JobError::Busy { key: key.into(), running: job.method })
            };
        }
        let (finish, done) = watch::channel(None);
        running.insert(key.into(), Running { method, request, done: done.clone() });
        let place = Place { jobs: Arc::clone(self), key: key.into() };
        tokio::spawn(async move {
            let outcome: Outcome = Arc::new(work.await);
            // First the place is free, then the answer goes out: who got it may ask for the next thing at once.
            drop(place);
            finish.send_replace(Some(outcome));
        });
        Ok(done)
    }

    /// How many operations run.
    #[must_use]
    pub fn count(&self) -> usize {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).len()
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
        let first = jobs.run("v".into(), "Create", "a".into(), work(Some(beginning)));
        let second = jobs.run("v".into(), "Create", "a".into(), work(None));
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
        let first = jobs.run("v".into(), "Create", "a".into(), async move { beginning.await.is_ok() });
        let second = async {
            tokio::task::yield_now().await;
            let refused = jobs.run("v".into(), "Delete", "a".into(), async { true }).await;
            begin.send(()).unwrap();
            refused
        };
        let (first, second) = tokio::join!(first, second);
        assert_eq!(first, Ok(true));
        assert_eq!(second, Err(JobError::Busy { key: "v".into(), running: "Create" }));
        assert_eq!(jobs.run("v".into(), "Delete", "a".into(), async { true }).await, Ok(true));
    }

    #[tokio::test]
    async fn a_job_outlives_the_call_that_started_it() {
        let jobs = Arc::new(Jobs::default());
        let (begin, beginning) = oneshot::channel::<()>();
        let (end, ended) = oneshot::channel::<()>();
        {
            let call = jobs.run("v".into(), "Create", "a".into(), async move {
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
        let broken = jobs.run::<bool, _>("v".into(), "Create", "a".into(), async { panic!("a defect") }).await;
        assert_eq!(broken, Err(JobError::Broken { key: "v".into() }));
        assert_eq!(jobs.count(), 0);
    }
}
