//! What the controller does: volumes are made, found, grown and deleted on exports.
//!
//! Each operation is a job under the volume's key, so that no two work on one volume, and runs on the export in one
//! piece of synchronous work. The record is the commit point: what happens before it can be repeated, what happens
//! after it is only an answer.

mod capacity;
mod create;
mod delete;
mod expand;
mod fill;
mod found_snapshot;
mod known_exports;
mod limited;
mod list;
mod long_work;
mod modify;
mod reader;
mod reaper;
mod record_change;
mod snapshot;
mod snapshot_list;
mod unenforced;

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub use self::create::{CreateError, CreateVolume, Volume};
pub use self::delete::{DeleteError, DeleteVolume};
pub use self::expand::{ExpandError, ExpandVolume};
pub use self::found_snapshot::Snapshot;
use self::known_exports::KnownExports;
pub use self::list::{Found, GetError, ListError, Page, recorded_id};
use self::long_work::Attempt;
pub use self::modify::{ModifyError, ModifyVolume};
use self::reaper::Reaper;
pub use self::snapshot::{CreateSnapshot, DeleteSnapshot, SnapshotError};
pub use self::snapshot_list::{SnapshotFilter, SnapshotPage};
use self::unenforced::Unenforced;
use crate::export::holder::Holder;
use crate::export::pages::Listings;
use crate::export::pool::Exports;
use crate::export::staging::StagingName;
use crate::export::{Export, ExportError, Queue, TreeWork};
use crate::jobs::{Job, JobError, Jobs};
use crate::metrics::Metrics;
use crate::mount::daemon::mounter::Mounter;
use crate::mount::options::Options;
use crate::running_work::RunningWork;
use crate::tree::Progress;
use crate::volume::access::{Mode, OnDelete};
use crate::volume::record_key::RecordKey;
use crate::volume::share::Share;

/// What the operator decided for all volumes.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// What a delete does with the directory where the StorageClass says nothing.
    pub default_on_delete: OnDelete,
    /// The permission bits where the StorageClass says nothing.
    pub default_permissions: Option<Mode>,
    /// How long a deleted volume is kept where the StorageClass says nothing.
    pub trash_retention: Duration,
    /// How long a volume that has no record is kept, at least.
    pub unrecorded_retention: Duration,
    /// How long what broke off is kept for its retry.
    pub staging_retention: Duration,
    /// How long a clone, snapshot or restore goes on that nobody asks for any more.
    pub abandoned_after: Duration,
    /// How long another controller shows no sign of life before its work is taken over.
    pub takeover_after: Duration,
    /// How many threads work on the trees of one share at most.
    pub tree_workers: usize,
    /// The mount options of all exports, where a StorageClass or a secret says nothing else.
    pub mount_options: Options,
    /// The exports that are listed although no call named them yet.
    pub shares: Vec<Share>,
    /// The cluster that the controller makes volumes for, noted in their records; none: it has no name.
    pub cluster: Option<String>,
    /// Whether only what is this cluster's is listed.
    pub lists_own: bool,
}

/// The controller of one driver.
#[derive(Debug)]
pub struct Controller {
    settings: Settings,
    exports: Arc<Exports>,
    jobs: Arc<Jobs>,
    running_work: RunningWork,
    reaper: Reaper,
    known: KnownExports,
    listings: Listings,
    unenforced: Unenforced,
}

impl Controller {
    /// A controller that keeps in the folder `place` what it knows of itself and of exports.
    #[must_use]
    pub fn start(settings: Settings, mounter: Arc<Mounter>, place: &Path) -> Arc<Self> {
        let holder = Holder::open(place, settings.cluster.clone());
        let exports = Exports::start(mounter, holder, settings.tree_workers, settings.mount_options.clone());
        let known = KnownExports::open(place, &settings.shares);
        let running_work = RunningWork::default();
        let reaper = Reaper::start(Arc::clone(&exports), settings.staging_retention, running_work.clone());
        for (share, options) in known.all() {
            exports.remember(&share, &options);
            reaper.watch(&exports.canonical(&share), &Options::default());
        }
        let (jobs, listings, unenforced) = (Arc::default(), Listings::default(), Unenforced::default());
        Arc::new(Self { settings, exports, jobs, running_work, reaper, known, listings, unenforced })
    }

    /// Tells the metrics what the controller holds.
    pub fn observe(&self, metrics: &Metrics) {
        self.reaper.observe(metrics);
        self.unenforced.observe(metrics);
        metrics.read_running_work(&self.running_work);
    }

    /// Gives the exports back.
    pub async fn stop(&self) {
        self.exports.close().await;
    }

