//! ControllerExpandVolume: the limit is raised where the volume has one, and the new size is recorded. No node has work
//! with it.

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use super::{Controller, IsStale, job_key};
use crate::export::catalog::{Created, Record};
use crate::export::directories::Whereabouts;
use crate::export::record_lock::RecordLock;
use crate::export::{Export, ExportError, Queue};
use crate::jobs::{Job, JobError};
use crate::mount::options::Options;
use crate::volume::access::CapacityRange;
use crate::volume::id::VolumeId;
use crate::volume::record_key::RecordKey;
use crate::volume::subdir::SubDir;

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
            let work = move |export: &Export| expand_alone(export, &id, capacity, silence);
            controller.on_behind(Queue::Limited, &share, &options, work).await.map(|(size, _)| size)
        };
        self.run(&on, Job::short(key, "ControllerExpandVolume", fingerprint), work).await
    }
}

/// Grows a volume while no other controller does: one record after the other would be in place, and not the larger one.
fn expand_alone(
    export: &Export,
    id: &VolumeId,
    capacity: CapacityRange,
    silence: Duration,
) -> Result<u64, ExpandError> {
    let key = id.key();
    let Some(lock) = export.lock_record(&key, silence)? else {
        return Err(export.contended("grow", id.to_string()).into());
    };
    match expand(export, &lock, id, capacity) {
        // Whoever deletes it is to find the lock, and so the record that this may have brought back.
        Ok(Grown::WhileDeleted) => Err(export.contended("grow", id.to_string()).into()),
        Ok(Grown::To(bytes)) => lock.unlock().map(|()| bytes).map_err(ExpandError::from),
        Err(error) => lock.unlock().map_err(ExpandError::from).and(Err(error)),
    }
}

/// What came of it.
enum Grown {
    /// The volume has this size now, in bytes.
    To(u64),
    /// Another controller is deleting it.
    WhileDeleted,
}

fn expand(
    export: &Export,
    lock: &RecordLock<'_>,
    id: &VolumeId,
    capacity: CapacityRange,
) -> Result<Grown, ExpandError> {
    let key = id.key();
    let contended = || ExpandError::from(export.contended("grow", id.to_string()));
    let Some(record) = export.record(&key)?.filter(|record| is_of(record, id)) else {
        let not_found = || ExpandError::NotFound { id: id.to_string(), share: export.share().to_string() };
        let plain = adopt(export, id)?.ok_or_else(not_found)?;
        let adopted = Record { capacity_bytes: capacity.capacity(), ..plain };
        match lock.create(&adopted)? {
            Some(Created::Now) => {}
            Some(Created::Before(_)) => return Err(contended()),
            // It had a record until it was deleted just now, or another controller adopts it.
            None => {
                if adopted.subdir_given {
                    export.take_back_claim(&adopted.subdir, &key, None)?;
                }
                return Err(contended());
            }
        }
        if !is_whole(export, &key, &adopted)? {
            lock.remove()?;
            return Err(contended());
        }
        return Ok(Grown::To(adopted.capacity_bytes));
    };
    if record.capacity_bytes >= capacity.capacity() {
        // The record is replaced when the limit is in force.
        if !capacity.admits(record.capacity_bytes) {
            let (id, wanted) = (id.to_string(), capacity.to_string());
            return Err(ExpandError::TooLarge { id, has: record.capacity_bytes, wanted });
        }
        return Ok(Grown::To(record.capacity_bytes));
    }
    match export.whereabouts(&record)? {
        Whereabouts::InPlace => {}
        Whereabouts::InTrash => return Err(contended()),
        Whereabouts::Gone => {
            return Err(ExpandError::NotFound { id: id.to_string(), share: export.share().to_string() });
        }
    }
    if record.subdir_given {
        export.claim(&record.subdir, &key, record.owner.as_deref())?;
    }
    let grown = Record { capacity_bytes: capacity.capacity(), ..record };
    if let Some((project, limit)) = grown.quota.and_then(|quota| quota.limit(grown.capacity_bytes)) {
        export.change_limit(project, &key, limit)?;
    }
    if !lock.replace(&grown)? {
        return Err(contended());
    }
    Ok(if is_whole(export, &key, &grown)? { Grown::To(grown.capacity_bytes) } else { Grown::WhileDeleted })
}

/// Whether nobody is deleting a volume: it has its directory, and its claim where it needs one.
pub(super) fn is_whole(export: &Export, key: &RecordKey, record: &Record) -> Result<bool, ExportError> {
    let has_claim = !record.subdir_given || export.has_claim(&record.subdir, key, record.owner.as_deref())?;
    Ok(has_claim && export.has_directory(&record.subdir)?)
}

/// Whether a record is that of the volume an id names, and not another's whose name gives the same key.
pub(super) fn is_of(record: &Record, id: &VolumeId) -> bool {
    id.subdir().is_none_or(|subdir| *subdir == record.subdir)
}

/// The record that a volume without one gets (another driver made it, and its directory is all there is); none if there
/// is no such volume.
pub(super) fn adopt(export: &Export, id: &VolumeId) -> Result<Option<Record>, ExportError> {
    let Some(subdir) = id.subdir() else { return Ok(None) };
    let Some(inode) = export.inode_of(subdir)? else { return Ok(None) };
    if id.subdir_was_given() {
        export.claim(subdir, &id.key(), None)?;
    }
    Ok(Some(Record { inode: Some(inode), ..adopted(id, subdir) }))
}

/// What is known of a volume without a record.
pub(super) fn adopted(id: &VolumeId, subdir: &SubDir) -> Record {
    Record {
        id: Some(id.to_string()),
        subdir_given: id.subdir_was_given(),
        on_delete: id.on_delete(),
        ..Record::new(id.name(), subdir.clone())
    }
}
