//! NodeUnpublishVolume: the target path is unmounted and removed, whether or not the server lives.

use std::io;
use std::sync::Arc;

use thiserror::Error;

use super::{Node, job_key};
use crate::jobs::{Job, JobError};
use crate::mount::protocol::error::MountError;

/// Why a target was not unmounted.
#[derive(Clone, Debug, Error)]
#[allow(missing_docs, reason = "each variant's message says what its fields are")]
pub enum UnpublishError {
    #[error("volume {volume}: {error}")]
    Mount { volume: String, error: MountError },

    #[error("cannot note in {folder} what is to be removed ({reason}): this host's disk may be full or read-only")]
    State { folder: String, reason: String },

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
        let (server, mount_point) = match &known {
            Some(published) => (published.server.as_str(), published.mount_point.as_str()),
            None => ("", target),
        };
        self.mounter
            .unmount(server, mount_point, true)
            .await
            .map_err(|error| UnpublishError::Mount { volume: volume.clone(), error })?;
        self.usages.forget(mount_point);
        let Some(published) = known.filter(|published| published.scratch.is_some()) else {
            self.forget(target);
            return Ok(());
        };
        let state = |error: io::Error| UnpublishError::State {
            folder: self.published.folder().display().to_string(),
            reason: error.to_string(),
        };
        let scratch = self.leave_scratch(&published).await.map_err(state)?;
        // A record that came back would keep the directory.
        self.published.remove(target).map_err(state)?;
        if let (Some(scratches), Some(scratch)) = (&self.scratches, scratch) {
            scratches.remove(scratch).await;
        }
        Ok(())
    }
}
