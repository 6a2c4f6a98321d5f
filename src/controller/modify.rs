//! ControllerModifyVolume: what a `VolumeAttributesClass` says of a volume is recorded, and from then on the record
//! counts: not the StorageClass, and not what the volume's id says.

use std::sync::Arc;

use thiserror::Error;

use super::record_change::{Change, adopt, change_alone, is_of, is_whole, record_adopted, replace};
use super::{Controller, IsStale, job_key};
use crate::export::catalog::Record;
use crate::export::record_lock::RecordLock;
use crate::export::{Export, ExportError, Queue};
use crate::jobs::{Job, JobError};
use crate::mount::options::Options;
use crate::volume::id::VolumeId;
use crate::volume::parameters::MutableParameters;
use crate::volume::record_key::RecordKey;
use crate::volume::size_limit::{QuotaMode, RecordedQuota};

/// A volume to change.
#[derive(Clone, Debug)]
pub struct ModifyVolume {
    /// Its id.
    pub id: VolumeId,
    /// What is changed.
    pub change: MutableParameters,
    /// The mount options of the secret.
    pub options: Options,
}

/// Why a volume was not changed.
#[derive(Clone, Debug, Error)]
#[allow(missing_docs, reason = "each variant's message says what its fields are")]
pub enum ModifyError {
    #[error("there is no volume {id} on {share}: check the id, and whether its directory was removed by hand")]
    NotFound { id: String, share: String },

    #[error("volume {id} is a snapshot's tree, which nobody writes to: it has no limit")]
    IsSnapshot { id: String },

    #[error(
        "volume {id} on {share} was made without a limit, and may have files by now: stop its pods, run `nfs-csi quota \
         convert {name}` on the server, and try again"
    )]
    NotConverted { id: String, share: String, name: String },

    #[error("volume {id} has no size on record to limit it to: expand it first")]
    NoSize { id: String },

    #[error(transparent)]
    Export(#[from] ExportError),

    #[error(transparent)]
    Job(#[from] JobError),
}

impl IsStale for ModifyError {
    fn is_stale(&self) -> bool {
        matches!(self, Self::Export(error) if error.is_stale())
    }
}

impl Controller {
    /// Changes a volume. What it is already stays as it is.
    ///
    /// # Errors
    /// See [`ModifyError`].
    pub async fn modify(self: &Arc<Self>, request: ModifyVolume) -> Result<(), ModifyError> {
        let key = job_key(request.id.share(), &request.id.key());
        let fingerprint = format!("{} {:?} {:?}", request.id, request.change, request.options);
        let controller = Arc::clone(self);
        let on = [(request.id.share().clone(), request.options.clone())];
        let work = async move {
            let ModifyVolume { id, change, options } = request;
            let (share, silence) = (id.share().clone(), controller.settings.takeover_after);
            let work = move |export: &Export| {
                change_alone(export, &id, silence, "change", |key, lock| modify(export, key, lock, &id, &change))
            };
            controller.on_behind(Queue::Limited, &share, &options, work).await.map(|((), _)| ())
        };
        self.run(&on, Job::short(key, "ControllerModifyVolume", fingerprint), work).await
    }
}

fn modify(
    export: &Export,
    key: &RecordKey,
    lock: &RecordLock<'_>,
    id: &VolumeId,
    change: &MutableParameters,
) -> Result<Change<()>, ModifyError> {
    let not_found = || ModifyError::NotFound { id: id.to_string(), share: export.share().to_string() };
    let Some(record) = export.record(key)?.filter(|record| is_of(record, id)) else {
        let plain = adopt(export, id)?.ok_or_else(not_found)?;
        let subdir = plain.subdir_given.then(|| plain.subdir.clone());
        let changed = changed(export, id, plain, change).inspect_err(|_| {
            // What stays is swept later.
            if let Some(subdir) = &subdir {
                let _ = export.take_back_claim(subdir, key, None);
            }
        })?;
        return Ok(record_adopted(export, key, lock, &changed, ())?);
    };
    if !is_whole(export, key, &record)? {
        return Err(not_found());
    }
    let changed = changed(export, id, record.clone(), change)?;
    if let Some((project, limit)) = changed.quota.and_then(|quota| quota.limit(changed.capacity_bytes)) {
        export.change_limit(project, key, limit)?;
    }
    if changed == record { Ok(Change::Done(())) } else { Ok(replace(export, key, lock, &changed, ())?) }
}

/// The record of the volume as it is to be.
fn changed(export: &Export, id: &VolumeId, record: Record, change: &MutableParameters) -> Result<Record, ModifyError> {
    let changed = Record {
        on_delete: change.on_delete.unwrap_or(record.on_delete),
        on_delete_given: record.on_delete_given || change.on_delete.is_some(),
        trash_retention: change.trash_retention.map(|retention| retention.as_secs()).or(record.trash_retention),
        // The id says what was to become of it when it was made.
        id: record.id.clone().or_else(|| change.on_delete.map(|_| id.to_string())),
        ..record
    };
    if change.quota.is_none() && change.inodes_per_gib.is_none() {
        return Ok(changed);
    }
    let was = changed.quota.unwrap_or_default();
    let quota = RecordedQuota {
        mode: change.quota.unwrap_or(was.mode),
        inodes_per_gib: change.inodes_per_gib.or(was.inodes_per_gib),
        project: was.project,
    };
    if quota.mode == QuotaMode::None && quota.project.is_none() {
        return Ok(changed);
    }
    if changed.subdir.shared_tree().is_some() {
        return Err(ModifyError::IsSnapshot { id: id.to_string() });
    }
    if quota.mode == QuotaMode::Required && quota.project.is_none() {
        let (share, name) = (export.share().to_string(), changed.name.clone());
        return Err(ModifyError::NotConverted { id: id.to_string(), share, name });
    }
    if quota.mode == QuotaMode::Required && changed.capacity_bytes == 0 {
        return Err(ModifyError::NoSize { id: id.to_string() });
    }
    Ok(changed.with_quota(quota))
}
