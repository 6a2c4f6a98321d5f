//! DeleteVolume: the directory goes into the trash (or is archived, or stays), then the record goes.
//!
//! Freeing what is in the trash is the reaper's work, so the answer takes a few round trips, however big the volume.

use std::sync::Arc;

use nix::errno::Errno;
use thiserror::Error;

use super::{Controller, IsStale, job_key};
use crate::export::catalog::Record;
use crate::export::claims::Claims;
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
            let default = controller.settings.default_on_delete;
            let work = move |export: &Export| delete(export, &id, default);
            let (trash, export) = controller.on(&share, &options, work).await?;
            if let Some(name) = trash {
                controller.reaper.free(export, name);
            }
            Ok(())
        };
        self.jobs.run(job, work).await?
    }
}

/// Takes the volume out of sight; gives the name its directory has in the trash, if it went there.
fn delete(export: &Export, id: &VolumeId, default: OnDelete) -> Result<Option<String>, DeleteError> {
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
        (OnDelete::Delete, None) => default,
        (policy, _) => policy,
    };
    let volume = Volume { export, key, subdir: &subdir, given: is_given(id, record.as_ref()) };
    match policy {
        OnDelete::Retain => {
            volume.drop_claim_and_record(record.is_some())?;
            Ok(None)
        }
        policy => export.alone(&subdir, || volume.remove(policy, record.is_some())),
    }
}

/// Whether the StorageClass named the directory: the record knows, else the id tells.
fn is_given(id: &VolumeId, record: Option<&Record>) -> bool {
    record.map_or_else(|| id.subdir_was_given(), |record| record.subdir_given)
}

struct Volume<'a> {
    export: &'a Export,
    key: RecordKey,
    subdir: &'a SubDir,
    given: bool,
}

impl Volume<'_> {
    fn remove(&self, policy: OnDelete, recorded: bool) -> Result<Option<String>, DeleteError> {
        match self.export.claims(self.subdir, &self.key)? {
            Claims::None => {}
            Claims::Inside => {
                let (subdir, share) = (self.subdir.to_string(), self.export.share().to_string());
                return Err(DeleteError::InUse { subdir, share });
            }
            Claims::Shared => {
                self.drop_claim_and_record(recorded)?;
                // The other may have gone meanwhile, seen this one, and left the directory to it.
                if self.export.claims(self.subdir, &self.key)? != Claims::None {
                    return Ok(None);
                }
            }
        }
        if self.given {
            self.export.release(self.subdir, &self.key)?;
            if self.is_anothers_own()? {
                self.drop_claim_and_record(recorded)?;
                return Ok(None);
            }
        }
        let trash = match policy {
            OnDelete::Archive => {
                self.archive()?;
                None
            }
            _ => self.export.throw_away(self.subdir, &self.key)?,
        };
        if recorded {
            self.export.remove_record(&self.key)?;
        }
        Ok(trash)
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

    fn drop_claim_and_record(&self, recorded: bool) -> Result<(), ExportError> {
        if self.given {
            self.export.release(self.subdir, &self.key)?;
        }
        if recorded { self.export.remove_record(&self.key) } else { Ok(()) }
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
