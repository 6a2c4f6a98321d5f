//! DeleteVolume: the directory goes into the trash (or is archived, or stays), then the record goes.
//!
//! Freeing what is in the trash is the reaper's work, so the answer takes a few round trips, however big the volume.

use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use thiserror::Error;

use super::expand::adopted;
use super::{Controller, IsStale, job_key};
use crate::export::catalog::Record;
use crate::export::claims::Claims;
use crate::export::trash::{Kind, Moved, TrashName};
use crate::export::{Export, ExportError};
use crate::jobs::{Job, JobError};
use crate::mount::options::Options;
use crate::volume::access::OnDelete;
use crate::volume::id::VolumeId;
use crate::volume::name::RecordKey;
use crate::volume::subdir::SubDir;

/// A volume to delete.
#[derive(Clone, Debug)]
pub struct DeleteVolume {
    /// Its id.
    pub id: VolumeId,
    /// The mount options of the secret.
    pub options: Options,
}

/// Why a volume was not deleted.
#[derive(Clone, Debug, Error)]
#[allow(missing_docs, reason = "each variant's message says what its fields are")]
pub enum DeleteError {
    #[error("another volume lies inside {subdir} on {share} and would go with it: delete that one first")]
    InUse { subdir: String, share: String },

    #[error(transparent)]
    Export(#[from] ExportError),

    #[error(transparent)]
    Job(#[from] JobError),
}

impl IsStale for DeleteError {
    fn is_stale(&self) -> bool {
        matches!(self, Self::Export(error) if error.is_stale())
    }
}

/// How many archived copies of one directory are kept side by side.
const ARCHIVES: u32 = 1000;

impl Controller {
    /// Deletes a volume; one that is gone is success.
    ///
    /// # Errors
    /// See [`DeleteError`]; the volume is then still there, or a retry completes what was begun.
    pub async fn delete(self: &Arc<Self>, request: DeleteVolume) -> Result<(), DeleteError> {
        let key = job_key(request.id.share(), &request.id.key());
        let fingerprint = format!("{} {:?}", request.id, request.options);
        let job = Job { removes: true, ..Job::short(key, "DeleteVolume", fingerprint) };
        let controller = Arc::clone(self);
        let work = async move {
            let DeleteVolume { id, options } = request;
            let share = id.share().clone();
            let defaults = (controller.settings.default_on_delete, controller.settings.trash_retention);
            let work = move |export: &Export| delete(export, &id, defaults);
            let (trash, export) = controller.on(&share, &options, work).await?;
            if let Some(name) = trash {
                controller.reaper.free(export, &name);
            }
            Ok(())
        };
        self.jobs.run(job, work).await?
    }
}

/// Takes the volume out of sight; gives the name its directory has in the trash, if it went there.
fn delete(
    export: &Export,
    id: &VolumeId,
    (default_policy, default_retention): (OnDelete, Duration),
) -> Result<Option<TrashName>, DeleteError> {
    let key = id.key();
    let record = export.record(&key)?;
    let Some(subdir) = id.subdir().cloned().or_else(|| record.as_ref().map(|record| record.subdir.clone())) else {
        // A compact id names its record, and the record is gone: so is the volume.
        return Ok(None);
    };
    // A record of the same key that names another directory is another volume's: not this one's to remove.
    let record = record.filter(|record| record.subdir == subdir);
    // An id tells of `retain` and `archive` only: the record knows more, and where there is none (another driver's
    // volume, one written down by hand) it is the operator's decision, as with csi-driver-nfs.
    let policy = match (id.on_delete(), &record) {
        (OnDelete::Delete, Some(record)) => record.on_delete,
        (OnDelete::Delete, None) => default_policy,
        (policy, _) => policy,
    };
    let retention = record.as_ref().and_then(|record| record.trash_retention).map(Duration::from_secs);
    let volume = Volume {
        export,
        id,
        key,
        subdir: &subdir,
        given: is_given(id, record.as_ref()),
        is_recorded: record.is_some(),
        kept: retention.unwrap_or(default_retention),
    };
    match policy {
        OnDelete::Retain => {
            volume.drop_claim_and_record()?;
            Ok(None)
        }
        policy => export.alone(&subdir, || volume.remove(policy)),
    }
}

/// Whether the StorageClass named the directory: the record knows, else the id tells.
fn is_given(id: &VolumeId, record: Option<&Record>) -> bool {
    record.map_or_else(|| id.subdir_was_given(), |record| record.subdir_given)
}

struct Volume<'a> {
    export: &'a Export,
    id: &'a VolumeId,
    key: RecordKey,
    subdir: &'a SubDir,
    given: bool,
    is_recorded: bool,
    /// How long it can be brought back.
    kept: Duration,
}

impl Volume<'_> {
    fn remove(&self, policy: OnDelete) -> Result<Option<TrashName>, DeleteError> {
        match self.export.claims(self.subdir, &self.key)? {
            Claims::None => {}
            Claims::Inside => {
                let (subdir, share) = (self.subdir.to_string(), self.export.share().to_string());
                return Err(DeleteError::InUse { subdir, share });
            }
            Claims::Shared => {
                self.drop_claim_and_record()?;
                // The other may have gone meanwhile, seen this one, and left the directory to it.
                if self.export.claims(self.subdir, &self.key)? != Claims::None {
                    return Ok(None);
                }
            }
        }
        if self.given {
            self.export.release(self.subdir, &self.key)?;
            if self.is_anothers_own()? {
                self.drop_claim_and_record()?;
                return Ok(None);
            }
        }
        if policy == OnDelete::Archive {
            self.archive()?;
        } else if self.kept.is_zero() {
            let name = TrashName::now(Kind::Volume, self.key.clone(), Duration::ZERO);
            let moved = self.export.throw_away(self.subdir, &name)?;
            self.drop_record()?;
            return Ok((moved == Moved::Yes).then_some(name));
        } else {
            return Ok(self.keep()?);
        }
        self.drop_record()?;
        Ok(None)
    }

