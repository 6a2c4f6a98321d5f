//! Changing the record of a volume while no other controller does, and giving one to a volume that has none.

use std::time::Duration;

use crate::export::catalog::{Created, Record};
use crate::export::record_lock::RecordLock;
use crate::export::{Export, ExportError};
use crate::volume::id::VolumeId;
use crate::volume::record_key::RecordKey;
use crate::volume::subdir::SubDir;

/// What came of a change.
pub(super) enum Change<T> {
    /// It is recorded.
    Done(T),
    /// Another controller is deleting the volume, or was quicker.
    Contended,
    /// The same, and the record may have been brought back by this change: the lock stays, so that whoever deletes the
    /// volume finds it, and the record with it.
    WhileDeleted,
}

/// Does `work`, as it is named by `doing` in errors, under the lock of the volume's record.
pub(super) fn change_alone<T, E: From<ExportError>>(
    export: &Export,
    id: &VolumeId,
    silence: Duration,
    doing: &'static str,
    work: impl FnOnce(&RecordKey, &RecordLock<'_>) -> Result<Change<T>, E>,
) -> Result<T, E> {
    let key = id.key();
    let contended = || E::from(export.contended(doing, id.to_string()));
    let Some(lock) = export.lock_record(&key, silence)? else { return Err(contended()) };
    match work(&key, &lock) {
        Ok(Change::WhileDeleted) => Err(contended()),
        Ok(Change::Done(done)) => lock.unlock().map(|()| done).map_err(E::from),
        Ok(Change::Contended) => lock.unlock().map_err(E::from).and(Err(contended())),
        Err(error) => lock.unlock().map_err(E::from).and(Err(error)),
    }
}

/// The record that a volume without one gets (another driver made it, and its directory is all there is); none if there
/// is no such volume. Its directory is claimed.
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

/// Records a volume that [`adopt`] found; `done` is what that comes to.
pub(super) fn record_adopted<T>(
    export: &Export,
    key: &RecordKey,
    lock: &RecordLock<'_>,
    adopted: &Record,
    done: T,
) -> Result<Change<T>, ExportError> {
    match lock.create(adopted)? {
        Some(Created::Now) => {}
        Some(Created::Before(_)) => return Ok(Change::Contended),
        // It had a record until it was deleted just now, or another controller adopts it.
        None => {
            if adopted.subdir_given {
                export.take_back_claim(&adopted.subdir, key, None)?;
            }
            return Ok(Change::Contended);
        }
    }
    if !is_whole(export, key, adopted)? {
        lock.remove()?;
        return Ok(Change::Contended);
    }
    Ok(Change::Done(done))
}

/// Puts a record in the place of the one that there is; `done` is what that comes to.
pub(super) fn replace<T>(
    export: &Export,
    key: &RecordKey,
    lock: &RecordLock<'_>,
    record: &Record,
    done: T,
) -> Result<Change<T>, ExportError> {
    if !lock.replace(record)? {
        return Ok(Change::Contended);
    }
    Ok(if is_whole(export, key, record)? { Change::Done(done) } else { Change::WhileDeleted })
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