    /// The operator's decisions.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Runs a job that works on exports. Where a server of theirs does not answer, its callers are answered; the job
    /// has its key until it has really ended, so that a retry joins it.
    async fn run<T, E>(
        &self,
        on: &[(Share, Options)],
        job: Job,
        work: impl Future<Output = Result<T, E>> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Clone + Send + Sync + 'static,
        E: From<ExportError> + From<JobError> + Clone + Send + Sync + 'static,
    {
        let done = Box::pin(async { self.jobs.run(job, Box::pin(work)).await? });
        self.exports.unless_silent(on, done).await
    }

    /// Runs work on an export for a caller, who is answered where its server does not answer.
    async fn look<T, E, F>(&self, share: &Share, options: &Options, work: F) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<ExportError> + IsStale + Send + 'static,
        F: Fn(&Export) -> Result<T, E> + Clone + Send + 'static,
    {
        let done = Box::pin(self.on(share, options, work));
        self.exports.unless_silent(&[(share.clone(), options.clone())], done).await.map(|(found, _)| found)
    }

    /// Runs work on an export; once more on a new mount, if this one lost its export.
    async fn on<T, E, F>(&self, share: &Share, options: &Options, work: F) -> Result<(T, Arc<Export>), E>
    where
        T: Send + 'static,
        E: From<ExportError> + IsStale + Send + 'static,
        F: Fn(&Export) -> Result<T, E> + Clone + Send + 'static,
    {
        self.on_behind(Queue::Calls, share, options, work).await
    }

    /// The same behind other work of this kind.
    async fn on_behind<T, E, F>(
        &self,
        queue: Queue,
        share: &Share,
        options: &Options,
        work: F,
    ) -> Result<(T, Arc<Export>), E>
    where
        T: Send + 'static,
        E: From<ExportError> + IsStale + Send + 'static,
        F: Fn(&Export) -> Result<T, E> + Clone + Send + 'static,
    {
        let export = self.open(share, options).await?;
        let result = match export.run_behind(queue, work.clone()).await {
            Err(error) if error.is_stale() => {
                self.exports.forget(&export);
                drop(export);
                let export = self.open(share, options).await?;
                export.run_behind(queue, work).await.map(|result| (result, export))
            }
            result => result.map(|result| (result, export)),
        };
        if let Ok((_, export)) = &result {
            self.reaper.free_garbage(export);
        }
        result
    }

    /// An attempt at a long piece of work.
    fn attempt(&self, work: StagingName, progress: &Arc<Progress>) -> Arc<Attempt> {
        Arc::new(Attempt::new(work, self.settings.takeover_after, Arc::clone(progress)))
    }

    /// Runs work on a whole tree of an export, with what it reads from on another (or the same); once more on new
    /// mounts, if one lost its export. Meanwhile the attempt shows that it is alive.
    async fn on_trees<T, E, F>(
        &self,
        [share, origin]: [&Share; 2],
        options: [&Options; 2],
        (kind, attempt): (TreeWork, &Arc<Attempt>),
        work: F,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<ExportError> + IsStale + Send + 'static,
        F: Fn(&Export, &Export) -> Result<T, E> + Clone + Send + 'static,
    {
        let mut is_again = false;
        loop {
            let export = self.open(share, options[0]).await?;
            let is_one = self.is_same_share(share, origin);
            let origin = if is_one { Arc::clone(&export) } else { self.open(origin, options[1]).await? };
            let (work, from) = (work.clone(), Arc::clone(&origin));
            let counted = if is_one { None } else { origin.count_work() };
            let work = export.run_on_tree(kind, move |export| {
                let _counted = counted;
                work(export, &from)
            });
            let work = Box::pin(origin.watched(Box::pin(work)));
            let ended = with_heartbeat(&export, attempt, work).await;
            self.reaper.free_garbage(&export);
            match ended {
                Err(error) if error.is_stale() && !is_again => {
                    self.exports.forget(&export);
                    self.exports.forget(&origin);
                    is_again = true;
                }
                result => {
                    if result.is_err() {
                        // What it left in staging may be kept for minutes only.
                        self.reaper.watch(export.share(), export.options());
                    } else if is_again {
                        remove_left(&export, attempt).await;
                    }
                    return result;
                }
            }
        }
    }

    async fn open(&self, share: &Share, options: &Options) -> Result<Arc<Export>, ExportError> {
        let export = self.exports.open(share, options).await?;
        if export.first_use() {
            self.known.note(export.share(), options);
            self.exports.remember(export.share(), options);
            self.reaper.watch(export.share(), export.options());
        }
        Ok(export)
    }

    /// The exports known now, in the order of their names: each once, however calls have named its server.
    fn shares(&self) -> Vec<Share> {
        let mut shares: Vec<Share> = self.known.all().iter().map(|(share, _)| self.exports.canonical(share)).collect();
        shares.sort_unstable_by_key(ToString::to_string);
        shares.dedup();
        shares
    }

    /// Whether both names mean one export.
    fn is_same_share(&self, one: &Share, other: &Share) -> bool {
        one == other || self.exports.canonical(one) == self.exports.canonical(other)
    }
}

/// Removes what the first try of an attempt left, after the second one found the work done by another controller.
async fn remove_left(export: &Arc<Export>, attempt: &Arc<Attempt>) {
    let own = Arc::clone(attempt);
    let removed: Result<(), ExportError> = export.run(move |export| own.remove_left(export)).await;
    if let Err(error) = removed {
        tracing::warn!(share = %export.share(), %error, "what an earlier try left is swept later");
    }
}

/// Waits for work, and meanwhile shows that it is under way.
async fn with_heartbeat<T>(export: &Arc<Export>, attempt: &Arc<Attempt>, work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    loop {
        if let Ok(result) = tokio::time::timeout(attempt.heartbeat(), &mut work).await {
            return result;
        }
        let own = Arc::clone(attempt);
        let beat = export.run(move |export| own.beat(export));
        tokio::select! {
            result = &mut work => return result,
            beat = beat => {
                let beat: Result<(), ExportError> = beat;
                if let Err(error) = beat {
                    tracing::warn!(%error, "cannot show that work goes on");
                }
            }
        }
    }
}

/// The key under which all operations on one volume run.
fn job_key(share: &Share, key: &RecordKey) -> String {
    format!("volume {key} on {share}")
}

/// The same for one snapshot.
fn snapshot_key(share: &Share, key: &RecordKey) -> String {
    format!("snapshot {key} on {share}")
}

/// Whether an operation failed because its mount lost the export.
trait IsStale {
    fn is_stale(&self) -> bool;
}

impl IsStale for ExportError {
    fn is_stale(&self) -> bool {
        ExportError::is_stale(self)
    }
}
