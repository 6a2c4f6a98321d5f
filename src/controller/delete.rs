//! DeleteVolume: the directory goes into the trash (or is archived, or stays), then the record goes.
//!
//! Freeing what is in the trash is the reaper's work, so the answer takes a few round trips, however big the volume.

use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use thiserror::Error;

use super::record_change::adopted;
use super::{Controller, IsStale, Settings, job_key};
use crate::export::catalog::Record;
use crate::export::claims::Claims;
use crate::export::record_lock::RecordLock;
use crate::export::trash::{Kind, Moved, TrashName};
use crate::export::{Export, ExportError};
use crate::jobs::{Job, JobError};
use crate::mount::options::Options;
use crate::volume::access::OnDelete;
use crate::volume::id::VolumeId;
use crate::volume::record_key::RecordKey;
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
        let id = request.id.clone();
        let on = [(id.share().clone(), request.options.clone())];
        let work = async move {
            let DeleteVolume { id, options } = request;
            let share = id.share().clone();
            let defaults = Defaults::of(&controller.settings);
            let work = move |export: &Export| delete(export, &id, defaults);
            controller.on(&share, &options, work).await.map(drop)
        };
        let deleted = self.run(&on, job, work).await;
        if deleted.is_ok() {
            self.unenforced.note(id.share(), &id.to_string(), false);
        }
        deleted
    }
}

/// What the operator decided for volumes whose record does not say it.
#[derive(Clone, Copy, Debug)]
struct Defaults {
    policy: OnDelete,
    retention: Duration,
    /// For volumes without a record, at least.
    unrecorded: Duration,
    silence: Duration,
}

impl Defaults {
    fn of(settings: &Settings) -> Self {
        Self {
            policy: settings.default_on_delete,
            retention: settings.trash_retention,
            unrecorded: settings.unrecorded_retention,
            silence: settings.takeover_after,
        }
    }
}

/// Takes the volume out of sight.
fn delete(export: &Export, id: &VolumeId, defaults: Defaults) -> Result<(), DeleteError> {
    let key = id.key();
    let record = export.record(&key)?;
    let Some(subdir) = id.subdir().cloned().or_else(|| record.as_ref().map(|record| record.subdir.clone())) else {
        // A compact id names its record, and the record is gone: so is the volume.
        return Ok(());
    };
    // A record of the same key that names another directory is another volume's: not this one's to remove.
    let record = record.filter(|record| record.subdir == subdir);
    // The record knows what was asked for last. Where there is none (another driver's volume, one written down by hand)
    // an id tells of `retain` and `archive` only, and else it is the operator's decision, as with csi-driver-nfs.
    let policy = match (&record, id.on_delete()) {
        // What the driver did not make it does not destroy, unless it is told to.
        (Some(record), _) if record.found && !record.on_delete_given && record.on_delete == OnDelete::Delete => {
            OnDelete::Retain
        }
        (Some(record), _) => record.on_delete,
        // Its record said so when it was deleted, and this is a repetition.
        (None, OnDelete::Delete) if export.was_retained(&key, &subdir)? => OnDelete::Retain,
        (None, OnDelete::Delete) => defaults.policy,
        (None, policy) => policy,
    };
    let kept = match &record {
        Some(record) => record.trash_retention.map_or(defaults.retention, Duration::from_secs),
        // Whether it shares its directory with others nobody knows.
        None => defaults.retention.max(defaults.unrecorded),
    };
    let silence = defaults.silence;
    let volume = Volume { export, id, key, subdir: &subdir, record: record.as_ref(), kept, silence };
    match policy {
        OnDelete::Retain => {
            volume.let_go()?;
            volume.audit("stays where it is");
            Ok(())
        }
        policy => export.alone(&subdir, || volume.remove(policy)),
    }
}

struct Volume<'a> {
    export: &'a Export,
    id: &'a VolumeId,
    key: RecordKey,
    subdir: &'a SubDir,
    record: Option<&'a Record>,
    /// How long it can be brought back.
    kept: Duration,
    /// How long another controller that changes the record may be silent.
    silence: Duration,
}

