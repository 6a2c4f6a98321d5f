//! NodeUnpublishVolume: the target path is unmounted and removed, whether or not the server lives.

use std::sync::Arc;

use thiserror::Error;

use super::{Node, job_key};
use crate::jobs::{Job, JobError};
use crate::mount::error::MountError;

/// Why a target was not unmounted.
#[derive(Clone, Debug, Error)]
#[allow(missing_docs, reason = "each variant's message says what its fields are")]
pub enum UnpublishError {
    #[error("volume {volume}: {error}")]
    Mount { volume: String, error: MountError },

    #[error(transparent)]
    Job(#[from] JobError),
}

impl Node {
    /// Unmounts what is on the target path and removes the path. Nothing there is success.
    ///
    /// # Errors
    /// See [`UnpublishError`].
    pub async fn unpublish(self: &Arc<Self>, volume: String, target: String) -> Result<(), UnpublishError> {
        let key = job_key(&target);
        let fingerprint = format!("{volume:?} {target:?}");
        let node = Arc::clone(self);
        let work = async move { node.unmount(volume, &target).await };
        self.jobs.run(Job::short(key, "NodeUnpublishVolume", fingerprint), work).await?
    }

    async fn unmount(&self, volume: String, target: &str) -> Result<(), UnpublishError> {
        let known = self.published.at(target);
        let (server, mount_point) = known
            .map_or_else(|| (String::new(), target.to_owned()), |published| (published.server, published.mount_point));
        self.workers
            .unmount(&server, &mount_point, true)
            .await
            .map_err(|error| UnpublishError::Mount { volume, error })?;
        self.forget(target);
        Ok(())
    }
}