    /// Moves the directory to the trash and its record with it.
    fn keep(&self) -> Result<Option<TrashName>, ExportError> {
        let name = TrashName::now(Kind::Volume, self.key.clone(), self.kept);
        let name = match self.export.throw_away(self.subdir, &name)? {
            Moved::Yes => Some(name),
            // An earlier try came as far and was cut short: its directory gets the record that is still in place.
            Moved::Missing if self.is_recorded => {
                let kept = self.export.trash()?.unwrap_or_default().kept;
                kept.into_iter().rfind(|kept| kept.kind == Kind::Volume && kept.key == self.key)
            }
            Moved::Missing => None,
        };
        match &name {
            Some(name) if self.is_recorded => self.export.throw_away_record(name)?,
            Some(name) => self.export.keep_record(name, &adopted(self.id, self.subdir))?,
            None => self.drop_record()?,
        }
        Ok(name)
    }

    fn drop_record(&self) -> Result<(), ExportError> {
        if self.is_recorded { self.export.remove_record(&self.key) } else { Ok(()) }
    }

    /// Whether a volume that has this directory by its own name (and so claims none) exists.
    fn is_anothers_own(&self) -> Result<bool, ExportError> {
        let key = RecordKey::of(&self.subdir.to_string());
        if key == self.key {
            return Ok(false);
        }
        let record = self.export.record(&key)?;
        Ok(record.is_some_and(|record| record.subdir == *self.subdir && !record.subdir_given))
    }

    fn drop_claim_and_record(&self) -> Result<(), ExportError> {
        if self.given {
            self.export.release(self.subdir, &self.key)?;
        }
        self.drop_record()
    }

    /// Renames the directory to `archived-<subDir>`; older archives of the same name stay as they are.
    fn archive(&self) -> Result<(), ExportError> {
        let mut last = None;
        for copy in 0..ARCHIVES {
            match self.export.move_directory(self.subdir, &self.subdir.archived(copy)) {
                Err(ExportError::Io { errno: Errno::EEXIST | Errno::ENOTEMPTY, .. }) if copy + 1 < ARCHIVES => {}
                Err(error) => {
                    last = Some(error);
                    break;
                }
                Ok(_) => return Ok(()),
            }
        }
        last.map_or(Ok(()), Err)
    }
}