impl Volume<'_> {
    fn remove(&self, policy: OnDelete) -> Result<(), DeleteError> {
        // Others hardly ever have the directory of a volume's own name: that they do is seen when it was moved away,
        // and it is put back.
        if self.is_given() || policy == OnDelete::Archive {
            match self.export.claims(self.subdir, &self.key)? {
                Claims::Inside(_) => return Err(self.in_use()),
                Claims::Shared(_) => return self.leave_to_others(),
                Claims::None => {}
            }
            if self.is_anothers_own()? {
                return self.leave_to_others();
            }
        }
        if policy == OnDelete::Archive { self.archive() } else { self.throw_away() }
    }

    /// Whether the StorageClass named the directory: the record knows, else the id tells.
    fn is_given(&self) -> bool {
        self.record.map_or_else(|| self.id.subdir_was_given(), |record| record.subdir_given)
    }

    fn in_use(&self) -> DeleteError {
        DeleteError::InUse { subdir: self.subdir.to_string(), share: self.export.share().to_string() }
    }

    /// Moves the directory to the trash and its record with it.
    fn throw_away(&self) -> Result<(), DeleteError> {
        let name = TrashName::new(Kind::Volume, self.key.clone(), self.export.now(), self.kept);
        let name = match self.export.throw_away(self.subdir, &name)? {
            Moved::Yes => Some(name),
            // An earlier try came as far and was cut short: its directory gets the record that is still in place.
            Moved::Missing if self.record.is_some() => self.export.thrown_away_before(&self.key)?,
            Moved::Missing => None,
        };
        let Some(name) = name else {
            self.remove_unplaced()?;
            self.forget()?;
            self.audit("was gone");
            return Ok(self.export.remove_made_parents(self.subdir)?);
        };
        // Another controller may have made a volume of the directory in the moment in which it was moved away.
        match self.export.claims(self.subdir, &self.key)? {
            Claims::None => {}
            others if self.export.put_back(&name, self.subdir)? => {
                return if matches!(others, Claims::Inside(_)) { Err(self.in_use()) } else { self.leave_to_others() };
            }
            // That volume had its directory made again.
            _ => {}
        }
        // As late as the record: until then a new volume of the same directory sees whose it was.
        self.release()?;
        match self.record {
            Some(_) if name.keep_until == 0 => self.export.remove_record(&self.key)?,
            Some(_) => self.export.throw_away_record(&name)?,
            None => self.export.keep_record(&name, &adopted(self.id, self.subdir))?,
        }
        self.audit(&format!("moved to the trash as {name}"));
        self.export.leave_to_reaper(name);
        Ok(self.export.remove_made_parents(self.subdir)?)
    }

    /// Renames the directory to `archived-<subDir>`; older archives of the same name stay as they are.
    fn archive(&self) -> Result<(), DeleteError> {
        for copy in 0..ARCHIVES {
            let archive = self.subdir.archived(copy);
            match self.export.move_directory(self.subdir, &archive) {
                Err(ExportError::Io { errno: Errno::EEXIST | Errno::ENOTEMPTY, .. }) if copy + 1 < ARCHIVES => {}
                Err(error) => return Err(error.into()),
                Ok(Moved::Missing) => {
                    self.remove_unplaced()?;
                    self.audit("was gone");
                    break;
                }
                Ok(Moved::Yes) => {
                    // As for the trash.
                    if self.export.claims(self.subdir, &self.key)? != Claims::None
                        && self.export.move_directory(&archive, self.subdir).is_ok()
                    {
                        return self.leave_to_others();
                    }
                    self.audit(&format!("archived as {archive}"));
                    break;
                }
            }
        }
        self.forget()?;
        Ok(self.export.remove_made_parents(self.subdir)?)
    }

    /// The directory stays, for other volumes name it. They may have gone meanwhile, seen this one, and left the
    /// directory to it: the last one takes it at the next try. Until then it has its claim again, so that nobody takes
    /// what is in the directory for a user's.
    fn leave_to_others(&self) -> Result<(), DeleteError> {
        self.release()?;
        let is_left = self.export.claims(self.subdir, &self.key)? != Claims::None || self.is_anothers_own()?;
        if !is_left && self.export.has_directory(self.subdir)? {
            // With its record, which says what is to become of the directory.
            if self.is_given() {
                self.export.claim(self.subdir, &self.key, self.owner())?;
            }
            return Err(self.export.contended("delete", self.subdir.to_string()).into());
        }
        self.forget()?;
        self.audit("stays, since others have it too");
        Ok(())
    }

    /// Whether this is the directory of something that exists and claims none: of a volume that has it by its own name,
    /// or of a snapshot that this volume reads.
    fn is_anothers_own(&self) -> Result<bool, ExportError> {
        if let Some(tree) = self.subdir.shared_tree() {
            return self.export.has_snapshot_of(&tree);
        }
        let key = RecordKey::of(self.subdir.as_str());
        if key == self.key {
            return Ok(false);
        }
        let record = self.export.record(&key)?;
        Ok(record.is_some_and(|record| record.subdir == *self.subdir && !record.subdir_given))
    }

    /// A directory with a limit is recorded before it is put in place (limited.rs). It goes here, so that a controller
    /// which is about to put it there finds the delete.
    fn remove_unplaced(&self) -> Result<(), ExportError> {
        let recorded = self.record.and_then(|record| Some((record.project()?, record.inode?)));
        let Some((project, inode)) = recorded else { return Ok(()) };
        self.export.remove_unplaced(project, inode)?;
        if self.export.inode_of(self.subdir)? == Some(inode) {
            return Err(self.export.contended("delete", self.subdir.to_string()));
        }
        Ok(())
    }

    fn release(&self) -> Result<(), ExportError> {
        if !self.is_given() {
            return Ok(());
        }
        self.export.release(self.subdir, &self.key, self.owner())
    }

    /// The cluster whose volume it is.
    fn owner(&self) -> Option<&str> {
        self.record.and_then(|record| record.owner.as_deref())
    }

    /// Drops the claim, and the record last of all: by that a retry knows what is to be done.
    fn forget(&self) -> Result<(), ExportError> {
        self.release()?;
        if self.record.is_some() { self.export.remove_record(&self.key) } else { Ok(()) }
    }

    /// The same for a directory that stays. Where there is no claim either, nothing tells another controller that this
    /// volume is being deleted: so the record goes under its lock.
    fn let_go(&self) -> Result<(), ExportError> {
        let is_limited = self.record.is_some_and(|record| record.project().is_some());
        if is_limited && self.export.inode_of(self.subdir)?.is_none() {
            self.remove_unplaced()?;
        }
        if self.record.is_none() {
            return self.forget();
        }
        if self.is_given() {
            self.release()?;
        }
        // The record is kept, also where the id says `retain` too: it tells the directory from one that is left over.
        match self.export.with_record_locked(&self.key, self.silence, RecordLock::retain)? {
            Some(true) => Ok(()),
            _ => Err(self.export.contended("delete", self.subdir.to_string())),
        }
    }

    /// One line for each volume that goes.
    fn audit(&self, outcome: &str) {
        tracing::info!(
            volume = %self.id,
            share = %self.export.share(),
            directory = %self.subdir,
            method = "DeleteVolume",
            outcome,
            "volume deleted"
        );
    }
}
