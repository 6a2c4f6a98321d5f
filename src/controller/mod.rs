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
mod list;
mod reaper;
mod snapshot;
mod snapshot_list;

use std::future::Future;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use self::create::{CreateError, CreateVolume, Volume};
pub use self::delete::{DeleteError, DeleteVolume};
pub use self::expand::{ExpandError, ExpandVolume};
pub use self::list::{Found, GetError, ListError, Page, recorded_id};
use self::reaper::Reaper;
pub use self::snapshot::{CreateSnapshot, DeleteSnapshot, Snapshot, SnapshotError};
pub use self::snapshot_list::{SnapshotFilter, SnapshotPage};
use crate::export::pool::Exports;
use crate::export::staging::StagingName;
use crate::export::{Export, ExportError};
use crate::jobs::Jobs;
use crate::mount::options::Options;
use crate::mount::workers::Workers;
use crate::volume::access::{Mode, OnDelete};
use crate::volume::name::RecordKey;
use crate::volume::share::Share;

/// How often work on what is in staging is noted there, at least; and several times before it would be swept.
const HEARTBEAT: Duration = Duration::from_mins(10);

/// What the operator decided for all volumes.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// What a delete does with the directory where the StorageClass says nothing.
    pub default_on_delete: OnDelete,
    /// The permission bits where the StorageClass says nothing.
    pub default_permissions: Option<Mode>,
    /// How long a deleted volume is kept where the StorageClass says nothing.
    pub trash_retention: Duration,
    /// How long what broke off is kept for its retry.
    pub staging_retention: Duration,
    /// How many threads work on the trees of one share at most.
    pub tree_workers: usize,
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
    reaper: Reaper,
    /// The exports that calls named since the start, in their order.
    seen: Mutex<Vec<Share>>,
}

impl Controller {
    /// A controller that mounts exports below `place`.
    ///
    /// # Errors
    /// Where this host's file system refuses the folder.
    pub async fn start(settings: Settings, workers: Arc<Workers>, place: &Path) -> std::io::Result<Arc<Self>> {
        let exports = Exports::start(workers, place, settings.tree_workers).await?;
        Ok(Arc::new(Self {
            seen: Mutex::new(settings.shares.clone()),
            reaper: Reaper::start(Arc::clone(&exports), settings.staging_retention),
            settings,
            jobs: Arc::default(),
            exports,
        }))
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

    /// Runs work on an export; once more on a new mount, if this one lost its export.
    async fn on<T, E, F>(&self, share: &Share, options: &Options, work: F) -> Result<(T, Arc<Export>), E>
    where
        T: Send + 'static,
        E: From<ExportError> + IsStale + Send + 'static,
        F: Fn(&Export) -> Result<T, E> + Clone + Send + 'static,
    {
        let export = self.open(share, options).await?;
        match export.run(work.clone()).await {
            Err(error) if error.is_stale() => {
                self.exports.forget(&export);
                drop(export);
                let export = self.open(share, options).await?;
                export.run(work).await.map(|result| (result, export))
            }
            result => result.map(|result| (result, export)),
        }
    }

    /// Runs work on a whole tree of an export, with what it reads from on another (or the same); once more on new
    /// mounts, if one lost its export. Meanwhile says now and then that what is in staging is worked on.
    async fn on_trees<T, E, F>(
        &self,
        [share, origin]: [&Share; 2],
        options: [&Options; 2],
        staged: &StagingName,
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
            let origin = if share == origin { Arc::clone(&export) } else { self.open(origin, options[1]).await? };
            let (work, from) = (work.clone(), Arc::clone(&origin));
            let work = export.run_on_tree(move |export| work(export, &from));
            let heartbeat = HEARTBEAT.min(self.settings.staging_retention / 4);
            match with_heartbeat(heartbeat, &export, staged, work).await {
                Err(error) if error.is_stale() && !is_again => {
                    self.exports.forget(&export);
                    self.exports.forget(&origin);
                    is_again = true;
                }
                result => return result,
            }
        }
    }

    async fn open(&self, share: &Share, options: &Options) -> Result<Arc<Export>, ExportError> {
        let export = self.exports.open(share, options).await?;
        if export.first_use() {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            if !seen.contains(share) {
                seen.push(share.clone());
            }
            self.reaper.watch(&export);
        }
        Ok(export)
    }

    /// The exports known now, in the order of their names.
    fn shares(&self) -> Vec<Share> {
        let mut shares = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        shares.sort_unstable_by_key(ToString::to_string);
        shares
    }
}

/// Waits for work, and meanwhile keeps what it has in staging from being swept.
async fn with_heartbeat<T>(
    heartbeat: Duration,
    export: &Arc<Export>,
    staged: &StagingName,
    work: impl Future<Output = T>,
) -> T {
    let mut work = std::pin::pin!(work);
    loop {
        if let Ok(result) = tokio::time::timeout(heartbeat, &mut work).await {
            return result;
        }
        let staged = staged.clone();
        let kept: Result<(), ExportError> = export.run(move |export| export.keep_staged(&staged)).await;
        if let Err(error) = kept {
            tracing::warn!(%error, "cannot say that work goes on");
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
