//! ControllerExpandVolume: the limit is raised where the volume has one, and the new size is recorded. No node has work
//! with it.

use std::sync::Arc;

use thiserror::Error;

use super::record_change::{Change, adopt, change_alone, is_of, record_adopted, replace};
use super::{Controller, IsStale, job_key};
use crate::export::catalog::Record;
use crate::export::directories::Whereabouts;
use crate::export::record_lock::RecordLock;
use crate::export::{Export, ExportError, Queue};
use crate::jobs::{Job, JobError};
use crate::mount::options::Options;
use crate::volume::access::CapacityRange;
use crate::volume::id::VolumeId;
use crate::volume::record_key::RecordKey;

/// A volume to grow.
#[derive(Clone, Debug)]
pub struct ExpandVolume {
    /// Its id.
    pub id: VolumeId,
    /// The size that is asked for.
    pub capacity: CapacityRange,
    /// The mount options of the secret.
    pub options: Options,
}

/// Why a volume was not grown.
#[derive(Clone, Debug, Error)]
#[allow(missing_docs, reason = "each variant's message says what its fields are")]
pub enum ExpandError {
    #[error("there is no volume {id} on {share}: check the id, and whether its directory was removed by hand")]
    NotFound { id: String, share: String },

    #[error("volume {id} has {has} bytes, more than the limit of {wanted}: a volume never shrinks")]
    TooLarge { id: String, has: u64, wanted: String },

    #[error(transparent)]
    Export(#[from] ExportError),

    #[error(transparent)]
    Job(#[from] JobError),
}

impl IsStale for ExpandError {
    fn is_stale(&self) -> bool {
        matches!(self, Self::Export(error) if error.is_stale())
    }
}

impl Controller {
    /// Records a volume's new size, in bytes, and gives the one it has then. It never shrinks.
    ///
    /// # Errors
    /// See [`ExpandError`].
    pub async fn expand(self: &Arc<Self>, request: ExpandVolume) -> Result<u64, ExpandError> {
        let key = job_key(request.id.share(), &request.id.key());
        let fingerprint = format!("{} {:?} {:?}", request.id, request.capacity, request.options);
        let controller = Arc::clone(self);
        let on = [(request.id.share().clone(), request.options.clone())];
        let work = async move {
            let ExpandVolume { id, capacity, options } = request;
            let (share, silence) = (id.share().clone(), controller.settings.takeover_after);
            // One record after the other would be in place otherwise, and not the larger one.
            let work = move |export: &Export| {
                change_alone(export, &id, silence, "grow", |key, lock| expand(export, key, lock, &id, capacity))
            };
            controller.on_behind(Queue::Limited, &share, &options, work).await.map(|(size, _)| size)
        };
        self.run(&on, Job::short(key, "ControllerExpandVolume", fingerprint), work).await
    }
}

fn expand(
    export: &Export,
    key: &RecordKey,
    lock: &RecordLock<'_>,
    id: &VolumeId,
    capacity: CapacityRange,
) -> Result<Change<u64>, ExpandError> {
    let not_found = || ExpandError::NotFound { id: id.to_string(), share: export.share().to_string() };
    let Some(record) = export.record(key)?.filter(|record| is_of(record, id)) else {
        let plain = adopt(export, id)?.ok_or_else(not_found)?;
        let adopted = Record { capacity_bytes: capacity.capacity(), ..plain };
        return Ok(record_adopted(export, key, lock, &adopted, adopted.capacity_bytes)?);
    };
    if record.capacity_bytes >= capacity.capacity() {
        // The record is replaced when the limit is in force.
        if !capacity.admits(record.capacity_bytes) {
            let (id, wanted) = (id.to_string(), capacity.to_string());
            return Err(ExpandError::TooLarge { id, has: record.capacity_bytes, wanted });
        }
        return Ok(Change::Done(record.capacity_bytes));
    }
    match export.whereabouts(&record)? {
        Whereabouts::InPlace => {}
        Whereabouts::InTrash => return Ok(Change::Contended),
        Whereabouts::Gone => return Err(not_found()),
    }
    if record.subdir_given {
        export.claim(&record.subdir, key, record.owner.as_deref())?;
    }
    let grown = Record { capacity_bytes: capacity.capacity(), ..record };
    if let Some((project, limit)) = grown.quota.and_then(|quota| quota.limit(grown.capacity_bytes)) {
        export.change_limit(project, key, limit)?;
    }
    Ok(replace(export, key, lock, &grown, grown.capacity_bytes)?)
}
